-- |
-- Servers that are not ours, started for a test and stopped behind it: everything of theirs is in a folder of its
-- own, and they listen on the loopback interface or in that folder.
module Services
  ( withRedis,
    withPostgres,
    withNginx,
    withFolder,
    freePort,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import Data.List (sort)
import Network.Socket hiding (listen)
import qualified Network.Socket as N
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.Files (setFileMode)
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
withNginx site act = withFolder "nginx" $ \folder -> do
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
      <> [ "  server { listen 127.0.0.1:" <> show port <> " backlog=2048; root " <> site <> "; }",
           "}"
         ]
  running folder "nginx" ["-p", folder, "-c", file] $ do
    listening (SockAddrInet (fromIntegral port) localhost)
    act ("http://127.0.0.1:" <> show port)

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
      folder <- mkdtemp (temporary </> ("weft-relink-" <> name <> "-"))
      folder <$ setFileMode folder 0o755
