-- |
-- Description : One folder with what stands before its files
--
-- The server's own, or a virtual host's.
module Weft.Tools.Serve.Host
  ( Host,
    openHost,
    closeHost,
    sameFolder,
    hostApplication,
    hostStatic,
  )
where

import qualified Data.ByteString.Char8 as B
import Data.Maybe (fromMaybe)
import Data.Unique (Unique, newUnique)
import Network.HTTP.Types (ResponseHeaders)
import Network.Wai (Application)
import System.Posix.Files (deviceID, fileID, getFileStatus)
import System.Posix.Types (DeviceID, FileID)
import Weft.Blocking (blocking)
import Weft.Duration (Duration)
import Weft.Static
import Weft.Tools.Serve.BasicAuth
import Weft.Tools.Serve.Respond
import Weft.Tools.Serve.Settings

-- | An open folder and the application that serves it.
data Host = Host
  { hostStatic :: Static,
    hostApplication :: Application,
    hostPlace :: (DeviceID, FileID),
    -- | Equal in all 'Host's that share an open folder.
    hostOpened :: Unique,
    hostFiles :: Files
  }

-- | The settings on which a cache depends.
type Files = ([B.ByteString], Bool, Int, Duration, Bool)

-- | Do they share an open folder?
sameFolder :: Host -> Host -> Bool
sameFolder a b = hostOpened a == hostOpened b

-- | Open a folder by its settings, or use the one that an old host has open, with its cache if the settings allow. Throws an
-- 'IOError' when the folder cannot be opened or the passwords cannot be read.
openHost :: Maybe OpenFiles -> Maybe Host -> Settings -> IO Host
openHost files old settings = do
  passwords <- mapM readPasswords (basicAuth settings)
  status <- blocking (getFileStatus path)
  let place = (deviceID status, fileID status)
  (static, opened) <- case old of
    Just h
      | hostPlace h == place -> flip (,) (hostOpened h) <$> if hostFiles h == wanted then pure (hostStatic h) else changeStatic given (hostStatic h)
    _ -> (,) <$> openStatic given path <*> newUnique
  pure (Host static (application settings passwords (staticApp static)) place opened wanted)
  where
    path = fromMaybe "." (folder settings)
    wanted = (index settings, listing settings, cacheBytes settings, trust settings, compress settings)
    given =
      defaultStaticSettings
        { staticCacheBytes = cacheBytes settings,
          staticTrust = trust settings,
          staticIndex = index settings,
          staticListing = listing settings,
          staticHeaders = noHeaders,
          staticCompress = compress settings,
          staticOpenFiles = files
        }
    noHeaders = [] :: ResponseHeaders

-- | From what every answer gets, to the files.
application :: Settings -> Maybe Passwords -> Application -> Application
application settings passwords files =
  withHeaders (headers settings) . withCors (corsOrigins settings) . withErrorPages (errorPages settings) files
    . withRedirects (redirects settings)
    . authenticated passwords
    $ withFallback (fallback settings) files

-- | Close its folder, which others may share.
closeHost :: Host -> IO ()
closeHost = closeStatic . hostStatic
