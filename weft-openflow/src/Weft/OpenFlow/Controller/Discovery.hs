-- |
-- Finding links: each switch sends an LLDP frame out of each of its ports, when a port comes up and then from time to
-- time; the switch at the other end reports it.
module Weft.OpenFlow.Controller.Discovery
  ( probe,
    discoveryLoop,
    tickLoop,
    topologyStep,
    deliverFrom,
    deliverReplies,
    contextNow,
    spawn,
  )
where

import Control.Concurrent (ThreadId, forkIO, myThreadId)
import Control.Concurrent.MVar
import Control.Exception (SomeAsyncException, SomeException, fromException, handle, throwIO)
import Control.Monad (forM_, forever, unless, void, when)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust, mapMaybe)
import GHC.Conc (labelThread)
import Weft.Duration
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Outlet
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (encode)
import Weft.Timer (sleep)

-- | Send the LLDP frames of these ports, from any thread, without waiting. A slave sends none.
probe :: Controller -> Session -> [Port] -> IO ()
probe c s ports = case settingsTopology (controllerSettings c) of
  Nothing -> pure ()
  Just _ -> readIORef (sessionActive s) >>= \active -> when active (post (sessionOutlet s) (mapMaybe frame ports))
  where
    frame p
      | not (isPhysical (portNumber p)) || portIsDown p = Nothing
      | otherwise = encode (sessionVersion s) 0 (PacketOutMessage (PacketOut noBuffer portController [output (portNumber p)] (lldpFrame d (portNumber p) (portAddress p))))
    d = featuresDatapath (sessionFeatures s)

-- | For as long as the controller runs: all ports of all switches.
discoveryLoop :: Controller -> IO ()
discoveryLoop c = forever $ do
  sleep (settingsDiscovery (controllerSettings c))
  sessions <- readIORef (controllerSessions c)
  switches <- topologySwitches <$> readIORef (controllerTopology c)
  forM_ (Map.toList sessions) $ \(d, s) ->
    forM_ (Map.lookup d switches) $ \switch -> probe c s (Map.elems (switchPorts switch))

-- | For as long as the controller runs: ports settle, links go.
tickLoop :: Controller -> IO ()
tickLoop c = forever $ do
  sleep (milliseconds 200)
  time <- currentMillis
  topologyStep c (timePassed time)

-- | Change the topology, and tell the switches that flood otherwise now, from a thread of its own: the calling one may
-- hold a session's lock.
topologyStep :: Controller -> (Topology -> (Topology, Changed)) -> IO ()
topologyStep c step = do
  changed <- changeTopology c step
  unless (null changed) . void . spawn c "weft openflow topology" $ do
    sessions <- readIORef (controllerSessions c)
    forM_ changed $ \d -> forM_ (Map.lookup d sessions) $ \s -> deliverFrom c s TreeChanged

-- | What the applications are told now.
contextNow :: Controller -> Session -> IO Context
contextNow c s = do
  time <- currentMillis
  flood <-
    if isJust (settingsTopology (controllerSettings c))
      then flooding d <$> readIORef (controllerTopology c)
      else pure FloodByItself
  pure (Context time d (sessionVersion s) flood)
  where
    d = featuresDatapath (sessionFeatures s)

-- | Bring an event to a switch's applications from another thread, unless this is its slave, and send what they reply without waiting.
deliverFrom :: Controller -> Session -> Event -> IO ()
deliverFrom c s event =
  readIORef (sessionActive s) >>= \active -> when active $ do
    context <- contextNow c s
    strings <- withMVar (sessionLock s) $ \_ -> do
      replies <- sessionInstance s context event
      out <- newOut 512
      deliverReplies c s context 0 out replies
      finishOut out
    post (sessionOutlet s) strings

-- | Append what applications replied, and count it.
deliverReplies :: Controller -> Session -> Context -> Xid -> Out -> [Reply] -> IO ()
deliverReplies _ _ _ _ _ [] = pure ()
deliverReplies c s context xid out (reply : rest) = do
  case reply of
    Send message -> do
      fits <- writeMessage out (sessionVersion s) xid message
      count out CountReply
      unless fits (unfit message)
    SendTo d message -> do
      found <- Map.lookup d <$> readIORef (controllerSessions c)
      forM_ found $ \other -> do
        fits <- postMessage other xid message
        unless fits (unfit message)
    Stop -> pure ()
    Tell (HostSeen mac port ip) -> changeTopology c $ \t ->
      (fromMaybe t (hostSeen (contextTime context) mac (contextSwitch context, port) ip t), ())
  deliverReplies c s context xid out rest
  where
    unfit message =
      settingsOnIncident (controllerSettings c) (Unencodable (contextSwitch context) (takeWhile (/= ' ') (show message)))

-- | A thread of the controller; what it throws is reported.
spawn :: Controller -> String -> IO () -> IO ThreadId
spawn c name act = forkIO $ do
  t <- myThreadId
  labelThread t name
  handle failed act
  where
    failed :: SomeException -> IO ()
    failed e = case fromException e of
      Just asynchronous -> throwIO (asynchronous :: SomeAsyncException)
      Nothing -> settingsOnIncident (controllerSettings c) (Failed e)
