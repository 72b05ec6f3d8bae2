-- |
-- The messages of OpenFlow 1.0 and 1.3, as one type. A field that exists in only one version is marked with that
-- version. "Weft.OpenFlow.Wire" encodes and decodes them.
--
-- @since 0.1.0
module Weft.OpenFlow.Message
  ( -- * Messages
    Message (..),
    Features (..),
    SwitchConfig (..),

    -- * Packets
    PacketIn (..),
    packetIsKept,
    PacketOut (..),
    reasonNoMatch,
    reasonAction,

    -- * Flows
    FlowMod (..),
    FlowCommand (..),
    defaultFlowMod,
    flagSendFlowRemoved,
    tableAll,
    FlowRemoved (..),

    -- * Ports
    Port (..),
    PortReason (..),
    portIsDown,
    portIsFlooded,

    -- * Groups, meters, port settings and queues
    module Weft.OpenFlow.Resources,

    -- * Roles
    Role (..),
    AsyncConfig (..),

    -- * Statistics
    StatsRequest (..),
    StatsReply (..),
    Description (..),
    FlowFilter (..),
    FlowStats (..),
    PortStats (..),
    TableStats (..),
    everyFlow,
  )
where

import Data.Bits (testBit, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Short (ShortByteString)
import Data.Word (Word16, Word32, Word64, Word8)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Resources
import Weft.OpenFlow.Types

-- | A message without its header.
data Message
  = -- | The words of the version bitmap; empty in 1.0.
    Hello [Word32]
  | -- | The error's type and code, and the first bytes of the message that caused it.
    Error !Word16 !Word16 !ByteString
  | -- | A request that the peer must answer with the same bytes.
    EchoRequest !ByteString
  | -- | The answer, with the bytes of the request.
    EchoReply !ByteString
  | -- | A message of an experimenter (VENDOR in 1.0): its ID, and the rest. In 1.3 the rest begins with a type of four
    -- bytes.
    Experimenter !Word32 !ByteString
  | -- | A request for the features of the switch.
    FeaturesRequest
  | -- | The answer.
    FeaturesReply !Features
  | -- | A request for the configuration of the switch.
    GetConfigRequest
  | -- | The answer.
    GetConfigReply !SwitchConfig
  | -- | Set the configuration of the switch.
    SetConfig !SwitchConfig
  | -- | A packet for the controller.
    PacketInMessage !PacketIn
  | -- | A flow was removed.
    FlowRemovedMessage !FlowRemoved
  | -- | A port was added, removed or changed.
    PortStatus !PortReason !Port
  | -- | Send a packet.
    PacketOutMessage !PacketOut
  | -- | Add, change or delete flows.
    FlowModMessage !FlowMod
  | -- | Add, change or delete a group (1.3).
    GroupModMessage !GroupMod
  | -- | Change the behaviour of a port.
    PortModMessage !PortMod
  | -- | Configure a flow table, given by its number; 'tableAll': all tables (1.3).
    TableMod !Word8 !Word32
  | -- | Add, change or delete a meter (1.3).
    MeterModMessage !MeterMod
  | -- | A request for the queues of a port; 'portAny': of all ports (1.3).
    QueueConfigRequest !PortNo
  | -- | The port of the request, and the queues.
    QueueConfigReply !PortNo [Queue]
  | -- | A request for statistics (MULTIPART in 1.3), or a part of one; 'True' if more parts follow (1.3).
    StatsRequestMessage !Bool !StatsRequest
  | -- | A part of the reply; 'True' if more parts follow.
    StatsReplyMessage !Bool !StatsReply
  | -- | A request to finish all earlier messages first.
    BarrierRequest
  | -- | All messages before the barrier are finished.
    BarrierReply
  | -- | A request for a role, with the generation ID of the election (1.3).
    RoleRequest !Role !Word64
  | -- | The controller's role, and the generation ID (1.3).
    RoleReply !Role !Word64
  | -- | A request for the events that this controller receives (1.3).
    GetAsyncRequest
  | -- | The events that this controller receives (1.3).
    GetAsyncReply !AsyncConfig
  | -- | Set the events that this controller receives (1.3).
    SetAsync !AsyncConfig
  deriving (Eq, Show)

-- | The features of a switch.
data Features = Features
  { -- | The identity of the switch.
    featuresDatapath :: !DatapathId,
    -- | The number of packets that the switch can buffer.
    featuresBuffers :: !Word32,
    -- | The number of flow tables.
    featuresTables :: !Word8,
    -- | The number of this connection (1.3); 0 is the main connection.
    featuresAuxiliary :: !Word8,
    -- | The capabilities, bits of @ofp_capabilities@.
    featuresCapabilities :: !Word32,
    -- | The supported actions, a bit for each type (1.0).
    featuresActions :: !Word32,
    -- | The ports (1.0; in 1.3 'PortDescRequest' requests them).
    featuresPorts :: [Port]
  }
  deriving (Eq, Show)

-- | The configuration of a switch.
data SwitchConfig = SwitchConfig
  { -- | The treatment of IP fragments.
    configFlags :: !Word16,
    -- | The number of bytes of a packet that are sent to the controller if no flow matches.
    configMissSendLen :: !Word16
  }
  deriving (Eq, Show)

-- | A packet for the controller.
data PacketIn = PacketIn
  { -- | The buffer that holds the packet, or 'noBuffer'.
    packetInBuffer :: !BufferId,
    -- | The length of the whole packet in bytes.
    packetInTotal :: !Word16,
    -- | The input port; 'portAny' if the switch does not name it.
    packetInPort :: !PortNo,
    -- | Why it was sent: 'reasonNoMatch', 'reasonAction' or another number of the protocol.
    packetInReason :: !Word8,
    -- | The flow table that sent the packet (1.3).
    packetInTable :: !Word8,
    -- | The cookie of the flow that sent the packet (1.3).
    packetInCookie :: !Word64,
    -- | The match fields that the switch sent with it, without the input port (1.3).
    packetInFields :: [Field],
    -- | The packet or its first bytes: a slice of the received string, which it keeps alive. See 'packetIsKept'.
    packetInData :: !ByteString
  }
  deriving (Eq, Show)

-- | Whether the switch or this message has the whole packet: it is in a buffer, or the data has its whole length.
-- Otherwise the switch has sent the first bytes and forgotten the rest, and the packet cannot be sent on (1.3.5,
-- 7.4.1).
packetIsKept :: PacketIn -> Bool
packetIsKept p = packetInBuffer p /= noBuffer || B.length (packetInData p) >= fromIntegral (packetInTotal p)
{-# INLINE packetIsKept #-}

-- | No flow matched; in 1.3 the table-miss flow did.
reasonNoMatch :: Word8
reasonNoMatch = 0

-- | An action of a flow sent the packet.
reasonAction :: Word8
reasonAction = 1

-- | Send a packet.
data PacketOut = PacketOut
  { -- | The buffer that holds the packet; 'noBuffer' if the packet is in this message.
    packetOutBuffer :: !BufferId,
    -- | The packet's input port, or 'portController'.
    packetOutInPort :: !PortNo,
    -- | The actions; an empty list drops the packet.
    packetOutActions :: [Action],
    -- | The packet, unless it is in a buffer.
    packetOutData :: !ByteString
  }
  deriving (Eq, Show)

-- | A change of the flow table.
data FlowMod = FlowMod
  { -- | A number chosen by the controller.
    flowCookie :: !Word64,
    -- | The bits of the cookie that restrict which flows are changed or deleted (1.3).
    flowCookieMask :: !Word64,
    -- | The flow table (1.3).
    flowTable :: !Word8,
    -- | The command.
    flowCommand :: !FlowCommand,
    -- | The flow is removed after that many seconds without a packet; 0: never.
    flowIdleTimeout :: !Word16,
    -- | The flow is removed after that many seconds; 0: never.
    flowHardTimeout :: !Word16,
    -- | The priority. Of the flows that match a packet, the one with the highest priority is used.
    flowPriority :: !Word16,
    -- | A buffered packet that the flow is applied to, or 'noBuffer'.
    flowBuffer :: !BufferId,
    -- | Delete only flows that send to this port; 'portAny': no restriction.
    flowOutPort :: !PortNo,
    -- | Delete only flows that use this group; 0xffffffff: no restriction (1.3).
    flowOutGroup :: !Word32,
    -- | Flags, such as 'flagSendFlowRemoved'.
    flowFlags :: !Word16,
    -- | The packets that the flow matches.
    flowMatch :: !Match,
    -- | The instructions for these packets.
    flowInstructions :: [Instruction]
  }
  deriving (Eq, Show)

-- | The command of a 'FlowMod'.
data FlowCommand = FlowAdd | FlowModify | FlowModifyStrict | FlowDelete | FlowDeleteStrict
  deriving (Eq, Show, Enum, Bounded)

-- | Add a flow to table 0 that matches all packets and drops them: priority 0x8000, no timeouts.
defaultFlowMod :: FlowMod
defaultFlowMod =
  FlowMod
    { flowCookie = 0,
      flowCookieMask = 0,
      flowTable = 0,
      flowCommand = FlowAdd,
      flowIdleTimeout = 0,
      flowHardTimeout = 0,
      flowPriority = 0x8000,
      flowBuffer = noBuffer,
      flowOutPort = portAny,
      flowOutGroup = 0xffffffff,
      flowFlags = 0,
      flowMatch = [],
      flowInstructions = []
    }

-- | Send FLOW_REMOVED when the flow is removed.
flagSendFlowRemoved :: Word16
flagSendFlowRemoved = 1

-- | All flow tables, in deletions and requests for statistics.
tableAll :: Word8
tableAll = 0xff

-- | A flow was removed.
data FlowRemoved = FlowRemoved
  { -- | The number chosen by the controller.
    removedCookie :: !Word64,
    -- | Its priority.
    removedPriority :: !Word16,
    -- | The reason: 0 idle timeout, 1 hard timeout, 2 deleted.
    removedReason :: !Word8,
    -- | Its flow table (1.3).
    removedTable :: !Word8,
    -- | How long it existed, in whole seconds.
    removedSeconds :: !Word32,
    -- | The rest of that time in nanoseconds.
    removedNanoseconds :: !Word32,
    -- | Its idle timeout in seconds.
    removedIdleTimeout :: !Word16,
    -- | Its hard timeout in seconds (1.3).
    removedHardTimeout :: !Word16,
    -- | The number of packets that it matched.
    removedPackets :: !Word64,
    -- | The number of bytes of these packets.
    removedBytes :: !Word64,
    -- | The packets that the flow matches.
    removedMatch :: !Match
  }
  deriving (Eq, Show)

-- | A port of a switch.
data Port = Port
  { -- | Its number.
    portNumber :: !PortNo,
    -- | Its MAC address.
    portAddress :: !MacAddress,
    -- | Its name, at most 15 bytes. A copy: a slice would keep the received string alive.
    portName :: !ShortByteString,
    -- | Bits of @ofp_port_config@; bit 0: the operator has switched it off. See 'portIsFlooded' for others.
    portConfig :: !Word32,
    -- | Bits of @ofp_port_state@; bit 0: there is no link.
    portState :: !Word32,
    -- | Bits of @ofp_port_features@: current, advertised, supported, and advertised by the peer.
    portFeatures :: !(Word32, Word32, Word32, Word32),
    -- | The current and the maximum speed in kbit/s (1.3).
    portSpeeds :: !(Word32, Word32)
  }
  deriving (Eq, Show)

-- | Whether the port is switched off or has no link.
portIsDown :: Port -> Bool
portIsDown p = testBit (portConfig p) 0 || testBit (portState p) 0

-- | Whether packets may be flooded to the port: it is not down, it takes packets (not @OFPPC_NO_FWD@) and floods (not
-- @OFPPC_NO_FLOOD@, 1.0), and is not blocked by the Spanning Tree Protocol (@OFPPS_STP_BLOCK@, 1.0) or by another one
-- (@OFPPS_BLOCKED@, 1.3). The bits that exist in one version are unused in the other.
portIsFlooded :: Port -> Bool
portIsFlooded p = not (portIsDown p || testBit (portConfig p) 4 || testBit (portConfig p) 5 || portState p .&. 0x300 == 0x300 || testBit (portState p) 1)

-- | The reason of a PORT_STATUS message.
data PortReason = PortAdded | PortDeleted | PortModified
  deriving (Eq, Show, Enum, Bounded)

-- | A controller's role at a switch (1.3).
data Role = RoleNoChange | RoleEqual | RoleMaster | RoleSlave
  deriving (Eq, Show, Enum, Bounded)

-- | The events that a controller receives, one bit for each reason: as master or equal, and as slave (1.3).
data AsyncConfig = AsyncConfig
  { -- | Reasons of PACKET_IN.
    asyncPacketIn :: !(Word32, Word32),
    -- | Reasons of PORT_STATUS.
    asyncPortStatus :: !(Word32, Word32),
    -- | Reasons of FLOW_REMOVED.
    asyncFlowRemoved :: !(Word32, Word32)
  }
  deriving (Eq, Show)

-- | A request for statistics.
data StatsRequest
  = -- | The description of the switch.
    DescRequest
  | -- | The flows that the filter selects.
    FlowStatsRequest !FlowFilter
  | -- | The flow tables.
    TableStatsRequest
  | -- | The counters of a port; 'portAny': of all ports.
    PortStatsRequest !PortNo
  | -- | The descriptions of the ports (1.3).
    PortDescRequest
  | -- | Another kind: its type and body.
    OtherStatsRequest !Word16 !ByteString
  deriving (Eq, Show)

-- | A reply with statistics, or a part of it.
data StatsReply
  = -- | The description of the switch.
    DescReply !Description
  | -- | Flows.
    FlowStatsReply [FlowStats]
  | -- | Tables.
    TableStatsReply [TableStats]
  | -- | Ports.
    PortStatsReply [PortStats]
  | -- | The descriptions of the ports (1.3).
    PortDescReply [Port]
  | -- | Another kind: its type and body.
    OtherStatsReply !Word16 !ByteString
  deriving (Eq, Show)

-- | The description of a switch.
data Description = Description
  { -- | The manufacturer.
    descManufacturer :: !ByteString,
    -- | The hardware.
    descHardware :: !ByteString,
    -- | The software.
    descSoftware :: !ByteString,
    -- | The serial number.
    descSerial :: !ByteString,
    -- | A description of the datapath for people.
    descDatapath :: !ByteString
  }
  deriving (Eq, Show)

-- | A filter for flows.
data FlowFilter = FlowFilter
  { -- | Flows of this table; 'tableAll': of all tables.
    filterTable :: !Word8,
    -- | Flows that send to this port; 'portAny': no restriction.
    filterOutPort :: !PortNo,
    -- | Flows that use this group; 0xffffffff: no restriction (1.3).
    filterOutGroup :: !Word32,
    -- | Flows with this cookie, in the bits of the mask (1.3).
    filterCookie :: !Word64,
    -- | The mask of the cookie (1.3).
    filterCookieMask :: !Word64,
    -- | Flows with this match or a more specific one.
    filterMatch :: !Match
  }
  deriving (Eq, Show)

-- | All flows of all tables.
everyFlow :: FlowFilter
everyFlow = FlowFilter tableAll portAny 0xffffffff 0 0 []

-- | A flow and its counters.
data FlowStats = FlowStats
  { -- | Its flow table.
    flowStatsTable :: !Word8,
    -- | How long it has existed, in whole seconds.
    flowStatsSeconds :: !Word32,
    -- | The rest of that time in nanoseconds.
    flowStatsNanoseconds :: !Word32,
    -- | Its priority.
    flowStatsPriority :: !Word16,
    -- | Its idle timeout in seconds.
    flowStatsIdleTimeout :: !Word16,
    -- | Its hard timeout in seconds.
    flowStatsHardTimeout :: !Word16,
    -- | Its flags (1.3).
    flowStatsFlags :: !Word16,
    -- | The number chosen by the controller.
    flowStatsCookie :: !Word64,
    -- | The number of packets that it matched.
    flowStatsPackets :: !Word64,
    -- | The number of bytes of these packets.
    flowStatsBytes :: !Word64,
    -- | The packets that the flow matches.
    flowStatsMatch :: !Match,
    -- | The instructions for these packets.
    flowStatsInstructions :: [Instruction]
  }
  deriving (Eq, Show)

-- | The counters of a port.
data PortStats = PortStats
  { -- | The number of the port.
    portStatsPort :: !PortNo,
    -- | Packets received and sent, bytes received and sent, dropped on receiving and sending, errors on receiving and
    -- sending, frame alignment errors, overruns, CRC errors, collisions: twelve, in the order of the protocol.
    portStatsCounters :: [Word64],
    -- | How long it has existed: whole seconds, and the rest in nanoseconds (1.3).
    portStatsUptime :: !(Word32, Word32)
  }
  deriving (Eq, Show)

-- | The counters of a table.
data TableStats = TableStats
  { -- | The number of the table.
    tableStatsId :: !Word8,
    -- | Its name, at most 31 bytes (1.0).
    tableStatsName :: !ByteString,
    -- | The wildcards that it supports (1.0).
    tableStatsWildcards :: !Word32,
    -- | The maximum number of flows (1.0).
    tableStatsMax :: !Word32,
    -- | The number of flows.
    tableStatsActive :: !Word32,
    -- | The number of packets that were looked up.
    tableStatsLookups :: !Word64,
    -- | The number of packets that matched a flow.
    tableStatsMatched :: !Word64
  }
  deriving (Eq, Show)
