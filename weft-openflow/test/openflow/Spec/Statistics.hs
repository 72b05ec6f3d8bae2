{-# LANGUAGE LambdaCase #-}

-- |
-- Statistics of switches: replies to 'askSwitch', and the counters of ports.
module Spec.Statistics (tests) where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.MVar
import Control.Exception (bracket)
import Control.Monad (replicateM_, void)
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
tests = testGroup "statistics" [inParts, tooLong, unreadCounters, countersOfManyPorts, muteSwitch]

-- | Request all flows. Returns the request's transaction ID, and the variable for the result.
asked :: Controller -> Peer -> IO (Xid, MVar (Either RequestFailure [StatsReply]))
asked c p = do
  result <- newEmptyMVar
  _ <- forkIO (askSwitch c (DatapathId 1) (FlowStatsRequest everyFlow) >>= putMVar result)
  (h, _) <- expect "the request" (\case StatsRequestMessage (FlowStatsRequest f) -> Just f; _ -> Nothing) p
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
        (h, ()) <- expect "a request for counters" (\case StatsRequestMessage (PortStatsRequest _) -> Just (); _ -> Nothing) p
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
    _ <- expect "a request for counters" (\case StatsRequestMessage (PortStatsRequest _) -> Just (); _ -> Nothing) mute
    before <- answered
    eventually "20 answers of the other switch" ((>= before + 20) <$> answered)
