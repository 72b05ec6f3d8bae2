-- |
-- Description : @weft serve@
--
-- A static web server: the files of a folder, by Weft's engine. Status 1 and a sentence when it cannot serve, 2 for
-- arguments or a configuration file that make no sense, 0 after it was told to end and has.
module Weft.Tools.Serve
  ( serveCommand,
  )
where

import Control.Concurrent (forkIO, getNumCapabilities, setNumCapabilities)
import Control.Concurrent.Async (mapConcurrently)
import Control.Concurrent.Chan
import Control.Concurrent.MVar
import Control.Exception (catch, displayException, try)
import Control.Monad (forM_, unless, void, when)
import Data.Either (lefts)
import Data.List (intercalate, isPrefixOf, isSuffixOf, nub)
import qualified Data.Map.Strict as Map
import Data.Maybe (mapMaybe)
import Data.String (fromString)
import GHC.IO.Exception (IOException (ioe_description, ioe_filename))
import Network.Wai (Application)
import Options.Applicative hiding (command)
import qualified Options.Applicative as Options
import Options.Applicative.Help (stringChunk, unChunk, vcatChunks, vsepChunks)
import System.Directory (doesDirectoryExist, doesPathExist)
import System.Exit (ExitCode (..), exitSuccess, exitWith)
import System.Posix.Process (exitImmediately)
import System.Posix.Resource
import System.Posix.Signals (Handler (Catch), Signal, installHandler, sigHUP, sigINT, sigTERM)
import Weft.Backend (Choice (..), backendChoice, preferBackend)
import Weft.Duration (seconds, toSeconds)
import Weft.Http hiding (Settings)
import qualified Weft.Http as Http
import Weft.Socket (SockAddr (..), Socket)
import Weft.Static (OpenFiles, newOpenFiles)
import Weft.Timer (within)
import Weft.Tls (CertificateSource (..), TlsServerSettings (..), defaultTlsServerSettings, newTlsServer)
import Weft.Tools.Manual (programVersion)
import Weft.Tools.Serve.Arguments
import Weft.Tools.Serve.Config
import Weft.Tools.Serve.Cores
import Weft.Tools.Serve.Forwarded (trusted)
import Weft.Tools.Serve.Listeners
import Weft.Tools.Serve.Say
import Weft.Tools.Serve.Settings
import Weft.Tools.Serve.Site
import Weft.Tools.Serve.Stack
import Weft.Tools.Serve.Systemd
import Weft.Watchdog (setWatchdog)

-- | The subcommand; is it asked for completions?
serveCommand :: Bool -> Mod CommandFields (IO ())
serveCommand completing = Options.command "serve" (info (serve <$> arguments completing <**> infoOption programVersion (long "version" <> (if completing then hidden else internal))) (progDesc text <> footerDoc (unChunk paragraphs) <> failureCode 2))
  where
    text = "Serve a folder over HTTP: weft serve DIR [--FLAG VALUE ...]. Defaults are in parentheses."
    paragraphs = vsepChunks (map (vcatChunks . map stringChunk) helpText)

-- | What happens to a server that runs.
data Event = Told | Hung | Failed

serve :: Arguments -> IO ()
serve given = do
  Loaded fromFile sources <- load given >>= either (refuse 2) pure
  let settings = sourcesMain sources
  when (argumentCheck given) (check sources)
  mapM_ (either (refuse 1) pure) =<< mapM folderExists (foldersOf sources)
  processors <- availableCores
  setNumCapabilities (maybe processors (min 256) (cores settings))
  mapM_ preferBackend (backend settings)
  mapM_ (setWatchdog . Just) (watchdog settings)
  choice <- backendChoice
  forM_ (choiceRefused choice) $ \(name, why) ->
    say ("weft: " <> name <> " cannot be used (" <> why <> "); using " <> choiceBackend choice)
  tls <- loadCertificates sources `catch` cannot
  inherited <- inheritedSockets `catch` cannot
  (files, bounded) <- withinDescriptors sources (length inherited)
  events <- newChan
  onSignals events
  (`catch` cannot) . withSite sources files $ \site ->
    withStackListeners (stack settings) (port settings) $ \transports st ->
      withMain settings inherited (serverOptions settings site tls bounded) {optionTransports = transports} (siteApplication site) $ \server addresses ->
        withRedirecting settings (serverOptions settings site Nothing bounded) (siteRedirecting site (portIn addresses)) $ \redirecting -> do
          siteListens site server
          mapM_ (siteStack site) st
          announce settings (foldersOf sources) choice (not (null inherited)) addresses
          forM_ (server : redirecting) (\s -> void (forkIO (waitServer s >> writeChan events Failed)))
          notify Ready
          running (Process given site tls (server : redirecting) events) fromFile settings
  where
    cannot e = refuse 1 (explained e)
    portIn addresses = case [fromIntegral p | Just p <- map portNumber addresses] of
      p : _ -> p
      [] -> 443 :: Int
    portNumber address = case address of
      SockAddrInet p _ -> Just p
      SockAddrInet6 p _ _ _ -> Just p
      _ -> Nothing

-- | The engine's options by the settings.
serverOptions :: Settings -> Site -> Maybe TlsServer -> Limits -> Options
serverOptions settings site tls bounded =
  defaultOptions
    { optionTls = tls,
      optionLimits = Just bounded,
      optionOnRefused = siteRefused site,
      optionProxy = if null (trustedProxies settings) then Nothing else Just (trusted (trustedProxies settings))
    }

engineSettings :: Settings -> Http.Settings
engineSettings settings = (if http2 settings then id else setHTTP2Disabled) . announced . setOnException failed . setTimeout (timeout settings) $ defaultSettings
  where
    failed _ e = when (defaultShouldDisplayException e) (complain (displayException e))
    announced = case proxyProtocol settings of
      ProxyProtocolNone -> setProxyProtocolNone
      ProxyProtocolOptional -> setProxyProtocolOptional
      ProxyProtocolRequired -> setProxyProtocolRequired

-- | Serve on the sockets that are given, or where the settings say; the action gets to know where that is.
withMain :: Settings -> [Socket] -> Options -> Application -> (Server -> [SockAddr] -> IO a) -> IO a
withMain settings inherited options app act
  | null inherited && not (null (listens settings)) = withListeners (listens settings) $ \sockets addresses ->
    withServerWith options {optionListeners = sockets} http app (`act` addresses)
  | otherwise =
    (`catch` cannotListen) . withServerWith options {optionListeners = inherited} (setHost (fromString (host settings)) (setPort (port settings) http)) app $ \server ->
      act server [serverAddress server]
  where
    http = engineSettings settings
    cannotListen e = refuse 1 (cannotListenOn (host settings <> " port " <> show (port settings)) e <> ". Another one: --port")

-- | The listeners that send clients to HTTPS, if there are to be any.
withRedirecting :: Settings -> Options -> Application -> ([Server] -> IO a) -> IO a
withRedirecting settings options app act
  | null (httpsRedirect settings) = act []
  | otherwise = withListeners (httpsRedirect settings) $ \sockets _ ->
    withServerWith options {optionListeners = sockets, optionLimits = fewer <$> optionLimits options} (engineSettings settings) app (act . pure)
  where
    fewer given = given {limitConnections = redirectingConnections given}

-- | What a server that runs needs to know.
data Process = Process
  { processArguments :: Arguments,
    processSite :: Site,
    processTls :: Maybe TlsServer,
    processServers :: [Server],
    processEvents :: Chan Event
  }

-- | Until it ends, with what was given and the settings that this made.
running :: Process -> Map.Map String Given -> Settings -> IO ()
running process given settings = do
  event <- readChan (processEvents process)
  case event of
    Failed -> say "weft: the listening socket failed" >> exitWith (ExitFailure 1)
    Hung -> reload process given settings >>= uncurry (running process)
    Told -> do
      notify Stopping
      siteEnds (processSite process)
      say "weft: ending: finishing what is under way"
      clean <- and <$> mapConcurrently (`drainServer` drain settings) (processServers process)
      unless clean (say ("weft: some requests did not end in " <> show (toSeconds (drain settings)) <> " seconds and were dropped"))

-- | What was given, by name and by host and name, and what that comes to.
data Loaded = Loaded (Map.Map String Given) Sources

-- | The settings, or what is wrong with them.
load :: Arguments -> IO (Either String Loaded)
load given = do
  file <- maybe (pure (Right noConfig)) readConfig (argumentConfig given)
  pure $ do
    config <- file
    let whole = Map.union (argumentGiven given) (configGiven config)
        hosts = fmap (`Map.union` whole) (configHosts config)
    settings <- wrong "" (settingsFrom whole)
    virtual <- Map.traverseWithKey (\name -> wrong ("hosts." <> name <> ".") . settingsFrom) hosts
    consistent (not (Map.null hosts)) settings
    pure (Loaded (Map.insert "" whole hosts) (Sources settings virtual))
  where
    wrong place = either (\(name, why) -> Left (place <> name <> ": " <> why)) Right

-- | What cannot be seen in a single setting.
consistent :: Bool -> Settings -> Either String ()
consistent hosts settings
  | Nothing <- folder settings, not hosts = Left "which folder? weft serve DIR, or 'folder' in the file"
  | Just _ <- certificate settings, Nothing <- key settings = Left "a certificate needs its key: --key"
  | Nothing <- certificate settings, Just _ <- key settings = Left "a key needs its certificate: --certificate"
  | Nothing <- certificate settings, not (null (httpsRedirect settings)), not hosts = Left "--https-redirect needs a certificate, as there is no HTTPS without one: --certificate, --key"
  | Just _ <- stack settings, not (null (listens settings)) = Left "--stack has one address, so --listen cannot be given as well"
  | otherwise = Right ()

-- | Read and open everything again. What fails says so and stays as it was.
reload :: Process -> Map.Map String Given -> Settings -> IO (Map.Map String Given, Settings)
reload process old settings = do
  notify Reloading
  -- Lines that cannot be got rid of must not keep the server from ending.
  attempt "the log" (within (seconds 5) (reopenSite (processSite process)) >>= maybe (ioError (userError "it takes no lines")) pure)
  attempt "the certificate" (mapM_ reloadTlsServer (processTls process))
  loaded <- load (processArguments process)
  next <- case loaded of
    Left why -> (old, settings) <$ warn (why <> "; nothing is changed")
    Right (Loaded given sources) -> do
      changed <- try (changeSite (processSite process) sources)
      case changed of
        Left e -> (old, settings) <$ warn (explained e <> "; nothing is changed")
        Right () -> do
          let fixed = concat [map (place name) (restartNeeded (Map.findWithDefault Map.empty name old) new) | (name, new) <- Map.toList given]
          unless (null fixed) (warn ("a new start is needed to change " <> unwords (own fixed)))
          say "weft: reloaded"
          pure (given, sourcesMain sources)
  next <$ notify Ready
  where
    attempt what act = try act >>= either (\e -> warn (what <> " stays as it was: " <> explained e)) pure
    place name setting = if null name then setting else "hosts." <> name <> "." <> setting
    -- Hosts have the server's settings, too: what is the server's is said once.
    own names = [n | n <- names, not ("hosts." `isPrefixOf` n) || any (`isSuffixOf` n) [".certificate", ".key"]]

-- | Say whether it could serve, and end.
check :: Sources -> IO a
check sources = do
  folders <- concatMap (either pure (const [])) <$> mapM folderExists (foldersOf sources)
  rest <- if null folders then lefts . pure <$> try (withSite sources' Nothing (const (void (loadCertificates sources)))) else pure []
  let faults = folders <> map explained rest
  mapM_ warn faults
  if null faults then say "weft: the configuration is right" >> exitSuccess else exitWith (ExitFailure 2)
  where
    -- Opening a log would make it.
    sources' = sources {sourcesMain = (sourcesMain sources) {logTo = Nothing}}

foldersOf :: Sources -> [FilePath]
foldersOf sources = nub (mapMaybe folder (sourcesMain sources : Map.elems (sourcesHosts sources)))

folderExists :: FilePath -> IO (Either String ())
folderExists path = do
  isFolder <- doesDirectoryExist path
  exists <- doesPathExist path
  pure (if isFolder then Right () else Left (path <> (if exists then " is not a folder" else " does not exist")))

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

-- | How many files may stay open, and the limits with no more connections than there are descriptors left: one in eight is for
-- files, some are for listening, for folders and for the event managers.
withinDescriptors :: Sources -> Int -> IO (Maybe OpenFiles, Limits)
withinDescriptors sources inherited = do
  descriptors <- raiseOpenFiles
  caps <- getNumCapabilities
  case descriptors of
    Nothing -> pure (Nothing, wanted)
    Just n -> do
      let own = 24 + 4 * caps + inherited + caps * length (listens settings <> httpsRedirect settings) + Map.size (sourcesHosts sources)
          free = n - n `div` 8 - own
          most = max 1 (if null (httpsRedirect settings) then free else free * 8 `div` 9)
      files <- newOpenFiles (max 4 (n `div` 8))
      if limitConnections wanted > most || limitConnections wanted <= 0
        then do
          warn ("at most " <> show most <> " connections, for this process may have " <> show n <> " descriptors (ulimit -n)")
          pure (Just files, wanted {limitConnections = most})
        else pure (Just files, wanted)
  where
    settings = sourcesMain sources
    wanted = limits settings

-- | Of the limit, an eighth for the listeners that redirect.
redirectingConnections :: Limits -> Int
redirectingConnections given = if limitConnections given <= 0 then 0 else max 1 (limitConnections given `div` 8)

-- | The certificates of the server and of its hosts, if there are any. A client gets the one for the name that it asks for (SNI), or
-- the first.
loadCertificates :: Sources -> IO (Maybe TlsServer)
loadCertificates sources = case nub pairs of
  [] -> pure Nothing
  files -> Just <$> newTlsServer defaultTlsServerSettings {tlsCertificates = map (uncurry CertificateFiles) files, tlsProtocols = map fromString (["h2" | http2 settings] <> ["http/1.1"])}
  where
    settings = sourcesMain sources
    pairs = [(chain, secret) | s <- settings : Map.elems (sourcesHosts sources), Just chain <- [certificate s], Just secret <- [key s]]

-- | Say where it is to be found.
announce :: Settings -> [FilePath] -> Choice -> Bool -> [SockAddr] -> IO ()
announce settings folders choice inherited addresses = do
  n <- getNumCapabilities
  say $
    "weft: serving " <> intercalate ", " folders <> " at " <> intercalate ", " (map url addresses)
      <> (" (" <> show n <> (if n == 1 then " core, " else " cores, ") <> choiceBackend choice <> ")")
  where
    scheme = maybe "http://" (const "https://") (certificate settings)
    url address = case address of
      SockAddrUnix file -> "unix:" <> file
      _ -> scheme <> name address <> ":" <> digits address <> "/"
    digits = reverse . takeWhile (/= ':') . reverse . show
    name address
      | inherited || not (null (listens settings)) = case address of
        SockAddrInet _ 0 -> "localhost"
        SockAddrInet6 _ _ (0, 0, 0, 0) _ -> "localhost"
        _ -> reverse (drop 1 (dropWhile (/= ':') (reverse (show address))))
      | Just _ <- stack settings = reverse (drop 1 (dropWhile (/= ':') (reverse (show address))))
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

-- Saying -----------------------------------------------------------------------------------

explained :: IOException -> String
explained e = maybe "" (<> ": ") (ioe_filename e) <> ioe_description e

refuse :: Int -> String -> IO a
refuse status text = warn text >> exitWith (ExitFailure status)
