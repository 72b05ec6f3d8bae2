{-# LANGUAGE OverloadedStrings #-}

-- |
-- The packets that the controller itself makes and reads: the probes of link discovery, and ARP.
module Spec.Packets (tests) where

import Data.Bits (xor)
import qualified Data.ByteString as B
import Data.Maybe (fromMaybe)
import Test.QuickCheck hiding (output)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Types

tests :: TestTree
tests = testGroup "packets" [lldpRound, lldpForged, arpRound, senders, totalPackets]

lldpRound :: TestTree
lldpRound = testProperty "a probe says who sent it" . forAll ((,) <$> chooseAny <*> chooseAny) $ \(d, p) ->
  conjoin
    [ originOf ownKey s === Just (FromPort (DatapathId d) (PortNo p)) .&&. fmap pathOf (ethernet s) === Just path
      | (frame, path) <- [(lldpFrame, Cable), (bridgedFrame, AnyPath)],
        let s = frame ownKey (DatapathId d) (PortNo p) (MacAddress 5)
    ]

ownKey :: LldpKey
ownKey = fromMaybe (error "16 bytes") (lldpKey (B.pack [1 .. 16]))

originOf :: LldpKey -> B.ByteString -> Maybe LldpOrigin
originOf k s = (\f -> lldpOrigin k f s) <$> ethernet s

-- | Frames that a host can make from genuine frames, or without one.
lldpForged :: TestTree
lldpForged =
  testGroup
    "a host's LLDP frames"
    [ testProperty "the tag of another port or switch" . forAll ((,) <$> place2 <*> place2) $ \(a, b) ->
        a /= b ==> originOf ownKey (withTagOf (frame ownKey a) (frame ownKey b)) === Just Forged,
      testProperty "another key" . forAll ((,) <$> vectorOf 16 chooseAny <*> place2) $ \(bytes, a) ->
        fmap (\k -> originOf ownKey (frame k a)) (lldpKey (B.pack bytes)) === Just (Just Forged),
      testProperty "a changed bit is never another link" . forAll ((,) <$> place2 <*> ((,) <$> choose (14, 64) <*> choose (0, 7))) $ \(a@(d, p), (i, bit)) ->
        let s = frame ownKey a
            changed = B.concat [B.take i s, B.singleton (B.index s i `xor` 2 ^ (bit :: Int)), B.drop (i + 1) s]
         in originOf ownKey changed `elem` map Just [Forged, OtherLldp, FromPort (DatapathId d) (PortNo p)],
      testProperty "a probe that bridges forward, as an LLDP frame, and the reverse" . forAll place2 $ \a ->
        let bridged = bridgedFrame ownKey (DatapathId (fst a)) (PortNo (snd a)) (MacAddress 5)
            s `withHeaderOf` header = B.take 14 header <> B.drop 14 s
         in map (originOf ownKey) [bridged `withHeaderOf` frame ownKey a, frame ownKey a `withHeaderOf` bridged] === [Just Forged, Just Forged],
      testCase "no tag" $ originOf ownKey (B.take 49 (frame ownKey (1, 2)) <> B.replicate 11 0) @?= Just Forged,
      testCase "a frame of another program" $ originOf ownKey (B.take 14 (frame ownKey (1, 2)) <> B.pack ([2, 7, 4, 2, 0, 0, 0, 0, 1] ++ replicate 40 0)) @?= Just OtherLldp
    ]
  where
    place2 = (,) <$> chooseAny <*> chooseAny
    frame k (d, p) = lldpFrame k (DatapathId d) (PortNo p) (MacAddress 5)
    -- The tag is in the last ten bytes, before the end of the frame's TLVs.
    withTagOf a b = B.take (B.length a - 10) a <> B.drop (B.length b - 10) b

-- | An answer to our ARP request is recognised, and nothing else is.
arpRound :: TestTree
arpRound = testCase "an answer to an ARP request" $ do
  let ask = arpProbe (MacAddress 0x02000000aaaa) (MacAddress 0x020000000001) 0x0a000001
      answer operation to = B.pack (to ++ [2, 0, 0, 0, 0, 1] ++ [8, 6, 0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1] ++ to ++ [0, 0, 0, 0] ++ replicate 18 0)
      understood s = ethernet s >>= \f -> arpReplyTo (MacAddress 0x02000000aaaa) f s
      us = [2, 0, 0, 0, 0xaa, 0xaa]
  (B.length ask, B.take 22 ask) @?= (60, B.pack ([2, 0, 0, 0, 0, 1] ++ us ++ [8, 6, 0, 1, 8, 0, 6, 4, 0, 1]))
  fmap (\f -> (frameSrc f, senderIpv4 f ask)) (ethernet ask) @?= Just (MacAddress 0x02000000aaaa, Nothing)
  understood (answer 2 us) @?= Just (MacAddress 0x020000000001, 0x0a000001)
  map understood [answer 1 us, answer 2 [2, 0, 0, 0, 0, 9], B.take 41 (answer 2 us)] @?= [Nothing, Nothing, Nothing]

-- | RFC 1122, 3.2.1.3: no packet on a network comes from a loopback or multicast address, or from the broadcast
-- address.
senders :: TestTree
senders = testCase "the address of a sender is one that a host can have" $ do
  map from [[0, 0, 0, 0], [127, 0, 0, 1], [127, 255, 255, 255], [224, 0, 0, 1], [240, 0, 0, 1], [255, 255, 255, 255]] @?= replicate 6 Nothing
  map from [[126, 255, 255, 255], [128, 0, 0, 0], [223, 255, 255, 255]] @?= map Just [0x7effffff, 0x80000000, 0xdfffffff]
  where
    from address = let s = B.pack (replicate 12 2 ++ [8, 0] ++ replicate 12 0 ++ address ++ replicate 20 0) in ethernet s >>= \f -> senderIpv4 f s

totalPackets :: TestTree
totalPackets = testProperty "no packet raises an exception" . withMaxSuccess 3000 . forAll gen $ \s ->
  length (show (ethernet s, fmap (\f -> (senderIpv4 f s, ipv4Addresses f s, lldpOrigin ownKey f s)) (ethernet s))) =/= 0
  where
    gen = oneof [B.pack <$> (choose (0, 80) >>= vector), cut, tagged]
    cut = (`B.take` lldpFrame ownKey (DatapathId 7) (PortNo 1) (MacAddress 1)) <$> choose (0, 65)
    tagged = (\t rest -> B.pack (replicate 12 1 ++ t ++ rest)) <$> elements [[0x81, 0, 0, 1, 8, 0], [8, 0, 0x4f], [8, 6], [0x88, 0xcc, 2, 255]] <*> (choose (0, 40) >>= vector)
