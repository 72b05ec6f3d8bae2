-- |
-- Ethernet II frames and ARP (RFC 826), for TAP devices.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Ethernet
  ( -- * Frames
    Frame (..),
    EtherType,
    typeIPv4,
    typeIPv6,
    typeArp,
    decodeFrame,
    encodeFrame,
    frameHeader,

    -- * ARP
    Arp (..),
    ArpOperation (..),
    decodeArp,
    encodeArp,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | An Ethernet II frame without its frame check sequence.
data Frame = Frame
  { frameDestination :: !HardwareAddress,
    frameSource :: !HardwareAddress,
    frameType :: !EtherType,
    frameBody :: !ByteString
  }
  deriving (Eq, Show)

-- | The protocol of a frame's body.
type EtherType = Word16

-- | The EtherTypes of IPv4 (0x0800), IPv6 (0x86dd) and ARP (0x0806).
typeIPv4, typeIPv6, typeArp :: EtherType
typeIPv4 = 0x0800
typeIPv6 = 0x86dd
typeArp = 0x0806

-- | Decode a frame without its frame check sequence. 'Truncated' if it is shorter than the header's 14 bytes.
decodeFrame :: ByteString -> Either Malformed Frame
decodeFrame b
  | B.length b < 14 = Left Truncated
  | otherwise = Right (Frame (hardwareAt b 0) (hardwareAt b 6) (word16At b 12) (B.drop 14 b))

-- | Encode a frame: the header's 14 bytes and the body, without padding or frame check sequence.
encodeFrame :: Frame -> ByteString
encodeFrame f = frameHeader (frameDestination f) (frameSource f) (frameType f) <> frameBody f

-- | The 14-byte header of a frame, given destination, source and type.
frameHeader :: HardwareAddress -> HardwareAddress -> EtherType -> ByteString
frameHeader dst src ty = runPut (putHardware dst <> putHardware src <> putWord16 ty)

-- | The operation of an ARP packet.
data ArpOperation = ArpRequest | ArpReply
  deriving (Eq, Show, Enum, Bounded)

-- | An ARP packet: a request for the link-layer address of an IPv4 address, or the reply.
data Arp = Arp
  { arpOperation :: !ArpOperation,
    senderHardware :: !HardwareAddress,
    senderAddress :: !Address,
    targetHardware :: !HardwareAddress,
    targetAddress :: !Address
  }
  deriving (Eq, Show)

-- | Decode an ARP packet for Ethernet and IPv4. Other kinds are errors.
decodeArp :: ByteString -> Either Malformed Arp
decodeArp b
  | B.length b < 28 = Left Truncated
  | word16At b 0 /= 1 || word16At b 2 /= typeIPv4 = Left WrongVersion
  | word16At b 4 /= 0x0604 = Left BadLength
  | otherwise = case word16At b 6 of
    1 -> Right (packet ArpRequest)
    2 -> Right (packet ArpReply)
    _ -> Left WrongVersion
  where
    packet op = Arp op (hardwareAt b 8) (v4At b 14) (hardwareAt b 18) (v4At b 24)

-- | Encode an ARP packet. Its addresses must be IPv4 addresses.
encodeArp :: Arp -> ByteString
encodeArp a =
  runPut $
    putWord16 1 <> putWord16 typeIPv4 <> putWord16 0x0604
      <> putWord16 (case arpOperation a of ArpRequest -> 1; ArpReply -> 2)
      <> putHardware (senderHardware a)
      <> putAddress (senderAddress a)
      <> putHardware (targetHardware a)
      <> putAddress (targetAddress a)
