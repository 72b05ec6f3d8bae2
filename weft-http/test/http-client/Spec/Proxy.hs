{-# LANGUAGE OverloadedStrings #-}

-- |
-- The reverse proxy, between a client and scripted upstreams, nginx and Python's server.
module Spec.Proxy (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)
import Data.IORef
import Data.List (nub, sort)
import Network.HTTP.Types
import qualified Network.Wai as Wai
import qualified Network.Wai.Internal as Wai (Response (..), ResponseReceived (..))
import Peer
import Spec.Servers
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http (defaultSettings, setOnException, withApplicationSettings)
import Weft.Http.Client
import Weft.Http.Proxy
import Weft.Test.Descriptors (openCount, openCountAfter)
import Weft.Timer (sleep)

tests :: TestTree
tests =
  testGroup
    "proxy"
    [ testCase "nginx behind it: files, uploads, streams, HEAD, and connections that are kept" . withNginx $ \nginx ->
        proxying defaultProxySettings [nginxPort nginx] $ \client u -> do
          due <- soon
          let large = C.replicate 3000000 'x'
          (statusCode . answerStatus <$> request client due (Request "PUT" (u "/up/large") [] (BytesBody large))) `gives` 201
          (answerBody <$> request client due (getRequest (u "/up/large"))) `gives` large
          left <- newIORef (replicate 30 (C.replicate 100000 'y') <> [""])
          (statusCode . answerStatus <$> request client due (Request "PUT" (u "/up/streamed") [("Expect", "100-continue")] (StreamBody Nothing (pop left)))) `gives` 201
          (answerBody <$> request client due (getRequest (u "/up/streamed"))) `gives` C.replicate 3000000 'y'
          (statusCode . answerStatus <$> request client due (Request "PUT" (u "/up/small") [] (BytesBody "small"))) `gives` 201
          (answerBody <$> request client due (getRequest (u "/up/small"))) `gives` "small"
          h <- request client due (Request "HEAD" (u "/up/large") [] EmptyBody)
          (answerBody h, lookup hContentLength (answerFields h)) @?= ("", Just "3000000")
          (statusCode . answerStatus <$> request client due (getRequest (u "/nothing"))) `gives` 404
          (statusCode . answerStatus <$> request client due (getRequest (u "/gone"))) `gives` 204
          counts <- replicateM 20 (read . C.unpack . answerBody <$> request client due (getRequest (u "/count")))
          assertBool (show counts) (and (zipWith (<) counts (drop 1 counts :: [Int]))),
      testCase "fields: those of one connection are dropped, those of the proxy are set, and clients cannot set them" . withNginx $ \nginx ->
        proxying defaultProxySettings [nginxPort nginx] $ \client u -> do
          due <- soon
          let fields = [("Host", "shop.example"), ("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-Proto", "https"), ("Forwarded", "for=6.6.6.6"), ("X-Own", "own"), ("X-Named", "named"), ("TE", "trailers"), ("Connection", "x-named, te")]
          (answerBody <$> request client due (Request "GET" (u "/fields") fields EmptyBody)) `gives` "GET shop.example  127.0.0.1 http shop.example 1.1 weft  own  ",
      testCase "Python's server of HTTP/1.0 behind it" . withPython $ \port ->
        proxying defaultProxySettings [port] $ \client u -> do
          due <- soon
          forM_ [1 .. 3 :: Int] $ \_ -> (answerBody <$> request client due (getRequest (u "/page"))) `gives` "a page\n",
      testCase "requests under way at the same time are divided, and one that is busy gets fewer" $
        withPeer (slow 0) $ \a -> withPeer (slow 1) $ \b ->
          proxying defaultProxySettings [a, b] $ \client u -> do
            dones <- forM [1 .. 8 :: Int] $ \_ -> do
              done <- newEmptyMVar
              done <$ forkFinally (soon >>= \due -> answerBody <$> request client due (getRequest (u "/"))) (putMVar done)
            answers <- forM dones $ \done -> within (takeMVar done) >>= either throwIO pure
            nub (sort answers) @?= ["0", "1"],
      testCase "an upstream that nobody listens at: another one is asked, whatever the method, and it is passed over after a while" $ do
        dead <- withPeer (\_ _ -> pure ()) pure
        failures <- newIORef (0 :: Int)
        withPeer (answering "alive") $ \alive ->
          proxying defaultProxySettings {proxyOnFailure = \_ _ -> modifyIORef' failures (+ 1), proxyPause = seconds 80} [dead, alive] $ \client u -> do
            due <- soon
            forM_ [1 .. 20 :: Int] $ \i ->
              (answerBody <$> request client due (Request (if even i then "POST" else "GET") (u "/") [] EmptyBody)) `gives` "alive"
        n <- readIORef failures
        -- Each capability begins with its own counts, and all share the failures.
        assertBool (show n) (n >= 1 && n <= 3),
      testCase "no answer: an idempotent request goes to another upstream, others get 502 and are sent once" $ do
        posts <- newIORef (0 :: Int)
        let silent _ c = hearRequest c >>= \h -> when ("POST" `B.isPrefixOf` h) (atomicModifyIORef' posts (\n -> (n + 1, ())))
        withPeer silent $ \a -> withPeer silent $ \b -> withPeer (answering "alive") $ \alive -> do
          proxying defaultProxySettings {proxyMostFailures = 1000} [a, b, alive] $ \client u -> do
            due <- soon
            forM_ [1 .. 10 :: Int] $ \_ -> (answerBody <$> request client due (getRequest (u "/"))) `gives` "alive"
          proxying defaultProxySettings {proxyMostFailures = 1000} [a, b] $ \client u -> do
            due <- soon
            (statusCode . answerStatus <$> request client due (Request "POST" (u "/") [] (BytesBody "x"))) `gives` 502
            (statusCode . answerStatus <$> request client due (getRequest (u "/"))) `gives` 502
        readIORef posts >>= (@?= 1),
      testCase "what is no HTTP, or ambiguous, is 502; what takes too long, 504" $ do
        forM_ ["SSH-2.0\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"] $ \bytes ->
          withPeer (\_ c -> hearRequest c >> say c bytes >> heardEnd c) $ \port -> proxying defaultProxySettings [port] $ \client u -> do
            due <- soon
            (statusCode . answerStatus <$> request client due (getRequest (u "/"))) `gives` 502
        withPeer (\_ c -> hearRequest c >> heardEnd c) $ \port ->
          proxying defaultProxySettings {proxyClient = defaultClientSettings {clientAnswerTime = milliseconds 200}} [port] $ \client u -> do
            due <- soon
            (statusCode . answerStatus <$> request client due (getRequest (u "/"))) `gives` 504,
      testCase "a server that does not answer gets no more connections than the settings allow; requests that wait for one get 503" $ do
        (connections, release) <- (,) <$> newIORef (0 :: Int) <*> newEmptyMVar
        let waiting _ c = do
              atomicModifyIORef' connections (\n -> (n + 1, ()))
              void (hearRequest c)
              readMVar release
              say c "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            settings = defaultProxySettings {proxyClient = defaultClientSettings {clientMostPerServer = 2, clientQueueTime = seconds 4}}
        withPeer waiting $ \port -> proxying settings [port] $ \client u -> do
          statuses <- newEmptyMVar
          forM_ [1 .. 10 :: Int] $ \_ ->
            forkFinally (soon >>= \due -> statusCode . answerStatus <$> request client due (getRequest (u "/"))) (putMVar statuses)
          let next = within (takeMVar statuses) >>= either throwIO pure
          replicateM 8 next >>= (@?= replicate 8 503)
          readIORef connections >>= (@?= 2)
          putMVar release ()
          replicateM 2 next >>= (@?= [200, 200]),
      testCase "a response that breaks off is not taken for a whole one" $
        forM_ ["Content-Length: 10\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"] $ \rest ->
          withPeer (\_ c -> hearRequest c >> say c ("HTTP/1.1 200 OK\r\n" <> rest)) $ \port -> proxying defaultProxySettings [port] $ \client u -> do
            due <- soon
            (_, cause) <- causeOf (request client due (getRequest (u "/")))
            case cause of
              EndedEarly -> pure ()
              ConnectionBroken _ -> pure ()
              NoAnswer _ -> pure ()
              _ -> assertFailure (show cause),
      testCase "a response that breaks off before its first piece is 502" $
        forM_ ["Content-Length: 10\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n"] $ \rest ->
          withPeer (\_ c -> hearRequest c >> say c ("HTTP/1.1 200 OK\r\n" <> rest)) $ \port -> proxying defaultProxySettings [port] $ \client u -> do
            due <- soon
            (statusCode . answerStatus <$> request client due (getRequest (u "/"))) `gives` 502,
      testCase "a head does not wait for a body that is long in coming" $ do
        release <- newEmptyMVar
        let late _ c = do
              void (hearRequest c)
              say c "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
              readMVar release
              say c "3\r\nabc\r\n0\r\n\r\n"
        withPeer late $ \port -> proxying defaultProxySettings [port] $ \client u -> do
          due <- soon
          body <- withResponse client due (getRequest (u "/")) $ \r -> putMVar release () >> responsePiece r
          body @?= "abc",
      testCase "pieces are passed on as they come, in both directions" $ do
        let echo _ c = do
              void (hearRequest c)
              say c "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
              let go = do
                    piece <- hearBytes c 3
                    if piece == "0\r\n" then hearBytes c 2 >> say c "0\r\n\r\n" else hearBytes c 5 >>= \rest -> say c (piece <> rest) >> go
              go
        withPeer echo $ \port -> proxying defaultProxySettings [port] $ \client u -> do
          due <- soon
          -- Each piece is sent when the last one has come back.
          turn <- newMVar (0 :: Int)
          let next = takeMVar turn >>= \n -> pure (if n < 20 then "abc" else "")
          n <- withResponse client due (Request "POST" (u "/") [] (StreamBody Nothing next)) $ \r -> do
            let go n = do
                  piece <- responsePiece r
                  if B.null piece then pure n else putMVar turn (n + 1) >> go (n + 1)
            go 0
          n @?= 20,
      testCase "a response that came whole frees its connection before the client has taken it" $ do
        let settings = defaultProxySettings {proxyClient = (proxyClient defaultProxySettings) {clientMostPerServer = 1}}
        withPeer (answering "whole") $ \port -> withProxy settings [url port "/"] $ \application -> do
          -- The first client takes its response only when the second one has its own.
          second <- newEmptyMVar
          let slowly request' respond = application request' $ \response -> do
                when (Wai.rawPathInfo request' == "/first") (within (readMVar second))
                respond response
          withApplicationSettings (setOnException (\_ _ -> pure ()) defaultSettings) (pure slowly) $ \own -> withClient defaultClientSettings $ \client -> do
            due <- soon
            first <- newEmptyMVar
            void (forkFinally (answerBody <$> request client due (getRequest (url own "/first"))) (putMVar first))
            (answerBody <$> request client due (getRequest (url own "/second"))) `gives` "whole"
            putMVar second ()
            within (takeMVar first) >>= either throwIO (@?= "whole"),
      testCase "large and small responses in turn, over a kept connection, in pieces of any size" $ do
        let body n = C.take n (C.concat (replicate 11000 "0123456789abc"))
            sizes = [70000, 70000, 5, 70000, 131072, 131073, 131072, 0, 32768, 32768]
            script _ c = forM_ (zip [1 :: Int ..] sizes) $ \(i, n) -> do
              void (hearRequest c)
              let whole = "HTTP/1.1 200 OK\r\nContent-Length: " <> C.pack (show n) <> "\r\n\r\n" <> body n
              if even i then say c whole else forM_ (pieces (7919 * i) whole) (\piece -> say c piece >> threadDelay 2000)
            pieces n bytes = if B.null bytes then [] else let (piece, rest) = B.splitAt n bytes in piece : pieces n rest
        withPeer script $ \port -> proxying defaultProxySettings {proxyClient = (proxyClient defaultProxySettings) {clientMostPerServer = 1}} [port] $ \client u -> do
          due <- soon
          forM_ sizes $ \n -> do
            got <- answerBody <$> request client due (getRequest (u "/"))
            assertBool (show (n, B.length got)) (got == body n),
      testCase "a WebSocket over HTTP/2 (RFC 8441) is an upgrade at the server" $ do
        heard <- newEmptyMVar
        let switching _ c = do
              hearRequest c >>= putMVar heard
              say c "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
              heardEnd c
        withPeer switching $ \port -> do
          server <- either fail pure (parseUrl ("http://127.0.0.1:" <> show port))
          withProxy defaultProxySettings [server] $ \application -> do
            -- As "Weft.Http2.Tunnel" gives it to applications.
            let asked = Wai.defaultRequest {Wai.httpVersion = http20, Wai.rawPathInfo = "/", Wai.requestHeaderHost = Just "x", Wai.requestHeaders = [("Host", "x"), ("Connection", "Upgrade"), ("Upgrade", "websocket")], Wai.requestBodyLength = Wai.KnownLength 0}
            raw <- newIORef False
            _ <- application asked $ \response -> do
              case response of
                Wai.ResponseRaw _ _ -> writeIORef raw True
                _ -> pure ()
              pure Wai.ResponseReceived
            readIORef raw >>= (@?= True)
        h <- takeMVar heard
        assertBool (C.unpack h) ("upgrade: websocket" `B.isInfixOf` C.map toLower h),
      testCase "health checks: a server that fails them is passed over, and is asked again when it passes" $ do
        well <- newIORef True
        changes <- newChan
        paths <- newIORef []
        let checked name _ c = forever $ do
              h <- hearRequest c
              fine <- if name == "a" then readIORef well else pure True
              when (name == "a") (atomicModifyIORef' paths (\ps -> (C.takeWhile (/= '\r') h : ps, ())))
              say c $ case C.words h of
                _ : "/health?x" : _ -> "HTTP/1.1 " <> (if fine then "204 Fine\r\n\r\n" else "500 No\r\nContent-Length: 0\r\n\r\n")
                _ -> "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" <> name
            check = (defaultHealthCheck "/health?x") {checkInterval = milliseconds 50, checkMostFailures = 2, checkSuccesses = 2}
        withPeer (checked "a") $ \a -> withPeer (checked "b") $ \b ->
          proxying defaultProxySettings {proxyCheck = Just check, proxyOnCheck = \u now -> writeChan changes (urlPort u, now)} [a, b] $ \client u -> do
            due <- soon
            let names = nub . sort <$> replicateM 12 (answerBody <$> request client due (getRequest (u "/")))
            names `gives` ["a", "b"]
            writeIORef well False
            within (readChan changes) `gives` (show a, False)
            names `gives` ["b"]
            writeIORef well True
            within (readChan changes) `gives` (show a, True)
            names `gives` ["a", "b"]
        ps <- readIORef paths
        assertBool (show (take 3 ps)) ("GET /health?x HTTP/1.1" `elem` ps)
        -- The checks end with the proxy.
        threadDelay 300000
        (length <$> readIORef paths) `gives` length ps,
      testCase "another server is asked although the function that is told of failures throws" $ do
        dead <- withPeer (\_ _ -> pure ()) pure
        withPeer (\_ c -> forever (hearRequest c >> say c "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")) $ \a ->
          proxying defaultProxySettings {proxyOnFailure = \_ _ -> throwIO (userError "a log that cannot be written")} [dead, a] $ \client u -> do
            due <- soon
            replicateM 6 (answerBody <$> request client due (getRequest (u "/"))) `gives` replicate 6 "hi",
      testCase "health checks go on if the function that is told of changes throws" $ do
        well <- newIORef False
        changes <- newChan
        let check = (defaultHealthCheck "/") {checkInterval = milliseconds 50, checkMostFailures = 1, checkSuccesses = 1}
            script _ c = forever $ do
              _ <- hearRequest c
              fine <- readIORef well
              say c ("HTTP/1.1 " <> (if fine then "204 Fine\r\n\r\n" else "500 No\r\nContent-Length: 0\r\n\r\n"))
        withPeer script $ \a ->
          proxying defaultProxySettings {proxyCheck = Just check, proxyOnCheck = \_ now -> writeChan changes now >> throwIO (userError "a log that cannot be written")} [a] $ \_ _ ->
            forM_ [True, False, True] $ \next -> do
              within (readChan changes) `gives` not next
              writeIORef well next,
      testCase "health checks: if all fail, all are asked" $ do
        changes <- newChan
        let check = (defaultHealthCheck "/") {checkInterval = milliseconds 50, checkMostFailures = 1}
        withPeer (\_ c -> forever (hearRequest c >> say c "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno")) $ \a ->
          proxying defaultProxySettings {proxyCheck = Just check, proxyOnCheck = \_ now -> writeChan changes now} [a] $ \client u -> do
            within (readChan changes) `gives` False
            due <- soon
            (answerBody <$> request client due (getRequest (u "/"))) `gives` "no",
      testCase "the PROXY protocol: nginx hears the client's address, by both versions" . withNginx $ \nginx ->
        forM_ [ProxyVersion1, ProxyVersion2] $ \version -> proxying defaultProxySettings {proxyHeader = Just version} [nginxAnnouncedPort nginx] $ \client u -> do
          due <- soon
          replicateM_ 3 ((answerBody <$> request client due (getRequest (u "/announced"))) `gives` "127.0.0.1"),
      testCase "the PROXY protocol, byte by byte: a connection for each request, and checks that name no client" $ do
        heard <- newChan
        let signature = "\r\n\r\n\0\r\nQUIT\n"
            -- The signature of version 2 has an empty line.
            hearAnnounced c = do
              begin <- hearBytes c 12
              more <- if begin == signature then hearBytes c 4 >>= \more -> (more <>) <$> hearBytes c (fromIntegral (B.last more)) else pure ""
              ((begin <> more) <>) <$> hearRequest c
            script _ c = do
              h <- hearAnnounced c
              writeChan heard h
              say c "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
              void (hearRequest c)
              writeChan heard "a second request"
            headers settings = withPeer script $ \port -> proxying settings [port] $ \client u -> do
              due <- soon
              replicateM 2 ((answerBody <$> request client due (getRequest (u "/"))) `gives` "hi" >> within (readChan heard))
        texts <- headers defaultProxySettings {proxyHeader = Just ProxyVersion1}
        forM_ texts $ \text -> do
          let (line, rest) = C.break (== '\r') text
          take 4 (C.words line) @?= ["PROXY", "TCP4", "127.0.0.1", "0.0.0.0"]
          assertBool (show text) ("\r\nGET / HTTP/1.1\r\n" `B.isPrefixOf` rest)
        binaries <- headers defaultProxySettings {proxyHeader = Just ProxyVersion2}
        forM_ binaries $ \binary -> do
          B.take 24 binary @?= signature <> B.pack [0x21, 0x11, 0, 12, 127, 0, 0, 1, 0, 0, 0, 0]
          assertBool (show binary) ("GET / HTTP/1.1\r\n" `B.isPrefixOf` B.drop 28 binary)
        forM_ [(ProxyVersion1, "PROXY UNKNOWN\r\n"), (ProxyVersion2, "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")] $ \(version, begin) ->
          withPeer script $ \port -> proxying defaultProxySettings {proxyHeader = Just version, proxyCheck = Just (defaultHealthCheck "/check")} [port] $ \_ _ -> do
            h <- within (readChan heard)
            assertBool (show h) ((begin <> "GET /check HTTP/1.1\r\n") `B.isPrefixOf` h),
      testCase "requests that are interrupted leave no descriptor" $ do
        let drip _ c = forever $ do
              void (hearRequest c)
              say c "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
              forM_ [1 .. 20 :: Int] $ \_ -> say c "3\r\nabc\r\n" >> yield
              say c "0\r\n\r\n"
        before <- openCountAfter (sleep (milliseconds 1))
        withPeer drip $ \port -> proxying defaultProxySettings [port] $ \client u -> do
          forM_ [1 .. 500 :: Int] $ \i -> do
            done <- newEmptyMVar
            t <- forkFinally (soon >>= \due -> void (request client due (getRequest (u "/")))) (const (putMVar done ()))
            threadDelay (i * 7 `mod` 1500)
            killThread t
            within (takeMVar done)
          due <- soon
          (answerBody <$> request client due (getRequest (u "/"))) `gives` C.concat (replicate 20 "abc")
        eventually "descriptors are left" ((<= before) <$> openCount)
    ]
  where
    answering text _ c = forever (hearRequest c >> say c ("HTTP/1.1 200 OK\r\nContent-Length: " <> C.pack (show (B.length text)) <> "\r\n\r\n" <> text))
    slow n _ c = forever (hearRequest c >> threadDelay 300000 >> say c ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" <> C.pack (show (n :: Int))))
    pop ref = atomicModifyIORef' ref (\ps -> (drop 1 ps, B.concat (take 1 ps)))

-- | Run an action with a client, and URLs of a proxy before upstreams at these ports.
proxying :: ProxySettings -> [Int] -> (Client -> (B.ByteString -> Url) -> IO a) -> IO a
proxying settings ports act =
  withProxy settings [url port "/" | port <- ports] $ \application ->
    withApplicationSettings (setOnException (\_ _ -> pure ()) defaultSettings) (pure application) $ \port -> withClient defaultClientSettings $ \client -> act client (url port)
