-- |
-- Starting the server, watching it, and running the programs that ask it.
module Process
  ( -- * Servers
    Server (..),
    withServer,
    withTlsServer,
    address,
    portIn,

    -- * What a server holds
    descriptorsOf,
    peakOf,
    heldBy,
    eventually,

    -- * Programs
    program,
    programWithin,
    alone,
    python,
    needModule,
    withFolder,
    certificate,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import Control.Exception (IOException, bracket, catch)
import Control.Monad (forever, unless, when)
import Data.Char (isDigit)
import Data.IORef
import Data.Maybe (fromMaybe, listToMaybe)
import System.Directory
import System.Environment (getExecutablePath)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Process
import System.Timeout (timeout)
import Test.Tasty.HUnit (Assertion, assertFailure)
import Text.Read (readMaybe)
import Weft.Test.Skip (needProgram, skipUnless)

-- | A server's port, its process, what it has printed, and whether it speaks TLS.
data Server = Server
  { serverPort :: Int,
    serverProcess :: Int,
    serverSaid :: IORef [String],
    serverSecure :: Bool
  }

-- | Run an action with a server that has a file to serve and the given time limits in seconds.
withServer :: FilePath -> Int -> (Server -> IO a) -> IO a
withServer file time = starting [file, show time] False

-- | As 'withServer', with certificate and key.
withTlsServer :: FilePath -> Int -> (FilePath, FilePath) -> (Server -> IO a) -> IO a
withTlsServer file time (chain, key) = starting [file, show time, chain, key] True

starting :: [String] -> Bool -> (Server -> IO a) -> IO a
starting arguments secure act = do
  self <- getExecutablePath
  let start = createProcess (alone (proc self ("--server" : arguments))) {std_in = CreatePipe, std_out = CreatePipe}
  bracket start cleanupProcess $ \(_, out, _, process) -> do
    from <- maybe (assertFailure "no output") pure out
    line <- hGetLine from
    said <- newIORef []
    _ <- forkIO (forever (hGetLine from >>= \l -> atomicModifyIORef' said (\ls -> (l : ls, ()))) `catch` \e -> const (pure ()) (e :: IOException))
    pid <- maybe 0 fromIntegral <$> getPid process
    act (Server (read (drop 5 line)) pid said secure)

-- | Where a path of it is.
address :: Server -> String -> String
address server path = (if serverSecure server then "https://localhost:" else "http://127.0.0.1:") <> show (serverPort server) <> path

-- | The port in an address of the Internet.
portIn :: Show a => a -> Int
portIn socketAddress = read (reverse (takeWhile isDigit (reverse (show socketAddress))))

-- What a server holds --------------------------------------------------------------------

descriptorsOf :: Server -> IO Int
descriptorsOf server = length <$> (listDirectory ("/proc/" <> show (serverProcess server) <> "/fd") `catch` \e -> const (pure []) (e :: IOException))

-- | VmHWM: the most that was resident, in KiB.
peakOf :: Server -> IO Int
peakOf server = do
  status <- readFile ("/proc/" <> show (serverProcess server) <> "/status")
  pure (fromMaybe maxBound (listToMaybe [n | "VmHWM:" : k : _ <- map words (lines status), Just n <- [readMaybe k]]))

-- | Connections, running applications (the one that tells among both), and bytes alive.
heldBy :: Server -> IO (Int, Int, Int)
heldBy server = do
  out <- program "curl" ["-sS", "--noproxy", "*", "-k", "--max-time", "10", address server "/held"]
  case map readMaybe (words out) of
    [Just a, Just b, Just c] -> pure (a, b, c)
    _ -> assertFailure ("/held: " <> show out)

-- | Fail unless the condition comes to hold within ten seconds.
eventually :: String -> IO Bool -> Assertion
eventually what condition = timeout 10000000 go >>= maybe (assertFailure (what <> ": not after 10 s")) pure
  where
    go = condition >>= \holds -> unless holds (threadDelay 50000 >> go)

-- Programs -------------------------------------------------------------------------------

-- | A program's output; the test is skipped where it is not installed, and fails when it does.
program :: FilePath -> [String] -> IO String
program = programWithin 100

-- | 'program', with the seconds that it may take.
programWithin :: Int -> FilePath -> [String] -> IO String
programWithin time name arguments = do
  needProgram name
  r <- timeout (1000000 * time) (readCreateProcessWithExitCode (alone (proc name arguments)) "")
  (code, out, err) <- maybe (assertFailure (name <> ": still running after " <> show time <> " s")) pure r
  when (code /= ExitSuccess) (assertFailure (unlines [name <> " ended with " <> show code, out, err]))
  pure out

-- | A program that gets none of this process's descriptors but its standard ones. Sockets of @network@ are not closed
-- by exec(2), and tests run side by side: a program of one would hold the connections of another's clients open for
-- as long as it runs.
alone :: CreateProcess -> CreateProcess
alone process = process {close_fds = True}

-- | Run a script of this folder by the system's Python, where Debian's modules are.
python :: FilePath -> [String] -> IO String
python script arguments = do
  there <- doesFileExist pythonPath
  skipUnless (pythonPath <> " is not installed") there
  program pythonPath (("test/clients" </> script) : arguments)

-- | Skip the test unless Python has a module.
needModule :: String -> Assertion
needModule name = do
  there <- doesFileExist pythonPath
  skipUnless (pythonPath <> " is not installed") there
  (code, _, _) <- readCreateProcessWithExitCode (alone (proc pythonPath ["-c", "import " <> name])) ""
  skipUnless ("python3-" <> name <> " is not installed") (code == ExitSuccess)

pythonPath :: FilePath
pythonPath = "/usr/bin/python3"

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = do
      temporary <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile temporary "weft-web-test"
      hClose h >> removeFile path >> createDirectory path
      pure path

-- | A certificate for localhost and its key, in files of the folder.
certificate :: FilePath -> IO (FilePath, FilePath)
certificate folder = do
  let (chain, key) = (folder </> "chain.pem", folder </> "key.pem")
  _ <- program "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", chain]
  pure (chain, key)
