-- |
-- Description : The application that is served, and its change while it is
--
-- A folder, with its log, its counters, and the pages @\/metrics@ and @\/healthz@ before it. The settings that can be
-- changed are looked up by each request.
module Weft.Tools.Serve.Site
  ( Site,
    withSite,
    siteApplication,
    siteRefused,
    siteListens,
    siteEnds,
    changeSite,
    reopenSite,
  )
where

import Control.Monad (forM_)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Network.Wai (Application, Middleware)
import Weft.AccessLog
import Weft.Exchange (observing)
import Weft.Prometheus
import Weft.Socket (SockAddr)
import Weft.Static
import Weft.Tools.Serve.Settings
import Weft.Warp hiding (Settings)

-- | What is served.
data Site = Site
  { siteCounters :: RequestCounters,
    siteLog :: Maybe AccessLog,
    -- | Read by each request, written by reloads.
    siteLive :: IORef Live,
    -- | Read by who wants figures, written once, when the server listens.
    siteServer :: IORef (Maybe Server),
    -- | Likewise, when it is to end.
    siteDraining :: IORef Bool
  }

-- | What a reload replaces.
data Live = Live
  { liveSettings :: Settings,
    liveStatic :: Static
  }

-- | Open a folder, and its log, for as long as the action takes. Throws an 'IOError' when that cannot be done.
withSite :: Settings -> FilePath -> (Site -> IO a) -> IO a
withSite settings root act =
  withStatic (staticSettings settings) root $ \static -> withLog $ \accessLog -> do
    counters <- newRequestCounters
    live <- newIORef (Live settings static)
    server <- newIORef Nothing
    draining <- newIORef False
    act (Site counters accessLog live server draining)
  where
    withLog run' = case logTo settings of
      Nothing -> run' Nothing
      Just path -> withAccessLog defaultLogSettings {logPath = path, logFormat = logAs settings} (run' . Just)

staticSettings :: Settings -> StaticSettings
staticSettings settings =
  defaultStaticSettings
    { staticCacheBytes = cacheBytes settings,
      staticTrust = trust settings,
      staticIndex = index settings,
      staticListing = listing settings,
      staticHeaders = headers settings
    }

-- | The application.
siteApplication :: Site -> Application
siteApplication site = pages site (maybe counted logged (siteLog site))
  where
    counters = siteCounters site
    -- Each of them is compiled on its own, without anything to be made for a call in between.
    counted = observing (countBegin counters) (countExchange counters) files
    logged accessLog = observing (countBegin counters) (both accessLog) files
    both accessLog request exchange = countExchange counters request exchange >> logExchange accessLog request exchange
    files request respond = do
      live <- readIORef (siteLive site)
      staticApp (liveStatic live) request respond

-- | The pages beside the folder, which are neither counted nor logged.
pages :: Site -> Middleware
pages site files = metricsPage seen (figures site) (health files)
  where
    seen request = maySee request . metrics . liveSettings <$> readIORef (siteLive site)
    maySee request audience = case audience of
      Nobody -> False
      Loopback -> fromLoopback request
      Everybody -> True
    health app request respond = do
      live <- readIORef (siteLive site)
      (if healthz (liveSettings live) then healthPage (not <$> readIORef (siteDraining site)) app else app) request respond

-- | All that is known.
figures :: Site -> IO [Family]
figures site = do
  live <- readIORef (siteLive site)
  server <- readIORef (siteServer site)
  concat
    <$> sequence
      [ requestFamilies (siteCounters site),
        maybe (pure []) serverFamilies server,
        cacheFamilies (liveStatic live),
        maybe (pure []) logFamilies (siteLog site),
        managerFamilies,
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

-- | It is to end.
siteEnds :: Site -> IO ()
siteEnds site = writeIORef (siteDraining site) True

-- | Serve by other settings from now on. The cache is kept if it may be.
changeSite :: Site -> Bool -> Settings -> IO ()
changeSite site sameFiles settings = do
  live <- readIORef (siteLive site)
  static <- if sameFiles then pure (liveStatic live) else changeStatic (staticSettings settings) (liveStatic live)
  writeIORef (siteLive site) (Live settings static)

-- | Open the log again. Throws an 'IOError' when that fails; the old one stays.
reopenSite :: Site -> IO ()
reopenSite site = mapM_ reopenLog (siteLog site)
