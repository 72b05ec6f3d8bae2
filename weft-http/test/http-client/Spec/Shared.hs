{-# LANGUAGE OverloadedStrings #-}

-- |
-- HTTP\/2: many requests on one connection, to Weft's server, to nginx, and to scripted peers that break rules, go
-- away, or take nothing.
module Spec.Shared (tests, settings2, serving, echo) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Bits ((.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Network.HTTP.Types
import Network.Socket (SockAddr (..), tupleToHostAddress)
import qualified Network.Wai as Wai
import Peer
import Spec.Servers
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http.Client
import Weft.Http2 hiding (ErrorCode (..), connectionPreface)
import Weft.Http2.Frame
import Weft.Pool (PoolCounts (..))
import Weft.Scope (forConcurrently, forkDaemon, withScope)
import Weft.Test.Descriptors (openCount, openCountAfter)
import Weft.Timer (sleep)
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)
import Weft.Transport (Listener (..), Transport (..), connClose, deadlineIn, socketTransport)

tests :: TestTree
tests =
  testGroup
    "HTTP/2"
    [ testGroup "requests" requests,
      testGroup "sharing" sharing,
      testGroup "requests that were not processed" repeating,
      testGroup "limits and errors" limiting,
      testGroup "other servers" others
    ]

settings2 :: ClientSettings
settings2 = defaultClientSettings {clientProtocol = OnlyHttp2}

-- Weft's server ------------------------------------------------------------------------

-- | Run an action with the port of a server in clear text, which allows so many streams.
serving :: Int -> Wai.Application -> (Int -> IO a) -> IO a
serving streams application act = do
  bracket (transportListen socketTransport (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))) listenerClose $ \l -> do
    port <- case listenerAddress l of
      SockAddrInet port _ -> pure (fromIntegral port)
      other -> assertFailure (show other)
    withScope $ \scope -> do
      _ <- forkDaemon scope . forever $ do
        c <- listenerAccept l
        forkDaemon scope ((serveHttp2 settings (const (pure ())) c application `catch` \e -> const (pure ()) (e :: IOException)) `finally` connClose c)
      act port
  where
    settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitStreams = streams}}

-- | Answers with the body of the request and its trailers, method and target, or so many bytes.
echo :: Wai.Application
echo q respond = case Wai.pathInfo q of
  ["large"] -> respond (Wai.responseStream ok200 [] (\write _ -> replicateM_ 160 (write (byteString large))))
  ["echo"] -> do
    setHTTP2Data q . Just $
      defaultHTTP2Data
        { http2dataTrailers =
            let maker part = case part of
                  Just _ -> pure (NextTrailersMaker maker)
                  Nothing -> maybe (Trailers []) Trailers <$> getRequestTrailers q
             in maker
        }
    respond . Wai.responseStream ok200 [("x-method", Wai.requestMethod q)] $ \write flush ->
      let go = Wai.getRequestBodyChunk q >>= \piece -> unless (B.null piece) (write (byteString piece) >> flush >> go)
       in go
  ["sleep"] -> threadDelay 60000000 >> respond (Wai.responseLBS ok200 [] "")
  _ -> respond (Wai.responseLBS ok200 [("x-version", C.pack (show (Wai.httpVersion q)))] "hello")

-- | 64 KiB.
large :: ByteString
large = C.replicate 65536 'x'

get :: Client -> Url -> IO ByteString
get client u = soon >>= \due -> answerBody <$> request client due (getRequest u)

-- | The connections to all servers, and those without a request.
connections :: Client -> IO [(Int, Int)]
connections client = map ((\c -> (countTotal c, countIdle c)) . snd) <$> clientCounts client

-- | Run the action so many times at once.
atOnce :: Int -> (Int -> IO a) -> IO [a]
atOnce n = forConcurrently n [1 .. n]

drained :: Response -> IO Int
drained response = go 0
  where
    go n = responsePiece response >>= \piece -> if B.null piece then pure n else go (n + B.length piece)

requests :: [TestTree]
requests =
  [ testCase "GET, HEAD, POST; fields, lengths, statuses" . serving 100 echo $ \port -> withClient settings2 $ \client -> do
      due <- soon
      a <- request client due (getRequest (url port "/"))
      (answerBody a, lookup "x-version" (answerFields a), answerStatus a) @?= ("hello", Just "HTTP/2.0", ok200)
      h <- request client due (Request "HEAD" (url port "/") [] EmptyBody)
      (answerBody h, answerStatus h) @?= ("", ok200)
      forM_ [B.empty, "abc", C.replicate 65536 'a', C.replicate 1000000 'b'] $ \body -> do
        p <- request client due (Request "POST" (url port "/echo") [("Connection", "x-own"), ("X-Own", "1")] (BytesBody body))
        (answerBody p == body, lookup "x-method" (answerFields p)) @?= (True, Just "POST")
      connections client >>= (@?= [(1, 1)]),
    testCase "a streamed body with trailers, and those of the response" . serving 100 echo $ \port -> withClient settings2 $ \client -> do
      due <- soon
      left <- newIORef (replicate 50 large)
      a <- request client due (Request "PUT" (url port "/echo") [("Expect", "100-continue")] (TrailedBody (Just 3276800) (pop left) (pure [("X-Sum", "7")])))
      (B.length (answerBody a), answerTrailers a) @?= (3276800, [("x-sum", "7")])
      -- One that gives less than it said, and one that throws.
      causeOf (request client due (Request "PUT" (url port "/echo") [] (StreamBody (Just 5) (pure B.empty)))) >>= \(phase, cause) -> (phase, show cause) @?= (Sending, "WrongLength")
      r <- try (request client due (Request "PUT" (url port "/echo") [] (StreamBody Nothing (throwIO (userError "no more")))))
      either (\e -> show (e :: IOException) @?= "user error (no more)") (const (assertFailure "it was sent")) r
      get client (url port "/") `gives` "hello",
    testCase "both directions at once: each piece is sent when the answer to the one before has come" . serving 100 echo $ \port -> withClient settings2 $ \client -> do
      due <- soon
      next <- newEmptyMVar
      putMVar next "0"
      let asked = Request "POST" (url port "/echo") [] (StreamBody Nothing (takeMVar next))
      withResponse client due asked $ \response -> forM_ [0 .. 200 :: Int] $ \i -> do
        responsePiece response `gives` C.pack (show i)
        putMVar next (if i == 200 then "" else C.pack (show (i + 1))),
    testCase "what cannot be sent" . withClient settings2 $ \client -> do
      due <- soon
      forM_ [("A b", "x"), ("A", "x\r\nB: c"), ("Content-Length", "3")] $ \field -> do
        (phase, cause) <- causeOf (request client due (Request "GET" (url 1 "/") [field] EmptyBody))
        case (phase, cause) of
          (Sending, InvalidRequest _) -> pure ()
          other -> assertFailure (show other)
  ]
  where
    pop ref = atomicModifyIORef' ref (\ps -> (drop 1 ps, B.concat (take 1 ps)))

sharing :: [TestTree]
sharing =
  [ testCase "1,000 requests at once, over one connection of 100 streams" $ do
      running <- newIORef (0 :: Int)
      most <- newIORef 0
      let counted q respond = bracket_ (count 1) (count (-1)) (threadDelay 1000 >> echo q respond)
          count n = atomicModifyIORef' running (\k -> (k + n, k + n)) >>= \k -> atomicModifyIORef' most (\m -> (max m k, ()))
      serving 100 counted $ \port -> withClient settings2 {clientMostPerServer = 1} $ \client -> do
        found <- atOnce 1000 (const (get client (url port "/")))
        length (filter (== "hello") found) @?= 1000
        connections client >>= (@?= [(1, 1)])
        n <- readIORef most
        assertBool (show n) (n > 1 && n <= 100),
    testCase "when all streams are taken there is another connection, and then requests wait" $ do
      go <- newEmptyMVar
      let waits q respond = readMVar go >> echo q respond
      serving 2 waits $ \port -> withClient settings2 {clientMostPerServer = 2} $ \client -> do
        -- The first connection's limit is not known before it is there.
        done <- newEmptyMVar
        replicateM_ 5 (forkIO (get client (url port "/") >>= putMVar done))
        eventually "two connections, and one that waits" ((== [(2, 1)]) . map ((\c -> (countTotal c, countWaiting c)) . snd) <$> clientCounts client)
        due <- deadlineIn (milliseconds 50)
        (phase, _) <- causeOf (request client due (getRequest (url port "/")))
        phase @?= Queueing
        putMVar go ()
        replicateM 5 (within (takeMVar done)) >>= (@?= replicate 5 "hello"),
    testCase "a response that nobody reads stops no other one, and can be read later" . serving 100 echo $ \port -> withClient settings2 {clientMostPerServer = 1} $ \client -> do
      due <- soon
      withResponse client due (getRequest (url port "/large")) $ \slow -> do
        sizes <- replicateM 20 (B.length <$> get client (url port "/large"))
        sizes @?= replicate 20 10485760
        drained slow `gives` 10485760
      connections client >>= (@?= [(1, 1)]),
    testCase "requests that are interrupted, or late, leave no stream and no descriptor; the connection goes on" $ do
      running <- newIORef (0 :: Int)
      let counted q respond = bracket_ (count 1) (count (-1)) (echo q respond)
          count n = atomicModifyIORef' running (\k -> (k + n, ()))
      serving 100 counted $ \port -> do
        withClient settings2 (\client -> get client (url port "/") `gives` "hello")
        before <- openCountAfter (sleep (milliseconds 1))
        withClient settings2 {clientMostPerServer = 1} $ \client -> do
          get client (url port "/") `gives` "hello"
          forM_ [1 .. 300 :: Int] $ \i -> do
            done <- newEmptyMVar
            let path = if even i then "/sleep" else "/large"
                asked = if i `mod` 3 == 0 then Request "POST" (url port path) [] (StreamBody Nothing (threadDelay 100 >> pure "x")) else getRequest (url port path)
            t <- forkFinally (soon >>= \due -> void (request client due asked)) (const (putMVar done ()))
            threadDelay (i * 7 `mod` 1500)
            killThread t
            within (takeMVar done)
          late <- deadlineIn (milliseconds 30)
          (phase, _) <- causeOf (request client late (getRequest (url port "/sleep")))
          phase @?= Answering
          eventually "applications run" ((== 0) <$> readIORef running)
          get client (url port "/") `gives` "hello"
          connections client >>= (@?= [(1, 1)])
        eventually "descriptors are left" ((<= before) <$> openCount),
    testCase "an unused connection is closed" . serving 100 echo $ \port -> withClient settings2 {clientIdleTime = milliseconds 50} $ \client -> do
      get client (url port "/") `gives` "hello"
      eventually "it is kept" (null <$> connections client)
      get client (url port "/") `gives` "hello",
    testCase "the end of the client ends its requests" . serving 100 echo $ \port -> do
      ended <- newEmptyMVar
      withClient settings2 $ \client -> do
        begun <- newEmptyMVar
        _ <- forkIO (soon >>= \due -> try (withResponse client due (getRequest (url port "/large")) (\r -> putMVar begun () >> drained r >> threadDelay 10000 >> drained r)) >>= putMVar ended . either (\e -> show (e :: SomeException)) show)
        _ <- forkIO (causeOf (get client (url port "/sleep")) >>= putMVar ended . show . fst)
        within (takeMVar begun)
      replicateM_ 2 (within (takeMVar ended))
  ]

-- Scripts --------------------------------------------------------------------------------

-- | The next frame.
hearFrame :: Conversation -> IO (FrameHeader, ByteString)
hearFrame c = do
  header <- hearBytes c 9 >>= maybe (fail "no header") pure . parseFrameHeader
  (,) header <$> hearBytes c (frameLength header)

-- | Hear the preface, and send these settings.
starting :: Conversation -> [(Int, Int)] -> IO ()
starting c parameters = do
  preface <- hearBytes c (B.length connectionPreface)
  when (preface /= connectionPreface) (fail "no preface")
  say c (frame typeSettings 0 0 (settingsPayload [(fromIntegral key, fromIntegral value) | (key, value) <- parameters]))

-- | Hear frames until there is one of that type; its stream.
hearType :: Integral t => t -> Conversation -> IO Int
hearType kind c = do
  (header, _) <- hearFrame c
  if fromIntegral (frameType header) == toInteger kind then pure (frameStream header) else hearType kind c

-- | A head of status 200, and whether it ends the stream; by index of HPACK's static table.
head200 :: Int -> Bool -> ByteString
head200 n final = frame typeHeaders (flagEndHeaders .|. (if final then flagEndStream else 0)) n "\x88"

goAway :: Int -> ByteString
goAway n = frame typeGoAway 0 0 (B.drop 5 (frameHead 0 0 n 0) <> errorNumber NoError)

resetFrame :: ErrorCode -> Int -> ByteString
resetFrame code n = frame typeReset 0 n (errorNumber code)

-- | Answer each request.
answering :: Conversation -> IO ()
answering c = forever (hearType typeHeaders c >>= \n -> say c (head200 n False <> frame typeData flagEndStream n "hi"))

repeating :: [TestTree]
repeating =
  [ testCase "a stream that is refused is asked for again, whatever the method" . withPeer (\_ c -> starting c [] >> hearType typeHeaders c >>= say c . resetFrame RefusedStream >> answering c) $ \port ->
      withClient settings2 $ \client -> do
        due <- soon
        (answerBody <$> request client due (Request "POST" (url port "/") [] (BytesBody "x"))) `gives` "hi",
    testCase "but not without end, and not if its body is a stream" . withPeer (\_ c -> starting c [] >> forever (hearType typeHeaders c >>= say c . resetFrame RefusedStream)) $ \port ->
      withClient settings2 $ \client -> do
        due <- soon
        (_, cause) <- causeOf (request client due (getRequest (url port "/")))
        show cause @?= "NotProcessed"
        (_, streamed) <- causeOf (request client due (Request "POST" (url port "/") [] (StreamBody Nothing (threadDelay 1000 >> pure "x"))))
        show streamed @?= "NotProcessed",
    testCase "GOAWAY in the middle: what the server has not seen is asked for on another connection, the rest goes on" $ do
      first <- newEmptyMVar
      second <- newEmptyMVar
      let script i c = do
            starting c []
            if i > 0
              then answering c
              else do
                one <- hearType typeHeaders c
                putMVar first ()
                two <- hearType typeHeaders c
                say c (goAway one <> head200 one False)
                readMVar second
                say c (frame typeData flagEndStream one "first")
                when (two <= one) (fail "the order of streams")
      withPeer script $ \port -> withClient settings2 $ \client -> do
        due <- soon
        done <- newEmptyMVar
        _ <- forkIO (request client due (getRequest (url port "/")) >>= putMVar done . answerBody)
        within (takeMVar first)
        found <- answerBody <$> request client due (Request "POST" (url port "/") [] (BytesBody "x"))
        found @?= "hi"
        putMVar second ()
        within (takeMVar done) `gives` "first",
    testCase "a connection that ends: a GET is asked for again if the connection was kept, a POST is not" . withPeer (\_ c -> starting c [] >> hearType typeHeaders c >>= \n -> say c (head200 n True) >> void (hearType typeHeaders c)) $ \port ->
      withClient settings2 $ \client -> do
        replicateM_ 3 (get client (url port "/") `gives` "")
        due <- soon
        (phase, cause) <- causeOf (request client due (Request "POST" (url port "/") [] EmptyBody))
        (phase, take 8 (show cause)) @?= (Answering, "NoAnswer")
  ]

limiting :: [TestTree]
limiting =
  [ testCase "a server that grants no window: the body is late, other requests go on, and the stream is reset" $ do
      resets <- newChan
      let script _ c = do
            starting c [(4, 0)]
            forever $ do
              (header, _) <- hearFrame c
              case () of
                _
                  | frameType header == typeHeaders && hasFlag flagEndStream header -> say c (head200 (frameStream header) True)
                  | frameType header == typeReset -> writeChan resets (frameStream header)
                  | otherwise -> pure ()
      withPeer script $ \port -> withClient settings2 {clientSendTime = milliseconds 300} $ \client -> do
        due <- soon
        get client (url port "/") `gives` ""
        forM_ [BytesBody "abc", StreamBody Nothing (pure "abc"), BytesBody (C.replicate 100000 'x')] $ \body -> do
          (phase, cause) <- causeOf (request client due (Request "POST" (url port "/") [] body))
          (phase, show cause) @?= (Sending, "TimedOut")
          n <- within (readChan resets)
          assertBool (show n) (odd n && n > 1)
        get client (url port "/") `gives` ""
        connections client >>= (@?= [(1, 1)]),
    testCase "no answer in time; no further piece in time" . withPeer (\_ c -> starting c [] >> void (hearType typeHeaders c) >> hearType typeHeaders c >>= \n -> say c (head200 n False) >> heardEnd c) $ \port ->
      withClient settings2 {clientAnswerTime = milliseconds 100, clientReadTime = milliseconds 100} $ \client -> do
        due <- soon
        (phase, cause) <- causeOf (request client due (getRequest (url port "/")))
        (phase, show cause) @?= (Answering, "TimedOut")
        (phase', cause') <- causeOf (request client due (getRequest (url port "/")))
        (phase', show cause') @?= (Receiving, "TimedOut"),
    testCase "a malformed response is that request's error only; a reset too" $ do
      let script _ c = do
            starting c []
            one <- hearType typeHeaders c
            say c (head200 one False <> frame typeHeaders (flagEndHeaders .|. flagEndStream) one "\x88")
            two <- hearType typeHeaders c
            say c (resetFrame InternalError two)
            answering c
      withPeer script $ \port -> withClient settings2 $ \client -> do
        due <- soon
        (_, cause) <- causeOf (request client due (getRequest (url port "/")))
        case cause of
          NotHttp2 _ -> pure ()
          _ -> assertFailure (show cause)
        (_, cause') <- causeOf (request client due (getRequest (url port "/")))
        show cause' @?= "StreamReset 2"
        get client (url port "/") `gives` "hi",
    testCase "an error of the connection is that of all its requests, and the next one has another connection" $ do
      let script i c = do
            starting c []
            when (i == 0) $ do
              _ <- hearType typeHeaders c
              _ <- hearType typeHeaders c
              say c (frame typePushPromise flagEndHeaders 1 "\0\0\0\2\x82")
              heardEnd c
            answering c
      withPeer script $ \port -> withClient settings2 {clientMostStreams = 2} $ \client -> do
        causes <- atOnce 2 (const (snd <$> causeOf (get client (url port "/"))))
        map show causes @?= replicate 2 "NotHttp2 \"the server pushes\""
        get client (url port "/") `gives` "hi",
    testCase "a server of HTTP/1.1 is told apart" . withPeer (\_ c -> hearRequest c >> say c "HTTP/1.1 400 Bad Request\r\n\r\n") $ \port ->
      withClient settings2 $ \client -> do
        (_, cause) <- causeOf (get client (url port "/"))
        case cause of
          NotHttp2 _ -> pure ()
          _ -> assertFailure (show cause),
    testCase "a server that takes no connection, for all who wait" . withClient settings2 $ \client -> do
      port <- withPeer (\_ _ -> pure ()) pure
      phases <- atOnce 20 (const (fst <$> causeOf (get client (url port "/"))))
      phases @?= replicate 20 Connecting
      eventually "the server is forgotten" (null <$> clientCounts client),
    testCase "Expect: 100-continue: the body is held back until the server asks for it" $ do
      let script _ c = do
            starting c []
            n <- hearType typeHeaders c
            -- 100 has no index in the static table.
            say c (frame typeHeaders flagEndHeaders n "\x08\x03\&100")
            _ <- hearType typeData c
            say c (head200 n True)
      withPeer script $ \port -> withClient settings2 {clientContinueTime = seconds 60} $ \client -> do
        due <- soon
        (statusCode . answerStatus <$> request client due (Request "PUT" (url port "/") [("Expect", "100-continue")] (BytesBody "abc"))) `gives` 200,
    testCase "a server that is killed under load: each request ends, and later ones succeed" $ do
      let script i c = do
            starting c [(3, 50)]
            if i < 3
              then replicateM_ 30 (hearType typeHeaders c >>= \n -> say c (head200 n True)) >> reset c
              else answering c
      withPeer script $ \port -> withClient settings2 {clientMostPerServer = 1} $ \client -> do
        found <- atOnce 200 $ \_ -> soon >>= \due -> try (request client due (getRequest (url port "/")))
        -- Those that the server had answered before, or that were repeated.
        assertBool "none succeeds" (length [() | Right a <- found, answerStatus a == ok200] >= 100)
        forM_ [e | Left e <- found] $ \e -> assertBool (show (e :: ClientError)) (errorPhase e >= Connecting)
        get client (url port "/") `gives` "hi"
  ]

others :: [TestTree]
others =
  [ testCase "nginx in clear text: files, uploads, HEAD, errors, many requests" . withNginx $ \nginx -> withClient settings2 $ \client -> do
      due <- soon
      let u path = Url "127.0.0.1" (show (nginxHttp2Port nginx)) Nothing path False
          body = C.replicate 3000000 'x'
      request client due (Request "PUT" (u "/up/large") [] (BytesBody body)) >>= (@?= 201) . statusCode . answerStatus
      (answerBody <$> request client due (getRequest (u "/up/large"))) `gives` body
      h <- request client due (Request "HEAD" (u "/up/large") [] EmptyBody)
      (answerBody h, lookup hContentLength (answerFields h)) @?= ("", Just "3000000")
      (statusCode . answerStatus <$> request client due (getRequest (u "/nothing"))) `gives` 404
      (statusCode . answerStatus <$> request client due (getRequest (u "/gone"))) `gives` 204
      -- Beyond the requests after which nginx ends a connection by GOAWAY.
      found <- atOnce 2500 (const (answerBody <$> request client due (getRequest (u "/pong"))))
      length (filter (== "Pong!") found) @?= 2500,
    testCase "nginx over TLS: HTTP/2 by ALPN if preferred, and else HTTP/1.1" . withNginx $ \nginx -> do
      due <- soon
      let u port = Url "localhost" (show (port nginx)) Nothing "/version" True
          trusting protocol = settings2 {clientProtocol = protocol, clientTls = defaultTlsClientSettings {tlsTrust = TrustAuthorities (nginxFolder nginx </> "cert.pem")}}
          version protocol port = withClient (trusting protocol) $ \client -> replicateM 2 (answerBody <$> request client due (getRequest (u port)))
      version PreferHttp2 nginxTls2Port `gives` ["HTTP/2.0", "HTTP/2.0"]
      version OnlyHttp2 nginxTls2Port `gives` ["HTTP/2.0", "HTTP/2.0"]
      version OnlyHttp1 nginxTls2Port `gives` ["HTTP/1.1", "HTTP/1.1"]
      version PreferHttp2 nginxTlsPort `gives` ["HTTP/1.1", "HTTP/1.1"]
      -- It ends the handshake.
      (phase, _) <- causeOf (version OnlyHttp2 nginxTlsPort)
      phase @?= Connecting
      -- Clear text is HTTP/1.1 unless it is asked for.
      withClient (trusting PreferHttp2) $ \client -> do
        let clear = Url "127.0.0.1" (show (nginxPort nginx)) Nothing "/version" False
        (answerBody <$> request client due (getRequest clear)) `gives` "HTTP/1.1"
        (answerBody <$> request (speaking OnlyHttp2 client) due (getRequest clear {urlPort = show (nginxHttp2Port nginx)})) `gives` "HTTP/2.0",
    testCase "nginx is stopped and started again" . withNginx $ \nginx -> withClient settings2 $ \client -> do
      let u = Url "127.0.0.1" (show (nginxHttp2Port nginx)) Nothing "/pong" False
      forM_ [1 :: Int, 2] $ \_ -> do
        get client u `gives` "Pong!"
        nginxRestart nginx,
    testCase "h2o: files, uploads of which nothing is taken, many requests" . withH2o $ \port -> withClient settings2 $ \client -> do
      due <- soon
      let u path = Url "127.0.0.1" (show port) Nothing path False
      get client (u "/page") `gives` "a page\n"
      size <- B.length <$> get client (u "/large")
      size @?= 3000000
      _ <- try (request client due (Request "POST" (u "/page") [] (BytesBody (C.replicate 2000000 'x')))) :: IO (Either ClientError Answer)
      found <- atOnce 1000 (const (get client (u "/page")))
      length (filter (== "a page\n") found) @?= 1000
  ]
