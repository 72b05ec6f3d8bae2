-- |
-- Concatenates strings that arrive one after the other. The memory is doubled when it is full, so n bytes in segments
-- of one byte cost n copies of a byte rather than n strings.
module Weft.Http.Gather
  ( Gathered,
    gathered,
    gather,
    gatheredBytes,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr, plusPtr)
import GHC.ForeignPtr (unsafeWithForeignPtr)

-- | Memory, its size, and the number of bytes used; the used bytes never change. Used by one thread, which appends to
-- each value at most once.
data Gathered = Gathered !(ForeignPtr Word8) !Int !Int

-- | Begin with the first string.
gathered :: ByteString -> IO Gathered
gathered = resized 0

-- | Copy a string into larger memory, with room for this many more bytes after it.
resized :: Int -> ByteString -> IO Gathered
resized more bytes = do
  let size = max 1024 (2 * (B.length bytes + more))
  memory <- B.mallocByteString size
  put (Gathered memory size 0) bytes

-- | Append the next string.
gather :: Gathered -> ByteString -> IO Gathered
gather have@(Gathered _ size used) bytes
  | used + B.length bytes <= size = put have bytes
  | otherwise = resized (B.length bytes) (gatheredBytes have) >>= \larger -> put larger bytes

put :: Gathered -> ByteString -> IO Gathered
put (Gathered memory size used) bytes = do
  unsafeWithForeignPtr memory $ \to ->
    B.unsafeUseAsCStringLen bytes (\(from, n) -> copyBytes (to `plusPtr` used) (castPtr from) n)
  pure (Gathered memory size (used + B.length bytes))

-- | The concatenated string.
gatheredBytes :: Gathered -> ByteString
gatheredBytes (Gathered memory _ used) = B.fromForeignPtr memory 0 used
