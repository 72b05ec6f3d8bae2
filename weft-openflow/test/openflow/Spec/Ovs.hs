-- |
-- Open vSwitch as the switch, with dummy devices: what it does is what the protocol's other side thinks of us.
module Spec.Ovs (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM, forM_, void, when)
import Data.List (isInfixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Peer
import Test.Tasty hiding (after)
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Socket
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (testCase)

tests :: TestTree
tests = testGroup "Open vSwitch" [testGroup (show version) (map ($ version) [switching, restarting, loop, faultsBeside]) | version <- [V10, V13]]

tcp :: SockAddr -> String
tcp address = "tcp:" <> show address

-- | No ERROR was sent to us or by us, as the daemon logs each.
noErrors :: Ovs -> Assertion
noErrors ovs = do
  found <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
  assertEqual "errors in the log" [] (take 3 found)

ready :: Controller -> Int -> Int -> Assertion
ready c switches ports = eventually "all ports are known and have settled" $ do
  t <- controllerNetwork c
  let known = Map.elems (topologySwitches t)
  pure (length known == switches && all ((>= ports) . Map.size . switchPorts) known && all (floods t) (Map.keys (topologySwitches t)))
  where
    floods t d = case flooding d t of
      FloodTo flood trunks -> length flood + length trunks >= ports
      FloodByItself -> True

-- | Flood, learn, an exact flow, counters, a port that goes.
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
    -- The host is known where it is.
    hosts <- topologyHosts <$> controllerNetwork c
    fmap (snd . hostPlace) (Map.lookup (MacAddress 0x020000000001) hosts) @?= Just (PortNo 1)
    fmap (isJust . hostIpv4) (Map.lookup (MacAddress 0x020000000002) hosts) @?= Just True
    stats <- askSwitch c (DatapathId 1) (PortStatsRequest portAny)
    assertBool (show stats) (maybe False (\parts -> length (concat [ps | PortStatsReply ps <- parts]) >= 3) stats)
    described <- askSwitch c (DatapathId 1) DescRequest
    assertBool (show described) (isJust described)
    flowStats <- askSwitch c (DatapathId 1) (FlowStatsRequest everyFlow)
    assertBool (show flowStats) (maybe False (\parts -> (not . all null) [fs | FlowStatsReply fs <- parts]) flowStats)
    -- A port that goes takes its flows.
    void (vsctl ovs ["del-port", "br0", "p1"])
    eventually "the flows to the port are gone" (not . any exact . lines <$> flows ovs)
    noErrors ovs
  where
    flows ovs = ofctl ovs ["-O", protocolName version, "dump-flows", "unix:" <> ovsDirectory ovs <> "/br0.mgmt"]
    exact l = all (`isInfixOf` l) ["priority=100,in_port=", "2,dl_src=02:00:00:00:00:02,dl_dst=02:00:00:00:00:01 actions=output:", "idle_timeout=60"]

arrives :: Ovs -> String -> Int -> Assertion
arrives ovs port n = eventually ("frames at " <> port) ((>= n) . length <$> sentFrames ovs port)

-- | The controller dies and another one starts at its address: flows stay, and all goes on.
restarting :: Version -> TestTree
restarting version = testCase "a controller that is killed and started again" $ do
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

-- | Three switches in a ring: a broadcast reaches each host once, and a link that is cut is gone round.
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
    -- Cut a link: the ring is a line.
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
    patch ovs a b = do
      end ovs a b
      end ovs b a
    end ovs a b =
      void . vsctl ovs $
        ["--", "add-port", "br" <> show a, here, "--", "set", "interface", here, "type=patch", "options:peer=" <> there, "ofport_request=" <> show b]
      where
        here = "t" <> show (a :: Int) <> "-" <> show (b :: Int)
        there = "t" <> show b <> "-" <> show a

-- | Broken connections beside a real switch.
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
