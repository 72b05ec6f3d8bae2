-- |
-- What a controller is made of: settings, the switches that are connected, and the network that they report.
module Weft.OpenFlow.Controller.Types
  ( -- * Controllers
    Controller (..),
    Settings (..),
    defaultSettings,
    Incident (..),
    Totals (..),

    -- * Switches
    Session (..),
    Asking (..),
    Instance,
    newInstance,

    -- * The network
    changeTopology,

    -- * Time
    currentMillis,

    -- * Sending
    nextXid,
    postMessage,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.MVar
import Control.Exception (SomeException, allowInterrupt, evaluate, finally, mask_)
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Word (Word32, Word64)
import GHC.Clock (getMonotonicTimeNSec)
import Weft.Duration (Duration, seconds)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Outlet
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (encode)
import Weft.Transport (Connection)

-- | Settings; begin with 'defaultSettings'.
data Settings = Settings
  { -- | The versions that are offered.
    settingsVersions :: [Version],
    -- | A switch that says nothing for that long is asked for an echo.
    settingsEchoAfter :: Duration,
    -- | And dropped if it says nothing for that long after it.
    settingsDeadAfter :: Duration,
    -- | How long a switch may take for HELLO and FEATURES_REPLY.
    settingsHandshake :: Duration,
    -- | How long a switch may take nothing of what is sent to it.
    settingsPatience :: Duration,
    -- | Find links by LLDP, and flood along a spanning tree; 'Nothing': switches flood by themselves.
    settingsTopology :: Maybe TopologySettings,
    -- | How often LLDP frames are sent.
    settingsDiscovery :: Duration,
    -- | How often the counters of ports are asked for; 'Nothing' is never.
    settingsPortStats :: Maybe Duration,
    -- | What becomes of a connection before the first byte: TLS, say.
    settingsUpgrade :: Connection -> IO Connection,
    -- | The role to have at a switch that connects, and the generation of the election: asked for in 1.3, kept to in
    -- 1.0, where a slave says nothing. 'Nothing' does not ask, and acts as an equal.
    settingsRole :: DatapathId -> IO (Maybe (Role, Word64)),
    -- | Called with what went wrong, from the threads of connections; it must not block.
    settingsOnIncident :: Incident -> IO (),
    -- | Called when a switch has come and when it has gone.
    settingsOnSwitch :: DatapathId -> Bool -> IO ()
  }

-- | What can go wrong with a switch.
data Incident
  = -- | Its connection ended for that reason; the switch, if it is known.
    ConnectionEnded (Maybe DatapathId) String
  | -- | It sent an ERROR: type and code.
    SwitchError DatapathId Int Int
  | -- | A message could not be understood.
    Misunderstood DatapathId String
  | -- | An application's message has no encoding in the switch's version.
    Unencodable DatapathId String
  | -- | A thread of the controller failed.
    Failed SomeException
  deriving (Show)

-- | Both versions; echo after 10 s, dead after 10 s more; handshakes of 10 s; topology with LLDP every 5 s; counters of
-- ports every 5 s; no roles; problems are not reported.
defaultSettings :: Settings
defaultSettings =
  Settings
    { settingsVersions = [V10, V13],
      settingsEchoAfter = seconds 10,
      settingsDeadAfter = seconds 10,
      settingsHandshake = seconds 10,
      settingsPatience = seconds 30,
      settingsTopology = Just defaultTopologySettings,
      settingsDiscovery = seconds 5,
      settingsPortStats = Just (seconds 5),
      settingsUpgrade = pure,
      settingsRole = const (pure Nothing),
      settingsOnIncident = const (pure ()),
      settingsOnSwitch = \_ _ -> pure ()
    }

-- | A controller that runs.
data Controller = Controller
  { controllerSettings :: !Settings,
    -- | The applications; made for each switch.
    controllerNewInstance :: !(IO Instance),
    -- | The switches that are connected. Changed atomically by their threads.
    controllerSessions :: !(IORef (Map.Map DatapathId Session)),
    -- | The network, always evaluated. Written by 'changeTopology' only, read by any thread.
    controllerTopology :: !(IORef Topology),
    -- | Held by 'changeTopology' while it computes.
    controllerTopologyLock :: !(MVar ()),
    -- | Counters, of switches that are gone too; each session has its own.
    controllerTotals :: !(IORef Totals),
    -- | Numbers sessions, so that an old one does not remove a new one.
    controllerNext :: !(IORef Int)
  }

-- | Numbers of messages.
data Totals = Totals
  { -- | Received.
    totalReceived :: !Int,
    -- | PACKET_IN among them.
    totalPackets :: !Int,
    -- | Sent by the applications.
    totalReplies :: !Int,
    -- | Messages that were not understood, and connections that ended for one.
    totalFaults :: !Int
  }

-- | The applications of a switch: an event, and what they reply. Called under 'sessionLock'.
type Instance = Context -> Event -> IO [Reply]

-- | What makes the instance for a switch.
newInstance :: Placement -> IO (IO Instance)
newInstance (PerSwitch app) = pure $ do
  ref <- newIORef (appStart app)
  pure $ \context event -> do
    s <- readIORef ref
    case appHandle app context event s of
      (!s', replies) -> replies <$ writeIORef ref s'
newInstance (Shared app) = do
  var <- newMVar (appStart app)
  pure . pure $ \context event -> modifyMVar var $ \s ->
    case appHandle app context event s of
      (!s', replies) -> pure (s', replies)

-- | Change the network, from any thread. The new one is computed under a lock that nobody queues for: a thread that finds
-- it held yields and tries again.
--
-- Note [Convoys]. With 'atomicModifyIORef'' a thread that is preempted while it computes leaves a thunk behind. The
-- next ones build on it and block, in a queue in which each takes one step for one turn of all threads. Switches
-- whose hosts are all known then keep the processor, and those that still report hosts (512 steps for a batch) are not
-- served for minutes: 20 to 95 of 100 under cbench. A queue at an 'MVar' does the same.
changeTopology :: Controller -> (Topology -> (Topology, a)) -> IO a
changeTopology c step = mask_ attempt
  where
    attempt = tryTakeMVar (controllerTopologyLock c) >>= maybe (yield >> allowInterrupt >> attempt) (const change)
    change = flip finally (putMVar (controllerTopologyLock c) ()) $ do
      (new, result) <- step <$> readIORef (controllerTopology c)
      _ <- evaluate new
      result <$ writeIORef (controllerTopology c) new

-- | A switch that is connected.
data Session = Session
  { sessionNumber :: !Int,
    -- | What it is, without its ports: those are in the topology.
    sessionFeatures :: !Features,
    sessionVersion :: !Version,
    sessionOutlet :: !Outlet,
    sessionInstance :: !Instance,
    -- | Held while an event is handled: by its own thread, and by those that bring an event from elsewhere.
    sessionLock :: !(MVar ()),
    -- | Whether this controller is the switch's master or its equal; a slave ignores packets. Written by whoever
    -- changes roles, read by its thread.
    sessionActive :: !(IORef Bool),
    -- | The last number given to a message. Changed atomically.
    sessionXid :: !(IORef Word32),
    -- | Statistics that were asked for. Changed atomically.
    sessionAsking :: !(IORef (Map.Map Xid Asking)),
    -- | The last two counters of each port, the newer one first, and when they came. Written by the poller.
    sessionPortStats :: !(IORef (Map.Map PortNo [(Millis, PortStats)])),
    -- | Written by its thread.
    sessionTotals :: !(IORef Totals)
  }

-- | Parts that have come, the last one first, and where all of them go.
data Asking = Asking [StatsReply] (MVar (Maybe [StatsReply]))

-- | The monotonic clock.
currentMillis :: IO Millis
currentMillis = fromIntegral . (`div` 1000000) <$> getMonotonicTimeNSec

-- | A number for a request. Those of the handshake are small.
nextXid :: Session -> IO Xid
nextXid s = atomicModifyIORef' (sessionXid s) (\n -> let n' = if n == maxBound then 256 else n + 1 in (n', n'))

-- | Send a message from any thread, without waiting. 'False': the switch's version has no encoding for it.
postMessage :: Session -> Xid -> Message -> IO Bool
postMessage s xid message = case encode (sessionVersion s) xid message of
  Nothing -> pure False
  Just bytes -> True <$ post (sessionOutlet s) [bytes :: ByteString]
