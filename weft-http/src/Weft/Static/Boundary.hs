-- |
-- The boundary between the parts of a multipart response. It must not occur in a part (RFC 2046, 5.1.1), but the author
-- of a file could write a known one into it, and so forge parts. So each response has a random one. Any thread may call
-- this.
module Weft.Static.Boundary
  ( newBoundary,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (create)
import Data.Word (Word8)
import Foreign.C.Error (throwErrnoIfMinus1_)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Ptr (Ptr)
import Numeric (showHex)

-- | A boundary of 37 bytes, with 128 bits from the kernel.
newBoundary :: IO ByteString
newBoundary = do
  bytes <- B.create 16 (\p -> throwErrnoIfMinus1_ "getentropy" (cGetentropy p 16))
  pure (C.pack ("weft-" <> concatMap digits (B.unpack bytes)))
  where
    digits byte = drop 1 (showHex (256 + fromIntegral byte :: Int) "")

-- | getentropy(3): up to 256 bytes. It blocks only until the system has booted.
foreign import ccall unsafe "getentropy" cGetentropy :: Ptr Word8 -> CSize -> IO CInt
