-- |
-- The learning switch. It learns the port of each source address from the packets that arrive. For a packet to a known
-- address it installs a flow; it floods all others.
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

import Data.Bits ((.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.IntMap.Strict as IntMap
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Data.Word (Word16, Word64)
import Weft.OpenFlow.AddressTable
import Weft.OpenFlow.App
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Get (macAt)
import Weft.Wire.Peek

-- | Settings; start from 'defaultLearningSettings'.
data LearningSettings = LearningSettings
  { -- | The idle timeout of flows in seconds; 0: none.
    learningIdleTimeout :: !Word16,
    -- | The hard timeout of flows in seconds; 0: none. The switch itself forwards the packets to a host, so a host that
    -- only receives is forgotten after a while. If it then moves without a word to the controller, the flows to its old
    -- port end with this timeout.
    learningHardTimeout :: !Word16,
    -- | The priority of flows.
    learningPriority :: !Word16,
    -- | The cookie of flows. Deletions are restricted to flows with this cookie, so that flows of other applications
    -- stay. OpenFlow 1.0 cannot restrict deletions by a cookie; there the lower 32 bits of the cookie are the ID of the
    -- packet's buffer, if it is in one.
    learningCookie :: !Word64,
    -- | The duration of an age. An address is forgotten after one to two ages without a packet from it.
    learningAge :: !Millis,
    -- | The maximum number of addresses in an age. When it is reached, the age ends early. This bounds the memory for a
    -- switch.
    learningMost :: !Int,
    -- | The maximum number of addresses of a port in an age. When it is reached, nothing is learned at this port until
    -- the age ends, so a host that sends from invented addresses does not push out those of other ports. What a host
    -- sends that is not learned reaches its destination, but each packet by way of the controller, without a flow.
    learningMostOfPort :: !Int,
    -- | The maximum number of packets to unknown addresses that are flooded in a second, of each input port. Others are
    -- dropped.
    learningMostFloods :: !Int
  }

-- | Flows end after 60 seconds without a packet, and after 30 minutes; priority 100; a cookie that begins with @WEFT@
-- in ASCII; addresses are forgotten 2.5 to 5 minutes after their last packet; 65,536 addresses in an age at the most,
-- and 16,384 of a port; 1,000 floods a second of a port.
defaultLearningSettings :: LearningSettings
defaultLearningSettings = LearningSettings 60 1800 100 0x5745465400000001 150000 65536 16384 1000

-- | The learned addresses: those seen in the current age, and those of the age before. At the end of an age the age
-- before it is dropped as a whole.
data Learned = Learned
  { recent :: !AddressTable,
    older :: !AddressTable,
    -- | The start of the current age.
    begun :: !Millis,
    -- | The ports to other switches when the spanning tree last changed.
    formerTrunks :: ![PortNo],
    -- | The number of addresses of the current age at each port. Ports without any may be absent.
    recentAt :: !(IntMap.IntMap Int),
    -- | Unknown addresses whose flows were deleted in this age, each with some port. A flow from such an address is
    -- installed only after the address was learned; then it is known until the next age has ended.
    cleared :: !AddressTable,
    -- | The start of the current second, and the number of floods in it, by input port.
    floodSecond :: !Millis,
    floodsFrom :: !(IntMap.IntMap Int)
  }

-- | Nothing is known.
noneLearned :: Learned
noneLearned = Learned emptyTable emptyTable 0 [] IntMap.empty emptyTable 0 IntMap.empty

-- | The port of an address, if it is known.
learnedPort :: MacAddress -> Learned -> Maybe PortNo
learnedPort m l = case lookupAddress m (recent l) of
  Nothing -> lookupAddress m (older l)
  found -> found
{-# INLINE learnedPort #-}

-- | The number of addresses. One that is in both ages counts twice.
learnedCount :: Learned -> Int
learnedCount l = tableSize (recent l) + tableSize (older l)

-- | The learning switch with 'defaultLearningSettings'. Run it 'perSwitch'.
learningSwitch :: App Learned
learningSwitch = learningSwitchWith defaultLearningSettings

-- | The learning switch with other settings. A flow matches the input port and both addresses, so the first packet of a
-- host that has moved matches no flow and reaches the controller. When a port goes down, or the spanning tree changes,
-- the addresses and flows of the ports concerned are removed: those to other switches, before or after the change.
-- A packet to an unknown address is flooded, at most 'learningMostFloods' a second, and the flows of packets from that
-- address are deleted, once in an age. Such a flow may be left from an earlier controller, or be older than the memory
-- of addresses. It would hide the host's answers from the controller, so that all packets to the host would be flooded.
-- For the same reason a packet whose source is not learned gets no flow: the port has too many addresses, or was not
-- announced by the switch. If the switch refuses a flow, its packet is sent nevertheless.
--
-- VLANs are ignored: an address has one port, whatever VLAN its packets are in. If it is in use at two ports in two
-- VLANs, each packet from the one port moves it away from the other. @examples/Vlans.hs@ is a learning switch with an
-- address table for each VLAN.
learningSwitchWith :: LearningSettings -> App Learned
learningSwitchWith settings = App noneLearned handle
  where
    handle context event l = case event of
      Packet p -> packet settings context p l
      PortChanged reason port
        | reason == PortDeleted || portIsDown port -> (forgetPorts [portNumber port] l, [flush (portNumber port)])
      -- Another controller may have installed flows meanwhile.
      SwitchUp _ -> (l {cleared = emptyTable}, [])
      TreeChanged
        | FloodTo _ trunks <- contextFlooding context ->
          let concerned = trunks ++ filter (`notElem` trunks) (formerTrunks l)
           in (forgetPorts concerned l {formerTrunks = trunks}, concatMap (\p -> [flush p, flushFrom p]) concerned)
      Other (Error kind _ failed)
        | kind /= badRequest,
          Just (buffer, actions) <- refusedFlow settings (contextVersion context) failed l ->
          (l, [Send (PacketOutMessage (PacketOut buffer portController actions B.empty))])
      _ -> (l, [])
    -- Among these errors are those for a buffer that the switch does not have.
    badRequest = 1
    flush port = Send (FlowModMessage (deletion settings) {flowOutPort = port})
    -- A port that has left the tree must not forward by an old flow.
    flushFrom port = Send (FlowModMessage (deletion settings) {flowMatch = [InPort port]})

-- | The deletion of all flows of this application.
deletion :: LearningSettings -> FlowMod
deletion settings = defaultFlowMod {flowCommand = FlowDelete, flowCookie = learningCookie settings, flowCookieMask = maxBound}

forgetPorts :: [PortNo] -> Learned -> Learned
forgetPorts ports l =
  l
    { recent = filterPorts stays (recent l),
      older = filterPorts stays (older l),
      recentAt = foldr (IntMap.delete . portKey) (recentAt l) ports,
      -- A host that is forgotten may still have flows.
      cleared = emptyTable
    }
  where
    stays p = p `notElem` ports

-- Note [Strict construction]. This code runs a million times a second. Each field, message and reply is evaluated where
-- it is constructed (the bangs). Otherwise it is a thunk, which the encoder evaluates a moment later. With thunks an
-- answer allocated twice as much.

packet :: LearningSettings -> Context -> PacketIn -> Learned -> (Learned, [Reply])
packet settings context p before = case ethernet (packetInData p) of
  Nothing -> (before, release p [])
  Just frame
    | frameType frame == etherTypeLldp || reserved (frameDst frame) -> (before, release p [])
    | otherwise -> case learn settings context frame p before of
      Sighting here notices l -> case forward settings context frame p here l of
        (!l', !replies) -> case notices of
          [] -> (l', replies)
          _ -> (l', notices ++ replies)
  where
    -- Bridges do not forward these (IEEE 802.1Q, table 8-1).
    reserved (MacAddress n) = n .&. 0xfffffffffff0 == 0x0180c2000000

-- | Whether the source address is known to be at this port, what is to be said of it, and what is known now.
data Sighting = Sighting !Bool ![Reply] !Learned

-- | Learn the source address, unless no host can have it, or it is at a port that the switch has not announced or that
-- has too many addresses. If the host was at another port before, delete the flows to that port.
learn :: LearningSettings -> Context -> Frame -> PacketIn -> Learned -> Sighting
learn settings context frame p l
  | isMulticast source || source == MacAddress 0 || not (isPhysical port || port == portLocal) = Sighting False [] l
  | Just known <- lookupAddress source (recent l), known == port, not expired = Sighting True arp l
  | not (announced context port) = Sighting False [] l
  | IntMap.findWithDefault 0 (portKey port) (recentAt aged) >= learningMostOfPort settings = Sighting False [] aged
  | otherwise = Sighting True (moved ++ [Notify (HostSeen source port (senderIpv4 frame (packetInData p)))]) remembered
  where
    source = frameSrc frame
    port = packetInPort p
    expired = lasted 1
    lasted ages = contextTime context - begun l >= ages * learningAge settings
    -- Without packets an age may have ended long ago.
    aged
      | lasted 2 = nextAge emptyTable (contextTime context)
      | expired = nextAge (recent l) (begun l + learningAge settings)
      | tableSize (recent l) >= learningMost settings = nextAge (recent l) (contextTime context)
      | otherwise = l
    nextAge before start = l {recent = emptyTable, older = before, begun = start, recentAt = IntMap.empty, cleared = emptyTable}
    remembered =
      aged
        { recent = insertAddress source port (recent aged),
          recentAt = IntMap.insertWith (+) (portKey port) 1 (maybe id (IntMap.adjust (subtract 1) . portKey) (lookupAddress source (recent aged)) (recentAt aged))
        }
    moved =
      [ Send (FlowModMessage (deletion settings) {flowMatch = [EthDst source]})
        | Just old <- [learnedPort source l],
          old /= port
      ]
    -- ARP packets are rare, and have the sender's IPv4 address.
    arp
      | frameType frame == etherTypeArp, ip <- senderIpv4 frame (packetInData p), isJust ip = [Notify (HostSeen source port ip)]
      | otherwise = []

-- | Install a flow if the ports of both addresses are known ('True': the source's is). If only the destination's is,
-- send the packet there; otherwise flood it.
forward :: LearningSettings -> Context -> Frame -> PacketIn -> Bool -> Learned -> (Learned, [Reply])
forward settings context frame p here l
  | isMulticast destination = (l, release p (floodActions context port))
  | otherwise = case learnedPort destination l of
    Nothing -> unknown
    Just to
      | not here -> (l, release p (actions to))
      | packetInBuffer p == noBuffer || unmarked -> let !reply = newFlow settings version frame port to noBuffer in (l, reply : release p (actions to))
      | otherwise -> let !reply = newFlow settings version frame port to (packetInBuffer p) in (l, [reply])
  where
    destination = frameDst frame
    unknown
      | floods >= learningMostFloods settings = (l, release p [])
      | isJust (lookupAddress destination (cleared l)) = (flooded, flood)
      | otherwise =
        ( flooded {cleared = insertAddress destination (PortNo 1) (if tableSize (cleared l) < learningMost settings then cleared l else emptyTable)},
          Send (FlowModMessage (deletion settings) {flowMatch = [EthSrc destination]}) : flood
        )
    flood = release p (floodActions context port)
    sameSecond = contextTime context - floodSecond l < 1000
    -- A switch that invents ports has one share for them.
    from = if announced context port then portKey port else 0
    floods = if sameSecond then IntMap.findWithDefault 0 from (floodsFrom l) else 0
    flooded
      | sameSecond = l {floodsFrom = IntMap.insert from (floods + 1) (floodsFrom l)}
      | otherwise = l {floodSecond = contextTime context, floodsFrom = IntMap.singleton from 1}
    port = packetInPort p
    version = contextVersion context
    -- See Note [Refused flows].
    unmarked = version == V10 && packetInBuffer p == BufferId (fromIntegral (learningCookie settings))
    -- A packet whose destination is at its input port has reached it already; the switch drops it.
    actions to = [output to | to /= port]

-- | Whether the switch has announced the port.
announced :: Context -> PortNo -> Bool
announced context port = Map.member port (contextPorts context)

portKey :: PortNo -> IntMap.Key
portKey (PortNo n) = fromIntegral n

-- | The flow for the packets of a frame's addresses from one port to another. It is applied to the packet in the
-- buffer, too.
newFlow :: LearningSettings -> Version -> Frame -> PortNo -> PortNo -> BufferId -> Reply
newFlow settings version frame port to buffer =
  let !inPort = InPort port
      !source = EthSrc (frameSrc frame)
      !destination = EthDst (frameDst frame)
      !out = output to
      !instructions = [ApplyActions [out] | to /= port]
   in Send . FlowModMessage $
        defaultFlowMod
          { flowCookie = if version == V10 then cookieOf settings buffer else learningCookie settings,
            flowIdleTimeout = learningIdleTimeout settings,
            flowPriority = learningPriority settings,
            flowMatch = if buffer == noBuffer || to == port then [inPort, source, destination] else [destination, inPort, source],
            flowHardTimeout = if to == port then localSeconds else learningHardTimeout settings,
            flowBuffer = buffer,
            flowInstructions = instructions
          }

-- Note [Refused flows]. A FLOW_MOD that fails, because the switch's table is full for example, does not release its
-- buffer. The learning switch answers the ERROR with a PACKET_OUT. A PACKET_OUT with each FLOW_MOD would lose no packet
-- either, but each new flow would then cost a message more, also at switches whose tables are never full.
--
-- The ERROR has at least the first 64 bytes of the FLOW_MOD, and many switches send no more. In 1.0 they include the
-- input port and the destination, but not the buffer's ID, so the lower half of the cookie is this ID: 1.0 has no
-- other use for the cookie. A buffer whose ID is the lower half of the usual cookie gets a PACKET_OUT. In 1.3 the 64
-- bytes include the ID and the first field of the match. This is the destination, or the input port if the flow drops
-- its packets.

-- | The cookie of a flow of 1.0 whose FLOW_MOD releases this buffer.
cookieOf :: LearningSettings -> BufferId -> Word64
cookieOf settings buffer@(BufferId n)
  | buffer == noBuffer = learningCookie settings
  | otherwise = learningCookie settings .&. 0xffffffff00000000 .|. fromIntegral n
{-# INLINE cookieOf #-}

-- | The buffer of a flow of this application, and the actions for the packet in it, from the data of an ERROR.
-- 'Nothing' for other messages and for flows without a buffer.
refusedFlow :: LearningSettings -> Version -> ByteString -> Learned -> Maybe (BufferId, [Action])
refusedFlow settings version s l
  | B.length s < 64 || word8At s 0 /= versionByte version || word8At s 1 /= 14 = Nothing
  | otherwise = case version of
    V10
      | cookie /= learningCookie settings, cookieOf settings buffer == cookie, word16At s 56 == 0 -> Just (buffer, [a | a@(Output (PortNo n) _) <- known 20, fromIntegral n /= word16At s 12])
      where
        cookie = word64At s 48
        buffer = BufferId (fromIntegral cookie)
    V13
      | word64At s 8 == learningCookie settings, word8At s 25 == 0, buffer /= noBuffer -> Just (buffer, if word32At s 52 == 0x80000606 then known 56 else [])
      where
        buffer = BufferId (word32At s 32)
    _ -> Nothing
  where
    known at = [output to | Just to <- [learnedPort (macAt s at) l]]

-- | The hard timeout, in seconds, of a flow that drops packets between two hosts at the same port. Such a flow sends to
-- no port, so a change of the tree does not delete it.
localSeconds :: Word16
localSeconds = 5
