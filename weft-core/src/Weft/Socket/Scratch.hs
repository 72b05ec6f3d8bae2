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
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes)
import Foreign.Ptr (Ptr)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Sys

-- | Bytes in a scratch buffer: the most that one receive returns.
scratchSize :: Int
scratchSize = 65536

data Place = InUse | Free !(ForeignPtr Word8)

-- | By capability, round the power of two. Taken and put back by any thread.
places :: BoxedArray (Ref Place)
places = unsafePerformIO $ do
  first <- newRef InUse
  arr <- newBoxedArray placeCount first
  mapM_ (\i -> newRef InUse >>= writeBoxedArray arr i) [0 .. placeCount - 1]
  pure arr
{-# NOINLINE places #-}

placeCount :: Int
placeCount = 64

-- | Run an action with a scratch buffer of 'scratchSize' bytes. The action must
-- neither block nor throw.
withScratch :: (Ptr Word8 -> IO a) -> IO a
withScratch act = do
  cap <- myCapability
  place <- readBoxedArray places (cap .&. (placeCount - 1))
  found <- swapRef place InUse
  buffer <- case found of
    Free _ -> pure found
    InUse -> Free <$> mallocForeignPtrBytes scratchSize
  a <- unsafeWithForeignPtr (memory buffer) act
  writeRef place buffer
  pure a
  where
    -- The action does not diverge, which is what makes the pointer safe to use.
    memory (Free fp) = fp
    memory InUse = errorWithoutStackTrace "Weft.Socket.Scratch: no buffer"
{-# INLINE withScratch #-}
