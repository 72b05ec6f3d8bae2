{-# LANGUAGE OverloadedStrings #-}

-- |
-- Responses to malformed requests, and to valid ones that look malformed: their number and statuses, and whether
-- the connection stays open. The parser's own table is in "Spec.Parser".
module Spec.Refused (tests) where

import Application
import Client
import Configurations
import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy.Char8 as L
import Network.HTTP.Types (status200)
import Network.Wai (remoteHost, responseLBS)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http

tests :: Configuration -> TestTree
tests on =
  testGroup
    "refusals"
    [ testOn on "the statuses of the responses, and whether the connection stays open" . withTestServer $ \server port -> do
        forM_ table $ \(what, bytes, statuses, goesOn) -> withClient port $ \client -> do
          say client bytes
          -- Another request shows whether the connection is still open.
          say client "GET /hello HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
          heard <- hearEndOrReset client
          (what, statusesIn heard) @?= (what, statuses <> [200 | goesOn])
        noConnections server,
      testOn on "a refused request is answered with the fields of every response" . withQuietServer (setAltSvc "h3=\":443\"" defaultSettings) application $ \_ port ->
        withClient port $ \client -> do
          say client "GET /hello HTTP/1.1\r\n\r\n"
          answer <- hearAnswer client
          (answerStatus answer, header "server" answer, header "alt-svc" answer) @?= (400, Just "weft", Just "h3=\":443\"")
          fmap B.length (header "date" answer) @?= Just 29,
      testOn on "the PROXY protocol, versions 1 and 2" $
        forM_ [setProxyProtocolRequired, setProxyProtocolOptional] $ \mode ->
          withQuietServer (mode defaultSettings) whoAsks $ \server port -> do
            forM_ headers $ \(bytes, who) -> forM_ [B.length bytes, 1] $ \size -> withClient port $ \client -> do
              forM_ (pieces size (bytes <> "GET / HTTP/1.1\r\nHost: h\r\n\r\n")) (say client)
              answer <- hearAnswer client
              (bytes, C.takeWhile (/= ',') (answerBody answer)) @?= (bytes, who)
            noConnections server,
      testOn on "a missing PROXY header that is required, and malformed ones, are refused" . withQuietServer (setProxyProtocolRequired defaultSettings) whoAsks $ \server port -> do
        forM_ ["GET / HTTP/1.1\r\nHost: h\r\n\r\n", "PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n", "PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n", "PROXY TCP4 1.2.3.4 1.2.3.4 1 99999\r\n", "PROXY TCP6 ::1.2.3.4:1 ::1 1 2\r\n", "PROXY " <> C.replicate 200 'x'] $ \bytes -> withClient port $ \client -> do
          say client bytes
          finishSaying client
          heard <- hearEnd client
          (bytes, statusesIn heard) @?= (bytes, [])
        noConnections server,
      testOn on "an optional PROXY header may be missing" . withQuietServer (setProxyProtocolOptional defaultSettings) whoAsks $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/"
          C.takeWhile (/= ':') (answerBody answer) @?= "127.0.0.1"
    ]
  where
    whoAsks request respond = respond (responseLBS status200 [] (L.pack (show (remoteHost request))))
    pieces n bytes = if B.null bytes then [] else B.take n bytes : pieces n (B.drop n bytes)

-- | Headers of the PROXY protocol, and the client address that each gives. If that is unknown, it is the peer's.
headers :: [(ByteString, ByteString)]
headers =
  [ ("PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\n", "192.0.2.1:5000"),
    ("PROXY TCP6 2001:db8::1 ::1 5000 80\r\n", "[2001:db8::1]:5000"),
    ("PROXY TCP6 2001:db8::192.0.2.1 ::ffff:192.0.2.2 5000 80\r\n", "[2001:db8::c000:201]:5000"),
    ("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" <> B.pack [192, 0, 2, 1, 192, 0, 2, 2, 0x13, 0x88, 0, 80], "192.0.2.1:5000"),
    ("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f" <> B.pack [192, 0, 2, 1, 192, 0, 2, 2, 0x13, 0x88, 0, 80, 4, 0, 0], "192.0.2.1:5000")
  ]

-- | The bytes that are sent, the statuses of the responses, and whether a following request is answered.
table :: [(String, ByteString, [Int], Bool)]
table =
  [ ("a valid request", "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n", [200], True),
    ("an empty line before it", "\r\nGET /hello HTTP/1.1\r\nHost: h\r\n\r\n", [200], True),
    ("Connection: close, TE", "GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close, TE\r\n\r\n", [200], False),
    ("HTTP/1.0", "GET /hello HTTP/1.0\r\n\r\n", [200], False),
    ("HTTP/1.0 with keep-alive", "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", [200], True),
    ("an empty host", "GET /hello HTTP/1.1\r\nHost:\r\n\r\n", [400], False),
    ("a host in brackets that do not close", "GET /hello HTTP/1.1\r\nHost: [::1\r\n\r\n", [400], False),
    ("two hosts in a target and a field", "GET http://x,y/hello HTTP/1.1\r\nHost: h\r\n\r\n", [400], False),
    ("PRI * HTTP/1.1", "PRI * HTTP/1.1\r\nHost: h\r\n\r\n", [400], False),
    ("the preface of HTTP/2, which is off", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], False),
    ("a megabyte of empty lines", B.concat (replicate 500000 "\r\n"), [400], False),
    ("HTTP/1.2", "GET /hello HTTP/1.2\r\nHost: h\r\n\r\n", [200], True),
    ("HTTP/1.9 without a host", "GET /hello HTTP/1.9\r\n\r\n", [400], False),
    ("HTTP/2.1", "GET /hello HTTP/2.1\r\nHost: h\r\n\r\n", [505], False),
    ("an unknown coding", "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", [501], False),
    ("an unknown expectation", "POST /count HTTP/1.1\r\nHost: h\r\nExpect: more\r\nContent-Length: 1\r\n\r\nx", [417], False),
    ("a length and a coding", "POST /count HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400], False),
    ("a body that the application does not read", "POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", [200], True),
    ("chunks that the application does not read", "POST /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nA: b\r\n\r\n", [200], True),
    ("chunks", "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0\r\nA: b\r\n\r\n", [200], True),
    ("a bad chunk", "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3 foo\r\nabc\r\n0\r\n\r\n", [400], False),
    ("a blank after a chunk's size", "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", [400], False),
    ("a bad chunk that the application does not read", "POST /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;\r\nabc\r\n0\r\n\r\n", [200], False),
    ("a trailer that is a request", "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGET /hello HTTP/1.1\r\n\r\n", [400], False),
    ("a HEAD request", "HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n", [200], True)
  ]
