-- |
-- Description : One folder with its middleware
--
-- The folder of the server or of a virtual host.
module Weft.Tools.Serve.Host
  ( Host,
    openHost,
    closeHost,
    usingHost,
    sameFolder,
    hostApplication,
    hostStatic,
  )
where

import qualified Data.ByteString.Char8 as B
import Data.Maybe (fromMaybe, isNothing)
import Network.HTTP.Types (ResponseHeaders, notFound404)
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
    hostFiles :: Files
  }

-- | The settings on which a cache depends.
type Files = ([B.ByteString], Bool, Int, Duration, Bool)

-- | True if both share an open folder.
sameFolder :: Host -> Host -> Bool
sameFolder a b = hostStatic a `sharesFolder` hostStatic b

-- | Open the folder of the settings, or share it with the old host, if that has the same folder open. The cache is
-- kept if the settings on which it depends are equal. Throws an 'IOError' if the folder cannot be opened or the
-- passwords cannot be read.
openHost :: Maybe OpenFiles -> Maybe Host -> Settings -> IO Host
openHost files old settings = do
  passwords <- mapM readPasswords (basicAuth settings)
  status <- blocking (getFileStatus path)
  let place = (deviceID status, fileID status)
  static <- case old of
    Just h | hostPlace h == place -> if hostFiles h == wanted then pure (hostStatic h) else changeStatic given (hostStatic h)
    _ -> openStatic given path
  pure (Host static (application settings passwords (if isNothing (folder settings) then nothing else staticApp static)) place wanted)
  where
    -- A host without a folder has redirects only; something has to be open all the same.
    path = fromMaybe "/" (folder settings)
    nothing _ respond = respond (plainText notFound404 [])
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

-- | The middleware in their order, and the files. Challenges of certificate authorities need no password, and get no
-- fallback: it could be a page that needs one, and is no answer to a challenge.
application :: Settings -> Maybe Passwords -> Application -> Application
application settings passwords files =
  withHeaders (headers settings) . withCors (corsOrigins settings) . withErrorPages (errorPages settings) files
    . withRedirects (redirects settings)
    . withChallenges files
    . maybe id authenticated passwords
    $ withFallback (fallback settings) files

-- | Close the host's folder as soon as no request uses it. Called once for all hosts that share it.
closeHost :: Host -> IO ()
closeHost = closeStatic . hostStatic

-- | Run an action during which the host's folder stays open; 'Nothing' if it is closed.
usingHost :: Host -> IO a -> IO (Maybe a)
usingHost = usingStatic . hostStatic
