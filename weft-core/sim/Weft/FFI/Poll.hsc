-- |
-- poll(2) of the simulated machine ("Kernel"), under the names of the real module. (The suffix is that of the real one,
-- which Cabal would take otherwise.)
module Weft.FFI.Poll
  ( pollLook,
    pollWait,
    alwaysReady,
    PollFd,
    pollFdSize,
    pokePollFd,
    peekRevents,
    pollIn,
    pollOut,
    pollPri,
    pollRdHup,
    pollErr,
    pollHup,
    pollNval,
  )
where

import Control.Monad (forM, zipWithM_)
import Data.Int (Int64)
import Data.Word (Word32)
import Foreign.C.Types (CInt, CShort, CULong)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekByteOff, pokeByteOff)
import Kernel
import Simulation (point)

data PollFd

pollFdSize :: Int
pollFdSize = 8

pokePollFd :: Ptr PollFd -> Int -> CInt -> CShort -> IO ()
pokePollFd p i fd evs = do
  pokeByteOff p (i * pollFdSize) fd
  pokeByteOff p (i * pollFdSize + 4) evs
  pokeByteOff p (i * pollFdSize + 6) (0 :: CShort)

peekRevents :: Ptr PollFd -> Int -> IO CShort
peekRevents p i = peekByteOff p (i * pollFdSize + 6)

pollIn, pollOut, pollPri, pollRdHup, pollErr, pollHup, pollNval :: CShort
pollIn = 1
pollPri = 2
pollOut = 4
pollErr = 8
pollHup = 0x10
pollNval = 0x20
pollRdHup = 0x2000

pollLook :: Ptr PollFd -> CULong -> IO CInt
pollLook p n = asked p n >>= (`pollCollect` Nothing) >>= answered p

pollWait :: Ptr PollFd -> CULong -> Int64 -> IO CInt
pollWait p n ns = asked p n >>= (`pollCollect` Just ns) >>= answered p

asked :: Ptr PollFd -> CULong -> IO [(Int, Word32)]
asked p n = forM [0 .. fromIntegral n - 1] $ \i -> do
  fd <- peekByteOff p (i * pollFdSize) :: IO CInt
  bits <- peekByteOff p (i * pollFdSize + 4) :: IO CShort
  pure (fromIntegral fd, fromIntegral bits)

answered :: Ptr PollFd -> Either Int [Word32] -> IO CInt
answered _ (Left e) = pure (fromIntegral e)
answered p (Right found) = do
  zipWithM_ (\i b -> pokeByteOff p (i * pollFdSize + 6) (fromIntegral b :: CShort)) [0 ..] found
  pure (fromIntegral (length (filter (/= 0) found)))

alwaysReady :: CInt -> IO CInt
alwaysReady fd = do
  point
  open <- isOpenNumber (fromIntegral fd)
  pure (if open then 0 else -9)
