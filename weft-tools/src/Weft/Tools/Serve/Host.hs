-- |
-- Description : One folder with its middleware
--
-- The folder of the server or of a virtual host. Any thread may call these functions.
module Weft.Tools.Serve.Host
  ( Host,
    openHost,
    closeHost,
    endProxies,
    usingHost,
    sameFolder,
    hostApplication,
    hostStatic,
    hostFolder,
    proxySettings,

    -- * Folders that were replaced
    whenDue,
    replaced,
    reopenHost,
    onceFor,
  )
where

import Control.Exception (IOException, mask, onException, try)
import Control.Monad (unless, void)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.Maybe (fromMaybe, isNothing)
import Network.HTTP.Types (ResponseHeaders, notFound404)
import Network.Wai (Application)
import System.Posix.Files (deviceID, fileID, getFileStatus)
import System.Posix.Types (DeviceID, FileID)
import Weft.Blocking (blocking)
import Weft.Duration (Duration, seconds)
import Weft.Http.Client (Client, Url (..), showUrl)
import Weft.Http.Proxy
import Weft.Static
import Weft.Timer (schedule)
import Weft.Tools.Serve.BasicAuth
import Weft.Tools.Serve.Messages (logInfo, logWarning)
import Weft.Tools.Serve.Paths (isEveryPath)
import Weft.Tools.Serve.Respond
import Weft.Tools.Serve.Restrict
import Weft.Tools.Serve.Rules
import Weft.Tools.Serve.Settings
import Weft.Tools.Serve.Values (ProxyRule (..))

-- | An open folder and the application that serves it.
data Host = Host
  { hostStatic :: Static,
    hostApplication :: Application,
    -- | The folder that is open, compared with the one at its path ('replaced').
    hostPlace :: (DeviceID, FileID),
    hostSettings :: Settings,
    hostPasswords :: Maybe Passwords,
    hostChecks :: Checks,
    -- | Its proxies, by the beginning of a path. A host that replaces this one since its folder was replaced has the
    -- same.
    hostProxies :: [(B.ByteString, Proxy)],
    -- | Its limits of requests, which such a host has too, and one that a reload has made of it.
    hostLimited :: [Limited],
    -- | Read by each request; written by one that finds Due, and by the timer that it starts.
    hostCheck :: IORef Check,
    -- | Whether a folder that could not be opened in place of this one was reported. Written by requests.
    hostReported :: IORef Bool
  }

-- | Whether the path of the folder has to be looked at. The states, and their successors:
--
-- @
--   Due       longer ago than the settings allow  -> Checking (by the request that looks)
--   Checking                                      -> Recent, Due (by that request)
--   Recent                                        -> Due      (by a timer)
-- @
--
-- So an idle server has no timer.
data Check = Due | Checking | Recent
  deriving (Eq)

-- | The settings on which a cache depends.
type Files = (([B.ByteString], Bool, Bool), (Int, Int), Duration, (Bool, [B.ByteString]), ([(B.ByteString, B.ByteString)], [Rule B.ByteString]))

-- | True if both share an open folder.
sameFolder :: Host -> Host -> Bool
sameFolder a b = hostStatic a `sharesFolder` hostStatic b

-- | The settings on which the host's cache depends.
filesOf :: Settings -> Files
filesOf settings = ((index settings, listing settings, cleanUrls settings), (cacheBytes settings, keptFiles settings), trust settings, (compress settings, compressTypes settings), (types settings, pathTypes settings))

-- | The folder's path. A host without a folder has redirects only; something has to be open all the same.
hostFolder :: Host -> FilePath
hostFolder = folderOf . hostSettings

folderOf :: Settings -> FilePath
folderOf = fromMaybe "/" . folder

placeOf :: FilePath -> IO (DeviceID, FileID)
placeOf path = (\status -> (deviceID status, fileID status)) <$> blocking (getFileStatus path)

-- | Open the folder of the settings, or share it with the old host, if that has the same folder open. The cache is
-- kept if the settings on which it depends are equal. All hosts of a server have the same checks of passwords. Throws
-- an 'IOError' if the folder cannot be opened or the passwords cannot be read.
openHost :: Client -> Checks -> Maybe OpenFiles -> Maybe Host -> Settings -> IO Host
openHost client checks files old settings = do
  passwords <- mapM readPasswords (basicAuth settings)
  place <- placeOf (folderOf settings)
  (static, undo) <- case old of
    Just h
      | hostPlace h == place ->
        (\static -> (static, pure ())) <$> if filesOf (hostSettings h) == filesOf settings then pure (hostStatic h) else changeStatic (staticSettings files settings) (hostStatic h)
    _ -> (\static -> (static, closeStatic static)) <$> openStatic (staticSettings files settings) (folderOf settings)
  (limited, passing) <- (`onException` undo) $ do
    limited <- openRates (maybe [] hostLimited old) (rates settings)
    -- At last, as they may have threads.
    (,) limited <$> openProxies (proxies settings)
  check <- newIORef Due
  reported <- newIORef False
  let opened =
        Host
          { hostStatic = static,
            hostApplication = application opened,
            hostPlace = place,
            hostSettings = settings,
            hostPasswords = passwords,
            hostChecks = checks,
            hostProxies = passing,
            hostLimited = limited,
            hostCheck = check,
            hostReported = reported
          }
  pure opened
  where
    openProxies rules = case rules of
      [] -> pure []
      rule : more -> do
        proxy <- openProxy (proxySettings settings) client (proxyServers rule)
        ((proxyPrefix rule, proxy) :) <$> openProxies more `onException` closeProxy proxy

-- | A host with the settings and passwords of another one, and the folder that is now at its path. Throws an 'IOError'
-- if there is none.
reopenHost :: Maybe OpenFiles -> Host -> IO Host
reopenHost files h = do
  place <- placeOf (hostFolder h)
  static <- openStatic (staticSettings files (hostSettings h)) (hostFolder h)
  check <- newIORef Due
  reported <- newIORef False
  let opened = h {hostStatic = static, hostApplication = application opened, hostPlace = place, hostCheck = check, hostReported = reported}
  pure opened

staticSettings :: Maybe OpenFiles -> Settings -> StaticSettings
staticSettings files settings =
  defaultStaticSettings
    { staticCacheBytes = cacheBytes settings,
      staticKeptFiles = keptFiles settings,
      staticTrust = trust settings,
      staticIndex = index settings,
      staticListing = listing settings,
      staticHeaders = noHeaders,
      staticTypes = types settings,
      staticTypeOf = if null (pathTypes settings) then const Nothing else fmap ruleValue . ruleAt (pathTypes settings) . B.cons '/',
      staticCleanUrls = cleanUrls settings,
      staticCompress = compress settings,
      staticCompressTypes = compressTypes settings,
      staticOpenFiles = files
    }
  where
    noHeaders = [] :: ResponseHeaders

-- | If the path of the folder was not looked at within the time of the settings, run an action that looks and gives the
-- host to use; otherwise the host itself. Requests do not wait for one another: one looks, and the others use the
-- folder that is open.
whenDue :: Host -> (Host -> IO Host) -> IO Host
whenDue h look = do
  check <- readIORef (hostCheck h)
  if check == Due then lookNow h look else pure h
{-# INLINE whenDue #-}

lookNow :: Host -> (Host -> IO Host) -> IO Host
lookNow h look = mask $ \restore -> do
  mine <- atomicModifyIORef' (hostCheck h) (\check -> (if check == Due then Checking else check, check == Due))
  if not mine
    then pure h
    else do
      found <- restore (look h) `onException` due
      if wait <= seconds 0 then due else atomicWriteIORef (hostCheck h) Recent >> void (schedule wait due)
      pure found
  where
    wait = trust (hostSettings h)
    due = atomicWriteIORef (hostCheck h) Due

-- | Report that the folder at the host's path cannot be opened, unless that was reported for this host.
onceFor :: Host -> IO () -> IO ()
onceFor h report = atomicModifyIORef' (hostReported h) ((,) True) >>= \before -> unless before report

-- | Whether there is another folder at the host's path than the one that is open. False if there is nothing, as for a
-- moment while a folder is replaced by renaming.
replaced :: Host -> IO Bool
replaced h
  | isNothing (folder (hostSettings h)) = pure False
  | otherwise = either nothing (/= hostPlace h) <$> try (placeOf (hostFolder h))
  where
    nothing :: IOException -> Bool
    nothing _ = False

-- | Settings of a host's proxies. Failures of requests are in the access log, by the status of the answer; what checks
-- find is reported when it changes.
proxySettings :: Settings -> ProxySettings
proxySettings settings =
  defaultProxySettings
    { proxyHeader = proxySend settings,
      proxyHalfClosed = proxySilence settings,
      proxyCheck = check <$> proxyCheckPath settings,
      proxyOnCheck = \url well ->
        let server = showUrl url {urlPath = B.empty}
         in if well then logInfo ("weft: " <> server <> " passes its checks again") else logWarning (server <> " fails its checks, and is passed over")
    }
  where
    check path =
      (defaultHealthCheck path)
        { checkInterval = proxyCheckEvery settings,
          checkMostFailures = proxyCheckFailures settings,
          checkSuccesses = proxyCheckPasses settings
        }

-- | The application of the host's other fields: the middleware in their order, and the files; what a proxy answers gets
-- no error page, unlike what a rule refuses. Challenges of certificate authorities need no password, and get no
-- fallback: it could be a page that needs one, and is no answer to a challenge.
application :: Host -> Application
application h =
  fields . withCors (corsOrigins settings) . restricted restrictions refusing $
    withProxies (map (guarded . fileFields <$>) passing) (errorPage files (guarded (withFallback (fallback settings) (fileFields files))))
  where
    settings = hostSettings h
    passing = map (proxyApplication <$>) (hostProxies h)
    files = if isNothing (folder settings) then nothing else staticApp (hostStatic h)
    nothing _ respond = respond (plainText notFound404 [])
    authentication = authenticated (hostChecks h) <$> hostPasswords h
    guarded = withRedirects (redirects settings) . withChallenges files . fromMaybe id authentication
    errorPage = withErrorPages (errorPages settings)
    refusing response = errorPage files (\_ respond -> respond response)
    places = placesOf (index settings) (cleanUrls settings)
    restrictions = Restrictions places (denied settings) (allowed settings) (methods settings) (hostLimited h) (maxBodies settings)
    (fields, fileFields)
      | all (isEveryPath . rulePattern) (headers settings) = (withHeaders (map ruleValue (headers settings)), id)
      | otherwise = (withLastingOf (headers settings) places, withFileFieldsOf (headers settings) places)

-- | Close the host's folder as soon as no request uses it. Called once for all hosts that share it.
closeHost :: Host -> IO ()
closeHost = closeStatic . hostStatic

-- | End the checks of the host's proxies, when the settings that it has are no longer used. Requests may go on.
endProxies :: Host -> IO ()
endProxies = mapM_ (closeProxy . snd) . hostProxies

-- | Run an action during which the host's folder stays open; 'Nothing' if it is closed.
usingHost :: Host -> IO a -> IO (Maybe a)
usingHost = usingStatic . hostStatic
