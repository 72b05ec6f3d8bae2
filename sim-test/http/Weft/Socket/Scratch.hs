-- |
-- On the simulated machine each operation allocates a buffer.
module Weft.Socket.Scratch
  ( withScratch,
    scratchSize,
  )
where

import Data.Word (Word8)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr)

scratchSize :: Int
scratchSize = 65536

withScratch :: (Ptr Word8 -> IO a) -> IO a
withScratch = allocaBytes scratchSize
