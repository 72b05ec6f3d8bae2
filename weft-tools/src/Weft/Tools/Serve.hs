-- |
-- Description : @weft serve@
--
-- A static web server: the files of a folder, by Warp on Weft. Status 1 and a sentence when it cannot serve, 2 for
-- arguments that make no sense, 0 after it was told to end and has.
module Weft.Tools.Serve
  ( serveCommand,
  )
where

import Control.Concurrent (forkIO, getNumCapabilities, setNumCapabilities)
import Control.Concurrent.MVar
import Control.Exception (IOException, catch)
import Control.Monad (forM_, unless, void)
import qualified Data.ByteString.Char8 as B
import Data.String (fromString)
import GHC.Conc (getNumProcessors)
import GHC.IO.Exception (IOErrorType (..), IOException (..))
import Network.HTTP.Types (statusCode)
import Network.Wai (Middleware, rawPathInfo, requestMethod, responseStatus)
import Options.Applicative
import System.Directory (doesDirectoryExist, doesPathExist, makeAbsolute)
import System.Exit (ExitCode (..), exitWith)
import System.IO
import System.Posix.Process (exitImmediately)
import System.Posix.Signals (Handler (Catch), installHandler, sigINT, sigTERM)
import Weft.Backend (Choice (..), backendChoice, backendNames, preferBackend)
import Weft.Duration (seconds)
import Weft.Socket (SockAddr)
import Weft.Static
import Weft.Warp

-- | What to serve, and how.
data Serve = Serve
  { folder :: FilePath,
    host :: String,
    port :: Int,
    cores :: Maybe Int,
    backend :: Maybe String,
    logging :: Bool,
    listings :: Bool,
    cacheSize :: Int
  }

-- | The subcommand.
serveCommand :: Mod CommandFields (IO ())
serveCommand = command "serve" (info (serve <$> arguments) (progDesc "Serve a folder over HTTP" <> footer notes <> failureCode 2))
  where
    notes =
      "Ends on SIGTERM or Ctrl-C: takes no new connections, finishes requests under way (10 seconds at most), "
        <> "then exits with 0; a second signal ends it at once. Exits with 1 when the folder is missing or the port "
        <> "cannot be had, with 2 for bad arguments."

arguments :: Parser Serve
arguments =
  Serve
    <$> strArgument (metavar "DIR" <> help "The folder; a request for a folder in it gets its index.html")
    <*> strOption
      ( long "host" <> metavar "HOST" <> value "127.0.0.1" <> showDefault
          <> help "Address to listen on; '*' is every address of this machine, for all who can reach it"
      )
    <*> option
      (range 0 65535)
      (long "port" <> metavar "PORT" <> value 8080 <> showDefault <> help "Port; 0 lets the system choose")
    <*> optional (option (range 1 256) (long "cores" <> metavar "N" <> help "Cores to use (default: all)"))
    <*> optional
      ( option
          known
          (long "backend" <> metavar "NAME" <> help ("Event mechanism: " <> unwords backendNames))
      )
    <*> switch (long "log" <> help "Print a line for each request")
    <*> switch (long "listing" <> help "Show what is in a folder that has no index.html")
    <*> option
      (range 0 1000000)
      (long "cache" <> metavar "MB" <> value 64 <> showDefault <> help "Memory for the contents of small files")
  where
    range lo hi = eitherReader $ \text -> case reads text of
      [(n, "")] | n >= lo, n <= hi -> Right n
      _ -> Left ("a number from " <> show lo <> " to " <> show (hi :: Int) <> " is wanted, not " <> show text)
    known = eitherReader $ \text ->
      if text `elem` backendNames then Right text else Left ("there are " <> unwords backendNames)

serve :: Serve -> IO ()
serve opts = do
  checkFolder (folder opts)
  processors <- getNumProcessors
  setNumCapabilities (maybe processors (min 256) (cores opts))
  mapM_ preferBackend (backend opts)
  choice <- backendChoice
  forM_ (choiceRefused choice) $ \(name, why) ->
    say ("weft: " <> name <> " cannot be used (" <> why <> "); using " <> choiceBackend choice)
  root <- makeAbsolute (folder opts)
  ending <- endOnSignals
  let files = defaultStaticSettings {staticListing = listings opts, staticCacheBytes = 1000000 * cacheSize opts}
      settings = setHost (fromString (host opts)) (setPort (port opts) defaultSettings)
  withStatic files root $ \static -> do
    let app = (if logging opts then logged else id) (staticApp static)
    withServer settings app (run' opts choice ending) `catch` cannotListen opts

-- | Announce, wait for the end, drain.
run' :: Serve -> Choice -> MVar () -> Server -> IO ()
run' opts choice ending server = do
  n <- getNumCapabilities
  say $
    "weft: serving " <> folder opts <> " at " <> url opts (serverAddress server)
      <> (" (" <> show n <> (if n == 1 then " core, " else " cores, ") <> choiceBackend choice <> ")")
  stopped <- newEmptyMVar
  void (forkIO (takeMVar ending >> putMVar stopped True))
  void (forkIO (waitServer server >> putMVar stopped False))
  told <- takeMVar stopped
  unless told (say "weft: the listening socket failed" >> exitWith (ExitFailure 1))
  say "weft: ending: finishing what is under way"
  clean <- drainServer server (seconds 10)
  unless clean (say "weft: some requests did not end in 10 seconds and were dropped")

url :: Serve -> SockAddr -> String
url opts address = "http://" <> name <> ":" <> digits <> "/"
  where
    digits = reverse (takeWhile (/= ':') (reverse (show address)))
    name = case host opts of
      '*' : _ -> "localhost"
      h | ':' `elem` h -> "[" <> h <> "]"
      h -> h

-- | Filled by the first SIGTERM or SIGINT; the second ends the process.
endOnSignals :: IO (MVar ())
endOnSignals = do
  ending <- newEmptyMVar
  let told = do
        first <- tryPutMVar ending ()
        unless first (exitImmediately (ExitFailure 130))
  forM_ [sigTERM, sigINT] $ \signal -> installHandler signal (Catch told) Nothing
  pure ending

checkFolder :: FilePath -> IO ()
checkFolder path = do
  isFolder <- doesDirectoryExist path
  unless isFolder $ do
    exists <- doesPathExist path
    die' ("weft serve: " <> path <> (if exists then " is not a folder" else " does not exist"))

cannotListen :: Serve -> IOException -> IO ()
cannotListen opts e = die' ("weft serve: cannot listen on " <> host opts <> " port " <> show (port opts) <> ": " <> why)
  where
    why = case ioe_type e of
      ResourceBusy -> "the port is in use. Another one: --port"
      PermissionDenied -> "ports below 1024 are reserved for the administrator. Another one: --port"
      _ -> ioe_description e

-- | One line for each answer, on the standard output.
logged :: Middleware
logged app request respond = app request $ \response -> do
  B.putStrLn (B.unwords [requestMethod request, rawPathInfo request, B.pack (show (statusCode (responseStatus response)))])
  respond response

say :: String -> IO ()
say text = putStrLn text >> hFlush stdout

die' :: String -> IO a
die' text = hPutStrLn stderr text >> exitWith (ExitFailure 1)
