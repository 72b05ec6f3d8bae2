-- |
-- Wire formats: decoding is the inverse of encoding and never fails with an exception, fragments are reassembled, and
-- checksums agree with a simple sum of words.
module Spec.Wire (tests) where

import Control.Exception (SomeException, evaluate, try)
import Control.Monad (foldM_, unless)
import Data.Bits (complement, shiftL, shiftR, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Either (isLeft)
import Data.List (foldl')
import Data.Word (Word16, Word32)
import System.Environment (lookupEnv)
import Test.QuickCheck hiding ((.&.))
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import qualified Udp
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Checksum
import qualified Weft.Tcp.Wire.Ethernet as Ethernet
import Weft.Tcp.Wire.Fragments
import qualified Weft.Tcp.Wire.IPv4 as V4
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import Weft.Tcp.Wire.Malformed (Malformed (..))
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import qualified Weft.Tcp.Wire.Pcap as Pcap
import Weft.Tcp.Wire.Segment (Segment (..), ack, decode, encode, flags, syn)
import qualified Weft.Tcp.Wire.Segment as Segment
import Wires

tests :: TestTree
tests =
  testGroup
    "wire"
    [ testGroup "decode after encode" inverse,
      testGroup "checksum" checksums,
      testGroup "malformed" malformed,
      testGroup "fragments" fragments,
      testCase "addresses as text" addresses,
      testCase "tampered packets raise no exception (WEFT_TCP_MUTATIONS of them, 100,000 by default)" mutated
    ]

inverse :: [TestTree]
inverse =
  [ testProperty "IPv4" . forAll ((,) <$> genHeader4 <*> genBytes 1400) $ \(h, b) ->
      V4.decode (V4.encode h b) === Right (h, b),
    testProperty "IPv6" . forAll ((,) <$> genHeader6 <*> genBytes 1400) $ \(h, b) ->
      V6.decode (V6.encode h b) === Right (h, b),
    testProperty "TCP" . forAll ((,) <$> genPair <*> genSegment) $ \((s, d), seg) from to ->
      decode s d (encode s d from to seg) === Right (from, to, seg),
    testProperty "TCP, the other way: bytes come out as they went in" . forAll ((,) <$> genPair <*> genSegment) $ \((s, d), seg) ->
      let bytes = encode s d 7 9 seg
       in fmap (\(f, t, x) -> encode s d f t x) (decode s d bytes) === Right bytes,
    testProperty "UDP" . forAll ((,) <$> genPair <*> genBytes 1400) $ \((s, d), b) from to ->
      let x = Udp.Datagram from to b in Udp.decode s d (Udp.encode s d x) === Right x,
    testProperty "ICMP" . forAll genIcmp $ \m -> Icmp.decode (Icmp.encode m) === Right m,
    testProperty "ICMPv6" . forAll ((,,) <$> genV6 <*> genV6 <*> genIcmp6) $ \(s, d, m) ->
      Icmp6.decode s d (Icmp6.encode s d m) === Right m,
    testProperty "Ethernet" . forAll ((,,) <$> genHardware <*> genHardware <*> genBytes 100) $ \(a, b, body) ty ->
      let f = Ethernet.Frame a b ty body in Ethernet.decodeFrame (Ethernet.encodeFrame f) === Right f,
    testProperty "ARP" . forAll genArp $ \a -> Ethernet.decodeArp (Ethernet.encodeArp a) === Right a,
    testProperty "pcap" . forAll (listOf ((,) <$> choose (0, 2 ^ (50 :: Int)) <*> genBytes 100)) $ \rs ->
      let records = [Pcap.Record at b | (at, b) <- rs]
          whole = Pcap.fileHeader Pcap.RawIp <> foldMap Pcap.encodeRecord records
       in conjoin [Pcap.decodeFile whole === Right (Pcap.RawIp, records, 0), Pcap.decodeFile (whole <> B.pack [1, 2, 3]) === Right (Pcap.RawIp, records, 3)]
  ]
  where
    genIcmp =
      oneof
        [ Icmp.EchoRequest <$> arbitrary <*> arbitrary <*> genBytes 100,
          Icmp.EchoReply <$> arbitrary <*> arbitrary <*> genBytes 100,
          Icmp.Unreachable <$> arbitrary `suchThat` (/= 4) <*> genBytes 100,
          Icmp.FragmentationNeeded <$> arbitrary <*> genBytes 100,
          Icmp.TimeExceeded <$> arbitrary <*> genBytes 100,
          Icmp.ParameterProblem <$> arbitrary <*> arbitrary <*> genBytes 100,
          Icmp.Other <$> choose (13, 255) <*> arbitrary <*> arbitrary <*> genBytes 100
        ]
    genIcmp6 =
      oneof
        [ Icmp6.EchoRequest <$> arbitrary <*> arbitrary <*> genBytes 100,
          Icmp6.EchoReply <$> arbitrary <*> arbitrary <*> genBytes 100,
          Icmp6.Unreachable <$> arbitrary <*> genBytes 100,
          Icmp6.PacketTooBig <$> arbitrary <*> genBytes 100,
          Icmp6.TimeExceeded <$> arbitrary <*> genBytes 100,
          Icmp6.ParameterProblem <$> arbitrary <*> arbitrary <*> genBytes 100,
          Icmp6.NeighbourSolicitation <$> genV6 <*> liftArbitrary genHardware,
          Icmp6.NeighbourAdvertisement <$> arbitrary <*> arbitrary <*> arbitrary <*> genV6 <*> liftArbitrary genHardware,
          Icmp6.Other <$> choose (137, 255) <*> arbitrary <*> ((<>) (B.replicate 4 7) <$> genBytes 100)
        ]
    genHardware = HardwareAddress <$> choose (0, 2 ^ (48 :: Int) - 1)
    genArp = Ethernet.Arp <$> elements [minBound ..] <*> genHardware <*> genV4 <*> genHardware <*> genV4

checksums :: [TestTree]
checksums =
  [ testProperty "is the sum of 16-bit words" . forAll (genBytes 3000) $ \b ->
      checksum (sumBytes b) === slow b,
    testProperty "of parts is that of the whole, whatever the parts' lengths" . forAll (listOf (genBytes 50)) $ \bs ->
      checksum (sumChunks bs) === checksum (sumBytes (B.concat bs)),
    testProperty "does not depend on where the bytes are" . forAll ((,) <$> genBytes 200 <*> choose (0, 15)) $ \(b, n) ->
      checksum (sumBytes (B.drop n (B.replicate n 1 <> b))) === slow b,
    testCase "the example of RFC 1071" $
      checksum (sumBytes (B.pack [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])) @?= complement 0xddf2
  ]
  where
    -- Zero has two representations in one's complement: the sum is 0 only if all words are 0.
    slow b = complement (fold16 (foldl' (\a i -> a + word b i) 0 [0, 2 .. B.length b - 1]))
    word b i = fromIntegral (B.index b i) `shiftL` 8 .|. (if i + 1 < B.length b then fromIntegral (B.index b (i + 1)) else 0) :: Word32
    fold16 :: Word32 -> Word16
    fold16 s
      | s > 0xffff = fold16 ((s .&. 0xffff) + (s `shiftR` 16))
      | otherwise = fromIntegral s

malformed :: [TestTree]
malformed =
  [ testCase "TCP data offset below 5" $
      [fmap (const ()) (Segment.view (tcp n)) | n <- [0 .. 4]] @?= replicate 5 (Left BadLength),
    testCase "TCP data offset past the end" $ fmap (const ()) (Segment.view (B.take 20 (tcp 6))) @?= Left Truncated,
    testCase "option without a length, of length 0 and 1, past the end: the rest is ignored" $
      [ decodeOptions (B.pack (mss ++ bad))
        | bad <- [[8], [8, 0, 0, 0], [8, 1, 0, 0], [8, 10, 0, 0]]
      ]
        @?= replicate 4 noOptions {maximumSegmentSize = Just 1460},
    testCase "unknown options are passed over" $
      decodeOptions (B.pack ([254, 4, 1, 2] ++ mss)) @?= noOptions {maximumSegmentSize = Just 1460},
    testCase "IPv4 header length below 5, total length below it" $ do
      fmap (const ()) (V4.decode (B.cons 0x44 (B.drop 1 v4))) @?= Left BadLength
      fmap (const ()) (V4.decode (B.take 2 v4 <> B.pack [0, 19] <> B.drop 4 v4)) @?= Left BadLength,
    testCase "a chain of extension headers is limited" $
      assertBool "accepted" . isLeft . V6.decode $
        V6.encode (V6.plain 6 (V6 1 1) (V6 1 2)) {V6.extensions = replicate 9 (V6.Extension 60 (B.replicate 6 0))} B.empty,
    testCase "a source route is refused, unless its end is reached (RFC 5095, RFC 7126, RFC 8200)" $ do
      let routing = isLeft . Packet.decode . (`V6.encode` B.empty) . routed
          routed body = (V6.plain 6 (V6 1 1) (V6 1 2)) {V6.extensions = [V6.Extension 43 (B.pack (body ++ [0, 0, 0, 0]))]}
          optional o = isLeft (Packet.decode (V4.encode (V4.plain 6 (V4 1) (V4 2)) {V4.options4 = B.pack o} B.empty))
      -- Routing type and segments left.
      map routing [[0, 1], [4, 1], [0, 0], [4, 0]] @?= [True, True, False, False]
      map optional [[131, 3, 4, 0], [1, 7, 3, 4, 137, 3, 4, 0], [148, 4, 0, 0], [0, 131, 3, 4]] @?= [True, True, False, False],
    testCase "an unknown IPv6 option is skipped, discards the packet, or is reported, as its type says (RFC 8200)" $ do
      let packet header kind to = V6.encode (V6.plain 6 (V6 1 1) to) {V6.extensions = [V6.Extension 60 (B.pack [1, 4, 0, 0, 0, 0]), V6.Extension header (B.pack [0, kind, 1, 7, 0, 0])]} B.empty
          fate header kind to = (isLeft (Packet.decode (packet header kind to)), Packet.parameterProblem (packet header kind to))
          one = V6 1 2
          many = V6 0xff02000000000000 1
          -- Behind the fixed header, eight bytes of padding, two of the header, and one of padding.
          told to = (True, Just (Packet.Problem (V6 1 1) to 2 51))
      [fate 60 kind one | kind <- [0x1e, 0x5e, 0x9e, 0xde]] @?= [(False, Nothing), (True, Nothing), told one, told one]
      [fate 0 kind many | kind <- [0x1e, 0x5e, 0x9e, 0xde]] @?= [(False, Nothing), (True, Nothing), told many, (True, Nothing)]
      -- Other headers have no options; an option does not end behind its header.
      fate 135 0x9e one @?= (False, Nothing)
      isLeft (Packet.decode (V6.encode (V6.plain 6 (V6 1 1) one) {V6.extensions = [V6.Extension 60 (B.pack [0x1e, 5, 0, 0, 0, 0])]} B.empty)) @?= True,
    testCase "a first IPv6 fragment without all headers is refused and reported (RFC 7112)" $ do
      let -- The payload from the fragment header on, of which the first fragment has so many bytes.
          first proto n more body = V6.encode (V6.plain proto (V6 1 1) (V6 1 2)) {V6.extensions = [V6.FragmentHeader (V6.Fragment 0 more 7)]} (B.take n body)
          padded = B.pack ([6, 1] ++ [1, 12] ++ replicate 12 0)
          segment = encode (V6 1 1) (V6 1 2) 1 2 (Segment 0 0 ack 0 0 noOptions {maximumSegmentSize = Just 1460} [B.replicate 40 0])
          fate proto n body = (isLeft (Packet.decode (first proto n True body)), Packet.parameterProblem (first proto n True body))
          incomplete = (True, Just (Packet.Problem (V6 1 1) (V6 1 2) 3 0))
      -- A header of options and one of TCP with an option of its own: 16 and 24 bytes.
      [fate 60 n (padded <> segment) | n <- [8, 16, 32, 40]] @?= [incomplete, incomplete, incomplete, (False, Nothing)]
      [fate 6 n segment | n <- [8, 16, 24]] @?= [incomplete, incomplete, (False, Nothing)]
      [fate proto 8 (B.replicate 8 0) | proto <- [17, 59]] @?= [(False, Nothing), (False, Nothing)]
      -- Not the other fragments; and not in answer to an ICMPv6 error.
      isLeft (Packet.decode (V6.encode (V6.plain 6 (V6 1 1) (V6 1 2)) {V6.extensions = [V6.FragmentHeader (V6.Fragment 3 True 7)]} (B.take 8 segment))) @?= False
      fate 58 4 (B.replicate 8 1) @?= (True, Nothing),
    testCase "ICMP errors with extensions: the field of their length is ignored (RFC 4884)" $ do
      let quoted = B.replicate 128 1
          extended = B.pack [0x20, 0, 0, 0]
          tooBig = Icmp.Other 3 4 (32 `shiftL` 16 .|. 1400) (quoted <> extended)
      -- Messages of named types are encoded with 0 in these fields.
      Icmp.decode (Icmp.encode tooBig) @?= Right (Icmp.FragmentationNeeded 1400 (quoted <> extended))
      Icmp.decode (Icmp.encode (Icmp.Other 3 1 (32 `shiftL` 16) quoted)) @?= Right (Icmp.Unreachable 1 quoted)
      Icmp6.decode (V6 1 1) (V6 1 2) (Icmp6.encode (V6 1 1) (V6 1 2) (Icmp6.Other 1 4 (B.pack [16, 0, 0, 0] <> quoted))) @?= Right (Icmp6.Unreachable 4 quoted),
    testProperty "a changed bit is noticed by TCP's checksum" . forAll ((,) <$> genPair <*> genSegment) $ \((s, d), seg) ->
      let bytes = encode s d 1 2 seg
       in forAll (choose (0, B.length bytes * 8 - 1)) $ \at ->
            let (i, j) = at `divMod` 8
                other = B.take i bytes <> B.cons (B.index bytes i + (1 `shiftL` j)) (B.drop (i + 1) bytes)
             in isLeft (decode s d other)
  ]
  where
    tcp n = B.replicate 12 0 <> B.cons (n * 16) (B.replicate 7 0)
    mss = [2, 4, 0x05, 0xb4]
    v4 = V4.encode (V4.plain 6 (V4 1) (V4 2)) (B.replicate 30 0)

fragments :: [TestTree]
fragments =
  [ testProperty "come together in any order" . forAll genWhole $ \(p, mtu) ->
      forAll (shuffle (Packet.fragment mtu 77 p)) $ \parts ->
        last (arrive parts) === Just (Packet.packetBody p),
    testProperty "fit the MTU" . forAll genWhole $ \(p, mtu) ->
      conjoin [counterexample (show (B.length f)) (B.length f <= mtu) | f <- Packet.fragment mtu 1 p],
    testCase "that overlap discard the packet" $ do
      let p = Packet.Packet (V4 1) (V4 2) 17 (B.replicate 100 1)
          parts = Packet.fragment 68 5 p
          from at more n byte = Piece at more (B.replicate n byte) B.empty
          whole = fst . foldl' (\(_, fs) piece -> addFragment defaultLimits 0 (Key (V4 1) (V4 2) 17 5) piece fs) (Nothing, noFragments)
          first = from 0 True 8 1
          end = from 8 False 8 2
      assertBool "the example has several" (length parts > 2)
      -- One fragment of another size is among them.
      arrive (drop 1 (Packet.fragment 76 5 p) ++ parts) @?= replicate (1 + length parts) Nothing
      -- Fragments at one place that are not copies: other bytes, another size, or one is the last fragment.
      map (\other -> whole [first, other, end]) [first, from 0 True 8 3, from 0 True 16 1, from 0 False 8 1]
        @?= [Just (B.replicate 8 1 <> B.replicate 8 2), Nothing, Nothing, Nothing]
      whole [end, from 8 True 8 2, first] @?= Nothing,
    testProperty "that arrive several times are used once" . forAll genWhole $ \(p, mtu) ->
      let parts = Packet.fragment mtu 77 p
       in forAll (shuffle (concatMap (replicate 3) (drop 1 parts))) $ \others ->
            -- The first fragment comes last, so that the copies come before the packet is whole.
            last (arrive (others ++ take 1 parts)) === Just (Packet.packetBody p),
    testCase "that make an IPv4 packet of more than 65,535 bytes are refused (RFC 791)" $ do
      let ending header n =
            fmap (const ()) . Packet.decode $
              V4.encode (V4.plain 17 (V4 1) (V4 2)) {V4.dontFragment = False, V4.fragmentOffset = 8189, V4.options4 = header} (B.replicate n 0)
      -- Byte 65,512 of the payload on, behind a header of 20 or 24 bytes.
      map (ending B.empty) [3, 4] @?= [Right (), Left BadLength]
      ending (B.replicate 4 1) 3 @?= Left BadLength,
    testCase "hold no more than the limits" $ do
      let piece n = (Key (V4 1) (V4 2) 17 n, Piece 8 True (B.replicate 800 0) B.empty)
          limits = defaultLimits {maxPackets = 10, maxBytes = 5000}
          fs = foldl' (\f n -> snd (uncurry (addFragment limits 0) (piece n) f)) noFragments [1 .. 1000]
      assertBool (show (heldBytes fs)) (heldBytes fs <= 5000 && heldBytes fs > 0)
      heldBytes (snd (expireFragments 30000000 fs)) @?= 0,
    testGroup
      "a sender of incomplete packets does not keep another one out"
      [ testCase name $ do
          let many n = (Key (V4 6) (V4 7) 17 n, Piece 0 True (B.replicate bytes 1) B.empty)
              flood from to fs = foldl' (\f n -> snd (uncurry (addFragment defaultLimits 0) (many n) f)) fs [from .. to]
              honest = Key (V4 8) (V4 7) 17 1
              (_, half) = addFragment defaultLimits 0 honest (Piece 0 True (B.replicate 16 2) B.empty) (flood 1 3000 noFragments)
              (result, rest) = addFragment defaultLimits 0 honest (Piece 16 False (B.replicate 8 2) B.empty) (flood 3001 6000 half)
          result @?= Just (B.replicate 24 2)
          assertBool (show (heldBytes rest)) (heldBytes rest <= 4194304)
        | (name, bytes) <- [("many", 8), ("large", 65000)]
      ]
  ]
  where
    genWhole = do
      (s, d) <- genPair
      body <- (<>) <$> genBytes 3000 <*> pure (B.replicate 20 1)
      -- The minimum MTU that each version requires of links.
      mtu <- case s of V4 {} -> choose (68, 1500); V6 {} -> choose (1280, 1500)
      pure (Packet.Packet s d 17 body, mtu)
    arrive parts = reverse (snd (foldl' one (noFragments, []) parts))
    one (fs, out) bytes = case Packet.decode bytes of
      Right (Packet.Whole p) -> (fs, Just (Packet.packetBody p) : out)
      Right (Packet.Fragment key piece) -> let (r, fs') = addFragment defaultLimits 0 key piece fs in (fs', r : out)
      Left _ -> (fs, Nothing : out)

addresses :: Assertion
addresses = do
  let texts = ["192.0.2.1", "0.0.0.0", "255.255.255.255", "::", "::1", "2001:db8::1", "fe80::1:2:3:4"]
  fmap (fmap showAddress . parseAddress) texts @?= fmap Just texts
  fmap parseAddress ["", "1.2.3", "1.2.3.256", "2001:db8:::1", "host", "1.2.3.4\0"] @?= replicate 6 Nothing
  map isUnicast [V4 0, V4 0xe0000001, V4 0xffffffff, V4 0x0a000001, V6 0 0, V6 0xff02000000000000 1, V6 0 1]
    @?= [False, False, False, True, False, False, True]

-- | Decode bytes by all decoders, and evaluate the results completely.
everything :: ByteString -> Int
everything b = length (show parsed) + length (show frames)
  where
    parsed = case Packet.decode b of
      Left e -> Left e
      Right (Packet.Whole p) -> Right (transport p)
      Right (Packet.Fragment key piece) ->
        let (r, fs) = addFragment defaultLimits 0 key piece noFragments in Right [show key, show r, show (heldBytes fs)]
    frames = (Ethernet.decodeFrame b, Ethernet.decodeArp b, fmap (\(link, records, rest) -> (link, length records, rest)) (Pcap.decodeFile b))
    transport p =
      let (s, d, body) = (Packet.packetSource p, Packet.packetDestination p, Packet.packetBody p)
       in -- Decode the segment without verifying its checksum too, because most changes make the checksum wrong.
          [ show (decode s d body),
            show (Segment.segment <$> Segment.view body),
            show (Udp.decode s d body),
            show (Icmp.decode body),
            show (Icmp6.decode s d body),
            show (decodeOptions body)
          ]

mutated :: Assertion
mutated = do
  count <- maybe 100000 read <$> lookupEnv "WEFT_TCP_MUTATIONS"
  bases <- generate (vectorOf 200 genPacket)
  let step seed i = do
        let b = mutations seed (bases !! (i `mod` 200))
        r <- try (evaluate (everything b))
        case r of
          Left e -> assertFailure (show (e :: SomeException) ++ " from " ++ show b)
          Right n -> unless (n > 0) (assertFailure "nothing was read")
        pure (nextSeed seed)
  foldM_ step 88172645463325252 [1 .. count :: Int]
  -- The decoders accept most of the unchanged packets.
  let understood = length [() | b <- bases, Right (Packet.Whole _) <- [Packet.decode b]]
  assertBool (show understood ++ " of 200 whole packets") (understood > 100)
  flags (Segment 0 0 (syn <> ack) 0 0 noOptions []) @?= syn <> ack
