-- |
-- Packet logs of stacks are replayed from both sides: the core follows the log to the end of the connection, violates
-- no invariant, and agrees with what the stack sent.
module Spec.Replay (tests) where

import Control.Concurrent
import Control.Exception (bracket, throwIO)
import qualified Data.ByteString as B
import Data.Either (isRight, rights)
import Data.Maybe (fromJust)
import GHC.Stats
import Network.Socket (SockAddr (..), tupleToHostAddress)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Tcp
import Weft.Tcp.Capture
import Weft.Tcp.Core (CloseReason (..), Instant (..), State (..), millis)
import Weft.Tcp.Device
import Weft.Tcp.Replay
import Weft.Tcp.Wire.Options (noOptions)
import Weft.Tcp.Wire.Segment (Segment (..), ack, syn)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "replay"
    [ testCase "a log of a link that loses nothing, from both sides" $ do
        seen <- logged (const False)
        (server, totals) <- lastOf (Just addressB) seen
        (summaryReceived server, summarySent server) @?= (size, 5)
        disagreements totals @?= 0
        (client, _) <- lastOf (Just addressA) seen
        (summaryReceived client, summarySent client) @?= (5, size)
        assertBool "neither is closed" (Closed Finished `elem` map summaryState [server, client] || TimeWait `elem` map summaryState [server, client]),
      testCase "a log of a link that loses: both the log and the core retransmit" $ do
        seen <- logged (\n -> n `mod` 23 == 22)
        (client, totals) <- lastOf (Just addressA) seen
        (summaryReceived client, summarySent client) @?= (5, size)
        assertBool (show totals) (loggedAgain totals > 0 && coreAgain totals > 0)
        (server, _) <- lastOf (Just addressB) seen
        (summaryReceived server, summarySent server) @?= (size, 5),
      testCase "without a chosen side, the server is replayed" $ do
        seen <- logged (const False)
        [localAddress (replayedFlow r) | r <- replay Nothing seen] @?= [addressB],
      testCase "a connection whose beginning is missing is listed, but not replayed" $ do
        seen <- logged (const False)
        let rs = replay Nothing (drop 3 seen)
        map (maybe False (const True) . replayedSteps) rs @?= [False],
      testCase "two connections between the same ports, one after the other" $ do
        let at n = Seen (Instant n)
            (a, b) = ((addressA, 4000), (addressB, 80))
            once n first =
              [ at n a b (Segment first 0 syn 1000 0 noOptions []),
                at (n + 1) b a (Segment 7 (first + 1) (syn <> ack) 1000 0 noOptions []),
                at (n + 2) a b (Segment (first + 1) 8 ack 1000 0 noOptions [])
              ]
        map (fmap (length . fst) . replayedSteps) (replay Nothing (once 0 100 ++ once 10000000 5000)) @?= [Just 3, Just 3],
      testCase "numbers that are gigabytes ahead, as after a changed byte: they are counted, and nothing is filled in" $ do
        let (a, b) = ((addressA, 4000), (addressB, 80))
            lies n = Seen (Instant (n * 1000))
            seen =
              [ lies 0 a b (Segment 100 0 syn 1000 0 noOptions []),
                lies 1 b a (Segment 7 101 (syn <> ack) 1000 0 noOptions []),
                lies 2 a b (Segment 101 8 ack 1000 0 noOptions []),
                -- Acknowledges what the replayed side has not sent.
                lies 3 a b (Segment 101 (8 + 2000000000) ack 1000 0 noOptions []),
                -- The replayed side acknowledges what was not sent to it, and sends from a wrong position.
                lies 4 b a (Segment 8 (101 + 1500000000) ack 1000 0 noOptions []),
                lies 5 b a (Segment (8 + 1800000000) 101 ack 1000 0 noOptions [B.replicate 10 1]),
                lies 6 b a (Segment 8 101 ack 1000 0 noOptions [B.replicate 10 1]),
                lies 7 a b (Segment 101 18 ack 1000 0 noOptions [])
              ]
        before <- allocated_bytes <$> getRTSStats
        (end, totals) <- lastOf Nothing seen
        (summarySent end, holes totals, implausible totals) @?= (10, 0, 3)
        used <- subtract before . allocated_bytes <$> getRTSStats
        assertBool (show used) (used < 100000000)
    ]

size :: Int
size = 300000

addressA, addressB :: Address
addressA = fromJust (parseAddress "10.0.0.1")
addressB = fromJust (parseAddress "10.0.0.2")

-- | The last state of the only connection of a log, with the given side replayed. No step may violate an invariant of
-- the core.
lastOf :: Maybe Address -> [Seen] -> IO (Summary, Totals)
lastOf side seen = case replay side seen of
  [Replayed _ (Just (steps@(_ : _), totals))] -> do
    concatMap stepBroken steps @?= []
    length steps @?= length seen
    pure (stepState (last steps), totals)
  rs -> assertFailure (show (length rs) ++ " connections")

-- | The packet log of a client (A) that sends much data and then receives five bytes.
logged :: (Int -> Bool) -> IO [Seen]
logged loses = do
  tmp <- getTemporaryDirectory
  bracket (openBinaryTempFile tmp "weft-tcp.pcap" >>= \(path, h) -> path <$ hClose h) removeFile $ \path -> do
    (da, db) <- pairOfDevices 1500 loses
    bracket (captureTo path throwIO) snd $ \(see, _) ->
      withStack (quick addressA) {stackTap = Just see} da $ \a -> withStack (quick addressB) db $ \b -> do
        limit <- deadlineIn (seconds 60)
        l <- transportListen (tcpTransport b) (SockAddrInet 80 (tupleToHostAddress (10, 0, 0, 2)))
        done <- newEmptyMVar
        _ <- forkIO $ do
          s <- listenerAccept l
          n <- B.length <$> receiveAll s limit []
          connSendBytes s limit (B.replicate 5 66)
          connShutdownSend s limit
          connClose s
          putMVar done n
        c <- transportConnect (tcpTransport a) limit (listenerAddress l)
        connSendBytes c limit (B.replicate size 65)
        connShutdownSend c limit
        answer <- receiveAll c limit []
        B.length answer @?= 5
        takeMVar done >>= (@?= size)
        connClose c
        drainStack (seconds 20) b >>= assertBool "the server's side is not over"
        drainStack (seconds 20) a >>= assertBool "the client's side is not over"
        listenerClose l
    found <- readCapture path
    case found of
      Left e -> assertFailure (show e)
      Right (link, records, rest) -> do
        rest @?= 0
        let seen = seenIn link records
        assertBool "a packet cannot be read" (all isRight seen)
        pure (rights seen)
  where
    quick address = (defaultSettings [address]) {stackConfig = defaultConfig {timeWaitTime = millis 200}}
    receiveAll c limit parts = do
      b <- connReceive c limit 65536
      if B.null b then pure (B.concat (reverse parts)) else receiveAll c limit (b : parts)
