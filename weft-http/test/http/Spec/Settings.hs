{-# LANGUAGE OverloadedStrings #-}

-- |
-- Those of Warp's settings that Weft implements itself.
module Spec.Settings (tests) where

import Application
import Client
import Configurations
import Control.Exception (AsyncException (ThreadKilled), IOException, bracket, throwIO, toException, try)
import Control.Monad (forM_, replicateM_, void)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf)
import Data.String (fromString)
import Foreign.C.Error (eCONNRESET, ePROTO, eSTALE, errnoToIOError)
import qualified Network.Socket as N
import System.Directory (getTemporaryDirectory, removeFile, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http
import qualified Weft.Socket as W
import Weft.Test.Skip (skipUnless)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "settings"
    [ testOn on "onOpen and onClose run once for each connection" $ do
        opened <- newIORef (0 :: Int)
        closed <- newIORef (0 :: Int)
        let settings = setOnOpen (\_ -> True <$ count opened) (setOnClose (\_ -> count closed) defaultSettings)
        withQuietServer settings application $ \server port -> do
          replicateM_ 10 (withClient port (\client -> get client "/hello" >> get client "/hello"))
          noConnections server
        readIORef opened >>= (@?= 10)
        readIORef closed >>= (@?= 10),
      testOn on "onOpen can refuse a connection" . withQuietServer (setOnOpen (\_ -> pure False) defaultSettings) application $ \server port -> do
        withClient port $ \client -> do
          ask client "/hello" []
          end <- try (hearEnd client)
          either (\e -> const (pure ()) (e :: IOException)) (@?= "") end
        noConnections server,
      testOn on "onException gets the application's exceptions" $ do
        heard <- newIORef []
        let settings = setOnException (\_ e -> atomicModifyIORef' heard (\es -> (show e : es, ()))) defaultSettings
        withServer (setHost (fromString "127.0.0.1") (setPort 0 settings)) application $ \server ->
          withClient (portOf (serverAddress server)) (`get` "/fail") >>= \answer -> answerStatus answer @?= 500
        eventually "it is told" (any ("on purpose" `isInfixOf`) <$> readIORef heard),
      testOn on "an asynchronous exception of the application is no answer: the connection is closed" . withQuietServer defaultSettings (\_ _ -> throwIO ThreadKilled) $ \server port -> do
        withClient port $ \client -> do
          ask client "/hello" []
          end <- try (hearEnd client)
          either (\e -> const (pure ()) (e :: IOException)) (@?= "") end
        noConnections server,
      testOn on "errors of clients are not displayed, those of files are" $ do
        let shown = defaultShouldDisplayException . toException . errnoToIOError "here" eSTALE Nothing
            gone = [defaultShouldDisplayException (toException (errnoToIOError "here" errno Nothing Nothing)) | errno <- [eCONNRESET, ePROTO]]
        (shown (Just "/srv/file"), shown Nothing, gone) @?= (True, False, [False, False]),
      testOn on "beforeMainLoop has run once when the server is started" $ do
        ran <- newIORef (0 :: Int)
        withQuietServer (setBeforeMainLoop (count ran) defaultSettings) application $ \_ port -> do
          readIORef ran >>= (@?= 1)
          withClient port (void . (`get` "/hello")),
      testOn on "IPv4 clients are served with the host patterns *, *4, !4 and *6" . forM_ ["*", "*4", "!4", "*6", "127.0.0.1"] $ \host ->
        withServer (setHost (fromString host) (setPort 0 (quiet defaultSettings))) application $ \server ->
          withClient (portOf (serverAddress server)) $ \client -> do
            answer <- get client "/hello"
            answerBody answer @?= "hello",
      testOn on "the host pattern !4 accepts IPv4 only" . withServer (setHost (fromString "!4") (setPort 0 (quiet defaultSettings))) application $ \server -> do
        (code, _, _) <- readProcessWithExitCode "curl" ["-sS", "--noproxy", "*", "--max-time", "60", "-g", "http://[::1]:" <> show (portOf (serverAddress server)) <> "/hello"] ""
        -- It cannot connect.
        code @?= ExitFailure 7,
      testOn on "the host pattern !6 accepts IPv6 only" . (onIpv6 >>) . withServer (setHost (fromString "!6") (setPort 0 (quiet defaultSettings))) application $ \server -> do
        let port = portOf (serverAddress server)
        curl ["-g", "http://[::1]:" <> show port <> "/hello"] >>= (@?= "hello")
        r <- try (withClient port (const (pure ())))
        either (\e -> const (pure ()) (e :: IOException)) (\() -> assertFailure "IPv4 was accepted") r,
      testOn on "listening on a port that is in use throws an IOException" . withTestServer $ \_ port -> do
        r <- try (runSettings (setHost (fromString "127.0.0.1") (setPort port defaultSettings)) application)
        either (\e -> const (pure ()) (e :: IOException)) (\() -> assertFailure "listened twice") r,
      testOn on "a server on a Unix socket" . bracket (getTemporaryDirectory >>= \dir -> mkdtemp (dir </> "weft-wai-")) removePathForcibly $ \folder -> do
        let path = folder </> "socket"
        bracket (unixListener path) (\_ -> removeFile path) $ \listener ->
          withServerSocket (quiet defaultSettings) listener application $ \_ -> do
            forM_ [1 .. 2 * capabilities on] $ \_ ->
              curl ["--unix-socket", path, "http://localhost/hello"] >>= (@?= "hello"),
      testOn on "withApplication serves on a free port" . withApplication (pure application) $ \port ->
        withClient port $ \client -> do
          answer <- get client "/large?n=100"
          B.length (answerBody answer) @?= 100
    ]
  where
    count ref = atomicModifyIORef' ref (\n -> (n + 1, ()))
    onIpv6 = do
      there <- try . bracket (N.socket N.AF_INET6 N.Stream N.defaultProtocol) N.close $ \s -> N.bind s (N.SockAddrInet6 0 0 (0, 0, 0, 1) 0)
      skipUnless "no IPv6" (either (\e -> const False (e :: IOException)) (\() -> True) there)

unixListener :: FilePath -> IO W.Socket
unixListener path = do
  s <- W.socket N.AF_UNIX N.Stream N.defaultProtocol
  W.bind s (N.SockAddrUnix path)
  W.listen s 16
  pure s
