{-# LANGUAGE OverloadedStrings #-}

-- |
-- Requests and responses on one connection.
module Spec.Requests (tests) where

import Application
import Client
import Configurations
import Control.Monad (forM_, replicateM, replicateM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)
import Data.Maybe (isJust)
import Network.HTTP.Types (status200)
import Network.Wai (responseLBS)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http (defaultSettings)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "requests"
    [ testOn on "curl gets a page" . withTestServer $ \_ port ->
        curl ["http://127.0.0.1:" <> show port <> "/hello"] >>= (@?= "hello"),
      testOn on "a connection is kept open" . withTestServer $ \server port -> do
        withClient port $ \client -> replicateM_ 50 (get client "/hello" >>= isHello)
        noConnections server,
      testOn on "pipelined requests are answered in order" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client (B.concat [request ("/large?n=" <> C.pack (show n)) | n <- sizes])
          answers <- replicateM (length sizes) (hearAnswer client)
          map answerBody answers @?= map filler sizes,
      testOn on "a request that arrives byte by byte" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          mapM_ (say client . B.singleton) (B.unpack (request "/hello"))
          hearAnswer client >>= isHello,
      testOn on "HTTP/1.0 closes the connection" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client "GET /hello HTTP/1.0\r\n\r\n"
          hearAnswer client >>= isHello
          hearEnd client >>= (@?= "")
          noConnections server,
      testOn on "HTTP/1.0 with keep-alive keeps the connection open" . withTestServer $ \_ port ->
        withClient port $ \client -> replicateM_ 3 $ do
          say client "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
          answer <- hearAnswer client
          isHello answer
          -- Without this field the client would wait for the end of the stream.
          header "connection" answer @?= Just "keep-alive",
      testOn on "a client like ab -k: it keeps the connection if the response says so and has a length, and else waits for the end" . withTestServer $ \_ port -> do
        let said method path body = B.concat [method, " ", path, " HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: test\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n", if B.null body then "" else "Content-Length: " <> C.pack (show (B.length body)) <> "\r\n", "\r\n", body]
            -- True: the connection continues.
            exchange client (method, path, body, expected) = do
              say client (said method path body)
              answer <- hearAnswer client
              assertBool (show path) (answerBody answer == expected)
              header "transfer-encoding" answer @?= Nothing
              let keeps = fmap (C.map toLower) (header "connection" answer) == Just "keep-alive"
              keeps <$ if keeps then assertBool (show path) (isJust (header "content-length" answer)) else hearEnd client >>= (@?= "")
            kept = [("GET", "/hello", "", "hello"), ("GET", "/large?n=100000", "", filler 100000), ("POST", "/echo", filler 3000, filler 3000), ("POST", "/count", "abc", "3")]
            closed = [("POST", "/echo", filler 30000, filler 30000), ("GET", "/chunks", "", C.pack (concatMap (\i -> show i <> "\n") [1 .. 100 :: Int])), ("GET", "/mixed/stream?n=9", "", B.concat (partsOf 9))]
        withClient port $ \client -> mapM (exchange client) (kept <> kept) >>= (@?= [True | _ <- kept <> kept])
        forM_ closed $ \one -> withClient port $ \client -> mapM (exchange client) (take 1 kept <> [one]) >>= (@?= [True, False]),
      testOn on "Connection: close closes the connection" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          ask client "/hello" ["Connection: close"]
          hearAnswer client >>= isHello
          hearEnd client >>= (@?= ""),
      testOn on "the server decides on the connection, whatever the application's Connection: keep-alive says" $ do
        let app _ respond = respond (responseLBS status200 [("Connection", "Keep-Alive")] "hello")
        withQuietServer defaultSettings app $ \_ port ->
          forM_ [("HTTP/1.1\r\nHost: test\r\nConnection: close", ["close"]), ("HTTP/1.1\r\nHost: test", []), ("HTTP/1.0", ["close"]), ("HTTP/1.0\r\nConnection: keep-alive", ["keep-alive"])] $ \(version, expected) ->
            withClient port $ \client -> do
              say client ("GET / " <> version <> "\r\n\r\n")
              answer <- hearAnswer client
              isHello answer
              (version, [value | (name, value) <- answerHeaders answer, name == "connection"]) @?= (version, expected),
      testOn on "a client that has shut down its sending side is answered" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          ask client "/slow?n=50" []
          finishSaying client
          answer <- hearAnswer client
          answerBody answer @?= "slowly",
      testOn on "the response to HEAD has no body" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client "HEAD /hello HTTP/1.1\r\nHost: test\r\n\r\n"
          answer <- hearAnswerToHead client
          header "content-length" answer @?= Just "5"
          get client "/hello" >>= isHello,
      testOn on "bytes that are not a request get a 400, the connection is closed, and the next client is served" . withTestServer $ \server port -> do
        withClient port $ \client -> do
          say client "nonsense\r\n\r\n"
          heard <- hearEnd client
          statusesIn heard @?= [400]
        withClient port $ \client -> get client "/hello" >>= isHello
        noConnections server,
      testOn on "an exception of the application gives a 500" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/fail"
          answerStatus answer @?= 500
          get client "/hello" >>= isHello
    ]
  where
    sizes = [1, 100000, 0, 5, 20000, 16384, 3]
    request path = "GET " <> path <> " HTTP/1.1\r\nHost: test\r\n\r\n"
    isHello answer = (answerStatus answer, answerBody answer) @?= (200, "hello")
