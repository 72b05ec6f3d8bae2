-- |
-- ICMP for IPv4 (RFC 792, RFC 1191).
--
-- @since 0.1.0
module Weft.Tcp.Wire.Icmp
  ( Message (..),
    decode,
    encode,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16, Word32, Word8)
import Weft.Tcp.Wire.Checksum
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | An ICMP message. Errors quote the packet that caused them: its header and at least eight more bytes.
data Message
  = -- | Identifier, sequence number, data to be returned.
    EchoRequest !Word16 !Word16 !ByteString
  | EchoReply !Word16 !Word16 !ByteString
  | -- | Code (other than 4) and quoted packet.
    Unreachable !Word8 !ByteString
  | -- | The next hop's MTU (0 if the router does not report it) and quoted packet.
    FragmentationNeeded !Word16 !ByteString
  | -- | Code and quoted packet.
    TimeExceeded !Word8 !ByteString
  | -- | Code, pointer into the packet, and quoted packet.
    ParameterProblem !Word8 !Word8 !ByteString
  | -- | Type, code, the four bytes after the checksum, and the rest.
    Other !Word8 !Word8 !Word32 !ByteString
  deriving (Eq, Show)

-- | Decode a message from the body of an IPv4 packet, and verify its checksum. Unused fields of errors are ignored (RFC
-- 792): routers that append extensions use one (RFC 4884).
decode :: ByteString -> Either Malformed Message
decode b
  | B.length b < 8 = Left Truncated
  | not (isValid (sumBytes b)) = Left BadChecksum
  | otherwise = Right $ case (word8At b 0, word8At b 1) of
    (8, 0) -> EchoRequest high low rest
    (0, 0) -> EchoReply high low rest
    (3, 4) -> FragmentationNeeded low rest
    (3, code) -> Unreachable code rest
    (11, code) -> TimeExceeded code rest
    (12, code) -> ParameterProblem code (word8At b 4) rest
    (ty, code) -> Other ty code (word32At b 4) rest
  where
    high = word16At b 4
    low = word16At b 6
    rest = B.drop 8 b

-- | Encode a message as the body of an IPv4 packet, with its checksum.
encode :: Message -> ByteString
encode m = runPut (putSummed 2 mempty mempty message)
  where
    message = case m of
      EchoRequest i n d -> start 8 0 <> putWord16 i <> putWord16 n <> putBytes d
      EchoReply i n d -> start 0 0 <> putWord16 i <> putWord16 n <> putBytes d
      Unreachable code q -> start 3 code <> putWord32 0 <> putBytes q
      FragmentationNeeded mtu q -> start 3 4 <> putWord16 0 <> putWord16 mtu <> putBytes q
      TimeExceeded code q -> start 11 code <> putWord32 0 <> putBytes q
      ParameterProblem code at q -> start 12 code <> putWord8 at <> putZeros 3 <> putBytes q
      Other ty code w d -> start ty code <> putWord32 w <> putBytes d
    start ty code = putWord8 ty <> putWord8 code <> putWord16 0
