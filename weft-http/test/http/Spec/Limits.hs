{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Http": limits on clients, and the responses to clients that exceed them.
module Spec.Limits (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (getNumCapabilities, threadDelay, yield)
import Control.Concurrent.Async (forConcurrently_)
import Control.Concurrent.MVar
import Control.Exception (IOException, finally, handle)
import Control.Monad (forM, forM_, replicateM, replicateM_, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.List (sort)
import Data.Word (Word8)
import Network.HTTP.Types (status200)
import Network.Wai (rawPathInfo, responseLBS)
import Spec.Secure (certificate)
import System.Directory (removeDirectoryRecursive)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http
import Weft.Socket (SockAddr (..))
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings, tlsConnect)
import Weft.Transport

tests :: Configuration -> TestTree
tests on =
  testGroup
    "limits"
    [ testOn on "a refused request gets a status for the reason, and its connection is closed" . with id $ \refusals server port -> do
        forM_ refused $ \(bytes, status) -> withClient port $ \client -> do
          say client bytes
          answer <- hearAnswer client
          (bytes, answerStatus answer) @?= (bytes, status)
          header "connection" answer @?= Just "close"
          hearEnd client >>= (@?= "")
        noConnections server
        found <- readIORef refusals
        sort found @?= sort [BadRequest, BadRequest, BadRequest, TargetTooLong, HeadTooLarge, HeadTooLarge, UnknownCoding, UnknownVersion],
      -- The server finds all of them there at once, with their requests: each is admitted, and told to end for the next
      -- one. One more than the limit may continue.
      testOn on "clients that are told to end, and have sent requests for more than they take, count as well" $ do
        (port, sock) <- openFreePort
        clients <- replicateM 100 (connectTo port)
        forM_ clients $ \client -> ask client "/large?n=20000000" []
        let options = defaultOptions {optionListeners = [sock], optionLimits = Just defaultLimits {limitConnections = 16}}
        n <- withServerWith options (quiet defaultSettings) application $ \_ -> do
          -- The server may have ended a connection with a reset.
          heard <- forM clients $ \client -> handle (\e -> const (pure B.empty) (e :: IOException)) (hear client)
          length (filter (not . B.null) heard) <$ mapM_ hangUp clients
        assertBool (show n <> " were answered") (n >= 1 && n <= 17),
      testOn on "sizes of zero or less mean no limit" . with (\l -> l {limitTarget = 0, limitHead = -1, limitFields = 0}) $ \refusals _ port ->
        withClient port $ \client -> do
          let fields = C.concat ["X-" <> C.pack (show i) <> ": x\r\n" | i <- [1 .. 200 :: Int]]
              asking = C.concat ["GET /hello?", C.replicate 60000 'x', " HTTP/1.1\r\nHost: test\r\n", fields, "\r\n"]
          -- In one piece, and in several.
          forM_ [B.length asking, 7000] $ \size -> do
            mapM_ (say client) (pieces size asking)
            answer <- hearAnswer client
            (answerStatus answer, answerBody answer) @?= (200, "hello")
          readIORef refusals >>= (@?= []),
      testOn on "requests before a refused one are answered, and requests after it are not" . with id $ \_ _ port ->
        withClient port $ \client -> do
          say client (C.concat [good "/hello", good "/hello", "GET / HTTP/1.1\nHost: h\r\n\r\n", good "/hello"])
          answers <- replicateM 3 (hearAnswer client)
          map answerStatus answers @?= [200, 200, 400]
          hearEnd client >>= (@?= ""),
      patientOn on "a malformed chunked body is refused" . with id $ \refusals server port ->
        withClient port $ \client -> do
          say client "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
          threadDelay 20000
          say client "3\nabc\r\n0\r\n\r\n"
          answer <- hearAnswer client
          answerStatus answer @?= 400
          hearEnd client >>= (@?= "")
          noConnections server
          readIORef refusals >>= (@?= [BadRequest]),
      patientOn on "a body of extensions with hardly any data is refused" . with id $ \refusals server port ->
        withClient port $ \client -> do
          say client ("POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" <> C.concat (replicate 5 ("1;" <> C.replicate 4000 'x' <> "\r\na\r\n")))
          answer <- hearAnswer client
          answerStatus answer @?= 400
          hearEnd client >>= (@?= "")
          noConnections server
          readIORef refusals >>= (@?= [BadRequest]),
      testOn on "heads in segments, and several heads in one segment" . with id $ \_ _ port ->
        withClient port $ \client -> do
          forM_ (pieces 7 (B.concat (replicate 5 (good "/hello")))) $ \p -> say client p >> threadDelay 500
          answers <- replicateM 5 (hearAnswer client)
          map answerBody answers @?= replicate 5 "hello"
          say client (B.concat (replicate 50 (good "/hello")))
          more <- replicateM 50 (hearAnswer client)
          map answerBody more @?= replicate 50 "hello",
      testOn on "bytes after responseRaw are not parsed" . with id $ \_ _ port ->
        withClient port $ \client -> do
          ask client "/raw" ["Connection: Upgrade", "Upgrade: talk"]
          _ <- hearAnswerToHead client
          forM_ ["\0\n\r\nhello", "again"] $ \text -> do
            say client text
            hear client >>= (@?= text)
          say client "bye"
          hearEnd client >>= (@?= "bye"),
      testOn on "a head that arrives byte by byte is refused after limitHeadTime" . with (\l -> l {limitHeadTime = milliseconds 700}) $ \refusals server port -> do
        forConcurrently_ [1 .. 20 :: Int] $ \i -> withClient port $ \client -> handle gone $ do
          -- The first head of a connection, and a later one.
          replicateM_ (i `mod` 2) (get client "/hello")
          forM_ (pieces 1 (good "/hello?" <> C.replicate 300 'x')) $ \p -> say client p >> threadDelay 50000
        noConnections server
        found <- readIORef refusals
        found @?= replicate 20 HeadTooSlow,
      testOn on "limitHeadTime applies to a head whose first bytes came with the request before it" . with (\l -> l {limitHeadTime = milliseconds 500, limitIdle = seconds 60}) $ \refusals server port ->
        withClient port $ \client -> do
          say client (good "/hello" <> "GET /he")
          get' client >>= (@?= "hello")
          hearEnd client >>= (@?= "")
          noConnections server
          readIORef refusals >>= (@?= [HeadTooSlow]),
      testOn on "an idle connection is closed after limitIdle" . with (\l -> l {limitIdle = milliseconds 300}) $ \refusals server port -> do
        withClient port $ \client -> do
          _ <- get client "/hello"
          hearEnd client >>= (@?= "")
        noConnections server
        readIORef refusals >>= (@?= []),
      testOn on "the last response that limitRequests allows has Connection: close" . with (\l -> l {limitRequests = 3}) $ \_ server port -> do
        forConcurrently_ [1 .. 8 :: Int] $ \_ -> withClient port $ \client -> do
          answers <- replicateM 3 (get client "/hello")
          map (header "connection") answers @?= [Nothing, Nothing, Just "close"]
          hearEnd client >>= (@?= "")
        noConnections server
        -- Five requests at once: only three are answered.
        withClient port $ \client -> do
          say client (B.concat (replicate 5 (good "/hello")))
          answers <- replicateM 3 (hearAnswer client)
          map (header "connection") answers @?= [Nothing, Nothing, Just "close"]
          hearEnd client >>= (@?= ""),
      testOn on "limitPerAddress limits the connections of one address" . with (\l -> l {limitPerAddress = 3}) $ \refusals server port -> do
        clients <- replicateM 3 (connectTo port)
        forM_ clients $ \client -> get client "/hello" >>= ((@?= "hello") . answerBody)
        withClient port $ \client -> handle gone (hearEnd client >>= (@?= ""))
        eventually "it is refused" ((== [TooManyOfAddress]) <$> readIORef refusals)
        mapM_ hangUp clients
        noConnections server
        withClient port $ \client -> get client "/hello" >>= ((@?= "hello") . answerBody),
      testOn on "at limitConnections waiting connections are evicted, and busy ones are not" . holding (\l -> l {limitConnections = 20}) $ \held _ server port -> do
        working <- held port 5
        slow <- forM [1 .. 15 :: Int] $ \_ -> do
          client <- connectTo port
          say client "GET /hello HTTP/1.1\r\nHo"
          pure client
        eventually "it is full" ((== 20) <$> serverConnections server)
        forM_ [1 .. 12 :: Int] $ \_ -> withClient port $ \client -> do
          answer <- get client "/hello"
          answerBody answer @?= "hello"
        released working
        mapM_ hangUp slow
        noConnections server,
      testOn on "at limitConnections a burst of new connections evicts as many as it needs, and no more" . with (\l -> l {limitConnections = 640, limitHeadTime = seconds 600}) $ \refusals server port -> do
        idle <- replicateM 640 (connectTo port)
        eventually "it is full" ((== 640) <$> serverConnections server)
        new <- replicateM 40 (connectTo port)
        forM_ new $ \client -> get client "/hello" >>= (@?= "hello") . answerBody
        eventually "there are at most 640" ((<= 640) <$> serverConnections server)
        threadDelay 100000
        open <- serverConnections server
        -- A 64th of the limit at once, for each capability.
        caps <- getNumCapabilities
        assertBool (show (680 - open) <> " were evicted") (680 - open <= 40 + 10 * caps)
        readIORef refusals >>= (@?= [])
        mapM_ hangUp (idle <> new),
      patientOn on "at limitConnections idle HTTP/2 connections are evicted by a GOAWAY, and those with an open stream are not" . holding (\l -> l {limitConnections = 4}) $ \_ refusals server port -> do
        busy <- connectTo port
        say busy (http2Preface <> held2)
        answersPings busy
        idle <- forM [1 .. 3 :: Int] $ \_ -> do
          client <- connectTo port
          say client http2Preface
          client <$ answersPings client
        -- The times of HTTP/1 connections come from a coarse clock.
        threadDelay 50000
        new <- forM idle $ \oldest -> do
          client <- connectTo port
          get client "/hello" >>= (@?= "hello") . answerBody
          frames <- hearFrames oldest
          assertBool (show frames) (7 `elem` map fst frames)
          answersPings busy
          eventually "the evicted one has ended" ((== 4) <$> serverConnections server)
          pure client
        readIORef refusals >>= (@?= [])
        mapM_ hangUp (busy : idle <> new),
      testOn on "at limitConnections new connections are refused if all are busy" . holding (\l -> l {limitConnections = 4}) $ \held refusals server port -> do
        working <- held port 4
        withClient port $ \client -> handle gone (hearEnd client >>= (@?= ""))
        readIORef refusals >>= (@?= [TooManyConnections])
        released working
        noConnections server,
      testOn on "at limitConnections there is room when a client sees its connection closed" $ do
        folder <- mkdtemp "/tmp/weft-limits-"
        tls <- (certificate folder "test" >>= uncurry loadTls) `finally` removeDirectoryRecursive folder
        forM_ [False, True] $ \secure -> do
          net <- memoryTransport 65536
          l <- transportListen net (SockAddrUnix "")
          -- The client sees the end some time before the server's thread goes on.
          let slowly (Connection ops s) = Connection ops {opClose = \s' -> opClose ops s' >> threadDelay 300000} s
              options =
                defaultOptions
                  { optionTransports = [l {listenerAccept = slowly <$> listenerAccept l}],
                    optionLimits = Just defaultLimits {limitConnections = 1},
                    optionTls = if secure then Just tls else Nothing
                  }
          withServerWith options (quiet defaultSettings) application $ \server -> replicateM_ 3 $ do
            below <- transportConnect net noDeadline (serverAddress server)
            c <- if secure then tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything} "test" below else pure below
            connSendBytes c noDeadline "GET /hello HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
            answer <- allOf c
            assertBool (show answer) ("HTTP/1.1 200" `B.isPrefixOf` answer)
            -- Behind the end of the TLS session.
            when secure (void (allOf below))
            connClose c
    ]
  where
    allOf c = connReceive c noDeadline 65536 >>= \bytes -> if B.null bytes then pure B.empty else (bytes <>) <$> allOf c
    get' client = answerBody <$> hearAnswer client
    with = withApp application
    -- As 'with', and the application answers a request for @/held@ when it may. The first argument of the test opens so
    -- many connections with such a request, and returns them, with the permission, when the application has them all.
    holding change act = do
      begun <- newIORef (0 :: Int)
      permitted <- newEmptyMVar
      let app request respond
            | rawPathInfo request == "/held" = do
              atomicModifyIORef' begun (\n -> (n + 1, ()))
              readMVar permitted
              respond (responseLBS status200 [] "held")
            | otherwise = application request respond
          held port n = do
            clients <- replicateM n (connectTo port)
            forM_ clients $ \client -> ask client "/held" []
            eventually "they work" ((== n) <$> readIORef begun)
            pure (clients, putMVar permitted ())
      withApp app change (act held)
    released (clients, permit) = do
      () <- permit
      forM_ clients $ \client -> hearAnswer client >>= ((@?= "held") . answerBody)
      mapM_ hangUp clients
    withApp app change act = do
      refusals <- newIORef []
      let options =
            defaultOptions
              { optionLimits = Just (change defaultLimits {limitTarget = 1000, limitHead = 4000, limitFields = 20, limitHeadTime = seconds 5}),
                -- A slow handler, so that whatever must happen after it has to wait for it.
                optionOnRefused = \_ r -> replicateM_ 200 yield >> atomicModifyIORef' refusals (\rs -> (r : rs, ()))
              }
      withServerWith options (quiet (setHTTP2Cleartext True (setHost "127.0.0.1" (setPort 0 defaultSettings)))) app $ \server ->
        void (act refusals server (portOf (serverAddress server)))
    gone :: IOException -> IO ()
    gone _ = pure ()

-- | What a client of HTTP\/2 sends first: the preface and empty settings.
http2Preface :: ByteString
http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" <> B.pack [0, 0, 0, 4, 0, 0, 0, 0, 0]

-- | A request for @/held@ on the first stream: GET, http, and the path and the authority as literals.
held2 :: ByteString
held2 = B.pack [0, 0, 13, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x44, 5] <> "/held" <> B.pack [0x41, 2] <> "ab"

-- | The server answers a ping: what was sent before it has been received, and the connection is open.
answersPings :: Client -> Assertion
answersPings client = say client (B.pack ([0, 0, 8, 6, 0, 0, 0, 0, 0] <> replicate 8 1)) >> go
  where
    go = do
      (kind, flags) <- hearFrame client
      if (kind, flags) == (6, 1) then pure () else go

-- | Types and flags of the frames up to the end of the stream.
hearFrames :: Client -> IO [(Word8, Word8)]
hearFrames client = frames <$> hearEnd client
  where
    frames bytes = case oneFrame bytes of
      Just (found, rest) -> found : frames rest
      Nothing -> []

hearFrame :: Client -> IO (Word8, Word8)
hearFrame client = gather client oneFrame

-- | The type and the flags of the first frame, if it is there as a whole, and what follows it.
oneFrame :: ByteString -> Maybe ((Word8, Word8), ByteString)
oneFrame bytes
  | B.length bytes >= 9 && B.length bytes >= size = Just ((B.index bytes 3, B.index bytes 4), B.drop size bytes)
  | otherwise = Nothing
  where
    size = 9 + B.foldl' (\n b -> n * 256 + fromIntegral b) 0 (B.take 3 bytes)

good :: ByteString -> ByteString
good path = "GET " <> path <> " HTTP/1.1\r\nHost: test\r\n\r\n"

pieces :: Int -> ByteString -> [ByteString]
pieces n bytes
  | B.null bytes = []
  | otherwise = B.take n bytes : pieces n (B.drop n bytes)

-- | Bytes that the server must refuse, and the status.
refused :: [(ByteString, Int)]
refused =
  [ ("GET / HTTP/1.1\nHost: h\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET /" <> C.replicate 1000 'x' <> " HTTP/1.1\r\n", 414),
    ("GET / HTTP/1.1\r\nHost: h\r\nA: " <> C.replicate 4000 'x' <> "\r\n\r\n", 431),
    ("GET / HTTP/1.1\r\nHost: h\r\n" <> B.concat (replicate 20 "A: b\r\n") <> "\r\n", 431),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    ("GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505)
  ]
