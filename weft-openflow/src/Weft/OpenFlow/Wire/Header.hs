-- |
-- The eight bytes before every message, and where a message ends.
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
import Weft.OpenFlow.Wire.Get

-- | A header. The version and the type are bytes as they came: only a HELLO may have a version that is not spoken here.
data Header = Header
  { -- | The version's byte.
    headerVersion :: !Word8,
    -- | The type's byte.
    headerType :: !Word8,
    -- | Length of the message in bytes, with the header.
    headerLength :: !Int,
    -- | The transaction.
    headerXid :: !Xid
  }
  deriving (Eq, Show)

-- | Bytes of a header.
headerSize :: Int
headerSize = 8

-- | The header of a string of at least 'headerSize' bytes.
readHeader :: ByteString -> Header
readHeader s = Header (byteAt 0 s) (byteAt 1 s) (fromIntegral (word16At 2 s)) (word32At 4 s)
{-# INLINE readHeader #-}

-- | What the next bytes of a stream are.
data Framing
  = -- | A message with its header, and what follows it; both are parts of what was received.
    Whole !Header !ByteString !ByteString
  | -- | A message is not complete: that many bytes are missing at least.
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
