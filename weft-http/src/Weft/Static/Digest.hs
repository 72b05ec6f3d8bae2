-- |
-- A short digest of contents, which distinguishes two versions of a file. It does not resist deliberate collisions,
-- which only the author of the site could construct.
--
-- XXH3 with 64 bits and without a seed, of libxxhash (its values do not change between versions from 0.8 on): all
-- replicas of a site compute equal digests. 16 KiB take about a microsecond. Any thread may call this.
module Weft.Static.Digest
  ( digest,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Word (Word64)
import Foreign.C.Types (CChar, CSize (..))
import Foreign.Ptr (Ptr)
import System.IO.Unsafe (unsafeDupablePerformIO)

-- | The digest of a string. O(n).
digest :: ByteString -> Word
digest bytes = fromIntegral (unsafeDupablePerformIO (B.unsafeUseAsCStringLen bytes (\(from, size) -> cDigest from (fromIntegral size))))

foreign import ccall unsafe "XXH3_64bits" cDigest :: Ptr CChar -> CSize -> IO Word64
