{-# LANGUAGE OverloadedStrings #-}

-- |
-- Encodes the network and the counters of ports as JSON. Pure.
module Weft.OpenFlow.Northbound.Json
  ( networkJson,
    portStatsJson,
    counterJson,
    problemJson,
  )
where

import Data.Aeson
import qualified Data.ByteString as B
import Data.ByteString.Short (fromShort)
import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Data.Text (Text)
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Data.Word (Word64)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Message
import Weft.OpenFlow.Northbound.Match
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types

-- | Everything that the page draws: switches with their ports and rates, links, and at most that many hosts, if there
-- is a limit, with their whole number.
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

text :: B.ByteString -> Text
text = T.decodeUtf8With T.lenientDecode

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
