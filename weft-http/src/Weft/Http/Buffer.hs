-- |
-- Buffers in which responses are put together, kept by each capability. A connection has one
-- from its response's first byte until that was sent, so that one which waits for its client's
-- next request holds none.
module Weft.Http.Buffer
  ( Buffer,
    withBuffer,
    takeBuffer,
    putBuffer,
    bufferSize,
    bufferMemory,
  )
where

import Data.Bits ((.&.))
import qualified Data.ByteString.Internal as B (mallocByteString)
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr)
import Foreign.Ptr (Ptr)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Sys

-- | Memory of 'bufferSize' bytes.
newtype Buffer = Buffer (ForeignPtr Word8)

-- | Its memory.
bufferMemory :: Buffer -> ForeignPtr Word8
bufferMemory (Buffer memory) = memory
{-# INLINE bufferMemory #-}

-- | 16 KiB.
bufferSize :: Int
bufferSize = 16384

data Place = Empty | Holds !Buffer

-- | By capability, modulo their number. Taken and put back by any thread; a second buffer that comes back
-- is dropped.
places :: BoxedArray (Ref Place)
places = unsafePerformIO $ do
  first <- newRef Empty
  arr <- newBoxedArray placeCount first
  mapM_ (\i -> newRef Empty >>= writeBoxedArray arr i) [0 .. placeCount - 1]
  pure arr
{-# NOINLINE places #-}

placeCount :: Int
placeCount = 64

place :: IO (Ref Place)
place = myCapability >>= \cap -> readBoxedArray places (cap .&. (placeCount - 1))
{-# INLINE place #-}

-- | The capability's buffer, or a new one when another thread has it.
takeBuffer :: IO Buffer
takeBuffer = do
  ref <- place
  found <- swapRef ref Empty
  case found of
    Holds buffer -> pure buffer
    Empty -> Buffer <$> B.mallocByteString bufferSize
{-# INLINE takeBuffer #-}

-- | Give a buffer back. Nobody may use its memory any more.
putBuffer :: Buffer -> IO ()
putBuffer buffer = place >>= \ref -> writeRef ref (Holds buffer)
{-# INLINE putBuffer #-}

-- | Use a buffer. One that an exception leaves is the collector's.
withBuffer :: (Ptr Word8 -> IO a) -> IO a
withBuffer act = do
  buffer <- takeBuffer
  a <- unsafeWithForeignPtr (bufferMemory buffer) act
  a <$ putBuffer buffer
{-# INLINE withBuffer #-}
