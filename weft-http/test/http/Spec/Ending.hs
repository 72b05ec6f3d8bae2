{-# LANGUAGE OverloadedStrings #-}

-- |
-- How a server ends: what is under way finishes, what waits is closed, and all of
-- it within bounds.
module Spec.Ending (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async
import Control.Concurrent.MVar
import Control.Exception (IOException, try)
import Control.Monad (void)
import qualified Data.ByteString as B
import Data.String (fromString)
import GHC.Clock (getMonotonicTime)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http
import qualified Weft.Socket as W

tests :: Configuration -> TestTree
tests on =
  testGroup
    "ending"
    [ testOn on "idle connections are closed at once" . withTestServer $ \server port ->
        withClient port $ \client -> do
          void (get client "/hello")
          (drained, took) <- timed (drainServer server (seconds 20))
          drained @?= True
          assertBool ("took " <> show took <> " s") (took < 3)
          hearEnd client >>= (@?= ""),
      testOn on "a slow request is answered, and nobody else is let in" . withTestServer $ \server port ->
        withClient port $ \client -> do
          ask client "/slow?n=700" []
          threadDelay 200000
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            threadDelay 100000
            refused port
            answer <- hearAnswer client
            answerBody answer @?= "slowly"
            hearEnd client >>= (@?= "")
            hangUp client
            wait draining >>= (@?= True),
      testOn on "a response that drips is sent to its end" . withTestServer $ \server port ->
        withClient port $ \client -> do
          ask client "/drip?n=20" []
          threadDelay 200000
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            answer <- hearAnswer client
            B.length (answerBody answer) @?= 20000
            hangUp client
            wait draining >>= (@?= True),
      testOn on "an upload goes on" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
          interim <- hearAnswer client
          answerStatus interim @?= 100
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            threadDelay 300000
            say client "hello"
            threadDelay 300000
            say client "world"
            answer <- hearAnswer client
            answerBody answer @?= "10"
            hangUp client
            wait draining >>= (@?= True),
      testOn on "an upload goes on behind a response that has begun" . withTestServer $ \server port ->
        withClient port $ \client -> do
          say client "POST /both HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhello"
          begun <- hear client
          withAsync (drainServer server (seconds 20)) $ \draining -> do
            threadDelay 300000
            say client "world"
            rest <- hearEnd client
            assertBool (show rest) ("2\r\n10\r\n" `B.isInfixOf` (begun <> rest))
            hangUp client
            wait draining >>= (@?= True),
      testOn on "what takes longer than allowed is dropped" . withTestServer $ \server port ->
        withClient port $ \client -> do
          ask client "/slow?n=60000" []
          threadDelay 100000
          (drained, took) <- timed (drainServer server (milliseconds 500))
          drained @?= False
          assertBool ("took " <> show took <> " s") (took < 5),
      testOn on "the shutdown handler ends runSettings" $ do
        stop <- newEmptyMVar
        ready <- newEmptyMVar
        (port, sock) <- openFreePort
        let settings =
              setInstallShutdownHandler (putMVar stop)
                . setBeforeMainLoop (putMVar ready ())
                . setGracefulShutdownTimeout (Just 10)
                $ quiet defaultSettings
        withAsync (runSettingsSocket settings sock application) $ \running -> do
          within 10 "starting" (takeMVar ready)
          withClient port $ \client -> do
            ask client "/slow?n=400" []
            threadDelay 100000
            within 5 "the handler" (takeMVar stop) >>= id
            answer <- hearAnswer client
            answerBody answer @?= "slowly"
            hangUp client
            within 10 "ending" (wait running)
          refused port,
      testOn on "closing the listening socket ends runSettingsSocket" $ do
        (port, sock) <- openFreePort
        withAsync (runSettingsSocket (quiet defaultSettings) sock application) $ \running -> do
          withClient port $ \client -> do
            answer <- get client "/hello"
            answerBody answer @?= "hello"
            W.close sock
            within 10 "ending" (wait running)
            hearEnd client >>= (@?= ""),
      testOn on "an exception drops everything" $ do
        address <- newEmptyMVar
        let server = setHost (fromString "127.0.0.1") (setPort 0 (quiet defaultSettings))
        running <- async (withServer server application (\s -> putMVar address (serverAddress s) >> waitServer s))
        port <- portOf <$> within 10 "starting" (takeMVar address)
        withClient port $ \client -> do
          ask client "/slow?n=60000" []
          threadDelay 100000
          within 5 "cancelling" (cancel running)
          end <- try (hearEnd client)
          either (\e -> const (pure ()) (e :: IOException)) (@?= "") end
        refused port,
      testOn on "a hundred servers, one after the other" . within 50 "a hundred" $
        mapM_ (\_ -> withTestServer (\_ port -> withClient port (`get` "/hello"))) [1 .. 100 :: Int]
    ]

-- | New connections are refused. Where the kernel is polling a list at the moment,
-- a closed socket goes on listening until it has returned.
refused :: Int -> Assertion
refused port = eventually "new connections are refused" $ do
  r <- try (withClient port (const (pure ())))
  pure (either (\e -> const True (e :: IOException)) (const False) r)

timed :: IO a -> IO (a, Double)
timed act = do
  begin <- getMonotonicTime
  a <- act
  end <- getMonotonicTime
  pure (a, end - begin)
