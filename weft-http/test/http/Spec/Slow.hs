{-# LANGUAGE OverloadedStrings #-}

-- |
-- Slow clients: some must be disconnected, but not before the limit; others must be served. The limit is two seconds
-- in most tests, whose pauses leave time for a busy machine. The clients of a test run at the same time.
module Spec.Slow (tests) where

import Application
import Client
import Configurations
import Control.Concurrent
import Control.Concurrent.Async (forConcurrently_)
import Control.Exception (IOException, bracket, finally, handle, try)
import Control.Monad (forM_, forever, replicateM, replicateM_, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import GHC.Clock (getMonotonicTime)
import Network.HTTP.Types (status200, status500)
import qualified Network.Socket as N
import qualified Network.Socket.ByteString as N
import Network.Wai (Application, responseFile, responseLBS, responseRaw)
import System.Directory (removeDirectoryRecursive)
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http
import qualified Weft.Socket as W
import Weft.Transport (isTimeout)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "slow clients"
    [ testOn on "clients that are too slow are disconnected after the limit, and onException is not called" $ do
        heard <- newIORef []
        withHearing heard (setTimeout 1 defaultSettings) $ \server port -> do
          forConcurrently_ tooSlow $ \(what, beginning, going) -> do
            -- Before the connection, so that the server's time cannot begin earlier.
            t0 <- getMonotonicTime
            withClient port $ \client -> do
              say client beginning
              t <- forkIO (handle gone (going client))
              _ <- within 20 what (ignoringReset (hearEnd client))
              t1 <- getMonotonicTime
              killThread t
              assertBool (what <> ": disconnected after " <> show (t1 - t0) <> " s") (t1 - t0 >= 0.99)
          noConnections server
        readIORef heard >>= (@?= []),
      patientOn on "clients that read nothing are disconnected" . withQuietServer impatient application $ \server port -> do
        clients <- mapM (const (connectTo port)) [1 .. 3 :: Int]
        forM_ (zip clients ["/large?n=50000000", "/chunks", "/large?n=20000000"]) $ \(client, path) -> ask client path []
        eventually "a connection is counted" ((>= 1) <$> serverConnections server)
        noConnections server
        mapM_ hangUp clients,
      patientOn on "a client that takes part of a response over HTTP/2 and then nothing is disconnected" . withQuietServer (setHTTP2Cleartext True impatient) application $ \server port ->
        -- HTTP/2 with prior knowledge, and a GET of a path (a literal of 17 bytes) from an authority (one byte).
        withClient port $ \client -> do
          say client ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" <> B.pack [0, 0, 0, 4, 0, 0, 0, 0, 0])
          say client (B.pack [0, 0, 24, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x04, 17] <> "/large?n=50000000" <> B.pack [0x41, 1, 0x61])
          -- The window of the protocol has 65,535 bytes.
          bytes <- within 60 "the end of the stream" (hearMore client 0)
          assertBool (show bytes) (bytes > 65535 && bytes < 70000)
          noConnections server,
      testOn on "an application that has taken over the connection of a client that neither sends nor takes anything sees a timeout" $ do
        found <- newEmptyMVar
        let app _ respond = respond (responseRaw talk (responseLBS status500 [] ""))
            talk receive send = do
              received <- try receive
              -- The connection is closed by then.
              sent <- try (send "late")
              putMVar found [either isTimeout (const False) received, either isTimeout (const False) sent]
        withQuietServer (setTimeout 1 defaultSettings) app $ \server port -> do
          withClient port $ \client -> do
            ask client "/" ["Upgrade: talk", "Connection: upgrade"]
            within 20 "the application's errors" (takeMVar found) >>= (@?= [True, True])
          noConnections server,
      patientOn on "clients that are slow, but fast enough, are served" . withQuietServer impatient application $ \server port -> do
        forConcurrently_ (fastEnough port) (uncurry (within 50))
        noConnections server,
      patientOn on "a slow reader of a file is served: every part that it takes counts" . withFileOf 16000000 $ \fileOf ->
        withQuietServer impatient fileOf $ \server port -> do
          withClient port $ \client -> ask client "/" [] >> slowReading client
          noConnections server,
      -- With the limit of four seconds, in which it takes less than a slice. (A shorter one can pass in vain: when the
      -- window is closed, TCP sends a probe after 0.2, 0.4, 0.8 and 1.6 s, and a piece of 64 KiB makes room only when
      -- all of it is read.)
      patientOn on "a reader that takes longer than the limit for a slice of a file is served until it stops" . withFileOf 16000000 $ \fileOf ->
        withQuietServer (setTimeout 4 defaultSettings) fileOf $ \server port -> do
          withNarrowClient 65536 port $ \client -> do
            ask client "/" []
            taken <- sum <$> replicateM 24 (threadDelay 250000 >> hearSome client 40000)
            rest <- hearSome client (16000000 - taken)
            assertBool ("only " <> show (taken + rest)) (taken + rest >= 16000000)
          withNarrowClient 65536 port $ \client -> do
            ask client "/" []
            replicateM_ 6 (threadDelay 250000 >> hearSome client 40000)
            noConnections server,
      patientOn on "on a Unix socket, where the server cannot tell what a client has taken, a slow reader is served" . withFileOf 1600000 $ \fileOf -> do
        folder <- mkdtemp "/tmp/weft-slow-"
        flip finally (removeDirectoryRecursive folder) $ do
          let path = folder </> "socket"
          listener <- W.socket N.AF_UNIX N.Stream N.defaultProtocol
          W.bind listener (N.SockAddrUnix path)
          W.listen listener 16
          withServerSocket (quiet impatient) listener fileOf $ \_ ->
            bracket (N.socket N.AF_UNIX N.Stream N.defaultProtocol) N.close $ \s -> do
              N.connect s (N.SockAddrUnix path)
              N.sendAll s "GET / HTTP/1.1\r\nHost: test\r\n\r\n"
              let go n
                    | n >= 1600000 = pure n
                    | otherwise = do
                      when (n `div` 100000 < (n + 65536) `div` 100000) (threadDelay 150000)
                      bytes <- within 50 "receiving" (N.recv s 65536)
                      if B.null bytes then pure n else go (n + B.length bytes)
              taken <- go (0 :: Int)
              assertBool ("only " <> show taken) (taken >= 1600000),
      patientOn on "a timeout of 0 is no limit" . withQuietServer (setTimeout 0 defaultSettings) application $ \_ port ->
        withClient port $ \client -> do
          say client "GET /hello HTTP/1.1\r\n"
          threadDelay 1500000
          say client "Host: test\r\n\r\n"
          answer <- hearAnswer client
          answerBody answer @?= "hello"
    ]
  where
    impatient = setTimeout 2 defaultSettings
    withHearing heard settings act =
      withServer (hearing heard (setHost "127.0.0.1" (setPort 0 settings))) application $ \server ->
        act server (portOf (serverAddress server))
    hearing heard = setOnException $ \_ e ->
      when (defaultShouldDisplayException e) (atomicModifyIORef' heard (\es -> (show e : es, ())))
    gone :: IOException -> IO ()
    gone _ = pure ()

-- | Clients that must time out: a name, what each sends first, and what it does then.
tooSlow :: [(String, ByteString, Client -> IO ())]
tooSlow =
  [ ("silent", "", silent),
    ("half a head", "GET /hello HTTP/1.1\r\nHost: te", silent),
    ("a head byte by byte", "GET /hello HTTP/1.1\r\n", \client -> forever (threadDelay 200000 >> say client "x")),
    ("silent after a response", "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n", silent),
    ("no body", post "count" 100000, silent),
    ("half a body", post "count" 100000 <> B.replicate 50000 120, silent),
    ("a body byte by byte", post "count" 100000, \client -> forever (threadDelay 200000 >> say client "x")),
    ("silence on a raw connection", "GET /raw HTTP/1.1\r\nHost: test\r\n\r\n", silent)
  ]
  where
    silent _ = pure ()

-- | Clients that must not time out, with a limit of two seconds. Each takes longer than that.
fastEnough :: Int -> [(String, IO ())]
fastEnough port =
  [ ( "a slow application",
      withClient port $ \client -> do
        ask client "/slow?n=2800" []
        answer <- hearAnswer client
        answerBody answer @?= "slowly"
    ),
    ( "an application that goes on after its response",
      withClient port $ \client -> do
        ask client "/after?n=3500" []
        answer <- hearAnswer client
        answerBody answer @?= "early"
        next <- get client "/hello"
        answerBody next @?= "hello"
    ),
    ( "a body in large pieces, with pauses",
      withClient port $ \client -> do
        say client (post "count" 20000)
        replicateM_ 5 (threadDelay 500000 >> say client (B.replicate 4000 120))
        answer <- hearAnswer client
        answerBody answer @?= "20000"
    ),
    ( "a slow reader",
      withClient port $ \client -> do
        ask client "/large?n=16000000" []
        slowReading client
    ),
    ( "a stream with pauses",
      withClient port $ \client -> do
        ask client "/drip?n=60" []
        answer <- hearAnswer client
        B.length (answerBody answer) @?= 60000
    ),
    ( "one request after the other, with pauses",
      withClient port $ \client -> replicateM_ 4 $ do
        threadDelay 600000
        answer <- get client "/hello"
        answerBody answer @?= "hello"
    ),
    ( "a raw connection with pauses",
      withClient port $ \client -> do
        ask client "/raw" []
        _ <- hear client
        forM_ ["a", "b", "c", "bye"] $ \word -> do
          threadDelay 600000
          say client word
          hear client >>= (@?= word)
    )
  ]

-- | Receive 16,000,000 bytes, for longer than the limit, with pauses that are shorter.
slowReading :: Client -> IO ()
slowReading client = do
  -- Each time enough bytes to reopen the TCP window.
  replicateM_ 6 $ do
    threadDelay 400000
    some <- hearSome client 2000000
    assertBool ("the end after " <> show some) (some >= 2000000)
  rest <- hearSome client 3500000
  assertBool ("only " <> show rest) (rest >= 3500000)

post :: ByteString -> Int -> ByteString
post path n = "POST /" <> path <> " HTTP/1.1\r\nHost: test\r\nContent-Length: " <> C.pack (show n) <> "\r\n\r\n"

-- | An application that responds with a file of the given number of bytes.
withFileOf :: Int -> (Application -> IO a) -> IO a
withFileOf size act = bracket (mkdtemp "/tmp/weft-slow-") removeDirectoryRecursive $ \folder -> do
  let path = folder </> "file"
  B.writeFile path (B.replicate size 120)
  act (\_ respond -> respond (responseFile status200 [] path Nothing))

-- | Receive until the given number of bytes has arrived, or the stream ends. Returns the number of bytes.
hearSome :: Client -> Int -> IO Int
hearSome client enough = go 0
  where
    go n
      | n >= enough = pure n
      | otherwise = do
        bytes <- hear client
        if B.null bytes then pure n else go (n + B.length bytes)

-- | Receive until the connection ends; the number of bytes, after those before.
hearMore :: Client -> Int -> IO Int
hearMore client n = do
  more <- try (hear client) :: IO (Either IOException ByteString)
  either (const (pure n)) (\bytes -> if B.null bytes then pure n else hearMore client (n + B.length bytes)) more

-- | A connection with unread data ends with a reset when it is closed.
ignoringReset :: IO a -> IO ()
ignoringReset act = void (try (void act) :: IO (Either IOException ()))
