{-# LANGUAGE OverloadedStrings #-}

-- |
-- Message framing: bodies that another parser could frame differently (request smuggling), and bodies that arrive in
-- small segments.
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
    [ testOn on "a trailer that looks like a request is not taken for one" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client (chunkedPost <> "3\r\nabc\r\n0\r\nGET /hello HTTP/1.1\r\nHost: test\r\n\r\n")
          threadDelay 100000
          finishSaying client
          heard <- hearEnd client
          (heard, statusLines heard) @?= (heard, 1),
      testOn on "a chunk's size that arrives in three segments" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          forM_ [chunkedPost, "1", "0", "\r\n", "0123456789abcdef\r\n0\r\n\r\n"] $ \segment -> say client segment >> threadDelay 20000
          first <- hearAnswer client
          answerBody first @?= "16"
          next <- get client "/hello"
          answerBody next @?= "hello",
      patientOn on "a slow upload in segments of 1,400 bytes is served" . withQuietServer (setTimeout 2 defaultSettings) application $ \_ port ->
        withClient port $ \client -> do
          -- 4 KB/s; the least allowed rate is 2 KiB in two seconds. The upload takes longer than those.
          say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 9800\r\n\r\n"
          forM_ [1 .. 7 :: Int] $ \_ -> threadDelay 350000 >> say client (C.replicate 1400 'x')
          answer <- hearAnswer client
          answerBody answer @?= "9800"
    ]

chunkedPost :: ByteString
chunkedPost = "POST /count HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"

-- | The number of responses.
statusLines :: ByteString -> Int
statusLines bytes = case B.breakSubstring "HTTP/1.1 " bytes of
  (_, "") -> 0
  (_, rest) -> 1 + statusLines (B.drop 9 rest)
