{-# LANGUAGE OverloadedStrings #-}

-- |
-- Encodes the network as JSON, and decodes flows from JSON. Names are those of OpenFlow 1.3's fields. Pure.
module Weft.OpenFlow.Northbound.Json
  ( networkJson,
    portStatsJson,
    flowStatsJson,
    flowFromJson,
    problemJson,
  )
where

import Control.Applicative ((<|>))
import Control.Monad (unless, when)
import Data.Aeson
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Aeson.Types (JSONPathElement (Key), Parser, explicitParseFieldMaybe, parseEither)
import Data.Bits (complement, shiftL, shiftR, (.&.), (.|.))
import qualified Data.ByteString as B
import Data.ByteString.Short (fromShort)
import Data.Char (isDigit)
import Data.Foldable (foldl', toList)
import Data.List (intercalate)
import qualified Data.Map.Strict as Map
import Data.Maybe (listToMaybe)
import qualified Data.Set as Set
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Data.Word (Word16, Word32, Word64, Word8)
import Numeric (showHex)
import Text.Read (readMaybe)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types

-- | Everything that the page draws: switches with their ports and rates, links, and at most that many hosts, if there is
-- a limit, with their whole number.
networkJson :: Maybe Int -> Topology -> Map.Map DatapathId SwitchInfo -> Map.Map DatapathId (Map.Map PortNo Rate) -> Value
networkJson mostHosts t infos rates =
  object
    [ "version" .= topologyVersion t,
      "switches" .= [switchJson d i (Map.lookup d (topologySwitches t)) (Map.findWithDefault Map.empty d rates) | (d, i) <- Map.toList infos],
      "links" .= map linkJson (topologyLinks t),
      "host_count" .= Map.size (topologyHosts t),
      "hosts" .= map (uncurry hostJson) (maybe id take mostHosts (Map.toList (topologyHosts t)))
    ]
  where
    linkJson link@(from@(d, p), to@(d', p')) =
      object
        [ "from" .= object ["switch" .= show d, "port" .= portJson p],
          "to" .= object ["switch" .= show d', "port" .= portJson p'],
          "two_way" .= isTwoWay t link,
          "in_tree" .= (isTwoWay t link && Set.member from (topologyTree t) && Set.member to (topologyTree t)),
          "bits_per_s" .= maybe 0 rateSent (Map.lookup d rates >>= Map.lookup p)
        ]

-- | A switch, its ports and their rates.
switchJson :: DatapathId -> SwitchInfo -> Maybe Switch -> Map.Map PortNo Rate -> Value
switchJson d i found rates =
  object
    [ "switch" .= show d,
      "openflow" .= (case infoVersion i of V10 -> "1.0"; V13 -> "1.3" :: Text),
      "address" .= infoAddress i,
      "role" .= (if infoActive i then "active" else "slave" :: Text),
      "tables" .= featuresTables (infoFeatures i),
      "buffers" .= featuresBuffers (infoFeatures i),
      "messages" .= totalReceived (infoTotals i),
      "packets" .= totalPackets (infoTotals i),
      "replies" .= totalReplies (infoTotals i),
      "ports" .= [one p | p <- maybe [] (Map.elems . switchPorts) found]
    ]
  where
    one p =
      object $
        [ "port" .= portJson (portNumber p),
          "name" .= text (fromShort (portName p)),
          "address" .= show (portAddress p),
          "up" .= not (portIsDown p)
        ]
          ++ maybe [] (\r -> ["received_bits_per_s" .= rateReceived r, "sent_bits_per_s" .= rateSent r]) (Map.lookup (portNumber p) rates)

-- | A host and its location.
hostJson :: MacAddress -> Host -> Value
hostJson mac h =
  object
    [ "address" .= show mac,
      "ipv4" .= fmap ipv4Text (hostIpv4 h),
      "switch" .= show (fst (hostPlace h)),
      "port" .= portJson (snd (hostPlace h))
    ]

-- | An error message as the body of a response.
problemJson :: Text -> Value
problemJson why = object ["error" .= why]

portJson :: PortNo -> Value
portJson p@(PortNo n)
  | isPhysical p = toJSON n
  | otherwise = toJSON (show p)

text :: B.ByteString -> Text
text = T.decodeUtf8With T.lenientDecode

ipv4Text :: Word32 -> String
ipv4Text a = intercalate "." [show ((a `shiftR` s) .&. 255) | s <- [24, 16, 8, 0]]

-- Statistics ------------------------------------------------------------------------------

-- | The counters of a port.
portStatsJson :: PortStats -> Value
portStatsJson p = object (("port" .= portJson (portStatsPort p)) : zipWith (.=) names (map counterJson (portStatsCounters p)))
  where
    names =
      [ "received_packets",
        "sent_packets",
        "received_bytes",
        "sent_bytes",
        "received_dropped",
        "sent_dropped",
        "received_errors",
        "sent_errors",
        "frame_errors",
        "overruns",
        "crc_errors",
        "collisions"
      ]

-- | A counter; null if the switch does not have it, which all ones say (1.0.1, 5.3.5; 1.3.5, 5.8).
counterJson :: Word64 -> Value
counterJson n = if n == maxBound then Null else toJSON n

-- | A flow and its counters.
flowStatsJson :: FlowStats -> Value
flowStatsJson f =
  object
    [ "table" .= flowStatsTable f,
      "priority" .= flowStatsPriority f,
      "idle_timeout" .= flowStatsIdleTimeout f,
      "hard_timeout" .= flowStatsHardTimeout f,
      "cookie" .= flowStatsCookie f,
      "seconds" .= flowStatsSeconds f,
      "packets" .= counterJson (flowStatsPackets f),
      "bytes" .= counterJson (flowStatsBytes f),
      "match" .= Object (KeyMap.fromList (concatMap fieldJson (flowStatsMatch f))),
      "actions" .= [actionJson a | ApplyActions as <- flowStatsInstructions f, a <- as]
    ]

fieldJson :: Field -> [(Key.Key, Value)]
fieldJson field = case field of
  InPort p -> [("in_port", portJson p)]
  EthDst m -> ["eth_dst" .= show m]
  EthSrc m -> ["eth_src" .= show m]
  EthType t -> ["eth_type" .= t]
  VlanId Untagged -> ["vlan_vid" .= ("none" :: Text)]
  VlanId (Tagged v) -> ["vlan_vid" .= v]
  VlanPriority n -> ["vlan_pcp" .= n]
  IpDscp n -> ["ip_dscp" .= n]
  IpProtocol n -> ["ip_proto" .= n]
  Ipv4Src a m -> ["ipv4_src" .= masked a m]
  Ipv4Dst a m -> ["ipv4_dst" .= masked a m]
  TcpSrc n -> ["tcp_src" .= n]
  TcpDst n -> ["tcp_dst" .= n]
  UdpSrc n -> ["udp_src" .= n]
  UdpDst n -> ["udp_dst" .= n]
  IcmpType n -> ["icmpv4_type" .= n]
  IcmpCode n -> ["icmpv4_code" .= n]
  OtherField c f s -> [Key.fromString ("oxm_" <> show c <> "_" <> show f) .= concatMap hex (B.unpack s)]
  where
    hex b = (if b < 16 then "0" else "") <> showHex b ""
    masked a m = ipv4Text a <> (if m == exactIp then "" else "/" <> ipv4Text m)

actionJson :: Action -> Value
actionJson action = case action of
  Output p _ -> object ["output" .= portJson p]
  SetField f -> object ["set" .= Object (KeyMap.fromList (fieldJson f))]
  PopVlan -> object ["pop_vlan" .= True]
  PushVlan t -> object ["push_vlan" .= t]
  Group n -> object ["group" .= n]
  SetQueue n -> object ["set_queue" .= n]
  Enqueue p q -> object ["output" .= portJson p, "queue" .= q]
  OtherAction kind _ -> object ["type" .= kind]

-- Flows -----------------------------------------------------------------------------------

-- | Decode a flow to add or delete. 'Left': the error. Unknown names are refused: otherwise a flow whose only field is
-- misspelt would match all packets. For the same reason a field needs its prerequisites: a switch of 1.0 ignores a field
-- without them. A deletion may have no field by which the switch does not select, and no flow is put into a table that
-- the switch does not have.
flowFromJson :: Version -> FlowCommand -> Value -> Either String FlowMod
flowFromJson version command = parseEither . withObject "a flow" $ \o -> do
  known ["priority", "idle_timeout", "hard_timeout", "cookie", "table", "match", "actions"] o
  match <- explicitParseFieldMaybe (withObject "a match" matchOf) o "match" .!= []
  mapM_ fail (missingPrerequisite version match match)
  actions <- explicitParseFieldMaybe (withArray "actions" (fmap toList . mapM actionOf)) o "actions" .!= []
  -- In 1.0, an action on a packet without the field does nothing.
  when (version == V13) (mapM_ (fail . ("set: " <>)) (settingPrerequisite match actions))
  priority <- o .:? "priority" .!= 0x8000
  idle <- o .:? "idle_timeout" .!= 0
  hard <- o .:? "hard_timeout" .!= 0
  cookie <- o .:? "cookie" .!= 0
  table <- o .:? "table" .!= (if command == FlowAdd then 0 else tableAll)
  let strict = command == FlowDelete && KeyMap.member "priority" o
      unselective = ["actions", "idle_timeout", "hard_timeout"] <> (if version == V10 then ["cookie", "table"] else [])
  when (command == FlowAdd && version == V10 && KeyMap.member "table" o) (fail "OpenFlow 1.0 has no tables to choose from")
  when (command == FlowAdd && table == tableAll) (fail "table 255 stands for all tables; a flow is in one")
  when (command == FlowDelete) $
    mapM_ (\name -> fail (Key.toString name <> " does not select flows to delete")) (filter (`KeyMap.member` o) unselective)
  pure
    defaultFlowMod
      { flowCommand = if strict then FlowDeleteStrict else command,
        flowPriority = priority,
        flowIdleTimeout = idle,
        flowHardTimeout = hard,
        flowCookie = cookie,
        flowCookieMask = if command == FlowDelete && KeyMap.member "cookie" o then maxBound else 0,
        flowTable = table,
        flowMatch = match,
        flowInstructions = [ApplyActions actions | not (null actions)]
      }

-- | The object has only these fields, and none of them is null, which would stand for the default.
known :: [Key.Key] -> Object -> Parser ()
known names o = case filter (`notElem` names) (KeyMap.keys o) of
  [] -> mapM_ (\k -> fail (Key.toString k <> " is null; leave it out for the default")) (KeyMap.keys (KeyMap.filter (== Null) o))
  k : _ -> fail ("unknown field " <> Key.toString k <> "; known are " <> intercalate ", " (map Key.toString names))

-- | Decode a match. Its fields are put into the order of their prerequisites.
matchOf :: Object -> Parser Match
matchOf o = do
  known (map fst fields) o
  concat <$> sequence [maybe (pure []) (\v -> pure <$> field v <?> Key name) (KeyMap.lookup name o) | (name, field) <- fields]
  where
    fields :: [(Key.Key, Value -> Parser Field)]
    fields =
      [ ("in_port", fmap InPort . portOf [portLocal]),
        ("eth_dst", fmap EthDst . macOf),
        ("eth_src", fmap EthSrc . macOf),
        ("eth_type", fmap EthType . parseJSON),
        ("vlan_vid", vlan),
        ("vlan_pcp", fmap VlanPriority . parseJSON),
        ("ip_dscp", fmap IpDscp . parseJSON),
        ("ip_proto", fmap IpProtocol . parseJSON),
        ("ipv4_src", fmap (uncurry Ipv4Src) . addressOf),
        ("ipv4_dst", fmap (uncurry Ipv4Dst) . addressOf),
        ("tcp_src", fmap TcpSrc . parseJSON),
        ("tcp_dst", fmap TcpDst . parseJSON),
        ("udp_src", fmap UdpSrc . parseJSON),
        ("udp_dst", fmap UdpDst . parseJSON),
        ("icmpv4_type", fmap IcmpType . parseJSON),
        ("icmpv4_code", fmap IcmpCode . parseJSON)
      ]
    vlan (String "none") = pure (VlanId Untagged)
    vlan v = do
      n <- parseJSON v
      VlanId (Tagged n) <$ unless (n < 4096) (fail "a VLAN ID is at most 4095")

-- | The error message for a field that an action sets in packets that do not have it (1.3.5, 7.2.5). What earlier actions
-- set and add counts.
settingPrerequisite :: Match -> [Action] -> Maybe String
settingPrerequisite match actions = case actions of
  [] -> Nothing
  SetField field : rest -> missingPrerequisite V13 match [field] <|> settingPrerequisite (match <> [field]) rest
  PushVlan _ : rest -> settingPrerequisite (match <> [VlanId (Tagged 0)]) rest
  _ : rest -> settingPrerequisite match rest

-- | The error message for the first of some fields that the switch would ignore (1.0.1, 5.2.3) or refuse (1.3.5,
-- 7.2.3.6) because of what the match does not have.
missingPrerequisite :: Version -> Match -> [Field] -> Maybe String
missingPrerequisite version match fields = listToMaybe [name <> " needs " <> needed | field <- fields, Just (name, needed, False) <- [needs field]]
  where
    needs field = case field of
      VlanPriority _ -> Just ("vlan_pcp", "a number as vlan_vid", not (null [() | VlanId (Tagged _) <- match]))
      IpDscp _ -> Just ("ip_dscp", etherTypes ip, isType ip)
      IpProtocol _ -> Just ("ip_proto", etherTypes (ip <> arp), isType (ip <> arp))
      Ipv4Src _ _ -> Just ("ipv4_src", etherTypes (0x0800 : arp), isType (0x0800 : arp))
      Ipv4Dst _ _ -> Just ("ipv4_dst", etherTypes (0x0800 : arp), isType (0x0800 : arp))
      TcpSrc _ -> protocol "tcp_src" 6 ip
      TcpDst _ -> protocol "tcp_dst" 6 ip
      UdpSrc _ -> protocol "udp_src" 17 ip
      UdpDst _ -> protocol "udp_dst" 17 ip
      IcmpType _ -> protocol "icmpv4_type" 1 [0x0800]
      IcmpCode _ -> protocol "icmpv4_code" 1 [0x0800]
      _ -> Nothing
    protocol name n types = Just (name, etherTypes types <> " and ip_proto " <> show n, isType types && IpProtocol n `elem` match)
    isType types = not (null [() | EthType t <- match, t `elem` types])
    etherTypes types = "eth_type " <> intercalate " or " (map show types)
    -- In 1.0 the IP fields are of IPv4 only, and of ARP.
    ip = if version == V10 then [0x0800] else [0x0800, 0x86dd]
    arp = [0x0806 | version == V10] :: [Word16]

actionOf :: Value -> Parser Action
actionOf = withObject "an action" $ \o -> case KeyMap.toList o of
  [("output", v)] -> output <$> portOf [portInPort, portNormal, portFlood, portAll, portController, portLocal] v
  [("set", Object f)] -> do
    fields <- matchOf f
    case fields of
      [InPort _] -> fail "in_port cannot be set"
      [EthType _] -> fail "eth_type cannot be set"
      [VlanId Untagged] -> fail "vlan_vid is set to a number; pop_vlan removes a tag"
      [Ipv4Src _ mask] | mask /= exactIp -> fail "ipv4_src is set to an address without a prefix length"
      [Ipv4Dst _ mask] | mask /= exactIp -> fail "ipv4_dst is set to an address without a prefix length"
      [one] -> pure (SetField one)
      _ -> fail "set has one field"
  [("pop_vlan", Bool True)] -> pure PopVlan
  [("push_vlan", v)] -> PushVlan <$> (parseJSON v :: Parser Word16)
  [("group", v)] -> Group <$> parseJSON v
  [("set_queue", v)] -> SetQueue <$> parseJSON v
  _ -> fail "an action is one of output, set, pop_vlan, push_vlan, group, set_queue"

portOf :: [PortNo] -> Value -> Parser PortNo
portOf reserved v = case v of
  String s | Just p <- lookup s names -> pure p
  String _ -> fail ("expected the number of a port, or one of " <> intercalate ", " (map (T.unpack . fst) names))
  _ -> do
    n <- parseJSON v
    let p = PortNo n
    p <$ unless (isPhysical p) (fail "not the number of a port")
  where
    names = [(T.pack (show p), p) | p <- reserved]

macOf :: Value -> Parser MacAddress
macOf = withText "an address" $ maybe (fail "expected an address such as 02:00:00:00:00:01") pure . readMac . T.unpack

-- | Decode an IPv4 address and its mask: an address with or without a prefix length.
addressOf :: Value -> Parser (Word32, Word32)
addressOf = withText "an address" $ \s -> do
  let (a, prefix) = T.breakOn "/" s
      parts = map decimal (T.splitOn "." a)
  bytes <- maybe wrong pure (sequence parts)
  when (length bytes /= 4 || any (\b -> b < 0 || b > 255) bytes) wrong
  bits <- case T.unpack prefix of
    "" -> pure 32
    '/' : n
      | Just b <- decimal (T.pack n), b >= 1, b <= 32 -> pure b
      | otherwise -> fail "a prefix length is 1 to 32; without the field, all addresses match"
    _ -> wrong
  let mask = complement 0 `shiftL` (32 - bits) :: Word32
      address = foldl' (\acc b -> (acc `shiftL` 8) .|. fromIntegral (fromIntegral b :: Word8)) 0 bytes
  pure (address .&. mask, mask)
  where
    -- At most three digits, and no leading zero, which others read as octal.
    decimal :: Text -> Maybe Int
    decimal t
      | T.all isDigit t, T.length t <= 3, t == "0" || T.take 1 t /= "0" = readMaybe (T.unpack t)
      | otherwise = Nothing
    wrong :: Parser a
    wrong = fail "expected an address such as 10.0.0.1 or 10.0.0.0/24"
