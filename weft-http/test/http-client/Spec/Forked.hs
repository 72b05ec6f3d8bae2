{-# LANGUAGE OverloadedStrings #-}

-- |
-- What a child of 'System.Posix.Process.forkProcess' can do with the client and the proxy of its parent, which goes on
-- with the connections that it has.
module Spec.Forked (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Network.HTTP.Types
import qualified Network.Wai as Wai
import qualified Network.Wai.Internal as Wai (ResponseReceived (..))
import Peer
import Spec.Servers
import Spec.Shared (echo, serving, settings2)
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http.Client
import Weft.Http.Proxy
import Weft.Pool (PoolCounts (..))
import Weft.Scope (forkDaemon, withScope)
import Weft.Test.Forked
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)
import Weft.Transport (deadlineIn)

tests :: TestTree
tests =
  testGroup
    "forked children"
    [ testCase "a kept connection stays the parent's alone; the child makes its own" . withPeer numbered $ \port -> withClient defaultClientSettings $ \client -> do
        get client port "/" `gives` "0 0"
        inChild $ do
          clientCounts client >>= (@?= []) . map fst
          get client port "/" `gives` "1 0"
          get client port "/" `gives` "1 1"
          performMajorGC
        get client port "/" `gives` "0 1",
      testCase "requests under way in the parent take no place of the child's, and are answered" $ do
        gate <- newEmptyMVar
        let script n c = forM_ [0 :: Int ..] $ \i -> do
              h <- hearRequest c
              when ("GET /slow" `B.isPrefixOf` h) (readMVar gate)
              say c (plain (C.pack (unwords [show n, show i])))
        withPeer script $ \port -> withClient defaultClientSettings {clientMostPerServer = 2} $ \client -> do
          slow <- replicateM 2 (begun (get client port "/slow"))
          eventually "both are under way" ((== [(2, 0, 0)]) <$> counts client)
          waiting <- begun (get client port "/")
          eventually "the third one waits" ((== [(2, 0, 1)]) <$> counts client)
          inChild $ do
            forM_ ["2 0", "2 1"] (get client port "/" `gives`)
            counts client >>= (@?= [(1, 1, 0)])
          putMVar gate ()
          forM_ slow $ \done -> within (readMVar done) >>= either throwIO pure >>= assertBool "a slow one" . (`elem` ["0 0", "1 0"])
          within (readMVar waiting) >>= either throwIO pure >>= assertBool "the one that waits" . (`elem` ["0 1", "1 1"]),
      testCase "over HTTP/2, with a request under way" . serving 100 echo $ \port -> withClient settings2 $ \client -> do
        get client port "/" `gives` "hello"
        withScope $ \scope -> do
          _ <- forkDaemon scope (get client port "/sleep")
          eventually "it is under way" ((== [(1, 0, 0)]) <$> counts client)
          replicateM_ 3 . inChild $ do
            counts client >>= (@?= [])
            replicateM_ 3 (get client port "/" `gives` "hello")
            counts client >>= (@?= [(1, 1, 0)])
            performMajorGC
          get client port "/" `gives` "hello"
          counts client >>= (@?= [(1, 0, 0)]),
      testCase "over HTTP/2, while requests begin and end, and connections too" . serving 100 echo $ \port -> withClient settings2 {clientIdleTime = milliseconds 1} $ \client ->
        withScope $ \scope -> do
          replicateM_ 3 (forkDaemon scope (forever (get client port "/" >> threadDelay 500)))
          replicateM_ 10 (inChild (replicateM_ 3 (get client port "/" `gives` "hello"))),
      testCase "a client that is connecting at the fork" $ do
        gate <- newEmptyMVar
        withPeer numbered $ \port -> do
          let settings protocol = defaultClientSettings {clientProtocol = protocol, clientConnect = Just (\due u -> takeMVar gate >> connectUrl defaultClientSettings due u)}
          withClient (settings OnlyHttp1) $ \one -> withClient (settings OnlyHttp2) $ \two -> withScope $ \scope -> do
            _ <- forkDaemon scope (get one port "/")
            _ <- forkDaemon scope (get two port "/")
            eventually "both connect" ((==) <$> ((<>) <$> counts one <*> counts two) <*> pure [(1, 0, 0), (1, 0, 1)])
            inChild $ do
              _ <- forkIO (forever (putMVar gate ()))
              get one port "/" `gives` "0 0"
              (_, cause) <- causeOf (get two port "/")
              -- It answers by HTTP/1.1.
              assertBool (show cause) (case cause of NotHttp2 _ -> True; _ -> False),
      testCase "over TLS, what the parent has is not ended by the child" . withNginx $ \nginx ->
        withClient defaultClientSettings {clientTls = defaultTlsClientSettings {tlsTrust = TrustAuthorities (nginxFolder nginx <> "/cert.pem")}} $ \client -> do
          let count = soon >>= \due -> answerBody <$> request client due (getRequest (Url "localhost" (show (nginxTlsPort nginx)) Nothing "/count" True))
          count `gives` "1"
          inChild $ do
            count `gives` "1"
            count `gives` "2"
            performMajorGC
            threadDelay 20000
          count `gives` "2",
      testCase "a proxy: the child's requests, and its own checks" $ do
        well <- newIORef False
        let script _ c = forever $ do
              h <- hearRequest c
              ok <- readIORef well
              say c (if ok || not ("GET /check" `B.isPrefixOf` h) then plain "fine" else "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            check = (defaultHealthCheck "/check") {checkInterval = milliseconds 20, checkMostFailures = 1}
        states <- newIORef []
        withPeer script $ \port ->
          withProxy defaultProxySettings {proxyCheck = Just check, proxyOnCheck = \_ ok -> atomicModifyIORef' states (\s -> (ok : s, ()))} [url port "/"] $ \application -> do
            eventually "it is ill" ((== [False]) <$> readIORef states)
            inChildWhile
              ( do
                  status <- newEmptyMVar
                  _ <- application Wai.defaultRequest {Wai.rawPathInfo = "/"} (\r -> Wai.ResponseReceived <$ putMVar status (Wai.responseStatus r))
                  takeMVar status >>= (@?= ok200)
                  eventually "the child finds that it is well" ((== [True, False]) <$> readIORef states)
              )
              (writeIORef well True)
            eventually "so does the parent" ((== [True, False]) <$> readIORef states)
    ]

-- | Answer each request of a connection with the number of the connection, and its own on it.
numbered :: Int -> Conversation -> IO ()
numbered n c = forM_ [0 :: Int ..] $ \i -> hearRequest c >> say c (plain (C.pack (unwords [show n, show i])))

-- | A response with this body.
plain :: B.ByteString -> B.ByteString
plain body = "HTTP/1.1 200 OK\r\nContent-Length: " <> C.pack (show (B.length body)) <> "\r\n\r\n" <> body

get :: Client -> Int -> B.ByteString -> IO B.ByteString
get client port path = deadlineIn (seconds 60) >>= \due -> answerBody <$> request client due (getRequest (url port path))

-- | Connections, those without a request, and requests that wait.
counts :: Client -> IO [(Int, Int, Int)]
counts client = map ((\c -> (countTotal c, countIdle c, countWaiting c)) . snd) <$> clientCounts client

-- | Run an action in a thread, and note what becomes of it.
begun :: IO a -> IO (MVar (Either SomeException a))
begun act = do
  done <- newEmptyMVar
  done <$ forkFinally act (putMVar done)
