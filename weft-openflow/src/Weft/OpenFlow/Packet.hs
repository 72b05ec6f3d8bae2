-- |
-- The packet fields that a controller reads, which are the Ethernet header and IPv4 addresses and ports; and ARP
-- requests. Pure and total: fields that a short packet lacks are 'Nothing'. The frames of link discovery are in
-- "Weft.OpenFlow.Lldp".
--
-- @since 0.1.0
module Weft.OpenFlow.Packet
  ( -- * Ethernet
    Frame (..),
    ethernet,
    etherTypeLldp,
    etherTypeProbe,
    isProbe,
    etherTypeArp,
    etherTypeIpv4,

    -- * Internet
    senderIpv4,
    ipv4Addresses,
    arpProbe,
    arpReplyTo,
  )
where

import Control.Monad (guard)
import Data.Bits (shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word32)
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Put
import Weft.Wire.Peek

-- | The header of an Ethernet frame.
data Frame = Frame
  { -- | The destination.
    frameDst :: !MacAddress,
    -- | The source.
    frameSrc :: !MacAddress,
    -- | The EtherType, after any VLAN tags.
    frameType :: !Word16,
    -- | The offset of its payload, in bytes.
    framePayload :: !Int
  }
  deriving (Eq, Show)

-- | The header of a frame. Up to two VLAN tags (0x8100, 0x88a8) are skipped.
ethernet :: ByteString -> Maybe Frame
ethernet s
  | B.length s < 14 = Nothing
  | tagged (word16At s 12) = behind 16 (2 :: Int)
  | otherwise = Just (Frame (macAt s 0) (macAt s 6) (word16At s 12) 14)
  where
    tagged t = t == 0x8100 || t == 0x88a8
    behind at left
      | B.length s < at + 2 = Nothing
      | tagged (word16At s at) && left > 1 = behind (at + 4) (left - 1)
      | otherwise = Just (Frame (macAt s 0) (macAt s 6) (word16At s at) (at + 2))
{-# INLINE ethernet #-}

-- | Link Layer Discovery Protocol (IEEE 802.1AB).
etherTypeLldp :: Word16
etherTypeLldp = 0x88cc

-- | The type of probes that bridges forward: IEEE 802's first type for local experiments.
etherTypeProbe :: Word16
etherTypeProbe = 0x88b5

-- | Whether a frame may be a probe of link discovery.
isProbe :: Frame -> Bool
isProbe frame = frameType frame == etherTypeLldp || frameType frame == etherTypeProbe

-- | Address Resolution Protocol (RFC 826).
etherTypeArp :: Word16
etherTypeArp = 0x0806

-- | IPv4.
etherTypeIpv4 :: Word16
etherTypeIpv4 = 0x0800

-- | The sender's IPv4 address in an ARP or IPv4 packet; 'Nothing' if no host can have it (RFC 1122, 3.2.1.3): 0.0.0.0,
-- which a host without an address sends, loopback addresses, and those from 224.0.0.0 on.
senderIpv4 :: Frame -> ByteString -> Maybe Word32
senderIpv4 frame s
  | frameType frame == etherTypeArp && B.length body >= 18 = known (word32At body 14)
  | frameType frame == etherTypeIpv4 && B.length body >= 20 = known (word32At body 12)
  | otherwise = Nothing
  where
    body = B.unsafeDrop (framePayload frame) s
    known a = if a == 0 || a `shiftR` 24 == 127 || a >= 0xe0000000 then Nothing else Just a

-- | Protocol, source, destination, source port and destination port of an IPv4 packet. The ports are 0 unless it is TCP
-- or UDP, and in all fragments but the first.
ipv4Addresses :: Frame -> ByteString -> Maybe (Int, Word32, Word32, Word16, Word16)
ipv4Addresses frame s = do
  guard (frameType frame == etherTypeIpv4 && B.length body >= 20)
  let size = fromIntegral (B.index body 0 .&. 15) * 4
      proto = fromIntegral (B.index body 9)
      first = word16At body 6 .&. 0x1fff == 0
      upper = B.drop size body
      ports
        | proto `elem` [6, 17] && first && size >= 20 && B.length upper >= 4 = (word16At upper 0, word16At upper 2)
        | otherwise = (0, 0)
  pure (proto, word32At body 12, word32At body 16, fst ports, snd ports)
  where
    body = B.unsafeDrop (framePayload frame) s

-- | An ARP request for the owner of an IPv4 address, given the source address, the destination address and the IPv4
-- address. It is a probe: its sender has no IPv4 address, and is therefore not learned (RFC 5227, 2.1.1).
arpProbe :: MacAddress -> MacAddress -> Word32 -> ByteString
arpProbe source target ip = fromMaybe B.empty (tryRunPut (header <> request <> putZeros 18))
  where
    header = putMac target <> putMac source <> putWord16 etherTypeArp
    -- Ethernet, IPv4, a request; the sender, the target.
    request = putWord16 1 <> putWord16 0x0800 <> putWord8 6 <> putWord8 4 <> putWord16 1 <> putMac source <> putWord32 0 <> putMac (MacAddress 0) <> putWord32 ip

-- | The sender of an ARP reply to that address: its link-layer address and its IPv4 address.
arpReplyTo :: MacAddress -> Frame -> ByteString -> Maybe (MacAddress, Word32)
arpReplyTo source frame s = do
  guard (frameType frame == etherTypeArp && frameDst frame == source)
  let body = B.unsafeDrop (framePayload frame) s
  guard (B.length body >= 28 && word16At body 6 == 2)
  ip <- senderIpv4 frame s
  pure (frameSrc frame, ip)
