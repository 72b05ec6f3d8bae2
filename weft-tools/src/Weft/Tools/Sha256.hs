-- |
-- SHA-256 by OpenSSL. Any thread may call this function.
module Weft.Tools.Sha256
  ( sha256,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Internal as B (create)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Word (Word8)
import Foreign.C
import Foreign.Ptr (Ptr, castPtr)
import System.IO.Unsafe (unsafeDupablePerformIO)

-- | The digest, of 32 bytes.
sha256 :: ByteString -> ByteString
sha256 bytes = unsafeDupablePerformIO . B.create 32 $ \to -> B.unsafeUseAsCStringLen bytes $ \(at, n) -> do
  r <- c_sha256 (castPtr at) (fromIntegral n) to
  when (r /= 1) (ioError (userError "SHA-256: OpenSSL does not compute it"))

foreign import ccall unsafe "weft_sha256" c_sha256 :: Ptr Word8 -> CSize -> Ptr Word8 -> IO CInt
