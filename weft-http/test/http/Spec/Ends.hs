{-# LANGUAGE OverloadedStrings #-}

-- |
-- Every end of an HTTP\/1 connection (the table in @doc\/http.md@) while an answer is still in the kernel's buffer and
-- the client goes on sending: it gets the whole answer. And answers that are broken off do not look complete.
module Spec.Ends (tests) where

import Application (portOf, quiet)
import Client
import Configurations
import Control.Concurrent (forkIO, myThreadId, threadDelay)
import Control.Concurrent.Async (mapConcurrently, race)
import Control.Concurrent.MVar
import Control.Exception (AsyncException (ThreadKilled), IOException, bracket, finally, throwIO, throwTo, try)
import Control.Monad (forM_, forever, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.Maybe (catMaybes)
import GHC.IO.Exception (IOErrorType (ResourceVanished), IOException (ioe_type))
import Network.HTTP.Types (status200, status413)
import Network.Wai
import Spec.Secure (certificate)
import System.Directory (removeDirectoryRecursive)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http
import qualified Weft.Socket as W
import Weft.Tls
import Weft.Transport hiding (Instant)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "ends of connections"
    [ testOn on "an answer that is under way arrives, whatever ends the connection" (arrives False ends),
      patientOn on "and over TLS" (arrives True ends),
      testOn on "an answer to HTTP/1.0 without a length that is broken off ends with an error" . withCutting $ \_ port ->
        forM_ ["/throws", "/killed"] $ \path -> withClient port $ \client -> do
          say client ("GET " <> path <> " HTTP/1.0\r\n\r\n")
          broken client >>= (@?= True) . snd,
      testOn on "also when the server's time for a shutdown is over" $ do
        client <- withCutting $ \server port -> do
          client <- connectTo port
          say client "GET /grace HTTP/1.0\r\n\r\n"
          begun <- hear client
          assertBool (show begun) ("begun" `B.isSuffixOf` begun)
          client <$ (drainServer server (milliseconds 100) >>= (@?= False))
        (broken client >>= (@?= True) . snd) `finally` hangUp client,
      testOn on "an answer in chunks that is broken off has no last chunk" . withCutting $ \_ port ->
        forM_ ["/throws", "/killed", "/builder"] $ \path -> withClient port $ \client -> do
          say client ("GET " <> path <> " HTTP/1.1\r\nHost: h\r\n\r\n")
          (heard, _) <- broken client
          assertBool (show heard) ("HTTP/1.1 200" `B.isPrefixOf` heard && not ("0\r\n\r\n" `B.isSuffixOf` heard)),
      testOn on "over TLS an answer that is broken off ends without close_notify" . secured $ \tls -> withServerWith defaultOptions {optionTls = Just tls} local cutting $ \server ->
        forM_ [(path, version) | path <- ["/throws", "/killed"], version <- ["1.0", "1.1"]] $ \(path, version) -> do
          peer <- securePeer (portOf (serverAddress server))
          peerSay peer ("GET " <> path <> " HTTP/" <> version <> "\r\nHost: h\r\n\r\n")
          ended <- try (untilEnd peer) :: IO (Either IOException ByteString)
          either (const (pure ())) (\bytes -> assertFailure ("an orderly end after " <> show bytes)) ended `finally` peerClose peer
    ]

-- | All bytes, and whether the connection was reset.
broken :: Client -> IO (ByteString, Bool)
broken client = go ""
  where
    go have = do
      heard <- try (hear client)
      case heard of
        Left e | ioe_type e == ResourceVanished -> pure (have, True)
        Left e -> ioError e
        Right "" -> pure (have, False)
        Right bytes -> go (have <> bytes)

withCutting :: (Server -> Int -> IO a) -> IO a
withCutting act = withServerWith defaultOptions local cutting (\server -> act server (portOf (serverAddress server)))

-- | Answers that are broken off.
cutting :: Application
cutting request respond = case rawPathInfo request of
  "/builder" -> respond (responseBuilder status200 [] (foldMap (const "0123456789") [1 .. 10000 :: Int] <> error "on purpose"))
  path -> respond . responseStream status200 [] $ \write flush -> do
    write "begun" >> flush
    case path of
      "/throws" -> throwIO (userError "on purpose")
      "/killed" -> do
        self <- myThreadId
        void (forkIO (throwTo self ThreadKilled))
        forever (threadDelay 1000000)
      _ -> forever (threadDelay 1000000)

-- Answers under way ------------------------------------------------------------------------

-- | An end: its name, the server's limits and timeout, how long the client takes for a piece of the answer in
-- microseconds, the first request, what makes the connection end once it was answered, and what the client sends again
-- and again afterwards.
data End = End String Limits Int Int ByteString (Server -> Peer -> IO ()) ByteString

ends :: [End]
ends =
  [ End "a drain" usual 30 60000 whole (\server _ -> void (forkIO (void (drainServer server (seconds 60))))) more,
    End "the limit on requests" usual {limitRequests = 1} 30 60000 whole nothing more,
    End "the application's Connection: close" usual 30 60000 "GET /close HTTP/1.1\r\nHost: h\r\n\r\n" nothing more,
    End "a raw connection that ends" usual 30 60000 "GET /raw HTTP/1.1\r\nHost: h\r\n\r\n" nothing more,
    End "an answer before the body has come" usual 30 60000 "POST /413 HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n" nothing (B.replicate 1000 97),
    End "an HTTP/1.0 client that keeps alive, no length" usual 30 60000 "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" nothing more,
    End "a bad request" usual 30 60000 whole (\_ peer -> peerSay peer "nonsense\r\n\r\n") more,
    End "the idle time" usual {limitIdle = milliseconds 300} 30 60000 whole nothing' more,
    End "the time for a head" usual {limitHeadTime = seconds 4} 30 130000 whole (\_ peer -> peerSay peer "GET /none HTTP/1.1\r\nX: ") "y",
    End "the time for a body" usual 3 100000 whole (\_ peer -> peerSay peer "POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n") "y",
    End "room for another connection" usual {limitConnections = 1} 30 60000 whole (\server _ -> withClient (portOf (serverAddress server)) (const (threadDelay 300000))) more,
    End "an exception in the next answer" usual 30 60000 whole (\_ peer -> peerSay peer "GET /cut HTTP/1.1\r\nHost: h\r\n\r\n") more
  ]
  where
    usual = defaultLimits
    whole = "GET /big HTTP/1.1\r\nHost: h\r\n\r\n"
    more = "GET /none HTTP/1.1\r\nHost: h\r\n\r\n"
    nothing _ _ = pure ()
    -- Silent until the idle time is over.
    nothing' _ _ = threadDelay 1000000

-- | The connection ends in each of these ways; at the same time, since each takes seconds.
arrives :: Bool -> [End] -> Assertion
arrives secure which = secured $ \tls -> do
  wrong <- mapConcurrently (one tls) which
  catMaybes wrong @?= []
  where
    one tls (End name limits timeout pace request trigger more) = do
      sent <- newEmptyMVar
      let options = defaultOptions {optionLimits = Just limits, optionTls = if secure then Just tls else Nothing}
      withServerWith options (setTimeout timeout local) (answering sent) $ \server -> do
        peer <- (if secure then securePeer else plainPeer) (portOf (serverAddress server))
        peerSay peer request
        got <- newIORef (0 :: Int)
        -- Slowly enough for the connection to end meanwhile.
        let reading = do
              heard <- try (peerHear peer)
              case heard of
                Left e -> pure (show (e :: IOException))
                Right "" -> pure "the end"
                Right bytes -> do
                  modifyIORef' got (+ C.count 'x' bytes)
                  have <- readIORef got
                  if have >= size then pure "" else threadDelay pace >> reading
            asking = do
              within 60 "an answer" (readMVar sent)
              trigger server peer
              forever $ do
                said <- try (peerSay peer more) :: IO (Either IOException ())
                threadDelay (either (const 1000000) (const 20000) said)
        outcome <- within 120 name (race asking reading)
        have <- readIORef got
        peerClose peer
        pure (if have >= size then Nothing else Just (name <> ": " <> show have <> " of " <> show size <> " bytes, then " <> either id id outcome))

size :: Int
size = 3000000

-- | Answers with as many bytes, and says when they have been sent.
answering :: MVar () -> Application
answering sent request respond = case rawPathInfo request of
  "/big" -> respond (responseLBS status200 [] body) <* told
  "/close" -> respond (responseLBS status200 [("Connection", "close")] body) <* told
  "/413" -> respond (responseLBS status413 [] body) <* told
  "/raw" -> respond (responseRaw (\_ send -> send (L.toStrict body) <* told) (responseLBS status200 [] ""))
  "/stream" -> respond (responseStream status200 [] (\write _ -> forM_ (L.toChunks body) (write . byteString))) <* told
  "/cut" -> respond (responseStream status200 [] (\write flush -> write "begun" >> flush >> throwIO (userError "on purpose")))
  "/upload" -> strictRequestBody request >> respond (responseLBS status200 [] "")
  _ -> respond (responseLBS status200 [] "-")
  where
    body = L.replicate (fromIntegral size) 120
    told = void (tryPutMVar sent ())

-- Peers --------------------------------------------------------------------------------------

-- | A client that reads from a narrow window. An empty string is the orderly end of the stream.
data Peer = Peer {peerSay :: ByteString -> IO (), peerHear :: IO ByteString, peerClose :: IO ()}

plainPeer :: Int -> IO Peer
plainPeer = fmap peerOver . narrow

securePeer :: Int -> IO Peer
securePeer port = narrow port >>= fmap peerOver . tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything} "localhost"

peerOver :: Connection -> Peer
peerOver c = Peer (\bytes -> soon >>= \t -> connSendBytes c t bytes) (soon >>= \t -> connReceive c t 65536) (connClose c)
  where
    soon = deadlineIn (seconds 60)

narrow :: Int -> IO Connection
narrow port = do
  sock <- W.socket W.AF_INET W.Stream W.defaultProtocol
  W.setSocketOption sock W.RecvBuffer 65536
  let address = W.SockAddrInet (fromIntegral port) (W.tupleToHostAddress (127, 0, 0, 1))
  W.connect sock address
  pure (socketConnection sock address)

untilEnd :: Peer -> IO ByteString
untilEnd peer = peerHear peer >>= \bytes -> if B.null bytes then pure "" else (bytes <>) <$> untilEnd peer

local :: Settings
local = quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))

-- | Run an action with a server's TLS.
secured :: (TlsServer -> IO a) -> IO a
secured act = bracket (mkdtemp "/tmp/weft-ends-") removeDirectoryRecursive $ \folder -> certificate folder "test" >>= uncurry loadTls >>= act
