{-# LANGUAGE OverloadedStrings #-}

-- |
-- TLS and HTTP\/2 over TLS, with the clients @curl@ and @openssl@.
module Spec.Secure (tests, certificate) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (forConcurrently_, withAsync)
import Control.Exception (IOException, bracket, handle, try)
import Control.Monad (forM_, replicateM, void)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf, isPrefixOf, sort)
import Network.Wai (Application)
import System.Directory (removeDirectoryRecursive)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "TLS"
    [ testOn on "HTTP/2 by ALPN, HTTP/1.1 for clients that ask for it" . secure id application $ \_ _ port ask' -> do
        fetch port ask' "/hello" ["-w", " %{http_version}"] >>= (@?= "hello 2")
        fetch port ask' "/hello" ["--http1.1", "-w", " %{http_version}"] >>= (@?= "hello 1.1")
        fetch port ask' "/hello" ["--no-alpn", "-w", " %{http_version}"] >>= (@?= "hello 1.1")
        fetch port ask' "/hello" ["--tls-max", "1.2", "-w", " %{http_version}"] >>= (@?= "hello 2"),
      testOn on "HTTP/2 that is disabled is not offered" . withFolder $ \folder -> do
        files <- certificate folder "test"
        tls <- uncurry loadTls files
        withServerWith defaultOptions {optionTls = Just tls} (quiet (setHTTP2Disabled (setHost "127.0.0.1" (setPort 0 defaultSettings)))) application $ \server ->
          fetch (portOf (serverAddress server)) files "/hello" ["--http2", "-w", " %{http_version}"] >>= (@?= "hello 1.1"),
      testOn on "fields that are too large are refused as such, by either version" . secure (\l -> l {limitHead = 4096}) application $ \refusals _ port (ca, _) -> do
        forM_ ["--http2", "--http1.1"] $ \version ->
          void (within 30 "curl" (readProcessWithExitCode "curl" ["-sS", "--cacert", ca, version, "-H", "X-Large: " <> replicate 20000 'x', "https://localhost:" <> show port <> "/hello"] ""))
        eventually "both are refused" ((== [HeadTooLarge, HeadTooLarge]) <$> readIORef refusals),
      testOn on "large answers and bodies" . withFolder $ \folder -> secure id application $ \_ _ port ask' -> forM_ ["--http2", "--http1.1"] $ \version -> do
        B.writeFile (folder </> "body") (filler 300000)
        text <- fetch port ask' "/large?n=3000000" [version, "-w", " %{size_download}", "-o", "/dev/null"]
        text @?= " 3000000"
        fetch port ask' "/count" [version, "--data-binary", "@" <> folder </> "body"] >>= (@?= "300000")
        chunks <- fetch port ask' "/chunks" [version]
        length (lines chunks) @?= 100,
      testOn on "many at once on one connection" . secure id application $ \_ _ port (ca, _) -> do
        let urls = concat [["https://localhost:" <> show port <> "/large?n=" <> show (1000 * n), "-o", "/dev/null"] | n <- [1 .. 60 :: Int]]
        text <- curl (["--cacert", ca, "--parallel", "--http2", "-w", "%{http_code} %{size_download}\n"] <> urls)
        sort (lines text) @?= sort ["200 " <> show (1000 * n) | n <- [1 .. 60 :: Int]],
      testOn on "files, whole and in part" . withFolder $ \folder -> do
        B.writeFile (folder </> "small") (filler 1000)
        B.writeFile (folder </> "large") (filler 2000000)
        withStatic defaultStaticSettings folder $ \static -> secure id (staticApp static) $ \_ _ port ask' ->
          forM_ ["--http2", "--http1.1"] $ \version -> do
            forM_ [("/small", 1000), ("/large", 2000000)] $ \(path, n) -> do
              void (fetch port ask' path [version, "-o", folder </> "got"])
              B.readFile (folder </> "got") >>= \got -> assertBool path (got == filler n)
            void (fetch port ask' "/large" [version, "-r", "1500000-1599999", "-o", folder </> "got"])
            B.readFile (folder </> "got") >>= \got -> assertBool "a part" (got == B.take 100000 (B.drop 1500000 (filler 2000000))),
      testOn on "a client without TLS gets an explanation" . secure id application $ \refusals server port _ -> do
        withClient port $ \client -> do
          say client "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
          answer <- hearAnswer client
          answerStatus answer @?= 400
          assertBool (show answer) ("https://" `B.isInfixOf` answerBody answer)
        withClient port $ \client -> do
          -- A handshake message of a type that does not exist.
          say client "\x16\x03\x01\x00\x04\x63\x00\x00\x00"
          void (handle gone (void (hearEnd client)))
        noConnections server
        readIORef refusals >>= (@?= [HandshakeFailed, HandshakeFailed]),
      testOn on "a handshake that does not come is not waited for" . secure (\l -> l {limitHeadTime = milliseconds 500}) application $ \refusals server port _ -> do
        forConcurrently_ ["", "\x16", "\x16\x03\x01\x02\x00\x01"] $ \bytes -> withClient port $ \client -> do
          say client bytes
          void (handle gone (void (hearEnd client)))
        noConnections server
        readIORef refusals >>= (@?= replicate 3 HeadTooSlow),
      testOn on "handshakes that do not end do not keep others out" . secure (\l -> l {limitConnections = 10}) application $ \_ server port ask' ->
        bracket (replicateM 10 (connectTo port)) (mapM_ hangUp) $ \_ -> do
          eventually "it is full" ((== 10) <$> serverConnections server)
          forM_ [1 .. 12 :: Int] $ \_ -> fetch port ask' "/hello" [] >>= (@?= "hello"),
      testOn on "limits hold within" . secure (\l -> l {limitHeadTime = milliseconds 700}) application $ \refusals server port _ -> do
        (_, out, _) <- openssl ["s_client", "-quiet", "-connect", "localhost:" <> show port] "GET / HTTP/1.1\nHost: h\r\n\r\n"
        assertBool out ("HTTP/1.1 400" `isInfixOf` out)
        void (openssl ["s_client", "-quiet", "-connect", "localhost:" <> show port] "GET / HTTP/1.1\r\n")
        noConnections server
        eventually "both are refused" ((== [HeadTooSlow, BadRequest]) <$> readIORef refusals),
      testOn on "the end of the stream is announced" . secure id application $ \_ _ port _ -> do
        (_, out, err) <- openssl ["s_client", "-msg", "-ign_eof", "-connect", "localhost:" <> show port] "GET /ignore HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        assertBool (out <> err) (any (\line -> "<<<" `isPrefixOf` line && "close_notify" `isInfixOf` line) (lines out)),
      testOn on "it ends well" . secure id application $ \_ server port ask' ->
        withAsync (fetch port ask' "/slow?n=700" []) $ \_ -> do
          eventually "it is asked" ((== 1) <$> serverConnections server)
          threadDelay 300000
          drained <- within 9 "the end" (drainServer server (seconds 8))
          drained @?= True,
      testOn on "another certificate, while it runs" . withFolder $ \folder -> do
        (ca, key) <- certificate folder "one"
        tls <- loadTls ca key
        withServerWith defaultOptions {optionTls = Just tls} (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) application $ \server -> do
          let port = portOf (serverAddress server)
          fetch port (ca, key) "/hello" [] >>= (@?= "hello")
          (ca2, key2) <- certificate folder "two"
          -- Half of it is there: what was before stays.
          B.readFile ca2 >>= B.writeFile ca
          failed <- try (reloadTlsServer tls)
          assertBool "it is refused" (either (\e -> "is not the key" `isInfixOf` show (e :: IOException)) (const False) failed)
          B.readFile key2 >>= B.writeFile key
          reloadTlsServer tls
          fetch port (ca2, key2) "/hello" [] >>= (@?= "hello"),
      testOn on "files that are none" . withFolder $ \folder -> do
        (ca, key) <- certificate folder "good"
        let empty = folder </> "empty"
            rubbish = folder </> "rubbish"
        B.writeFile empty ""
        B.writeFile rubbish "-----BEGIN PRIVATE KEY-----\nrubbish\n-----END PRIVATE KEY-----\n"
        forM_ [(folder </> "none", key, "none"), (ca, folder </> "none", "none"), (empty, key, "no certificate"), (ca, empty, "no private key"), (key, ca, "no certificate"), (ca, rubbish, "rubbish")] $
          \(chain, private, words') -> do
            loaded <- try (loadTls chain private)
            case loaded of
              Left e -> assertBool (show e) (words' `isInfixOf` show (e :: IOException))
              Right _ -> assertFailure ("loaded: " <> show (chain, private))
    ]
  where
    gone :: IOException -> IO ()
    gone _ = pure ()
    fetch port (ca, _) path more = curl (["--cacert", ca, "https://localhost:" <> show (port :: Int) <> path] <> more)

-- | A server with TLS, the refusals that it reports (the last first), and its certificate
-- with the key.
secure :: (Limits -> Limits) -> Application -> (IORef [Refusal] -> Server -> Int -> (FilePath, FilePath) -> IO ()) -> IO ()
secure change app act = withFolder $ \folder -> do
  files <- certificate folder "test"
  tls <- uncurry loadTls files
  refusals <- newIORef []
  let options =
        defaultOptions
          { optionTls = Just tls,
            optionLimits = Just (change defaultLimits),
            optionOnRefused = \_ r -> atomicModifyIORef' refusals (\rs -> (r : rs, ()))
          }
  withServerWith options (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) app $ \server ->
    act refusals server (portOf (serverAddress server)) files

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/tmp/weft-tls-") removeDirectoryRecursive

-- | A new certificate for localhost, and its key.
certificate :: FilePath -> String -> IO (FilePath, FilePath)
certificate folder name = do
  let ca = folder </> name <> ".pem"
      key = folder </> name <> ".key"
  (code, _, err) <-
    openssl
      ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", ca]
      ""
  case code of
    ExitSuccess -> pure (ca, key)
    ExitFailure _ -> assertFailure err

openssl :: [String] -> String -> IO (ExitCode, String, String)
openssl arguments = within 30 "openssl" . readProcessWithExitCode "openssl" arguments
