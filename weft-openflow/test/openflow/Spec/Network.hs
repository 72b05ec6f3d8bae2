{-# LANGUAGE OverloadedStrings #-}

-- |
-- What needs no connection: the framer, LLDP, the learning switch, topologies and their trees.
module Spec.Network (tests) where

import qualified Data.ByteString as B
import Data.List (foldl')
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import qualified Data.Set as Set
import Test.QuickCheck hiding (output)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import Weft.OpenFlow.App
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types

tests :: TestTree
tests =
  testGroup
    "network"
    [ testGroup "packets" [lldpRound, totalPackets],
      testGroup "learning switch" [learns, moves, portDown, ages, bounded, asAMap, composition],
      testGroup "topology" [trees, settles, loopClosed, linksExpire, switchLeaves, hostsAtTrunks, crowdedPort, trunkOrder]
    ]

-- Packets ---------------------------------------------------------------------------------

lldpRound :: TestTree
lldpRound = testProperty "LLDP says who sent it" . forAll ((,) <$> chooseAny <*> chooseAny) $ \(d, p) ->
  let s = lldpFrame (DatapathId d) (PortNo p) (MacAddress 5)
   in (ethernet s >>= \f -> lldpOrigin f s) === Just (DatapathId d, PortNo p) .&&. B.length s === 60

totalPackets :: TestTree
totalPackets = testProperty "no packet raises an exception" . withMaxSuccess 3000 . forAll gen $ \s ->
  length (show (ethernet s, fmap (\f -> (senderIpv4 f s, ipv4Addresses f s, lldpOrigin f s)) (ethernet s))) =/= 0
  where
    gen = oneof [B.pack <$> (choose (0, 80) >>= vector), cut, tagged]
    cut = (`B.take` lldpFrame (DatapathId 7) (PortNo 1) (MacAddress 1)) <$> choose (0, 60)
    tagged = (\t rest -> B.pack (replicate 12 1 ++ t ++ rest)) <$> elements [[0x81, 0, 0, 1, 8, 0], [8, 0, 0x4f], [8, 6], [0x88, 0xcc, 2, 255]] <*> (choose (0, 40) >>= vector)

-- Learning --------------------------------------------------------------------------------

context :: Millis -> Context
context time = Context time (DatapathId 1) V13 FloodByItself

packetIn :: PortNo -> MacAddress -> MacAddress -> PacketIn
packetIn from source destination = PacketIn (BufferId 1) 60 from 0 0 0 [] (B.pack (mac destination ++ mac source ++ [8, 0] ++ replicate 46 0))
  where
    mac (MacAddress n) = [fromIntegral (n `div` (256 ^ i)) | i <- [5, 4 .. 0 :: Int]]

-- | The messages of an event, from a state on.
sent :: App s -> Context -> Event -> s -> (s, [Message])
sent app c event s = case appHandle app c event s of
  (s', replies) -> (s', [m | Send m <- replies])

flows :: [Message] -> [(FlowCommand, Match, [Instruction])]
flows ms = [(flowCommand f, flowMatch f, flowInstructions f) | FlowModMessage f <- ms]

learns :: TestTree
learns = testCase "floods what is unknown, then installs the exact flow with the buffer" $ do
  let (s1, m1) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
  m1 @?= [PacketOutMessage (PacketOut (BufferId 1) (PortNo 1) [output portFlood] B.empty)]
  let (s2, m2) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 2) b a)) s1
  flows m2 @?= [(FlowAdd, [InPort (PortNo 2), EthSrc b, EthDst a], [ApplyActions [output (PortNo 1)]])]
  [flowBuffer f | FlowModMessage f <- m2] @?= [BufferId 1]
  let (_, m3) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 2) b a) {packetInBuffer = noBuffer}) s2
  length m3 @?= 2
  -- What is local to a port is dropped there.
  let (_, m4) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) b a)) s1
  flows m4 @?= [(FlowAdd, [InPort (PortNo 1), EthSrc b, EthDst a], [])]
  where
    a = MacAddress 0x020000000001
    b = MacAddress 0x020000000002

moves :: TestTree
moves = testCase "a host that moves is looked for no more where it was" $ do
  let (s1, _) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
      (s2, m2) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 3) a b)) s1
  flows m2 @?= [(FlowDelete, [EthDst a], [])]
  learnedPort a s2 @?= Just (PortNo 3)
  where
    a = MacAddress 0x020000000001
    b = MacAddress 0x020000000002

portDown :: TestTree
portDown = testCase "a port that goes down is forgotten, with its flows" $ do
  let (s1, _) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
      (s2, m2) = sent learningSwitch (context 0) (PortChanged PortModified (Port (PortNo 1) a "p" 0 1 (0, 0, 0, 0) (0, 0))) s1
  learnedPort a s2 @?= Nothing
  [(flowCommand f, flowOutPort f) | FlowModMessage f <- m2] @?= [(FlowDelete, PortNo 1)]
  where
    a = MacAddress 0x020000000001
    b = MacAddress 0x020000000002

ages :: TestTree
ages = testCase "addresses that are not seen are forgotten after two ages" $ do
  let say time x s = fst (sent learningSwitch (context time) (Packet (packetIn (PortNo 1) (MacAddress x) (MacAddress 0xffffffffffff))) s)
      s1 = say 0 0x020000000001 (appStart learningSwitch)
      s2 = say 300000 0x020000000002 s1
      s3 = say 600001 0x020000000002 s2
  learnedPort (MacAddress 0x020000000001) s2 @?= Just (PortNo 1)
  learnedPort (MacAddress 0x020000000001) s3 @?= Nothing
  learnedPort (MacAddress 0x020000000002) s3 @?= Just (PortNo 1)

bounded :: TestTree
bounded = testCase "a flood of addresses costs bounded memory" $ do
  let settings = defaultLearningSettings {learningMost = 100}
      app = learningSwitchWith settings
      s = foldl' (\t n -> fst (sent app (context 0) (Packet (packetIn (PortNo 1) (MacAddress n) (MacAddress 0xffffffffffff))) t)) (appStart app) [0x020000000000 .. 0x020000000000 + 5000]
  assertBool (show (learnedCount s)) (learnedCount s <= 200)

-- | Many addresses, some of them chosen so that they fall to the same place of a table of any size up to 2^11; hosts that
-- move, also to ports of large numbers; ports that go down.
asAMap :: TestTree
asAMap = testProperty "knows where hosts are, as a map does" . withMaxSuccess 60 . forAll gen $ \steps ->
  let (learned, model) = foldl' step (appStart learningSwitch, Map.empty) steps
      seen = [m | Seen m _ <- steps]
   in [(m, learnedPort m learned) | m <- seen] === [(m, Map.lookup m model) | m <- seen] .&&. learnedCount learned === Map.size model
  where
    step (s, model) change = case change of
      Seen m p -> (handle (Packet (packetIn p m broadcast)) s, Map.insert m p model)
      Down p -> (handle (PortChanged PortDeleted (gone p)) s, Map.filter (/= p) model)
    handle event = fst . appHandle learningSwitch (context 0) event
    gone p = Port p (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0)
    broadcast = MacAddress 0xffffffffffff
    gen = do
      n <- elements [10, 100, 300, 1500]
      concat <$> vectorOf n (frequency [(200, pure <$> (Seen <$> address n <*> anyPort)), (20, moving n), (1, pure . Down <$> anyPort)])
    moving n = address n >>= \m -> vectorOf 3 (Seen m <$> anyPort)
    address n = oneof [MacAddress . fromIntegral <$> choose (1, 2 * n), elements colliding]
    anyPort = PortNo <$> elements [1, 2, 3, 0xfeff, 0x10001]
    colliding = [MacAddress m | m <- [1 .. 0x40000], (m * 0x9e3779b97f4a7c15) `div` 2 ^ (53 :: Int) == 5]

data Change = Seen MacAddress PortNo | Down PortNo
  deriving (Show)

composition :: TestTree
composition = testCase "Stop keeps an event from those behind" $ do
  let count = App (0 :: Int) (\_ _ n -> (n + 1, []))
      stopper = App () (\_ event () -> ((), [Stop | SwitchDown <- [event]]))
      app = count `andThen` stopper `andThen` count
      step event = fst . appHandle app (context 0) event
  step (SwitchUp (Features (DatapathId 1) 0 0 0 0 0 [])) (appStart app) @?= (1, ((), 1))
  step SwitchDown (appStart app) @?= (1, ((), 0))

-- Topologies ------------------------------------------------------------------------------

place :: (Int, Int) -> Place
place (d, p) = (DatapathId (fromIntegral d), PortNo (fromIntegral p))

-- | A graph of at most eight switches: each link has ports of its own.
genLinks :: Gen [(Place, Place)]
genLinks = do
  pairs <- choose (0, 16) >>= (`vectorOf` ((,) <$> choose (1, 8) <*> choose (1, 8)))
  pure [(place (a, 10 + i), place (b, 40 + i)) | (i, (a, b)) <- zip [0 ..] pairs, a /= b]

-- | The switches that hang together, by these links.
components :: [(Place, Place)] -> Set.Set (Set.Set DatapathId)
components pairs = Set.fromList (Map.elems (foldl' join (Map.fromList [(d, Set.singleton d) | (a, b) <- pairs, d <- [fst a, fst b]]) pairs))
  where
    join m (a, b) = let both = Set.union (m Map.! fst a) (m Map.! fst b) in Set.foldl' (\m' d -> Map.insert d both m') m both

trees :: TestTree
trees = testProperty "a spanning tree reaches all switches and has no loop" . withMaxSuccess 1000 . forAll genLinks $ \pairs ->
  let tree = spanningTree pairs
      kept = [(a, b) | (a, b) <- pairs, Set.member a tree, Set.member b tree]
      switches = Set.size (Set.fromList [fst x | (a, b) <- pairs, x <- [a, b]])
   in components pairs === Set.union (components kept) Set.empty
        .&&. length kept === switches - Set.size (components pairs)
        .&&. spanningTree (reverse [(b, a) | (a, b) <- pairs]) === tree

port :: Int -> Port
port n = Port (PortNo (fromIntegral n)) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0)

joined :: [Int] -> [Int] -> Topology
joined switches ports = foldl' (\t d -> fst (switchJoined 0 (DatapathId (fromIntegral d)) V13 (map port ports) t)) (emptyTopology defaultTopologySettings) switches

flood :: Int -> Topology -> [Int]
flood d t = case flooding (DatapathId (fromIntegral d)) t of
  FloodTo ports _ -> [fromIntegral n | PortNo n <- ports]
  FloodByItself -> [-1]

link :: Millis -> (Int, Int) -> (Int, Int) -> Topology -> Topology
link time a b = fst . linkSeen time (place a) (place b)

settles :: TestTree
settles = testCase "a port is not flooded to before it has settled" $ do
  let t = joined [1] [1, 2]
  flood 1 t @?= []
  flood 1 (fst (timePassed 999 t)) @?= []
  flood 1 (fst (timePassed 1000 t)) @?= [1, 2]
  -- It goes down and comes up again: it settles again.
  let down = fst (portUpdated 2000 (DatapathId 1) (port 1) {portState = 1} (fst (timePassed 1000 t)))
  flood 1 down @?= [2]
  flood 1 (fst (portUpdated 2100 (DatapathId 1) (port 1) down)) @?= [2]

loopClosed :: TestTree
loopClosed = testCase "a triangle floods along two of its links" $ do
  let t0 = joined [1, 2, 3] [1, 2, 3]
      t1 = link 10 (1, 1) (2, 1) (link 10 (2, 2) (3, 2) (link 10 (3, 1) (1, 2) t0))
      t2 = fst (timePassed 1000 t1)
  map (`flood` t2) [1, 2, 3] @?= [[1, 2, 3], [1, 3], [1, 3]]

linksExpire :: TestTree
linksExpire = testCase "a link that is seen no more goes, and the others are told" $ do
  let t1 = link 10 (1, 1) (2, 1) (link 10 (2, 2) (3, 2) (link 10 (3, 1) (1, 2) (joined [1, 2, 3] [1, 2, 3])))
      t2 = link 9000 (2, 2) (3, 2) (link 9000 (3, 1) (1, 2) t1)
      (t3, changed) = timePassed 16500 t2
  length (topologyLinks t3) @?= 2
  -- The port is an edge again; the tree takes the other way.
  map (`flood` t3) [1, 2, 3] @?= [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
  Set.fromList changed @?= Set.fromList (map DatapathId [1, 2, 3])

switchLeaves :: TestTree
switchLeaves = testCase "a switch that leaves takes its links and hosts" $ do
  let t1 = link 10 (1, 1) (2, 1) (joined [1, 2] [1, 2])
      t2 = fromMaybe t1 (hostSeen 20 (MacAddress 9) (place (2, 2)) Nothing t1)
      (t3, changed) = switchLeft (DatapathId 2) t2
  Map.size (topologyHosts t2) @?= 1
  (topologyLinks t3, Map.size (topologyHosts t3), changed) @?= ([], 0, [DatapathId 1])

hostsAtTrunks :: TestTree
hostsAtTrunks = testCase "no host is behind another switch" $ do
  let t1 = link 10 (1, 1) (2, 1) (joined [1, 2] [1, 2])
  fmap (Map.size . topologyHosts) (hostSeen 20 (MacAddress 9) (place (1, 1)) Nothing t1) @?= Nothing
  -- One that was seen before the link was known is forgotten.
  let before = joined [1, 2] [1, 2]
      early = fromMaybe before (hostSeen 5 (MacAddress 9) (place (1, 1)) Nothing before)
  Map.size (topologyHosts early) @?= 1
  Map.size (topologyHosts (link 10 (1, 1) (2, 1) early)) @?= 0

-- | A host that sends from addresses that it makes up. What it takes is given back when its port goes down.
crowdedPort :: TestTree
crowdedPort = testCase "the hosts of a port are bounded, and leave room for those of others" $ do
  let settings = defaultTopologySettings {topologyMostHostsOfPort = 10}
      ports = [Port (PortNo n) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0) | n <- [1, 2]]
      empty = fst (switchJoined 0 (DatapathId 1) V13 ports (emptyTopology settings))
      seen at t mac = fromMaybe t (hostSeen 5 (MacAddress mac) (place (1, at)) Nothing t)
      full = foldl' (seen 1) empty [1 .. 100]
      hostsOn n t = length (filter ((== place (1, n)) . hostPlace) (Map.elems (topologyHosts t)))
  hostsOn 1 full @?= 10
  hostsOn 2 (foldl' (seen 2) full [101 .. 105]) @?= 5
  -- One of them moves, and its place is free.
  let moved = foldl' (seen 1) (seen 2 full 3) [200 .. 210]
  (hostsOn 1 moved, hostsOn 2 moved) @?= (10, 1)
  -- The port goes down, and others may come.
  let down = fst (portRemoved (DatapathId 1) (PortNo 1) moved)
  (hostsOn 1 down, hostsOn 2 down) @?= (0, 1)
  hostsOn 1 (foldl' (seen 1) down [300 .. 400]) @?= 10

-- | Any order of changes: flooding never uses a link that is not in the tree, nor a port that settles.
trunkOrder :: TestTree
trunkOrder = testProperty "flooding never closes a loop" . withMaxSuccess 500 . forAll gen $ \(pairs, order) ->
  let t0 = fst (timePassed 5000 (joined [1 .. 8] [1 .. 60]))
      t = foldl' (\x (a, b) -> fst (linkSeen 6000 a b x)) t0 [pairs !! (i `mod` length pairs) | not (null pairs), i <- order]
      seen = topologyLinks t
      used = [(a, b) | (a, b) <- seen, floods a t, floods b t]
      floods (d, p) x = case flooding d x of FloodTo ports _ -> p `elem` ports; FloodByItself -> True
      switches = Set.size (Set.fromList [fst x | (a, b) <- seen, x <- [a, b]])
   in length used === switches - Set.size (components seen) .&&. components used === components seen
  where
    gen = (,) <$> genLinks <*> (choose (0, 30) >>= (`vectorOf` choose (0, 100)))
