{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Limits on what switches can make a controller write and keep: incidents, of which a log has a line each, and memory
-- for messages that are still incomplete. Also the reasons that are reported for the end of a connection.
module Spec.Limits (tests) where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.MVar
import Control.Exception (bracket)
import Control.Monad (forM_, replicateM_, void, when)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf)
import GHC.Clock (getMonotonicTime)
import GHC.Stats (GCDetails (gcdetails_live_bytes), RTSStats (gc), getRTSStats)
import Peer
import Spec.Peers (encoded, plain)
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (Header (..))
import Weft.Socket (SockAddr (..))
import Weft.Transport (Connection (..), Operations (..))

tests :: TestTree
tests =
  testGroup
    "limits"
    [ testGroup "incidents" [sameSwitch, manySwitches, brokenCallback],
      testGroup "why a connection ended" [connectedAgain, noEcho, noHandshake, tooMuchQueued],
      singleBytes,
      chained
    ]

-- | Run a controller. The action also gets its incidents so far, the first one first.
withIncidents :: Settings -> (Controller -> SockAddr -> IO [Incident] -> IO a) -> IO a
withIncidents settings act = do
  incidents <- newIORef []
  withTestController settings {settingsOnIncident = \i -> atomicModifyIORef' incidents (\is -> (i : is, ()))} $ \c address ->
    act c address (reverse <$> readIORef incidents)

-- Incidents -------------------------------------------------------------------------------

-- | A switch connects and disconnects. Waits until the controller has noticed the end.
visit :: SockAddr -> Int -> IO ()
visit address d = withPeer address $ \p -> do
  sendMessageOf V10 1 (Hello []) p
  (h, ()) <- expect "FEATURES_REQUEST" (\m -> if m == FeaturesRequest then Just () else Nothing) p
  sendMessageOf V10 (headerXid h) (FeaturesReply (Features (DatapathId (fromIntegral d)) 256 2 0 0 0 [])) p
  sendMessageOf V10 7 (EchoRequest "registered") p
  void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)

-- | The number of incidents that were reported, and that of all that were counted.
numbers :: [Incident] -> (Int, Int)
numbers found = (reported, reported + sum [n | IncidentsOmitted _ n <- found])
  where
    reported = length [() | i <- found, not (omission i)]
    omission i = case i of
      IncidentsOmitted _ _ -> True
      _ -> False

-- | Each connection is three incidents: connected, its end, disconnected. A connection that comes before the end of the
-- last one leaves one out. The number of reports depends on the time that the connections take.
visits :: (Int -> Int) -> Int -> (Int -> Int) -> Assertion
visits datapath many most = withIncidents (patient plain) $ \c address incidents -> do
  begun <- getMonotonicTime
  forM_ [1 .. many] (visit address . datapath)
  eventually "the ends of all connections" ((== many) <$> controllerIncidents c)
  over <- getMonotonicTime
  (reported, _) <- numbers <$> incidents
  assertBool (show reported) (reported <= most (ceiling (over - begun) + 2))
  eventually "the number of the others" ((\(_, total) -> total >= 2 * many && total <= 3 * many) . numbers <$> incidents)

sameSwitch :: TestTree
sameSwitch = testCase "of a switch that connects in a loop ten a second are reported" (visits (const 1) 600 (* 10))

manySwitches :: TestTree
manySwitches = testCase "of a loop with other datapath IDs a hundred a second are reported" (visits id 1500 (* 100))

-- Reasons ---------------------------------------------------------------------------------

-- | The connection of the switch ends with that reason, and the controller says so.
endsBecause :: IO [Incident] -> Maybe DatapathId -> String -> Assertion
endsBecause incidents d why = do
  eventually "the end" (not . null . reasons <$> incidents)
  found <- reasons <$> incidents
  assertBool (show found) (any (why `isInfixOf`) found)
  where
    reasons found = [text | ConnectionEnded _ d' text <- found, d' == d]

-- | The callback fails, as it does if it writes to a full disk.
brokenCallback :: TestTree
brokenCallback = testCase "a callback that fails ends no connection" $ do
  let settings = (patient plain) {settingsOnIncident = \_ -> ioError (userError "no space left")}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    sendMessageOf V10 5 (Error 1 1 B.empty) p
    sendMessageOf V10 6 (EchoRequest "still there") p
    void (expect "ECHO_REPLY" (\case EchoReply s | s == "still there" -> Just (); _ -> Nothing) p)

connectedAgain :: TestTree
connectedAgain = testCase "the switch has connected again" . withIncidents (patient plain) $ \c address incidents ->
  withPeer address $ \old -> withPeer address $ \new -> do
    switchHandshake c V10 1 old
    switchHandshake c V10 1 new
    ended old
    endsBecause incidents (Just (DatapathId 1)) "the switch has connected again"

noEcho :: TestTree
noEcho = testCase "no answer to an echo request" . withIncidents plain {settingsEchoAfter = milliseconds 300, settingsDeadAfter = milliseconds 300} $ \c address incidents ->
  withPeer address $ \p -> do
    switchHandshake c V10 1 p
    ended p
    endsBecause incidents (Just (DatapathId 1)) "did not answer an echo request"

noHandshake :: TestTree
noHandshake = testCase "no handshake" . withIncidents plain {settingsHandshake = milliseconds 300} $ \_ address incidents ->
  withPeer address $ \p -> do
    sendBytes p (B.pack [1, 0])
    ended p
    endsBecause incidents Nothing "did not complete the handshake in time"

tooMuchQueued :: TestTree
tooMuchQueued = testCase "too many messages for a switch that reads nothing" . withIncidents (patient plain) $ \c address incidents ->
  withPeer address $ \p -> do
    switchHandshake c V10 1 p
    let go = sendMessage c (DatapathId 1) (EchoRequest (B.replicate 60000 0)) >>= \sent -> when (sent == Right ()) go
    go
    endsBecause incidents (Just (DatapathId 1)) "more than 1 MiB"

-- Memory ----------------------------------------------------------------------------------

-- | Connections of 20 switches, each of which has sent 60,000 bytes of a message, one at a time: 1.2 MB. With a string
-- for each byte they would take more than 100 MB.
singleBytes :: TestTree
singleBytes = testCase "a message that arrives byte by byte takes a small multiple of its size" . withBareController (patient plain) (perSwitch learningSwitch) $ \c -> do
  let live = performMajorGC >> gcdetails_live_bytes . gc <$> getRTSStats
      from d = B.concat [encoded V10 1 (Hello []), encoded V10 2 (FeaturesReply (Features (DatapathId d) 256 2 0 0 0 [])), B.take (8 + 60000) (encoded V10 3 (EchoRequest (B.replicate 65000 7)))]
      connected arrived d = do
        at <- newIORef 0
        let bytes = from d
            receive =
              atomicModifyIORef' at (\i -> (i + 1, i)) >>= \i ->
                if i < B.length bytes then pure $! B.copy (B.take 1 (B.drop i bytes)) else putMVar arrived () >> newEmptyMVar >>= takeMVar
        serveConnection c (Connection (silent receive) ())
  before <- live
  arrived <- newEmptyMVar
  withAll [connected arrived d | d <- [1 .. switches]] $ do
    replicateM_ (fromIntegral switches) (takeMVar arrived)
    now <- live
    assertBool (show (before, now)) (now < before + 20000000)
  where
    switches = 20
    withAll actions act = foldr (\a rest -> bracket (forkIO a) killThread (const rest)) act actions
    -- A connection that receives by this action, and ignores what is sent.
    silent receive =
      Operations
        { opReceive = \_ _ _ -> receive,
          opSend = \_ _ _ -> pure (),
          opSendMany = \_ _ _ -> pure (),
          opSendFile = \_ _ _ _ -> pure (),
          opShutdownSend = \_ _ -> pure (),
          opClose = const (pure ()),
          opAbort = const (pure ()),
          opPeer = const (SockAddrUnix ""),
          opLocal = const (pure (SockAddrUnix "")),
          opSendProgress = const (pure Nothing),
          opAwaitPeer = Nothing,
          opIsQuiet = const (pure False),
          opSecurity = const Nothing,
          opKeepsStrings = const False
        }

-- | 200,000 packets. With a thunk for each of them the state would take some 10 MB.
chained :: TestTree
chained = testCase "applications in a chain keep nothing of a packet" . withTestControllerOf plain (perSwitch (packets `andThen` packets `andThen` packets)) $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  let live = performMajorGC >> gcdetails_live_bytes . gc <$> getRTSStats
      some = B.concat (replicate 1000 (encoded V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo 1) 0 0 0 [] (B.replicate 60 2)))))
      send n = do
        replicateM_ n (sendBytes p some)
        sendMessageOf V10 7 (EchoRequest "behind them") p
        void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)
  send 1
  before <- live
  send 200
  -- Tests that run at the same time hold memory too, for a while.
  eventually "no more memory than before the packets" ((< before + 1000000) <$> live)
  where
    packets :: App Int
    packets = App 0 $ \_ event n -> case event of
      Packet _ -> (n + 1, [])
      _ -> (n, [])
