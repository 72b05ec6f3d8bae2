-- |
-- Link discovery. Each switch sends probes ("Weft.OpenFlow.Lldp") from each of its ports when the port comes up, and
-- then at intervals. The switch at the other end reports them. Here are also the controller's periodic work, and
-- the delivery of events to applications. Any thread may call these functions.
module Weft.OpenFlow.Controller.Discovery
  ( probe,
    probeAddress,
    discoveryRound,
    tick,
    topologyStep,
    deliverFrom,
    deliverReplies,
    contextNow,
  )
where

import Control.Concurrent.MVar
import Control.Monad (forM_, unless, when)
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust, mapMaybe)
import Data.Word (Word32)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.SendQueue
import Weft.OpenFlow.Controller.Threads
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet (arpProbe)
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (encode)

-- | Send the probes of these ports, from any thread, without waiting. A slave sends none.
probe :: Controller -> Session -> [Port] -> IO ()
probe c s ports = case settingsTopology (controllerSettings c) of
  Nothing -> pure ()
  Just _ -> do
    active <- activeNow c s
    key <- readIORef (controllerLldpKey c)
    when active (post (sessionOutlet s) (concatMap (frames key) ports))
  where
    frames key p
      | not (isPhysical (portNumber p)) || portIsDown p = []
      | otherwise = mapMaybe (\kind -> sendOut (portNumber p) (kind key d (portNumber p) (portAddress p))) [lldpFrame, bridgedFrame]
    sendOut p = encode (sessionVersion s) 0 . PacketOutMessage . PacketOut noBuffer portController [output p]
    d = featuresDatapath (sessionFeatures s)

-- | Send the probes of all ports. To be called at intervals.
discoveryRound :: Controller -> IO ()
discoveryRound c = do
  sessions <- readIORef (controllerSessions c)
  switches <- topologySwitches <$> readIORef (controllerTopology c)
  forM_ (Map.toList sessions) $ \(d, s) ->
    forM_ (Map.lookup d switches) $ \switch -> probe c s (Map.elems (switchPorts switch))

-- | Pass the time to the topology: ports settle, and old links and hosts are removed. Also report how many incidents
-- were not reported. To be called five times a second.
tick :: Controller -> IO ()
tick c = do
  time <- currentMillis
  before <- topologySwept <$> readIORef (controllerTopology c)
  topologyStep c (timePassed time)
  t <- readIORef (controllerTopology c)
  when (topologySwept t /= before && isJust (settingsTopology (controllerSettings c))) (probeHosts c (silentHosts time t))
  reportOmitted c

-- | Ask hosts by ARP whether they are still there. Packets that match a flow do not reach the controller, so a host may
-- send without being seen.
probeHosts :: Controller -> [(MacAddress, Word32, Place)] -> IO ()
probeHosts c hosts = do
  sessions <- readIORef (controllerSessions c)
  forM_ (Map.toList (Map.fromListWith (++) [(d, [(mac, ip, p)]) | (mac, ip, (d, p)) <- hosts])) $ \(d, silent) ->
    forM_ (Map.lookup d sessions) $ \s -> do
      active <- activeNow c s
      when active (post (sessionOutlet s) (mapMaybe (request s) (take mostProbes silent)))
  where
    request s (mac, ip, p) =
      encode (sessionVersion s) 0 (PacketOutMessage (PacketOut noBuffer portController [output p] (arpProbe probeAddress mac ip)))
    -- The requests take 100 KB, a tenth of what may be queued for a switch.
    mostProbes = 1000

-- | The source address of our ARP requests, a locally administered address.
probeAddress :: MacAddress
probeAddress = MacAddress 0x025746000001

-- | Change the topology. The applications of switches that are concerned ('Changed') receive 'TreeChanged', from a new
-- thread of the controller, because the calling thread may hold a session's lock. They receive nothing while the
-- controller ends: it loses one switch after another then, but the network stays as it is.
topologyStep :: Controller -> (Topology -> (Topology, Changed)) -> IO ()
topologyStep c step = do
  changed <- changeTopology c step
  ending <- readIORef (controllerEnding c)
  unless (null changed || ending) . spawn c (controllerScope c) deliverer $ do
    sessions <- readIORef (controllerSessions c)
    forM_ changed $ \d -> forM_ (Map.lookup d sessions) $ \s -> deliverFrom c s TreeChanged
  where
    deliverer = labelled "weft openflow topology"

-- | The current context of a switch's applications.
contextNow :: Controller -> Session -> IO Context
contextNow c s = do
  time <- currentMillis
  topology <- readIORef (controllerTopology c)
  let flood = if isJust (settingsTopology (controllerSettings c)) then flooding d topology else FloodByItself
  pure (Context time d (sessionVersion s) flood (maybe Map.empty switchPorts (Map.lookup d (topologySwitches topology))))
  where
    d = featuresDatapath (sessionFeatures s)

-- | Deliver an event to a switch's applications from another thread, and send their replies without waiting. Does
-- nothing if this controller is a slave at the switch.
deliverFrom :: Controller -> Session -> Event -> IO ()
deliverFrom c s event =
  activeNow c s >>= \active -> when active $ do
    context <- contextNow c s
    strings <- withMVar (sessionLock s) $ \_ -> do
      replies <- sessionInstance s context event
      out <- newOut 512
      deliverReplies c s context 0 out replies
      noteHosts c s
      finishOut out
    post (sessionOutlet s) strings

-- | Append and count the replies of applications. They have the transaction ID of the event's message, as 'replyXid'
-- changes it. The session's lock must be held; 'noteHosts' has to follow.
deliverReplies :: Controller -> Session -> Context -> Xid -> Out -> [Reply] -> IO ()
deliverReplies _ _ _ _ _ [] = pure ()
deliverReplies c s context xid out (reply : rest) = do
  case reply of
    Send message -> do
      fits <- writeMessage out (sessionVersion s) (replyXid xid) message
      count out CountReply
      unless fits (unfit message)
    SendTo d message -> do
      found <- Map.lookup d <$> readIORef (controllerSessions c)
      forM_ found $ \other -> do
        sent <- sendTo c other (replyXid xid) message
        when (sent == Left NotInVersion) (unfit message)
    Stop -> pure ()
    Notify (HostSeen mac port ip) -> modifyIORef' (sessionSeen s) (Sighting (contextTime context) mac port ip :)
  deliverReplies c s context xid out rest
  where
    unfit message = report c (Unencodable (contextSwitch context) (takeWhile (/= ' ') (show message)))
