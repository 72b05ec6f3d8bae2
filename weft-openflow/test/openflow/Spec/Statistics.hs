{-# LANGUAGE LambdaCase #-}

-- |
-- Statistics of switches: replies to 'askSwitch', and the counters of ports.
module Spec.Statistics (tests) where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Concurrent.Async (mapConcurrently, withAsync)
import Control.Concurrent.MVar
import Control.Exception (bracket)
import Control.Monad (forM_, forever, replicateM, replicateM_, void)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import qualified Data.Map.Strict as Map
import GHC.Stats (GCDetails (gcdetails_live_bytes), RTSStats (gc), getRTSStats)
import Peer
import Spec.Peers (encoded, plain, withWitness)
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (SockAddr)

tests :: TestTree
tests = testGroup "statistics" [inParts, sharedReads, lateAnswer, boundedChanges, tooLong, unreadCounters, countersOfManyPorts, muteSwitch]

-- | Request all flows. Returns the request's transaction ID, and the variable for the result.
asked :: Controller -> Peer -> IO (Xid, MVar (Either RequestFailure [StatsReply]))
asked c p = do
  result <- newEmptyMVar
  _ <- forkIO (askSwitch c (DatapathId 1) (FlowStatsRequest everyFlow) >>= putMVar result)
  (h, _) <- expect "the request" (\case StatsRequestMessage False (FlowStatsRequest f) -> Just f; _ -> Nothing) p
  pure (headerXid h, result)

inParts :: TestTree
inParts = testCase "statistics in several parts, and none" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  (xid, result) <- asked c p
  let flow n = FlowStats 0 n 0 1 0 0 0 0 0 0 [] []
  sendMessageOf V13 xid (StatsReplyMessage True (FlowStatsReply [flow 1, flow 2])) p
  sendMessageOf V13 xid (StatsReplyMessage False (FlowStatsReply [flow 3])) p
  parts <- takeMVar result
  parts @?= Right [FlowStatsReply [flow 1, flow 2], FlowStatsReply [flow 3]]
  none <- askSwitch c (DatapathId 99) DescRequest
  none @?= Left NotConnected
  gone <- sendMessage c (DatapathId 99) BarrierRequest
  gone @?= Left NotConnected

-- | The switch has one request at a time, however many threads ask for the same, and those that ask while it is under
-- way get what the switch answers to the next one: it may have read its tables before they asked.
sharedReads :: TestTree
sharedReads = testCase "threads that ask a switch for the same share requests" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  (xid, first) <- asked c p
  others <- newIORef (0 :: Int)
  results <- replicateM 50 $ do
    result <- newEmptyMVar
    _ <- forkIO (atomicModifyIORef' others (\n -> (n + 1, ())) >> askSwitch c (DatapathId 1) (FlowStatsRequest everyFlow) >>= putMVar result)
    pure result
  eventually "all ask" ((== 50) <$> readIORef others)
  -- Those that come later than this share further requests.
  threadDelay 300000
  let reply number n = sendMessageOf V13 number (StatsReplyMessage False (FlowStatsReply [FlowStats 0 n 0 1 0 0 0 0 0 0 [] []])) p
      flowsRequest = \case StatsRequestMessage False (FlowStatsRequest _) -> Just (); _ -> Nothing
  reply xid 1
  takeMVar first >>= (@?= Right [1]) . fmap ages
  served <- newIORef (0 :: Int)
  withAsync (forever (expect "a request" flowsRequest p >>= \(h, ()) -> atomicModifyIORef' served (\n -> (n + 1, ())) >> reply (headerXid h) 2)) $ \_ ->
    forM_ results $ \result -> takeMVar result >>= (@?= Right [2]) . fmap ages
  requests <- readIORef served
  assertBool (show requests) (requests >= 1 && requests < 50)
  where
    ages parts = [flowStatsSeconds f | FlowStatsReply fs <- parts, f <- fs]

-- | A switch that has not answered is not sent the same again and again. Its late answer is for nobody, and lets the
-- next request go.
lateAnswer :: TestTree
lateAnswer = testCase "a switch that does not answer has one request for the same" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  (xid, first) <- asked c p
  takeMVar first >>= (@?= Left NoReply)
  again <- newEmptyMVar
  _ <- forkIO (askSwitch c (DatapathId 1) (FlowStatsRequest everyFlow) >>= putMVar again)
  threadDelay 300000
  sendMessageOf V13 5 (EchoRequest (C.pack "nothing before this")) p
  -- What configures the switch may still come before.
  let isReply = \case
        EchoReply _ -> Just True
        StatsRequestMessage False (FlowStatsRequest _) -> Just False
        _ -> Nothing
  (_, replied) <- expect "the reply" isReply p
  assertBool "a second request" replied
  sendMessageOf V13 xid (StatsReplyMessage False (FlowStatsReply [])) p
  (h, ()) <- expect "the next request" (\case StatsRequestMessage False (FlowStatsRequest _) -> Just (); _ -> Nothing) p
  sendMessageOf V13 (headerXid h) (StatsReplyMessage False (FlowStatsReply [])) p
  takeMVar again >>= (@?= Right [FlowStatsReply []])

-- | Each change is a message and a barrier: 100 of them exceed the bound of 128, as long as the first ones wait.
boundedChanges :: TestTree
boundedChanges = testCase "of a switch that does not answer a bounded number of answers is awaited" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  eventually "the role is known" (all infoActive <$> connectedSwitches c)
  results <- mapConcurrently (\_ -> sendConfirmed c (DatapathId 1) [FlowModMessage defaultFlowMod]) [1 .. 100 :: Int]
  assertBool (show results) (Left TooManyRequests `elem` results && Left NoReply `elem` results)

-- | 20 MB in parts of 64,000 bytes, and the last part.
tooLong :: TestTree
tooLong = testCase "statistics that are too long are given up, and the switch stays connected" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V13 1 p
  (xid, result) <- asked c p
  let part more = encoded V13 xid (StatsReplyMessage more (FlowStatsReply (replicate 1100 (FlowStats 0 1 0 1 0 0 0 0 0 0 [] []))))
  replicateM_ (20000000 `div` B.length (part True)) (sendBytes p (part True))
  sendBytes p (part False)
  takeMVar result >>= (@?= Left ReplyTooLong)
  sendMessageOf V13 5 (EchoRequest (C.pack "still there")) p
  void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)

-- | A switch that answers all requests for the counters of its ports, which have the numbers from 1 on. The action gets
-- the controller, its address, and the number of answers so far.
withCounters :: Settings -> Int -> (Controller -> SockAddr -> IO Int -> IO a) -> IO a
withCounters settings ports act = withTestController (patient settings) $ \c address -> withPeer address $ \p -> do
  answered <- newIORef (0 :: Int)
  let stats = PortStatsReply [PortStats (PortNo (fromIntegral n)) (replicate 12 7) (0, 0) | n <- [1 .. ports]]
      answers = do
        (h, ()) <- expect "a request for counters" (\case StatsRequestMessage False (PortStatsRequest _) -> Just (); _ -> Nothing) p
        sendMessageOf V10 (headerXid h) (StatsReplyMessage False stats) p
        modifyIORef' answered (+ 1)
        answers
  switchHandshake c V10 1 p
  bracket (forkIO answers) killThread (const (act c address (readIORef answered)))

-- | The counters of 500 ports take 300 KB, and 500 readings of them 150 MB.
unreadCounters :: TestTree
unreadCounters = testCase "counters that nobody reads take bounded memory" $
  withCounters plain {settingsPortStats = Just (milliseconds 1)} 500 $ \_ _ answered -> do
    let live = performMajorGC >> gcdetails_live_bytes . gc <$> getRTSStats
    eventually "20 answers" ((>= 20) <$> answered)
    before <- live
    eventually "500 more answers" ((>= 520) <$> answered)
    now <- live
    assertBool (show (before, now)) (now < before + 60000000)

countersOfManyPorts :: TestTree
countersOfManyPorts = testCase "a switch with many ports has the counters of some of them kept" $
  withCounters plain {settingsTopology = Just defaultTopologySettings {topologyMostPorts = 10}, settingsPortStats = Just (milliseconds 10)} 50 $ \c _ _ -> do
    let ports = Map.size <$> portRates c (DatapathId 1)
    eventually "counters" ((> 0) <$> ports)
    ports >>= (@?= 10)

-- | A request that is not answered is given up after 5 seconds: 20 of them in a row would take longer than
-- 'eventually' waits.
muteSwitch :: TestTree
muteSwitch = testCase "a switch that does not answer does not delay the counters of others" $
  withCounters plain {settingsPortStats = Just (milliseconds 10)} 1 $ \c address answered -> withPeer address $ \mute -> do
    switchHandshake c V10 2 mute
    _ <- expect "a request for counters" (\case StatsRequestMessage False (PortStatsRequest _) -> Just (); _ -> Nothing) mute
    before <- answered
    eventually "20 answers of the other switch" ((>= before + 20) <$> answered)
