-- |
-- The firewall between two hosts at a bridge of Open vSwitch: a packet to a refused port does not arrive, one to another
-- port does.
module FirewallTest (firewall) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, unless, void)
import Data.List (isInfixOf)
import Network.Socket (PortNumber)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (testCase)

-- | Given how to run the program with these arguments.
firewall :: ([String] -> (PortNumber -> Assertion) -> Assertion) -> TestTree
firewall running = testGroup "firewall" [testCase protocol (between protocol) | protocol <- ["OpenFlow10", "OpenFlow13"]]
  where
    between protocol = needOvs >> withOvs Dummy (\ovs -> running ["0", "23"] (blocksAndAllows ovs protocol))

blocksAndAllows :: Ovs -> String -> PortNumber -> Assertion
blocksAndAllows ovs protocol port = do
  dummyBridge ovs protocol "br0" 1 ("tcp:127.0.0.1:" <> show port)
  forM_ [1, 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
  -- Ports are flooded to when they have settled.
  eventually "an allowed packet arrives" $ connect 80 >> threadDelay 100000 >> arrived (>= 1)
  before <- length <$> sentFrames ovs "p2"
  -- The switch drops what is refused.
  forM_ [1 .. 3 :: Int] (const (connect 23))
  eventually "the flow has dropped the packets" (any (all' ["n_packets=3", "tp_dst=23", "actions=drop"]) . lines <$> flows)
  -- So does the controller, where the switch has no such flow.
  void (ofctl ovs ["-O", protocol, "del-flows", bridge, "tcp,tp_dst=23"])
  connect 23
  -- What comes behind it is answered after it.
  connect 80
  eventually "the allowed packet arrives" (arrived (> before))
  arrivals <- length <$> sentFrames ovs "p2"
  arrivals @?= before + 1
  found <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
  found @?= []
  where
    bridge = "unix:" <> ovsDirectory ovs <> "/br0.mgmt"
    flows = ofctl ovs ["-O", protocol, "dump-flows", bridge]
    connect :: Int -> IO ()
    connect to = receivePacket ovs "p1" 1 2 "6" ("tcp(src=1000,dst=" <> show to <> "),tcp_flags(syn)")
    arrived p = p . length <$> sentFrames ovs "p2"
    all' parts l = all (`isInfixOf` l) parts

-- | It holds within ten seconds.
eventually :: String -> IO Bool -> Assertion
eventually what condition = go (200 :: Int)
  where
    go 0 = assertFailure ("not within ten seconds: " <> what)
    go n = condition >>= \ok -> unless ok (threadDelay 50000 >> go (n - 1))
