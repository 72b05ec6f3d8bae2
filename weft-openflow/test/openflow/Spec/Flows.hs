{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Flows as JSON: what the REST interface shows of a switch's flows, and whether it accepts the matches that it shows.
module Spec.Flows (tests) where

import Control.Concurrent.Async (wait, withAsync)
import Control.Monad (forM, forM_)
import Data.Aeson hiding (withArray)
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Bits (complement, shiftL, (.&.))
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.List (isInfixOf, sort)
import Data.Maybe (fromMaybe)
import Data.String (fromString)
import Data.Word (Word32)
import Peer
import Spec.Answers (Asked, withNorthbound, withSwitch)
import Test.QuickCheck hiding (output, (.&.))
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Test.Tasty.QuickCheck (testProperty)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (testCase)

tests :: TestTree
tests = testGroup "flows as JSON" [roundTrip V10, roundTrip V13, ovsFlows V10, ovsFlows V13, ipv4Masks, inPorts, otherNames, instructions]

-- | A switch of that version that has a master.
withMaster :: Version -> (Peer -> Asked -> IO a) -> IO a
withMaster version act = withSwitch defaultSettings {settingsPortStats = Nothing} version $ \c p asked -> do
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  act p asked

-- | What a request for the flows shows if the switch has these.
shown :: Version -> Peer -> Asked -> [FlowStats] -> IO [Object]
shown version p asked flows = withAsync (asked "GET" "/v1/switches/1/flows" "") $ \result -> do
  (h, ()) <- expect "the request" (\case StatsRequestMessage False (FlowStatsRequest _) -> Just (); _ -> Nothing) p
  sendMessageOf version (headerXid h) (StatsReplyMessage False (FlowStatsReply flows)) p
  (status, body) <- wait result
  assertEqual (show body) 200 status
  maybe (assertFailure (show body)) pure (decodeStrict body)

flowOf :: Match -> [Instruction] -> FlowStats
flowOf = FlowStats 0 1 2 7 0 0 0 3 4 5

-- | Add a flow with this match. Returns the status, the answer, and the matches that the switch receives.
add :: Peer -> Asked -> Value -> IO (Int, String, [Match])
add p asked match = do
  ((status, said), received) <- confirming p (asked "POST" "/v1/switches/1/flows" (encode' (object ["priority" .= (7 :: Int), "match" .= match])))
  pure (status, BC.unpack said, [flowMatch f | FlowModMessage f <- received, flowPriority f == 7])
  where
    encode' = Data.Aeson.encode

-- | The same fields in the same order, which is that of their prerequisites. A field whose mask is 0 matches all
-- packets, and a switch of 1.0 ignores fields without their prerequisites: these are not shown.
roundTrip :: Version -> TestTree
roundTrip version = testProperty (show version <> ": each match that is shown can be added") . withMaxSuccess 15 . forAll (vectorOf 10 (genMatch version)) $ \matches ->
  ioProperty . withMaster version $ \p asked -> do
    objects <- shown version p asked (map (`flowOf` []) matches)
    added <- forM objects (add p asked . fromMaybe Null . KeyMap.lookup "match")
    pure ([(status, sent) | (status, _, sent) <- added] === [(201, [filter (selective match) match]) | match <- matches])
  where
    selective match f = case f of
      Ipv4Src _ 0 -> False
      Ipv4Dst _ 0 -> False
      OtherField 0x8000 n s | odd n -> B.any (/= 0) (B.drop (B.length s `div` 2) s)
      VlanPriority _ -> VlanId Untagged `notElem` match
      IpDscp _ -> EthType 0x0806 `notElem` match
      _ -> True

-- | A match in the order of the OXM fields' numbers, with their prerequisites (1.3.5, 7.2.3.8).
genMatch :: Version -> Gen Match
genMatch version = concat <$> sequence [port, macs, network, other]
  where
    is13 = version == V13
    only13 g = if is13 then g else pure []
    optional g = oneof [pure [], pure <$> g]
    field n size = OtherField 0x8000 (2 * n) . B.pack <$> vector size
    masked n size = OtherField 0x8000 (2 * n + 1) . B.pack <$> vector (2 * size)
    -- The highest numbers of ports that are not reserved.
    port = optional (InPort <$> oneof [PortNo <$> choose (1, if is13 then 0xffffff00 else 0xff00), elements [portLocal, portController]])
    mac = MacAddress <$> choose (0, 0xffffffffffff)
    macs = concat <$> sequence [only13 (optional (masked 2 8)), address EthDst 3, address EthSrc 4]
    address f n = oneof ([pure [], pure . f <$> mac] <> [pure <$> masked n 6 | is13] <> [pure [OtherField 0x8000 7 (B.replicate 12 0)] | is13, n == 3])
    other = only13 (concat <$> sequence [optional (masked 38 8), optional (OtherField 1 0 . B.pack <$> vector 4)])
    network =
      oneof
        [ vlan,
          (\t v -> EthType t : v) <$> elements [0x88cc, 0x8847] <*> vlan,
          (\v rest -> EthType 0x0800 : v <> rest) <$> vlan <*> ipv4,
          (\v rest -> EthType 0x0806 : v <> rest) <$> vlan <*> arp,
          if is13 then (\v rest -> EthType 0x86dd : v <> rest) <$> vlan <*> ipv6 else pure []
        ]
    vlan =
      oneof
        [ pure [],
          elements ([VlanId Untagged] : [[VlanId Untagged, VlanPriority 0] | not is13]),
          if is13 then pure [] else pure . VlanPriority <$> choose (0, 7),
          (:) <$> (VlanId . Tagged <$> choose (0, 4095)) <*> optional (VlanPriority <$> choose (0, 7)),
          only13 ((OtherField 0x8000 13 (B.pack [0x10, 0, 0x10, 0]) :) <$> optional (VlanPriority <$> choose (0, 7)))
        ]
    common = concat <$> sequence [optional (IpDscp <$> choose (0, 63)), only13 (optional (field 9 1))]
    addresses = (<>) <$> optional (ip Ipv4Src) <*> optional (ip Ipv4Dst)
    ip f = (\mask a -> f (a .&. mask) mask) <$> mask4 <*> chooseAny
    mask4 = oneof ([prefix <$> choose (1, 32)] <> [elements [0, 0x00ffffff, 0xff00ff00] | is13] <> [chooseAny | is13])
    prefix n = complement 0 `shiftL` (32 - n) :: Word32
    transport = oneof [(,) (IpProtocol 6) <$> both TcpSrc TcpDst, (,) (IpProtocol 17) <$> both UdpSrc UdpDst]
    both f g = (<>) <$> optional (f <$> chooseAny) <*> optional (g <$> chooseAny)
    icmp = (,) (IpProtocol 1) <$> ((<>) <$> optional (IcmpType <$> chooseAny) <*> optional (IcmpCode <$> chooseAny))
    ipv4 = do
      first <- common
      upper <- oneof [pure Nothing, Just <$> transport, Just <$> icmp]
      from <- addresses
      pure (first <> maybe [] (pure . fst) upper <> from <> maybe [] snd upper)
    arp
      | is13 = concat <$> sequence [optional (field 21 2), optional (masked 22 4), optional (field 24 6)]
      | otherwise = concat <$> sequence [optional (IpDscp <$> choose (0, 63)), optional (IpProtocol <$> choose (1, 2)), addresses]
    ipv6 = do
      first <- common
      (protocol, ports) <- transport
      rest <- concat <$> sequence [optional (masked 26 16), optional (field 27 16), optional (field 28 4)]
      pure (first <> [protocol] <> ports <> rest)

-- | Flows that another program has installed in Open vSwitch are deleted, and added as they were shown.
ovsFlows :: Version -> TestTree
ovsFlows version = testCase (show version <> ": Open vSwitch takes back the flows that it had") $ do
  needOvs
  withOvs Dummy $ \ovs -> withNorthbound defaultSettings {settingsPortStats = Nothing, settingsTopology = Nothing} $ \c address asked -> do
    dummyBridge ovs (protocolName version) "br0" 1 ("tcp:" <> show address)
    eventually "the role is known" (any infoActive <$> connectedSwitches c)
    let bridge arguments = ofctl ovs (["-O", protocolName version] <> arguments)
        address' = "unix:" <> ovsDirectory ovs <> "/br0.mgmt"
        dump = sort . filter ("priority=7" `isInfixOf`) . lines <$> bridge ["--no-stats", "dump-flows", address']
    forM_ (matches <> own) $ \match -> bridge ["add-flow", address', "priority=7," <> match <> ",actions=output:2"]
    before <- dump
    length before @?= length (matches <> own)
    (status, body) <- asked "GET" "/v1/switches/1/flows" ""
    status @?= 200
    _ <- bridge ["del-flows", address']
    objects <- maybe (assertFailure (show body)) pure (decodeStrict body)
    forM_ (filter ((== Just (Number 7)) . KeyMap.lookup "priority") objects) $ \flow -> do
      (added, said) <- asked "POST" "/v1/switches/1/flows" (Data.Aeson.encode (KeyMap.filterWithKey (\k _ -> k `elem` ["priority", "match", "actions"]) flow))
      assertEqual (show (flow, said)) 201 added
    dump >>= (@?= before)
  where
    matches =
      [ "in_port=LOCAL",
        "in_port=controller,dl_src=02:00:00:00:00:01",
        "dl_vlan=5,dl_vlan_pcp=3,dl_dst=02:00:00:00:00:02",
        "vlan_tci=0x0000,arp,arp_spa=10.0.0.0/8,arp_op=1",
        "tcp,nw_src=10.0.0.1,nw_dst=10.128.0.0/9,tp_dst=80",
        "icmp,icmp_type=8,icmp_code=0",
        "udp,dl_vlan=7,tp_src=53"
      ]
    own = if version == V13 then matches13 else matches10
    -- A 1.0 match cannot say that there is a tag.
    matches10 = ["dl_vlan_pcp=4", "ip,dl_vlan_pcp=0,nw_dst=10.0.0.1"]
    matches13 =
      [ "ip,nw_src=10.0.0.1/255.0.0.255",
        "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
        "vlan_tci=0x1000/0x1000,dl_vlan_pcp=4",
        "icmp6,icmp_type=135,ipv6_dst=fe80::/10,nd_target=fe80::1",
        "arp,dl_vlan=9,arp_sha=02:00:00:00:00:03",
        "ip,nw_ecn=2,nw_tos=32,metadata=0x5/0xff",
        "tcp6,tp_dst=443,reg0=0x5"
      ]

ipv4Masks :: TestTree
ipv4Masks = testCase "an IPv4 mask is shown as a prefix length if it is one, and taken in both forms" . withMaster V13 $ \p asked -> do
  let flow mask = flowOf [EthType 0x800, Ipv4Dst (0x0a010203 .&. mask) mask] []
  objects <- shown V13 p asked (map flow [0xffffffff, 0xffff0000, 0xff0000ff])
  [m | Just (Object o) <- map (KeyMap.lookup "match") objects, Just m <- [KeyMap.lookup "ipv4_dst" o]] @?= ["10.1.2.3", "10.1.0.0/16", "10.0.0.3/255.0.0.255"]
  forM_ [("10.1.2.3/255.255.0.0", Just (Ipv4Dst 0x0a010000 0xffff0000)), ("10.1.2.3/255.0.0.255", Just (Ipv4Dst 0x0a000003 0xff0000ff)), ("10.1.2.3/0.0.0.0", Nothing), ("10.1.2.3/255.0.0", Nothing), ("10.1.2.3/255.0.0.256", Nothing)] $ \(text, expected) -> do
    (status, said, sent) <- add p asked (object ["eth_type" .= (0x800 :: Int), "ipv4_dst" .= (text :: String)])
    assertEqual (text <> ": " <> said) (maybe (400, []) (\field -> (201, [[EthType 0x800, field]])) expected) (status, sent)

-- | OpenFlow 1.3.5, 4.5: of the reserved ports, only CONTROLLER and LOCAL can be ingress ports.
inPorts :: TestTree
inPorts = testCase "in_port takes the reserved ports on which packets can come in, and names them for the others" . forM_ [V10, V13] $ \version -> withMaster version $ \p asked -> do
  forM_ [(portLocal, "local"), (portController, "controller")] $ \(port, name) -> do
    (status, said, sent) <- add p asked (object ["in_port" .= (name :: String)])
    assertEqual said (201, [[InPort port]]) (status, sent)
  forM_ ["in_port", "table", "normal", "flood", "all", "any"] $ \name -> do
    (status, said, sent) <- add p asked (object ["in_port" .= name])
    (status, sent) @?= (400, [])
    assertBool said (all (`isInfixOf` said) ["in_port", "no packet comes in at the port " <> name, "local, controller"])

-- | A field without a name of its own has that of its OXM class and number.
otherNames :: TestTree
otherNames = testCase "a field without a name is oxm_CLASS_FIELD, and one with a name is not" . withMaster V13 $ \p asked -> do
  objects <- shown V13 p asked [flowOf [EthType 0x0806, OtherField 0x8000 42 (B.pack [0, 2])] []]
  map (KeyMap.lookup "match") objects @?= [Just (object ["eth_type" .= (0x0806 :: Int), "oxm_32768_42" .= ("0002" :: String)])]
  forM_
    [ ("oxm_32768_0", "00000001", "in_port"),
      ("oxm_32768_10", "0800", "eth_type"),
      ("oxm_32768_042", "0002", "unknown field"),
      ("oxm_32768_256", "0002", "unknown field"),
      ("oxm_65536_1", "0002", "unknown field"),
      ("oxm_32768_42", "002", "hexadecimal"),
      ("oxm_32768_42", "00g2", "hexadecimal"),
      ("oxm_32768_42", "", "hexadecimal"),
      ("oxm_32768_7", "020000000001000000000000", "the mask has no bit")
    ]
    $ \(name, value, why) -> do
      (status, said, sent) <- add p asked (object ["eth_type" .= (0x0806 :: Int), fromString name .= (value :: String)])
      (status, sent) @?= (400, [])
      assertBool said (why `isInfixOf` said)

instructions :: TestTree
instructions = testCase "all instructions of a flow are shown" . withMaster V13 $ \p asked -> do
  objects <-
    shown V13 p asked . map (flowOf []) $
      [ [],
        [ApplyActions [output (PortNo 2)]],
        [OtherInstruction 6 (B.pack [0, 0, 1, 2]), ApplyActions [PopVlan], ClearActions, WriteActions [output (PortNo 3), Group 4], WriteMetadata 5 0xffffffffffffffff, GotoTable 6],
        [OtherInstruction 0xffff (B.pack [0, 0, 0x23, 0x20])]
      ]
  map (KeyMap.filterWithKey (\k _ -> k `elem` names)) objects
    @?= [ KeyMap.fromList ["actions" .= none],
          KeyMap.fromList ["actions" .= [object ["output" .= two]]],
          KeyMap.fromList
            [ "actions" .= [object ["pop_vlan" .= True]],
              "clear_actions" .= True,
              "write_actions" .= [object ["output" .= (3 :: Int)], object ["group" .= (4 :: Int)]],
              "write_metadata" .= object ["value" .= (5 :: Int), "mask" .= (0xffffffffffffffff :: Integer)],
              "goto_table" .= (6 :: Int),
              "meter" .= (258 :: Int)
            ],
          KeyMap.fromList ["actions" .= none, "other_instructions" .= [object ["type" .= (0xffff :: Int), "data" .= ("00002320" :: String)]]]
        ]
  where
    none = [] :: [Value]
    two = 2 :: Int
    names = ["actions", "clear_actions", "write_actions", "write_metadata", "goto_table", "meter", "other_instructions"]
