-- |
-- The messages of OpenFlow 1.0 and 1.3, as one type: a field that only one of them has says so. See
-- "Weft.OpenFlow.Wire" for reading and writing them.
--
-- @since 0.1.0
module Weft.OpenFlow.Message
  ( -- * Messages
    Message (..),
    Features (..),
    SwitchConfig (..),

    -- * Packets
    PacketIn (..),
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

import Data.Bits (testBit)
import Data.ByteString (ByteString)
import Data.ByteString.Short (ShortByteString)
import Data.Word (Word16, Word32, Word64, Word8)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Types

-- | A message without its header.
data Message
  = -- | The words of its version bitmap; none in 1.0.
    Hello [Word32]
  | -- | Type, code, and the start of the message that was wrong.
    Error !Word16 !Word16 !ByteString
  | -- | Is the other side alive?
    EchoRequest !ByteString
  | -- | It is; with the request's bytes.
    EchoReply !ByteString
  | -- | A vendor's message (VENDOR in 1.0). In 1.3 the bytes begin with its type, of four bytes.
    Experimenter !Word32 !ByteString
  | -- | What can the switch do?
    FeaturesRequest
  | -- | The answer.
    FeaturesReply !Features
  | -- | What is its configuration?
    GetConfigRequest
  | -- | The answer.
    GetConfigReply !SwitchConfig
  | -- | Change it.
    SetConfig !SwitchConfig
  | -- | A packet for the controller.
    PacketInMessage !PacketIn
  | -- | A flow is gone.
    FlowRemovedMessage !FlowRemoved
  | -- | A port was added, removed or changed.
    PortStatus !PortReason !Port
  | -- | Send a packet.
    PacketOutMessage !PacketOut
  | -- | Change the flow table.
    FlowModMessage !FlowMod
  | -- | Ask for statistics (MULTIPART in 1.3).
    StatsRequestMessage !StatsRequest
  | -- | A part of the answer; 'True' if more follow.
    StatsReplyMessage !Bool !StatsReply
  | -- | Finish all before this.
    BarrierRequest
  | -- | That is done.
    BarrierReply
  | -- | Ask for a role, with the generation of the election (1.3).
    RoleRequest !Role !Word64
  | -- | The role, and the generation (1.3).
    RoleReply !Role !Word64
  | -- | Which events does this controller get (1.3)?
    GetAsyncRequest
  | -- | The answer (1.3).
    GetAsyncReply !AsyncConfig
  | -- | Change it (1.3).
    SetAsync !AsyncConfig
  deriving (Eq, Show)

-- | What a switch is.
data Features = Features
  { -- | Who it is.
    featuresDatapath :: !DatapathId,
    -- | How many packets it holds for the controller.
    featuresBuffers :: !Word32,
    -- | How many flow tables it has.
    featuresTables :: !Word8,
    -- | Which of its connections this is (1.3): 0 is the main one.
    featuresAuxiliary :: !Word8,
    -- | Bits of OFPC.
    featuresCapabilities :: !Word32,
    -- | Bits of its actions (1.0).
    featuresActions :: !Word32,
    -- | Its ports (1.0; in 1.3 they are asked for by 'PortDescRequest').
    featuresPorts :: [Port]
  }
  deriving (Eq, Show)

-- | How a switch treats packets.
data SwitchConfig = SwitchConfig
  { -- | How fragments are handled.
    configFlags :: !Word16,
    -- | How much of a packet that matches nothing the controller gets, in bytes.
    configMissSendLen :: !Word16
  }
  deriving (Eq, Show)

-- | A packet for the controller.
data PacketIn = PacketIn
  { -- | Where the switch keeps it, or 'noBuffer'.
    packetInBuffer :: !BufferId,
    -- | Its whole length in bytes.
    packetInTotal :: !Word16,
    -- | Where it came in; 'portAny' if the switch does not say.
    packetInPort :: !PortNo,
    -- | 'reasonNoMatch', 'reasonAction' or another.
    packetInReason :: !Word8,
    -- | The table that sent it (1.3).
    packetInTable :: !Word8,
    -- | The cookie of the flow that sent it (1.3).
    packetInCookie :: !Word64,
    -- | What the switch says of it besides the port (1.3).
    packetInFields :: [Field],
    -- | The packet or its start; a part of what was received.
    packetInData :: !ByteString
  }
  deriving (Eq, Show)

-- | No flow matched (in 1.3: the table-miss flow did).
reasonNoMatch :: Word8
reasonNoMatch = 0

-- | A flow sent it.
reasonAction :: Word8
reasonAction = 1

-- | Send a packet.
data PacketOut = PacketOut
  { -- | Where the switch keeps it; 'noBuffer' if the packet is here.
    packetOutBuffer :: !BufferId,
    -- | Where it came in, or 'portController'.
    packetOutInPort :: !PortNo,
    -- | What to do with it; nothing drops it.
    packetOutActions :: [Action],
    -- | The packet, if it is in no buffer.
    packetOutData :: !ByteString
  }
  deriving (Eq, Show)

-- | Change the flow table.
data FlowMod = FlowMod
  { -- | The controller's own mark.
    flowCookie :: !Word64,
    -- | Which bits of it choose flows to change (1.3).
    flowCookieMask :: !Word64,
    -- | The table (1.3).
    flowTable :: !Word8,
    -- | What to do.
    flowCommand :: !FlowCommand,
    -- | Seconds without a packet after which it goes; 0 never.
    flowIdleTimeout :: !Word16,
    -- | Seconds after which it goes; 0 never.
    flowHardTimeout :: !Word16,
    -- | The highest that matches counts.
    flowPriority :: !Word16,
    -- | A packet to apply it to, or 'noBuffer'.
    flowBuffer :: !BufferId,
    -- | For deleting: flows that send to this port; 'portAny' is all.
    flowOutPort :: !PortNo,
    -- | For deleting: flows that use this group; 0xffffffff is all (1.3).
    flowOutGroup :: !Word32,
    -- | Bits, as 'flagSendFlowRemoved'.
    flowFlags :: !Word16,
    -- | Which packets.
    flowMatch :: !Match,
    -- | What is done with them.
    flowInstructions :: [Instruction]
  }
  deriving (Eq, Show)

-- | What to do with the flow table.
data FlowCommand = FlowAdd | FlowModify | FlowModifyStrict | FlowDelete | FlowDeleteStrict
  deriving (Eq, Show, Enum, Bounded)

-- | Add a flow for all packets, of priority 0x8000, in table 0, that drops them and lasts for ever.
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

-- | Tell the controller when it goes.
flagSendFlowRemoved :: Word16
flagSendFlowRemoved = 1

-- | All tables, for deleting and for statistics.
tableAll :: Word8
tableAll = 0xff

-- | A flow is gone.
data FlowRemoved = FlowRemoved
  { -- | The controller's mark.
    removedCookie :: !Word64,
    -- | Its priority.
    removedPriority :: !Word16,
    -- | 0 idle, 1 hard timeout, 2 deleted.
    removedReason :: !Word8,
    -- | Its table (1.3).
    removedTable :: !Word8,
    -- | How long it was there: seconds, and nanoseconds beyond.
    removedSeconds :: !Word32,
    -- | Nanoseconds beyond the seconds.
    removedNanoseconds :: !Word32,
    -- | Its idle timeout in seconds.
    removedIdleTimeout :: !Word16,
    -- | Its hard timeout in seconds (1.3).
    removedHardTimeout :: !Word16,
    -- | Packets that it has matched.
    removedPackets :: !Word64,
    -- | Their bytes.
    removedBytes :: !Word64,
    -- | Which packets.
    removedMatch :: !Match
  }
  deriving (Eq, Show)

-- | A port of a switch.
data Port = Port
  { -- | Its number.
    portNumber :: !PortNo,
    -- | Its address.
    portAddress :: !MacAddress,
    -- | Its name, at most 15 bytes. Not a part of what was received, which it would keep alive.
    portName :: !ShortByteString,
    -- | Bits of OFPPC; bit 0: down by the operator.
    portConfig :: !Word32,
    -- | Bits of OFPPS; bit 0: no link.
    portState :: !Word32,
    -- | Bits of OFPPF that hold now, are advertised, are possible, and the peer's.
    portFeatures :: !(Word32, Word32, Word32, Word32),
    -- | Speed now and at best, in kbit/s (1.3).
    portSpeeds :: !(Word32, Word32)
  }
  deriving (Eq, Show)

-- | Switched off, or without a link.
portIsDown :: Port -> Bool
portIsDown p = testBit (portConfig p) 0 || testBit (portState p) 0

-- | What happened to a port.
data PortReason = PortAdded | PortDeleted | PortModified
  deriving (Eq, Show, Enum, Bounded)

-- | What a controller may do with a switch (1.3).
data Role = RoleNoChange | RoleEqual | RoleMaster | RoleSlave
  deriving (Eq, Show, Enum, Bounded)

-- | Which events a controller gets, a bit a reason: as master or equal, and as slave (1.3).
data AsyncConfig = AsyncConfig
  { -- | PACKET_IN.
    asyncPacketIn :: !(Word32, Word32),
    -- | PORT_STATUS.
    asyncPortStatus :: !(Word32, Word32),
    -- | FLOW_REMOVED.
    asyncFlowRemoved :: !(Word32, Word32)
  }
  deriving (Eq, Show)

-- | What statistics to send.
data StatsRequest
  = -- | Maker, hardware, software.
    DescRequest
  | -- | Each flow that the filter chooses.
    FlowStatsRequest !FlowFilter
  | -- | Each table.
    TableStatsRequest
  | -- | A port, or all with 'portAny'.
    PortStatsRequest !PortNo
  | -- | What ports there are (1.3).
    PortDescRequest
  | -- | Any other: type and body.
    OtherStatsRequest !Word16 !ByteString
  deriving (Eq, Show)

-- | Statistics, or a part of them.
data StatsReply
  = -- | Maker, hardware, software.
    DescReply !Description
  | -- | Flows.
    FlowStatsReply [FlowStats]
  | -- | Tables.
    TableStatsReply [TableStats]
  | -- | Ports.
    PortStatsReply [PortStats]
  | -- | What ports there are (1.3).
    PortDescReply [Port]
  | -- | Any other: type and body.
    OtherStatsReply !Word16 !ByteString
  deriving (Eq, Show)

-- | Texts about a switch.
data Description = Description
  { -- | Who made it.
    descManufacturer :: !ByteString,
    -- | The hardware.
    descHardware :: !ByteString,
    -- | The software.
    descSoftware :: !ByteString,
    -- | The serial number.
    descSerial :: !ByteString,
    -- | The datapath, for people.
    descDatapath :: !ByteString
  }
  deriving (Eq, Show)

-- | Which flows.
data FlowFilter = FlowFilter
  { -- | In this table; 'tableAll' is all.
    filterTable :: !Word8,
    -- | That send to this port; 'portAny' is all.
    filterOutPort :: !PortNo,
    -- | That use this group; 0xffffffff is all (1.3).
    filterOutGroup :: !Word32,
    -- | With this cookie, under the mask (1.3).
    filterCookie :: !Word64,
    -- | The mask (1.3).
    filterCookieMask :: !Word64,
    -- | Whose match is this or narrower.
    filterMatch :: !Match
  }
  deriving (Eq, Show)

-- | All flows of all tables.
everyFlow :: FlowFilter
everyFlow = FlowFilter tableAll portAny 0xffffffff 0 0 []

-- | A flow and what it has matched.
data FlowStats = FlowStats
  { -- | Its table.
    flowStatsTable :: !Word8,
    -- | How long it has been there, in seconds.
    flowStatsSeconds :: !Word32,
    -- | Nanoseconds beyond.
    flowStatsNanoseconds :: !Word32,
    -- | Its priority.
    flowStatsPriority :: !Word16,
    -- | Its idle timeout in seconds.
    flowStatsIdleTimeout :: !Word16,
    -- | Its hard timeout in seconds.
    flowStatsHardTimeout :: !Word16,
    -- | Its flags (1.3).
    flowStatsFlags :: !Word16,
    -- | The controller's mark.
    flowStatsCookie :: !Word64,
    -- | Packets that it has matched.
    flowStatsPackets :: !Word64,
    -- | Their bytes.
    flowStatsBytes :: !Word64,
    -- | Which packets.
    flowStatsMatch :: !Match,
    -- | What is done with them.
    flowStatsInstructions :: [Instruction]
  }
  deriving (Eq, Show)

-- | The counters of a port.
data PortStats = PortStats
  { -- | Which port.
    portStatsPort :: !PortNo,
    -- | Packets received and sent, bytes received and sent, dropped on receiving and sending, errors on receiving and
    -- sending, frame alignment errors, overruns, CRC errors, collisions: twelve, in the order of the protocol.
    portStatsCounters :: [Word64],
    -- | How long it has been there, in seconds and nanoseconds beyond (1.3).
    portStatsUptime :: !(Word32, Word32)
  }
  deriving (Eq, Show)

-- | The counters of a table.
data TableStats = TableStats
  { -- | Which table.
    tableStatsId :: !Word8,
    -- | Its name, at most 31 bytes (1.0).
    tableStatsName :: !ByteString,
    -- | The wildcards that it supports (1.0).
    tableStatsWildcards :: !Word32,
    -- | How many flows it can hold (1.0).
    tableStatsMax :: !Word32,
    -- | How many it holds.
    tableStatsActive :: !Word32,
    -- | Packets that were looked up.
    tableStatsLookups :: !Word64,
    -- | Packets that matched.
    tableStatsMatched :: !Word64
  }
  deriving (Eq, Show)
