-- |
-- Handles the messages of a switch after the handshake: the controller's own protocol (echoes, ports, statistics,
-- errors), and the events of applications. Runs in the switch's thread.
module Weft.OpenFlow.Controller.Dispatch
  ( Verdict (..),
    handleMessage,
  )
where

import Control.Monad (forM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Weft.Duration (toSeconds)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Descriptions
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Errors
import Weft.OpenFlow.Controller.Requests
import Weft.OpenFlow.Controller.Roles
import Weft.OpenFlow.Controller.SendQueue
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire

-- | Whether the connection continues; if not, the reason.
data Verdict = Continue | Finish String

-- | Handle a message. The session's lock must be held. Replies are appended to the buffer.
handleMessage :: Controller -> Session -> Context -> Out -> Header -> ByteString -> IO Verdict
handleMessage c s context out h bytes
  | headerVersion h /= versionByte version = do
    _ <- writePut out (errorFor version h bytes (BadVersion (headerVersion h)))
    Finish "the switch changed its protocol version" <$ count out CountFault
  | headerType h == typePacketIn = case decodePacketIn version bytes of
    Left problem -> misunderstood problem
    -- OpenFlow 1.3.5, 7.4.1: there is always one.
    Right p | packetInPort p == portAny && version == V13 -> do
      report c (Misunderstood (contextSwitch context) "a PACKET_IN without an input port")
      Continue <$ count out CountFault
    Right p -> do
      count out CountPacket
      unless (packetIsKept p) (truncated c s context out p)
      Continue <$ handlePacket c s context out (headerXid h) p
  | otherwise = case decodeBody version (headerType h) bytes of
    Left problem -> misunderstood problem
    Right message -> Continue <$ (noteHosts c s >> handleOther c s context out h message)
  where
    version = sessionVersion s
    misunderstood problem = do
      when (headerType h == typeStatsReply version) (void (answeredBy s (headerXid h) (Left (ReplyNotUnderstood problem))))
      report c (Misunderstood (contextSwitch context) ("type " <> show (headerType h) <> ": " <> problemText problem))
      _ <- writePut out (errorFor version h bytes problem)
      Continue <$ count out CountFault

-- | The rest of this packet is lost. Applications may still learn from its first bytes. If it is one without a flow,
-- the switch is told again to send whole packets.
truncated :: Controller -> Session -> Context -> Out -> PacketIn -> IO ()
truncated c s context out p = do
  report c (PacketTruncated (contextSwitch context) (B.length (packetInData p)) (fromIntegral (packetInTotal p)))
  active <- readIORef (sessionActive s)
  when (active && packetInReason p == reasonNoMatch) (restoreReporting c s (contextTime context) (written s out))

-- | Append a message that every version has.
written :: Session -> Out -> Xid -> Message -> IO ()
written s out xid = void . writeMessage out (sessionVersion s) xid

-- | Handle a packet. A probe with a valid tag is a link; one with another tag is counted and ignored. A reply to our
-- ARP request shows that a host is still there. Packets from blocked ports are dropped. All others go to the
-- applications.
handlePacket :: Controller -> Session -> Context -> Out -> Xid -> PacketIn -> IO ()
handlePacket c s context out !xid !p = case contextFlooding context of
  FloodTo _ trunks
    -- In 1.0 slaves receive probes too, and use them.
    | Just frame <- ethernet (packetInData p),
      isProbe frame -> do
      key <- readIORef (controllerLldpKey c)
      case lldpOrigin key frame (packetInData p) of
        FromPort d port -> linkFrom (pathOf frame) (d, port) >> consumed
        Forged -> count out CountForged >> consumed
        OtherLldp -> unlessBlocked trunks (deliver c s context out xid (Packet p))
    | Just frame <- ethernet (packetInData p),
      frameType frame == etherTypeArp,
      Just (mac, ip) <- arpReplyTo probeAddress frame (packetInData p) -> do
      noteHosts c s
      hosts <- topologyHosts <$> readIORef (controllerTopology c)
      active <- readIORef (sessionActive s)
      -- In 1.0 slaves receive the reply, too; the host is the master's.
      if active && fmap hostPlace (Map.lookup mac hosts) == Just here
        then changeTopology c (\t -> (fromMaybe t (hostSeen (contextTime context) mac here (Just ip) t), ())) >> consumed
        else unlessBlocked trunks (deliver c s context out xid (Packet p))
    | otherwise -> unlessBlocked trunks (deliver c s context out xid (Packet p))
  FloodByItself -> deliver c s context out xid (Packet p)
  where
    here = (contextSwitch context, packetInPort p)
    -- A new link is answered by the probes of the receiving port: its earlier ones may have been sent before the other
    -- end was there, and another controller may manage that end. A link whose other direction is not known is answered
    -- again, since the other end may have got a new master meanwhile, but only if the last probe came half an interval
    -- before: otherwise a ring of links with one direction each would multiply the answers without end.
    linkFrom path from = do
      noteHosts c s
      before <- readIORef (controllerTopology c)
      topologyStep c (linkSeen (contextTime context) path from here)
      after <- readIORef (controllerTopology c)
      let answered' = case lastProbe from here before of
            Nothing -> False
            Just time -> isTwoWay after (from, here) || contextTime context - time < halfInterval
      unless answered' $
        probe c s [port | Just switch <- [Map.lookup (contextSwitch context) (topologySwitches before)], Just port <- [Map.lookup (packetInPort p) (switchPorts switch)]]
    unlessBlocked trunks act
      | packetInPort p `elem` trunks = readIORef (controllerTopology c) >>= \t -> if isBlocked here t then consumed else act
      | otherwise = act
    halfInterval = round (toSeconds (settingsDiscovery (controllerSettings c)) * 500)
    -- Free the switch's buffer, if the packet is in one.
    consumed = do
      active <- readIORef (sessionActive s)
      when active (deliverReplies c s context xid out (release p []))

-- | Deliver an event to the applications and append their replies. A slave's applications receive no events.
deliver :: Controller -> Session -> Context -> Out -> Xid -> Event -> IO ()
deliver c s context out xid event = do
  active <- readIORef (sessionActive s)
  when active (sessionInstance s context event >>= deliverReplies c s context xid out)

-- Everything but packets ------------------------------------------------------------------

handleOther :: Controller -> Session -> Context -> Out -> Header -> Message -> IO ()
handleOther c s context out h message = case message of
  EchoRequest payload -> void (writeMessage out (sessionVersion s) (headerXid h) (EchoReply payload))
  EchoReply _ -> void (answeredBy s (headerXid h) (Right []))
  Hello _ -> pure ()
  BarrierReply -> void (answeredBy s (headerXid h) (Right []))
  FeaturesReply _ -> pure ()
  GetConfigReply _ -> pure ()
  RoleReply role generation -> do
    up <- roleGiven c s (headerXid h) role generation
    forM_ up becameActive
  Error t code _ -> do
    asked <- answeredBy s (headerXid h) (Left (RepliedError t code))
    refusal <- roleRefused c s (headerXid h) t code
    case refusal of
      Just up -> mapM_ becameActive up
      Nothing -> do
        report c (SwitchError d (fromIntegral t) (fromIntegral code))
        unless asked (deliverHere (headerXid h) (Other message))
  PortStatus reason port -> do
    modifyIORef' (sessionDescriptions s) (statusArrived (portNumber port))
    portNow reason port
  FlowRemovedMessage r
    | removedCookie r == tableMissCookie && sessionVersion s == V13 -> do
      active <- readIORef (sessionActive s)
      when active (restoreReporting c s (contextTime context) (written s out))
    | otherwise -> deliverHere (headerXid h) (FlowGone r)
  StatsReplyMessage more reply -> do
    asked <- answered s h more reply
    case reply of
      PortDescReply ports -> do
        before <- readIORef (sessionDescriptions s)
        let (!after, valid) = partArrived (headerXid h) more ports before
        writeIORef (sessionDescriptions s) after
        mapM_ (portNow PortAdded) valid
      _ -> unless asked (deliverHere (headerXid h) (Other message))
  _ -> deliverHere (headerXid h) (Other message)
  where
    d = contextSwitch context
    deliverHere = deliver c s context out
    becameActive event = do
      deliverHere 0 event
      -- What the applications answer comes first.
      void (writeMessage out (sessionVersion s) 4 (StatsRequestMessage False PortDescRequest))
    portNow reason port = do
      -- Also without discovery of links: the northbound interface shows the ports.
      topologyStep c $ case reason of
        PortDeleted -> portRemoved d (portNumber port)
        _ -> portUpdated (contextTime context) d port
      known <- maybe False (Map.member (portNumber port) . switchPorts) . Map.lookup d . topologySwitches <$> readIORef (controllerTopology c)
      when (known && reason /= PortDeleted && not (portIsDown port)) (probe c s [port])
      deliverHere 0 (PortChanged reason port)
