-- |
-- Scratch buffers, one for each capability. Data is received into the
-- scratch buffer, and copied into a string of its size. So a waiting thread holds no
-- buffer, and a small message takes a small string.
--
-- A thread takes the buffer for a system call and the copy. If it
-- is preempted meanwhile, another thread of the capability finds the
-- place empty and allocates another buffer.
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

-- | The size of a scratch buffer in bytes.
scratchSize :: Int
scratchSize = 65536

data Place = InUse | Free !(ForeignPtr Word8)

-- | The places of the buffers, by capability modulo a power of two. Any thread takes a buffer and puts it back.
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
    -- Safe, as the action does not diverge.
    memory (Free fp) = fp
    memory InUse = errorWithoutStackTrace "Weft.Socket.Scratch: no buffer"
{-# INLINE withScratch #-}
