-- | epoll(7) of the simulated machine ("Kernel"), under the names of the real module. (The suffix is that of the real
-- one, which Cabal would take otherwise.)
module Weft.FFI.Epoll
  ( epollCreate,
    epollAdd,
    epollModify,
    epollDelete,
    epollLook,
    epollWait,
    closeEpoll,
    EpollEvent,
    epollEventSize,
    peekEvents,
    peekData,
    epollIn,
    epollOut,
    epollPri,
    epollRdHup,
    epollErr,
    epollHup,
    epollEt,
    epollOneShot,
  )
where

import Control.Monad (void, zipWithM_)
import Data.Int (Int64)
import Data.Word (Word32, Word64)
import Foreign.C.Types (CInt)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekByteOff, pokeByteOff)
import Kernel

data EpollEvent

epollEventSize :: Int
epollEventSize = 16

peekEvents :: Ptr EpollEvent -> Int -> IO Word32
peekEvents p i = peekByteOff p (i * epollEventSize)

peekData :: Ptr EpollEvent -> Int -> IO Int
peekData p i = peekByteOff p (i * epollEventSize + 8)

epollIn, epollOut, epollPri, epollRdHup, epollErr, epollHup, epollEt, epollOneShot :: Word32
epollIn = 1
epollPri = 2
epollOut = 4
epollErr = 8
epollHup = 0x10
epollRdHup = 0x2000
epollOneShot = 0x40000000
epollEt = 0x80000000

epollAdd, epollModify, epollDelete :: CInt -> CInt -> Word32 -> Word64 -> IO CInt
epollAdd = control Add
epollModify = control Modify
epollDelete = control Delete

control :: Control -> CInt -> CInt -> Word32 -> Word64 -> IO CInt
control op ep fd bits user = fromIntegral <$> epollControl (fromIntegral ep) op (fromIntegral fd) bits (fromIntegral user)

epollCreate :: IO CInt
epollCreate = fromIntegral <$> newEpoll

epollLook :: CInt -> Ptr EpollEvent -> CInt -> IO CInt
epollLook ep p n = collected p =<< epollCollect (fromIntegral ep) (fromIntegral n) Nothing

epollWait :: CInt -> Ptr EpollEvent -> CInt -> Int64 -> IO CInt
epollWait ep p n ns = collected p =<< epollCollect (fromIntegral ep) (fromIntegral n) (Just ns)

collected :: Ptr EpollEvent -> Either Int [(Word32, Int)] -> IO CInt
collected _ (Left e) = pure (fromIntegral e)
collected p (Right events) = do
  zipWithM_ (\i (b, d) -> pokeByteOff p (i * epollEventSize) b >> pokeByteOff p (i * epollEventSize + 8) d) [0 ..] events
  pure (fromIntegral (length events))

closeEpoll :: CInt -> IO ()
closeEpoll = void . closeNumber . fromIntegral
