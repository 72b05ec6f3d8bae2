{-# LANGUAGE OverloadedStrings #-}

-- |
-- A folder as a WAI application (RFC 9110): files with strong validators,
-- conditional requests, ranges, variants that were compressed beforehand or are compressed when they are first asked for, index
-- files, listings if they are wanted. Small files are answered from memory, large
-- ones by sendfile(2); no read blocks a capability ("Weft.File").
--
-- > import Weft.Static
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = withStatic defaultStaticSettings "public" $ \static -> run 8080 (staticApp static)
--
-- Nothing outside of the folder is shown: not by @..@ in any spelling, nor by a
-- symbolic link that leads out (openat2(2), @RESOLVE_BENEATH@); nor are files whose
-- name begins with a dot, but for @.well-known@.
--
-- @since 0.1.0
module Weft.Static
  ( -- * Serving
    withStatic,
    openStatic,
    closeStatic,
    Static,
    staticApp,

    -- * Settings
    StaticSettings (..),
    defaultStaticSettings,
    changeStatic,
    OpenFiles,
    newOpenFiles,

    -- * Figures
    CacheMetrics (..),
    staticMetrics,
  )
where

import Control.Exception (bracket)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Network.HTTP.Types
import Network.Wai
import Weft.Core.Time (Instant (..))
import Weft.Duration (Duration, seconds, toSeconds)
import Weft.File (Directory, closeDirectory, openDirectory)
import Weft.Static.Answer
import Weft.Static.Cache
import Weft.Static.File
import Weft.Static.Folders (newFolders)
import Weft.Static.Listing
import Weft.Static.OpenFiles
import Weft.Static.Path
import Weft.Sys (now)

-- | How a folder is served.
data StaticSettings = StaticSettings
  { -- | Bytes that the cache may take.
    staticCacheBytes :: !Int,
    -- | Files up to this size are held in it.
    staticCacheFile :: !Int,
    -- | For so long what is in it is taken to be right; then it is compared with the
    -- file's status, and with what variants there are.
    staticTrust :: !Duration,
    -- | Files that stand for their folder, the first that exists.
    staticIndex :: ![ByteString],
    -- | Show what is in a folder without one of those (HTML, or JSON to who accepts
    -- that).
    staticListing :: !Bool,
    -- | Added to every answer with a file.
    staticHeaders :: !ResponseHeaders,
    -- | Compress texts that have no compressed variant beside them (gzip), from 1 KiB to 1 MiB and an eighth of the
    -- cache, which holds the result.
    staticCompress :: !Bool,
    -- | How many files may stay open for clients that read them; of the rest no more than 64 KiB at a time is read
    -- and then closed again. 'Nothing' is no limit.
    staticOpenFiles :: !(Maybe OpenFiles)
  }

-- | 64 MiB of cache for files up to 256 KiB, trusted for a second; @index.html@ and
-- @index.htm@; no listings.
defaultStaticSettings :: StaticSettings
defaultStaticSettings =
  StaticSettings
    { staticCacheBytes = 64 * 1024 * 1024,
      staticCacheFile = 256 * 1024,
      staticTrust = seconds 1,
      staticIndex = ["index.html", "index.htm"],
      staticListing = False,
      staticHeaders = [],
      staticCompress = False,
      staticOpenFiles = Nothing
    }

-- | A folder that is being served.
data Static = Static !StaticSettings !DocumentRoot !(Cache Found Resource) !(Instant -> Instant)

-- | Serve a folder for as long as the action takes. Throws when it cannot be opened.
withStatic :: StaticSettings -> FilePath -> (Static -> IO a) -> IO a
withStatic settings folder = bracket (openStatic settings folder) closeStatic

-- | 'withStatic' for who ends it otherwise. Throws when the folder cannot be opened.
openStatic :: StaticSettings -> FilePath -> IO Static
openStatic settings folder = openDirectory folder >>= staticOf settings

-- | Close the folder, once no request is being answered from it.
closeStatic :: Static -> IO ()
closeStatic (Static _ root _ _) = closeDirectory (rootDirectory root)

-- | The same open folder with other settings, and an empty cache. Both may be used, for as
-- long as the first one's action takes.
changeStatic :: StaticSettings -> Static -> IO Static
changeStatic settings (Static _ root _ _) = staticOf settings (rootDirectory root)

staticOf :: StaticSettings -> Directory -> IO Static
staticOf settings root = do
  cache <- newCache (staticCacheBytes settings)
  folders <- newFolders root (staticTrust settings)
  pure (Static settings (DocumentRoot root (staticCacheFile settings) folders (staticHeaders settings) most (staticOpenFiles settings)) cache since)
  where
    !most = if staticCompress settings then min 1048576 (staticCacheBytes settings `quot` 8) else 0
    !trust = round (1e9 * toSeconds (staticTrust settings))
    since (Instant t) = Instant (t - trust)

-- | How its cache is doing.
staticMetrics :: Static -> IO CacheMetrics
staticMetrics (Static _ _ cache _) = cacheMetrics cache

-- | The application.
staticApp :: Static -> Application
staticApp static@(Static _ root cache since) request respond
  | method == methodGet || method == methodHead = do
    t <- now
    hit <- lookupCache cache (since t) (rawPathInfo request)
    case hit of
      Just r -> answer root request r respond
      Nothing -> missed static request respond
  | method == methodOptions = respond (responseLBS noContent204 [allow] "")
  | otherwise = respond (plain methodNotAllowed405 [allow])
  where
    method = requestMethod request
    allow = ("Allow", "GET, HEAD, OPTIONS")

-- | Not in the cache, or not known to be right any more.
missed :: Static -> Application
missed static@(Static settings root cache _) request respond = case target (rawPathInfo request) of
  Left Malformed -> respond (plain badRequest400 [])
  Left Forbidden -> respond (plain notFound404 [])
  Right (FileTarget path) -> do
    found <- cached path
    case found of
      File r -> answer root request r respond
      Folder -> respond (plain movedPermanently301 [(hLocation, "/" <> encode path <> "/" <> rawQueryString request)])
      Missing -> respond (plain notFound404 [])
      Denied -> respond (plain forbidden403 [])
  Right (FolderTarget path) -> index path (staticIndex settings)
  where
    cached path = do
      t <- now
      either id File <$> fetch cache (rawPathInfo request) worth (refresh static t (B.copy path))
    worth r = Keep (resourceBytes r + B.length (rawPathInfo request))
    index path names = case names of
      name : rest -> do
        found <- cached (if B.null path then name else path <> "/" <> name)
        case found of
          File r -> answer root request r respond
          _ -> index path rest
      []
        | staticListing settings -> listing root path request respond
        | otherwise -> respond (plain notFound404 [])

-- | What is at a path now, given what was there, and when the caller began.
refresh :: Static -> Instant -> ByteString -> Maybe Resource -> IO (Either Found (Freshness Resource))
refresh (Static _ root _ _) began path old = briefly (rootOpenFiles root) $ do
  same <- case old of
    Just r | resourcePath r == path -> unchanged root began r
    _ -> pure Nothing
  case same of
    Just seen -> pure (Right (Same seen))
    Nothing -> do
      (seen, found) <- find root began path
      pure $ case found of
        File r -> Right (Changed seen r)
        other -> Left other
