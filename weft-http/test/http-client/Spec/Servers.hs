-- |
-- Servers of other projects, each started for a test on ports of its own.
module Spec.Servers
  ( Nginx (..),
    withNginx,
    withCertificate,
    withH2o,
    withPython,

    -- * Reverse proxies
    withNginxProxy,
    withHaproxy,
    withCaddy,
  )
where

import Control.Exception
import Control.Monad
import Data.IORef
import Network.Socket
import System.Directory
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath (takeFileName, (</>))
import System.IO (IOMode (WriteMode), openFile)
import System.Process
import Test.Tasty.HUnit
import Weft.Test.Peer (eventually)
import Weft.Test.Skip (skip)

-- | Its ports, the folder that it serves, and an action that restarts it.
data Nginx = Nginx
  { nginxPort :: Int,
    nginxTlsPort :: Int,
    -- | For connections with a header of the PROXY protocol.
    nginxAnnouncedPort :: Int,
    -- | For HTTP\/2, without and with TLS.
    nginxHttp2Port :: Int,
    nginxTls2Port :: Int,
    nginxFolder :: FilePath,
    nginxRestart :: IO ()
  }

-- | Run a test with nginx, if it is installed.
withNginx :: (Nginx -> IO ()) -> IO ()
withNginx act = do
  found <- filterM doesFileExist ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]
  case found of
    [] -> skip "nginx is not installed"
    program : _ -> withFolder $ \folder -> do
      certify folder
      port <- freePort
      tlsPort <- freePort
      announcedPort <- freePort
      http2Port <- freePort
      tls2Port <- freePort
      createDirectory (folder </> "up")
      writeFile (folder </> "configuration") (configuration [port, tlsPort, announcedPort, http2Port, tls2Port] folder)
      let start = do
            p <- spawned folder program ["-c", folder </> "configuration"]
            p <$ eventually "nginx does not listen" (listens tlsPort)
      process <- start >>= newIORef
      let stop = readIORef process >>= \p -> terminateProcess p >> void (waitForProcess p)
      act (Nginx port tlsPort announcedPort http2Port tls2Port folder (stop >> start >>= writeIORef process)) `finally` stop

configuration :: [Int] -> FilePath -> String
configuration ports folder =
  nginxOf
    folder
    [ "  server {",
      "    listen unix:" <> folder <> "/socket;" <> concat [" listen 127.0.0.1:" <> show port <> kind <> ";" | (port, kind) <- zip ports ["", " ssl", " proxy_protocol", " http2", " ssl http2"]],
      "    ssl_certificate " <> folder <> "/cert.pem; ssl_certificate_key " <> folder <> "/key.pem;",
      "    root " <> folder <> ";",
      "    location /up/ { dav_methods PUT; }",
      "    location = /pong { return 200 'Pong!'; }",
      "    location = /announced { return 200 '$proxy_protocol_addr'; }",
      "    location = /gone { return 204; }",
      "    location = /version { return 200 $server_protocol; }",
      "    location = /fields { return 200 '$request_method $http_host $http_connection $http_x_forwarded_for $http_x_forwarded_proto $http_x_forwarded_host $http_via $http_forwarded $http_x_own $http_x_named $http_te'; }",
      "    location = /count { return 200 $connection_requests; }",
      "  }"
    ]

-- | The configuration of an nginx with its files in that folder, from the lines about what it serves.
nginxOf :: FilePath -> [String] -> String
nginxOf folder serves =
  unlines $
    [ "daemon off; master_process off; pid " <> folder <> "/pid; error_log " <> folder <> "/errors crit;",
      "events { worker_connections 1024; }",
      "http {",
      "  access_log off; client_max_body_size 100m;",
      unlines ["  " <> kind <> "_temp_path " <> folder <> "/" <> kind <> ";" | kind <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]]
    ]
      <> serves
      <> ["}"]

-- | Run a test with the files of a certificate for @localhost@ and its key.
withCertificate :: (FilePath -> FilePath -> IO a) -> IO a
withCertificate act = withFolder $ \folder -> do
  certify folder
  act (folder </> "cert.pem") (folder </> "key.pem")

-- | Make @cert.pem@ and @key.pem@ in a folder.
certify :: FilePath -> IO ()
certify folder = do
  (code, _, why) <- readProcessWithExitCode "openssl" (words "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout" <> [folder </> "key.pem", "-out", folder </> "cert.pem"]) ""
  when (code /= ExitSuccess) (assertFailure why)

-- | Run a test with the port of h2o, for HTTP\/2 in clear text, which has a file @page@ and one @large@ of 3 MB.
withH2o :: (Int -> IO ()) -> IO ()
withH2o act = do
  found <- findExecutable "h2o"
  case found of
    Nothing -> skip "h2o is not installed"
    Just program -> withFolder $ \folder -> do
      port <- freePort
      createDirectory (folder </> "files")
      writeFile (folder </> "files" </> "page") "a page\n"
      writeFile (folder </> "files" </> "large") (replicate 3000000 'x')
      writeFile (folder </> "configuration") . unlines $
        ["listen:", "  host: 127.0.0.1", "  port: " <> show port, "num-threads: 1", "hosts:", "  default:", "    paths:", "      /:", "        file.dir: " <> folder </> "files"]
      bracket (spawned folder program ["-c", folder </> "configuration"]) (\p -> terminateProcess p >> void (waitForProcess p)) $ \_ -> do
        eventually "h2o does not listen" (listens port)
        act port

-- | Run a test with the port of nginx, or of another proxy, before that port.
withNginxProxy, withHaproxy, withCaddy :: Int -> (Int -> IO a) -> IO a
withNginxProxy to = proxying ["/usr/sbin/nginx", "/usr/local/sbin/nginx"] (\file -> ["-c", file]) $ \port folder ->
  nginxOf
    folder
    [ "  upstream there { server 127.0.0.1:" <> show to <> "; keepalive 16; }",
      "  server {",
      "    listen 127.0.0.1:" <> show port <> ";",
      "    location / { proxy_pass http://there; proxy_http_version 1.1; proxy_set_header Connection ''; }",
      "  }"
    ]
withHaproxy to = proxying ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"] (\file -> ["-db", "-f", file]) $ \port _ ->
  unlines
    [ "global",
      "  maxconn 1000",
      "defaults",
      "  mode http",
      "  timeout connect 10s",
      "  timeout client 60s",
      "  timeout server 60s",
      "frontend here",
      "  bind 127.0.0.1:" <> show port,
      "  default_backend there",
      "backend there",
      "  server one 127.0.0.1:" <> show to
    ]
withCaddy to = proxying ["/usr/bin/caddy", "/usr/local/bin/caddy"] (\file -> ["run", "--adapter", "caddyfile", "--config", file]) $ \port folder ->
  unlines
    [ "{",
      "  admin off",
      "  auto_https off",
      "  storage file_system " <> folder,
      "}",
      "http://127.0.0.1:" <> show port <> " {",
      "  reverse_proxy 127.0.0.1:" <> show to,
      "}"
    ]

-- | A server that is one of these files, its arguments with that of its configuration, and what this says.
proxying :: [FilePath] -> (FilePath -> [String]) -> (Int -> FilePath -> String) -> (Int -> IO a) -> IO a
proxying programs arguments text act = do
  found <- filterM doesFileExist programs
  case found of
    [] -> skip (concatMap takeFileName (take 1 programs) <> " is not installed")
    program : _ -> withFolder $ \folder -> do
      port <- freePort
      writeFile (folder </> "configuration") (text port folder)
      bracket (spawned folder program (arguments (folder </> "configuration"))) (\p -> terminateProcess p >> void (waitForProcess p)) $ \_ -> do
        eventually (program <> " does not listen") (listens port)
        act port

-- | Run a test with the port of Python's server of files, which has a file @page@.
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
