{-# LANGUAGE ExistentialQuantification #-}

-- |
-- Applications define how a controller reacts to its switches. An application is a value: an initial state, and a pure
-- function from an event and the state to the next state and replies.
--
-- > -- Count packets, without any reply.
-- > count :: App Int
-- > count = App 0 $ \_ event n -> case event of
-- >   Packet _ -> (n + 1, [])
-- >   _ -> (n, [])
--
-- 'andThen' chains two applications. 'perSwitch' gives each switch its own state, which only that switch's events
-- change. 'shared' has one state for all switches, and handles one event at a time.
--
-- @since 0.1.0
module Weft.OpenFlow.App
  ( -- * Applications
    App (..),
    andThen,
    Placement (..),
    perSwitch,
    shared,

    -- * Events
    Event (..),
    Context (..),
    Flooding (..),
    floodActions,
    Millis,

    -- * Replies
    Reply (..),
    Notice (..),
    addFlow,
    release,
  )
where

import qualified Data.ByteString as B
import Data.Int (Int64)
import qualified Data.Map.Strict as Map
import Data.Word (Word16, Word32)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types

-- | An application with states of type @s@.
data App s = App
  { -- | The initial state.
    appStart :: s,
    -- | The reaction to an event.
    appHandle :: Context -> Event -> s -> (s, [Reply])
  }

-- | Chain two applications. Each event goes to the first one and then to the second, unless the first replies 'Stop'.
-- Replies are sent in the same order. Both states are evaluated after each event (to weak head normal form), like
-- that of a single application.
andThen :: App a -> App b -> App (a, b)
andThen (App a f) (App b g) = App (a, b) $ \context event (s, t) -> case f context event s of
  (!s', replies)
    | any stops replies -> ((s', t), replies)
    | otherwise -> case g context event t of
      (!t', others) -> ((s', t'), if null replies then others else replies ++ others)
  where
    stops Stop = True
    stops _ = False

infixr 6 `andThen`

-- | An application, and whether its state is per switch or shared.
data Placement = forall s. PerSwitch (App s) | forall s. Shared (App s)

-- | Give each switch a state of its own, which is initialised when the switch connects. Switches do not wait for one
-- another.
perSwitch :: App s -> Placement
perSwitch = PerSwitch

-- | Use one state for all switches, which lasts as long as the controller runs. Events are handled one at a time.
shared :: App s -> Placement
shared = Shared

-- | Milliseconds since an arbitrary origin.
type Millis = Int64

-- | The circumstances of an event.
data Context = Context
  { -- | The approximate time of the event: when its bytes were received.
    contextTime :: !Millis,
    -- | The switch that sent the event.
    contextSwitch :: !DatapathId,
    -- | The switch's protocol version.
    contextVersion :: !Version,
    -- | How to flood at this switch without a loop.
    contextFlooding :: !Flooding,
    -- | The ports that the switch has announced and not deleted, at most 'Weft.OpenFlow.Topology.topologyMostPorts',
    -- without features and speeds.
    contextPorts :: Map.Map PortNo Port
  }

-- | The known topology around a switch, as far as flooding needs it.
data Flooding
  = -- | Unknown: the switch's own flooding is used.
    FloodByItself
  | -- | The ports to flood to (those in the spanning tree and those to hosts), and all ports to other switches.
    FloodTo [PortNo] [PortNo]
  deriving (Eq, Show)

-- | The actions that flood a packet received on that port.
floodActions :: Context -> PortNo -> [Action]
floodActions context from = case contextFlooding context of
  FloodByItself -> [output portFlood]
  FloodTo ports _ -> [output p | p <- ports, p /= from]

-- | An event of a switch.
data Event
  = -- | The switch has connected, or this controller, which was a slave at it, has become its master. In 1.3 its ports
    -- follow as 'PortChanged'. A switch of 1.3 reports packets by a flow of the controller: it is in table 0, has
    -- priority 0 and matches all packets. The controller installs it before this event, and again when it is deleted.
    -- An application that wants something else for all packets installs a flow of priority 1.
    SwitchUp !Features
  | -- | The switch has disconnected. Only 'shared' applications get this event; a 'perSwitch' state ends with its
    -- switch. A switch that connects again before its last connection has ended has not disconnected.
    SwitchDown
  | -- | A packet for the controller.
    Packet !PacketIn
  | -- | A flow was removed that was installed with a request to report this.
    FlowGone !FlowRemoved
  | -- | A port was added, removed or changed.
    PortChanged !PortReason !Port
  | -- | The switch's ports to other switches, or its part of the spanning tree, have changed; or a link elsewhere has
    -- left the tree, so that hosts may be behind other ports to switches.
    TreeChanged
  | -- | Any other message, except replies to the controller's own requests.
    Other !Message

-- | A reply of an application.
data Reply
  = -- | Send this message to the event's switch.
    Send !Message
  | -- | Send this message to another switch, if it is connected.
    SendTo !DatapathId !Message
  | -- | Hide the event from the applications that follow.
    Stop
  | -- | Update the controller's view of the network.
    Notify !Notice

-- | Information that an application has found out.
data Notice
  = -- | A host is at this port, with its IPv4 address if that is known.
    HostSeen !MacAddress !PortNo !(Maybe Word32)

-- | Add a flow with a priority, an idle timeout in seconds, a match and actions (no actions: drop).
addFlow :: Word16 -> Word16 -> Match -> [Action] -> Message
addFlow priority idle match actions =
  FlowModMessage
    defaultFlowMod
      { flowPriority = priority,
        flowIdleTimeout = idle,
        flowMatch = match,
        flowInstructions = [ApplyActions actions | not (null actions)]
      }

-- | Apply actions to the packet of a PACKET_IN. With no actions, the switch drops the packet and frees its buffer; if
-- the packet is not buffered, nothing is sent. Nor is a packet sent of which only the first bytes are left
-- ('packetIsKept'): it is lost.
release :: PacketIn -> [Action] -> [Reply]
release p actions
  | packetInBuffer p /= noBuffer = let !reply = out (packetInBuffer p) B.empty in [reply]
  | null actions || not (packetIsKept p) = []
  | otherwise = let !reply = out noBuffer (packetInData p) in [reply]
  where
    out buffer = Send . PacketOutMessage . PacketOut buffer (packetInPort p) actions
