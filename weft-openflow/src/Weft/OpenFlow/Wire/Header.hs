-- |
-- Message headers, and the boundaries of messages in a stream. Pure.
module Weft.OpenFlow.Wire.Header
  ( Header (..),
    headerSize,
    readHeader,
    Framing (..),
    nextMessage,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Weft.OpenFlow.Types
import Weft.Wire.Peek

-- | A message header. Version and type are the bytes received; they need not be supported.
data Header = Header
  { -- | The version's byte.
    headerVersion :: !Word8,
    -- | The type's byte.
    headerType :: !Word8,
    -- | The length of the message in bytes, including the header.
    headerLength :: !Int,
    -- | The transaction ID.
    headerXid :: !Xid
  }
  deriving (Eq, Show)

-- | The size of a header in bytes.
headerSize :: Int
headerSize = 8

-- | The header of a string of at least 'headerSize' bytes.
readHeader :: ByteString -> Header
readHeader s = Header (word8At s 0) (word8At s 1) (fromIntegral (word16At s 2)) (word32At s 4)
{-# INLINE readHeader #-}

-- | The start of a stream.
data Framing
  = -- | A complete message, including its header, and the bytes after it. Both are slices of the received string.
    Whole !Header !ByteString !ByteString
  | -- | An incomplete message: at least that many bytes are missing.
    Missing !Int
  | -- | A length below that of a header: where the next message begins cannot be known.
    Unframed !Header

-- | The next message of a stream. Reads nothing but the header.
nextMessage :: ByteString -> Framing
nextMessage s
  | B.length s < headerSize = Missing (headerSize - B.length s)
  | n < headerSize = Unframed h
  | B.length s < n = Missing (n - B.length s)
  | otherwise = Whole h (B.unsafeTake n s) (B.unsafeDrop n s)
  where
    h = readHeader s
    n = headerLength h
{-# INLINE nextMessage #-}
