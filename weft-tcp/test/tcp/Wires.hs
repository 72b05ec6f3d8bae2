-- |
-- Generators for packets of every protocol, and for damaged packets.
module Wires
  ( genAddress,
    genPair,
    genV4,
    genV6,
    genBytes,
    genHeader4,
    genHeader6,
    genSegment,
    genOptions,
    genPacket,
    mutations,
    Seed,
    nextSeed,
  )
where

import Data.Bits (shiftL, shiftR, xor, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word64)
import Test.QuickCheck hiding ((.&.))
import qualified Udp
import Weft.Tcp.Wire.Address
import qualified Weft.Tcp.Wire.IPv4 as V4
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment

genV4, genV6, genAddress :: Gen Address
genV4 = V4 <$> arbitrary
genV6 = V6 <$> arbitrary <*> arbitrary
genAddress = oneof [genV4, genV6]

-- | Two addresses of the same version.
genPair :: Gen (Address, Address)
genPair = oneof [(,) <$> genV4 <*> genV4, (,) <$> genV6 <*> genV6]

genBytes :: Int -> Gen ByteString
genBytes most = do
  n <- frequency [(1, pure 0), (1, pure most), (4, choose (0, most)), (4, choose (0, min 16 most))]
  B.pack <$> vectorOf n arbitrary

genHeader4 :: Gen V4.Header
genHeader4 =
  V4.Header <$> genV4 <*> genV4 <*> arbitrary <*> arbitrary <*> arbitrary <*> arbitrary <*> arbitrary <*> arbitrary
    <*> choose (0, 0x1fff)
    <*> (choose (0, 10) >>= \n -> B.pack <$> vectorOf (4 * n) arbitrary)

genHeader6 :: Gen V6.Header
genHeader6 = do
  before <- choose (0, 3) >>= \n -> vectorOf n extension
  fragment <- oneof [pure [], pure . V6.FragmentHeader <$> (V6.Fragment <$> choose (0, 0x1fff) <*> arbitrary <*> arbitrary)]
  V6.Header <$> genV6 <*> genV6 <*> elements [6, 17, 58, 59, 200] <*> arbitrary <*> arbitrary <*> choose (0, 0xfffff)
    <*> pure (before ++ fragment)
  where
    extension = oneof [V6.Extension <$> elements [43, 135] <*> (choose (0, 4) >>= \n -> B.pack <$> vectorOf (6 + 8 * n) arbitrary), V6.Extension <$> elements [0, 60] <*> skippable]
    -- One option, which may be skipped.
    skippable = do
      n <- (4 +) . (8 *) <$> choose (0, 4)
      kind <- choose (1, 63)
      B.pack . ([kind, fromIntegral n] ++) <$> vectorOf n arbitrary

genOptions :: Gen Options
genOptions = oneof [onSyn, onData]
  where
    onSyn = Options <$> arbitrary <*> arbitrary <*> arbitrary <*> stamps <*> pure []
    onData = Options Nothing Nothing False <$> stamps <*> (choose (0, 3) >>= \n -> vectorOf n (SackBlock <$> arbitrary <*> arbitrary))
    stamps = oneof [pure Nothing, Just <$> (Timestamps <$> arbitrary <*> arbitrary)]

genSegment :: Gen Segment
genSegment =
  Segment <$> arbitrary <*> arbitrary <*> (Flags <$> arbitrary) <*> arbitrary <*> arbitrary <*> genOptions
    <*> (filter (not . B.null) . pure <$> genBytes 1400)

-- | A packet of any protocol, as bytes.
genPacket :: Gen ByteString
genPacket = do
  (src, dst) <- genPair
  body <-
    oneof
      [ (,) 6 <$> (encode src dst <$> arbitrary <*> arbitrary <*> genSegment),
        (,) 17 . Udp.encode src dst <$> (Udp.Datagram <$> arbitrary <*> arbitrary <*> genBytes 200),
        icmp src dst
      ]
  case src of
    V4 {} -> do
      h <- genHeader4
      pure (V4.encode h {V4.source4 = src, V4.destination4 = dst, V4.protocol4 = fst body, V4.moreFragments = False, V4.fragmentOffset = 0} (snd body))
    V6 {} -> do
      h <- genHeader6
      pure (V6.encode h {V6.source6 = src, V6.destination6 = dst, V6.protocol6 = fst body} (snd body))
  where
    icmp src dst = case src of
      V4 {} -> (,) 1 . Icmp.encode <$> oneof [Icmp.EchoRequest <$> arbitrary <*> arbitrary <*> genBytes 64, quoting (Icmp.FragmentationNeeded 1400) src dst]
      V6 {} -> (,) 58 . Icmp6.encode src dst <$> oneof [solicitation, quoting (Icmp6.PacketTooBig 1400) src dst]
    quoting make src dst = do
      s <- genSegment
      pure (make (B.take 100 (Packet.encode (Packet.Packet src dst 6 (encode src dst 1 2 s)))))
    solicitation = Icmp6.NeighbourSolicitation <$> genV6 <*> oneof [pure Nothing, pure (Just (HardwareAddress 0x020000000001))]

-- | The state of a random number generator whose cost is negligible (xorshift64*).
type Seed = Word64

nextSeed :: Seed -> Seed
nextSeed s0 = s3 * 2685821657736338717
  where
    s1 = s0 `xor` (s0 `shiftR` 12)
    s2 = s1 `xor` (s1 `shiftL` 25)
    s3 = s2 `xor` (s2 `shiftR` 27)

-- | Apply one to four random changes to a packet: change a bit or a byte, truncate the packet, or append a copy of a
-- part.
mutations :: Seed -> ByteString -> ByteString
mutations seed = go (1 + fromIntegral (seed `shiftR` 61 .&. 3) :: Int) (nextSeed (seed + 1))
  where
    go 0 _ b = b
    go n s b = go (n - 1) (nextSeed s) (change s b)
    change s b
      | B.null b = B.singleton (fromIntegral s)
      | otherwise = case s `shiftR` 59 of
        k
          | k < 12 -> put at (B.index b at `xor` (1 `shiftL` fromIntegral (s .&. 7)))
          | k < 22 -> put at (fromIntegral s)
          | k < 25 -> B.take at b
          | k < 27 -> b <> B.take 8 (B.drop at b)
          | k < 29 -> put at 0
          | otherwise -> put at 0xff
      where
        -- Half of the changes are in the first 64 bytes, where the headers are.
        span' = if s .&. 8 == 0 then min 64 (B.length b) else B.length b
        at = fromIntegral (s `shiftR` 8 .&. 0xffffff) `mod` span'
        put i w = B.take i b <> B.cons w (B.drop (i + 1) b)
