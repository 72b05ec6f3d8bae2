{-# LANGUAGE OverloadedStrings #-}

-- |
-- Where a request ends: bodies whose framing one parser could take for another's, and
-- bodies that come in small segments.
module Spec.Framing (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http (defaultSettings, setTimeout)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "framing"
    [ testOn on "a trailer that looks like a request is no request" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client (chunkedPost <> "3\r\nabc\r\n0\r\nGET /hello HTTP/1.1\r\nHost: test\r\n\r\n")
          threadDelay 100000
          finishSaying client
          heard <- hearEnd client
          (heard, statusLines heard) @?= (heard, 1),
      testOn on "a chunk size that comes in three segments" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          forM_ [chunkedPost, "1", "0", "\r\n", "0123456789abcdef\r\n0\r\n\r\n"] $ \segment -> say client segment >> threadDelay 20000
          first <- hearAnswer client
          answerBody first @?= "16"
          next <- get client "/hello"
          answerBody next @?= "hello",
      testOn on "a slow upload in segments of 1,400 bytes" . withQuietServer (setTimeout 1 defaultSettings) application $ \_ port ->
        withClient port $ \client -> do
          -- 4 KB/s, where 2 KiB/s are asked for.
          say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 9800\r\n\r\n"
          forM_ [1 .. 7 :: Int] $ \_ -> threadDelay 350000 >> say client (C.replicate 1400 'x')
          answer <- hearAnswer client
          answerBody answer @?= "9800"
    ]

chunkedPost :: ByteString
chunkedPost = "POST /count HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"

-- | How many answers there are.
statusLines :: ByteString -> Int
statusLines bytes = case B.breakSubstring "HTTP/1.1 " bytes of
  (_, "") -> 0
  (_, rest) -> 1 + statusLines (B.drop 9 rest)
