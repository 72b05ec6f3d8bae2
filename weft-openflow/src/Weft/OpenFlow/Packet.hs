-- |
-- The packet fields that a controller reads: Ethernet, the sender's IPv4 address, and LLDP for link discovery. Pure and
-- total: fields that a short packet lacks are 'Nothing'.
--
-- @since 0.1.0
module Weft.OpenFlow.Packet
  ( -- * Ethernet
    Frame (..),
    ethernet,
    etherTypeLldp,
    etherTypeArp,
    etherTypeIpv4,

    -- * Internet
    senderIpv4,
    ipv4Addresses,

    -- * LLDP
    lldpFrame,
    lldpOrigin,
    lldpDestination,
  )
where

import Control.Monad (guard)
import Data.Bits (shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Unsafe as B
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word32)
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Put

-- | The header of an Ethernet frame.
data Frame = Frame
  { -- | The destination.
    frameDst :: !MacAddress,
    -- | The source.
    frameSrc :: !MacAddress,
    -- | Its type, after VLAN tags.
    frameType :: !Word16,
    -- | The offset of its payload, in bytes.
    framePayload :: !Int
  }
  deriving (Eq, Show)

-- | The header of a frame. Up to two VLAN tags (0x8100, 0x88a8) are skipped.
ethernet :: ByteString -> Maybe Frame
ethernet s
  | B.length s < 14 = Nothing
  | tagged (word16At 12 s) = behind 16 (2 :: Int)
  | otherwise = Just (Frame (macAt 0 s) (macAt 6 s) (word16At 12 s) 14)
  where
    tagged t = t == 0x8100 || t == 0x88a8
    behind at left
      | B.length s < at + 2 = Nothing
      | tagged (word16At at s) && left > 1 = behind (at + 4) (left - 1)
      | otherwise = Just (Frame (macAt 0 s) (macAt 6 s) (word16At at s) (at + 2))
{-# INLINE ethernet #-}

-- | Link Layer Discovery Protocol (IEEE 802.1AB).
etherTypeLldp :: Word16
etherTypeLldp = 0x88cc

-- | Address Resolution Protocol (RFC 826).
etherTypeArp :: Word16
etherTypeArp = 0x0806

-- | IPv4.
etherTypeIpv4 :: Word16
etherTypeIpv4 = 0x0800

-- | The sender's address in an ARP or IPv4 packet.
senderIpv4 :: Frame -> ByteString -> Maybe Word32
senderIpv4 frame s
  | frameType frame == etherTypeArp && B.length body >= 18 = known (word32At 14 body)
  | frameType frame == etherTypeIpv4 && B.length body >= 20 = known (word32At 12 body)
  | otherwise = Nothing
  where
    body = B.unsafeDrop (framePayload frame) s
    -- A host without an address sends 0.0.0.0.
    known a = if a == 0 then Nothing else Just a

-- | Protocol, source, destination, source port and destination port of an IPv4 packet. The ports are 0 unless it is TCP
-- or UDP, and in later fragments.
ipv4Addresses :: Frame -> ByteString -> Maybe (Int, Word32, Word32, Word16, Word16)
ipv4Addresses frame s = do
  guard (frameType frame == etherTypeIpv4 && B.length body >= 20)
  let size = fromIntegral (B.index body 0 .&. 15) * 4
      proto = fromIntegral (B.index body 9)
      first = word16At 6 body .&. 0x1fff == 0
      upper = B.drop size body
      ports
        | proto `elem` [6, 17] && first && size >= 20 && B.length upper >= 4 = (word16At 0 upper, word16At 2 upper)
        | otherwise = (0, 0)
  pure (proto, word32At 12 body, word32At 16 body, fst ports, snd ports)
  where
    body = B.unsafeDrop (framePayload frame) s

-- LLDP ----------------------------------------------------------------------------------

-- | The group address that bridges do not forward (IEEE 802.1AB, 7.1).
lldpDestination :: MacAddress
lldpDestination = MacAddress 0x0180c200000e

-- | An LLDP frame that identifies the sending switch and port, with that source address. Chassis and port IDs have the
-- local subtype; the lifetime is 120 seconds.
lldpFrame :: DatapathId -> PortNo -> MacAddress -> ByteString
lldpFrame datapath (PortNo port) address = fromMaybe B.empty . runPut $ padded (head' <> tlvs)
  where
    head' = putMac lldpDestination <> putMac address <> putWord16 etherTypeLldp
    tlvs = tlv 1 (putWord8 7 <> putBytes (prefix <> BC.pack (show datapath))) <> tlv 2 (putWord8 7 <> putWord32 port) <> tlv 3 (putWord16 120) <> putWord16 0
    tlv :: Word16 -> Put -> Put
    tlv kind body = putWord16 (kind * 512 + maybe 0 fromIntegral (putSize body)) <> body
    -- The minimum frame size is 60 bytes.
    padded p = p <> putZeros (60 - fromMaybe 60 (putSize p))

prefix :: ByteString
prefix = BC.pack "dpid:"

-- | The switch and port that sent a frame of 'lldpFrame'. 'Nothing' for other LLDP frames.
lldpOrigin :: Frame -> ByteString -> Maybe (DatapathId, PortNo)
lldpOrigin frame s = do
  guard (frameType frame == etherTypeLldp)
  (1, chassis, rest) <- next (B.drop (framePayload frame) s)
  (2, port, _) <- next rest
  name <- B.stripPrefix prefix (B.drop 1 chassis)
  datapath <- readDatapathId (BC.unpack name)
  guard (B.length port == 5 && B.index chassis 0 == 7 && B.index port 0 == 7)
  pure (datapath, PortNo (word32At 1 port))
  where
    next :: ByteString -> Maybe (Word16, ByteString, ByteString)
    next b = do
      guard (B.length b >= 2)
      let h = word16At 0 b
          n = fromIntegral (h .&. 511)
      guard (B.length b >= 2 + n && n > 0)
      pure (h `shiftR` 9, B.take n (B.drop 2 b), B.drop (2 + n) b)
