-- |
-- Description : @weft serve@
--
-- A static web server: the files of a folder, by Warp on Weft. Status 1 and a sentence when it cannot serve, 2 for
-- arguments or a configuration file that make no sense, 0 after it was told to end and has.
module Weft.Tools.Serve
  ( serveCommand,
  )
where

import Control.Concurrent (forkIO, getNumCapabilities, setNumCapabilities)
import Control.Concurrent.Chan
import Control.Concurrent.MVar
import Control.Exception (catch, try)
import Control.Monad (forM_, unless, void)
import qualified Data.Map.Strict as Map
import Data.String (fromString)
import GHC.Conc (getNumProcessors)
import GHC.IO.Exception (IOErrorType (..), IOException (ioe_description, ioe_filename, ioe_type))
import Options.Applicative hiding (command)
import qualified Options.Applicative as Options
import Options.Applicative.Help (stringChunk, unChunk, vcatChunks, vsepChunks)
import System.Directory (doesDirectoryExist, doesPathExist, makeAbsolute)
import System.Exit (ExitCode (..), exitWith)
import System.IO
import System.Posix.Process (exitImmediately)
import System.Posix.Resource
import System.Posix.Signals (Handler (Catch), Signal, installHandler, sigHUP, sigINT, sigTERM)
import Weft.Backend (Choice (..), backendChoice, preferBackend)
import Weft.Duration (seconds, toSeconds)
import Weft.Socket (SockAddr (..))
import Weft.Thread (timeoutFor)
import Weft.Tools.Serve.Arguments
import Weft.Tools.Serve.Config
import Weft.Tools.Serve.Settings
import Weft.Tools.Serve.Site
import Weft.Tools.Serve.Systemd
import Weft.Warp hiding (Settings)

-- | The subcommand.
serveCommand :: Mod CommandFields (IO ())
serveCommand = Options.command "serve" (info (serve <$> arguments) (progDesc text <> footerDoc (unChunk notes) <> failureCode 2))
  where
    text = "Serve a folder over HTTP: weft serve DIR [--FLAG VALUE ...]. Defaults are in parentheses."
    notes = vsepChunks (map (vcatChunks . map stringChunk) helpText)

-- | What happens to a server that runs.
data Event = Told | Hung | Failed

serve :: Arguments -> IO ()
serve given = do
  (fromFile, settings) <- load given >>= either (refuse 2) pure
  path <- maybe (refuse 2 "which folder? weft serve DIR, or 'folder' in the file") pure (folder settings)
  checkFolder path
  processors <- getNumProcessors
  setNumCapabilities (maybe processors (min 256) (cores settings))
  mapM_ preferBackend (backend settings)
  choice <- backendChoice
  forM_ (choiceRefused choice) $ \(name, why) ->
    say ("weft: " <> name <> " cannot be used (" <> why <> "); using " <> choiceBackend choice)
  descriptors <- raiseOpenFiles
  tls <- loadCertificate settings
  listeners <- inheritedSockets `catch` cannot
  root <- makeAbsolute path
  events <- newChan
  onSignals events
  bounded <- withinDescriptors descriptors (limits settings)
  let options site = Options listeners tls (Just bounded) (siteRefused site)
      warp = setHost (fromString (host settings)) (setPort (port settings) (setTimeout (timeout settings) defaultSettings))
  (`catch` cannot) . withSite settings root $ \site ->
    (`catch` cannotListen settings) . withServerWith (options site) warp (siteApplication site) $ \server -> do
      siteListens site server
      announce settings path choice (not (null listeners)) server
      void (forkIO (waitServer server >> writeChan events Failed))
      notify Ready
      running (Process given site tls server events) fromFile settings
  where
    cannot e = refuse 1 (explained e)

-- | What a server that runs needs to know.
data Process = Process
  { processArguments :: Arguments,
    processSite :: Site,
    processTls :: Maybe Tls,
    processServer :: Server,
    processEvents :: Chan Event
  }

-- | Until it ends, with what was given and the settings that this made.
running :: Process -> Given -> Settings -> IO ()
running process given settings = do
  event <- readChan (processEvents process)
  case event of
    Failed -> say "weft: the listening socket failed" >> exitWith (ExitFailure 1)
    Hung -> reload process given settings >>= uncurry (running process)
    Told -> do
      notify Stopping
      siteEnds (processSite process)
      say "weft: ending: finishing what is under way"
      clean <- drainServer (processServer process) (drain settings)
      unless clean (say ("weft: some requests did not end in " <> show (toSeconds (drain settings)) <> " seconds and were dropped"))

-- | The settings, and what was given for them; or what is wrong.
load :: Arguments -> IO (Either String (Given, Settings))
load given = do
  file <- maybe (pure (Right Map.empty)) readConfig (argumentConfig given)
  pure $ do
    fromFile <- file
    let all' = Map.union (argumentGiven given) fromFile
    settings <- either (\(name, why) -> Left (name <> ": " <> why)) Right (settingsFrom all')
    pure (all', settings)

-- | Read and open everything again. What fails says so and stays as it was.
reload :: Process -> Given -> Settings -> IO (Given, Settings)
reload process old settings = do
  notify Reloading
  -- Lines that cannot be got rid of must not keep the server from ending.
  attempt "the log" (timeoutFor (seconds 5) (reopenSite (processSite process)) >>= maybe (ioError (userError "it takes no lines")) pure)
  attempt "the certificate" (mapM_ reloadTls (processTls process))
  loaded <- load (processArguments process)
  next <- case loaded of
    Left why -> (old, settings) <$ warn (why <> "; nothing is changed")
    Right (given, fresh) -> do
      let fixed = restartNeeded old given
      unless (null fixed) (warn ("a new start is needed to change " <> unwords fixed))
      changeSite (processSite process) (all (\n -> Map.lookup n old == Map.lookup n given) ofFiles) fresh
      say "weft: reloaded"
      pure (given, fresh)
  next <$ notify Ready
  where
    ofFiles = ["index", "listing", "header", "cache", "trust"]
    attempt what act = try act >>= either (\e -> warn (what <> " stays as it was: " <> explained e)) pure

-- Beginning --------------------------------------------------------------------------------

-- | Have as many descriptors as the system allows: how many, if there is a limit.
raiseOpenFiles :: IO (Maybe Int)
raiseOpenFiles = do
  known <- getResourceLimit ResourceOpenFiles
  setResourceLimit ResourceOpenFiles known {softLimit = hardLimit known} `catch` \e -> const (pure ()) (e :: IOException)
  now <- softLimit <$> getResourceLimit ResourceOpenFiles
  pure $ case now of
    ResourceLimit n -> Just (fromInteger n)
    _ -> Nothing

-- | No more connections than there are descriptors, one in eight of which is for files.
withinDescriptors :: Maybe Int -> Limits -> IO Limits
withinDescriptors descriptors wanted = case descriptors of
  Just n
    | let most = max 1 (n - n `div` 8 - 32),
      limitConnections wanted > most || limitConnections wanted <= 0 -> do
      warn ("at most " <> show most <> " connections, for this process may have " <> show n <> " descriptors (ulimit -n)")
      pure wanted {limitConnections = most}
  _ -> pure wanted

loadCertificate :: Settings -> IO (Maybe Tls)
loadCertificate settings = case (certificate settings, key settings) of
  (Nothing, Nothing) -> pure Nothing
  (Just chain, Just secret) -> (Just <$> loadTls chain secret) `catch` \e -> refuse 1 (explained e)
  (Just _, Nothing) -> refuse 2 "a certificate needs its key: --key"
  (Nothing, Just _) -> refuse 2 "a key needs its certificate: --certificate"

-- | Say where it is to be found.
announce :: Settings -> FilePath -> Choice -> Bool -> Server -> IO ()
announce settings path choice inherited server = do
  n <- getNumCapabilities
  say $
    "weft: serving " <> path <> " at " <> url (serverAddress server)
      <> (" (" <> show n <> (if n == 1 then " core, " else " cores, ") <> choiceBackend choice <> ")")
  where
    scheme = maybe "http://" (const "https://") (certificate settings)
    url address = case address of
      SockAddrUnix file -> "unix:" <> file
      _ -> scheme <> name address <> ":" <> digits address <> "/"
    digits = reverse . takeWhile (/= ':') . reverse . show
    name address
      | inherited = case address of
        SockAddrInet _ 0 -> "localhost"
        SockAddrInet6 _ _ (0, 0, 0, 0) _ -> "localhost"
        _ -> reverse (drop 1 (dropWhile (/= ':') (reverse (show address))))
      | otherwise = case host settings of
        '*' : _ -> "localhost"
        h | ':' `elem` h -> "[" <> h <> "]"
        h -> h

-- | The first SIGTERM or SIGINT is an event; the second ends the process. So is each SIGHUP.
onSignals :: Chan Event -> IO ()
onSignals events = do
  ending <- newEmptyMVar
  let told = do
        first <- tryPutMVar ending ()
        if first then writeChan events Told else exitImmediately (ExitFailure 130)
  forM_ [sigTERM, sigINT] (`on` told)
  sigHUP `on` writeChan events Hung
  where
    on :: Signal -> IO () -> IO ()
    on signal act = void (installHandler signal (Catch act) Nothing)

checkFolder :: FilePath -> IO ()
checkFolder path = do
  isFolder <- doesDirectoryExist path
  unless isFolder $ do
    exists <- doesPathExist path
    refuse 1 (path <> (if exists then " is not a folder" else " does not exist"))

cannotListen :: Settings -> IOException -> IO a
cannotListen settings e = refuse 1 ("cannot listen on " <> host settings <> " port " <> show (port settings) <> ": " <> why)
  where
    why = case ioe_type e of
      ResourceBusy -> "the port is in use. Another one: --port"
      PermissionDenied -> "ports below 1024 are reserved for the administrator. Another one: --port"
      _ -> ioe_description e

-- Saying -----------------------------------------------------------------------------------

explained :: IOException -> String
explained e = maybe "" (<> ": ") (ioe_filename e) <> ioe_description e

say :: String -> IO ()
say text = unheard (putStrLn text >> hFlush stdout)

warn :: String -> IO ()
warn text = unheard (hPutStrLn stderr ("weft serve: " <> text))

-- | A server goes on when nobody listens to it.
unheard :: IO () -> IO ()
unheard act = act `catch` \e -> const (pure ()) (e :: IOException)

refuse :: Int -> String -> IO a
refuse status text = warn text >> exitWith (ExitFailure status)
