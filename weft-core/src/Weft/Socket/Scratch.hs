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

import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes)
import Foreign.Ptr (Ptr)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Core.Each
import Weft.Sys

-- | The size of a scratch buffer in bytes.
scratchSize :: Int
scratchSize = 65536

data Place = InUse | Free !(ForeignPtr Word8)

-- | The places of the buffers. Any thread takes a buffer and puts it back.
places :: Each (OwnRef Place)
places = unsafePerformIO (newEach (newOwnRef InUse))
{-# NOINLINE places #-}

-- | Run an action with a scratch buffer of 'scratchSize' bytes. The action must
-- neither block nor throw.
withScratch :: (Ptr Word8 -> IO a) -> IO a
withScratch act = do
  place <- own places
  found <- swapOwnRef place InUse
  buffer <- case found of
    Free _ -> pure found
    InUse -> Free <$> mallocForeignPtrBytes scratchSize
  a <- unsafeWithForeignPtr (memory buffer) act
  writeOwnRef place buffer
  pure a
  where
    -- Safe, as the action does not diverge.
    memory (Free fp) = fp
    memory InUse = errorWithoutStackTrace "Weft.Socket.Scratch: no buffer"
{-# INLINE withScratch #-}
