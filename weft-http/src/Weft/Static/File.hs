{-# LANGUAGE OverloadedStrings #-}

-- |
-- What is known about a served file: its contents if it is small, and the
-- header fields that do not change. The reads block no capability
-- ("Weft.File").
module Weft.Static.File
  ( -- * Sites
    DocumentRoot (..),

    -- * Resources
    Resource (..),
    Body (..),
    resourceBytes,
    numbersTag,
    Compressed,
    compressedBytes,

    -- * Finding them
    Found (..),
    find,
    unchanged,
    negotiated,
    compressed,
    withBody,
    forget,
    withFolder,
    opening,
    refusal,
  )
where

import Control.Exception (tryJust)
import Control.Monad (guard, join, when)
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Either (fromRight)
import Data.Foldable (fold)
import Data.Int (Int64)
import Data.List (intersperse)
import Data.Maybe (catMaybes)
import Foreign.C.Error
import GHC.IO.Exception (IOException (ioe_errno))
import Network.HTTP.Date (HTTPDate, formatHTTPDate)
import Network.HTTP.Types.Header
import Network.Wai (Request, Response, ResponseReceived)
import System.Posix.Time (epochTime)
import qualified Weft.AccessLog.Put as P
import Weft.Core.Time (Instant)
import Weft.File
import Weft.Http.Conditional (EntityTag (..), Validators (..), fileDate, tagField)
import Weft.Static.Background
import Weft.Static.Compress
import Weft.Static.Digest (digest)
import Weft.Static.Folders
import Weft.Static.Kept
import Weft.Static.MediaType
import Weft.Static.OpenFiles (OpenFiles, briefly)
import Weft.Static.Users (Users, using)

-- | A folder that is served.
data DocumentRoot = DocumentRoot
  { rootDirectory :: !Directory,
    -- | Files up to this many bytes are held in memory.
    rootSmall :: !Int,
    rootFolders :: !Folders,
    -- | Fields added to every response with a file.
    rootHeaders :: !ResponseHeaders,
    rootTypes :: !MediaTypes,
    -- | Files up to this many bytes are compressed; 0 disables compression.
    rootCompress :: !Int,
    -- | Whether files of a media type are compressed.
    rootCompressible :: !(ByteString -> Bool),
    -- | The compressed contents, by 'resourcePath' and the suffix of the coding.
    rootCompressed :: !(Background Compressed),
    -- | Those who use the open folder.
    rootUsers :: !Users,
    -- | How many files may stay open.
    rootOpenFiles :: !(Maybe OpenFiles),
    -- | The open files that are kept, and how many may be.
    rootKept :: !Kept,
    rootMostKept :: !Int,
    -- | Answers a request again whose file was replaced after the lookup, at most the given number of times. Lazy,
    -- since it refers to this record.
    rootAgain :: Int -> Request -> (Response -> IO ResponseReceived) -> IO ResponseReceived
  }

-- | A file that can be served.
data Resource = Resource
  { resourceBody :: !Body,
    resourceSize :: !Integer,
    resourceValid :: !Validators,
    resourceStatus :: !FileStatus,
    -- | The file changed so shortly before its status was read that a further change might not show in the status.
    resourceRacy :: !Bool,
    -- | All fields of a 200 response, including the length.
    resourceHeaders :: !ResponseHeaders,
    -- | Its path below the root.
    resourcePath :: !ByteString,
    -- | The compressed variants that are files, the best first.
    resourceVariants :: ![(Coding, Resource)],
    -- | The codings in which the server can compress it.
    resourceCodings :: ![Coding]
  }

-- | Where the bytes are.
data Body = InMemory !ByteString | OnDisk

-- | The outcome of compressing contents with this status and tag: 'Nothing' if that is not worthwhile.
data Compressed = Compressed !FileStatus !EntityTag !(Maybe Resource)

-- | The approximate memory it uses, with its name.
compressedBytes :: Compressed -> Int
compressedBytes (Compressed _ _ variant) = 512 + maybe 0 resourceBytes variant

-- | The approximate memory it uses.
resourceBytes :: Resource -> Int
resourceBytes r = body + 1024 + sum (map (resourceBytes . snd) (resourceVariants r))
  where
    body = case resourceBody r of
      InMemory bytes -> B.length bytes
      OnDisk -> 0

-- | The result of looking up a path.
data Found
  = File !Resource
  | Folder
  | Missing
  | -- | It exists but may not or cannot be served.
    Denied

-- | Look up a path below the root: what is there, and the instant at which that was true. The
-- argument is the time at which the caller began.
find :: DocumentRoot -> Instant -> ByteString -> IO (Instant, Found)
find root began path = do
  clock <- fromIntegral . fromEnum <$> epochTime
  opened <- opening root path (describe root clock path Nothing)
  case opened of
    Right (File r) -> do
      (codings, seen) <- codingsIn (rootFolders root) began path
      beside <- catMaybes <$> mapM (variant clock r) codings
      pure (min began seen, File (negotiated root r {resourceVariants = beside}))
    Right other -> pure (began, other)
    Left found -> pure (began, found)
  where
    variant clock r coding = do
      opened <- opening root (path <> codingSuffix coding) $ \file ->
        if mayStandFor r (openedStatus file) then describe root clock path (Just coding) file else pure Missing
      pure $ case opened of
        Right (File v) | mayStandFor r (resourceStatus v) -> Just (coding, v)
        _ -> Nothing

-- | The resource with the codings in which the server can compress it, beside those of its variants. If there are any,
-- the responses depend on what the client accepts, also as long as nothing is compressed.
negotiated :: DocumentRoot -> Resource -> Resource
negotiated root r
  | null variants && null codings = r
  | otherwise = r {resourceVariants = [(c, varied v) | (c, v) <- variants], resourceCodings = codings, resourceHeaders = resourceHeaders (varied r)}
  where
    variants = resourceVariants r
    codings = if worthwhile then [c | c <- [minBound .. maxBound], c `notElem` map fst variants] else []
    worthwhile = resourceSize r >= 1024 && resourceSize r <= toInteger (rootCompress root) && maybe False (rootCompressible root) (lookup hContentType (resourceHeaders r))
    varied x = x {resourceHeaders = vary (resourceHeaders x)}
    vary fields = case break ((== hVary) . fst) fields of
      (before, (name, value) : rest) -> before <> ((name, value <> ", Accept-Encoding") : rest)
      (_, []) -> (hVary, "Accept-Encoding") : fields

-- | A resource in one of its 'resourceCodings', if it has been compressed. If not, and the flag says so, it is
-- compressed in the background.
compressed :: DocumentRoot -> Bool -> Resource -> Coding -> IO (Maybe Resource)
compressed root begin r coding = do
  known <- lookupMade (rootCompressed root) name
  case known of
    Just (Compressed status tag variant) | sameStatus status (resourceStatus r) && tag == validTag (resourceValid r) -> pure variant
    _ -> Nothing <$ when (begin && certain) (makeLater (rootCompressed root) name (fromInteger (resourceSize r) `quot` 2) make)
  where
    name = resourcePath r <> codingSuffix coding
    -- Other contents would have another tag.
    certain = case validTag (resourceValid r) of
      StrongTag _ -> True
      _ -> False
    -- 'Nothing' if the file has been changed.
    wholeOf file = do
      bytes <- readAt file 0 (fromInteger (resourceSize r))
      status <- statFile file
      pure (if sameStatus status (resourceStatus r) then Just bytes else Nothing)
    make pause = do
      whole <- using (rootUsers root) $ case resourceBody r of
        InMemory bytes -> pure (Just bytes)
        OnDisk -> briefly (rootOpenFiles root) (join <$> withBody root r wholeOf)
      case join whole of
        Just bytes | toInteger (B.length bytes) == resourceSize r -> do
          result <- encodedIn coding pause bytes
          let outcome = Compressed (resourceStatus r) (validTag (resourceValid r))
              variant = outcome (encoded coding r <$> result)
          pure (Just (if fits (rootCompressed root) (compressedBytes variant) then variant else outcome Nothing))
        _ -> pure Nothing

-- | A resource with its contents in a coding.
encoded :: Coding -> Resource -> ByteString -> Resource
encoded coding r bytes =
  r
    { resourceBody = InMemory bytes,
      resourceSize = toInteger (B.length bytes),
      resourceValid = (resourceValid r) {validTag = tag},
      resourceHeaders = (hContentEncoding, codingName coding) : map field (resourceHeaders r),
      resourceVariants = [],
      resourceCodings = []
    }
  where
    tag = contentsTag (Just coding) bytes
    field (name, value)
      | name == hContentLength = (name, P.putString 20 (P.decimal (B.length bytes)))
      | name == hETag = (name, fold (tagField tag))
      | otherwise = (name, value)

-- | Whether a file with that status can be a variant of this resource. A variant that is older than the file is stale.
mayStandFor :: Resource -> FileStatus -> Bool
mayStandFor r status = statusType status == RegularFile && statusModified status >= statusModified (resourceStatus r)

-- | Open a file below the root, through no link to the outside, without blocking a capability.
opening :: DocumentRoot -> ByteString -> (File -> IO a) -> IO (Either Found a)
opening root path act = tryJust refusal (beneath (rootDirectory root) path act)

-- | What an error means for a client. Errors that are the server's own are rethrown.
refusal :: IOException -> Maybe Found
refusal e = do
  code <- ioe_errno e
  let is x = Errno code == x
  if any is [eNOENT, eNOTDIR, eNAMETOOLONG, eINVAL, eILSEQ]
    then Just Missing
    else Denied <$ guard (any is [eACCES, ePERM, eXDEV, eLOOP, eNXIO, eNODEV])

-- | The resource of a regular file, or what the path is instead. The time in seconds is from before the file was
-- opened.
describe :: DocumentRoot -> Int64 -> ByteString -> Maybe Coding -> File -> IO Found
describe root clock path coding file = go (3 :: Int) (openedStatus file)
  where
    made status body = pure (File (resource root clock path coding status body))
    go tries status
      | statusType status == DirectoryFile = pure Folder
      | statusType status /= RegularFile = pure Denied
      | statusSize status > fromIntegral (rootSmall root) = made status OnDisk
      | otherwise = do
        bytes <- readAt file 0 (fromIntegral (statusSize status))
        now <- statFile file
        -- If the file was written to while it was read, read it again.
        if tries <= 1 || now == status && B.length bytes == fromIntegral (statusSize status)
          then made status (InMemory bytes)
          else go (tries - 1) now

resource :: DocumentRoot -> Int64 -> ByteString -> Maybe Coding -> FileStatus -> Body -> Resource
resource root clock path coding status body =
  Resource
    { resourceBody = body,
      resourceSize = size,
      resourceValid = Validators tag (Just date),
      resourceStatus = status,
      resourceRacy = racy,
      resourceHeaders =
        [ (hContentType, mediaTypeOf (rootTypes root) path),
          (hContentLength, P.putString 20 (P.decimal (fromInteger size))),
          (hETag, fold (tagField tag)),
          (hLastModified, formatHTTPDate date),
          (hAcceptRanges, "bytes")
        ]
          <> [(hContentEncoding, codingName c) | Just c <- [coding]]
          <> rootHeaders root,
      resourcePath = path <> maybe "" codingSuffix coding,
      resourceVariants = [],
      resourceCodings = []
    }
  where
    -- Times of files advance in ticks, of 1 to 10 ms on most file systems, of 2 s on some. (git's index has the same
    -- problem, and calls such files racy.)
    racy = fst (statusChanged status) + 3 > clock
    date = dateOf clock status
    size = case body of
      InMemory bytes -> fromIntegral (B.length bytes)
      OnDisk -> fromIntegral (statusSize status)
    tag = case body of
      InMemory bytes -> contentsTag coding bytes
      OnDisk
        | racy -> WeakTag (tagOf coding (times <> [0]))
        | otherwise -> StrongTag (tagOf coding times)
    times = let (seconds, nanos) = statusModified status in [fromIntegral seconds, fromIntegral nanos, fromIntegral (statusSize status)]

-- | A strong tag of numbers.
numbersTag :: [Word] -> EntityTag
numbersTag = StrongTag . tagOf Nothing

-- | The tag of contents that are known.
contentsTag :: Maybe Coding -> ByteString -> EntityTag
contentsTag coding bytes = StrongTag (tagOf coding [digest bytes, fromIntegral (B.length bytes)])

-- | The modification time, but none in the future (RFC 9110, 8.8.2.1). The first argument is the present time in
-- seconds.
dateOf :: Int64 -> FileStatus -> HTTPDate
dateOf clock = fileDate . fromIntegral . min clock . fst . statusModified

-- | The entity tag: numbers in quotes. Tags are equal on all servers of a site, between which clients may alternate.
-- The tag of contents in memory depends on the contents. That of a large file depends on its size and modification
-- time, which programs that copy a site preserve. Inode and change time, which differ between machines, are not used.
--
-- A large file that has just been modified could be modified again without a change of its time. Its tag is therefore
-- weak, and will be another one later.
tagOf :: Maybe Coding -> [Word] -> ByteString
tagOf coding numbers = P.putString 80 (quote <> mconcat (intersperse dash (map (P.hexadecimal . fromIntegral . (.&. fromIntegral (maxBound :: Int))) numbers)) <> foldMap coded coding <> quote)
  where
    quote = P.byte 0x22
    dash = P.byte 0x2d
    coded c = dash <> P.bytes (codingName c)

-- | Check that a path still leads to the file of the resource, with the same variants and no other. Returns the instant
-- at which that was true.
unchanged :: DocumentRoot -> Instant -> Resource -> IO (Maybe Instant)
unchanged root began r = do
  (codings, seen) <- codingsIn (rootFolders root) began (resourcePath r)
  let beside = resourceVariants r
      absent = [c | c <- codings, c `notElem` map fst beside]
  still <- if any resourceRacy (r : map snd beside) then pure False else allM one (r : map snd beside)
  same <- if still then not <$> anyM appeared absent else pure False
  pure (if same then Just (min began seen) else Nothing)
  where
    one x = at (resourcePath x) (sameStatus (resourceStatus x))
    appeared coding = at (resourcePath r <> codingSuffix coding) (mayStandFor r)
    at path holds = fromRight False <$> opening root path (pure . holds . openedStatus)
    allM f = fmap not . anyM (fmap not . f)
    anyM f = foldr (\x rest -> f x >>= \yes -> if yes then pure True else rest) (pure False)

-- | Whether two statuses are of the same file with the same contents. Unlike 'sameFile', compares the change time too,
-- which programs cannot set: a file that was written to and got its old modification time back (cp -p, tar, rsync)
-- counts as changed.
sameStatus :: FileStatus -> FileStatus -> Bool
sameStatus a b = sameFile a b && statusChanged a == statusChanged b

-- | Whether two statuses are of the same file, by device and inode, with the same size and modification time. A new
-- link or other permissions do not matter.
sameFile :: FileStatus -> FileStatus -> Bool
sameFile a b = statusModified a == statusModified b && statusSize a == statusSize b && statusInode a == statusInode b && statusDevice a == statusDevice b

-- | Run an action with the file of a resource that is not in memory, one that is kept or a new one. 'Nothing' if the
-- file is no longer the one that the resource describes. Whether it is still at its path is not asked of one that is
-- kept: 'unchanged' does that, as for contents in memory.
withBody :: DocumentRoot -> Resource -> (File -> IO a) -> IO (Maybe a)
withBody root r act = do
  found <- withKept (rootKept root) path $ \file -> do
    status <- statFile file
    if isIt status then Just <$> act file else pure Nothing
  maybe anew (maybe (forget root r >> anew) (pure . Just)) found
  where
    path = resourcePath r
    isIt = sameFile (resourceStatus r)
    anew = do
      opened <- tryJust refusal (withOpened (rootKept root) (rootMostKept root) (rootOpenFiles root) path (openBeneath (rootDirectory root) path) $ \file -> act file <$ guard (isIt (openedStatus file)))
      pure (fromRight Nothing opened)

-- | Keep no open file of a resource that has changed.
forget :: DocumentRoot -> Resource -> IO ()
forget root r = mapM_ (dropKept (rootKept root) . resourcePath) (r : map snd (resourceVariants r))

-- | Run an action with a folder below the root. 'Left' says what is there if it is no folder that can be read.
withFolder :: DocumentRoot -> ByteString -> (File -> IO a) -> IO (Either Found a)
withFolder root path act = do
  opened <- opening root path $ \file ->
    if statusType (openedStatus file) == DirectoryFile then Right <$> act file else pure (Left Missing)
  pure (join opened)
