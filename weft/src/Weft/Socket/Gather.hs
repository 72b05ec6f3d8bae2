-- |
-- Sending many strings by few system calls, for the modules of byte strings.
module Weft.Socket.Gather
  ( sendGathered,
    maxPieces,
    sendSome,
    dropBytes,
  )
where

import Control.Exception (mask_, onException)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeDrop)
import Foreign.C.Types (CInt)
import Foreign.Ptr (Ptr, nullPtr)
import System.Posix.Types (CSsize)
import Weft.FFI.Socket
import Weft.Socket.Datagram
import Weft.Socket.Pieces (withPieces)
import Weft.Socket.Types

-- | The largest number of pieces in one call (@IOV_MAX@ on Linux).
maxPieces :: Int
maxPieces = 1024

-- | Send strings one after the other by a call like sendmsg(2); on a socket of messages, all as one. The first argument
-- names the operation in exceptions. The action runs if the operation is cut off after a part ('cutOff', for
-- connections). (Not inlined: a call with up to 1024 pieces costs more than the call of a function, and each copy of the
-- code would take GHC two seconds.)
sendGathered :: String -> Socket -> IO () -> (CInt -> Ptr IoVec -> CInt -> IO CSsize) -> [ByteString] -> IO ()
sendGathered loc s onCut call chunks = mask_ $ do
  -- Masked from the first part on; it is interruptible where it waits, and between parts: the strings may be computed
  -- as they are sent, more slowly than the peer receives.
  (whole, left) <- part =<< keptWhole maxPieces s (filter (not . B.null) chunks)
  unless (whole && null left) (rest left `onException` onCut)
  where
    rest [] = pure ()
    rest left = betweenParts loc s >> part left >>= rest . snd
    -- What is left, and whether all of that is computed already: computing the strings behind a full batch may throw.
    part [] = pure (True, [])
    part left = do
      let (batch, more) = splitAt maxPieces left
      sent <- sendBatch loc s call batch
      pure (null (drop (maxPieces - 1) batch), dropBytes sent batch <> more)
{-# NOINLINE sendGathered #-}

-- | Send the first strings, or as much of them as the kernel takes at once; on a socket of messages, all as one.
-- Returns the number of bytes taken.
sendSome :: String -> Socket -> [ByteString] -> IO Int
sendSome loc s chunks = do
  pieces <- keptWhole maxPieces s chunks
  sendBatch loc s (\fd iov n -> cSendV fd iov n nullPtr 0) (take maxPieces pieces)

sendBatch :: String -> Socket -> (CInt -> Ptr IoVec -> CInt -> IO CSsize) -> [ByteString] -> IO Int
sendBatch loc s call batch = withPieces batch $ \iov count ->
  operate loc s Writing $ \fd -> do
    r <- call fd iov count
    decodeResult r (\n -> pure (if n < size then Drained n else Done n))
  where
    size = sum (map B.length batch)
{-# INLINE sendBatch #-}

-- | What is left of strings without that number of bytes.
dropBytes :: Int -> [ByteString] -> [ByteString]
dropBytes _ [] = []
dropBytes n (c : cs)
  | n >= B.length c = dropBytes (n - B.length c) cs
  | otherwise = B.unsafeDrop n c : cs
