{-# LANGUAGE OverloadedStrings #-}

-- |
-- Serves a folder as a WAI application (RFC 9110): entity tags,
-- conditional requests, ranges, precompressed files, compression in the background, index
-- files, optional listings. Small files are served from memory, large
-- ones by sendfile(2). No read blocks a capability ("Weft.File").
--
-- > import Weft.Static
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = withStatic defaultStaticSettings "public" $ \static -> run 8080 (staticApp static)
--
-- Nothing outside of the folder is served, neither by @..@ in any encoding nor through a symbolic link to the outside
-- (openat2(2), @RESOLVE_BENEATH@). A symbolic link whose target is an absolute path counts as one to the outside, even
-- if it leads to a file of the folder. Such links get the status 403. Where the kernel has no openat2, no symbolic link
-- is followed. Files whose names begin with a dot are not served either, except those in @.well-known@.
--
-- The application can be mounted below a path, by servant's @Raw@ or wai-extra's @mapUrls@ for example: 'staticApp'
-- says how.
--
-- A child of 'System.Posix.Process.forkProcess' can serve the folder of its parent. It keeps the contents that the
-- parent has in the cache, and has permits for open files ('newOpenFiles'), kept files and compression of its own.
--
-- @since 0.1.0
module Weft.Static
  ( -- * Serving
    withStatic,
    openStatic,
    closeStatic,
    usingStatic,
    sharesFolder,
    Static,
    staticApp,

    -- * Settings
    StaticSettings (..),
    defaultStaticSettings,
    changeStatic,
    OpenFiles,
    newOpenFiles,

    -- * Paths
    encodeUrl,
    cleanUrl,

    -- * Metrics
    CacheMetrics (..),
    staticMetrics,
    staticKept,
  )
where

import Control.Exception (bracket)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Network.HTTP.Types
import Network.Wai
import Weft.Core.Time (Instant (..))
import Weft.Duration (Duration, seconds, toSeconds)
import Weft.File (Directory, closeDirectory, openDirectory)
import Weft.Static.Answer
import Weft.Static.Background (backgroundMetrics, newBackground)
import Weft.Static.Cache
import Weft.Static.Compress (compressedTypes, compressible)
import Weft.Static.File
import Weft.Static.Folders (newFolders)
import Weft.Static.Kept (Kept, closeKept, countKept, newKept)
import Weft.Static.Listing
import Weft.Static.MediaType (hasKnownSuffix, mediaTypes)
import Weft.Static.OpenFiles
import Weft.Static.Path
import Weft.Static.Users
import Weft.Sys (now)

-- | How a folder is served.
data StaticSettings = StaticSettings
  { -- | The size of the cache in bytes.
    staticCacheBytes :: !Int,
    -- | The largest size in bytes of a file that is cached.
    staticCacheFile :: !Int,
    -- | How long a cache entry is used without a check. After that time the server compares it with the
    -- file's status, and looks for compressed variants on the disk.
    staticTrust :: !Duration,
    -- | Names of index files, which are served for their folder: the first one that exists.
    staticIndex :: ![ByteString],
    -- | Whether a folder without an index file is listed (as HTML, or as JSON if the client prefers
    -- that). Listings are kept in the cache as contents are, and have an entity tag.
    staticListing :: !Bool,
    -- | Header fields that are added to every response with a file.
    staticHeaders :: !ResponseHeaders,
    -- | Media types of files by the suffixes of their names, without the dot in front: they replace the known types, or
    -- join them. A text gets @charset=utf-8@ unless it has a charset.
    staticTypes :: ![(ByteString, ByteString)],
    -- | The media type of a file by its path below the folder, as @sub\/a.css@, where it is to have another one than
    -- its suffix says. It may have a charset, too. Called when a file is read, not for each request.
    staticTypeOf :: !(ByteString -> Maybe ByteString),
    -- | Whether @\/about@ means the file @about.html@ where there is no file @about@ ('cleanUrl'). A folder of that
    -- name is still at @\/about\/@.
    staticCleanUrls :: !Bool,
    -- | Whether files are compressed for clients that accept no precompressed variant of them: by brotli, zstd or gzip,
    -- as the client prefers, and of what it prefers equally in this order. Applies to sizes from 1 KiB to 1 MiB,
    -- but at most an eighth of the cache, one half of which holds the results. The first GET whose client accepts it
    -- has that done in the background, with at most an eighth of one core, and does not wait for it.
    staticCompress :: !Bool,
    -- | The media types of files that are compressed: @text\/css@, @text\/*@, or @*+json@ for all that end so.
    staticCompressTypes :: ![ByteString],
    -- | How many files may stay open while clients receive them. Beyond that, a file is reopened for each piece of 64
    -- KiB. 'Nothing' is no limit.
    staticOpenFiles :: !(Maybe OpenFiles),
    -- | How many files above 'staticCacheFile' may stay open between responses. One that nobody has asked for in ten
    -- seconds is closed. Each is a descriptor, for each capability that serves it; 'staticOpenFiles' bounds them too.
    -- 0: a file is opened for each response.
    staticKeptFiles :: !Int
  }

-- | 64 MiB of cache for files up to 256 KiB, checked after a second, and 100 larger files kept open; @index.html@ and
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
      staticTypes = [],
      staticTypeOf = const Nothing,
      staticCleanUrls = False,
      staticCompress = False,
      staticCompressTypes = compressedTypes,
      staticOpenFiles = Nothing,
      staticKeptFiles = 100
    }

-- | An open folder with its settings, its cache, and the count of those who use the folder.
data Static = Static !StaticSettings !DocumentRoot !(Cache Found Resource) !(Instant -> Instant) !Users

-- | Open a folder while an action runs. Throws an 'IOError' if it cannot be opened.
withStatic :: StaticSettings -> FilePath -> (Static -> IO a) -> IO a
withStatic settings folder = bracket (openStatic settings folder) closeStatic

-- | Open a folder; close it by 'closeStatic'. Throws an 'IOError' if it cannot be opened.
openStatic :: StaticSettings -> FilePath -> IO Static
openStatic settings folder = do
  root <- openDirectory folder
  kept <- newKept
  users <- newUsers (closeKept kept >> closeDirectory root)
  staticOf settings root kept users

-- | Close the folder, as soon as no 'usingStatic' is in progress. Other requests may not be served from it any more.
closeStatic :: Static -> IO ()
closeStatic (Static _ _ _ _ users) = closeUnused users

-- | Run an action during which the folder stays open, such as a request of an application whose folder another thread
-- replaces. 'Nothing', without running it, after 'closeStatic'.
usingStatic :: Static -> IO a -> IO (Maybe a)
usingStatic (Static _ _ _ _ users) = using users

-- | Whether both have the same open folder ('changeStatic'), so that 'closeStatic' of one closes that of the other.
sharesFolder :: Static -> Static -> Bool
sharesFolder (Static _ _ _ _ a) (Static _ _ _ _ b) = a == b

-- | The open folder with other settings and an empty cache. Both values may be used, until one of them is closed.
changeStatic :: StaticSettings -> Static -> IO Static
changeStatic settings (Static _ root _ _ users) = staticOf settings (rootDirectory root) (rootKept root) users

staticOf :: StaticSettings -> Directory -> Kept -> Users -> IO Static
staticOf settings root kept users = do
  cache <- newCache contents
  compressed' <- newBackground (staticCacheBytes settings - contents) compressedBytes
  folders <- newFolders root (staticTrust settings)
  let static = Static settings documents cache since users
      documents =
        DocumentRoot
          { rootDirectory = root,
            rootSmall = staticCacheFile settings,
            rootFolders = folders,
            rootHeaders = staticHeaders settings,
            rootTypes = mediaTypes (staticTypeOf settings) (staticTypes settings),
            rootCompress = if staticCompress settings then min 1048576 (staticCacheBytes settings `quot` 8) else 0,
            rootCompressible = compressible (staticCompressTypes settings),
            rootCompressed = compressed',
            rootUsers = users,
            rootOpenFiles = staticOpenFiles settings,
            rootKept = kept,
            rootMostKept = staticKeptFiles settings,
            rootAgain = (`missed` static)
          }
  pure static
  where
    contents = if staticCompress settings then (staticCacheBytes settings + 1) `quot` 2 else staticCacheBytes settings
    !trust = round (1e9 * toSeconds (staticTrust settings))
    since (Instant t) = Instant (t - trust)

-- | Counters of the folder's cache. Entries and bytes are those of contents and of what was compressed.
staticMetrics :: Static -> IO CacheMetrics
staticMetrics (Static _ root cache _ _) = do
  contents <- cacheMetrics cache
  results <- backgroundMetrics (rootCompressed root)
  pure contents {cachedEntries = cachedEntries contents + cachedEntries results, cachedBytes = cachedBytes contents + cachedBytes results}

-- | The number of files that are kept open ('staticKeptFiles'), with those that are kept no longer and that a response
-- still uses.
staticKept :: Static -> IO Int
staticKept (Static _ root _ _ _) = countKept (rootKept root)

-- | The application.
--
-- A router that mounts it shortens 'pathInfo', and may leave 'rawPathInfo' as it was. Where both differ, 'pathInfo' is
-- the path of the file: with servant's @\"static\" :> Raw@, the request @\/static\/a.css@ gets the file @a.css@.
-- Redirects to folders are relative to the path of the request, so that they are right below any path; a rewrite that
-- adds or removes segments at the end makes them wrong. A router that sets 'rawPathInfo' to @\/@ for @\/static@ itself,
-- such as @mapUrls@, needs a redirect to @\/static\/@ of its own, or relative links of the index page lead elsewhere.
--
-- The same 'rawPathInfo' has to mean the same file in all requests, since a file in the cache is found by it, without a
-- look at 'pathInfo'. Applications that are mounted at different paths may share a 'Static'. One that is mounted needs
-- another 'Static' ('changeStatic' makes one of the same folder) than one that is not; so do requests whose 'pathInfo'
-- is changed by something that is not in the path, as a cookie or the host.
staticApp :: Static -> Application
staticApp static@(Static _ root cache since _) request respond
  | method == methodGet || method == methodHead = do
    t <- now
    hit <- lookupCache cache (since t) (rawPathInfo request)
    case hit of
      Just r -> answer tries root request r respond
      Nothing -> respelled static t request respond
  | method == methodOptions = respond (responseLBS noContent204 [allow] "")
  | otherwise = respond (plain methodNotAllowed405 [allow])
  where
    method = requestMethod request
    allow = ("Allow", "GET, HEAD, OPTIONS")

-- | How often a request looks its file up again if the file was replaced between lookup and opening.
tries :: Int
tries = 8

-- | Serve a request whose path is no key of the cache. A path can be spelled in many ways (@%61@ is @a@); its entry has
-- only one of them as key.
respelled :: Static -> Instant -> Application
respelled static@(Static _ root cache since _) t request respond = case asked of
  Right (_, key)
    | key /= rawPathInfo request,
      B.null (rootWithoutSlash request) -> do
      hit <- lookupCache cache (since t) key
      maybe (missedAs asked tries static request respond) (\r -> answer tries root request r respond) hit
  _ -> missedAs asked tries static request respond
  where
    asked = askedFor request

-- | What a request asks for, and the key under which it is cached.
askedFor :: Request -> Either NotAPath (Target, ByteString)
askedFor request
  | pathInfo request == decodePathSegments (rawPathInfo request) = withKey cacheKey <$> target (rawPathInfo request)
  | otherwise = withKey mountedKey <$> mountedTarget (pathInfo request)
  where
    withKey keyOf what = (what, keyOf what)

-- | The last segment of the path if the application is mounted there and the request is for its root, without a slash;
-- otherwise empty. It has the cache's key of the root with a slash.
rootWithoutSlash :: Request -> ByteString
rootWithoutSlash request = if null (pathInfo request) then lastSegment (rawPathInfo request) else B.empty

lastSegment :: ByteString -> ByteString
lastSegment = snd . C.breakEnd (== '/')

-- | Serve a request whose file is not in the cache, or whose entry has to be checked.
missed :: Int -> Static -> Application
missed again static request = missedAs (askedFor request) again static request

missedAs :: Either NotAPath (Target, ByteString) -> Int -> Static -> Application
missedAs asked again static@(Static settings root cache since _) request respond = case asked of
  Left Malformed -> respond (plain badRequest400 [])
  Left Forbidden -> respond (plain notFound404 [])
  Right (FileTarget path, key) -> do
    found <- cached key (path : [page | staticCleanUrls settings, Just page <- [cleanUrl path]])
    case found of
      File r -> answer again root request r respond
      Folder -> toFolder (encode (lastSegment path))
      Missing -> respond (plain notFound404 [])
      Denied -> respond (plain forbidden403 [])
  Right (FolderTarget path, key)
    | name <- rootWithoutSlash request, not (B.null name) -> toFolder name
    | otherwise -> do
      found <- cached key [if B.null path then name else path <> "/" <> name | name <- staticIndex settings]
      case found of
        File r -> answer again root request r respond
        Denied -> respond (plain forbidden403 [])
        _
          | staticListing settings -> listed path
          | otherwise -> respond (plain notFound404 [])
  where
    listed path = do
      t <- now
      found <- listingOf root cache (since t) path (requestHeaders request)
      case found of
        Right r -> answer again root request r respond
        Left Denied -> respond (plain forbidden403 [])
        Left _ -> respond (plain notFound404 [])
    -- Relative to the request's path, whose last segment it repeats: the application may not know the whole path. The
    -- dot keeps a name with a colon from being a scheme.
    toFolder name = respond (plain movedPermanently301 [(hLocation, encodeUrl ("./" <> name <> "/" <> rawQueryString request))])
    -- The first of the paths that is a file; otherwise a folder at one of them, or what is at the last one.
    cached key paths = do
      t <- now
      either id File <$> fetch cache key (\r -> Keep (resourceBytes r + B.length key)) (refresh static t (map B.copy paths))

-- | The page that a path stands for with 'staticCleanUrls', if there is no file at the path: @about.html@ for @about@.
-- A path of a folder, or with a suffix that says the type of a file, stands for none.
cleanUrl :: ByteString -> Maybe ByteString
cleanUrl path
  | "/" `B.isSuffixOf` path || hasKnownSuffix path = Nothing
  | otherwise = Just (path <> ".html")

-- | Look up which of the paths is a file now, given the cache's entry. The instant is when the caller began. A file
-- that may not be read ends the search: another index file, or a listing, could show what it was to hide.
refresh :: Static -> Instant -> [ByteString] -> Maybe Resource -> IO (Either Found (Freshness Resource))
refresh _ _ [] _ = pure (Left Missing)
refresh static began (path : others) old = do
  seen <- refreshOne static began path old
  case seen of
    Left found | not (null others || isDenied found) -> instead found <$> refresh static began others old
    _ -> pure seen
  where
    isDenied Denied = True
    isDenied _ = False
    instead Folder (Left Missing) = Left Folder
    instead _ later = later

refreshOne :: Static -> Instant -> ByteString -> Maybe Resource -> IO (Either Found (Freshness Resource))
refreshOne (Static _ root _ _ _) began path old = briefly (rootOpenFiles root) $ do
  same <- case old of
    Just r | resourcePath r == path -> unchanged root began r
    _ -> pure Nothing
  case same of
    Just seen -> pure (Right (Same seen))
    Nothing -> do
      mapM_ (forget root) old
      (seen, found) <- find root began path
      pure $ case found of
        File r -> Right (Changed seen r)
        other -> Left other
