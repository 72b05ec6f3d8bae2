{-# LANGUAGE OverloadedStrings #-}

-- |
-- A peer of a controller that sends any bytes: valid messages of a switch, or faulty ones.
module Peer
  ( withTestController,
    withTestControllerOf,
    patient,
    Peer,
    withPeer,
    sendBytes,
    sendMessageOf,
    answerRoles,
    confirming,
    expect,
    nextFrom,
    nextWithin,
    ended,
    rawEnd,
    switchHandshake,
    announcePorts,
    packetFrom,
    protocolName,
    mostUnread,
    eventually,
  )
where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (withAsync)
import Control.Exception (IOException, bracket, try)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.Word (Word32, Word64, Word8)
import Test.Tasty.HUnit
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.Limits (limited, within)

-- | A controller with a learning switch.
withTestController :: Settings -> (Controller -> SockAddr -> IO a) -> IO a
withTestController settings = withTestControllerOf settings (perSwitch learningSwitch)

withTestControllerOf :: Settings -> Placement -> (Controller -> SockAddr -> IO a) -> IO a
withTestControllerOf settings app act =
  withController settings defaultServerSettings {serverHost = Just "127.0.0.1"} app (\c s -> act c (serverAddress s))

-- | Settings with long time limits, for peers that answer no echo requests and for busy machines.
patient :: Settings -> Settings
patient settings = settings {settingsEchoAfter = seconds 600, settingsDeadAfter = seconds 600, settingsHandshake = seconds 600}

-- | A connection, the bytes that were received and not yet decoded, and how a ROLE_REQUEST is answered when it is
-- received. Its own buffers have a fixed size: the kernel would let them grow to what the machine is configured for.
data Peer = Peer Socket (IORef ByteString) (IORef (Role -> Word64 -> IO Message))

-- | From now on answer a ROLE_REQUEST in this way when it is received. A peer gives any role, unless told otherwise.
answerRoles :: (Role -> Word64 -> IO Message) -> Peer -> IO ()
answerRoles answer (Peer _ _ ref) = writeIORef ref answer

withPeer :: SockAddr -> (Peer -> IO a) -> IO a
withPeer address act = bracket open close $ \s -> ((,) <$> newIORef B.empty <*> newIORef (\role generation -> pure (RoleReply role generation))) >>= \(bytes, answer) -> act (Peer s bytes answer)
  where
    open = do
      s <- socket AF_INET Stream defaultProtocol
      setSocketOption s RecvBuffer 200000
      setSocketOption s SendBuffer 200000
      connect s address
      s <$ setSocketOption s NoDelay 1

sendBytes :: Peer -> ByteString -> IO ()
sendBytes (Peer s _ _) = sendAll s

sendMessageOf :: Version -> Xid -> Message -> Peer -> IO ()
sendMessageOf version xid message p = sendBytes p (fromMaybe (error "unencodable") (encode version xid message))

-- | 'nextWithin' 30 seconds.
nextFrom :: Peer -> IO (Maybe (Header, Message))
nextFrom = nextWithin 30

-- | The next message, within the given number of seconds for each receive call; 'Nothing' at the end.
nextWithin :: Int -> Peer -> IO (Maybe (Header, Message))
nextWithin most p@(Peer s ref roles) = do
  bytes <- readIORef ref
  case nextMessage bytes of
    Whole _ m rest -> do
      writeIORef ref rest
      (h, message) <- either (assertFailure . ("the controller sent " <>) . show) pure (decode m)
      case message of
        RoleRequest role generation -> readIORef roles >>= \answer -> answer role generation >>= \reply -> sendMessageOf V13 (headerXid h) reply p
        _ -> pure ()
      pure (Just (h, message))
    Unframed _ -> assertFailure "the controller sent a length below 8"
    Missing _ -> do
      more <- limited (fromIntegral most) (try (recv s 65536))
      case more of
        Nothing -> assertFailure ("nothing came for " <> show most <> " seconds")
        Just (Left e) -> Nothing <$ pure (e :: IOException)
        Just (Right "") -> pure Nothing
        Just (Right b) -> writeIORef ref (bytes <> b) >> nextWithin most p

-- | Run an action. Meanwhile receive messages, and answer each BARRIER_REQUEST. Returns the received messages, too.
confirming :: Peer -> IO a -> IO (a, [Message])
confirming p act = do
  received <- newIORef []
  let answering =
        nextFrom p
          >>= mapM_
            ( \(h, m) -> do
                modifyIORef' received (m :)
                when (m == BarrierRequest) (sendMessageOf (if headerVersion h == 1 then V10 else V13) (headerXid h) BarrierReply p)
                answering
            )
  a <- withAsync answering (const act)
  (,) a . reverse <$> readIORef received

-- | The first message that a function accepts. Others are skipped.
expect :: String -> (Message -> Maybe a) -> Peer -> IO (Header, a)
expect what wanted p = do
  m <- nextFrom p
  case m of
    Nothing -> assertFailure ("the connection ended before " <> what)
    Just (h, message) -> maybe (expect what wanted p) (pure . (,) h) (wanted message)

-- | Receive messages until the connection ends. Fails if none arrives for 30 seconds.
ended :: Peer -> IO ()
ended p = nextFrom p >>= maybe (pure ()) (const (ended p))

-- | Receive any bytes until the connection ends. Fails if none arrive for 30 seconds.
rawEnd :: Peer -> IO ()
rawEnd (Peer s bytes roles) = do
  more <- limited 30 (try (recv s 65536))
  case more of
    Nothing -> assertFailure "the connection stays open"
    Just (Left e) -> const (pure ()) (e :: IOException)
    Just (Right "") -> pure ()
    Just (Right _) -> rawEnd (Peer s bytes roles)

-- | Perform the handshake of a switch with four ports. Returns when the controller has registered the switch.
switchHandshake :: Controller -> Version -> Word8 -> Peer -> IO ()
switchHandshake c version n p = do
  sendMessageOf version 1 (Hello []) p
  (h, ()) <- expect "FEATURES_REQUEST" (\m -> if m == FeaturesRequest then Just () else Nothing) p
  sendMessageOf version (headerXid h) (FeaturesReply (Features d 256 2 0 0 0 (if version == V10 then fourPorts else []))) p
  eventually "the switch is known" (elem d . map fst . toPairs <$> connectedSwitches c)
  where
    d = DatapathId (fromIntegral n)
    toPairs = foldr (:) [] . fmap (\i -> (featuresDatapath (infoFeatures i), i))

fourPorts :: [Port]
fourPorts = [Port (PortNo i) (MacAddress (fromIntegral i)) "p" 0 0 (0, 0, 0, 0) (0, 0) | i <- [1 .. 4]]

-- | Announce the four ports after the handshake, as a switch of 1.3 does; in 1.0 the handshake has them.
announcePorts :: Version -> Peer -> IO ()
announcePorts version p = case version of
  V10 -> pure ()
  V13 -> sendMessageOf V13 4 (StatsReplyMessage False (PortDescReply fourPorts)) p

-- | Send a PACKET_IN with a buffer, an ingress port and a packet between two hosts, which are given by number.
packetFrom :: Version -> Word32 -> PortNo -> Word8 -> Word8 -> Peer -> IO ()
packetFrom version buffer port source destination = sendMessageOf version buffer (PacketInMessage (PacketIn (BufferId buffer) 60 port 0 0 0 [] frame))
  where
    frame = B.pack ([2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 8, 0] ++ replicate 46 0)

-- | Open vSwitch's name for a version.
protocolName :: Version -> String
protocolName version = case version of V10 -> "OpenFlow10"; V13 -> "OpenFlow13"

-- | The most packets of 78 bytes that a peer can send if it reads none of the answers, which have 24 bytes: those in
-- the kernel's buffers. The controller's ones grow to what the machine is configured for. With Linux's defaults they
-- are fewer than half a million.
mostUnread :: IO Int
mostUnread = do
  received <- largest "tcp_rmem"
  unsent <- largest "tcp_wmem"
  pure (max 500000 ((received + 1000000) `div` 78 + (unsent + 1000000) `div` 24 + 100000))
  where
    largest :: String -> IO Int
    largest name = do
      text <- try (readFile ("/proc/sys/net/ipv4/" <> name)) :: IO (Either IOException String)
      pure $ case words <$> text of
        Right [_, _, n] -> read n
        _ -> 0

-- | The condition holds within a minute.
eventually :: String -> IO Bool -> Assertion
eventually what condition = within 60 what go
  where
    go = condition >>= \ok -> unless ok (threadDelay 10000 >> go)
