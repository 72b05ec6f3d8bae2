-- |
-- Internet packets of either version: the network layer's part of decoding, and
-- what a transport protocol needs to send.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Packet
  ( Packet (..),
    Part (..),
    decode,
    putHeader,
    headerSize,
    encode,
    fragment,
  )
where

import Data.Bits (shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word32, Word8)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Bytes
import qualified Weft.Tcp.Wire.Fragments as Fragments
import qualified Weft.Tcp.Wire.IPv4 as V4
import qualified Weft.Tcp.Wire.IPv6 as V6

-- | What the layer above wants to know of a packet.
data Packet = Packet
  { packetSource :: !Address,
    packetDestination :: !Address,
    packetProtocol :: !Word8,
    packetBody :: !ByteString
  }
  deriving (Eq, Show)

-- | A packet, or a part of one.
data Part = Whole !Packet | Fragment !Fragments.Key !Fragments.Piece

-- | By the version in its first byte. IPv6 packets with a routing header of type 0
-- are refused (RFC 5095).
decode :: ByteString -> Either Malformed Part
decode b
  | B.null b = Left Truncated
  | otherwise = case word8At b 0 `shiftR` 4 of
    4 -> part4 <$> V4.view b
    6 -> V6.decode b >>= part6
    _ -> Left WrongVersion

part4 :: V4.View -> Part
part4 v
  | V4.viewsFragment v =
    let h = V4.header v
     in Fragment
          (Fragments.Key src dst proto (fromIntegral (V4.identification h)))
          (Fragments.Piece (fromIntegral (V4.fragmentOffset h) * 8) (V4.moreFragments h) body)
  | otherwise = Whole (Packet src dst proto body)
  where
    src = V4.source v
    dst = V4.destination v
    proto = V4.protocol v
    body = V4.payload v

part6 :: (V6.Header, ByteString) -> Either Malformed Part
part6 (h, body)
  | any routesBySource (V6.extensions h) = Left BadOptions
  | otherwise = case [f | V6.FragmentHeader f <- V6.extensions h] of
    f : _ | V6.more6 f || V6.offset6 f /= 0 -> Right (Fragment (key f) (piece f))
    _ -> Right (Whole (Packet src dst proto body))
  where
    src = V6.source6 h
    dst = V6.destination6 h
    proto = V6.protocol6 h
    key f = Fragments.Key src dst proto (V6.identification6 f)
    piece f = Fragments.Piece (fromIntegral (V6.offset6 f) * 8) (V6.more6 f) body
    routesBySource (V6.Extension 43 r) = word8At r 0 == 0
    routesBySource _ = False

-- | A header with that hop limit and traffic class, of that protocol, from one address to another of the
-- same version, for a payload of so many bytes: with the header at most 65535. IPv4 packets must not be
-- fragmented.
putHeader :: Word8 -> Word8 -> Word8 -> Address -> Address -> Int -> Put
putHeader hops services proto src dst = case src of
  V4 {} -> V4.putHeader (V4.plain proto src dst) {V4.timeToLive = hops, V4.trafficClass4 = services}
  V6 {} -> V6.putHeaders (V6.plain proto src dst) {V6.hopLimit = hops, V6.trafficClass6 = services}

-- | Its bytes.
headerSize :: Address -> Int
headerSize V4 {} = 20
headerSize V6 {} = 40

-- | A packet as one piece, IP header and body, whatever the MTU.
encode :: Packet -> ByteString
encode p = runPut (putHeader 64 0 (packetProtocol p) (packetSource p) (packetDestination p) (B.length body) <> putBytes body)
  where
    body = packetBody p

-- | A packet in parts that fit an MTU, with an identification that no other packet
-- between these hosts has for a while. One part if it fits. An MTU without room for
-- eight bytes counts as one with it.
fragment :: Int -> Word32 -> Packet -> [ByteString]
fragment mtu ident p
  | B.length (encode p) <= mtu = [encode p]
  | otherwise = go 0 (packetBody p)
  where
    src = packetSource p
    dst = packetDestination p
    room = max 8 ((mtu - headerSize src - extra) .&. (-8))
    extra = case src of V4 {} -> 0; V6 {} -> 8
    go at body
      | B.null rest = [piece at False here]
      | otherwise = piece at True here : go (at + room `div` 8) rest
      where
        (here, rest) = B.splitAt room body
    piece at more here = case src of
      V4 {} ->
        let h = V4.plain (packetProtocol p) src dst
         in V4.encode
              h
                { V4.dontFragment = False,
                  V4.moreFragments = more,
                  V4.fragmentOffset = fromIntegral at,
                  V4.identification = fromIntegral ident
                }
              here
      V6 {} ->
        let h = V6.plain (packetProtocol p) src dst
         in V6.encode h {V6.extensions = [V6.FragmentHeader (V6.Fragment (fromIntegral (at :: Int)) more ident)]} here
