-- |
-- UDP (RFC 768), for packets of a protocol that the stack does not have.
module Udp
  ( Datagram (..),
    decode,
    encode,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Checksum
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | A UDP datagram.
data Datagram = Datagram
  { sourcePort :: !Word16,
    destinationPort :: !Word16,
    content :: !ByteString
  }
  deriving (Eq, Show)

-- | Decode a datagram, given the source and destination addresses of its packet. Over IPv4, a checksum of zero means
-- that there is none; over IPv6 it is an error (RFC 8200, section 8.1).
decode :: Address -> Address -> ByteString -> Either Malformed Datagram
decode src dst b
  | B.length b < 8 = Left Truncated
  | len < 8 = Left BadLength
  | B.length b < len = Left Truncated
  | unchecked src = Right datagram
  | isValid (pseudoHeader src dst 17 len <> sumBytes (B.take len b)) = Right datagram
  | otherwise = Left BadChecksum
  where
    len = fromIntegral (word16At b 4)
    datagram = Datagram (word16At b 0) (word16At b 2) (slice 8 (len - 8) b)
    unchecked V4 {} = word16At b 6 == 0
    unchecked V6 {} = False

-- | Encode a datagram with its checksum. The content must be shorter than 65528 bytes.
encode :: Address -> Address -> Datagram -> ByteString
encode src dst (Datagram from to body) = runPut (header whole <> putBytes body)
  where
    len = 8 + B.length body
    header field = putWord16 from <> putWord16 to <> putWord16 (fromIntegral len) <> putWord16 field
    sum' = checksum (pseudoHeader src dst 17 len <> sumBytes (runPut (header 0)) <> sumBytes body)
    -- A field of 0 would mean that there is no checksum.
    whole = if sum' == 0 then 0xffff else sum'
