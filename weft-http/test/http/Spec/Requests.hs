{-# LANGUAGE OverloadedStrings #-}

-- |
-- Requests and responses on one connection.
module Spec.Requests (tests) where

import Application
import Client
import Configurations
import Control.Monad (replicateM, replicateM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Test.Tasty
import Test.Tasty.HUnit

tests :: Configuration -> TestTree
tests on =
  testGroup
    "requests"
    [ testOn on "curl gets a page" . withTestServer $ \_ port ->
        curl ["http://127.0.0.1:" <> show port <> "/hello"] >>= (@?= "hello"),
      testOn on "a connection is kept" . withTestServer $ \server port -> do
        withClient port $ \client -> replicateM_ 50 (get client "/hello" >>= isHello)
        noConnections server,
      testOn on "pipelined requests are answered in order" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client (B.concat [request ("/large?n=" <> C.pack (show n)) | n <- sizes])
          answers <- replicateM (length sizes) (hearAnswer client)
          map answerBody answers @?= map filler sizes,
      testOn on "a request that comes byte by byte" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          mapM_ (say client . B.singleton) (B.unpack (request "/hello"))
          hearAnswer client >>= isHello,
      testOn on "HTTP/1.0 closes" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client "GET /hello HTTP/1.0\r\n\r\n"
          hearAnswer client >>= isHello
          hearEnd client >>= (@?= "")
          noConnections server,
      testOn on "HTTP/1.0 keeps when asked" . withTestServer $ \_ port ->
        withClient port $ \client -> replicateM_ 3 $ do
          say client "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
          answer <- hearAnswer client
          isHello answer
          -- Without it the client waits for the end.
          header "connection" answer @?= Just "keep-alive",
      testOn on "Connection: close closes" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          ask client "/hello" ["Connection: close"]
          hearAnswer client >>= isHello
          hearEnd client >>= (@?= ""),
      testOn on "a client that has finished sending is answered" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          ask client "/slow?n=50" []
          finishSaying client
          answer <- hearAnswer client
          answerBody answer @?= "slowly",
      testOn on "HEAD has no body" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client "HEAD /hello HTTP/1.1\r\nHost: test\r\n\r\n"
          answer <- hearAnswerToHead client
          header "content-length" answer @?= Just "5"
          get client "/hello" >>= isHello,
      testOn on "bytes that are no request are refused, and the next client is served" . withTestServer $ \server port -> do
        withClient port $ \client -> do
          say client "nonsense\r\n\r\n"
          _ <- hearEnd client
          pure ()
        withClient port $ \client -> get client "/hello" >>= isHello
        noConnections server,
      testOn on "an application that fails is a 500" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/fail"
          answerStatus answer @?= 500
          get client "/hello" >>= isHello
    ]
  where
    sizes = [1, 100000, 0, 5, 20000, 16384, 3]
    request path = "GET " <> path <> " HTTP/1.1\r\nHost: test\r\n\r\n"
    isHello answer = (answerStatus answer, answerBody answer) @?= (200, "hello")
