-- |
-- The state of a controller: its settings, the connected switches, and the network that they report. Its functions
-- may be called from any thread.
module Weft.OpenFlow.Controller.Types
  ( -- * Controllers
    Controller (..),
    Settings (..),
    defaultSettings,
    Incident (..),
    report,
    reportOmitted,
    Totals (..),

    -- * Switches
    Session (..),
    Asking (..),
    Reading (..),
    Outcome,
    RequestFailure (..),
    Claim (..),
    Instance,
    newInstance,

    -- * The network
    changeTopology,
    Sighting (..),
    noteHosts,
    addTotals,
    noTotals,

    -- * Time
    currentMillis,

    -- * Sending
    firstOwnXid,
    nextXid,
    replyXid,
    activeNow,
    postMessage,
    sendTo,
    peerAddress,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.MVar
import Control.Exception (SomeAsyncException, SomeException, allowInterrupt, catch, evaluate, finally, fromException, mask_, throwIO)
import Control.Monad (unless, when)
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import Data.IORef
import Data.List (foldl')
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word32, Word64)
import GHC.Clock (getMonotonicTimeNSec)
import Weft.Duration (Duration, seconds)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Descriptions
import Weft.OpenFlow.Controller.Reports
import Weft.OpenFlow.Controller.SendQueue
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (Problem, encode)
import Weft.Scope (Scope)
import Weft.Socket.Address (unmapped)
import Weft.Transport (Connection, connPeer)

-- | Settings; start from 'defaultSettings'.
data Settings = Settings
  { -- | The protocol versions that the controller supports.
    settingsVersions :: [Version],
    -- | A switch that has been silent for that time is sent an echo request.
    settingsEchoAfter :: Duration,
    -- | If it stays silent for that time after the request, its connection is closed.
    settingsDeadAfter :: Duration,
    -- | The maximum time until a switch has sent HELLO and FEATURES_REPLY.
    settingsHandshake :: Duration,
    -- | The maximum time for which a switch may receive nothing of what is sent to it.
    settingsSendTimeout :: Duration,
    -- | Discover links by LLDP, and flood along a spanning tree; 'Nothing': switches flood by themselves.
    settingsTopology :: Maybe TopologySettings,
    -- | The time between two LLDP frames of a port.
    settingsDiscovery :: Duration,
    -- | The key of the tags in LLDP frames; 'Nothing': a random one is made when the controller starts.
    settingsLldpKey :: Maybe LldpKey,
    -- | If a second connection claims the datapath ID of a connected switch, the first one is sent an echo request. If
    -- it answers within this time, the second one is closed; otherwise the second one takes its place.
    settingsTakeover :: Duration,
    -- | The time between two requests for the counters of ports; 'Nothing': they are not requested. A switch that has
    -- not replied yet is not asked again, for at most 5 seconds.
    settingsPortStats :: Maybe Duration,
    -- | Converts an accepted connection before its first byte is read, for example to TLS.
    settingsUpgrade :: Connection -> IO Connection,
    -- | Whether a connection, as 'settingsUpgrade' has made it, may claim a datapath ID; if not, the reason. It can
    -- compare the ID with the certificate in its 'Weft.Transport.connSecurity'. A connection that may is subject to
    -- 'settingsTakeover' like any other.
    settingsMayClaim :: Connection -> DatapathId -> IO (Maybe String),
    -- | The controller's role at a switch that connects, and the generation ID of the election. In 1.3 the controller
    -- sends them to the switch; 1.0 has no roles, and a slave sends nothing but echoes. 'Nothing': the controller acts
    -- as an equal. A switch of 1.3 may have seen a later generation ID; it is then asked with one that it accepts.
    settingsRole :: DatapathId -> IO (Maybe (Role, Word64)),
    -- | The instant until which the controller may be master or equal, by the clock of 'contextTime'. It is read before
    -- messages of a switch are handled and before one is sent to it, so it must be cheap. If it is over, the controller
    -- becomes a slave of the switch first: a thread that sets roles may run later than the one of the switch, if the
    -- process was stopped.
    settingsActiveUntil :: IO Millis,
    -- | Called by any thread of the controller when a switch has connected or disconnected, or something went wrong.
    -- For at most ten incidents a second of a switch, and a hundred of all, and then for the numbers of the others
    -- ('IncidentsOmitted'). It must not block: the controller does not end before it has returned. Its exceptions are
    -- dropped, so that no connection ends because of them.
    settingsOnIncident :: Incident -> IO (),
    -- | Called each time that a switch has connected ('True') or disconnected, one call at a time. Other switches that
    -- connect or disconnect wait meanwhile, and so does the end of the controller: a call for a switch that has
    -- disconnected is not interrupted. For a log, use 'settingsOnIncident', whose calls are limited.
    settingsOnSwitch :: DatapathId -> Bool -> IO ()
  }

-- | A problem with a switch, or that it has connected or disconnected.
data Incident
  = -- | A switch has connected. If it was connected before, this is another connection.
    Connected DatapathId
  | -- | A switch has no connection any more.
    Disconnected DatapathId
  | -- | A connection ended: the remote address, the switch, if it is known, and the reason.
    ConnectionEnded String (Maybe DatapathId) String
  | -- | A switch sent an ERROR message: type and code.
    SwitchError DatapathId Int Int
  | -- | A switch did not give this controller the role that it asked for: the reason.
    RoleRefused DatapathId String
  | -- | A message could not be decoded: the reason.
    Misunderstood DatapathId String
  | -- | A switch reported a packet, of which only the first bytes are left: their number, and the packet's length.
    PacketTruncated DatapathId Int Int
  | -- | A message of an application has no encoding in the switch's version: the kind of message.
    Unencodable DatapathId String
  | -- | A thread of the controller failed.
    Failed SomeException
  | -- | That many incidents of a second were not reported: of this switch, or of others if it is not known.
    IncidentsOmitted (Maybe DatapathId) Int
  deriving (Show)

-- | Settings for both versions: an echo request after 10 s of silence, and the connection closed after 10 s more;
-- handshakes of at most 10 s; at most 30 s in which a switch receives nothing; 2 s to defend a datapath ID, which any
-- connection may claim; LLDP frames every 5 s, with a random key; counters of ports every 5 s; no roles; problems are
-- not reported.
defaultSettings :: Settings
defaultSettings =
  Settings
    { settingsVersions = [V10, V13],
      settingsEchoAfter = seconds 10,
      settingsDeadAfter = seconds 10,
      settingsHandshake = seconds 10,
      settingsSendTimeout = seconds 30,
      settingsTopology = Just defaultTopologySettings,
      settingsDiscovery = seconds 5,
      settingsLldpKey = Nothing,
      settingsTakeover = seconds 2,
      settingsPortStats = Just (seconds 5),
      settingsUpgrade = pure,
      settingsMayClaim = \_ _ -> pure Nothing,
      settingsRole = const (pure Nothing),
      settingsActiveUntil = pure maxBound,
      settingsOnIncident = const (pure ()),
      settingsOnSwitch = \_ _ -> pure ()
    }

-- | A running controller.
data Controller = Controller
  { controllerSettings :: !Settings,
    -- | Creates the applications of a switch.
    controllerNewInstance :: !(IO Instance),
    -- | The connected switches. Changed atomically by their threads.
    controllerSessions :: !(IORef (Map.Map DatapathId Session)),
    -- | Held while a switch is added to the sessions and to the network, and while it is removed from both. Otherwise
    -- the end of its last connection could remove it from the network after it has connected again.
    controllerJoining :: !(MVar ()),
    -- | The network, always evaluated. Written only by 'changeTopology', read by any thread.
    controllerTopology :: !(IORef Topology),
    -- | Held by 'changeTopology' while it computes.
    controllerTopologyLock :: !(MVar ()),
    -- | The counters of switches that have disconnected, and of faults before the handshake. Each session has counters
    -- of its own.
    controllerTotals :: !(IORef Totals),
    -- | The number of the next session. It tells an old session of a switch from a new one.
    controllerNext :: !(IORef Int),
    -- | The key of LLDP frames. Written by the cluster's thread, read by any thread.
    controllerLldpKey :: !(IORef LldpKey),
    -- | The numbers of incidents. Changed atomically by any thread.
    controllerReports :: !(IORef Reports),
    -- | Whether the controller ends. Written by the thread of 'Weft.OpenFlow.Controller.withController'.
    controllerEnding :: !(IORef Bool),
    -- | The controller's own threads. They end after the connections of all switches.
    controllerScope :: !Scope
  }

-- | Report an incident by 'settingsOnIncident', unless there were too many in this second.
report :: Controller -> Incident -> IO ()
report c incident = do
  time <- currentMillis
  (reported, omitted) <- atomicModifyIORef' (controllerReports c) (incidentAt time problem source)
  tooMany c omitted
  when reported (toCallback c incident)
  where
    problem = case incident of
      Connected _ -> False
      Disconnected _ -> False
      _ -> True
    source = case incident of
      Connected d -> OfSwitch d
      Disconnected d -> OfSwitch d
      ConnectionEnded _ d _ -> maybe OfStranger OfSwitch d
      SwitchError d _ _ -> OfSwitch d
      RoleRefused d _ -> OfSwitch d
      Misunderstood d _ -> OfSwitch d
      PacketTruncated d _ _ -> OfSwitch d
      Unencodable d _ -> OfSwitch d
      Failed _ -> OfController
      IncidentsOmitted d _ -> maybe OfController OfSwitch d

-- | Report the numbers of incidents that were not reported, if their second is over.
reportOmitted :: Controller -> IO ()
reportOmitted c = do
  time <- currentMillis
  atomicModifyIORef' (controllerReports c) (endSecond time) >>= tooMany c

tooMany :: Controller -> [(Source, Int)] -> IO ()
tooMany c omitted = sequence_ [toCallback c (IncidentsOmitted (switchOf source) n) | (source, n) <- omitted]
  where
    switchOf source = case source of
      OfSwitch d -> Just d
      _ -> Nothing

-- | Pass an incident to 'settingsOnIncident', and drop its exceptions.
toCallback :: Controller -> Incident -> IO ()
toCallback c incident =
  settingsOnIncident (controllerSettings c) incident `catch` \e -> case fromException e of
    Just asynchronous -> throwIO (asynchronous :: SomeAsyncException)
    Nothing -> pure ()

-- | Counters of messages.
data Totals = Totals
  { -- | Received.
    totalReceived :: !Int,
    -- | PACKET_IN messages among them.
    totalPackets :: !Int,
    -- | Messages that applications sent.
    totalReplies :: !Int,
    -- | Messages that violated the protocol, and connections that ended because of one.
    totalFaults :: !Int,
    -- | LLDP frames without a valid tag, which were ignored.
    totalForged :: !Int
  }

-- | All counters at 0.
noTotals :: Totals
noTotals = Totals 0 0 0 0 0

-- | The sums of two sets of counters.
addTotals :: Totals -> Totals -> Totals
addTotals (Totals a b x y z) (Totals a' b' x' y' z') = Totals (a + a') (b + b') (x + x') (y + y') (z + z')

-- | The applications of a switch: a function from an event to replies. Called while 'sessionLock' is held.
type Instance = Context -> Event -> IO [Reply]

-- | An action that creates the applications of a switch.
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

-- | Change the network, from any thread. The new one is computed while a lock is held.
--
-- Note [Convoys]. While a thread that holds the lock is preempted, all others that need it would queue, and from then
-- on each would wait for its turn in the queue. If each new host took the lock, a thread would advance by one host for
-- each turn of all threads. The switches whose hosts are all known would then take the processor, and those that still
-- report hosts (512 in a batch) would not be served for minutes: 20 to 95 of 100 under cbench. And when 5,000 switches
-- connect, their threads would wait with deep stacks, 900 bytes more for each. So the hosts of a batch are one change
-- ('noteHosts'), and a thread first yields a few times: one that was preempted has released the lock then. It queues if
-- a thread of another capability holds the lock for longer.
changeTopology :: Controller -> (Topology -> (Topology, a)) -> IO a
changeTopology c step = mask_ (take' (4 :: Int) >> change `finally` putMVar lock ())
  where
    lock = controllerTopologyLock c
    take' 0 = takeMVar lock
    take' n = tryTakeMVar lock >>= maybe (yield >> allowInterrupt >> take' (n - 1)) pure
    change = do
      (new, result) <- step <$> readIORef (controllerTopology c)
      _ <- evaluate new
      result <$ writeIORef (controllerTopology c) new

-- | A host that sent a packet: when, its address, its port of the session's switch, and its IPv4 address if known.
data Sighting = Sighting !Millis !MacAddress !PortNo !(Maybe Word32)

-- | Enter the hosts that a switch's packets have shown into the network, all at once: a switch whose hosts are new
-- shows hundreds of them in a batch, and the switches share the network's lock. To be called at the end of a batch, and
-- before anything that follows from the network or changes it. The session's lock must be held.
noteHosts :: Controller -> Session -> IO ()
noteHosts c s = do
  seen <- readIORef (sessionSeen s)
  unless (null seen) $ do
    -- An exception may come while this waits for the lock: the hosts are kept until they are entered.
    changeTopology c (\t -> (foldl' note t (reverse seen), ()))
    writeIORef (sessionSeen s) []
  where
    note t (Sighting time mac port ip) = fromMaybe t (hostSeen time mac (here, port) ip t)
    here = featuresDatapath (sessionFeatures s)

-- | A connected switch.
data Session = Session
  { sessionNumber :: !Int,
    -- | Its features, without the ports, which are in the topology.
    sessionFeatures :: !Features,
    sessionVersion :: !Version,
    sessionOutlet :: !SendQueue,
    -- | The threads that work for this connection. They end with it.
    sessionScope :: !Scope,
    sessionInstance :: !Instance,
    -- | Held while an event is handled, by the switch's own thread and by threads that deliver events from elsewhere.
    sessionLock :: !(MVar ()),
    -- | The hosts that its packets have shown and that are not in the network yet, the last one first. At most one for
    -- each message of a batch. Used while 'sessionLock' is held.
    sessionSeen :: !(IORef [Sighting]),
    -- | Whether this controller is the switch's master or its equal; a slave ignores packets. False until the first
    -- role is known. Written while 'sessionRole' is held, read by any thread.
    sessionActive :: !(IORef Bool),
    -- | The number of roles that were set so far. Held while a role is set and its messages are queued, so that they
    -- are in the same order. Nothing waits for etcd or for a switch meanwhile.
    sessionRole :: !(MVar Int),
    -- | The last transaction ID that was used. Changed atomically.
    sessionXid :: !(IORef Word32),
    -- | Pending requests for statistics and for barriers, and the messages before a barrier. Changed atomically.
    sessionAsking :: !(IORef (Map.Map Xid Asking)),
    -- | The kinds of statistics that are requested, each as its encoded request; see
    -- "Weft.OpenFlow.Controller.Requests". Changed atomically.
    sessionReads :: !(IORef (Map.Map ByteString Reading)),
    -- | The last two counters of each port and their times, the newer one first, evaluated. Written by the poller, read
    -- by any thread.
    sessionPortStats :: !(IORef (Map.Map PortNo [(Millis, PortStats)])),
    -- | Whether the poller waits for the switch's counters. Set by the poller, cleared by the thread that waits.
    sessionPolled :: !(IORef Bool),
    -- | Its counters. Written by its thread, read by any thread.
    sessionTotals :: !(IORef Totals),
    -- | The request for a role that the switch has not answered. Read and written while 'sessionRole' is held.
    sessionClaim :: !(IORef (Maybe Claim)),
    -- | The last generation ID that the switch is known to have seen. Used while 'sessionRole' is held.
    sessionGeneration :: !(IORef (Maybe Word64)),
    -- | Why the switch did not give the role that was last asked for. Used while 'sessionRole' is held.
    sessionRefusal :: !(IORef (Maybe String)),
    -- | When the table-miss flow was last installed again, or is going to be. Used by the switch's thread.
    sessionTableMiss :: !(IORef Millis),
    -- | Descriptions of its ports that are arriving. Used by the switch's thread.
    sessionDescriptions :: !(IORef Descriptions)
  }

-- | A request for a role (1.3); see "Weft.OpenFlow.Controller.Roles".
data Claim = Claim
  { -- | The transaction ID of the last message.
    claimXid :: !Xid,
    claimRole :: !Role,
    claimGeneration :: !Word64,
    -- | Whether the switch was asked for its generation ID.
    claimReading :: !Bool,
    -- | How often the generation ID was stale.
    claimTries :: !Int
  }

-- | The number of bytes of the reply so far, its parts, the last one first, and the variable for the whole reply, or
-- for the first ERROR; 'Nothing': the switch has disconnected. A barrier and the messages before it have one variable;
-- their reply has no parts.
data Asking = Asking !Int [StatsReply] (MVar (Maybe Outcome))

-- | A request for statistics that is under way, and the next one, if somebody waits for it: the variables of their
-- outcomes.
data Reading = Reading !(MVar Outcome) !(Maybe (MVar Outcome))

-- | The parts of a reply, or why there is none.
type Outcome = Either RequestFailure [StatsReply]

-- | Why a message was not sent to a switch, or a request has no reply.
data RequestFailure
  = -- | There is no such switch, or it has disconnected meanwhile.
    NotConnected
  | -- | This controller is a slave of the switch, or its role is not known yet.
    NotMaster
  | -- | The switch's version of OpenFlow has no encoding for the message.
    NotInVersion
  | -- | The switch did not reply within 5 seconds.
    NoReply
  | -- | So many requests are under way at this switch that this one was not sent.
    TooManyRequests
  | -- | The switch answered with an ERROR message: type and code.
    RepliedError !Word16 !Word16
  | -- | The reply is longer than 16 MiB.
    ReplyTooLong
  | -- | The reply has statistics of another kind.
    OtherReply
  | -- | The reply could not be decoded: the reason.
    ReplyNotUnderstood !Problem
  deriving (Eq, Show)

-- | The monotonic clock, in milliseconds.
currentMillis :: IO Millis
currentMillis = fromIntegral . (`div` 1000000) <$> getMonotonicTimeNSec

-- Note [Transaction IDs]. A switch answers a request with the request's ID, and an ERROR has that of the message that
-- failed. The upper half of the IDs is reserved for the controller's own requests. Replies of applications have IDs of
-- the lower half: usually that of the switch's message, which may be any number, also that of a pending request. An
-- ERROR for such a reply would be taken for the answer to the request.

-- | The least of the IDs that are reserved for the controller's requests; see Note [Transaction IDs].
firstOwnXid :: Xid
firstOwnXid = 0x80000000

-- | A new transaction ID for a request.
nextXid :: Session -> IO Xid
nextXid s = atomicModifyIORef' (sessionXid s) (\n -> let n' = if n == maxBound then firstOwnXid else n + 1 in (n', n'))

-- | The transaction ID of applications' replies to a message with the given one: that of the message, unless it is
-- reserved.
replyXid :: Xid -> Xid
replyXid xid = xid .&. (firstOwnXid - 1)
{-# INLINE replyXid #-}

-- | Send a message from any thread, without waiting. 'False' if the switch's version has no encoding for it.
postMessage :: Session -> Xid -> Message -> IO Bool
postMessage s xid message = case encode (sessionVersion s) xid message of
  Nothing -> pure False
  Just bytes -> True <$ post (sessionOutlet s) [bytes :: ByteString]

-- | Whether this controller is active at the switch, and 'settingsActiveUntil' is not over.
activeNow :: Controller -> Session -> IO Bool
activeNow c s = do
  active <- readIORef (sessionActive s)
  end <- settingsActiveUntil (controllerSettings c)
  if active && end /= maxBound then (< end) <$> currentMillis else pure active

-- | 'postMessage', if this controller's role permits it. A slave changes nothing and sends no packets (1.3.5, 6.3.4),
-- and to a switch of 1.0, which has no roles, it sends nothing but echoes.
sendTo :: Controller -> Session -> Xid -> Message -> IO (Either RequestFailure ())
sendTo c s xid message = do
  active <- activeNow c s
  if active || forSlaves
    then (\sent -> if sent then Right () else Left NotInVersion) <$> postMessage s xid message
    else pure (Left NotMaster)
  where
    forSlaves = case message of
      EchoRequest _ -> True
      EchoReply _ -> True
      FlowModMessage _ -> False
      PacketOutMessage _ -> False
      GroupModMessage _ -> False
      PortModMessage _ -> False
      TableMod _ _ -> False
      MeterModMessage _ -> False
      _ -> sessionVersion s /= V10

-- | The remote address of a connection, as text. A client of IPv4 has an address of IPv4.
peerAddress :: Connection -> String
peerAddress = show . unmapped . connPeer
