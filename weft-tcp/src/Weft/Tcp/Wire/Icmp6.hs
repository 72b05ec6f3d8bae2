-- |
-- ICMPv6 (RFC 4443) with neighbour discovery (RFC 4861).
--
-- @since 0.1.0
module Weft.Tcp.Wire.Icmp6
  ( Message (..),
    decode,
    encode,
  )
where

import Data.Bits (shiftL, testBit, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16, Word32, Word8)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Checksum
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | An ICMPv6 message. Errors quote as much of the packet that caused them as fits.
data Message
  = -- | Identifier, sequence number, data to be returned.
    EchoRequest !Word16 !Word16 !ByteString
  | EchoReply !Word16 !Word16 !ByteString
  | -- | Code and quoted packet.
    Unreachable !Word8 !ByteString
  | -- | MTU of the next link, and quoted packet.
    PacketTooBig !Word32 !ByteString
  | -- | Code and quoted packet.
    TimeExceeded !Word8 !ByteString
  | -- | Code, pointer into the packet, and quoted packet.
    ParameterProblem !Word8 !Word32 !ByteString
  | -- | The address whose link-layer address is requested, and the link-layer address of the sender.
    NeighbourSolicitation !Address !(Maybe HardwareAddress)
  | -- | The router, solicited and override flags, the address, and its link-layer address.
    NeighbourAdvertisement !Bool !Bool !Bool !Address !(Maybe HardwareAddress)
  | -- | Type, code and the rest.
    Other !Word8 !Word8 !ByteString
  deriving (Eq, Show)

-- | Decode a message and verify its checksum, given the source and destination addresses of its packet. Unused fields
-- of errors are ignored (RFC 4443): routers that append extensions use one (RFC 4884).
decode :: Address -> Address -> ByteString -> Either Malformed Message
decode src dst b
  | B.length b < 8 = Left Truncated
  | not (isValid (pseudoHeader src dst 58 (B.length b) <> sumBytes b)) = Left BadChecksum
  | otherwise = case (word8At b 0, word8At b 1) of
    (128, 0) -> Right (EchoRequest (word16At b 4) (word16At b 6) rest)
    (129, 0) -> Right (EchoReply (word16At b 4) (word16At b 6) rest)
    (1, code) -> Right (Unreachable code rest)
    (2, 0) -> Right (PacketTooBig word rest)
    (3, code) -> Right (TimeExceeded code rest)
    (4, code) -> Right (ParameterProblem code word rest)
    (135, 0) -> neighbour 1 NeighbourSolicitation
    (136, 0) -> neighbour 2 (NeighbourAdvertisement (testBit word 31) (testBit word 30) (testBit word 29))
    (ty, code) -> Right (Other ty code (B.drop 4 b))
  where
    word = word32At b 4
    rest = B.drop 8 b
    neighbour option make
      | B.length b < 24 = Left Truncated
      | otherwise = make (v6At b 8) <$> linkLayer option (B.drop 24 b)

-- | The link-layer address in an option of the given type, if there is one, among neighbour discovery options (RFC
-- 4861, section 4.6). An option of length zero makes the packet invalid.
linkLayer :: Word8 -> ByteString -> Either Malformed (Maybe HardwareAddress)
linkLayer wanted b
  | B.null b = Right Nothing
  | B.length b < 8 = Left BadOptions
  | size == 0 || size > B.length b = Left BadOptions
  | word8At b 0 == wanted = Right (Just (hardwareAt b 2))
  | otherwise = linkLayer wanted (B.drop size b)
  where
    size = fromIntegral (word8At b 1) * 8

-- | Encode a message with its checksum, given the source and destination addresses of its packet.
encode :: Address -> Address -> Message -> ByteString
encode src dst m = runPut (putSummed 2 (pseudoHeader src dst 58 (putLength message)) mempty message)
  where
    message = case m of
      EchoRequest i n d -> start 128 0 <> putWord16 i <> putWord16 n <> putBytes d
      EchoReply i n d -> start 129 0 <> putWord16 i <> putWord16 n <> putBytes d
      Unreachable code q -> start 1 code <> putWord32 0 <> putBytes q
      PacketTooBig mtu q -> start 2 0 <> putWord32 mtu <> putBytes q
      TimeExceeded code q -> start 3 code <> putWord32 0 <> putBytes q
      ParameterProblem code at q -> start 4 code <> putWord32 at <> putBytes q
      NeighbourSolicitation a hw -> start 135 0 <> putWord32 0 <> putAddress a <> option 1 hw
      NeighbourAdvertisement r s o a hw ->
        start 136 0 <> putWord32 (bit' r 31 .|. bit' s 30 .|. bit' o 29) <> putAddress a <> option 2 hw
      Other ty code d -> start ty code <> putBytes d
    start ty code = putWord8 ty <> putWord8 code <> putWord16 0
    bit' on i = if on then 1 `shiftL` i else 0
    option ty = foldMap (\hw -> putWord8 ty <> putWord8 1 <> putHardware hw)
