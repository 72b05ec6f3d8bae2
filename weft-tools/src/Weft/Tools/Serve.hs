-- |
-- Description : @weft serve@
--
-- A static web server for the files of a folder. Exit status: 0 after a shutdown by a signal, 1 with a message if it
-- cannot serve, 2 for wrong arguments or a wrong configuration file.
module Weft.Tools.Serve
  ( serveCommand,
  )
where

import Control.Concurrent (forkIO, getNumCapabilities, setNumCapabilities)
import Control.Concurrent.Async (mapConcurrently)
import Control.Concurrent.Chan
import Control.Concurrent.MVar
import Control.Exception (catch, displayException, try)
import Control.Monad (forM_, unless, void, when, (<=<))
import Data.Bifunctor (first)
import Data.List (intercalate)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust, isNothing)
import Data.String (fromString)
import GHC.IO.Exception (IOException (ioe_description))
import Network.Wai (Application)
import Options.Applicative hiding (command)
import qualified Options.Applicative as Options
import Options.Applicative.Help (stringChunk, unChunk, vcatChunks, vsepChunks)
import System.Exit (ExitCode (..), exitSuccess, exitWith)
import System.Posix.Process (exitImmediately)
import System.Posix.Signals (Handler (Catch), Signal, installHandler, sigHUP, sigINT, sigTERM)
import Weft.Backend (Choice (..), backendChoice, preferBackend)
import Weft.Duration (seconds, toSeconds)
import Weft.Http hiding (Settings)
import qualified Weft.Http as Http
import Weft.Http.Client (ClientProtocol (..), Url (..))
import Weft.Socket (SockAddr (..), Socket)
import Weft.Timer (within)
import Weft.Tls (replaceCertificates, servedNames)
import Weft.Tools.Manual (programVersion)
import Weft.Tools.Serve.Arguments
import Weft.Tools.Serve.Config
import Weft.Tools.Serve.Cores
import Weft.Tools.Serve.Descriptors
import Weft.Tools.Serve.Files
import Weft.Tools.Serve.Forwarded (trusted)
import Weft.Tools.Serve.Listeners
import Weft.Tools.Serve.Messages
import Weft.Tools.Serve.Settings
import Weft.Tools.Serve.Site
import Weft.Tools.Serve.Stack
import Weft.Tools.Serve.Systemd
import Weft.Tools.Serve.Values (Listen, ProxyRule (..), overlap)
import Weft.Watchdog (setWatchdog)

-- | The subcommand. The argument is true if a shell asks for completions.
serveCommand :: Bool -> Mod CommandFields (IO ())
serveCommand completing = Options.command "serve" (info (serve <$> arguments completing <**> infoOption programVersion (long "version" <> (if completing then hidden else internal))) (progDesc text <> footerDoc (unChunk paragraphs) <> failureCode 2))
  where
    text = "Serve a folder over HTTP: weft serve DIR [--FLAG VALUE ...]. Defaults are in parentheses."
    paragraphs = vsepChunks (map (vcatChunks . map stringChunk) helpText)

-- | Events of a running server: a signal to shut down, SIGHUP, and a failure of a listening socket.
data Event = ShutDown | Reload | ListenerFailed !(Maybe IOException)

serve :: Arguments -> IO ()
serve given = do
  Loaded values sources <- load given >>= either (\faults -> mapM_ logWarning faults >> exitWith (ExitFailure 2)) pure
  let settings = sourcesMain sources
  when (argumentCheck given) (check sources)
  mapM_ (either (refuse 1) pure) =<< mapM folderExists (foldersOf sources)
  processors <- availableCores
  setNumCapabilities (maybe processors (min 256) (cores settings))
  mapM_ preferBackend (backend settings)
  mapM_ (setWatchdog . Just) (watchdog settings)
  choice <- backendChoice
  forM_ (choiceRefused choice) $ \(name, why) ->
    logInfo ("weft: " <> name <> " cannot be used (" <> why <> "); using " <> choiceBackend choice)
  tls <- loadCertificates sources `catch` cannot
  inherited <- inheritedSockets `catch` cannot
  warnOf sources tls
  (files, bounded) <- withinDescriptors sources (length inherited) `catch` cannot
  events <- newChan
  onSignals events
  (`catch` cannot) . withSite sources files $ \site ->
    withStackListeners (stack settings) (port settings) (limitSendBuffer (limits settings)) $ \transports st ->
      withMain settings inherited (serverOptions settings site tls bounded) {optionTransports = transports} (siteApplication site) $ \server addresses ->
        withRedirecting settings (serverOptions settings site Nothing bounded) (siteRedirecting site (portIn addresses)) $ \redirecting ->
          withMetrics settings (serverOptions settings site Nothing bounded) (siteMetrics site) $ \measuring places -> do
            let servers = server : redirecting <> measuring
            siteListens site server
            mapM_ (siteStack site) st
            announce sources choice (not (null inherited)) addresses
            unless (null places) (logInfo ("weft: metrics at " <> intercalate ", " (map metricsUrl places)))
            forM_ servers (\s -> void (forkIO (try (waitServer s) >>= writeChan events . ListenerFailed . either Just (const Nothing))))
            notify Ready
            running (Process given values site tls servers events) settings
  where
    cannot e = refuse 1 (explained e)
    portIn addresses = case [fromIntegral p | Just p <- map portNumber addresses] of
      p : _ -> p
      [] -> 443 :: Int
    portNumber address = case address of
      SockAddrInet p _ -> Just p
      SockAddrInet6 p _ _ _ -> Just p
      _ -> Nothing

-- | The options of "Weft.Http" for the settings.
serverOptions :: Settings -> Site -> Maybe TlsServer -> Limits -> Options
serverOptions settings site tls bounded =
  defaultOptions
    { optionTls = tls,
      optionLimits = Just bounded,
      optionOnRefused = siteRefused site,
      optionProxy = if null (trustedProxies settings) then Nothing else Just (trusted (trustedProxies settings))
    }

engineSettings :: Settings -> Http.Settings
engineSettings settings = spoken . announced . setOnException failed . setTimeout (timeout settings) $ defaultSettings
  where
    spoken = if http2 settings then setHTTP2Cleartext (h2c settings) else setHTTP2Disabled
    failed _ e = when (defaultShouldDisplayException e) (logError (displayException e))
    announced = case proxyProtocol settings of
      ProxyProtocolNone -> setProxyProtocolNone
      ProxyProtocolOptional -> setProxyProtocolOptional
      ProxyProtocolRequired -> setProxyProtocolRequired

-- | Serve on the given sockets or, if there are none, on the addresses of the settings. The action gets the addresses.
withMain :: Settings -> [Socket] -> Options -> Application -> (Server -> [SockAddr] -> IO a) -> IO a
withMain settings inherited options app act
  | null inherited && not (null (listens settings)) = withServerAt (wanted settings listens [httpsRedirect, metricsListen]) options http app act
  | otherwise =
    (`catch` cannotListen) . withServerWith options {optionListeners = inherited} (setHost (fromString (host settings)) (setPort (port settings) http)) app $ \server ->
      act server [serverAddress server]
  where
    http = engineSettings settings
    cannotListen e = refuse 1 (cannotListenOn (host settings <> " port " <> show (port settings)) e <> "; --port and --host choose another address")

-- | The servers that redirect clients to HTTPS, if the settings ask for them.
withRedirecting :: Settings -> Options -> Application -> ([Server] -> IO a) -> IO a
withRedirecting settings options app act =
  withBeside (wanted settings httpsRedirect [listens, metricsListen]) options {optionLimits = redirectingLimits <$> optionLimits options} (engineSettings settings) app (const . act)

-- | The servers for the pages of metrics, if the settings ask for them, and their addresses. They have no proxies.
withMetrics :: Settings -> Options -> Application -> ([Server] -> [SockAddr] -> IO a) -> IO a
withMetrics settings options =
  withBeside
    (wanted settings metricsListen [listens, httpsRedirect])
    options {optionLimits = metricsLimits <$> optionLimits options, optionProxy = Nothing}
    (engineSettings settings {proxyProtocol = ProxyProtocolNone})

-- | The addresses of a server, by a setting, and of the program's others.
wanted :: Settings -> (Settings -> [Listen]) -> [Settings -> [Listen]] -> Wanted
wanted settings own others = Wanted (own settings) (concatMap ($ settings) others) (socketMode settings)

-- | A server besides the main one. None without an address.
withBeside :: Wanted -> Options -> Http.Settings -> Application -> ([Server] -> [SockAddr] -> IO a) -> IO a
withBeside places options http app act
  | null (wantedAddresses places) = act [] []
  | otherwise = withServerAt places options http app (act . (: []))

-- | A server on its own addresses.
withServerAt :: Wanted -> Options -> Http.Settings -> Application -> (Server -> [SockAddr] -> IO a) -> IO a
withServerAt places options http app act = withListeners places $ \sockets addresses ->
  withServerWith options {optionListeners = sockets, optionSharedListeners = False} http app (`act` addresses)

-- | The parts of a running server.
data Process = Process
  { processArguments :: Arguments,
    -- | The values with which it was started, for those that a reload cannot change.
    processValues :: Values,
    processSite :: Site,
    processTls :: Maybe TlsServer,
    processServers :: [Server],
    processEvents :: Chan Event
  }

-- | Handle events until the server shuts down.
running :: Process -> Settings -> IO ()
running process settings = do
  event <- readChan (processEvents process)
  case event of
    ListenerFailed why -> logError ("weft: the listening socket failed" <> maybe "" ((": " <>) . ioe_description) why) >> exitWith (ExitFailure 1)
    Reload -> reload process settings >>= running process
    ShutDown -> do
      notify Stopping
      siteEnds (processSite process)
      logInfo "weft: shutting down: finishing requests in progress"
      clean <- and <$> mapConcurrently (`drainServer` drain settings) (processServers process)
      unless clean (logInfo ("weft: some requests did not end in " <> show (toSeconds (drain settings)) <> " seconds and were dropped"))

-- | The given values: of the whole server, by the empty name, and the own values of each host, by its name.
type Values = Map.Map String Given

-- | The given values, with the settings made of them.
data Loaded = Loaded Values Sources

-- | Read the settings. 'Left' is the error messages.
load :: Arguments -> IO (Either [String] Loaded)
load given = do
  file <- maybe (pure (Right noConfig)) readConfig (argumentConfig given)
  pure $ do
    config <- file
    let whole = Map.union (argumentGiven given) (configGiven config)
        values = Map.insert "" whole (configHosts config)
    sources <- first (map (\(name, why) -> name <> ": " <> why)) $ do
      settings <- settingsFrom whole
      -- The file's values are right each for itself.
      Sources settings <$> mapM (settingsFrom . (`Map.union` whole)) (configHosts config)
    case concatMap (uncurry paired) (Map.toList values) <> inconsistent sources <> withoutEffect (argumentGiven given) (configGiven config) of
      [] -> Right (Loaded values sources)
      faults -> Left faults

-- | The address that is given although 'listens' overrides it, on the command line or in the file. On the command line,
-- 'listens' overrides the addresses of the file.
withoutEffect :: Given -> Given -> [String]
withoutEffect onLine inFile = ["--listen is instead of --host and --port, so --" <> name <> " cannot be given as well" | name <- take 1 (filter (`Map.member` single) ["host", "port"])]
  where
    single
      | listening onLine = onLine
      | listening inFile = Map.union onLine inFile
      | otherwise = Map.empty
    listening = maybe False (not . null) . Map.lookup "listen"

-- | What is missing of a certificate and its key. A host has both from one place: not one of them from the whole file.
paired :: String -> Given -> [String]
paired name own = case (Map.member "certificate" own, Map.member "key" own) of
  (True, False) -> [place <> "a certificate needs its key: --key"]
  (False, True) -> [place <> "a key needs its certificate: --certificate"]
  _ -> []
  where
    place = if null name then "" else "hosts." <> name <> ": "

-- | Errors that concern several settings.
inconsistent :: Sources -> [String]
inconsistent sources =
  concat
    [ ["no folder: give weft serve DIR, or 'folder' in the configuration file" | isNothing (folder settings), null (proxies settings), Map.null hosts],
      ["hosts." <> name <> ": no folder, no redirect, and no proxy" | (name, s) <- Map.toList hosts, isNothing (folder s), null (redirects s), null (proxies s)],
      ["--proxy-send needs servers without TLS: the header would have to come before the handshake" | s <- settings : Map.elems hosts, isJust (proxySend s), any (any (urlSecure . snd) . proxyServers) (proxies s)],
      ["--proxy-send needs servers of HTTP/1.1: each request has a connection of its own" | s <- settings : Map.elems hosts, isJust (proxySend s), any (any ((/= OnlyHttp1) . fst) . proxyServers) (proxies s)],
      ["--proxy-check needs --proxy, whose servers are checked" | isJust (proxyCheckPath settings), all (null . proxies) (settings : Map.elems hosts)],
      ["--https-redirect needs a certificate, as there is no HTTPS without one: --certificate, --key" | null (certificatesOf sources), redirecting],
      ["--client-ca needs a certificate, as without HTTPS no client shows its own: --certificate, --key" | null (certificatesOf sources), isJust (clientCa settings)],
      ["--client-ca-optional needs --client-ca, with the authorities of those certificates that clients may have" | clientCaOptional settings, isNothing (clientCa settings)],
      ["--h2c is HTTP/2 without TLS, and with a certificate only HTTPS is spoken, which has HTTP/2 already" | h2c settings, not (null (certificatesOf sources))],
      ["--h2c and --no-http2 cannot both be given" | h2c settings, not (http2 settings)],
      ["--" <> name <> " has an address of --" <> other | (name, own, other, others) <- besides, or [overlap a b | a <- own, b <- others]],
      ["--stack has one address, so --listen cannot be given as well" | stacked, not (null (listens settings))],
      ["--stack has an address, so --host cannot be given as well" | stacked, host settings /= host defaults],
      ["--https-redirect listens on the kernel's network, so it cannot be given with --stack" | stacked, redirecting],
      [ "--proxy-protocol needs --trusted-proxy, with the addresses of the proxies, or unix for whoever connects to a Unix socket: otherwise every client could choose the address that is logged and limited"
        | proxyProtocol settings /= ProxyProtocolNone,
          null (trustedProxies settings)
      ]
    ]
  where
    settings = sourcesMain sources
    hosts = sourcesHosts sources
    besides =
      [ ("https-redirect", httpsRedirect settings, "listen", listens settings),
        ("metrics-listen", metricsListen settings, "listen", listens settings),
        ("metrics-listen", metricsListen settings, "https-redirect", httpsRedirect settings)
      ]
    redirecting = not (null (httpsRedirect settings))
    stacked = isJust (stack settings)

-- | Read the settings again and reopen the files. If a part fails, it is reported and stays as it was.
reload :: Process -> Settings -> IO Settings
reload process settings = do
  notify Reloading
  -- A log that cannot be written must not block the events of the server.
  attempt "the log" (within (seconds 5) (reopenSite (processSite process)) >>= maybe (ioError (userError "it takes no lines")) pure)
  loaded <- load (processArguments process)
  next <- case loaded of
    Left faults -> do
      logWarning (intercalate "; " faults <> "; the settings stay as they were")
      settings <$ certificates reloadTlsServer
    Right (Loaded values sources) -> do
      changed <- try (changeSite (processSite process) sources)
      case changed of
        Left e -> do
          logWarning (explained e <> "; the settings stay as they were")
          settings <$ certificates reloadTlsServer
        Right () -> do
          certificates (if secured sources then (`replaceCertificates` certificateSources sources) else reloadTlsServer)
          let fixed = unchangeable (processValues process) values <> ["certificate" | secured sources /= isJust (processTls process)]
          warnOf sources (processTls process)
          unless (null fixed) (logWarning ("a restart is needed to change " <> unwords fixed))
          logInfo "weft: reloaded"
          pure (sourcesMain sources)
  next <$ notify Ready
  where
    attempt what act = try act >>= either (kept what) pure
    kept what e = logWarning (what <> " stays as it was: " <> explained e)
    certificates load' = mapM_ (mapM_ (kept "a certificate") <=< load') (processTls process)
    -- HTTPS is switched on or off by a restart only.
    secured = not . null . certificatesOf

-- | Warn of mistakes with which the server can serve.
warnOf :: Sources -> Maybe TlsServer -> IO ()
warnOf sources tls = do
  mapM_ logWarning =<< missingPages sources
  forM_ tls $ \server -> servedNames server >>= mapM_ logWarning . unusedCertificates sources

-- | The names of the settings that differ and need a restart. A host that there is no more, or was not before, has no
-- values.
unchangeable :: Values -> Values -> [String]
unchangeable old new = [place name <> setting | name <- Map.keys (Map.union old new), setting <- restartNeeded (valuesOf name old) (valuesOf name new)]
  where
    valuesOf = Map.findWithDefault Map.empty
    place name = if null name then "" else "hosts." <> name <> "."

-- | Check the files that the settings name, report, and exit.
check :: Sources -> IO a
check sources = do
  faults <- faultsOf sources
  mapM_ logWarning faults
  if null faults then logInfo "weft: the configuration has no errors" >> exitSuccess else exitWith (ExitFailure 2)

-- Beginning --------------------------------------------------------------------------------

-- | Print the addresses at which the server can be reached.
announce :: Sources -> Choice -> Bool -> [SockAddr] -> IO ()
announce sources choice inherited addresses = do
  n <- getNumCapabilities
  logInfo $
    "weft: serving " <> (if null (foldersOf sources) then intercalate " and " (["proxies" | not (all (null . proxies) everyHost)] <> ["redirects" | not (all (null . redirects) everyHost)]) else intercalate ", " (foldersOf sources)) <> " at " <> intercalate ", " (map url addresses)
      <> (" (" <> show n <> (if n == 1 then " core, " else " cores, ") <> choiceBackend choice <> ")")
  where
    settings = sourcesMain sources
    everyHost = settings : Map.elems (sourcesHosts sources)
    url address = case address of
      SockAddrUnix file -> "unix:" <> file
      _ -> scheme <> name address <> ":" <> portText address <> "/"
    scheme = if null (certificatesOf sources) then "http://" else "https://"
    name address
      | inherited || not (null (listens settings)) || isJust (stack settings) = reachableHost address
      | otherwise = case host settings of
        '*' : _ -> "localhost"
        h | ':' `elem` h -> "[" <> h <> "]"
        h -> h

-- | The page of metrics at an address.
metricsUrl :: SockAddr -> String
metricsUrl address = case address of
  SockAddrUnix file -> "unix:" <> file
  _ -> "http://" <> reachableHost address <> ":" <> portText address <> "/metrics"

-- | The port of an address of TCP, and a host that reaches it.
portText, reachableHost :: SockAddr -> String
portText = reverse . takeWhile (/= ':') . reverse . show
reachableHost address = case address of
  SockAddrInet _ 0 -> "localhost"
  SockAddrInet6 _ _ (0, 0, 0, 0) _ -> "localhost"
  _ -> reverse (drop 1 (dropWhile (/= ':') (reverse (show address))))

-- | Turn signals into events: the first SIGTERM or SIGINT, and each SIGHUP. A second SIGTERM or SIGINT ends the
-- process.
onSignals :: Chan Event -> IO ()
onSignals events = do
  ending <- newEmptyMVar
  let told = do
        isFirst <- tryPutMVar ending ()
        if isFirst then writeChan events ShutDown else exitImmediately (ExitFailure 130)
  forM_ [sigTERM, sigINT] (`on` told)
  sigHUP `on` writeChan events Reload
  where
    on :: Signal -> IO () -> IO ()
    on signal act = void (installHandler signal (Catch act) Nothing)

-- Messages ---------------------------------------------------------------------------------

refuse :: Int -> String -> IO a
refuse status text = logWarning text >> exitWith (ExitFailure status)
