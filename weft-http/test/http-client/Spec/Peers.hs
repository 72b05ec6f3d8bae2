{-# LANGUAGE OverloadedStrings #-}

-- |
-- nginx and Python's server, over TCP, Unix sockets and TLS.
module Spec.Peers (tests) where

import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (listToMaybe)
import Network.HTTP.Types
import Network.Socket
import Peer (causeOf, eventually, gives, soon)
import System.Directory
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), openFile)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http.Client
import Weft.Test.Skip (skip)
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)

tests :: TestTree
tests =
  testGroup
    "servers"
    [ testCase "nginx: files, uploads, HEAD, errors, a Unix socket, and connections that are kept" . withNginx $ \nginx ->
        withClient defaultClientSettings $ \client -> do
          due <- soon
          let u path = Url "127.0.0.1" (show (nginxPort nginx)) Nothing path False
              large = C.replicate 3000000 'x'
          request client due (Request "PUT" (u "/up/large") [] (BytesBody large)) >>= (@?= 201) . statusCode . answerStatus
          (answerBody <$> request client due (getRequest (u "/up/large"))) `gives` large
          left <- newIORef (replicate 30 (C.replicate 100000 'y') <> [""])
          request client due (Request "PUT" (u "/up/streamed") [("Expect", "100-continue")] (StreamBody Nothing (atomicModifyIORef' left (\ps -> (drop 1 ps, B.concat (take 1 ps)))))) >>= (@?= 201) . statusCode . answerStatus
          (answerBody <$> request client due (getRequest (u "/up/streamed"))) `gives` C.replicate 3000000 'y'
          h <- request client due (Request "HEAD" (u "/up/large") [] EmptyBody)
          (answerBody h, lookup hContentLength (answerFields h)) @?= ("", Just "3000000")
          (statusCode . answerStatus <$> request client due (getRequest (u "/nothing"))) `gives` 404
          (statusCode . answerStatus <$> request client due (getRequest (u "/gone"))) `gives` 204
          let unix = either error id (parseUrlOrSocket ("unix:" <> nginxFolder nginx </> "socket:/pong"))
          (answerBody <$> request client due (getRequest unix)) `gives` "Pong!"
          -- connection_requests counts the requests of a connection.
          counts <- replicateM 20 (answerBody <$> request client due (getRequest (u "/count")))
          assertBool (show counts) (map (read . C.unpack) counts == take 20 (maybe [] (\n -> [n ..]) (listToMaybe (map (read . C.unpack) counts)) :: [Int])),
      testCase "nginx over TLS: the name of the host is checked, and connections are kept" . withNginx $ \nginx -> do
        due <- soon
        let u host = Url host (show (nginxTlsPort nginx)) Nothing "/count" True
            trusting = defaultClientSettings {clientTls = defaultTlsClientSettings {tlsTrust = TrustAuthorities (nginxFolder nginx </> "cert.pem")}}
        withClient trusting $ \client -> do
          counts <- replicateM 3 (answerBody <$> request client due (getRequest (u "localhost")))
          counts @?= ["1", "2", "3"]
          (phase, _) <- causeOf (request client due (getRequest (u "127.0.0.1")))
          phase @?= Connecting
        withClient defaultClientSettings $ \client -> do
          (phase, _) <- causeOf (request client due (getRequest (u "localhost")))
          phase @?= Connecting,
      testCase "nginx is stopped and started again: kept connections that have ended are not used" . withNginx $ \nginx ->
        withClient defaultClientSettings $ \client -> do
          due <- soon
          let u = Url "127.0.0.1" (show (nginxPort nginx)) Nothing "/count" False
          forM_ [1 :: Int, 2] $ \_ -> do
            (answerBody <$> request client due (Request "POST" u [] EmptyBody)) `gives` "1"
            nginxRestart nginx,
      testCase "Python's server of HTTP/1.0" $
        withPython $ \port -> withClient defaultClientSettings $ \client -> do
          due <- soon
          forM_ [1 .. 3 :: Int] $ \_ -> do
            a <- request client due (getRequest (Url "localhost" (show port) Nothing "/page" False))
            (statusCode (answerStatus a), answerBody a) @?= (200, "a page\n")
    ]

data Nginx = Nginx {nginxPort :: Int, nginxTlsPort :: Int, nginxFolder :: FilePath, nginxRestart :: IO ()}

withNginx :: (Nginx -> IO ()) -> IO ()
withNginx act = do
  found <- filterM doesFileExist ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]
  case found of
    [] -> skip "nginx is not installed"
    program : _ -> withFolder $ \folder -> do
      (code, _, why) <- readProcessWithExitCode "openssl" (words "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout" <> [folder </> "key.pem", "-out", folder </> "cert.pem"]) ""
      when (code /= ExitSuccess) (assertFailure why)
      port <- freePort
      tlsPort <- freePort
      createDirectory (folder </> "up")
      writeFile (folder </> "configuration") (configuration port tlsPort folder)
      let start = do
            p <- spawned folder program ["-c", folder </> "configuration"]
            p <$ eventually "nginx does not listen" (listens tlsPort)
      process <- start >>= newIORef
      let stop = readIORef process >>= \p -> terminateProcess p >> void (waitForProcess p)
      act (Nginx port tlsPort folder (stop >> start >>= writeIORef process)) `finally` stop

configuration :: Int -> Int -> FilePath -> String
configuration port tlsPort folder =
  unlines
    [ "daemon off; master_process off; pid " <> folder <> "/pid; error_log " <> folder <> "/errors crit;",
      "events { worker_connections 1024; }",
      "http {",
      "  access_log off; client_max_body_size 100m;",
      unlines ["  " <> kind <> "_temp_path " <> folder <> "/" <> kind <> ";" | kind <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]],
      "  server {",
      "    listen 127.0.0.1:" <> show port <> "; listen unix:" <> folder <> "/socket; listen 127.0.0.1:" <> show tlsPort <> " ssl;",
      "    ssl_certificate " <> folder <> "/cert.pem; ssl_certificate_key " <> folder <> "/key.pem;",
      "    root " <> folder <> ";",
      "    location /up/ { dav_methods PUT; }",
      "    location = /pong { return 200 'Pong!'; }",
      "    location = /gone { return 204; }",
      "    location = /count { return 200 $connection_requests; }",
      "  }",
      "}"
    ]

withPython :: (Int -> IO ()) -> IO ()
withPython act = do
  found <- findExecutable "python3"
  case found of
    Nothing -> skip "Python is not installed"
    Just program -> withFolder $ \folder -> do
      port <- freePort
      writeFile (folder </> "page") "a page\n"
      bracket (spawned folder program ["-m", "http.server", show port, "--bind", "127.0.0.1", "--directory", folder]) (\p -> terminateProcess p >> void (waitForProcess p)) $ \_ -> do
        eventually "Python does not listen" (listens port)
        act port

-- | A process whose output goes to a file.
spawned :: FilePath -> FilePath -> [String] -> IO ProcessHandle
spawned folder program arguments = do
  environment <- getEnvironment
  out <- openFile (folder </> "output") WriteMode
  (_, _, _, process) <- createProcess (proc program arguments) {std_out = UseHandle out, std_err = UseHandle out, env = Just environment}
  pure process

withFolder :: (FilePath -> IO a) -> IO a
withFolder act = do
  base <- getTemporaryDirectory
  port <- freePort
  let folder = base </> ("weft-http-client-" <> show port)
  bracket_ (createDirectory folder) (removePathForcibly folder) (act folder)

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  fromIntegral <$> socketPort s

listens :: Int -> IO Bool
listens port = do
  r <- try (bracket (socket AF_INET Stream defaultProtocol) close (\s -> connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1))))) :: IO (Either IOException ())
  pure (either (const False) (const True) r)
