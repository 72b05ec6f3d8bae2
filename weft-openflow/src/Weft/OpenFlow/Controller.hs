-- |
-- A controller of OpenFlow switches: a light thread for each switch, applications as in "Weft.OpenFlow.App".
--
-- > main :: IO ()
-- > main = runController defaultSettings defaultServerSettings {serverPort = "6653"} (perSwitch learningSwitch)
--
-- A switch that breaks the protocol, that does not read, or that says nothing any more costs its own connection and a
-- bounded amount of memory; the others do not notice. All functions may be called from any thread.
--
-- @since 0.1.0
module Weft.OpenFlow.Controller
  ( -- * Running
    runController,
    withController,
    serveConnection,
    newController,
    withLoops,
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

    -- * Statistics
    askSwitch,
    portRates,
    Rate (..),

    -- * Sending
    sendMessage,
    setRole,
  )
where

import Control.Applicative ((<|>))
import Control.Concurrent (killThread)
import Control.Concurrent.MVar
import Control.Exception (bracket, finally)
import Control.Monad (forM, forM_, forever)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust)
import Data.Word (Word64)
import Weft.Duration
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Connection
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Outlet (outletConnection)
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.Socket (Server, ServerSettings (..), SockAddr, Socket, waitServer, withServer)
import Weft.Timer (sleep, within)
import Weft.Transport

-- Running ---------------------------------------------------------------------------------

-- | Run until the calling thread is interrupted. Throws when it cannot listen.
runController :: Settings -> ServerSettings -> Placement -> IO ()
runController settings server app = withController settings server app (\_ s -> waitServer s)

-- | Run beside an action; when that ends the controller does. Unless the settings of the server say how many acceptors
-- there are it has one, which hands switches to the capabilities in turn: connections that are busy for days have to be
-- spread evenly, and the kernel, which chooses among several acceptors, spreads them at random.
withController :: Settings -> ServerSettings -> Placement -> (Controller -> Server -> IO a) -> IO a
withController settings server app act = do
  c <- newController settings app
  withLoops c (withServer server {serverAcceptors = serverAcceptors server <|> Just 1} (handler c) (act c))
  where
    handler :: Controller -> Socket -> SockAddr -> IO ()
    handler c sock peer = serveConnection c (socketConnection sock peer)

-- | A controller without a listener: give it connections by 'serveConnection', within 'withLoops'.
newController :: Settings -> Placement -> IO Controller
newController settings app = do
  make <- newInstance app
  Controller settings make <$> newIORef Map.empty
    <*> newIORef (emptyTopology (fromMaybe defaultTopologySettings {topologySettle = 0} (settingsTopology settings)))
    <*> newMVar ()
    <*> newIORef (Totals 0 0 0 0)
    <*> newIORef 0

-- | Run the controller's own threads beside an action: discovery of links, counters of ports.
withLoops :: Controller -> IO a -> IO a
withLoops c act = bracket start (mapM_ killThread) (const act)
  where
    settings = controllerSettings c
    start = sequence ([spawn c "weft openflow discovery" (discoveryLoop c) | topology] ++ [spawn c "weft openflow clock" (tickLoop c) | topology] ++ polling)
    topology = isJust (settingsTopology settings)
    polling = [spawn c "weft openflow counters" (forever (sleep every >> pollPorts c)) | Just every <- [settingsPortStats settings]]

-- The network -----------------------------------------------------------------------------

-- | The network now.
controllerNetwork :: Controller -> IO Topology
controllerNetwork = readIORef . controllerTopology

-- | A switch that is connected.
data SwitchInfo = SwitchInfo
  { -- | What it speaks.
    infoVersion :: !Version,
    -- | What it is.
    infoFeatures :: !Features,
    -- | Its address.
    infoAddress :: !String,
    -- | False: this controller is its slave.
    infoActive :: !Bool,
    -- | Messages since it connected.
    infoTotals :: !Totals
  }

-- | The switches that are connected.
connectedSwitches :: Controller -> IO (Map.Map DatapathId SwitchInfo)
connectedSwitches c = readIORef (controllerSessions c) >>= mapM info
  where
    info s =
      SwitchInfo (sessionVersion s) (sessionFeatures s) (show (connPeer (outletConnection (sessionOutlet s))))
        <$> readIORef (sessionActive s)
        <*> readIORef (sessionTotals s)

-- | Numbers of messages since the controller began.
controllerCounters :: Controller -> IO Totals
controllerCounters c = do
  gone <- readIORef (controllerTotals c)
  now <- readIORef (controllerSessions c) >>= mapM (readIORef . sessionTotals) . Map.elems
  pure (foldl add gone now)
  where
    add (Totals a b x y) (Totals a' b' x' y') = Totals (a + a') (b + b') (x + x') (y + y')

-- Statistics ------------------------------------------------------------------------------

-- | Ask a switch, and wait for all parts of the answer, at most 5 seconds. 'Nothing': there is no such switch, it has
-- no such statistics, or it did not answer.
askSwitch :: Controller -> DatapathId -> StatsRequest -> IO (Maybe [StatsReply])
askSwitch c d request = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  case found of
    Nothing -> pure Nothing
    Just s -> ask s request

ask :: Session -> StatsRequest -> IO (Maybe [StatsReply])
ask s request = do
  xid <- nextXid s
  var <- newEmptyMVar
  atomicModifyIORef' (sessionAsking s) (\m -> (Map.insert xid (Asking [] var) m, ()))
  flip finally (atomicModifyIORef' (sessionAsking s) (\m -> (Map.delete xid m, ()))) $ do
    sent <- postMessage s xid (StatsRequestMessage request)
    if sent then (>>= id) <$> within (seconds 5) (takeMVar var) else pure Nothing

-- | Ask all switches for the counters of their ports.
pollPorts :: Controller -> IO ()
pollPorts c = do
  sessions <- readIORef (controllerSessions c)
  asked <- forM (Map.elems sessions) $ \s -> do
    done <- newEmptyMVar
    _ <- spawn c "weft openflow counters" ((ask s (PortStatsRequest portAny) >>= record s) `finally` putMVar done ())
    pure done
  mapM_ takeMVar asked
  where
    record s replies = do
      time <- currentMillis
      let new = Map.fromList [(portStatsPort p, [(time, p)]) | Just parts <- [replies], PortStatsReply ps <- parts, p <- ps]
      modifyIORef' (sessionPortStats s) (\old -> Map.unionWith (\a b -> take 2 (a ++ b)) new (Map.intersection old new))

-- | What goes through a port, between the last two times that it was asked.
data Rate = Rate
  { -- | Bits a second received.
    rateReceived :: !Double,
    -- | Bits a second sent.
    rateSent :: !Double,
    -- | The counters.
    rateStats :: !PortStats
  }

-- | The ports of a switch.
portRates :: Controller -> DatapathId -> IO (Map.Map PortNo Rate)
portRates c d = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  maybe (pure Map.empty) (fmap (Map.mapMaybe rate) . readIORef . sessionPortStats) found
  where
    rate [(t1, new), (t0, old)] | t1 > t0 = Just (Rate (bits 2 t1 new t0 old) (bits 3 t1 new t0 old) new)
    rate ((_, new) : _) = Just (Rate 0 0 new)
    rate [] = Nothing
    bits i t1 new t0 old = max 0 (fromIntegral (counter i new) - fromIntegral (counter i old)) * 8000 / fromIntegral (t1 - t0)
    counter :: Int -> PortStats -> Word64
    counter i = (!! i) . (++ repeat 0) . portStatsCounters

-- Sending ---------------------------------------------------------------------------------

-- | Send a message to a switch, without waiting. 'False': there is no such switch, or its version has no encoding for
-- the message.
sendMessage :: Controller -> DatapathId -> Message -> IO Bool
sendMessage c d message = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  case found of
    Nothing -> pure False
    Just s -> nextXid s >>= \xid -> postMessage s xid message

-- | Take a role at a switch, with the generation of the election; see 'settingsRole'.
setRole :: Controller -> DatapathId -> Role -> Word64 -> IO ()
setRole c d role generation = do
  found <- Map.lookup d <$> readIORef (controllerSessions c)
  forM_ found (\s -> takeRole c s role generation)
