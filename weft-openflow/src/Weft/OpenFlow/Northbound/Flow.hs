{-# LANGUAGE OverloadedStrings #-}

-- |
-- Flows as JSON: encodes those that a switch has, and decodes those to add or delete. Names are those of OpenFlow 1.3's
-- fields. Pure.
module Weft.OpenFlow.Northbound.Flow
  ( flowStatsJson,
    flowFromJson,
  )
where

import Control.Applicative ((<|>))
import Control.Monad (when)
import Data.Aeson
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Aeson.Types (JSONPathElement (Index), Pair, Parser, explicitParseFieldMaybe, parseEither)
import qualified Data.ByteString as B
import Data.Foldable (toList)
import Data.Word (Word16)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Northbound.Json (counterJson)
import Weft.OpenFlow.Northbound.Match
import Weft.OpenFlow.Types
import Weft.Wire.Peek (word32At)

-- Encoding --------------------------------------------------------------------------------

-- | A flow and its counters. Of its instructions, @actions@ are those that are applied at once; the others are shown if
-- the flow has them.
flowStatsJson :: Version -> FlowStats -> Value
flowStatsJson version f =
  object $
    [ "table" .= flowStatsTable f,
      "priority" .= flowStatsPriority f,
      "idle_timeout" .= flowStatsIdleTimeout f,
      "hard_timeout" .= flowStatsHardTimeout f,
      "cookie" .= flowStatsCookie f,
      "seconds" .= flowStatsSeconds f,
      "packets" .= counterJson (flowStatsPackets f),
      "bytes" .= counterJson (flowStatsBytes f),
      "match" .= matchJson version (flowStatsMatch f),
      "actions" .= [actionJson a | ApplyActions as <- flowStatsInstructions f, a <- as]
    ]
      ++ concatMap instructionJson (flowStatsInstructions f)
      ++ ["other_instructions" .= others | not (null others)]
  where
    others = [object ["type" .= kind, "data" .= hexText s] | OtherInstruction kind s <- flowStatsInstructions f, not (isMeter kind s)]

-- | An instruction, except ApplyActions and those of unknown types.
instructionJson :: Instruction -> [Pair]
instructionJson instruction = case instruction of
  GotoTable t -> ["goto_table" .= t]
  WriteMetadata v mask -> ["write_metadata" .= object ["value" .= v, "mask" .= mask]]
  WriteActions as -> ["write_actions" .= map actionJson as]
  ClearActions -> ["clear_actions" .= True]
  OtherInstruction kind s | isMeter kind s -> ["meter" .= word32At s 0]
  _ -> []

-- | Whether an instruction applies a meter: OFPIT_METER, with the number of the meter (1.3.5, 7.2.4).
isMeter :: Word16 -> B.ByteString -> Bool
isMeter kind s = kind == 6 && B.length s == 4

actionJson :: Action -> Value
actionJson action = case action of
  Output p _ -> object ["output" .= portJson p]
  SetField f -> object ["set" .= fieldsJson [f]]
  PopVlan -> object ["pop_vlan" .= True]
  PushVlan t -> object ["push_vlan" .= t]
  Group n -> object ["group" .= n]
  SetQueue n -> object ["set_queue" .= n]
  Enqueue p q -> object ["output" .= portJson p, "queue" .= q]
  OtherAction kind _ -> object ["type" .= kind]

-- Decoding --------------------------------------------------------------------------------

-- | Decode a flow to add or delete. 'Left': the error. Unknown names are refused: otherwise a flow whose only field is
-- misspelt would match all packets. For the same reason a field needs its prerequisites: a switch of 1.0 ignores a
-- field without them. A deletion may have no field by which the switch does not select, and no flow is put into a table
-- that the switch does not have.
flowFromJson :: Version -> FlowCommand -> Value -> Either String FlowMod
flowFromJson version command = parseEither . withObject "a flow" $ \o -> do
  onlyFields ["priority", "idle_timeout", "hard_timeout", "cookie", "table", "match", "actions"] o
  match <- explicitParseFieldMaybe (withObject "a match" matchOf) o "match" .!= []
  mapM_ fail (missingPrerequisite version match match)
  actions <- explicitParseFieldMaybe (withArray "actions" (\as -> sequence [actionOf a <?> Index i | (i, a) <- zip [0 ..] (toList as)])) o "actions" .!= []
  -- In 1.0, an action on a packet without the field does nothing.
  when (version == V13) (mapM_ (fail . ("set: " <>)) (settingPrerequisite match actions))
  priority <- number o "priority" .!= 0x8000
  idle <- number o "idle_timeout" .!= 0
  hard <- number o "hard_timeout" .!= 0
  cookie <- number o "cookie" .!= 0
  table <- number o "table" .!= (if command == FlowAdd then 0 else tableAll)
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
  where
    number :: (Bounded a, FromJSON a, Show a) => Object -> Key -> Parser (Maybe a)
    number = explicitParseFieldMaybe numberOf

-- | The error message for a field that an action sets in packets that do not have it (1.3.5, 7.2.5). What earlier
-- actions set and add counts.
settingPrerequisite :: Match -> [Action] -> Maybe String
settingPrerequisite match actions = case actions of
  [] -> Nothing
  SetField field : rest -> missingPrerequisite V13 match [field] <|> settingPrerequisite (match <> [field]) rest
  PushVlan _ : rest -> settingPrerequisite (match <> [VlanId (Tagged 0)]) rest
  _ : rest -> settingPrerequisite match rest

actionOf :: Value -> Parser Action
actionOf = withObject "an action" $ \o -> case KeyMap.toList o of
  [("output", v)] -> output <$> portOf "a flow sends nothing to" [portInPort, portNormal, portFlood, portAll, portController, portLocal] v
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
  [("push_vlan", v)] -> PushVlan <$> numberOf v
  [("group", v)] -> Group <$> numberOf v
  [("set_queue", v)] -> SetQueue <$> numberOf v
  _ -> fail "an action is one of output, set, pop_vlan, push_vlan, group, set_queue"
