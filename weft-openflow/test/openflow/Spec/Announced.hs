{-# LANGUAGE LambdaCase #-}

-- |
-- The ports that a switch has announced: what a PORT_STATUS says holds against a description that was made before it,
-- and hosts are at announced ports only.
module Spec.Announced (tests) where

import Control.Monad (forM_, void)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.ByteString.Short (toShort)
import qualified Data.Map.Strict as Map
import Peer
import Spec.Peers (encoded, plain)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire

tests :: TestTree
tests =
  testGroup
    "announced ports"
    [ testGroup "a PORT_STATUS between the parts of a description" [betweenParts what statuses expected | (what, statuses, expected) <- changesBetween],
      testGroup "a port that was never announced" [stranger version discovery | version <- [V10, V13], discovery <- [False, True]],
      announcedLater
    ]

port :: Int -> Port
port n = Port (PortNo (fromIntegral n)) (MacAddress (fromIntegral n)) (toShort (BC.pack "p")) 0 0 (0, 0, 0, 0) (0, 0)

-- | Without link.
down :: Port -> Port
down p = p {portState = 1}

-- | What the switch reports of ports, between a part with port 1 and one with 2 and 3; and all ports afterwards, with
-- whether they are down.
changesBetween :: [(String, [(PortReason, Port)], [(PortNo, Bool)])]
changesBetween =
  [ ("nothing", [], up [1, 2, 3]),
    ("a port of the first part is deleted", [(PortDeleted, port 1)], up [2, 3]),
    ("a port of the last part is deleted", [(PortDeleted, port 2)], up [1, 3]),
    ("it is deleted and added again", [(PortDeleted, port 2), (PortAdded, port 2)], up [1, 2, 3]),
    ("it is deleted, added and deleted", [(PortDeleted, port 2), (PortAdded, port 2), (PortDeleted, port 2)], up [1, 3]),
    ("it goes down", [(PortModified, down (port 2))], [(PortNo 1, False), (PortNo 2, True), (PortNo 3, False)])
  ]
  where
    up ns = [(PortNo n, False) | n <- ns]

betweenParts :: String -> [(PortReason, Port)] -> [(PortNo, Bool)] -> TestTree
betweenParts what statuses expected = testCase what . withTestController plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  (h, ()) <- expect "the request for the ports" (\case StatsRequestMessage False PortDescRequest -> Just (); _ -> Nothing) p
  let part more ports = sendMessageOf V13 (headerXid h) (StatsReplyMessage more (PortDescReply ports)) p
  part True [port 1]
  forM_ statuses $ \(reason, changed) -> sendMessageOf V13 0 (PortStatus reason changed) p
  part False [port 2, port 3]
  behind p
  known <- maybe Map.empty switchPorts . Map.lookup (DatapathId 1) . topologySwitches <$> controllerNetwork c
  [(portNumber k, portIsDown k) | k <- Map.elems known] @?= expected
  -- A later description is newer than these messages.
  part False [port 2]
  behind p
  again <- maybe Map.empty switchPorts . Map.lookup (DatapathId 1) . topologySwitches <$> controllerNetwork c
  fmap portIsDown (Map.lookup (PortNo 2) again) @?= Just False

-- | Returns when the controller has handled all earlier messages.
behind :: Peer -> IO ()
behind p = do
  sendMessageOf V13 99 (EchoRequest (BC.pack "behind them")) p
  void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)

-- | A packet between two hosts, which are given by number.
packetOf :: Int -> Int -> Int -> Message
packetOf from source destination = PacketInMessage (PacketIn (BufferId 5) 60 (PortNo (fromIntegral from)) 0 0 0 [] frame)
  where
    frame = B.pack ([2, 0, 0, 0, 0, fromIntegral destination, 2, 0, 0, 0, 0, fromIntegral source, 8, 0] ++ replicate 46 0)

-- | The ports that the controller sends packets and flows to that have this destination.
sentTo :: Message -> Maybe [Action]
sentTo m = case m of
  PacketOutMessage o -> Just (packetOutActions o)
  FlowModMessage f | flowCommand f == FlowAdd, flowPriority f > 0 -> Just (concat [as | ApplyActions as <- flowInstructions f])
  _ -> Nothing

stranger :: Version -> Bool -> TestTree
stranger version discovery = testCase (show (version, discovery) <> ": its hosts are not learned") . withTestController settings $ \c address -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  announcePorts version p
  sendMessageOf version 1 (packetOf 9 0x19 0x11) p
  sendMessageOf version 2 (packetOf 1 0x11 0x19) p
  let answer n = expect "an answer" sentTo p >>= \(h, actions) -> if headerXid h == n then pure actions else answer n
  toStranger <- answer 2
  assertBool (show toStranger) (output (PortNo 9) `notElem` toStranger)
  hosts <- topologyHosts <$> controllerNetwork c
  fmap hostPlace (Map.lookup (MacAddress 0x020000000019) hosts) @?= Nothing
  fmap hostPlace (Map.lookup (MacAddress 0x020000000011) hosts) @?= Just (DatapathId 1, PortNo 1)
  where
    settings
      | discovery = plain {settingsTopology = Just defaultTopologySettings {topologySettle = 0}, settingsDiscovery = seconds 3600}
      | otherwise = plain

-- | A packet may follow the message that announces its port at once.
announcedLater :: TestTree
announcedLater = testCase "a port is announced in the same segment as a packet from it" . withTestController plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  announcePorts V13 p
  sendBytes p (encoded V13 1 (PortStatus PortAdded (port 9)) <> encoded V13 2 (packetOf 9 0x19 0x11))
  behind p
  hosts <- topologyHosts <$> controllerNetwork c
  fmap hostPlace (Map.lookup (MacAddress 0x020000000019) hosts) @?= Just (DatapathId 1, PortNo 9)
