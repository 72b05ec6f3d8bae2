-- |
-- Servers that are not ours, started for a test and stopped behind it: everything of theirs is in a folder of its
-- own, and they listen on the loopback interface or in that folder.
module Weft.Test.Services
  ( withRedis,
    withFrailRedis,
    withFrailEtcd,
    withPostgres,
    withNginx,
    withNginxServing,
    withFolder,
    freePort,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import Data.IORef
import Data.List (sort)
import GHC.IO.Handle (hDuplicate)
import Network.Socket hiding (listen)
import qualified Network.Socket as N
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.Files (setFileMode)
import System.Posix.Signals (sigKILL, signalProcess)
import System.Posix.Temp (mkdtemp)
import System.Process
import Test.Tasty.HUnit
import Weft.Test.Skip (needProgram, skip)

-- | A Redis that keeps nothing, and its port.
withRedis :: (Int -> IO a) -> IO a
withRedis act = withFolder "redis" $ \folder -> do
  port <- freePort
  running folder "redis-server" ["--port", show port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder] $ do
    listening (SockAddrInet (fromIntegral port) localhost)
    act port

-- | The same, with what kills it, which loses what it has, and with what starts it again.
withFrailRedis :: (Int -> (IO (), IO ()) -> IO a) -> IO a
withFrailRedis act = withFolder "redis" $ \folder -> do
  port <- freePort
  let arguments = ["--port", show port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
  frail folder "redis-server" arguments (SockAddrInet (fromIntegral port) localhost) (act port)

-- | An etcd, its address, and what kills it and starts it again. It has what it had.
withFrailEtcd :: (String -> (IO (), IO ()) -> IO a) -> IO a
withFrailEtcd act = withFolder "etcd" $ \folder -> do
  [client, peer] <- replicateM 2 freePort
  let url port = "http://127.0.0.1:" <> show port
      arguments =
        ["--data-dir", folder </> "data", "--listen-client-urls", url client, "--advertise-client-urls", url client]
          <> ["--listen-peer-urls", url peer, "--initial-advertise-peer-urls", url peer, "--initial-cluster", "default=" <> url peer]
  frail folder "etcd" arguments (SockAddrInet (fromIntegral client) localhost) (act (url client))

-- | A PostgreSQL on a socket in its folder, and how to connect to it.
withPostgres :: (String -> IO a) -> IO a
withPostgres act = withFolder "postgres" $ \folder -> do
  versions <- listDirectory "/usr/lib/postgresql" `catch` \e -> const (pure []) (e :: IOException)
  bin <- case reverse (sort versions) of
    v : _ -> pure ("/usr/lib/postgresql" </> v </> "bin")
    [] -> skip "PostgreSQL is not installed"
  let home = folder </> "data"
  -- It refuses to be root.
  root <- (== "0\n") <$> readProcess "id" ["-u"] ""
  let user program arguments
        | root = ("setpriv", ["--reuid", "postgres", "--regid", "postgres", "--clear-groups", program] <> arguments)
        | otherwise = (program, arguments)
  when root (callProcess "chown" ["postgres", folder])
  -- initdb writes there. Some sandboxes let only root do so.
  let (sh, quiet) = user "sh" ["-c", ": >/dev/null"]
  (usable, _, _) <- readProcessWithExitCode sh quiet ""
  when (usable /= ExitSuccess) (skip "the user postgres may not write to /dev/null")
  let (initdb, options) = user (bin </> "initdb") ["-D", home, "-U", "postgres", "--auth", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"]
  (code, out, err) <- readProcessWithExitCode initdb options ""
  unless (code == ExitSuccess) (assertFailure (out <> err))
  let (server, arguments) = user (bin </> "postgres") ["-D", home, "-k", folder, "-h", "", "-F"]
  running folder server arguments $ do
    let path = folder </> ".s.PGSQL.5432"
    listening (SockAddrUnix path)
    let address = "host=" <> folder <> " user=postgres dbname=postgres"
    -- It listens before it lets anybody in.
    patiently "PostgreSQL is not ready" $ do
      (ready, _, _) <- readProcessWithExitCode (bin </> "pg_isready") ["-h", folder] ""
      pure (ready == ExitSuccess)
    act address

-- | An nginx that serves a folder, and its address.
withNginx :: FilePath -> (String -> IO a) -> IO a
withNginx site act =
  withNginxServing (\port -> ["listen 127.0.0.1:" <> show port <> " backlog=2048; root " <> site <> ";"]) $ \port ->
    act ("http://127.0.0.1:" <> show port)

-- | An nginx with one server, whose settings are made of its port, and the port.
withNginxServing :: (Int -> [String]) -> (Int -> IO a) -> IO a
withNginxServing server act = withFolder "nginx" $ \folder -> do
  port <- freePort
  let file = folder </> "nginx.conf"
  writeFile file . unlines $
    [ "daemon off; master_process off; worker_rlimit_nofile 8192;",
      "pid " <> folder </> "pid; error_log stderr crit;",
      "events { worker_connections 4096; }",
      "http {",
      "  access_log off; keepalive_timeout 30s;"
    ]
      <> ["  " <> kind <> "_temp_path " <> folder </> kind <> ";" | kind <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]]
      <> ["  server {"]
      <> map ("    " <>) (server port)
      <> ["  }", "}"]
  running folder "nginx" ["-p", folder, "-c", file] $ do
    listening (SockAddrInet (fromIntegral port) localhost)
    act port

-- | Run a server beside an action; what it prints goes to a file in its folder.
running :: FilePath -> FilePath -> [String] -> IO a -> IO a
running folder program arguments act = do
  needProgram program
  withFile (folder </> "log") WriteMode $ \h -> do
    let start = (proc program arguments) {std_in = NoStream, std_out = UseHandle h, std_err = UseHandle h}
    bracket (createProcess start) stop (const act)
      `onException` (readFile (folder </> "log") >>= hPutStrLn stderr . unlines . take 20 . lines)
  where
    stop (_, _, _, p) = terminateProcess p >> void (waitForProcess p)

-- | A server that is killed and started again by the action.
frail :: FilePath -> FilePath -> [String] -> SockAddr -> ((IO (), IO ()) -> IO a) -> IO a
frail folder program arguments address act = do
  needProgram program
  process <- newIORef Nothing
  withFile (folder </> "log") WriteMode $ \h -> do
    let start = do
          again <- hDuplicate h
          (_, _, _, p) <- createProcess (proc program arguments) {std_in = NoStream, std_out = UseHandle again, std_err = UseHandle again}
          writeIORef process (Just p)
          listening address
        kill = do
          found <- readIORef process
          writeIORef process Nothing
          forM_ found $ \p -> do
            getPid p >>= mapM_ (signalProcess sigKILL)
            void (waitForProcess p)
    bracket_ start kill (act (kill, start))
      `onException` (readFile (folder </> "log") >>= hPutStrLn stderr . unlines . take 20 . lines)

-- | Wait until a server listens there.
listening :: SockAddr -> IO ()
listening address = patiently ("nobody listens on " <> show address) . bracket (socket family Stream defaultProtocol) close $ \s ->
  either (\e -> const False (e :: IOException)) (const True) <$> try (connect s address)
  where
    family = case address of
      SockAddrUnix _ -> AF_UNIX
      _ -> AF_INET

-- | Try for a minute.
patiently :: String -> IO Bool -> IO ()
patiently what check = go (1200 :: Int)
  where
    go 0 = assertFailure what
    go n = check >>= \ok -> unless ok (threadDelay 50000 >> go (n - 1))

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 localhost)
  N.listen s 1
  fromIntegral <$> socketPort s

localhost :: HostAddress
localhost = tupleToHostAddress (127, 0, 0, 1)

-- | A new folder, which others may read, and which is removed.
withFolder :: String -> (FilePath -> IO a) -> IO a
withFolder name = bracket make removePathForcibly
  where
    make = do
      temporary <- getTemporaryDirectory
      folder <- mkdtemp (temporary </> ("weft-test-" <> name <> "-"))
      folder <$ setFileMode folder 0o755
