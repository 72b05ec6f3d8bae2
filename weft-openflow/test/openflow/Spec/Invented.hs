-- |
-- Hosts that send from invented addresses, or to addresses that nobody has: what they cost the learning switch and the
-- hosts beside them is bounded.
module Spec.Invented (tests) where

import Data.List (foldl')
import Spec.Network (context, packetIn, port, sent)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.OpenFlow.App
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types

tests :: TestTree
tests = testGroup "invented addresses" [inventedSources, twoAges, searchedOnce, floodsBounded]

-- | A thousand packets from invented addresses at port 1, beside fifty hosts at five others.
inventedSources :: TestTree
inventedSources = testCase "invented addresses at a port leave those of other ports, and get no flows beyond its share" $ do
  let app = learningSwitchWith defaultLearningSettings {learningMost = 400, learningMostOfPort = 100}
      victim = MacAddress 0x020000000005
      hosts = [(MacAddress (0x020000000000 + n), PortNo (fromIntegral (n `mod` 5 + 2))) | n <- [1 .. 50]]
      start = foldl' (\s (m, p) -> fst (sent app (context 0) (Packet (packetIn p m broadcastMac)) s)) (appStart app) hosts
      invent (s, ms) n = (++) ms <$> sent app (context 1) (Packet (packetIn (PortNo 1) (MacAddress (0x061000000000 + n * 7919)) victim)) s
      (s', replies) = foldl' invent (start, []) [1 .. 1000]
  [(m, learnedPort m s') | (m, _) <- hosts] @?= [(m, Just p) | (m, p) <- hosts]
  assertBool (show (learnedCount s')) (learnedCount s' <= 150)
  -- All reach their destination; those that are not learned without a flow.
  length [() | FlowModMessage f <- replies, flowCommand f == FlowAdd] @?= 100
  [packetOutActions o | PacketOutMessage o <- replies] @?= replicate 900 [output (PortNo 2)]
  -- A host comes to another port meanwhile.
  let (s'', _) = sent app (context 2) (Packet (packetIn (PortNo 7) (MacAddress 0x020000000077) broadcastMac)) s'
  learnedPort (MacAddress 0x020000000077) s'' @?= Just (PortNo 7)
  -- In the next age the port has its share again.
  let (later, _) = sent app (context 150001) (Packet (packetIn (PortNo 1) (MacAddress 0x020000000078) broadcastMac)) s''
  learnedPort (MacAddress 0x020000000078) later @?= Just (PortNo 1)

-- | A port's share is that of an age; hosts that move away make room.
twoAges :: TestTree
twoAges = testCase "the share of a port holds from age to age, and counts hosts where they are" $ do
  let app = learningSwitchWith defaultLearningSettings {learningMostOfPort = 10}
      say time p n s = fst (sent app (context time) (Packet (packetIn (PortNo p) (MacAddress (0x020000000000 + n)) broadcastMac)) s)
      at p ns s = length [() | n <- ns, learnedPort (MacAddress (0x020000000000 + n)) s == Just (PortNo p)]
      full = foldl' (flip (say 0 1)) (appStart app) [1 .. 30]
      -- All that were heard of, old and new ones, in each age.
      overAges = foldl' (\s k -> foldl' (flip (say (150001 * k) 1)) s [1 .. 100]) full [1 .. 5]
      moved = foldl' (flip (say 1 2)) full [1 .. 5]
      refilled = foldl' (flip (say 2 1)) moved [40 .. 60]
  at 1 [1 .. 30] full @?= 10
  assertBool (show (learnedCount overAges)) (learnedCount overAges <= 20)
  (at 1 [1 .. 60] refilled, at 2 [1 .. 60] refilled) @?= (10, 5)

-- | The deletion of flows from an unknown address is remembered as long as no such flow can be there.
searchedOnce :: TestTree
searchedOnce = testCase "the flows from an unknown address are deleted once, and again after whatever may leave one" $ do
  let ask time = sent learningSwitch (context time) (Packet (packetIn (PortNo 1) (MacAddress 0x020000000001) b))
      deletes ms = length [() | FlowModMessage f <- ms, flowCommand f == FlowDelete, flowMatch f == [EthSrc b]]
      outs ms = length [() | PacketOutMessage o <- ms, packetOutActions o == [output portFlood]]
      answer time s = fst (sent learningSwitch (context time) (Packet (packetIn (PortNo 2) b (MacAddress 0x020000000001))) s)
      (s1, m1) = ask 0 (appStart learningSwitch)
      (s2, m2) = ask 1 s1
      after' change = let (s, ms) = change in (deletes (snd (ask 5 s)), deletes ms)
      event e = sent learningSwitch (context 2) e s2
  ((deletes m1, outs m1), (deletes m2, outs m2)) @?= ((1, 1), (0, 1))
  -- Another controller was master meanwhile; the host was known until its port went down.
  fst (after' (event (SwitchUp (Features (DatapathId 1) 0 0 0 0 0 [])))) @?= 1
  fst (after' (sent learningSwitch (context 3) (PortChanged PortDeleted (port 2)) (answer 2 s2))) @?= 1
  fst (after' (event (PortChanged PortModified (port 2)))) @?= 0
  -- It was known, and has been silent for two ages.
  let known = answer 3 s2
      (aged, m3) = ask 300010 (fst (ask 150004 known))
  (deletes m3, deletes (snd (ask 300011 aged))) @?= (1, 0)
  where
    b = MacAddress 0x020000000002

floodsBounded :: TestTree
floodsBounded = testCase "packets to unknown addresses are flooded at a bounded rate, for each port" $ do
  let app = learningSwitchWith defaultLearningSettings {learningMostFloods = 10}
      ask time p (s, ms) n = (++) ms <$> sent app (context time) (Packet (packetIn (PortNo p) (MacAddress 0x020000000001) (MacAddress (0x061000000000 + n)))) s
      step time p n s = foldl' (ask time p) (s, []) [1 .. n]
      (s1, m1) = step 5000 1 1000 (appStart app)
      (s2, m2) = step 5500 2 5 s1
      (s3, m3) = step 5999 1 5 s2
      (s4, m4) = step 6000 1 5 s3
      (_, m5) = sent app (context 6001) (Packet (packetIn (PortNo 1) (MacAddress 0x020000000001) broadcastMac)) s4
      floods ms = length [() | PacketOutMessage o <- ms, packetOutActions o == [output portFlood]]
      deletes ms = length [() | FlowModMessage f <- ms, flowCommand f == FlowDelete]
      dropped ms = length [() | PacketOutMessage o <- ms, null (packetOutActions o)]
  (floods m1, deletes m1, dropped m1) @?= (10, 10, 990)
  map floods [m2, m3, m4, m5] @?= [5, 0, 5, 1]
  -- All ports that the switch has not announced have one share.
  let unannounced = [packetIn (PortNo n) (MacAddress 0x020000000001) (MacAddress 0x06aaaaaaaaaa) | n <- [200 .. 300]]
      (_, m6) = foldl' (\(s, ms) p -> (++) ms <$> sent app (context 7000) (Packet p) s) (s4, []) unannounced
  floods m6 @?= 10
