-- |
-- Description : Hashes of passwords
--
-- bcrypt by the system's crypt(3). Any thread may call this function.
module Weft.Tools.Serve.PasswordHash
  ( matchesHash,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Foreign.C

-- | Whether a password has that bcrypt hash (@$2b$@), compared in constant time. Takes as long as the cost of the hash
-- asks for, in a safe call. A password with a zero in it has no hash. Throws an 'IOError' if the hash cannot be
-- computed.
matchesHash :: ByteString -> ByteString -> IO Bool
matchesHash password stored
  | B.elem 0 password = pure False
  | otherwise = B.useAsCString password $ \p -> B.useAsCString stored $ \s -> do
    r <- c_matches p s
    when (r < 0) (ioError (userError "bcrypt: crypt(3) refuses the hash"))
    pure (r == 1)

foreign import ccall safe "weft_password_matches" c_matches :: CString -> CString -> IO CInt
