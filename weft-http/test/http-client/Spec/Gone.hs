{-# LANGUAGE OverloadedStrings #-}

-- |
-- Ends that come from outside of a proxied request: its client is gone while the server is silent, or a thread beside
-- it fails as it ends.
module Spec.Gone (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import GHC.Conc (getUncaughtExceptionHandler, setUncaughtExceptionHandler)
import Network.HTTP.Types
import Network.Socket
import qualified Network.Socket.ByteString as N
import qualified Network.Wai as Wai
import Peer
import Spec.Servers
import Test.Tasty
import Test.Tasty.HUnit
import qualified Weft.Dial as Dial
import Weft.Duration
import Weft.Http
import Weft.Http.Client
import Weft.Http.Proxy
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings, tlsConnect)
import Weft.Transport (connClose, connSendBytes, deadlineIn)

tests :: TestTree
tests =
  testGroup
    "ends from outside"
    [ testGroup
        "a client that is gone while the server is silent"
        [ testCase "it has closed: the server's connection is closed, and its place is free" $
            forM_ ["", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"] $ \begun -> do
              (asked, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
              let script n c = case n of
                    0 -> hearRequest c >> say c begun >> putMVar asked () >> heardEnd c >> putMVar ended ()
                    _ -> hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext" >> heardEnd c
              withPeer script $ \server -> proxying (lasting {proxyHalfClosed = milliseconds 50}) [server] $ \port -> do
                raw port $ \s -> do
                  N.sendAll s "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                  within (takeMVar asked)
                  unless (B.null begun) (void (receiveUntil "abc" s))
                within (takeMVar ended)
                -- There is one place.
                withClient defaultClientSettings $ \client -> soon >>= \due -> (answerBody <$> request client due (getRequest (url port "/"))) `gives` "next",
          testCase "it has reset its connection: that counts at once, also where the end of its direction does not" $ do
            (asked, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
            withPeer (\_ c -> hearRequest c >> putMVar asked () >> heardEnd c >> putMVar ended ()) $ \server ->
              proxying (lasting {proxyHalfClosed = maxBound}) [server] $ \port -> do
                raw port $ \s -> do
                  N.sendAll s "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                  within (takeMVar asked)
                  setSockOpt s Linger (StructLinger 1 0)
                within (takeMVar ended),
          testCase "it has only ended its direction: it gets the response if the server is not silent for too long, else 499" $
            forM_ [(seconds 300, "HTTP/1.1 200 OK"), (maxBound, "HTTP/1.1 200 OK"), (mempty, "HTTP/1.1 499 Client Closed Request")] $ \(patience, begin) -> do
              let late _ c = hearRequest c >> threadDelay 600000 >> say c "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate"
              withPeer late $ \server -> proxying (lasting {proxyHalfClosed = patience}) [server] $ \port -> raw port $ \s -> do
                N.sendAll s "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                shutdown s ShutdownSend
                answer <- within (receiveAll s)
                assertBool (C.unpack answer) (begin `B.isPrefixOf` answer),
          testCase "requests that were sent ahead are not lost while the server is silent" $ do
            let late _ c = forM_ [1 :: Int ..] $ \i -> hearRequest c >> threadDelay 400000 >> say c ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" <> C.pack (show i))
            withPeer late $ \server -> proxying (lasting {proxyHalfClosed = seconds 300}) [server] $ \port -> raw port $ \s -> do
              N.sendAll s "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
              threadDelay 200000
              N.sendAll s "GET /2 HTTP/1.1\r\nHost: x\r\n\r\nGET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
              shutdown s ShutdownSend
              answer <- within (receiveAll s)
              [C.take 1 (C.drop 4 (snd (B.breakSubstring "\r\n\r\n" part))) | part <- parts "HTTP/1.1 200 OK" answer] @?= ["1", "2", "3"],
          testCase "an upload goes on while its client sends nothing, and ends with the client" $ do
            (asked, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
            withPeer (\_ c -> hearRequest c >> hearBytes c 5 >> putMVar asked () >> heardEnd c >> putMVar ended ()) $ \server ->
              proxying (lasting {proxyHalfClosed = mempty}) [server] $ \port -> do
                raw port $ \s -> do
                  N.sendAll s "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabcde"
                  within (takeMVar asked)
                  threadDelay 300000
                  isEmptyMVar ended >>= (@?= True)
                within (takeMVar ended),
          testCase "over TLS" . withCertificate $ \cert key -> do
            (asked, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
            tls <- loadTls cert key
            withPeer (\_ c -> hearRequest c >> putMVar asked () >> heardEnd c >> putMVar ended ()) $ \server ->
              withProxy (lasting {proxyHalfClosed = milliseconds 50}) [url server "/"] $ \application ->
                withServerWith defaultOptions {optionTls = Just tls} local application $ \front -> do
                  due <- soon
                  c <- Dial.dialConnection Dial.defaultDialOptions due (Dial.Host "127.0.0.1" (show (portOf front))) >>= tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything} "localhost"
                  connSendBytes c due "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                  within (takeMVar asked)
                  connClose c
                  within (takeMVar ended),
          testCase "over HTTP/2: a stream that is reset, and a connection that ends" $ do
            (asked, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
            withPeer (\_ c -> hearRequest c >> putMVar asked () >> heardEnd c >> putMVar ended ()) $ \server ->
              withProxy (lasting {proxyHalfClosed = mempty}) [url server "/"] $ \application ->
                withServer (setHTTP2Cleartext True local) application $ \front ->
                  withClient defaultClientSettings {clientProtocol = OnlyHttp2} $ \client -> do
                    t <- forkIO (soon >>= \due -> void (request client due (getRequest (url (portOf front) "/"))))
                    within (takeMVar asked)
                    killThread t
                    within (takeMVar ended)
                    withClient defaultClientSettings {clientProtocol = OnlyHttp2} $ \other -> do
                      _ <- forkIO (soon >>= \due -> void (request other due (getRequest (url (portOf front) "/"))) `catch` \e -> const (pure ()) (e :: ClientError))
                      within (takeMVar asked)
                    within (takeMVar ended),
          testCase "a server of HTTP/2 gets a reset of its stream, and the connection goes on" $ do
            (asked, ended) <- (,) <$> newEmptyMVar <*> newEmptyMVar
            let app asking respond
                  | Wai.rawPathInfo asking == "/silent" = (putMVar asked () >> forever (threadDelay 1000000)) `onException` putMVar ended ()
                  | otherwise = respond (Wai.responseLBS status200 [] "well")
                settings = lasting {proxyHalfClosed = milliseconds 50, proxyClient = (proxyClient lasting) {clientProtocol = OnlyHttp2}}
            withServer (setHTTP2Cleartext True local) app $ \server -> proxying settings [portOf server] $ \port -> do
              raw port $ \s -> N.sendAll s "GET /silent HTTP/1.1\r\nHost: x\r\n\r\n" >> within (takeMVar asked)
              within (takeMVar ended)
              withClient defaultClientSettings $ \client -> soon >>= \due -> (answerBody <$> request client due (getRequest (url port "/"))) `gives` "well",
          testCase "an application is told by awaitClientFinished and awaitClientGone" $ do
            (asked, finished, gone) <- (,,) <$> newEmptyMVar <*> newEmptyMVar <*> newEmptyMVar
            let app asking respond = do
                  putMVar asked ()
                  awaitClientFinished asking >> putMVar finished ()
                  awaitClientGone asking >> putMVar gone ()
                  respond (Wai.responseLBS status200 [] "")
            withServer local app $ \server -> raw (portOf server) $ \s -> do
              N.sendAll s "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
              within (takeMVar asked)
              threadDelay 50000
              isEmptyMVar finished >>= (@?= True)
              shutdown s ShutdownSend
              within (takeMVar finished)
              threadDelay 50000
              isEmptyMVar gone >>= (@?= True)
              setSockOpt s Linger (StructLinger 1 0) >> close s
              within (takeMVar gone)
        ],
      testGroup
        "the limits of one wait on a kept connection do not concern the next"
        [ testCase "that of time" $ do
            let late n c
                  | n > 0 = assertFailure "another connection"
                  | otherwise = do
                    hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"
                    hearRequest c >> threadDelay 3000000 >> say c "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond" >> heardEnd c
            withPeer late $ \server -> withClient defaultClientSettings $ \client -> do
              brief <- deadlineIn (seconds 2)
              (answerBody <$> request client brief (getRequest (url server "/"))) `gives` "first"
              soon >>= \due -> (answerBody <$> request client due (getRequest (url server "/"))) `gives` "second",
          testCase "that of interest" $ do
            (gone, asked, watched) <- (,,) <$> newEmptyMVar <*> newEmptyMVar <*> newEmptyMVar
            let late n c
                  | n > 0 = assertFailure "another connection"
                  | otherwise = do
                    -- The first wait is watched.
                    hearRequest c >> takeMVar watched >> say c "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"
                    hearRequest c >> putMVar asked () >> threadDelay 300000 >> say c "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond" >> heardEnd c
                whole response = responsePiece response >>= \piece -> if B.null piece then pure piece else (piece <>) <$> whole response
                manner = plainly {mannerUnless = Just (putMVar watched () >> readMVar gone)}
            withPeer late $ \server -> withClient defaultClientSettings $ \client -> do
              due <- soon
              withResponseIn client manner due (getRequest (url server "/")) whole `gives` "first"
              _ <- forkIO (takeMVar asked >> putMVar gone ())
              within (withResponse client due (getRequest (url server "/")) whole) `gives` "second"
        ],
      testGroup
        "a thread beside a request that fails as the request ends"
        [ testCase "the one that sends the body: its exception is thrown, and nothing is uncaught" $
            forM_ [OnlyHttp1, OnlyHttp2] $ \protocol -> do
              -- The server ends the connection while the body's action cannot be interrupted, which then throws.
              entered <- newEmptyMVar
              let script _ c = hearRequest c >> readMVar entered >> say c "\0"
              caught <- uncaught $ \check -> withPeer script $ \server -> withClient defaultClientSettings {clientProtocol = protocol} $ \client -> do
                due <- soon
                first <- newIORef True
                let next = do
                      fresh <- readIORef first
                      writeIORef first False
                      if fresh then pure "x" else uninterruptibleMask_ (tryPutMVar entered () >> threadDelay 500000 >> throwIO (userError "the body"))
                r <- try (request client due (Request "POST" (url server "/") [] (StreamBody Nothing next)))
                check
                case r of
                  Left e -> pure (show (e :: SomeException))
                  Right _ -> assertFailure "answered"
              caught @?= "user error (the body)",
          testCase "uploads whose server resets the connection" $ do
            let script _ c = hearRequest c >> hearBytes c 1000 >> reset c
            uncaught $ \check -> withPeer script $ \server -> proxying lasting [server] $ \port -> withClient defaultClientSettings $ \client -> do
              due <- soon
              replicateM_ 100 $ do
                left <- newIORef (40 :: Int)
                let next = atomicModifyIORef' left (\n -> (n - 1, if n > 0 then C.replicate 20000 'x' else ""))
                r <- try (request client due (Request "POST" (url port "/") [] (StreamBody Nothing next)))
                case r of
                  Right answer -> statusCode (answerStatus answer) @?= 502
                  -- The proxy has closed the connection while the rest was sent.
                  Left e -> const (pure ()) (e :: ClientError)
              check,
          testCase "tunnels whose ends are reset at once" $ do
            (turn, heard) <- (,) <$> newEmptyMVar <*> newEmptyMVar
            let script _ c = do
                  _ <- hearRequest c
                  say c "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own\r\n\r\n"
                  takeMVar turn
                  reset c
                  putMVar heard ()
            uncaught $ \check -> withPeer script $ \server -> proxying (lasting {proxyClient = defaultClientSettings}) [server] $ \port -> do
              replicateM_ 100 $ do
                raw port $ \s -> do
                  N.sendAll s "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: own\r\n\r\n"
                  _ <- receiveUntil "\r\n\r\n" s
                  N.sendAll s "something"
                  setSockOpt s Linger (StructLinger 1 0)
                  putMVar turn ()
                within (takeMVar heard)
              check
        ]
    ]
  where
    local = setHost "127.0.0.1" (setPort 0 (setOnException (\_ _ -> pure ()) defaultSettings))
    -- One place, and limits that no test reaches.
    lasting = defaultProxySettings {proxyClient = defaultClientSettings {clientMostPerServer = 1, clientAnswerTime = seconds 3600, clientReadTime = seconds 3600, clientIdleTime = seconds 3600}}
    parts mark bytes = case B.breakSubstring mark bytes of
      (_, "") -> []
      (_, found) -> let rest = B.drop (B.length mark) found in fst (B.breakSubstring mark rest) : parts mark rest

-- | Run an action with the port of a proxy before servers at these ports.
proxying :: ProxySettings -> [Int] -> (Int -> IO a) -> IO a
proxying settings ports act =
  withProxy settings [url port "/" | port <- ports] $ \application ->
    withApplicationSettings (setOnException (\_ _ -> pure ()) defaultSettings) (pure application) act

portOf :: Server -> Int
portOf server = case serverAddress server of
  SockAddrInet port _ -> fromIntegral port
  _ -> 0

-- | Run an action with a socket that is connected to this port, and close it.
raw :: Int -> (Socket -> IO a) -> IO a
raw port = bracket connected close
  where
    connected = do
      s <- socket AF_INET Stream defaultProtocol
      s <$ connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))

receiveAll :: Socket -> IO ByteString
receiveAll s = N.recv s 65536 >>= \bytes -> if B.null bytes then pure "" else (bytes <>) <$> receiveAll s

-- | Receive until these bytes have come.
receiveUntil :: ByteString -> Socket -> IO ByteString
receiveUntil end s = within (go "")
  where
    go before
      | end `B.isInfixOf` before = pure before
      | otherwise = do
        bytes <- N.recv s 65536
        when (B.null bytes) (assertFailure ("ended after " <> show before))
        go (before <> bytes)

-- | Run an action; its argument fails if an exception has come to the program's handler for those that nobody catches.
uncaught :: (IO () -> IO a) -> IO a
uncaught act = do
  found <- newIORef []
  before <- getUncaughtExceptionHandler
  let note e = atomicModifyIORef' found (\es -> (show e : es, ()))
      check = threadDelay 100000 >> readIORef found >>= (@?= [])
  setUncaughtExceptionHandler note
  act check `finally` setUncaughtExceptionHandler before
