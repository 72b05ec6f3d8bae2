-- |
-- Buffers to receive into, one for each capability: data is received into the
-- scratch buffer and what came is copied out, so that a thread that waits holds no
-- buffer, and a small message costs a small string.
--
-- A buffer is checked out for the time of a system call and the copying. Should
-- its thread be preempted in between, another thread of the capability finds the
-- place empty and makes a buffer of its own.
module Weft.Socket.Scratch
  ( withScratch,
    scratchSize,
  )
where

import Data.Bits ((.&.))
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, withForeignPtr)
import Foreign.Ptr (Ptr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Sys

-- | Bytes in a scratch buffer: the most that one receive returns.
scratchSize :: Int
scratchSize = 65536

-- | Room for an address behind the data.
slack :: Int
slack = 256

data Place = Empty | Free !(ForeignPtr Word8)

-- | By capability, round the power of two. Taken and put back by any thread.
places :: Slots (Ref Place)
places = unsafePerformIO $ do
  first <- newRef Empty
  arr <- newSlots placeCount first
  mapM_ (\i -> newRef Empty >>= writeSlot arr i) [0 .. placeCount - 1]
  pure arr
{-# NOINLINE places #-}

placeCount :: Int
placeCount = 64

-- | Run an action with a scratch buffer of 'scratchSize' bytes and a little more.
-- The action must not block and not throw.
withScratch :: (Ptr Word8 -> IO a) -> IO a
withScratch act = do
  cap <- myCapability
  place <- readSlot places (cap .&. (placeCount - 1))
  found <- swapRef place Empty
  fp <- case found of
    Free fp -> pure fp
    Empty -> mallocForeignPtrBytes (scratchSize + slack)
  a <- withForeignPtr fp act
  writeRef place (Free fp)
  pure a
{-# INLINE withScratch #-}
