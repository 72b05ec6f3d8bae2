{-# LANGUAGE OverloadedStrings #-}

-- |
-- Many connections, and connections that end badly.
module Spec.Connections (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (mkWeakThreadId, myThreadId, threadDelay)
import Control.Concurrent.Async (forConcurrently_, mapConcurrently)
import Control.Exception (bracket)
import Control.Monad (forM_, replicateM, replicateM_)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (isNothing)
import System.Mem (performMajorGC)
import System.Mem.Weak (deRefWeak)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http (defaultSettings, serverConnections)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "connections"
    [ testOn on "200 at once" . withTestServer $ \server port -> do
        bracket (replicateM 200 (connectTo port)) (mapM_ hangUp) $ \clients -> do
          forConcurrently_ clients $ \client -> replicateM_ 5 $ do
            answer <- get client "/hello"
            answerBody answer @?= "hello"
          serverConnections server >>= (@?= 200)
        noConnections server,
      testOn on "1,000 one after the other" . withTestServer $ \server port -> do
        _ <- mapConcurrently (const (replicateM_ 50 (once port))) [1 .. 20 :: Int]
        noConnections server,
      testOn on "nothing is kept of those that have ended" $ do
        threads <- newIORef []
        let noting request respond = do
              t <- mkWeakThreadId =<< myThreadId
              atomicModifyIORef' threads (\ts -> (t : ts, ()))
              application request respond
        withQuietServer defaultSettings noting $ \server port -> do
          replicateM_ 100 (once port)
          noConnections server
          eventually "their threads are garbage" $ performMajorGC >> all isNothing <$> (mapM deRefWeak =<< readIORef threads),
      testOn on "a client that goes away before, in and after a head" . withTestServer $ \server port -> do
        forM_ ["", "GE", "GET /hello HTTP/1.1\r\nHost:", "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"] $ \bytes ->
          forM_ [hangUp, reset] $ \end -> do
            client <- connectTo port
            say client bytes
            end client
        stillServes server port,
      testOn on "a client that goes away in a body" . withTestServer $ \server port -> do
        forM_ [hangUp, reset] $ \end -> do
          client <- connectTo port
          say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n"
          say client (B.replicate 5000 120)
          end client
        stillServes server port,
      testOn on "a client that goes away in a response" . withTestServer $ \server port -> do
        forM_ [("/large?n=20000000", hangUp), ("/large?n=20000000", reset), ("/drip?n=40", hangUp), ("/drip?n=40", reset)] $ \(path, end) -> do
          client <- connectTo port
          ask client path []
          _ <- hear client
          end client
        stillServes server port,
      testOn on "a connection's thread stays on its capability" . withTestServer $ \_ port ->
        forM_ [1 .. 8 :: Int] $ \_ -> withClient port $ \client -> do
          answer <- get client "/where"
          answerBody answer @?= "True",
      testOn on "a slow request does not delay others" . withTestServer $ \_ port ->
        withClient port $ \slow -> do
          ask slow "/slow?n=500" []
          within 10 "the others" . replicateM_ 20 $ once port
          answer <- hearAnswer slow
          answerBody answer @?= "slowly"
    ]
  where
    once port = withClient port $ \client -> do
      answer <- get client "/hello"
      answerBody answer @?= "hello"
    stillServes server port = do
      replicateM_ 4 (once port)
      threadDelay 1000
      noConnections server
