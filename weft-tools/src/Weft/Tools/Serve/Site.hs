-- |
-- Description : The application that is served, and reloads
--
-- The application serves the folders, writes the log, counts requests, and has the pages @\/metrics@ and @\/healthz@.
-- Each request reads the settings that a reload can change.
module Weft.Tools.Serve.Site
  ( -- * Sites
    Site,
    Sources (..),
    withSite,
    siteApplication,
    siteRedirecting,
    siteMetrics,
    siteRefused,
    siteListens,
    siteStack,
    siteEnds,

    -- * Changes
    changeSite,
    reopenSite,
  )
where

import Control.Concurrent.MVar
import Control.Exception (bracket, mask_, onException, try)
import Control.Monad (forM_, unless)
import qualified Data.ByteString.Char8 as B
import Data.Char (toLower)
import Data.IORef
import Data.List (isPrefixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Network.HTTP.Types (mkStatus, notFound404, serviceUnavailable503)
import Network.Wai (Application, Middleware, Request (..))
import Weft.AccessLog
import Weft.Exchange (observing)
import Weft.Http hiding (Settings)
import Weft.Http.Client (Client, withClient)
import Weft.Http.Proxy (ProxySettings (..))
import Weft.Prometheus
import Weft.Socket (SockAddr (..))
import Weft.Static (OpenFiles)
import Weft.Tcp (Stack)
import Weft.Tools.Serve.BasicAuth (Checks, newChecks)
import Weft.Tools.Serve.Forwarded
import Weft.Tools.Serve.Host
import Weft.Tools.Serve.Messages
import Weft.Tools.Serve.Respond
import Weft.Tools.Serve.Settings
import Weft.Tools.Tcp.Connections (connectionsPage, stackFamilies)

-- | A site: the folders of the server and its hosts, with log and counters.
data Site = Site
  { siteCounters :: RequestCounters,
    siteLog :: Maybe AccessLog,
    -- | The log, shared by all folders.
    siteFiles :: Maybe OpenFiles,
    siteAddresses :: Addresses,
    siteChecks :: Checks,
    -- | The connections to the servers of all proxies.
    siteClient :: Client,
    -- | The settings at the start, for those that a reload cannot change.
    siteFixed :: Settings,
    -- | Read by each request. Written by reloads, and by requests that find a folder replaced, who hold the lock.
    siteLive :: IORef Live,
    siteChanging :: MVar (),
    -- | Read by the page of metrics. Written once, when the server listens.
    siteServer :: IORef (Maybe Server),
    -- | Read by the page of metrics. Written once; empty if the kernel's stack is used.
    siteTcp :: IORef (Maybe Stack),
    -- | Read by the page @\/healthz@. Written once, when the server begins to shut down.
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
    -- | Serves requests for other names.
    liveMain :: Maybe Host,
    liveHosts :: Map.Map String Host
  }

hostsOf :: Live -> [Host]
hostsOf live = maybe id (:) (liveMain live) (Map.elems (liveHosts live))

-- | Run an action with the folders and the log open. Throws an 'IOError' if one of them cannot be opened.
withSite :: Sources -> Maybe OpenFiles -> (Site -> IO a) -> IO a
withSite sources files act = withClient (proxyClient (proxySettings settings)) $ \client -> do
  checks <- newChecks
  bracket (open client checks files Nothing sources >>= newIORef) (\ref -> readIORef ref >>= mapM_ ended . hostsOf) $ \live -> withLog $ \accessLog -> do
    counters <- newRequestCounters
    addresses <- newAddresses
    server <- newIORef Nothing
    tcp <- newIORef Nothing
    draining <- newIORef False
    changing <- newMVar ()
    act (Site counters accessLog files addresses checks client settings live changing server tcp draining)
  where
    settings = sourcesMain sources
    ended h = endProxies h >> closeHost h
    withLog run' = case logTo settings of
      Nothing -> run' Nothing
      Just path -> withAccessLog defaultLogSettings {logPath = path, logFormat = logAs settings, logOnError = lost} (run' . Just)
    lost e n = logError ("access log: " <> show n <> " lines lost: " <> show e)

-- | Open the folders that are not open yet. If one cannot be opened, closes those that it has opened and throws an
-- 'IOError'.
open :: Client -> Checks -> Maybe OpenFiles -> Maybe Live -> Sources -> IO Live
open client checks files old sources = do
  main' <- if folder settings == Nothing && null (proxies settings) then pure Nothing else Just <$> openHost client checks files (old >>= liveMain) settings
  hosts <- go [] (Map.toList (sourcesHosts sources)) `onException` mapM_ (closeUnless (old >>= liveMain)) main'
  pure (Live settings main' (Map.fromList hosts))
  where
    settings = sourcesMain sources
    go done entries = case entries of
      [] -> pure done
      (name, s) : rest -> do
        let before = old >>= Map.lookup name . liveHosts
        host' <- openHost client checks files before s
        go ((name, host') : done) rest `onException` closeUnless before host'
    closeUnless before host' = endProxies host' >> unless (any (sameFolder host') before) (closeHost host')

-- | The application.
siteApplication :: Site -> Application
siteApplication site = pages site (forwarded (trustedProxies fixed) (proxyProtocol fixed == ProxyProtocolRequired) (limitPerAddress (limits fixed)) (siteAddresses site) (observed site (current site)))
  where
    fixed = siteFixed site

-- | The files of the host for the name that a request has. The host's folder stays open until the request has ended,
-- even if another one replaces it.
current :: Site -> Application
current site request respond = attempt (8 :: Int)
  where
    attempt left = do
      live <- readIORef (siteLive site)
      case hostFor live request of
        Nothing -> respond (plainText (mkStatus 421 (B.pack "Misdirected Request")) [])
        -- If the folder has been closed in the meantime, there is another one now.
        Just known -> do
          h <- whenDue known (followFolder site)
          usingHost h (hostApplication h request respond) >>= maybe (again (left - 1)) pure
    again left = if left > 0 then attempt left else respond (plainText serviceUnavailable503 [])

-- | The host for the name that a request has.
hostFor :: Live -> Request -> Maybe Host
hostFor live request
  | Map.null (liveHosts live), Just h <- liveMain live = Just h
  | otherwise = case filter (`Map.member` liveHosts live) (name : wildcards name) of
    n : _ -> Map.lookup n (liveHosts live)
    [] -> liveMain live
  where
    name = map toLower (withoutPort (maybe "" B.unpack (requestHeaderHost request)))
    -- The port follows the last colon outside of brackets, and a name may end with a dot.
    withoutPort text
      | "[" `isPrefixOf` text = takeWhile (/= ']') text <> "]"
      | otherwise = let n = takeWhile (/= ':') text in if drop (length n - 1) n == "." then take (length n - 1) n else n
    wildcards n = case dropWhile (/= '.') n of
      '.' : rest -> ("*." <> rest) : wildcards rest
      _ -> []

-- | Log and count requests.
observed :: Site -> Middleware
observed site app = maybe counted logged (siteLog site)
  where
    counters = siteCounters site
    -- Each case is compiled separately, so that a request allocates no closure to combine them.
    counted = observing (countBegin counters) (countExchange counters) app
    logged accessLog = observing (countBegin counters) (both accessLog) app
    both accessLog request exchange = countExchange counters request exchange >> logExchange accessLog request exchange

-- | The application of servers that redirect all requests to HTTPS on a port. One for a name that no host has gets 421,
-- as over HTTPS (RFC 9110, 15.5.20): a redirect would send a client to whatever name a request has.
siteRedirecting :: Site -> Int -> Application
siteRedirecting site httpsPort = observed site $ \request respond -> do
  live <- readIORef (siteLive site)
  (if isJust (hostFor live request) then toHttps httpsPort (current site) else current site) request respond

-- | The pages @\/metrics@ and @\/healthz@. Requests for them are neither counted nor logged.
pages :: Site -> Middleware
pages site files = metricPages seen site (health files)
  where
    seen request = maySee request . metrics . liveSettings <$> readIORef (siteLive site)
    maySee request audience = case audience of
      Nobody -> False
      Loopback -> fromLoopback request && not (overUnixSocket request) && proxyProtocol fixed == ProxyProtocolNone && not (throughProxy (trustedProxies fixed) request)
      Proxied -> fromLoopback request
      Everybody -> True
    -- Who connects to one is a proxy as a rule.
    overUnixSocket request = case remoteHost request of
      SockAddrUnix _ -> True
      _ -> False
    fixed = siteFixed site
    health app request respond = do
      live <- readIORef (siteLive site)
      (if healthz (liveSettings live) then siteHealth site app else app) request respond

-- | The application of servers for these pages alone: everybody who can connect may read them.
siteMetrics :: Site -> Application
siteMetrics site = metricPages (const (pure True)) site (siteHealth site (\_ respond -> respond (plainText notFound404 [])))

-- | The pages of metrics, for requests that may see them.
metricPages :: (Request -> IO Bool) -> Site -> Middleware
metricPages seen site = metricsPage seen (figures site) . connectionsPage seen (readIORef (siteTcp site))

siteHealth :: Site -> Middleware
siteHealth site = healthPage (not <$> readIORef (siteDraining site))

-- | All metrics of the server.
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
        -- The cache of the server's own folder only: virtual hosts have no metrics of their own.
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

-- | Set the server of the site, for its metrics.
siteListens :: Site -> Server -> IO ()
siteListens site = writeIORef (siteServer site) . Just

-- | Set the TCP stack of the site, for its metrics.
siteStack :: Site -> Stack -> IO ()
siteStack site = writeIORef (siteTcp site) . Just

-- | Note that the server shuts down.
siteEnds :: Site -> IO ()
siteEnds site = writeIORef (siteDraining site) True

-- Changes --------------------------------------------------------------------------------

-- | If there is another folder at the host's path, open it and use it from now on. The host to use for this request;
-- the folder that is open stays if the other one cannot be opened.
followFolder :: Site -> Host -> IO Host
followFolder site known = do
  other <- replaced known
  if other then withMVar (siteChanging site) (const change) else pure known
  where
    change = do
      live <- readIORef (siteLive site)
      -- With the settings of the last reload. There is none if the reload has opened another folder.
      case filter (sameFolder known) (hostsOf live) of
        [] -> pure known
        present : _ -> try (reopenHost (siteFiles site) present) >>= either (failed present) (use live present)
    failed present e = present <$ onceFor present (logWarning (explained e <> "; the folder that was there before is still served"))
    use live present new = mask_ $ do
      let instead h = if sameFolder h present then new else h
      writeIORef (siteLive site) live {liveMain = instead <$> liveMain live, liveHosts = instead <$> liveHosts live}
      closeHost present
      new <$ logInfo ("weft: " <> hostFolder new <> " was replaced: serving the new folder")

-- | Use other settings from now on. Caches are kept where the settings allow. If something cannot be opened, throws
-- an 'IOError', and then nothing has changed.
changeSite :: Site -> Sources -> IO ()
changeSite site sources = withMVar (siteChanging site) $ \_ -> do
  old <- readIORef (siteLive site)
  new <- open (siteClient site) (siteChecks site) (siteFiles site) (Just old) sources
  writeIORef (siteLive site) new
  mapM_ endProxies (hostsOf old)
  -- Requests that have begun may still open files in them; the last one closes them.
  mapM_ closeHost [h | h <- hostsOf old, not (any (sameFolder h) (hostsOf new))]

-- | Reopen the log. If that fails, throws an 'IOError', and the old file stays in use.
reopenSite :: Site -> IO ()
reopenSite site = mapM_ reopenLog (siteLog site)
