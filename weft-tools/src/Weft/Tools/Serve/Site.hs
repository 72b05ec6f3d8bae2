-- |
-- Description : The application that is served, and its change while it is
--
-- Folders, with a log, counters, and the pages @\/metrics@ and @\/healthz@ before them. The settings that can be
-- changed are looked up by each request.
module Weft.Tools.Serve.Site
  ( -- * Sites
    Site,
    Sources (..),
    withSite,
    siteApplication,
    siteRedirecting,
    siteRefused,
    siteListens,
    siteStack,
    siteEnds,

    -- * Changes
    changeSite,
    reopenSite,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import Control.Exception (bracket, onException)
import Control.Monad (forM_, unless, void)
import qualified Data.ByteString.Char8 as B
import Data.Char (toLower)
import Data.IORef
import Data.List (isPrefixOf)
import qualified Data.Map.Strict as Map
import Network.HTTP.Types (mkStatus)
import Network.Wai (Application, Middleware, Request (..))
import Weft.AccessLog
import Weft.Exchange (observing)
import Weft.Http hiding (Settings)
import Weft.Prometheus
import Weft.Socket (SockAddr)
import Weft.Static (OpenFiles)
import Weft.Tcp (Stack)
import Weft.Tools.Serve.Forwarded
import Weft.Tools.Serve.Host
import Weft.Tools.Serve.Respond
import Weft.Tools.Serve.Say
import Weft.Tools.Serve.Settings
import Weft.Tools.Tcp.Connections (connectionsPage, stackFamilies)

-- | What is served.
data Site = Site
  { siteCounters :: RequestCounters,
    siteLog :: Maybe AccessLog,
    -- | Shared by all folders.
    siteFiles :: Maybe OpenFiles,
    siteAddresses :: Addresses,
    -- | Those that cannot be changed.
    siteFixed :: Settings,
    -- | Read by each request, written by reloads.
    siteLive :: IORef Live,
    -- | Read by who wants figures, written once, when the server listens.
    siteServer :: IORef (Maybe Server),
    -- | Likewise; none where the kernel's is used.
    siteTcp :: IORef (Maybe Stack),
    -- | Likewise, when it is to end.
    siteDraining :: IORef Bool
  }

-- | The settings of the server, and of each virtual host by its name.
data Sources = Sources
  { sourcesMain :: Settings,
    sourcesHosts :: Map.Map String Settings
  }

-- | What a reload replaces.
data Live = Live
  { liveSettings :: Settings,
    -- | For names that are not among the others.
    liveMain :: Maybe Host,
    liveHosts :: Map.Map String Host
  }

hostsOf :: Live -> [Host]
hostsOf live = maybe id (:) (liveMain live) (Map.elems (liveHosts live))

-- | Open the folders, and the log, for as long as the action takes. Throws an 'IOError' when that cannot be done.
withSite :: Sources -> Maybe OpenFiles -> (Site -> IO a) -> IO a
withSite sources files act =
  bracket (open files Nothing sources >>= newIORef) (\ref -> readIORef ref >>= mapM_ closeHost . hostsOf) $ \live -> withLog $ \accessLog -> do
    counters <- newRequestCounters
    addresses <- newAddresses
    server <- newIORef Nothing
    tcp <- newIORef Nothing
    draining <- newIORef False
    act (Site counters accessLog files addresses settings live server tcp draining)
  where
    settings = sourcesMain sources
    withLog run' = case logTo settings of
      Nothing -> run' Nothing
      Just path -> withAccessLog defaultLogSettings {logPath = path, logFormat = logAs settings, logOnError = lost} (run' . Just)
    lost e n = complain ("access log: " <> show n <> " lines lost: " <> show e)

-- | Open what is not open yet. Throws an 'IOError', and closes what it has opened, when something cannot be.
open :: Maybe OpenFiles -> Maybe Live -> Sources -> IO Live
open files old sources = do
  main' <- if folder settings == Nothing then pure Nothing else Just <$> openHost files (old >>= liveMain) settings
  hosts <- go [] (Map.toList (sourcesHosts sources)) `onException` mapM_ (closeUnless (old >>= liveMain)) main'
  pure (Live settings main' (Map.fromList hosts))
  where
    settings = sourcesMain sources
    go done entries = case entries of
      [] -> pure done
      (name, s) : rest -> do
        let before = old >>= Map.lookup name . liveHosts
        host' <- openHost files before s
        go ((name, host') : done) rest `onException` closeUnless before host'
    closeUnless before host' = unless (any (sameFolder host') before) (closeHost host')

-- | The application.
siteApplication :: Site -> Application
siteApplication site = pages site (forwarded (trustedProxies fixed) (limitPerAddress (limits fixed)) (siteAddresses site) (observed site files))
  where
    fixed = siteFixed site
    files request respond = do
      live <- readIORef (siteLive site)
      hostApplication' live request respond

-- | By the name that a request is for.
hostApplication' :: Live -> Application
hostApplication' live request respond
  | Map.null (liveHosts live), Just h <- liveMain live = hostApplication h request respond
  | otherwise = case named of
    Just h -> hostApplication h request respond
    Nothing -> respond (plainText (mkStatus 421 (B.pack "Misdirected Request")) [])
  where
    named = case filter (`Map.member` liveHosts live) (name : wildcards name) of
      n : _ -> Map.lookup n (liveHosts live)
      [] -> liveMain live
    name = map toLower (withoutPort (maybe "" B.unpack (requestHeaderHost request)))
    -- The last colon outside of brackets; a dot may end a name.
    withoutPort text
      | "[" `isPrefixOf` text = takeWhile (/= ']') text <> "]"
      | otherwise = let n = takeWhile (/= ':') text in if drop (length n - 1) n == "." then take (length n - 1) n else n
    wildcards n = case dropWhile (/= '.') n of
      '.' : rest -> ("*." <> rest) : wildcards rest
      _ -> []

-- | Log and count.
observed :: Site -> Middleware
observed site app = maybe counted logged (siteLog site)
  where
    counters = siteCounters site
    -- Each of them is compiled on its own, without anything to be made for a call in between.
    counted = observing (countBegin counters) (countExchange counters) app
    logged accessLog = observing (countBegin counters) (both accessLog) app
    both accessLog request exchange = countExchange counters request exchange >> logExchange accessLog request exchange

-- | The application of listeners that only send clients to HTTPS on a port.
siteRedirecting :: Site -> Int -> Application
siteRedirecting site httpsPort = observed site $
  toHttps httpsPort $ \request respond -> do
    live <- readIORef (siteLive site)
    hostApplication' live request respond

-- | The pages beside the folder, which are neither counted nor logged.
pages :: Site -> Middleware
pages site files = metricsPage seen (figures site) (connectionsPage seen (readIORef (siteTcp site)) (health files))
  where
    seen request = maySee request . metrics . liveSettings <$> readIORef (siteLive site)
    maySee request audience = case audience of
      Nobody -> False
      Loopback -> fromLoopback request && proxyProtocol fixed == ProxyProtocolNone && not (throughProxy (trustedProxies fixed) request)
      Proxied -> fromLoopback request
      Everybody -> True
    fixed = siteFixed site
    health app request respond = do
      live <- readIORef (siteLive site)
      (if healthz (liveSettings live) then healthPage (not <$> readIORef (siteDraining site)) app else app) request respond

-- | All that is known.
figures :: Site -> IO [Family]
figures site = do
  live <- readIORef (siteLive site)
  server <- readIORef (siteServer site)
  tcp <- readIORef (siteTcp site)
  concat
    <$> sequence
      [ requestFamilies (siteCounters site),
        maybe (pure []) serverFamilies server,
        maybe (pure []) stackFamilies tcp,
        -- Of virtual hosts' folders there are no figures by name.
        maybe (pure []) (cacheFamilies . hostStatic) (liveMain live),
        maybe (pure []) logFamilies (siteLog site),
        managerFamilies,
        fileFamilies,
        runtimeFamilies,
        processFamilies
      ]

-- | Count and log a connection that was refused.
siteRefused :: Site -> SockAddr -> Refusal -> IO ()
siteRefused site peer refusal = do
  countRefusal (siteCounters site) refusal
  forM_ (siteLog site) $ \accessLog ->
    logRefusal accessLog peer (refusalStatus refusal) (B.pack (refusalReason refusal))

-- | The server that serves it.
siteListens :: Site -> Server -> IO ()
siteListens site = writeIORef (siteServer site) . Just

-- | The stack that it is served from, if that is not the kernel's.
siteStack :: Site -> Stack -> IO ()
siteStack site = writeIORef (siteTcp site) . Just

-- | It is to end.
siteEnds :: Site -> IO ()
siteEnds site = writeIORef (siteDraining site) True

-- Changes --------------------------------------------------------------------------------

-- | Serve by other settings from now on. A cache is kept if it may be. Throws an 'IOError' when something cannot be opened, and
-- then nothing has changed. Called by one thread.
changeSite :: Site -> Sources -> IO ()
changeSite site sources = do
  old <- readIORef (siteLive site)
  new <- open (siteFiles site) (Just old) sources
  writeIORef (siteLive site) new
  -- Requests that have begun may still open files in them.
  let gone = [h | h <- hostsOf old, not (any (sameFolder h) (hostsOf new))]
  unless (null gone) (void (forkIO (threadDelay 60000000 >> mapM_ closeHost gone)))

-- | Open the log again. Throws an 'IOError' when that fails; the old one stays.
reopenSite :: Site -> IO ()
reopenSite site = mapM_ reopenLog (siteLog site)
