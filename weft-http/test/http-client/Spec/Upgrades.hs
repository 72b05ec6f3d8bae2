{-# LANGUAGE OverloadedStrings #-}

-- |
-- Upgrades through the proxy: which are passed on, and bytes in both directions afterwards. The client is Weft's.
module Spec.Upgrades (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (isJust)
import Network.HTTP.Types
import Peer
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http
  ( Server,
    defaultSettings,
    drainServer,
    serverAddress,
    setHost,
    setOnException,
    setPort,
    setTimeout,
    withServer,
  )
import Weft.Http.Client
import Weft.Http.Proxy
import Weft.Socket (SockAddr (..))
import Weft.Test.Descriptors (openCount, openCountAfter)
import Weft.Timer (sleep)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "upgrades through the proxy"
    [ testCase "bytes in both directions, from the first one; the client's end is passed on, and the server's last bytes come" $
        withPeer (\_ c -> accepted "websocket" "hello" c >> echoes c "bye") $ \port -> proxied 60 defaultProxySettings port $ \_ client u ->
          upgraded client u $ \c -> do
            let bytes = C.concat [C.pack (show n) | n <- [1 .. 30000 :: Int]]
            sender <- newEmptyMVar
            void (forkIO ((connSendBytes c noDeadline bytes >> connShutdownSend c noDeadline) `finally` putMVar sender ()))
            got <- within (everything c)
            within (takeMVar sender)
            assertBool (show (B.length got)) (got == "hello" <> bytes <> "bye"),
      testCase "the server's end ends the client's connection, when all has come" $
        withPeer (\_ c -> accepted "websocket" "" c >> say c (B.replicate 3000000 7)) $ \port -> proxied 60 defaultProxySettings port $ \_ client u ->
          upgraded client u (within . everything) >>= (@?= 3000000) . B.length,
      testCase "one who breaks off ends the other's connection, and nothing is left" $ do
        before <- openCountAfter (sleep (milliseconds 1))
        ends <- newChan
        withPeer (\n c -> accepted "websocket" "" c >> (if even n then hearBytes c 1 >> reset c else heardEnd c >> writeChan ends ())) $ \port -> proxied 60 defaultProxySettings port $ \_ client u ->
          forM_ [1 .. 10 :: Int] $ \i -> do
            upgraded client u $ \c -> if odd i then connSendBytes c noDeadline "x" >> void (try (within (everything c)) :: IO (Either IOException ByteString)) else connAbort c
            when (even i) (within (readChan ends))
        eventually "descriptors are left" ((<= before) <$> openCount),
      testCase "a server that does not switch answers as to any request" $
        withPeer (\_ c -> forever (hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain")) $ \port -> proxied 60 defaultProxySettings port $ \_ client u -> do
          due <- soon
          replicateM_ 3 ((answerBody <$> request client due (asking u "websocket")) `gives` "plain"),
      testCase "not passed on: to HTTP/2 and TLS, with a body, without Connection: upgrade" $ do
        heads <- newChan
        withPeer (\_ c -> forever (hearRequest c >>= writeChan heads >> say c "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) $ \port -> proxied 60 defaultProxySettings port $ \_ client u -> do
          due <- soon
          forM_
            [ asking u "h2c",
              asking u "websocket, H2C",
              asking u "TLS/1.0",
              (asking u "websocket") {requestMethod = "POST", requestBody = BytesBody "x"},
              (asking u "websocket") {requestFields = [("Upgrade", "websocket")]}
            ]
            $ \r -> do
              void (request client due r)
              h <- within (readChan heads)
              assertBool (show h) (not ("pgrade" `B.isInfixOf` h)),
      testCase "a server that switches unasked, or to another protocol, is not believed" $
        forM_ [(getRequest, "websocket"), (\u -> asking u "websocket", "other"), (\u -> asking u "websocket", "")] $ \(r, protocol) ->
          withPeer (\_ c -> accepted protocol "" c >> heardEnd c) $ \port -> proxied 60 defaultProxySettings port $ \_ client u -> do
            due <- soon
            (statusCode . answerStatus <$> request client due (r u)) `gives` 502,
      testCase "a client that does not read holds the server up" $ do
        sent <- newIORef (0 :: Int)
        let piece = B.replicate 65536 0
        withPeer (\_ c -> accepted "websocket" "" c >> forever (say c piece >> modifyIORef' sent (+ 1))) $ \port -> proxied 60 defaultProxySettings port $ \_ client u ->
          upgraded client u $ \_ -> do
            let steady before = do
                  threadDelay 1000000
                  now <- readIORef sent
                  -- Kernels hold some megabytes for each of the two connections.
                  assertBool (show now <> " pieces of 64 KiB were sent") (now < 2000)
                  if now == before && now > 0 then pure () else steady now
            within (steady (-1)),
      testCase "both silent: ended after the client's time; as long as one of them is not, it goes on" $ do
        withPeer (\_ c -> accepted "websocket" "" c >> heardEnd c) $ \port -> proxied 1 defaultProxySettings port $ \_ client u ->
          upgraded client u $ \c -> do
            r <- try (within (everything c)) :: IO (Either IOException ByteString)
            either (const (pure ())) (@?= "") r
        withPeer (\_ c -> accepted "websocket" "" c >> forM_ [1 .. 15 :: Int] (\_ -> say c "x" >> threadDelay 200000)) $ \port -> proxied 1 defaultProxySettings port $ \_ client u ->
          upgraded client u (within . everything) >>= (@?= C.replicate 15 'x'),
      testCase "they take no place from other requests" $ do
        let settings = defaultProxySettings {proxyClient = (proxyClient defaultProxySettings) {clientMostPerServer = 1}}
            script _ c = do
              h <- hearRequest c
              if "pgrade" `B.isInfixOf` h then switched "websocket" "" c >> heardEnd c else say c "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain"
        withPeer script $ \port -> proxied 60 settings port $ \_ client u ->
          upgraded client u $ \_ -> upgraded client u $ \_ -> do
            due <- soon
            (answerBody <$> request client due (getRequest u)) `gives` "plain",
      testCase "a drain lets them go on for its time" $
        withPeer (\_ c -> accepted "websocket" "" c >> echoes c "") $ \port -> proxied 60 defaultProxySettings port $ \server client u -> do
          drained <- newEmptyMVar
          upgraded client u $ \c -> do
            void (forkIO (drainServer server (seconds 70) >>= putMVar drained))
            forM_ [1 .. 20 :: Int] $ \_ -> do
              connSendBytes c noDeadline "x"
              due <- soon
              connReceive c due 1 `gives` "x"
              threadDelay 20000
            tryReadMVar drained `gives` Nothing
          within (takeMVar drained) `gives` True
    ]

-- | A GET that asks to switch to a protocol.
asking :: Url -> ByteString -> Request
asking u protocol = (getRequest u) {requestFields = [("Connection", "keep-alive, Upgrade"), ("Upgrade", protocol)]}

-- | Run an action with the connection after the switch.
upgraded :: Client -> Url -> (Connection -> IO a) -> IO a
upgraded client u act = do
  due <- soon
  withResponse client due (asking u "websocket") $ \r -> do
    statusCode (responseStatus r) @?= 101
    lookup "X-Chosen" (responseFields r) @?= Just "yes"
    assertBool "a connection" (isJust (responseSwitched r))
    maybe (assertFailure "no connection") act (responseSwitched r)

-- | Hear a request, and switch to a protocol; bytes of it follow at once.
accepted, switched :: ByteString -> ByteString -> Conversation -> IO ()
accepted protocol bytes c = hearRequest c >> switched protocol bytes c
switched protocol bytes c = say c ("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nX-Chosen: yes\r\nUpgrade: " <> protocol <> "\r\n\r\n" <> bytes)

-- | Send back what comes, and something at the end.
echoes :: Conversation -> ByteString -> IO ()
echoes c final = do
  bytes <- try (hearBytes c 1) :: IO (Either IOException ByteString)
  either (const (say c final)) (\b -> say c b >> echoes c final) bytes

-- | What comes until the end.
everything :: Connection -> IO ByteString
everything c = B.concat <$> go
  where
    go = soon >>= \due -> connReceive c due 65536 >>= \bytes -> if B.null bytes then pure [] else (bytes :) <$> go

-- | A proxy for the server at a port, with that many seconds for clients, and a client.
proxied :: Int -> ProxySettings -> Int -> (Server -> Client -> Url -> IO a) -> IO a
proxied time settings port act =
  withProxy settings [url port "/"] $ \application ->
    withServer (setOnException (\_ _ -> pure ()) (setTimeout time (setHost "127.0.0.1" (setPort 0 defaultSettings)))) application $ \server ->
      withClient defaultClientSettings $ \client -> case serverAddress server of
        SockAddrInet own _ -> act server client (url (fromIntegral own) "/")
        other -> assertFailure (show other)
