-- |
-- What a controller does with the messages of a switch that has said who it is: its own protocol (echoes, ports,
-- statistics, errors) and the applications' events.
module Weft.OpenFlow.Controller.Dispatch
  ( Verdict (..),
    handleMessage,
    errorFor,
  )
where

import Control.Concurrent.MVar
import Control.Monad (unless, void, when)
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.Map.Strict as Map
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Outlet
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Message
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire

-- | Whether the connection goes on.
data Verdict = Continue | Finish String

-- | A message of the right version. The session's lock is held; answers are appended to the buffer.
handleMessage :: Controller -> Session -> Context -> Out -> Header -> ByteString -> IO Verdict
handleMessage c s context out h bytes
  | headerVersion h /= versionByte version = do
    _ <- writePut out (errorFor version h bytes (BadVersion (headerVersion h)))
    Finish "it changed its version" <$ count out CountFault
  | headerType h == typePacketIn = case decodePacketIn version bytes of
    Left problem -> misunderstood c s context out h bytes problem
    Right p -> do
      count out CountPacket
      Continue <$ handlePacket c s context out (headerXid h) p
  | otherwise = case decodeBody version (headerType h) bytes of
    Left problem -> misunderstood c s context out h bytes problem
    Right message -> Continue <$ handleOther c s context out h message
  where
    version = sessionVersion s

misunderstood :: Controller -> Session -> Context -> Out -> Header -> ByteString -> Problem -> IO Verdict
misunderstood c s context out h bytes problem = do
  settingsOnIncident (controllerSettings c) (Misunderstood (contextSwitch context) (show problem))
  _ <- writePut out (errorFor (sessionVersion s) h bytes problem)
  Continue <$ count out CountFault

-- | The ERROR for a message, with its first 64 bytes.
errorFor :: Version -> Header -> ByteString -> Problem -> Put
errorFor version h bytes problem = putMessage version (headerXid h) (problemError version problem bytes)

-- | A packet: LLDP of ours is a link, all else is the applications'.
handlePacket :: Controller -> Session -> Context -> Out -> Xid -> PacketIn -> IO ()
handlePacket c s context out !xid !p = case contextFlooding context of
  FloodTo _ _
    -- In 1.0 slaves get it too, and know as much.
    | Just frame <- ethernet (packetInData p),
      frameType frame == etherTypeLldp,
      Just from <- lldpOrigin frame (packetInData p) -> do
      topologyStep c (linkSeen (contextTime context) from (contextSwitch context, packetInPort p))
      -- It waits in no buffer of the switch any longer.
      active <- readIORef (sessionActive s)
      when active (deliverReplies c s context xid out (release p []))
  _ -> deliver c s context out xid (Packet p)

-- | Bring an event to the applications; what they reply is appended. A slave's applications see nothing.
deliver :: Controller -> Session -> Context -> Out -> Xid -> Event -> IO ()
deliver c s context out xid event = do
  active <- readIORef (sessionActive s)
  when active (sessionInstance s context event >>= deliverReplies c s context xid out)

-- Everything but packets ------------------------------------------------------------------

handleOther :: Controller -> Session -> Context -> Out -> Header -> Message -> IO ()
handleOther c s context out h message = case message of
  EchoRequest payload -> void (writeMessage out (sessionVersion s) (headerXid h) (EchoReply payload))
  EchoReply _ -> pure ()
  Hello _ -> pure ()
  BarrierReply -> pure ()
  FeaturesReply _ -> pure ()
  GetConfigReply _ -> pure ()
  RoleReply _ _ -> pure ()
  Error t code _ -> do
    settingsOnIncident (controllerSettings c) (SwitchError d (fromIntegral t) (fromIntegral code))
    tell (headerXid h) (Other message)
  PortStatus reason port -> portNow reason port
  FlowRemovedMessage r -> tell (headerXid h) (FlowGone r)
  StatsReplyMessage more reply -> do
    asked <- answered s (headerXid h) more reply
    case reply of
      PortDescReply ports -> mapM_ (portNow PortAdded) ports
      _ -> unless asked (tell (headerXid h) (Other message))
  _ -> tell (headerXid h) (Other message)
  where
    d = contextSwitch context
    tell = deliver c s context out
    portNow reason port = do
      when (contextFlooding context /= FloodByItself) . topologyStep c $ case reason of
        PortDeleted -> portRemoved d (portNumber port)
        _ -> portUpdated (contextTime context) d port
      unless (reason == PortDeleted || portIsDown port) (probe c s [port])
      tell 0 (PortChanged reason port)

-- | Is it a part of an answer to a question? The last part completes it.
answered :: Session -> Xid -> Bool -> StatsReply -> IO Bool
answered s xid more reply = do
  found <- atomicModifyIORef' (sessionAsking s) $ \m -> case Map.lookup xid m of
    Nothing -> (m, Nothing)
    Just (Asking parts var)
      | more && length parts < mostParts -> (Map.insert xid (Asking (reply : parts) var) m, Just (pure ()))
      | otherwise -> (Map.delete xid m, Just (void (tryPutMVar var (Just (reverse (reply : parts))))))
  case found of
    Nothing -> pure False
    Just complete -> True <$ complete
  where
    mostParts = 1024 :: Int
