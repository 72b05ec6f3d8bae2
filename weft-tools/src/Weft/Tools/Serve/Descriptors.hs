-- |
-- Description : How a server divides its descriptors
--
-- The limit on open descriptors (getrlimit(2), @RLIMIT_NOFILE@) is raised as far as the system allows, and divided
-- among connections, files and the rest. Called once, at the start.
module Weft.Tools.Serve.Descriptors
  ( withinDescriptors,

    -- * Limits of the servers beside the main one
    redirectingLimits,
    metricsLimits,

    -- * For tests
    greatest,
  )
where

import Control.Concurrent (getNumCapabilities)
import Control.Exception (IOException, catch)
import Control.Monad (when)
import Data.List (nub)
import qualified Data.Map.Strict as Map
import Data.Maybe (isNothing, mapMaybe)
import System.Posix.Resource
import Weft.Http (Limits (..), mostSockets)
import Weft.Http.Client (ClientSettings (..))
import Weft.Http.Proxy (ProxySettings (..))
import Weft.Static (OpenFiles, newOpenFiles)
import Weft.Tools.Serve.Host (proxySettings)
import Weft.Tools.Serve.Messages
import Weft.Tools.Serve.Settings
import Weft.Tools.Serve.Site
import Weft.Tools.Serve.Values (ProxyRule (..))

-- | Raise the limit on open descriptors as far as the system allows. Returns the limit, if there is one.
raiseOpenFiles :: IO (Maybe Int)
raiseOpenFiles = do
  known <- getResourceLimit ResourceOpenFiles
  setResourceLimit ResourceOpenFiles known {softLimit = hardLimit known} `catch` \e -> const (pure ()) (e :: IOException)
  now <- softLimit <$> getResourceLimit ResourceOpenFiles
  pure $ case now of
    ResourceLimit n -> Just (fromInteger n)
    _ -> Nothing

-- | Divide the descriptors: one in eight is for files that stay open, some are for listening sockets, folders and event
-- managers, and the limit on connections is lowered to what is left. Connections of a stack need no descriptors. An
-- 'IOError' if there are too few for the server itself.
withinDescriptors :: Sources -> Int -> IO (Maybe OpenFiles, Limits)
withinDescriptors sources inherited = do
  descriptors <- raiseOpenFiles
  caps <- getNumCapabilities
  case descriptors of
    Nothing -> pure (Nothing, wanted)
    Just n -> do
      let beside = httpsRedirect settings <> metricsListen settings
          own = 24 + 4 * caps + inherited + caps * length (listens settings <> beside) + Map.size (sourcesHosts sources) + min (n `div` 3) behind
          most = greatest ((<= n - n `div` 8 - own) . socketsOf) (max 1 n)
      when (usesKernel && n < own) . ioError . userError $
        "this process may have " <> show n <> " descriptors (ulimit -n), and the server itself takes up to " <> show own
      files <- newOpenFiles (max 4 (n `div` 8))
      if usesKernel && (limitConnections wanted > most || limitConnections wanted <= 0)
        then do
          logWarning ("at most " <> show most <> " connections, for this process may have " <> show n <> " descriptors (ulimit -n)")
          pure (Just files, wanted {limitConnections = most})
        else pure (Just files, wanted)
  where
    settings = sourcesMain sources
    wanted = limits settings
    -- To the servers behind proxies.
    behind = clientMostPerServer (proxyClient (proxySettings settings)) * length (nub [(isNothing (proxySend s), url) | s <- settings : Map.elems (sourcesHosts sources), rule <- proxies s, url <- proxyServers rule])
    usesKernel = inherited > 0 || isNothing (stack settings)
    -- With so many connections, those of the servers that redirect or show metrics included.
    socketsOf n = sum (mapMaybe mostSockets (given : [redirectingLimits given | not (null (httpsRedirect settings))] <> [metricsLimits given | not (null (metricsListen settings))]))
      where
        given = wanted {limitConnections = n}

-- | The greatest number from 1 to a given one for which a predicate holds that holds for no number above one for which
-- it does not; 1 if it holds for none. By bisection: there may be 2^30 descriptors.
greatest :: (Int -> Bool) -> Int -> Int
greatest holds = go 1
  where
    -- It holds for the lower one, or that is 1.
    go low high
      | low >= high = low
      | holds middle = go middle high
      | otherwise = go low (middle - 1)
      where
        middle = high - (high - low) `div` 2

-- | Of the servers that redirect: an eighth of the connections.
redirectingLimits :: Limits -> Limits
redirectingLimits given = given {limitConnections = if limitConnections given <= 0 then 0 else max 1 (limitConnections given `div` 8)}

-- | Of the servers for metrics: connections for a few readers.
metricsLimits :: Limits -> Limits
metricsLimits given = given {limitConnections = 32, limitPerAddress = 0}
