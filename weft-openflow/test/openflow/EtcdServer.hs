-- |
-- An etcd for tests, on ports of its own.
module EtcdServer
  ( withEtcd,
    withStoppableEtcd,
    withEtcdOf,
    Running (..),
    freePort,
  )
where

import Control.Exception (bracket)
import Control.Monad (void, (>=>))
import Data.IORef
import System.Directory (doesDirectoryExist, removePathForcibly)
import System.FilePath ((</>))
import System.IO (IOMode (AppendMode), openFile)
import System.Process
import Weft.Socket hiding (close)
import qualified Weft.Socket as Socket

-- | Run an etcd on free ports, in a directory of its own. The directory is in memory if possible, since etcd waits for
-- the disk at each change.
withEtcd :: (String -> IO a) -> IO a
withEtcd act = withStoppableEtcd (\url _ _ -> act url)

-- | 'withEtcd', with actions that stop it and start it again with its data.
withStoppableEtcd :: (String -> IO () -> IO () -> IO a) -> IO a
withStoppableEtcd act = withEtcdOf "http" [] (\etcd -> act (runningUrl etcd) (stopEtcd etcd) (startEtcd etcd))

-- | An etcd that has been started, which takes a moment to answer.
data Running = Running
  { runningUrl :: String,
    stopEtcd :: IO (),
    -- | With its data.
    startEtcd :: IO ()
  }

-- | An etcd for clients with this scheme, and with more arguments.
withEtcdOf :: String -> [String] -> (Running -> IO a) -> IO a
withEtcdOf scheme more act = bracket directory removePathForcibly $ \dir -> do
  client <- freePort
  peer <- freePort
  let address n = "://127.0.0.1:" <> show n
      url = scheme <> address client
      arguments =
        ["--data-dir", dir </> "data", "--listen-client-urls", url, "--advertise-client-urls", url]
          ++ ["--listen-peer-urls", "http" <> address peer, "--initial-advertise-peer-urls", "http" <> address peer, "--initial-cluster", "default=http" <> address peer]
          ++ more
      end p = terminateProcess p >> void (waitForProcess p)
  bracket (start dir arguments >>= newIORef) (readIORef >=> end) $ \running ->
    act (Running url (readIORef running >>= end) (start dir arguments >>= writeIORef running))
  where
    directory = do
      memory <- doesDirectoryExist "/dev/shm"
      takeWhile (/= '\n') <$> readProcess "mktemp" ["-d", (if memory then "/dev/shm" else "/tmp") </> "etcd.XXXXXX"] ""
    start dir arguments = do
      out <- openFile (dir </> "log") AppendMode
      (_, _, _, p) <- createProcess (proc "etcd" arguments) {std_in = NoStream, std_out = UseHandle out, std_err = UseHandle out}
      pure p

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) Socket.close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  fromIntegral <$> socketPort s
