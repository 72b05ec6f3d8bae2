{-# LANGUAGE OverloadedStrings #-}

-- |
-- Bodies: large ones, in pieces, in both directions.
module Spec.Bodies (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad (forM_)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import Data.ByteString.Builder.Extra (byteStringInsert)
import qualified Data.ByteString.Char8 as C
import Network.HTTP.Types (status200)
import Network.Wai (rawPathInfo, rawQueryString, responseBuilder)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http (defaultSettings)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "bodies"
    [ testOn on "a response of 8 MB arrives whole" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/large?n=8000000"
          assertBool "the bytes" (answerBody answer == filler 8000000),
      testOn on "a client that reads slowly gets all" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          ask client "/large?n=6000000" []
          threadDelay 300000
          answer <- hearAnswer client
          assertBool "the bytes" (answerBody answer == filler 6000000),
      testOn on "a response in chunks" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/chunks"
          answerBody answer @?= C.pack (concatMap (\i -> show i <> "\n") [1 .. 100 :: Int]),
      testOn on "of parts of every size, however they are made" . withTestServer $ \_ port ->
        withClient port $ \client ->
          forM_ [(how, n) | n <- [0 .. 60 :: Int], how <- ["builder", "declared", "stream"]] $ \(how, n) -> do
            answer <- get client (C.concat ["/mixed/", how, "?n=", C.pack (show n)])
            assertBool (show (how, n)) (answerBody answer == B.concat (partsOf n)),
      testOn on "and to a client of HTTP/1.0" . withTestServer $ \_ port ->
        forM_ [(how, n) | n <- [3, 13 .. 60 :: Int], how <- ["builder", "declared", "stream"]] $ \(how, n) ->
          withClient port $ \client -> do
            say client (C.concat ["GET /mixed/", how, "?n=", C.pack (show n), " HTTP/1.0\r\n\r\n"])
            bytes <- hearEnd client
            assertBool (show (how, n)) (B.drop 4 (snd (B.breakSubstring "\r\n\r\n" bytes)) == B.concat (partsOf n)),
      testOn on "one string of a declared length, whatever comes behind it" . withQuietServer defaultSettings oneString $ \_ port ->
        -- 128 KiB have left before anybody knows of what is too much.
        forM_ [(what, n) | n <- [5000, 16384, 131072, 131073, 300000 :: Int], what <- ["/nothing", "/empty", "/less"] <> [more | n < 131072, more <- ["/more", "/large"]]] $ \(what, n) ->
          withClient port $ \client -> do
            let asking = ask client (C.concat [what, "?", C.pack (show n)])
            if what `elem` ["/nothing", "/empty"]
              then forM_ [1, 2 :: Int] $ \_ -> do
                answer <- asking [] >> hearAnswer client
                assertBool (show (what, n)) (answerBody answer == filler n)
              else do
                -- The head may be out, but no client may take this for a whole answer.
                bytes <- asking ["Connection: close"] >> hearEndOrReset client
                let (answered, body) = B.breakSubstring "\r\n\r\n" bytes
                assertBool (show (what, n, answered)) (not ("HTTP/1.1 200" `B.isPrefixOf` answered) || B.drop 4 body /= filler n),
      testOn on "uploads of every size, and the next request" . withTestServer $ \_ port ->
        withClient port $ \client ->
          forM_ [n + d | n <- [16100, 16384, 32768, 65536, 81920, 131072, 200000], d <- [-200, -1, 0, 1, 150]] $ \n -> do
            say client (C.concat ["POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: ", C.pack (show n), "\r\n\r\n", filler n, "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"])
            answer <- hearAnswer client
            assertBool (show n) (answerBody answer == filler n)
            next <- hearAnswer client
            answerBody next @?= "hello",
      testOn on "curl uploads with a length" . withTestServer $ \_ port ->
        withFileOf (filler 5000000) $ \path ->
          curl ["--data-binary", "@" <> path, url port "/count"] >>= (@?= "5000000"),
      testOn on "curl uploads in chunks" . withTestServer $ \_ port ->
        withFileOf (filler 3000000) $ \path ->
          curl ["-H", "Transfer-Encoding: chunked", "--data-binary", "@" <> path, url port "/count"] >>= (@?= "3000000"),
      testOn on "chunks of a request, cut anywhere" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          let bytes = "POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
          forM_ (pieces 7 bytes) (\piece -> say client piece >> threadDelay 2000)
          answer <- hearAnswer client
          answerBody answer @?= "hello world"
          next <- get client "/hello"
          answerBody next @?= "hello",
      testOn on "100-continue" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
          interim <- hearAnswer client
          answerStatus interim @?= 100
          say client "hello"
          answer <- hearAnswer client
          answerBody answer @?= "hello",
      testOn on "a response that begins before the request has ended" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client "POST /both HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhello"
          begun <- hear client
          assertBool (show begun) ("HTTP/1.1 200" `B.isPrefixOf` begun)
          say client "world"
          rest <- hearEnd client
          assertBool (show rest) ("10" `B.isInfixOf` (begun <> rest)),
      testOn on "a response is not lost if the request's body is not read" . withTestServer $ \server port -> do
        withClient port $ \client -> do
          say client "POST /ignore HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n"
          say client (filler 60000)
          threadDelay 100000
          answer <- hearAnswer client
          (answerStatus answer, answerBody answer) @?= (413, "too large")
        noConnections server,
      testOn on "bytes on the raw connection" . withTestServer $ \server port -> do
        withClient port $ \client -> do
          ask client "/raw" ["Upgrade: talk", "Connection: upgrade"]
          interim <- hearAnswerToHead client
          answerStatus interim @?= 101
          forM_ ["one", "two", "bye"] $ \word -> say client word >> hear client >>= (@?= word)
          hearEnd client >>= (@?= "")
        noConnections server
    ]
  where
    url port path = "http://127.0.0.1:" <> show port <> path
    -- The path says what comes behind it, the query how long it is.
    oneString request respond = respond (responseBuilder status200 [("Content-Length", C.pack (show n))] body)
      where
        n = maybe 0 fst (C.readInt (B.drop 1 (rawQueryString request)))
        body = case rawPathInfo request of
          "/nothing" -> byteStringInsert (filler n)
          "/empty" -> byteStringInsert (filler n) <> byteStringInsert "" <> byteString ""
          "/more" -> byteStringInsert (filler n) <> byteString "x"
          "/large" -> byteStringInsert (filler n) <> byteStringInsert (filler 40000)
          _ -> byteStringInsert (filler (n - 1))
    pieces n bytes = if B.null bytes then [] else B.take n bytes : pieces n (B.drop n bytes)

-- | With a file of those bytes.
withFileOf :: B.ByteString -> (FilePath -> IO a) -> IO a
withFileOf bytes = bracket create removeFile
  where
    create = do
      folder <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile folder "weft-upload"
      B.hPut h bytes
      path <$ hClose h
