{-# LANGUAGE ExistentialQuantification #-}

-- |
-- Applications: what a controller does with what its switches say. An application is a value: a state to begin with,
-- and a pure function from an event and the state to the next state and replies.
--
-- > -- Tell what came in, and do nothing about it.
-- > count :: App Int
-- > count = App 0 $ \_ event n -> case event of
-- >   Packet _ -> (n + 1, [])
-- >   _ -> (n, [])
--
-- 'andThen' puts one behind another. 'perSwitch' gives each switch a state of its own, which only that switch's events
-- change; 'shared' has one state for all switches, changed by one event at a time.
--
-- @since 0.1.0
module Weft.OpenFlow.App
  ( -- * Applications
    App (..),
    andThen,
    Placement (..),
    perSwitch,
    shared,

    -- * What happens
    Event (..),
    Context (..),
    Flooding (..),
    floodActions,
    Millis,

    -- * What is done
    Reply (..),
    Notice (..),
    addFlow,
    release,
  )
where

import qualified Data.ByteString as B
import Data.Int (Int64)
import Data.Word (Word16, Word32)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types

-- | An application with states of type @s@.
data App s = App
  { -- | Before the first event.
    appStart :: s,
    -- | What to do.
    appHandle :: Context -> Event -> s -> (s, [Reply])
  }

-- | Both get each event, the first one first, unless that replies 'Stop'. Replies go out in the same order.
andThen :: App a -> App b -> App (a, b)
andThen (App a f) (App b g) = App (a, b) $ \context event (s, t) -> case f context event s of
  (s', replies)
    | any stops replies -> ((s', t), replies)
    | otherwise -> case g context event t of
      (t', others) -> ((s', t'), if null replies then others else replies ++ others)
  where
    stops Stop = True
    stops _ = False

infixr 6 `andThen`

-- | An application, and whose its state is.
data Placement = forall s. PerSwitch (App s) | forall s. Shared (App s)

-- | Each switch begins anew when it connects. Switches do not wait for one another.
perSwitch :: App s -> Placement
perSwitch = PerSwitch

-- | One state for all switches and for as long as the controller runs.
shared :: App s -> Placement
shared = Shared

-- | Milliseconds since some moment.
type Millis = Int64

-- | What an application knows besides its state.
data Context = Context
  { -- | When it happened, roughly: the time at which the bytes came in.
    contextTime :: !Millis,
    -- | Whose event it is.
    contextSwitch :: !DatapathId,
    -- | What the switch speaks.
    contextVersion :: !Version,
    -- | How to flood there without a loop.
    contextFlooding :: !Flooding
  }

-- | What is known of the network around a switch.
data Flooding
  = -- | Nothing: the switch floods by itself.
    FloodByItself
  | -- | The ports of the spanning tree and those to hosts; and the ports to other switches, in the tree or not.
    FloodTo [PortNo] [PortNo]
  deriving (Eq, Show)

-- | The actions that flood a packet which came in there.
floodActions :: Context -> PortNo -> [Action]
floodActions context from = case contextFlooding context of
  FloodByItself -> [output portFlood]
  FloodTo ports _ -> [output p | p <- ports, p /= from]

-- | What happened at a switch.
data Event
  = -- | It is there; in 1.3 its ports follow as 'PortChanged'.
    SwitchUp !Features
  | -- | It is gone. For 'shared' applications; one that is 'perSwitch' ends with it.
    SwitchDown
  | -- | A packet for the controller.
    Packet !PacketIn
  | -- | A flow is gone that was to report it.
    FlowGone !FlowRemoved
  | -- | A port is new, gone or changed.
    PortChanged !PortReason !Port
  | -- | The ports to other switches or the spanning tree have changed here.
    TreeChanged
  | -- | Any other message that the controller did not ask for itself.
    Other !Message

-- | What an application wants.
data Reply
  = -- | This message, to the event's switch.
    Send !Message
  | -- | This message, to another switch, if it is there.
    SendTo !DatapathId !Message
  | -- | Applications behind this one do not see the event.
    Stop
  | -- | For the controller's view of the network.
    Tell !Notice

-- | What an application found out.
data Notice
  = -- | A host is at this port; its IPv4 address, if that is known.
    HostSeen !MacAddress !PortNo !(Maybe Word32)

-- | Add a flow: priority, idle timeout in seconds, match and actions (none drops).
addFlow :: Word16 -> Word16 -> Match -> [Action] -> Message
addFlow priority idle match actions =
  FlowModMessage
    defaultFlowMod
      { flowPriority = priority,
        flowIdleTimeout = idle,
        flowMatch = match,
        flowInstructions = [ApplyActions actions | not (null actions)]
      }

-- | Do this with the packet of a PACKET_IN. With no actions the switch drops it and frees its buffer; if it has none,
-- there is nothing to send.
release :: PacketIn -> [Action] -> [Reply]
release p actions
  | packetInBuffer p /= noBuffer = let !reply = out (packetInBuffer p) B.empty in [reply]
  | null actions = []
  | otherwise = let !reply = out noBuffer (packetInData p) in [reply]
  where
    out buffer = Send . PacketOutMessage . PacketOut buffer (packetInPort p) actions
