-- |
-- Description : Hashes of passwords
--
-- bcrypt by the system's crypt(3), and SHA-256 by OpenSSL. Any thread may call these functions.
module Weft.Tools.Serve.PasswordHash
  ( matchesHash,
    sha256,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Word (Word8)
import Foreign.C
import Foreign.Ptr (Ptr, castPtr)
import System.IO.Unsafe (unsafeDupablePerformIO)

-- | Whether a password has that bcrypt hash (@$2b$@), compared in constant time. Takes as long as the cost of the hash asks
-- for, in a safe call. A password with a zero in it has no hash. Throws an 'IOError' if the hash cannot be computed.
matchesHash :: ByteString -> ByteString -> IO Bool
matchesHash password stored
  | B.elem 0 password = pure False
  | otherwise = B.useAsCString password $ \p -> B.useAsCString stored $ \s -> do
    r <- c_matches p s
    when (r < 0) (ioError (userError "bcrypt: crypt(3) refuses the hash"))
    pure (r == 1)

-- | The digest, of 32 bytes.
sha256 :: ByteString -> ByteString
sha256 bytes = unsafeDupablePerformIO . B.create 32 $ \to -> B.unsafeUseAsCStringLen bytes $ \(at, n) -> do
  r <- c_sha256 (castPtr at) (fromIntegral n) to
  when (r /= 1) (ioError (userError "SHA-256: OpenSSL does not compute it"))

foreign import ccall safe "weft_password_matches" c_matches :: CString -> CString -> IO CInt

foreign import ccall unsafe "weft_sha256" c_sha256 :: Ptr Word8 -> CSize -> Ptr Word8 -> IO CInt
