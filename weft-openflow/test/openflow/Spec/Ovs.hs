-- |
-- Open vSwitch, an independent implementation of the protocol, as the switch. Its devices are dummies.
module Spec.Ovs (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM, forM_, void, when)
import qualified Data.ByteString as B
import Data.List (isInfixOf, nub)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Peer
import Test.Tasty hiding (after)
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Socket
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (testCase)

tests :: TestTree
tests = testGroup "Open vSwitch" (flowsDeleted : [testGroup (show version) (map ($ version) [switching, refusing, restarting, relearning, loop, forgedLldp, faultsBeside]) | version <- [V10, V13]])

tcp :: SockAddr -> String
tcp address = "tcp:" <> show address

-- | Neither side has sent an ERROR: the daemon logs each one.
noErrors :: Ovs -> Assertion
noErrors ovs = do
  found <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
  assertEqual "errors in the log" [] (take 3 found)

ready :: Controller -> Int -> Int -> Assertion
ready c switches ports = eventually "all ports are known and have settled" $ do
  t <- controllerNetwork c
  let known = Map.elems (topologySwitches t)
  pure (length known == switches && all ((>= ports) . length . filter isPhysical . Map.keys . switchPorts) known && all (floods t) (Map.keys (topologySwitches t)))
  where
    floods t d = case flooding d t of
      FloodTo flood trunks -> length (nub (filter isPhysical (flood <> trunks))) >= ports
      FloodByItself -> True

-- | Flooding, learning, the exact flow, counters, and a port that is removed.
switching :: Version -> TestTree
switching version = testCase "floods, learns, installs the exact flow" $ do
  needOvs
  withOvs Dummy $ \ovs -> withTestController defaultSettings {settingsPortStats = Nothing} $ \c address -> do
    dummyBridge ovs (protocolName version) "br0" 1 (tcp address)
    forM_ [1 .. 3] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
    ready c 1 3
    receive ovs "p1" 1 2
    arrives ovs "p2" 1
    arrives ovs "p3" 1
    receive ovs "p2" 2 1
    arrives ovs "p1" 1
    threadDelay 200000
    not3 <- sentFrames ovs "p3"
    length not3 @?= 1
    eventually "the exact flow" (any exact . lines <$> flows ovs)
    -- The controller knows the port of one host, and an IPv4 address of the other.
    hosts <- topologyHosts <$> controllerNetwork c
    fmap (snd . hostPlace) (Map.lookup (MacAddress 0x020000000001) hosts) @?= Just (PortNo 1)
    fmap (isJust . hostIpv4) (Map.lookup (MacAddress 0x020000000002) hosts) @?= Just True
    stats <- askSwitch c (DatapathId 1) (PortStatsRequest portAny)
    assertBool (show stats) (either (const False) (\parts -> length (concat [ps | PortStatsReply ps <- parts]) >= 3) stats)
    described <- askSwitch c (DatapathId 1) DescRequest
    assertBool (show described) (either (const False) (const True) described)
    flowStats <- askSwitch c (DatapathId 1) (FlowStatsRequest everyFlow)
    assertBool (show flowStats) (either (const False) (\parts -> (not . all null) [fs | FlowStatsReply fs <- parts]) flowStats)
    -- When a port is removed, the flows to it are deleted.
    void (vsctl ovs ["del-port", "br0", "p1"])
    eventually "the flows to the port are gone" (not . any exact . lines <$> flows ovs)
    noErrors ovs
  where
    flows ovs = ofctl ovs ["-O", protocolName version, "dump-flows", "unix:" <> ovsDirectory ovs <> "/br0.mgmt"]
    exact l = all (`isInfixOf` l) ["priority=100,in_port=", "2,dl_src=02:00:00:00:00:02,dl_dst=02:00:00:00:00:01 actions=output:", "idle_timeout=60"]

-- | The table-miss flow, too, by which the switch reports packets. Two times, since the flow that is installed again
-- may also be deleted.
flowsDeleted :: TestTree
flowsDeleted = testCase "a switch of 1.3 whose flows are all deleted by another program still reports packets" $ do
  needOvs
  withOvs Dummy $ \ovs -> withTestController defaultSettings {settingsPortStats = Nothing} $ \c address -> do
    dummyBridge ovs "OpenFlow13" "br0" 1 (tcp address)
    forM_ [1 .. 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
    ready c 1 2
    let bridge = "unix:" <> ovsDirectory ovs <> "/br0.mgmt"
        tableMiss = eventually "the table-miss flow" (any ("priority=0 actions=CONTROLLER:65535" `isInfixOf`) . lines <$> ofctl ovs ["-O", "OpenFlow13", "dump-flows", bridge])
    tableMiss
    forM_ [[], ["--strict"]] $ \strict -> do
      void (ofctl ovs (["-O", "OpenFlow13"] <> strict <> ["del-flows", bridge] <> ["priority=0" | not (null strict)]))
      tableMiss
    receive ovs "p1" 1 2
    arrives ovs "p2" 1
    noErrors ovs

-- | No packet can be sent to the port ANY (NONE in 1.0).
refusing :: Version -> TestTree
refusing version = testCase "says which flows it refuses" $ do
  needOvs
  withOvs Dummy $ \ovs -> withTestController defaultSettings {settingsPortStats = Nothing} $ \c address -> do
    dummyBridge ovs (protocolName version) "br0" 1 (tcp address)
    eventually "the role is known" (any infoActive <$> connectedSwitches c)
    let add port = sendConfirmed c (DatapathId 1) [FlowModMessage defaultFlowMod {flowPriority = 7, flowInstructions = [ApplyActions [output port]]}]
    add portNormal >>= (@?= Right ())
    refused <- add portAny
    -- OFPET_BAD_ACTION, OFPBAC_BAD_OUT_PORT.
    refused @?= Left (RepliedError 2 4)

arrives :: Ovs -> String -> Int -> Assertion
arrives ovs port n = eventually ("frames at " <> port) ((>= n) . length <$> sentFrames ovs port)

-- | The controller ends and another one starts at its address. Flows stay, and packets are forwarded as before.
restarting :: Version -> TestTree
restarting version = testCase "a controller that ends and is started again" $ do
  needOvs
  withOvs Dummy $ \ovs -> do
    port <- withTestController quick $ \c address -> do
      dummyBridge ovs (protocolName version) "br0" 1 (tcp address)
      forM_ [1 .. 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
      ready c 1 2
      receive ovs "p1" 1 2
      arrives ovs "p2" 1
      receive ovs "p2" 2 1
      arrives ovs "p1" 1
      case address of
        SockAddrInet p _ -> pure p
        _ -> assertFailure "no port"
    -- Without a controller the flow forwards.
    receive ovs "p2" 2 1
    arrives ovs "p1" 2
    withController quick defaultServerSettings {serverHost = Just "127.0.0.1", serverPort = show port} (perSwitch learningSwitch) $ \c _ -> do
      ready c 1 2
      receive ovs "p1" 1 3
      arrives ovs "p2" 2
    noErrors ovs
  where
    quick = defaultSettings {settingsPortStats = Nothing}

-- | Two hosts that talk to each other, at two switches. A controller that ends deletes no flows. The next one forwards
-- by flows again, in both directions.
relearning :: Version -> TestTree
relearning version = testCase "a network keeps its flows when the controller ends, and has flows again with the next one" $ do
  needOvs
  withOvs Dummy $ \ovs -> do
    let talk = receive ovs "h1" 1 2 >> threadDelay 100000 >> receive ovs "h2" 2 1 >> threadDelay 100000
        flows n = filter ("priority=100" `isInfixOf`) . lines <$> ofctl ovs ["-O", protocolName version, "dump-flows", "unix:" <> ovsDirectory ovs <> "/br" <> show n <> ".mgmt"]
        from a = any (("dl_src=02:00:00:00:00:0" <> show (a :: Int)) `isInfixOf`)
        bothWays = eventually "flows in both directions at both switches" $ do
          talk
          and <$> mapM (fmap (\ls -> from 1 ls && from 2 ls) . flows) [1, 2 :: Int]
        here c = ready c 2 2 >> eventually "the link is known" ((== 2) . length . topologyLinks <$> controllerNetwork c)
    (port, before) <- withTestController quick $ \c address -> do
      forM_ [1, 2] $ \n -> dummyBridge ovs (protocolName version) ("br" <> show n) n (tcp address)
      patch ovs 1 2
      forM_ [1, 2 :: Int] $ \n -> dummyPort ovs ("br" <> show n) ("h" <> show n) 10
      here c
      bothWays
      found <- mapM (fmap length . flows) [1, 2 :: Int]
      case address of
        SockAddrInet p _ -> pure (p, found)
        _ -> assertFailure "no port"
    threadDelay 500000
    mapM (fmap length . flows) [1, 2 :: Int] >>= (@?= before)
    withController quick defaultServerSettings {serverHost = Just "127.0.0.1", serverPort = show port} (perSwitch learningSwitch) $ \c _ -> do
      here c
      bothWays
    noErrors ovs
  where
    quick = defaultSettings {settingsPortStats = Nothing}

-- | Three switches in a ring: a broadcast reaches each host once, also after a link was cut.
loop :: Version -> TestTree
loop version = testCase "a loop in the topology" $ do
  needOvs
  withOvs Dummy $ \ovs -> withTestController defaultSettings {settingsPortStats = Nothing, settingsDiscovery = quickly} $ \c address -> do
    forM_ [1 .. 3] $ \n -> dummyBridge ovs (protocolName version) ("br" <> show n) n (tcp address)
    forM_ [(1, 2), (2, 3), (3, 1)] $ uncurry (patch ovs)
    forM_ [1 .. 3 :: Int] $ \n -> dummyPort ovs ("br" <> show n) ("h" <> show n) 10
    eventually "all six directions of the links are known" ((== 6) . length . topologyLinks <$> controllerNetwork c)
    ready c 3 3
    receive ovs "h1" 1 255
    arrives ovs "h2" 1
    arrives ovs "h3" 1
    threadDelay 300000
    counts <- forM ["h1", "h2", "h3"] (fmap length . sentFrames ovs)
    counts @?= [0, 1, 1]
    -- Cut a link, so that the ring becomes a line.
    void (vsctl ovs ["del-port", "br1", "t1-2"])
    void (vsctl ovs ["del-port", "br2", "t2-1"])
    eventually "the link is gone" ((== 4) . length . topologyLinks <$> controllerNetwork c)
    threadDelay 200000
    receive ovs "h2" 2 255
    arrives ovs "h1" 1
    arrives ovs "h3" 2
    threadDelay 300000
    counts' <- forM ["h1", "h2", "h3"] (fmap length . sentFrames ovs)
    counts' @?= [1, 1, 2]
    noErrors ovs
  where
    quickly = settingsDiscovery defaultSettings

-- | Join two bridges by a pair of patch ports.
patch :: Ovs -> Int -> Int -> IO ()
patch ovs a b = end a b >> end b a
  where
    end x y =
      let here = "t" <> show x <> "-" <> show y
          there = "t" <> show y <> "-" <> show x
       in void (vsctl ovs ["--", "add-port", "br" <> show x, here, "--", "set", "interface", here, "type=patch", "options:peer=" <> there, "ofport_request=" <> show y])

-- | Two switches that are not connected, each with a host. The first host sends LLDP frames that name a port of the
-- second switch: without a tag, with a tag of another key, and with the tag of a frame that it has received.
forgedLldp :: Version -> TestTree
forgedLldp version = testCase "LLDP frames that a host makes up are no links" $ do
  needOvs
  withOvs Dummy $ \ovs -> withTestController defaultSettings {settingsPortStats = Nothing} $ \c address -> do
    forM_ [1, 2] $ \n -> do
      dummyBridge ovs (protocolName version) ("br" <> show n) n (tcp address)
      dummyPort ovs ("br" <> show n) ("h" <> show n) 1
    ready c 2 1
    eventually "the host receives a frame" (not . null <$> whole ovs)
    genuine <- take 1 <$> whole ovs
    key <- newLldpKey
    let other = lldpFrame key (DatapathId 2) (PortNo 1) (MacAddress 5)
        untagged = B.take 49 other <> B.replicate 11 0
        stolen = [B.take (B.length other - 10) other <> B.drop (B.length s - 10) s | s <- genuine]
    forM_ ([other, untagged] ++ stolen) (receiveFrame ovs "h1")
    eventually "they are counted" ((== 3) . totalForged <$> controllerCounters c)
    links <- topologyLinks <$> controllerNetwork c
    links @?= []
    -- A genuine frame that is sent back through the port that received it is no link either.
    forM_ genuine (receiveFrame ovs "h1")
    receive ovs "h1" 1 255
    eventually "the host is known" ((== 1) . Map.size . topologyHosts <$> controllerNetwork c)
    links' <- topologyLinks <$> controllerNetwork c
    links' @?= []
    -- A genuine frame that is relayed to the host at the other switch is a link, as a cable between the hosts would be.
    forM_ genuine (receiveFrame ovs "h2")
    eventually "a relay is a link" ((== [((DatapathId 1, PortNo 1), (DatapathId 2, PortNo 1))]) . topologyLinks <$> controllerNetwork c)
    noErrors ovs
  where
    -- The file may end within a frame.
    whole ovs = filter ((== 65) . B.length) <$> lldpFrames ovs "h1"

-- | Faulty connections do not affect a switch that is connected to the same controller.
faultsBeside :: Version -> TestTree
faultsBeside version = testCase "broken connections leave it untouched" $ do
  needOvs
  withOvs Dummy $ \ovs -> withTestController defaultSettings {settingsPortStats = Nothing} $ \c address -> do
    dummyBridge ovs (protocolName version) "br0" 1 (tcp address)
    forM_ [1 .. 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
    ready c 1 2
    before <- connectedSwitches c
    forM_ [0 .. 49 :: Int] $ \i -> withPeer address $ \p -> do
      when (odd i) (sendMessageOf version 1 (Hello []) p)
      sendMessageOf version 1 (EchoRequest mempty) p
      sendMessageOf version 1 (FeaturesReply (Features (DatapathId 77) 0 0 0 0 0 [])) p
    receive ovs "p1" 1 2
    arrives ovs "p2" 1
    now <- connectedSwitches c
    fmap infoAddress (Map.lookup (DatapathId 1) now) @?= fmap infoAddress (Map.lookup (DatapathId 1) before)
    noErrors ovs
