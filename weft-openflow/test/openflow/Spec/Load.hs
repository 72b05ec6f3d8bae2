{-# LANGUAGE OverloadedStrings #-}

-- |
-- Many switches that send packets all the time, each with many hosts that the controller has not seen before.
module Spec.Load (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async
import Control.Exception (evaluate)
import Control.Monad (forM, forM_, unless)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Peer
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (SockAddr)

tests :: TestTree
tests =
  testGroup
    "load"
    -- The tests run one after the other, so that each has the whole machine.
    [ everySwitchIsServed "no topology" plain,
      after AllFinish "/all switches are served while all ask: no topology/" (everySwitchIsServed "topology" defaultSettings)
    ]
  where
    plain = defaultSettings {settingsTopology = Nothing, settingsPortStats = Nothing}

-- | A switch whose hosts are all known goes on sending packets. It must not delay switches whose hosts are still new to
-- the controller: each switch gets its share of the controller's time.
everySwitchIsServed :: TestName -> Settings -> TestTree
everySwitchIsServed name settings = testCase ("all switches are served while all ask: " <> name) . forM_ [1 .. 2 :: Int] $ \run -> do
  served <- newIORef []
  enough <- newIORef False
  done <- timeout (patience * 1000000) . withTestController (patient settings) $ \c address -> do
    counts <- forM [1 .. switches] (const (newIORef (0 :: Int)))
    writeIORef served counts
    let all' = and <$> mapM (fmap (>= rounds) . readIORef) counts
        untilServed = all' >>= \ok -> unless ok (threadDelay 10000 >> untilServed)
    -- The switches then end by themselves. If they were cancelled one by one, each would have to wait for its turn
    -- among those that still send.
    withAll [switch enough c address n count | (n, count) <- zip [1 ..] counts] (untilServed >> writeIORef enough True)
  numbers <- readIORef served >>= mapM readIORef
  unless (done == Just ()) . assertFailure $
    "run " <> show run <> ": after " <> show patience <> " s of " <> show switches <> " switches " <> show (length (filter (< rounds) numbers)) <> " were not served " <> show rounds <> " times, the others " <> show (maximum numbers) <> " times"
  where
    withAll actions act = foldr (\a rest -> withAsync a (\t -> link t >> rest)) act actions

-- | The time limit in seconds. The test takes minutes if switches starve others; otherwise 20 s on a busy machine
-- without optimisation.
patience :: Int
patience = 110

switches, rounds, outstanding :: Int
switches = 100
rounds = 4
outstanding = 512

-- | A switch that sends packets and waits for all answers, round by round, until the flag is set. Even and odd rounds
-- have different hosts.
switch :: IORef Bool -> Controller -> SockAddr -> Word8 -> IORef Int -> IO ()
switch enough c address n count = withPeer address $ \p -> do
  switchHandshake c V10 n p
  packets <- forM [0, 1] (\r -> evaluate (B.concat (map (packet r) [1 .. outstanding])))
  let go r = do
        sendBytes p (packets !! (r `mod` 2))
        answers p outstanding
        modifyIORef' count (+ 1)
        over <- readIORef enough
        unless over (go (r + 1))
  go (0 :: Int)
  where
    packet r i = fromMaybe B.empty (encode V10 1 (PacketInMessage (PacketIn (BufferId (fromIntegral i)) 64 (PortNo 1) 0 0 0 [] (frame (r * outstanding + i)))))
    frame :: Int -> B.ByteString
    frame host = B.pack ([2, 0, 0, n, 255, 255, 2, 0, 0, n, fromIntegral (host `div` 256), fromIntegral host, 8, 0] ++ replicate 50 0)

-- | Receive the given number of answers to packets. Their transaction ID is 1.
answers :: Peer -> Int -> IO ()
answers _ 0 = pure ()
answers p n = do
  m <- nextWithin patience p
  case m of
    Just (h, PacketOutMessage _) | headerXid h == 1 -> answers p (n - 1)
    Just _ -> answers p n
    Nothing -> assertFailure "the connection ended"
