-- | The firewall between two hosts at a bridge of Open vSwitch: a packet to a refused port does not arrive, one to
-- another port does.
module FirewallTest (firewall) where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, unless, void)
import qualified Data.ByteString as B
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

-- | Packets to port 80 are sent until one arrives, and others may still be under way then. So the packets of the last
-- part have ports of their own.
blocksAndAllows :: Ovs -> String -> PortNumber -> Assertion
blocksAndAllows ovs protocol port = do
  dummyBridge ovs protocol "br0" 1 ("tcp:127.0.0.1:" <> show port)
  forM_ [1, 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
  -- Ports are flooded to when they have settled.
  eventually "an allowed packet arrives" $ connect 80 >> threadDelay 100000 >> elem 80 <$> arrived
  -- The switch drops what is refused.
  forM_ [1 .. 3 :: Int] (const (connect 23))
  eventually "the flow has dropped the packets" (any (all' ["n_packets=3", "tp_dst=23", "actions=drop"]) . lines <$> flows)
  -- So does the controller, where the switch has no such flow.
  void (ofctl ovs ["-O", protocol, "del-flows", bridge, "tcp,tp_dst=23"])
  connect 23
  -- What comes behind it is answered after it.
  connect 81
  eventually "the allowed packet arrives" (elem 81 <$> arrived)
  ports <- arrived
  filter (/= 80) ports @?= [81]
  found <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
  found @?= []
  where
    bridge = "unix:" <> ovsDirectory ovs <> "/br0.mgmt"
    flows = ofctl ovs ["-O", protocol, "dump-flows", bridge]
    connect :: Int -> IO ()
    connect to = receivePacket ovs "p1" 1 2 "6" ("tcp(src=1000,dst=" <> show to <> "),tcp_flags(syn)")
    -- The destination ports of what the second port has sent. They follow 14 bytes of Ethernet, 20 of IPv4, and the
    -- source port. The file may end within a frame.
    arrived = map portOf . filter ((>= 38) . B.length) <$> sentFrames ovs "p2"
    portOf frame = fromIntegral (B.index frame 36) * 256 + fromIntegral (B.index frame 37) :: Int
    all' parts l = all (`isInfixOf` l) parts

-- | Fail unless the condition holds within a minute.
eventually :: String -> IO Bool -> Assertion
eventually what condition = go (1200 :: Int)
  where
    go 0 = assertFailure ("not within a minute: " <> what)
    go n = condition >>= \ok -> unless ok (threadDelay 50000 >> go (n - 1))
