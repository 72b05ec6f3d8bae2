{-# LANGUAGE OverloadedStrings #-}

-- |
-- A peer of a controller, byte by byte: what a switch sends and sees, and what no switch would send.
module Peer
  ( withTestController,
    withTestControllerOf,
    patient,
    Peer,
    withPeer,
    sendBytes,
    sendMessageOf,
    expect,
    nextFrom,
    nextWithin,
    ended,
    rawEnd,
    switchHandshake,
    packetFrom,
    protocolName,
    eventually,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, try)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.Word (Word32, Word8)
import System.Timeout (timeout)
import Test.Tasty.HUnit
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)

-- | A controller with a learning switch.
withTestController :: Settings -> (Controller -> SockAddr -> IO a) -> IO a
withTestController settings = withTestControllerOf settings (perSwitch learningSwitch)

withTestControllerOf :: Settings -> Placement -> (Controller -> SockAddr -> IO a) -> IO a
withTestControllerOf settings app act =
  withController settings defaultServerSettings {serverHost = Just "127.0.0.1"} app (\c s -> act c (serverAddress s))

-- | With time for peers that answer no echoes, on a machine with much else to do.
patient :: Settings -> Settings
patient settings = settings {settingsEchoAfter = seconds 600, settingsDeadAfter = seconds 600, settingsHandshake = seconds 600}

-- | A connection, and what was received and not yet looked at.
data Peer = Peer Socket (IORef ByteString)

withPeer :: SockAddr -> (Peer -> IO a) -> IO a
withPeer address act = bracket open close $ \s -> newIORef B.empty >>= act . Peer s
  where
    open = do
      s <- socket AF_INET Stream defaultProtocol
      connect s address
      s <$ setSocketOption s NoDelay 1

sendBytes :: Peer -> ByteString -> IO ()
sendBytes (Peer s _) = sendAll s

sendMessageOf :: Version -> Xid -> Message -> Peer -> IO ()
sendMessageOf version xid message p = sendBytes p (fromMaybe (error "unencodable") (encode version xid message))

-- | The next message, within 30 seconds; 'Nothing' at the end.
nextFrom :: Peer -> IO (Maybe (Header, Message))
nextFrom = nextWithin 30

-- | The same within so many seconds.
nextWithin :: Int -> Peer -> IO (Maybe (Header, Message))
nextWithin most p@(Peer s ref) = do
  bytes <- readIORef ref
  case nextMessage bytes of
    Whole _ m rest -> do
      writeIORef ref rest
      either (assertFailure . ("the controller sent " <>) . show) (pure . Just) (decode m)
    Unframed _ -> assertFailure "the controller sent a length below 8"
    Missing _ -> do
      more <- timeout (most * 1000000) (try (recv s 65536))
      case more of
        Nothing -> assertFailure ("nothing came for " <> show most <> " seconds")
        Just (Left e) -> Nothing <$ pure (e :: IOException)
        Just (Right "") -> pure Nothing
        Just (Right b) -> writeIORef ref (bytes <> b) >> nextWithin most p

-- | The first message that a function wants; others are passed over.
expect :: String -> (Message -> Maybe a) -> Peer -> IO (Header, a)
expect what wanted p = do
  m <- nextFrom p
  case m of
    Nothing -> assertFailure ("the connection ended before " <> what)
    Just (h, message) -> maybe (expect what wanted p) (pure . (,) h) (wanted message)

-- | The connection ends, within five seconds.
ended :: Peer -> IO ()
ended p = nextFrom p >>= maybe (pure ()) (const (ended p))

-- | The same, whatever comes before it.
rawEnd :: Peer -> IO ()
rawEnd (Peer s _) = do
  more <- timeout 5000000 (try (recv s 65536))
  case more of
    Nothing -> assertFailure "the connection stays open"
    Just (Left e) -> const (pure ()) (e :: IOException)
    Just (Right "") -> pure ()
    Just (Right _) -> newIORef B.empty >>= rawEnd . Peer s

-- | As a switch of that version with four ports; done when the controller has it.
switchHandshake :: Controller -> Version -> Word8 -> Peer -> IO ()
switchHandshake c version n p = do
  sendMessageOf version 1 (Hello []) p
  (h, ()) <- expect "FEATURES_REQUEST" (\m -> if m == FeaturesRequest then Just () else Nothing) p
  sendMessageOf version (headerXid h) (FeaturesReply (Features d 256 2 0 0 0 (if version == V10 then ports else []))) p
  eventually "the switch is known" (elem d . map fst . toPairs <$> connectedSwitches c)
  where
    d = DatapathId (fromIntegral n)
    ports = [Port (PortNo i) (MacAddress (fromIntegral i)) "p" 0 0 (0, 0, 0, 0) (0, 0) | i <- [1 .. 4]]
    toPairs = foldr (:) [] . fmap (\i -> (featuresDatapath (infoFeatures i), i))

-- | A packet between two hosts, by number, that came in there.
packetFrom :: Version -> Word32 -> PortNo -> Word8 -> Word8 -> Peer -> IO ()
packetFrom version buffer port source destination = sendMessageOf version buffer (PacketInMessage (PacketIn (BufferId buffer) 60 port 0 0 0 [] frame))
  where
    frame = B.pack ([2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 8, 0] ++ replicate 46 0)

-- | What Open vSwitch calls a version.
protocolName :: Version -> String
protocolName version = case version of V10 -> "OpenFlow10"; V13 -> "OpenFlow13"

-- | It holds within 30 seconds.
eventually :: String -> IO Bool -> Assertion
eventually what condition = go (3000 :: Int)
  where
    go 0 = assertFailure ("not within 30 seconds: " <> what)
    go n = condition >>= \ok -> unless ok (threadDelay 10000 >> go (n - 1))
