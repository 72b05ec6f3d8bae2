{-# LANGUAGE OverloadedStrings #-}

-- |
-- The pure parts of the controller: the learning switch, topologies and their spanning trees.
module Spec.Network
  ( tests,

    -- * For other tests
    context,
    packetIn,
    sent,
    port,
  )
where

import Control.Monad (forM_)
import qualified Data.ByteString as B
import Data.List (foldl', partition)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import qualified Data.Set as Set
import Data.Tuple (swap)
import Test.QuickCheck hiding (output)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import Weft.OpenFlow.App
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.SpanningTree (spanningTree)
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (encode)

tests :: TestTree
tests =
  testGroup
    "network"
    [ testGroup "learning switch" [learns, fullTable, nobody, moves, portDown, formerTrunk, localPort, itsOwnFlows, ages, bounded, asAMap, composition],
      testGroup "topology" [trees, settles, loopClosed, linksExpire, detour, switchLeaves, switchOfAnother, linksOfOthers, sameTree, hostsAtTrunks, crowdedPort, crowdedSwitch, manyPorts, unfloodedPorts, hostsAge, trunkOrder]
    ]

-- Learning --------------------------------------------------------------------------------

context :: Millis -> Context
context time = Context time (DatapathId 1) V13 FloodByItself (Map.fromList [(p, (port 1) {portNumber = p}) | p <- portLocal : map PortNo (0xfeff : 0x10001 : [1 .. 100])])

packetIn :: PortNo -> MacAddress -> MacAddress -> PacketIn
packetIn from source destination = PacketIn (BufferId 1) 60 from 0 0 0 [] (B.pack (mac destination ++ mac source ++ [8, 0] ++ replicate 46 0))
  where
    mac (MacAddress n) = [fromIntegral (n `div` (256 ^ i)) | i <- [5, 4 .. 0 :: Int]]

-- | An application's next state, and the messages that it sends, for an event in a state.
sent :: App s -> Context -> Event -> s -> (s, [Message])
sent app c event s = case appHandle app c event s of
  (s', replies) -> (s', [m | Send m <- replies])

flows :: [Message] -> [(FlowCommand, Match, [Instruction])]
flows ms = [(flowCommand f, flowMatch f, flowInstructions f) | FlowModMessage f <- ms]

learns :: TestTree
learns = testCase "floods what is unknown, then installs the exact flow with the buffer" $ do
  let (s1, m1) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
  drop 1 m1 @?= [PacketOutMessage (PacketOut (BufferId 1) (PortNo 1) [output portFlood] B.empty)]
  -- Answers of the host must not be hidden by a flow of an earlier controller.
  flows m1 @?= [(FlowDelete, [EthSrc b], [])]
  let (s2, m2) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 2) b a)) s1
  flows m2 @?= [(FlowAdd, [EthDst a, InPort (PortNo 2), EthSrc b], [ApplyActions [output (PortNo 1)]])]
  [flowBuffer f | FlowModMessage f <- m2] @?= [BufferId 1]
  let (_, m3) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 2) b a) {packetInBuffer = noBuffer}) s2
  length m3 @?= 2
  -- A packet to a host at the port that received it is dropped.
  let (_, m4) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) b a)) s1
  flows m4 @?= [(FlowAdd, [InPort (PortNo 1), EthSrc b, EthDst a], [])]
  where
    a = MacAddress 0x020000000001
    b = MacAddress 0x020000000002

-- | A FLOW_MOD that failed has not released its buffer. The ERROR has at least the first 64 bytes of the FLOW_MOD.
fullTable :: TestTree
fullTable = testGroup "a buffered packet whose flow is refused is sent" [testCase (show (version, bytes)) (go version bytes) | version <- [V10, V13], bytes <- [64, 200]]
  where
    a = MacAddress 0x020000000001
    b = MacAddress 0x020000000002
    go version bytes = do
      let here = (context 0) {contextVersion = version}
          (s1, _) = sent learningSwitch here (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
          (s2, _) = sent learningSwitch here (Packet (packetIn (PortNo 2) b a)) s1
          full = if version == V10 then (3, 0) else (5, 1)
          -- The messages for a packet, and what the switch does if it refuses flows for this reason.
          refused (kind, code) p =
            let (s, ms) = sent learningSwitch here p s2
                errors = [Error kind code (B.take bytes m) | FlowModMessage f <- ms, Just m <- [encode version 9 (FlowModMessage f)]]
             in ([o | PacketOutMessage o <- ms], concatMap (\e -> snd (sent learningSwitch here (Other e) s)) errors)
          from n = packetIn (PortNo n) a b
      forM_ [1, 2, 0x57454654, 0xfffffffe] $ \n -> do
        let (before, after') = refused full (Packet (from 1) {packetInBuffer = BufferId n})
        [(packetOutBuffer o, packetOutActions o) | o <- before <> [o | PacketOutMessage o <- after']] @?= [(BufferId n, [output (PortNo 2)])]
        -- The switch does not have the buffer any more.
        snd (refused (1, 8) (Packet (from 1) {packetInBuffer = BufferId n})) @?= []
        -- To the port that it came from, it is dropped.
        let (local, later) = refused full (Packet (from 2) {packetInBuffer = BufferId n})
        [(packetOutBuffer o, packetOutActions o) | o <- local <> [o | PacketOutMessage o <- later]] @?= [(BufferId n, [])]
      -- Without a buffer, it is sent at once.
      let (now, later) = refused full (Packet (from 1) {packetInBuffer = noBuffer})
      (map packetOutActions now, later) @?= ([[output (PortNo 2)]], [])
      -- Flows of others.
      let other = fromMaybe B.empty (encode version 9 (FlowModMessage defaultFlowMod {flowCookie = 7, flowBuffer = BufferId 3, flowMatch = [EthDst b]}))
      snd (sent learningSwitch here (Other (uncurry Error full (B.take bytes other))) s2) @?= []

-- | The address 0 belongs to no host.
nobody :: TestTree
nobody = testCase "the source address 0 is not learned" $ do
  let (s, replies) = appHandle learningSwitch (context 0) (Packet (packetIn (PortNo 1) (MacAddress 0) (MacAddress 0x020000000002))) (appStart learningSwitch)
  (learnedPort (MacAddress 0) s, length [() | Notify _ <- replies], length [() | Send (PacketOutMessage _) <- replies]) @?= (Nothing, 0, 1)

moves :: TestTree
moves = testCase "a host that moves is looked for no more where it was" $ do
  let (s1, _) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
      (s2, m2) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 3) a b)) s1
  -- Flows from its partner were deleted when that was looked for at first.
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

formerTrunk :: TestTree
formerTrunk = testCase "flows to and from a port that is no trunk any more are deleted" $ do
  let changed trunks = sent learningSwitch (context 0) {contextFlooding = FloodTo [PortNo 1, PortNo 2] (map PortNo trunks)} TreeChanged
      (s1, m1) = changed [1, 2] (appStart learningSwitch)
      (s2, _) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) (MacAddress 0x020000000001) (MacAddress 0x020000000002))) s1
      (s3, m3) = changed [2] s2
      (_, m4) = changed [2] s3
      ports ms = [(flowOutPort f, flowMatch f) | FlowModMessage f <- ms, flowCommand f == FlowDelete]
      both n = [(PortNo n, []), (portAny, [InPort (PortNo n)])]
  (ports m1, ports m3, ports m4) @?= (both 1 <> both 2, both 2 <> both 1, both 2)
  learnedPort (MacAddress 0x020000000001) s3 @?= Nothing

-- | The address of a bridge's own interface is at the port LOCAL.
localPort :: TestTree
localPort = testCase "the switch's own network stack is a host" $ do
  let own = MacAddress 0x020000000001
      (s1, _) = sent learningSwitch (context 0) (Packet (packetIn portLocal own broadcastMac)) (appStart learningSwitch)
      (_, m2) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) (MacAddress 0x020000000002) own)) s1
      t = fst (timePassed 1000 (fst (switchJoined 0 (DatapathId 1) V13 [port 1, (port 1) {portNumber = portLocal}, (port 1) {portNumber = portFlood}] (emptyTopology defaultTopologySettings))))
  flows m2 @?= [(FlowAdd, [EthDst own, InPort (PortNo 1), EthSrc (MacAddress 0x020000000002)], [ApplyActions [output portLocal]])]
  flooding (DatapathId 1) t @?= FloodTo [PortNo 1, portLocal] []
  fmap (fmap hostPlace . Map.lookup own . topologyHosts) (hostSeen 2000 own (DatapathId 1, portLocal) Nothing t) @?= Just (Just (DatapathId 1, portLocal))

itsOwnFlows :: TestTree
itsOwnFlows = testCase "it deletes only flows with its cookie, and none lasts for ever" $ do
  let a = MacAddress 0x020000000001
      b = MacAddress 0x020000000002
      (s1, _) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 1) a b)) (appStart learningSwitch)
      (s2, m2) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 2) b a)) s1
      (s3, m3) = sent learningSwitch (context 0) (Packet (packetIn (PortNo 3) a broadcastMac)) s2
      (_, m4) = sent learningSwitch (context 0) (PortChanged PortDeleted (port 3)) s3
      cookie = learningCookie defaultLearningSettings
  [(flowCookie f, flowIdleTimeout f, flowHardTimeout f) | FlowModMessage f <- m2] @?= [(cookie, 60, 1800)]
  [(flowCommand f, flowCookie f, flowCookieMask f) | FlowModMessage f <- m3 ++ m4] @?= replicate 2 (FlowDelete, cookie, maxBound)

ages :: TestTree
ages = testCase "addresses that are not seen are forgotten after two ages" $ do
  let say time x s = fst (sent learningSwitch (context time) (Packet (packetIn (PortNo 1) (MacAddress x) (MacAddress 0xffffffffffff))) s)
      s1 = say 0 0x020000000001 (appStart learningSwitch)
      s2 = say 150000 0x020000000002 s1
      s3 = say 300001 0x020000000002 s2
  learnedPort (MacAddress 0x020000000001) s2 @?= Just (PortNo 1)
  learnedPort (MacAddress 0x020000000001) s3 @?= Nothing
  learnedPort (MacAddress 0x020000000002) s3 @?= Just (PortNo 1)
  -- So they are if no packet came when an age ended, or none for two ages.
  learnedPort (MacAddress 0x020000000001) (say 300001 0x020000000003 (say 299999 0x020000000002 s1)) @?= Nothing
  learnedPort (MacAddress 0x020000000001) (say 450000 0x020000000002 s1) @?= Nothing

bounded :: TestTree
bounded = testCase "a flood of addresses costs bounded memory" $ do
  let settings = defaultLearningSettings {learningMost = 100}
      app = learningSwitchWith settings
      s = foldl' (\t n -> fst (sent app (context 0) (Packet (packetIn (PortNo 1) (MacAddress n) (MacAddress 0xffffffffffff))) t)) (appStart app) [0x020000000000 .. 0x020000000000 + 5000]
  assertBool (show (learnedCount s)) (learnedCount s <= 200)

-- | Many addresses, some of them chosen to have the same place in a table of any size up to 2^11; hosts that move, also
-- to ports with large numbers; ports that go down.
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

-- | The links of a graph of at most eight switches. Each link has ports of its own.
genLinks :: Gen [(Place, Place)]
genLinks = do
  pairs <- choose (0, 16) >>= (`vectorOf` ((,) <$> choose (1, 8) <*> choose (1, 8)))
  pure [(place (a, 10 + i), place (b, 40 + i)) | (i, (a, b)) <- zip [0 ..] pairs, a /= b]

-- | The connected components of the graph of these links.
components :: [(Place, Place)] -> Set.Set (Set.Set DatapathId)
components pairs = Set.fromList (Map.elems (foldl' join (Map.fromList [(d, Set.singleton d) | (a, b) <- pairs, d <- [fst a, fst b]]) pairs))
  where
    join m (a, b) = let both = Set.union (m Map.! fst a) (m Map.! fst b) in Set.foldl' (\m' d -> Map.insert d both m') m both

trees :: TestTree
trees = testProperty "a spanning tree reaches all switches and has no loop" . withMaxSuccess 1000 . forAll genLinks $ \pairs ->
  let tree = spanningTree (const False) pairs
      kept = [(a, b) | (a, b) <- pairs, Set.member a tree, Set.member b tree]
      switches = Set.size (Set.fromList [fst x | (a, b) <- pairs, x <- [a, b]])
   in components pairs === Set.union (components kept) Set.empty
        .&&. length kept === switches - Set.size (components pairs)
        .&&. spanningTree (const False) (reverse [(b, a) | (a, b) <- pairs]) === tree

port :: Int -> Port
port n = Port (PortNo (fromIntegral n)) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0)

joined :: [Int] -> [Int] -> Topology
joined switches ports = foldl' (\t d -> fst (switchJoined 0 (DatapathId (fromIntegral d)) V13 (map port ports) t)) (emptyTopology defaultTopologySettings) switches

flood :: Int -> Topology -> [Int]
flood d t = case flooding (DatapathId (fromIntegral d)) t of
  FloodTo ports _ -> [fromIntegral n | PortNo n <- ports]
  FloodByItself -> [-1]

-- | A cable: the probes of both ends arrive.
link :: Millis -> (Int, Int) -> (Int, Int) -> Topology -> Topology
link time a b = fst . linkSeen time Cable (place b) (place a) . fst . linkSeen time Cable (place a) (place b)

settles :: TestTree
settles = testCase "a port is not flooded to before it has settled" $ do
  let t = joined [1] [1, 2]
  flood 1 t @?= []
  flood 1 (fst (timePassed 999 t)) @?= []
  flood 1 (fst (timePassed 1000 t)) @?= [1, 2]
  -- A port that goes down and comes up again has to settle again.
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
  length (topologyLinks t3) @?= 4
  -- The ports of the old link are edge ports again, and the tree has the other two links.
  map (`flood` t3) [1, 2, 3] @?= [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
  Set.fromList changed @?= Set.fromList (map DatapathId [1, 2, 3])

-- | The ring 1-2-3-5-4-1 without 3-5 is the tree. Without 1-4, switch 2 has the same ports in the tree as before, but
-- reaches 4 and 5 by the other one. If its flows stayed, they would be used for as long as packets come.
detour :: TestTree
detour = testCase "a link that leaves the tree is told to switches whose own ports stay" $ do
  let t = foldr (uncurry (link 10)) (joined [1 .. 5] [1, 2]) [((1, 1), (2, 1)), ((2, 2), (3, 1)), ((3, 2), (5, 2)), ((5, 1), (4, 2)), ((4, 1), (1, 2))]
      (t', changed) = portRemoved (DatapathId 1) (PortNo 2) t
      ofSwitch d u = Set.filter ((== DatapathId d) . fst) (topologyTree u)
  (ofSwitch 2 t, Set.size (topologyTree t')) @?= (ofSwitch 2 t', 8)
  Set.fromList changed @?= Set.fromList (map DatapathId [1 .. 5])

switchLeaves :: TestTree
switchLeaves = testCase "a switch that leaves takes its links and hosts" $ do
  let t1 = link 10 (1, 1) (2, 1) (joined [1, 2] [1, 2])
      t2 = fromMaybe t1 (hostSeen 20 (MacAddress 9) (place (2, 2)) Nothing t1)
      (t3, changed) = switchLeft (DatapathId 2) t2
  Map.size (topologyHosts t2) @?= 1
  (topologyLinks t3, Map.size (topologyHosts t3), changed) @?= ([], 0, [DatapathId 1])

-- | Two links, and a controller that has lost its connection to one of the switches. Another controller may still flood
-- at that switch.
switchOfAnother :: TestTree
switchOfAnother = testCase "nothing is flooded to a switch that has left, until its links would have expired" $ do
  let both time = link time (1, 1) (2, 1) . link time (1, 2) (2, 2)
      t1 = both 900 (fst (timePassed 1000 (joined [1, 2] [1, 2, 3])))
      (t2, _) = switchLeft (DatapathId 1) t1
  flood 2 t1 @?= [1, 3]
  (flood 2 t2, topologyLinks t2) @?= ([3], [])
  flood 2 (fst (timePassed 16800 t2)) @?= [3]
  flood 2 (fst (timePassed 17000 t2)) @?= [1, 2, 3]
  -- The other controller's LLDP frames arrive at our switch, and it reports that it has received ours.
  let t3 = fst (linksReported 2000 [(place (2, p), place (1, p)) | p <- [1, 2]] (both 2000 t2))
  flood 2 (both 2000 t2) @?= [3]
  flood 2 t3 @?= [1, 3]
  flood 2 (fst (timePassed 17000 t3)) @?= [1, 3]
  -- A port that is not known, and a port of the lost switch that goes down.
  flood 2 (link 2000 (1, 1) (2, 9) t2) @?= [3]
  flood 2 (fst (portRemoved (DatapathId 2) (PortNo 2) t2)) @?= [3]
  flood 2 (fst (timePassed 4000 (fst (portUpdated 2500 (DatapathId 2) (port 2) (fst (portRemoved (DatapathId 2) (PortNo 2) t2)))))) @?= [2, 3]

linksOfOthers :: TestTree
linksOfOthers = testCase "links that others report are in the tree while they report them" $ do
  let t1 = fst (timePassed 1000 (joined [1, 2] [1, 2, 3]))
      pairs = [((1, 1), (2, 1)), ((1, 2), (9, 1)), ((2, 2), (9, 2))]
      report time ps = linksReported time (concat [[(place a, place b), (place b, place a)] | (a, b) <- ps])
      (t2, changed) = report 2000 pairs t1
      (t3, unchanged) = report 3000 pairs t2
      (t4, _) = report 4000 (drop 1 pairs) t3
  (map (`flood` t2) [1, 2], changed, unchanged) @?= ([[1, 2, 3], [1, 3]], map DatapathId [1, 2], [])
  topologyOwnLinks t2 @?= []
  map (`flood` fst (timePassed 18500 t3)) [1, 2] @?= [[1, 2, 3], [1, 3]]
  map (`flood` fst (timePassed 19500 t3)) [1, 2] @?= [[1, 2, 3], [1, 2, 3]]
  -- A switch of theirs connects again.
  let (t5, _) = timePassed 5000 (fst (switchJoined 3500 (DatapathId 2) V13 (map port [1, 2, 3]) t3))
  flooding (DatapathId 2) t5 @?= FloodTo (map PortNo [1, 3]) (map PortNo [1, 2])
  -- One that is reported no more leaves the tree at once, but its ports stay ports to switches.
  map (`flood` t4) [1, 2] @?= [[2, 3], [2, 3]]

-- | Two controllers divide the switches. Each sees the LLDP frames that its switches receive, and the other reports the
-- other links. One of them is not connected to the switches of the other.
sameTree :: TestTree
sameTree = testProperty "controllers of one network compute the same tree" . withMaxSuccess 500 . forAll ((,) <$> genLinks <*> vectorOf 8 chooseAny) $ \(pairs, owners) ->
  let every = pairs ++ [(b, a) | (a, b) <- pairs]
      first (DatapathId d, _) = owners !! (fromIntegral d - 1)
      start ds = fst (timePassed 5000 (joined ds [1 .. 60]))
      own keep t = foldl' (\x (a, b) -> fst (linkSeen 6000 Cable a b x)) t (filter (keep . snd) every)
      others keep = fst . linksReported 6000 (filter (keep . snd) every)
      whole = own (const True) (start [1 .. 8])
      one = others (not . first) (own first (start [d | (d, True) <- zip [1 ..] owners]))
      two = others first (own (not . first) (start [1 .. 8]))
   in map topologyTree [one, two] === replicate 2 (topologyTree whole)
        .&&. [flood d two | d <- [1 .. 8]] === [flood d whole | d <- [1 .. 8]]
        .&&. [flood d one | (d, True) <- zip [1 ..] owners] === [flood d whole | (d, True) <- zip [1 ..] owners]

hostsAtTrunks :: TestTree
hostsAtTrunks = testCase "no host is behind another switch" $ do
  let t1 = link 10 (1, 1) (2, 1) (joined [1, 2] [1, 2])
  fmap (Map.size . topologyHosts) (hostSeen 20 (MacAddress 9) (place (1, 1)) Nothing t1) @?= Nothing
  -- A host that was seen there before the link was known is forgotten.
  let before = joined [1, 2] [1, 2]
      early = fromMaybe before (hostSeen 5 (MacAddress 9) (place (1, 1)) Nothing before)
  Map.size (topologyHosts early) @?= 1
  Map.size (topologyHosts (link 10 (1, 1) (2, 1) early)) @?= 0

-- | A host that sends from invented addresses. The hosts counted for its port are forgotten when the port goes down.
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
  -- One of the hosts moves, which makes room for another one.
  let moved = foldl' (seen 1) (seen 2 full 3) [200 .. 210]
  (hostsOn 1 moved, hostsOn 2 moved) @?= (10, 1)
  -- The port is removed, and added again, which makes room for other hosts.
  let down = foldl' (\t p -> fst (portUpdated 6 (DatapathId 1) p t)) (fst (portRemoved (DatapathId 1) (PortNo 1) moved)) (take 1 ports)
  (hostsOn 1 down, hostsOn 2 down) @?= (0, 1)
  hostsOn 1 (foldl' (seen 1) down [300 .. 400]) @?= 10

-- | A switch that reports invented hosts at all of its ports. The number of its hosts follows each change of them.
crowdedSwitch :: TestTree
crowdedSwitch = testCase "the hosts of a switch are bounded, and leave room for those of others" $ do
  let settings = defaultTopologySettings {topologyMostHosts = 30, topologyMostHostsOfPort = 8, topologyMostHostsOfSwitch = 20, topologyHostLife = 8000}
      ports = [Port (PortNo n) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0) | n <- [1 .. 10]]
      join t d = fst (switchJoined 0 (DatapathId d) V13 ports t)
      empty = foldl' join (emptyTopology settings) [1, 2]
      seen time d t mac = fromMaybe t (hostSeen time (MacAddress mac) (place (d, fromIntegral (mac `mod` 10) + 1)) Nothing t)
      hostsOf d t = length (filter ((== DatapathId d) . fst . hostPlace) (Map.elems (topologyHosts t)))
      full = foldl' (seen 10 1) empty [1 .. 100]
      beside = foldl' (seen 10 2) full [201 .. 210]
  (hostsOf 1 full, hostsOf 2 full) @?= (20, 0)
  (hostsOf 1 beside, hostsOf 2 beside) @?= (20, 10)
  -- A host moves to another port of the full switch, and another one to the other switch, which makes room.
  let inside = fromMaybe beside (hostSeen 20 (MacAddress 1) (place (1, 10)) Nothing beside)
      moved = seen 20 2 full 2
  fmap hostPlace (Map.lookup (MacAddress 1) (topologyHosts inside)) @?= Just (place (1, 10))
  (hostsOf 1 moved, hostsOf 2 moved) @?= (19, 1)
  hostsOf 1 (foldl' (seen 30 1) moved [300 .. 310]) @?= 20
  -- A port goes down, the switch leaves, or its hosts are forgotten, which makes room for as many hosts.
  let down = fst (portRemoved (DatapathId 1) (PortNo 2) full)
      rejoined = join (fst (switchLeft (DatapathId 1) full)) 1
      forgotten = fst (timePassed 9000 full)
  hostsOf 1 down @?= 18
  [hostsOf 1 (foldl' (seen 9001 1) t [300 .. 399]) | t <- [down, rejoined, forgotten]] @?= [20, 20, 20]

manyPorts :: TestTree
manyPorts = testCase "the ports of a switch are bounded" $ do
  let start = emptyTopology defaultTopologySettings {topologyMostPorts = 3}
      numbers t = maybe [] (Map.keys . switchPorts) (Map.lookup (DatapathId 1) (topologySwitches t))
      full = fst (switchJoined 0 (DatapathId 1) V13 (map port [1 .. 5]) start)
      flooded = fst (timePassed 2000 full)
      changed = fst (portUpdated 3000 (DatapathId 1) (port 2) {portState = 1} flooded)
      room = fst (portUpdated 3000 (DatapathId 1) (port 5) (fst (portRemoved (DatapathId 1) (PortNo 1) flooded)))
  numbers full @?= map PortNo [1, 2, 3]
  flood 1 flooded @?= [1, 2, 3]
  -- Known ports can still change, and a port that is removed makes room for another one.
  flood 1 changed @?= [1, 3]
  numbers room @?= map PortNo [2, 3, 5]

-- | OFPPC_NO_FLOOD and OFPPS_STP_BLOCK are of 1.0, OFPPC_NO_FWD is of both versions, OFPPS_BLOCKED of 1.3.
unfloodedPorts :: TestTree
unfloodedPorts = testCase "ports that do not forward, or not floods, are left out of floods" $ do
  let with (config, state) p = (port p) {portConfig = config, portState = state}
      kinds = [(16, 0), (32, 0), (0, 0x300), (0, 2)]
      start = fst (timePassed 5000 (fst (switchJoined 0 (DatapathId 1) V10 (port 5 : zipWith with kinds [1 ..]) (emptyTopology defaultTopologySettings))))
      changes = scanl (\t p -> fst (portUpdated 6000 (DatapathId 1) p t)) start
  flood 1 start @?= [5]
  -- OFPPC_NO_RECV and OFPPS_STP_FORWARD do not matter.
  flood 1 (last (changes [with (4, 0x200) 5])) @?= [5]
  -- A port that changes needs no time to settle, since its link was up all along.
  map (flood 1) (changes [port 1, with (16, 0) 5, port 5]) @?= [[5], [1, 5], [1], [1, 5]]

hostsAge :: TestTree
hostsAge = testGroup "hosts that are not seen" [testCase "are forgotten" forgotten, testCase "with an IPv4 address are asked first" asked', testCase "stay without a limit" unlimited]
  where
    settings = defaultTopologySettings {topologyHostLife = 8000, topologyMostHostsOfPort = 2}
    start s = fst (switchJoined 0 (DatapathId 1) V13 [port 1, port 2] (emptyTopology s))
    seen time at mac ip t = fromMaybe t (hostSeen time (MacAddress mac) (place (1, at)) ip t)
    hosts = Map.keys . topologyHosts
    forgotten = do
      let t = seen 5000 2 3 Nothing (seen 10 1 2 Nothing (seen 10 1 1 Nothing (start settings)))
          early = fst (timePassed 7000 t)
          late = fst (timePassed 8010 early)
      hosts early @?= map MacAddress [1, 2, 3]
      hosts late @?= [MacAddress 3]
      assertBool "a new version" (topologyVersion late > topologyVersion early)
      -- Their port has room for others.
      hosts (foldl' (\x mac -> seen 8020 1 mac Nothing x) late [11 .. 15]) @?= map MacAddress [3, 11, 12]
      -- A host that is seen again stays.
      let seenTwice = seen 7500 1 1 Nothing early
      hosts (fst (timePassed 8010 seenTwice)) @?= map MacAddress [1, 3]
      hosts (fst (timePassed 15600 seenTwice)) @?= []
    asked' = do
      let t = seen 10 1 2 Nothing (seen 10 1 1 (Just 0x0a000001) (start settings))
      silentHosts 4000 t @?= []
      silentHosts 4010 t @?= [(MacAddress 1, 0x0a000001, place (1, 1))]
    unlimited = do
      let t = seen 10 1 1 (Just 0x0a000001) (start settings {topologyHostLife = 0})
      hosts (fst (timePassed 100000000 t)) @?= [MacAddress 1]
      silentHosts 100000000 t @?= []

-- | For any order of changes, flooding uses the links of a spanning tree and no others. Each link has ports of its own.
-- Those that are known in one direction only are not used.
trunkOrder :: TestTree
trunkOrder = testProperty "flooding never closes a loop" . withMaxSuccess 500 . forAll gen $ \(pairs, order) ->
  let t0 = fst (timePassed 5000 (joined [1 .. 8] [1 .. 60]))
      t = foldl' (\x (a, b) -> fst (linkSeen 6000 Cable a b x)) t0 [every !! (i `mod` length every) | let every = pairs <> map swap pairs, not (null pairs), i <- order]
      (twoWay, oneWay) = partition ((`elem` topologyLinks t) . swap) (topologyLinks t)
      seen = filter (`elem` pairs) twoWay
      used = [(a, b) | (a, b) <- seen, floods a t, floods b t]
      floods (d, p) x = case flooding d x of FloodTo ports _ -> p `elem` ports; FloodByItself -> True
      switches = Set.size (Set.fromList [fst x | (a, b) <- seen, x <- [a, b]])
   in length used === switches - Set.size (components seen) .&&. components used === components seen .&&. [a | link' <- oneWay, a <- [fst link', snd link'], floods a t] === []
  where
    gen = (,) <$> genLinks <*> (choose (0, 60) >>= (`vectorOf` choose (0, 100)))
