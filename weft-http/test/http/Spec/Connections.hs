{-# LANGUAGE OverloadedStrings #-}

-- |
-- Many connections, and connections that end badly.
module Spec.Connections (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (mkWeakThreadId, myThreadId, threadDelay)
import Control.Concurrent.Async (async, forConcurrently_, mapConcurrently, poll)
import Control.Exception (bracket, throwIO)
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
    [ testOn on "200 connections at once" . withTestServer $ \server port -> do
        bracket (replicateM 200 (connectTo port)) (mapM_ hangUp) $ \clients -> do
          forConcurrently_ clients $ \client -> replicateM_ 5 $ do
            answer <- get client "/hello"
            answerBody answer @?= "hello"
          serverConnections server >>= (@?= 200)
        noConnections server,
      testOn on "1,000 connections: 20 clients at once, each with 50 one after the other" . withTestServer $ \server port -> do
        _ <- mapConcurrently (const (replicateM_ 50 (once port))) [1 .. 20 :: Int]
        noConnections server,
      testOn on "threads of closed connections are garbage collected" $ do
        threads <- newIORef []
        let noting request respond = do
              t <- mkWeakThreadId =<< myThreadId
              atomicModifyIORef' threads (\ts -> (t : ts, ()))
              application request respond
        withQuietServer defaultSettings noting $ \server port -> do
          replicateM_ 100 (once port)
          noConnections server
          eventually "their threads are garbage" $ performMajorGC >> all isNothing <$> (mapM deRefWeak =<< readIORef threads),
      testOn on "a client that disconnects before, within and after a request's head" . withTestServer $ \server port -> do
        forM_ ["", "GE", "GET /hello HTTP/1.1\r\nHost:", "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"] $ \bytes ->
          forM_ [hangUp, reset] $ \end -> do
            client <- connectTo port
            say client bytes
            end client
        stillServes server port,
      testOn on "a client that disconnects within a request's body" . withTestServer $ \server port -> do
        forM_ [hangUp, reset] $ \end -> do
          client <- connectTo port
          say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n"
          say client (B.replicate 5000 120)
          end client
        stillServes server port,
      testOn on "a client that disconnects within a response" . withTestServer $ \server port -> do
        forM_ [("/large?n=20000000", hangUp), ("/large?n=20000000", reset), ("/drip?n=40", hangUp), ("/drip?n=40", reset)] $ \(path, end) -> do
          client <- connectTo port
          ask client path []
          _ <- hear client
          end client
        stillServes server port,
      testOn on "a connection's thread is pinned to its capability" . withTestServer $ \_ port ->
        forM_ [1 .. 8 :: Int] $ \_ -> withClient port $ \client -> do
          answer <- get client "/where"
          answerBody answer @?= "True",
      testOn on "other requests are answered beside a slow one" . withTestServer $ \_ port ->
        withClient port $ \slow -> do
          -- The others are done when the response comes, unless each waits for it.
          ask slow "/slow?n=3000" []
          others <- async (replicateM_ 20 (once port))
          answer <- hearAnswer slow
          done <- poll others
          either throwIO pure =<< maybe (assertFailure "the others are not done") pure done
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
