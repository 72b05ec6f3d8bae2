{-# LANGUAGE OverloadedStrings #-}

-- |
-- Warp's settings, as far as Weft has a hand in them.
module Spec.Settings (tests) where

import Application
import Client
import Configurations
import Control.Exception (IOException, bracket, try)
import Control.Monad (forM_, replicateM_, void)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf)
import Data.String (fromString)
import qualified Network.Socket as N
import System.Directory (doesPathExist, getTemporaryDirectory, removeFile)
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http
import qualified Weft.Socket as W

tests :: Configuration -> TestTree
tests on =
  testGroup
    "settings"
    [ testOn on "onOpen and onClose run once a connection" $ do
        opened <- newIORef (0 :: Int)
        closed <- newIORef (0 :: Int)
        let settings = setOnOpen (\_ -> True <$ count opened) (setOnClose (\_ -> count closed) defaultSettings)
        withQuietServer settings application $ \server port -> do
          replicateM_ 10 (withClient port (\client -> get client "/hello" >> get client "/hello"))
          noConnections server
        readIORef opened >>= (@?= 10)
        readIORef closed >>= (@?= 10),
      testOn on "onOpen may refuse" . withQuietServer (setOnOpen (\_ -> pure False) defaultSettings) application $ \server port -> do
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
      testOn on "beforeMainLoop runs once, when clients can connect" $ do
        ran <- newIORef (0 :: Int)
        withQuietServer (setBeforeMainLoop (count ran) defaultSettings) application $ \_ port -> do
          readIORef ran >>= (@?= 1)
          withClient port (void . (`get` "/hello")),
      testOn on "hosts" . forM_ ["*", "*4", "!4", "*6", "127.0.0.1"] $ \host ->
        withServer (setHost (fromString host) (setPort 0 (quiet defaultSettings))) application $ \server ->
          withClient (portOf (serverAddress server)) $ \client -> do
            answer <- get client "/hello"
            answerBody answer @?= "hello",
      testOn on "IPv6 only" . withServer (setHost (fromString "!6") (setPort 0 (quiet defaultSettings))) application $ \server -> do
        let port = portOf (serverAddress server)
        curl ["-g", "http://[::1]:" <> show port <> "/hello"] >>= (@?= "hello")
        r <- try (withClient port (const (pure ())))
        either (\e -> const (pure ()) (e :: IOException)) (\() -> assertFailure "IPv4 was accepted") r,
      testOn on "a port that is taken is an IOError" . withTestServer $ \_ port -> do
        r <- try (runSettings (setHost (fromString "127.0.0.1") (setPort port defaultSettings)) application)
        either (\e -> const (pure ()) (e :: IOException)) (\() -> assertFailure "listened twice") r,
      testOn on "a Unix socket" $ do
        folder <- getTemporaryDirectory
        let path = folder </> "weft-wai-test.socket"
        bracket (unixListener path) (\_ -> removeFile path) $ \listener ->
          withServerSocket (quiet defaultSettings) listener application $ \_ -> do
            forM_ [1 .. 2 * capabilities on] $ \_ ->
              curl ["--unix-socket", path, "http://localhost/hello"] >>= (@?= "hello"),
      testOn on "withApplication" . withApplication (pure application) $ \port ->
        withClient port $ \client -> do
          answer <- get client "/large?n=100"
          B.length (answerBody answer) @?= 100
    ]
  where
    count ref = atomicModifyIORef' ref (\n -> (n + 1, ()))

unixListener :: FilePath -> IO W.Socket
unixListener path = do
  there <- doesPathExist path
  if there then removeFile path else pure ()
  s <- W.socket N.AF_UNIX N.Stream N.defaultProtocol
  W.bind s (N.SockAddrUnix path)
  W.listen s 16
  pure s
