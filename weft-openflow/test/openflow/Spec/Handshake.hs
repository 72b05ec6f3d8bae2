{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Busy switches, which send packets before they know that a controller has asked for their features; ERROR messages
-- that cannot be understood; transaction IDs; connections that claim another one's datapath ID; and addresses of
-- switches.
module Spec.Handshake (tests) where

import Control.Concurrent.Async (poll, wait, withAsync)
import Control.Exception (IOException, try)
import Control.Monad (forM_, replicateM_, void)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf, isPrefixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Peer
import Spec.Peers (encoded, plain)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket

tests :: TestTree
tests =
  testGroup
    "handshake"
    [ testGroup "a busy switch" [test version | test <- [busy, alwaysBusy], version <- [V10, V13]],
      testGroup "an ERROR is not answered by another" (concat [[malformed version, otherVersion version, early version, first version] | version <- [V10, V13]]),
      testGroup "transaction IDs" (map ownNumbers [V10, V13]),
      testGroup "a claimed datapath ID" [claimed, claimedOfSilent, claimedByMany],
      mappedAddress
    ]

-- | The handshake of a switch with the datapath ID 1, up to FEATURES_REPLY.
claim :: Peer -> IO ()
claim p = do
  sendMessageOf V13 1 (Hello []) p
  xid <- featuresAsked p
  sendBytes p (features V13 xid)

-- | Answer echo requests until the connection ends. The action to run at each echo request.
answering :: Peer -> IO () -> IO ()
answering p noted =
  nextFrom p >>= \case
    Just (h, EchoRequest s) -> noted >> sendMessageOf V13 (headerXid h) (EchoReply s) p >> answering p noted
    Just _ -> answering p noted
    Nothing -> pure ()

claimed :: TestTree
claimed = testCase "does not take the place of a connection that answers" $ do
  incidents <- newIORef []
  withTestController patientClaims {settingsOnIncident = \i -> atomicModifyIORef' incidents (\is -> (i : is, ()))} $ \c address -> do
    withPeer address $ \p -> do
      switchHandshake c V13 1 p
      withAsync (answering p (pure ())) $ \switch -> do
        forM_ [1 .. 30 :: Int] $ \_ -> withPeer address $ \other -> claim other >> ended other
        poll switch >>= maybe (pure ()) (const (assertFailure "the switch was cut off"))
        eventually "the refusals are counted" ((== 30) <$> controllerIncidents c)
        found <- readIORef incidents
        assertBool (show found) (and ["answers" `isInfixOf` why | ConnectionEnded _ _ why <- found])
        length [() | Connected _ <- found] @?= 1
    -- It has gone.
    withPeer address $ \other -> claim other >> void (expect "the request for the ports" (\m -> if m == StatsRequestMessage False PortDescRequest then Just () else Nothing) other)

-- | No switch needs this long for an echo, however busy the machine is.
patientClaims :: Settings
patientClaims = plain {settingsTakeover = seconds 60}

claimedOfSilent :: TestTree
claimedOfSilent = testCase "is given to the newcomer if the connection does not answer in time" . withTestController plain {settingsTakeover = milliseconds 300} $ \c address ->
  withPeer address $ \old -> withPeer address $ \new -> do
    switchHandshake c V13 1 old
    claim new
    _ <- expect "an echo request" (\case EchoRequest _ -> Just (); _ -> Nothing) old
    ended old
    void (expect "the request for the ports" (\m -> if m == StatsRequestMessage False PortDescRequest then Just () else Nothing) new)

-- | Of those that wait for the same silent connection one takes its place. It answers when the others ask again.
claimedByMany :: TestTree
claimedByMany = testCase "is given to one of several newcomers" . withTestController patientClaims {settingsTakeover = seconds 5} $ \c address -> withPeer address $ \old -> do
  switchHandshake c V13 1 old
  let newcomer = withPeer address (\p -> claim p >> answering p (pure ()))
  withAsync newcomer $ \one -> withAsync newcomer $ \two -> withAsync newcomer $ \three -> do
    ended old
    let over = length . filter isJust <$> mapM poll [one, two, three]
    eventually "two have ended" ((== 2) <$> over)
    connectedSwitches c >>= assertBool "the switch is gone" . Map.member (DatapathId 1)
    over >>= (@?= 2)

packet :: Version -> B.ByteString
packet version = encoded version 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo 1) 0 0 0 [] (B.replicate 60 2)))

features :: Version -> Xid -> B.ByteString
features version xid = encoded version xid (FeaturesReply (Features (DatapathId 1) 256 2 0 0 0 []))

featuresAsked :: Peer -> IO Xid
featuresAsked p = headerXid . fst <$> expect "FEATURES_REQUEST" (\m -> if m == FeaturesRequest then Just () else Nothing) p

busy :: Version -> TestTree
busy version = testCase (show version <> ": 10,000 packets before FEATURES_REPLY") . withTestController plain $ \c address -> withPeer address $ \p -> do
  sendMessageOf version 1 (Hello []) p
  xid <- featuresAsked p
  replicateM_ 100 (sendBytes p (B.concat (replicate 100 (packet version))))
  sendBytes p (features version xid)
  eventually "the switch is known" (Map.member (DatapathId 1) <$> connectedSwitches c)

-- | Packets all the time and no FEATURES_REPLY: the time for the handshake ends nevertheless.
alwaysBusy :: Version -> TestTree
alwaysBusy version = testCase (show version <> ": nothing but packets") $ do
  incidents <- newIORef []
  withTestController plain {settingsHandshake = milliseconds 500, settingsOnIncident = \i -> atomicModifyIORef' incidents (\is -> (i : is, ()))} $ \_ address -> withPeer address $ \p -> do
    sendMessageOf version 1 (Hello []) p
    _ <- featuresAsked p
    let bytes = B.concat (replicate 100 (packet version))
        go = (try (sendBytes p bytes) :: IO (Either IOException ())) >>= either (const (pure ())) (const go)
    go
    eventually "the reason" (any (("did not complete the handshake in time" `isInfixOf`) . show) <$> readIORef incidents)

-- | An ERROR without the code that it must have.
shortError :: B.ByteString -> B.ByteString
shortError version = version <> B.pack [1, 0, 10, 0, 0, 0, 9, 0, 1]

byteOf :: Version -> B.ByteString
byteOf = B.singleton . versionByte

malformed :: Version -> TestTree
malformed version = testCase (show version <> ": malformed") . withTestController plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  sendBytes p (shortError (byteOf version))
  sendMessageOf version 77 (EchoRequest "behind it") p
  untilEcho p

untilEcho :: Peer -> IO ()
untilEcho p =
  nextFrom p >>= \case
    Just (_, EchoReply _) -> pure ()
    Just (_, Error t code _) -> assertFailure ("answered by ERROR " <> show (t, code))
    Just _ -> untilEcho p
    Nothing -> assertFailure "the connection ended"

-- | The connection ends, and the controller sends no ERROR before that.
endsQuietly :: Peer -> IO ()
endsQuietly p =
  nextFrom p >>= \case
    Nothing -> pure ()
    Just (_, Error t code _) -> assertFailure ("answered by ERROR " <> show (t, code))
    Just _ -> endsQuietly p

otherVersion :: Version -> TestTree
otherVersion version = testCase (show version <> ": of another version") . withTestController plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  sendBytes p (B.pack [9, 1, 0, 12, 0, 0, 0, 9, 0, 1, 0, 1])
  endsQuietly p

early :: Version -> TestTree
early version = testCase (show version <> ": before FEATURES_REPLY") . withTestController plain $ \_ address ->
  forM_ [shortError (byteOf version), B.pack [9, 1, 0, 12, 0, 0, 0, 9, 0, 1, 0, 1], byteOf version <> B.pack [1, 0, 7, 0, 0, 0, 9]] $ \bytes -> withPeer address $ \p -> do
    sendMessageOf version 1 (Hello []) p
    _ <- featuresAsked p
    sendBytes p bytes
    endsQuietly p

first :: Version -> TestTree
first version = testCase (show version <> ": instead of HELLO") . withTestController plain $ \_ address ->
  forM_ [shortError (byteOf version), encoded version 9 (Error 0 0 "no")] $ \bytes -> withPeer address $ \p -> do
    sendBytes p bytes
    endsQuietly p

-- | A packet whose transaction ID is that of a pending request. Its answer must have another one: an ERROR for the
-- answer is no answer to the request.
ownNumbers :: Version -> TestTree
ownNumbers version = testCase (show version <> ": an answer to a packet has none of a pending request") . withTestController plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c version 1 p
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  withAsync (askSwitch c (DatapathId 1) (PortStatsRequest portAny)) $ \asked -> do
    (h, ()) <- expect "the request" (\case StatsRequestMessage False (PortStatsRequest _) -> Just (); _ -> Nothing) p
    packetFrom version (headerXid h) (PortNo 1) 1 2 p
    (out, ()) <- expect "the answer to the packet" (\case PacketOutMessage _ -> Just (); _ -> Nothing) p
    sendMessageOf version (headerXid out) (Error 1 6 "") p
    sendMessageOf version (headerXid h) (StatsReplyMessage False (PortStatsReply [])) p
    wait asked >>= (@?= Right [PortStatsReply []])

-- | A listener for both families sees a client of IPv4 at an IPv4-mapped address (RFC 4291, 2.5.5.2).
mappedAddress :: TestTree
mappedAddress = testCase "a switch that connects by IPv4 has an IPv4 address" $ do
  incidents <- newIORef []
  let settings = plain {settingsOnIncident = \i -> atomicModifyIORef' incidents (\is -> (i : is, ()))}
  withController settings defaultServerSettings (perSwitch learningSwitch) $ \c server -> do
    port <- case serverAddress server of
      SockAddrInet n _ -> pure n
      SockAddrInet6 n _ _ _ -> pure n
      _ -> assertFailure "no port"
    withPeer (SockAddrInet port 0x0100007f) $ \p -> do
      switchHandshake c V10 1 p
      addresses <- map infoAddress . Map.elems <$> connectedSwitches c
      assertBool (show addresses) (all ("127.0.0.1:" `isPrefixOf`) addresses)
    let reported = (\is -> [a | ConnectionEnded a _ _ <- is]) <$> readIORef incidents
    eventually "the end is reported" (not . null <$> reported)
    reported >>= \as -> assertBool (show as) (all ("127.0.0.1:" `isPrefixOf`) as)
