-- |
-- IP packets of both versions: decoding of the network layer for the protocols above, and encoding for sending.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Packet
  ( Packet (..),
    Part (..),
    decode,
    reassembled,
    Problem (..),
    parameterProblem,
    timeExceeded,
    putHeader,
    headerSize,
    encode,
    fragment,
  )
where

import Data.Bits (shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Maybe (isJust)
import Data.Word (Word32, Word8)
import Weft.Tcp.Wire.Address
import qualified Weft.Tcp.Wire.Fragments as Fragments
import qualified Weft.Tcp.Wire.IPv4 as V4
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | The parts of a packet that a transport protocol needs.
data Packet = Packet
  { packetSource :: !Address,
    packetDestination :: !Address,
    packetProtocol :: !Word8,
    packetBody :: !ByteString
  }
  deriving (Eq, Show)

-- | A whole packet, or a fragment.
data Part = Whole !Packet | Fragment !Fragments.Key !Fragments.Piece

-- | Decode a packet of either version, which its first byte determines. Packets with a source route are refused: one of
-- the two options of IPv4 (RFC 7126), or for IPv6 a routing header of type 0 (RFC 5095) or any that has segments left
-- (RFC 8200, section 4.4). So are IPv6 packets with an option that may not be skipped ('V6.objection'), and first
-- fragments that do not hold all headers ('V6.holdsHeaders').
decode :: ByteString -> Either Malformed Part
decode b
  | B.null b = Left Truncated
  | otherwise = case word8At b 0 `shiftR` 4 of
    4 -> V4.view b >>= part4
    6 -> V6.decode b >>= part6 b
    _ -> Left WrongVersion

part4 :: V4.View -> Either Malformed Part
part4 v
  | V4.routesBySource v = Left BadOptions
  | V4.viewsFragment v = fragment4 (V4.header v)
  | otherwise = Right (Whole (Packet src dst proto body))
  where
    src = V4.source v
    dst = V4.destination v
    proto = V4.protocol v
    body = V4.payload v
    fragment4 h
      -- The whole packet, with its header, has at most 65,535 bytes (RFC 791, section 3.1).
      | 20 + B.length (V4.options4 h) + at + B.length body > 65535 = Left BadLength
      | otherwise = Right (Fragment (Fragments.Key src dst proto (fromIntegral (V4.identification h))) (Fragments.Piece at (V4.moreFragments h) body (V4.headerBytes v)))
      where
        at = fromIntegral (V4.fragmentOffset h) * 8

part6 :: ByteString -> (V6.Header, ByteString) -> Either Malformed Part
part6 b (h, body)
  | any routesBySource (V6.extensions h) || isJust (V6.objection h) = Left BadOptions
  | otherwise = case [f | V6.FragmentHeader f <- V6.extensions h] of
    f : _
      | V6.offset6 f == 0 && V6.more6 f && not (V6.holdsHeaders proto body) -> Left Truncated
      | isUneven f body || isTooFar f body -> Left BadLength
      | V6.more6 f || V6.offset6 f /= 0 -> Right (Fragment (key f) (piece f))
    _ -> Right (Whole (Packet src dst proto body))
  where
    src = V6.source6 h
    dst = V6.destination6 h
    proto = V6.protocol6 h
    key f = Fragments.Key src dst proto (V6.identification6 f)
    piece f = Fragments.Piece (fromIntegral (V6.offset6 f) * 8) (V6.more6 f) body headers
    headers = B.take (headersSize b body) b
    -- At the end of its route a routing header of any type is ignored (RFC 8200, section 4.4; RFC 5095, section 3).
    routesBySource (V6.Extension 43 r) = word8At r 1 /= 0
    routesBySource _ = False

-- | The number of bytes in front of the body of an IPv6 packet.
headersSize :: ByteString -> ByteString -> Int
headersSize b body = 40 + fromIntegral (word16At b 4) - B.length body

-- | Whether a fragment of IPv6 that is not the last one ends within eight bytes, or one ends beyond the largest packet
-- (RFC 8200, section 4.5).
isUneven, isTooFar :: V6.Fragment -> ByteString -> Bool
isUneven f body = V6.more6 f && B.length body .&. 7 /= 0
isTooFar f body = fromIntegral (V6.offset6 f) * 8 + B.length body > 65535

-- | The packet with the payload of joined fragments, given their key. 'Left' is an IPv6 packet whose further extension
-- headers (RFC 8200, section 4.5) are not decoded yet: its bytes, without the fragment headers.
reassembled :: Fragments.Key -> ByteString -> Either ByteString Packet
reassembled (Fragments.Key src dst proto _) body = case src of
  V6 {} | V6.isExtension proto -> Left (encode whole)
  _ -> Right whole
  where
    whole = Packet src dst proto body

-- | What is wrong with an IPv6 packet, as its sender is to be told (RFC 4443, section 3.4): the packet's source and
-- destination, and the code and pointer of the error.
data Problem = Problem !Address !Address !Word8 !Word32
  deriving (Eq, Show)

-- | The problem of a packet that 'decode' has refused, if its sender is to be told: an unknown option (RFC 8200,
-- section 4.2), a first fragment without all headers (RFC 7112, section 5), or a fragment of an impossible size (RFC
-- 8200, section 4.5). Packets with an ICMPv6 error are not answered (RFC 4443, section 2.4).
parameterProblem :: ByteString -> Maybe Problem
parameterProblem b = case V6.decode b of
  Right (h, body)
    | V6.protocol6 h == 58 && B.take 1 body < B.singleton 128 -> Nothing
    | Just (V6.Objection at True) <- V6.objection h -> Just (problem h 2 (fromIntegral at))
    | Nothing <- V6.objection h,
      or [V6.offset6 f == 0 && V6.more6 f | f <- fragments h],
      not (V6.holdsHeaders (V6.protocol6 h) body) ->
      Just (problem h 3 0)
    | Nothing <- V6.objection h, f : _ <- fragments h, isUneven f body -> Just (problem h 0 4)
    -- The fragment's offset is two bytes behind the beginning of its header, which is the last one.
    | Nothing <- V6.objection h, f : _ <- fragments h, isTooFar f body -> Just (problem h 0 (fromIntegral (headersSize b body - 6)))
  _ -> Nothing
  where
    problem h = Problem (V6.source6 h) (V6.destination6 h)
    fragments h = [f | V6.FragmentHeader f <- V6.extensions h]

-- | What a sender is told whose packet was not complete in time (RFC 1122, section 3.3.2; RFC 8200, section 4.5): Time
-- Exceeded, with the first fragment. ICMP errors are not answered, nor what may be one (RFC 1122, section 3.2.2; RFC
-- 4443, section 2.4 (e)).
timeExceeded :: Fragments.Late -> Maybe Packet
timeExceeded (Fragments.Late (Fragments.Key src dst proto _) headers body) = case src of
  V4 {}
    | proto == 1, B.take 1 body `notElem` map B.singleton [0, 8, 13, 14, 15, 16, 17, 18] -> Nothing
    -- The whole packet has 576 bytes at most (RFC 1812, section 4.3.2.3).
    | otherwise -> Just (Packet dst src 1 (Icmp.encode (Icmp.TimeExceeded 1 (B.take 548 quoted))))
  V6 {}
    | V6.isExtension proto || proto == 58 && B.take 1 body < B.singleton 128 -> Nothing
    | otherwise -> Just (Packet dst src 58 (Icmp6.encode dst src (Icmp6.TimeExceeded 1 (B.take 1232 quoted))))
  where
    quoted = headers <> body

-- | A header with the given hop limit, traffic class, protocol, source and destination, for a payload of the given
-- number of bytes. Source and destination must have the same version; header and payload must be at most 65535 bytes.
-- IPv4 packets are marked as not to be fragmented.
putHeader :: Word8 -> Word8 -> Word8 -> Address -> Address -> Int -> Put
putHeader hops services proto src dst = case src of
  V4 {} -> V4.putHeader (V4.plain proto src dst) {V4.timeToLive = hops, V4.trafficClass4 = services}
  V6 {} -> V6.putHeaders (V6.plain proto src dst) {V6.hopLimit = hops, V6.trafficClass6 = services}

-- | The size of such a header in bytes, given an address.
headerSize :: Address -> Int
headerSize V4 {} = 20
headerSize V6 {} = 40

-- | Encode a packet in one piece, IP header and body, whatever the MTU.
encode :: Packet -> ByteString
encode p = runPut (putHeader 64 0 (packetProtocol p) (packetSource p) (packetDestination p) (B.length body) <> putBytes body)
  where
    body = packetBody p

-- | Encode a packet as fragments that fit an MTU, or in one piece if it fits. The identification must not be that of
-- another recent packet between these hosts. If the MTU leaves less than eight bytes for the body of a fragment,
-- fragments have eight bytes and exceed the MTU.
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
