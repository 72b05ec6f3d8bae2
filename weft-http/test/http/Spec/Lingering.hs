{-# LANGUAGE OverloadedStrings #-}

-- |
-- The end of a connection whose client still sends: it can read the last response, and does not keep the connection.
module Spec.Lingering (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (withAsync)
import Control.Exception (IOException, try)
import Control.Monad (forM, forM_, replicateM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Spec.Secure (certificate)
import System.Directory (removeDirectoryRecursive)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http
import Weft.Socket (SockAddr (..), tupleToHostAddress)
import Weft.Tls
import Weft.Transport

tests :: Configuration -> TestTree
tests on =
  testGroup
    "lingering"
    [ testOn on "a client that sends all of a large body, and then reads, gets the response" . withTestServer $ \server port -> do
        forM_ [("POST /hello HTTP/1.1\r\nHost: h\r\n", 200), ("POST /hello HTTP/1.1\r\n", 400)] $ \(head', status) -> withClient port $ \client -> do
          say client (head' <> declared)
          replicateM_ count (say client piece)
          answer <- hearAnswer client
          (answerStatus answer, header "connection" answer) @?= (status, Just "close")
          hearEnd client >>= (@?= "")
        noConnections server,
      testOn on "and over TLS" . securely $ \port -> do
        deadline <- deadlineIn (seconds 60)
        below <- transportConnect socketTransport deadline (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
        c <- tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything} "localhost" below
        connSendBytes c deadline ("POST /hello HTTP/1.1\r\nHost: h\r\n" <> declared)
        replicateM_ count (connSendBytes c deadline piece)
        heard <- connReceive c deadline 65536
        B.take 12 heard @?= "HTTP/1.1 200"
        connClose c,
      testOn on "a client without TLS that sends a large body to a port with TLS reads why that is wrong" . securely $ \port ->
        withClient port $ \client -> do
          say client ("POST /hello HTTP/1.1\r\nHost: h\r\n" <> declared)
          replicateM_ count (say client piece)
          hearAnswer client >>= (@?= 400) . answerStatus,
      testOn on "connections that linger make room for new ones" . withLimits defaultLimits {limitConnections = 3} $ \server port -> do
        clients <- forM [1 .. 3 :: Int] $ \_ -> do
          client <- connectTo port
          say client ("GET / HTTP/1.1\r\n" <> declared)
          hearAnswer client >>= (@?= 400) . answerStatus
          client <$ (hearEnd client >>= (@?= ""))
        serverConnections server >>= (@?= 3)
        forM_ [1 .. 4 :: Int] $ \_ -> withClient port $ \client -> get client "/hello" >>= (@?= "hello") . answerBody
        mapM_ hangUp clients
        noConnections server,
      testOn on "a drain ends a connection that lingers, and its client goes on sending" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client ("GET / HTTP/1.1\r\n" <> declared)
          hearAnswer client >>= (@?= 400) . answerStatus
          withAsync (sending client) $ \_ -> drainServer server (seconds 20) >>= (@?= True)
    ]
  where
    count = 320
    piece = B.replicate 65536 120
    declared = "Content-Length: " <> C.pack (show (count * B.length piece)) <> "\r\n\r\n"
    sending :: Client -> IO ()
    sending client = do
      sent <- try (say client "x") :: IO (Either IOException ())
      either (const (pure ())) (const (threadDelay 100000 >> sending client)) sent

withLimits :: Limits -> (Server -> Int -> IO a) -> IO a
withLimits limits act =
  withServerWith defaultOptions {optionLimits = Just limits} local application $ \server -> act server (portOf (serverAddress server))

-- | Run a server with TLS; the action gets its port.
securely :: (Int -> IO ()) -> IO ()
securely act = do
  folder <- mkdtemp "/tmp/weft-lingering-"
  tls <- certificate folder "test" >>= uncurry loadTls
  withServerWith defaultOptions {optionTls = Just tls} local application (act . portOf . serverAddress)
  removeDirectoryRecursive folder

local :: Settings
local = quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))
