-- |
-- The learning switch: where a packet came from is where its source is; a packet for a known destination gets a flow,
-- others are flooded.
--
-- @since 0.1.0
module Weft.OpenFlow.Learning
  ( learningSwitch,
    learningSwitchWith,
    LearningSettings (..),
    defaultLearningSettings,
    Learned,
    learnedPort,
    learnedCount,
  )
where

import Data.Bits ((.&.))
import Data.Maybe (isJust)
import Data.Word (Word16)
import Weft.OpenFlow.AddressTable
import Weft.OpenFlow.App
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Types

-- | Settings; begin with 'defaultLearningSettings'.
data LearningSettings = LearningSettings
  { -- | Seconds without a packet after which a flow goes.
    learningIdleTimeout :: !Word16,
    -- | Priority of the flows.
    learningPriority :: !Word16,
    -- | An address that was not seen for that long is forgotten, and after at most twice as long.
    learningAge :: !Millis,
    -- | The most addresses in one age: with more, the older ones go. It bounds the memory of a switch.
    learningMost :: !Int
  }

-- | Flows of 60 seconds, priority 100; addresses of 5 minutes, 65536 at the most.
defaultLearningSettings :: LearningSettings
defaultLearningSettings = LearningSettings 60 100 300000 65536

-- | Where hosts are, by address: those seen in this age and in the one before. When an age is over, the one before is
-- forgotten as a whole.
data Learned = Learned
  { recent :: !AddressTable,
    older :: !AddressTable,
    -- | When this age began.
    begun :: !Millis
  }

-- | Where an address is.
learnedPort :: MacAddress -> Learned -> Maybe PortNo
learnedPort m l = case lookupAddress m (recent l) of
  Nothing -> lookupAddress m (older l)
  found -> found
{-# INLINE learnedPort #-}

-- | How many addresses there are; one that is in both ages counts twice.
learnedCount :: Learned -> Int
learnedCount l = tableSize (recent l) + tableSize (older l)

-- | With 'defaultLearningSettings'. Use it 'perSwitch'.
learningSwitch :: App Learned
learningSwitch = learningSwitchWith defaultLearningSettings

-- | A flow matches the port that the packet came in at and both addresses; so a host that moves is noticed. When a port
-- goes down, or the spanning tree changes, the addresses behind the ports concerned and their flows go.
learningSwitchWith :: LearningSettings -> App Learned
learningSwitchWith settings = App (Learned emptyTable emptyTable 0) handle
  where
    handle context event l = case event of
      Packet p -> packet settings context p l
      PortChanged reason port
        | reason == PortDeleted || portIsDown port -> (forgetPorts [portNumber port] l, [flush (portNumber port)])
      TreeChanged | FloodTo _ trunks <- contextFlooding context -> (forgetPorts trunks l, map flush trunks)
      _ -> (l, [])
    flush port = Send (FlowModMessage defaultFlowMod {flowCommand = FlowDelete, flowOutPort = port})

forgetPorts :: [PortNo] -> Learned -> Learned
forgetPorts ports l = l {recent = filterPorts stays (recent l), older = filterPorts stays (older l)}
  where
    stays p = p `notElem` ports

-- Note [Nothing is put off]. A million times a second a packet becomes a flow. Each field, message and reply is evaluated
-- where it is made (the bangs): otherwise it is a thunk, evaluated a moment later by what encodes it. With thunks an
-- answer took twice the memory.

packet :: LearningSettings -> Context -> PacketIn -> Learned -> (Learned, [Reply])
packet settings context p before = case ethernet (packetInData p) of
  Nothing -> (before, release p [])
  Just frame
    | frameType frame == etherTypeLldp || reserved (frameDst frame) -> (before, release p [])
    | otherwise -> case learn settings context frame p before of
      (l, notices) ->
        let !replies = forward settings context frame p l
         in case notices of
              [] -> (l, replies)
              _ -> (l, notices ++ replies)
  where
    -- Bridges do not forward these (IEEE 802.1Q, table 8-1).
    reserved (MacAddress n) = n .&. 0xfffffffffff0 == 0x0180c2000000

-- | Remember the source. A host that has moved leaves flows to its old port behind: they are deleted.
learn :: LearningSettings -> Context -> Frame -> PacketIn -> Learned -> (Learned, [Reply])
learn settings context frame p l
  | isMulticast source || not (isPhysical port) = (l, [])
  | Just known <- lookupAddress source (recent l), known == port, not expired = let !notices = arp in (l, notices)
  | otherwise = (remembered, moved ++ [Tell (HostSeen source port (senderIpv4 frame (packetInData p)))])
  where
    source = frameSrc frame
    port = packetInPort p
    expired = contextTime context - begun l >= learningAge settings
    aged
      | expired || tableSize (recent l) >= learningMost settings = Learned emptyTable (recent l) (contextTime context)
      | otherwise = l
    remembered = aged {recent = insertAddress source port (recent aged)}
    moved =
      [ Send (FlowModMessage defaultFlowMod {flowCommand = FlowDelete, flowMatch = [EthDst source]})
        | Just old <- [learnedPort source l],
          old /= port
      ]
    -- ARP is rare, and says addresses.
    arp
      | frameType frame == etherTypeArp, ip <- senderIpv4 frame (packetInData p), isJust ip = [Tell (HostSeen source port ip)]
      | otherwise = []

-- | To the destination's port, with a flow; or everywhere.
forward :: LearningSettings -> Context -> Frame -> PacketIn -> Learned -> [Reply]
forward settings context frame p l
  | isMulticast (frameDst frame) = release p (floodActions context port)
  | otherwise = case learnedPort (frameDst frame) l of
    Nothing -> release p (floodActions context port)
    Just to
      | packetInBuffer p /= noBuffer -> let !reply = flow to (packetInBuffer p) in [reply]
      | otherwise -> let !reply = flow to noBuffer in reply : release p (actions to)
  where
    port = packetInPort p
    flow to buffer =
      let !inPort = InPort port
          !source = EthSrc (frameSrc frame)
          !destination = EthDst (frameDst frame)
          !out = output to
          !instructions = [ApplyActions [out] | to /= port]
       in Send . FlowModMessage $
            defaultFlowMod
              { flowIdleTimeout = learningIdleTimeout settings,
                flowPriority = learningPriority settings,
                flowMatch = [inPort, source, destination],
                flowHardTimeout = if to == port then localSeconds else 0,
                flowBuffer = buffer,
                flowInstructions = instructions
              }
    -- Its destination is where it came from: others there have it, and the switch drops it.
    actions to = [output to | to /= port]

-- | How long a flow lasts that drops what is local to a port, in seconds. It names no port that it sends to, so it is
-- not deleted when the tree changes.
localSeconds :: Word16
localSeconds = 5
