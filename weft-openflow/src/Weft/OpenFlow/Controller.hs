-- |
-- A controller for OpenFlow switches, with a lightweight thread for each switch and applications as in
-- "Weft.OpenFlow.App".
--
-- > main :: IO ()
-- > main = runController defaultSettings defaultServerSettings {serverPort = "6653"} (perSwitch learningSwitch)
--
-- If a switch violates the protocol, does not read, or stops responding, the controller closes its connection. Until
-- then the switch occupies a bounded amount of memory. Other switches are not affected. All functions may be called
-- from any thread.
--
-- @since 0.1.0
module Weft.OpenFlow.Controller
  ( -- * Running
    runController,
    withController,
    withBareController,
    serveConnection,
    Controller,

    -- * Settings
    Settings (..),
    defaultSettings,
    Incident (..),

    -- * The network
    controllerNetwork,
    connectedSwitches,
    SwitchInfo (..),
    controllerCounters,
    Totals (..),
    controllerIncidents,

    -- * Statistics
    askSwitch,
    portRates,
    Rate (..),

    -- * Sending
    sendMessage,
    sendConfirmed,
    RequestFailure (..),
    setRole,
  )
where

import Control.Applicative ((<|>))
import Control.Concurrent.MVar
import Control.Exception (finally)
import Control.Monad (forM_, forever, unless, when)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust)
import Data.Word (Word64)
import Weft.Duration
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Connection
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Reports (incidentsTotal, noReports)
import Weft.OpenFlow.Controller.Requests
import Weft.OpenFlow.Controller.SendQueue (sendQueueConnection)
import Weft.OpenFlow.Controller.Threads
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Lldp (newLldpKey)
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Scope (withScope)
import Weft.Socket (Server, ServerSettings (..), SockAddr, Socket, waitServer, withServer)
import Weft.Timer (sleep)
import Weft.Transport

-- Running ---------------------------------------------------------------------------------

-- | Run until the calling thread gets an exception. Throws if it cannot listen.
runController :: Settings -> ServerSettings -> Placement -> IO ()
runController settings server app = withController settings server app (\_ s -> waitServer s)

-- | Run the controller during an action. Unless the server settings give a number of acceptors there is one, which
-- assigns switches to the capabilities in turn. Connections of switches stay busy for days, so they should be spread
-- evenly; with several acceptors the kernel would spread them at random.
--
-- When it returns or throws, nothing of the controller runs any more: first the connections of switches have ended,
-- each with all threads that worked for it, and then the controller's own threads. The end waits for callbacks and
-- applications that are running; threads that do not end are named on standard error ('serverOnOverdue').
withController :: Settings -> ServerSettings -> Placement -> (Controller -> Server -> IO a) -> IO a
withController settings server app act =
  withBareController settings app $ \c -> withServer server {serverAcceptors = serverAcceptors server <|> Just 1} (handler c) (\s -> act c s `finally` writeIORef (controllerEnding c) True)
  where
    handler :: Controller -> Socket -> SockAddr -> IO ()
    handler c sock peer = serveConnection c (socketConnection sock peer)

-- | Run a controller without a listener during an action, which passes it connections by 'serveConnection', each in a
-- thread that has ended when the action returns. At the end the controller's own threads, for link discovery and port
-- counters, end.
withBareController :: Settings -> Placement -> (Controller -> IO a) -> IO a
withBareController settings app act = do
  make <- newInstance app
  withScope $ \scope -> do
    c <-
      Controller settings make <$> newIORef Map.empty
        <*> newMVar ()
        <*> newIORef (emptyTopology (fromMaybe defaultTopologySettings {topologySettle = 0} (settingsTopology settings)))
        <*> newMVar ()
        <*> newIORef noTotals
        <*> newIORef 0
        <*> (maybe newLldpKey pure (settingsLldpKey settings) >>= newIORef)
        <*> newIORef noReports
        <*> newIORef False
        <*> pure scope
    -- A round that fails is reported, and the next one comes.
    let every time label round' = spawn c scope (labelled label) (forever (sleep time >> reportingFailures c (round' c)))
    when (isJust (settingsTopology settings)) (every (settingsDiscovery settings) "weft openflow discovery" discoveryRound)
    every (milliseconds 200) "weft openflow clock" tick
    forM_ (settingsPortStats settings) (\time -> every time "weft openflow counters" pollPorts)
    act c

-- The network -----------------------------------------------------------------------------

-- | The current network.
controllerNetwork :: Controller -> IO Topology
controllerNetwork = readIORef . controllerTopology

-- | A connected switch.
data SwitchInfo = SwitchInfo
  { -- | Its protocol version.
    infoVersion :: !Version,
    -- | Its FEATURES_REPLY.
    infoFeatures :: !Features,
    -- | The remote address of its connection.
    infoAddress :: !String,
    -- | False if this controller is a slave at the switch.
    infoActive :: !Bool,
    -- | Numbers of messages since it connected.
    infoTotals :: !Totals
  }

-- | The connected switches.
connectedSwitches :: Controller -> IO (Map.Map DatapathId SwitchInfo)
connectedSwitches c = readIORef (controllerSessions c) >>= mapM info
  where
    info s =
      SwitchInfo (sessionVersion s) (sessionFeatures s) (peerAddress (sendQueueConnection (sessionOutlet s)))
        <$> readIORef (sessionActive s)
        <*> readIORef (sessionTotals s)

-- | Numbers of messages since the controller was started.
controllerCounters :: Controller -> IO Totals
controllerCounters c = do
  gone <- readIORef (controllerTotals c)
  now <- readIORef (controllerSessions c) >>= mapM (readIORef . sessionTotals) . Map.elems
  pure (foldl addTotals gone now)

-- | The number of incidents since the controller was started, reported by 'settingsOnIncident' or not, except
-- 'Connected' and 'Disconnected'.
controllerIncidents :: Controller -> IO Int
controllerIncidents c = incidentsTotal <$> readIORef (controllerReports c)

-- Statistics ------------------------------------------------------------------------------

-- | Request statistics from a switch, and wait at most 5 seconds for all parts of the reply. A switch of 1.0 is asked
-- only by its master. If the same is being requested from this switch, the request is sent after that (which takes at
-- most 5 seconds more), and shared by all threads that have asked meanwhile.
askSwitch :: Controller -> DatapathId -> StatsRequest -> IO (Either RequestFailure [StatsReply])
askSwitch c d request = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  maybe (pure (Left NotConnected)) (\s -> askShared c s request) found

-- | Request the port counters of all switches that have replied to the last request, without waiting. Of a switch, as
-- many ports are kept as in the topology.
pollPorts :: Controller -> IO ()
pollPorts c = readIORef (controllerSessions c) >>= mapM_ poll
  where
    poll s = do
      waiting <- readIORef (sessionPolled s)
      unless waiting $ do
        writeIORef (sessionPolled s) True
        spawn c (sessionScope s) counters ((askShared c s (PortStatsRequest portAny) >>= record s) `finally` writeIORef (sessionPolled s) False)
    counters = labelled "weft openflow counters"
    record s replies = do
      time <- currentMillis
      let new = Map.fromList (take most [(portStatsPort p, [(time, p)]) | Right parts <- [replies], PortStatsReply ps <- parts, p <- ps])
      modifyIORef' (sessionPortStats s) (\old -> Map.unionWith lastTwo new (Map.intersection old new))
    -- Without thunks: until somebody asks for the rates, they would retain all earlier readings.
    lastTwo (new : _) (old : _) = [new, old]
    lastTwo new _ = new
    most = topologyMostPorts (fromMaybe defaultTopologySettings (settingsTopology (controllerSettings c)))

-- | The traffic of a port, computed from the last two readings of its counters.
data Rate = Rate
  { -- | Bits received per second.
    rateReceived :: !Double,
    -- | Bits sent per second.
    rateSent :: !Double,
    -- | The counters.
    rateStats :: !PortStats
  }

-- | The rates of a switch's ports.
portRates :: Controller -> DatapathId -> IO (Map.Map PortNo Rate)
portRates c d = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  maybe (pure Map.empty) (fmap (Map.mapMaybe rate) . readIORef . sessionPortStats) found
  where
    rate [(t1, new), (t0, old)] | t1 > t0 = Just (Rate (bits 2 t1 new t0 old) (bits 3 t1 new t0 old) new)
    rate ((_, new) : _) = Just (Rate 0 0 new)
    rate [] = Nothing
    bits i t1 new t0 old
      | counter i new == maxBound = 0 -- The switch does not have it.
      | otherwise = max 0 (fromIntegral (counter i new) - fromIntegral (counter i old)) * 8000 / fromIntegral (t1 - t0)
    counter :: Int -> PortStats -> Word64
    counter i = (!! i) . (++ repeat 0) . portStatsCounters

-- Sending ---------------------------------------------------------------------------------

-- | Send a message to a switch, without waiting. A slave changes no flows and sends no packets, and to a switch of 1.0
-- it sends nothing but echoes.
sendMessage :: Controller -> DatapathId -> Message -> IO (Either RequestFailure ())
sendMessage c d message = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  maybe (pure (Left NotConnected)) (\s -> nextXid s >>= \xid -> sendTo c s xid message) found

-- | Send messages to a switch, and wait at most 5 seconds until it has processed them: a BARRIER_REQUEST follows. If it
-- answers any of them with an ERROR, the result is 'RepliedError'; the others may have taken effect.
sendConfirmed :: Controller -> DatapathId -> [Message] -> IO (Either RequestFailure ())
sendConfirmed c d messages = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  maybe (pure (Left NotConnected)) (\s -> awaitReply c s (seconds 5) (messages <> [BarrierRequest])) found

-- | Set this controller's role at a switch, with the generation ID of the election; see 'settingsRole'.
setRole :: Controller -> DatapathId -> Role -> Word64 -> IO ()
setRole c d role generation = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  forM_ found (\s -> takeRole c s role generation)
