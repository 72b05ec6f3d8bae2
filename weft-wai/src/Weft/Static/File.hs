{-# LANGUAGE OverloadedStrings #-}

-- |
-- What is known about a file that is served: its contents, if it is small, and the
-- header fields that do not change. Made by reads that block no capability
-- ("Weft.File").
module Weft.Static.File
  ( -- * Sites
    Site (..),

    -- * Resources
    Resource (..),
    Body (..),
    Coding (..),
    codingName,
    resourceBytes,

    -- * Finding them
    Found (..),
    find,
    unchanged,
    withBody,
    withFolder,
  )
where

import Control.Exception (tryJust)
import Control.Monad (guard)
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Either (fromRight)
import Data.Maybe (catMaybes)
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Foreign.C.Error
import qualified GHC.Foreign as G
import GHC.IO.Encoding (getFileSystemEncoding)
import GHC.IO.Exception (IOException (ioe_errno))
import Network.HTTP.Date (HTTPDate, epochTimeToHTTPDate, formatHTTPDate)
import Network.HTTP.Types.Header
import Network.Mime (defaultMimeLookup)
import Numeric (showHex)
import Weft.File
import Weft.Static.Conditional (Validators (..))

-- | A folder that is served.
data Site = Site
  { siteRoot :: !Directory,
    -- | Files up to this many bytes are held in memory.
    siteSmall :: !Int,
    -- | Added to every answer with a file.
    siteHeaders :: !ResponseHeaders
  }

-- | A file that can be served.
data Resource = Resource
  { resourceBody :: !Body,
    resourceSize :: !Integer,
    resourceValid :: !Validators,
    resourceStatus :: !FileStatus,
    -- | All fields of a 200, the length included.
    resourceHeaders :: !ResponseHeaders,
    -- | Its path below the root.
    resourcePath :: !ByteString,
    -- | The same compressed, the best first.
    resourceVariants :: ![(Coding, Resource)]
  }

-- | Where the bytes are.
data Body = InMemory !ByteString | OnDisk

-- | Content codings that may lie beside a file, compressed beforehand.
data Coding = Brotli | Zstandard | Gzip
  deriving (Eq, Show, Enum, Bounded)

-- | As in Content-Encoding.
codingName :: Coding -> ByteString
codingName Brotli = "br"
codingName Zstandard = "zstd"
codingName Gzip = "gzip"

codingSuffix :: Coding -> ByteString
codingSuffix Brotli = ".br"
codingSuffix Zstandard = ".zst"
codingSuffix Gzip = ".gz"

-- | What it takes in memory, about.
resourceBytes :: Resource -> Int
resourceBytes r = body + 1024 + sum (map (resourceBytes . snd) (resourceVariants r))
  where
    body = case resourceBody r of
      InMemory bytes -> B.length bytes
      OnDisk -> 0

-- | What is at a path.
data Found
  = File !Resource
  | Folder
  | Missing
  | -- | It is there and must not or cannot be shown.
    Denied

-- | Look a path below the root up.
find :: Site -> ByteString -> IO Found
find site path = do
  opened <- opening site path (describe site path Nothing)
  case opened of
    Right (Just r) -> do
      variants <- catMaybes <$> mapM (variant r) [minBound .. maxBound]
      pure (File (if null variants then r else varied r variants))
    Right Nothing -> do
      status <- opening site path statFile
      pure (either id (\s -> if statusType s == DirectoryFile then Folder else Denied) status)
    Left found -> pure found
  where
    variant r coding = do
      opened <- opening site (path <> codingSuffix coding) (describe site path (Just coding))
      pure $ case opened of
        -- One that is older than its file was forgotten.
        Right (Just v) | statusModified (resourceStatus v) >= statusModified (resourceStatus r) -> Just (coding, v)
        _ -> Nothing
    varied r variants =
      r
        { resourceVariants = [(c, v {resourceHeaders = vary : resourceHeaders v}) | (c, v) <- variants],
          resourceHeaders = vary : resourceHeaders r
        }
    vary = (hVary, "Accept-Encoding")

-- | Open a file that does not lead out of the root, without waiting for anybody.
opening :: Site -> ByteString -> (File -> IO a) -> IO (Either Found a)
opening site path act = do
  name <- decoded path
  tryJust refusal (withFileAt (siteRoot site) reading {openWithin = Beneath, openPrompt = True} name act)

-- | A name as "System.IO" has it, from the bytes of the file system.
decoded :: ByteString -> IO FilePath
decoded path
  | B.null path = pure "."
  | otherwise = do
    encoding <- getFileSystemEncoding
    B.unsafeUseAsCStringLen path (G.peekCStringLen encoding)

-- | What an error means to a client. Errors of the machine's are passed on.
refusal :: IOException -> Maybe Found
refusal e = do
  code <- ioe_errno e
  let is x = Errno code == x
  if any is [eNOENT, eNOTDIR, eNAMETOOLONG, eINVAL]
    then Just Missing
    else Denied <$ guard (any is [eACCES, ePERM, eXDEV, eLOOP, eNXIO, eNODEV])

-- | A regular file's resource; nothing for other things.
describe :: Site -> ByteString -> Maybe Coding -> File -> IO (Maybe Resource)
describe site path coding file = go (3 :: Int)
  where
    go tries = do
      status <- statFile file
      if statusType status /= RegularFile
        then pure Nothing
        else do
          let size = fromIntegral (statusSize status)
          body <-
            if size <= siteSmall site
              then InMemory <$> readAt file 0 (fromIntegral size)
              else pure OnDisk
          again <- statFile file
          -- Written to while it was read: once more.
          if settled status again body || tries <= 1 then pure (Just (resource site path coding status body)) else go (tries - 1)
    settled a b body = a == b && complete a body
    complete a (InMemory bytes) = B.length bytes == fromIntegral (statusSize a)
    complete _ OnDisk = True

resource :: Site -> ByteString -> Maybe Coding -> FileStatus -> Body -> Resource
resource site path coding status body =
  Resource
    { resourceBody = body,
      resourceSize = size,
      resourceValid = Validators tag date,
      resourceStatus = status,
      resourceHeaders =
        [ (hContentType, mime),
          (hContentLength, C.pack (show size)),
          (hETag, tag),
          (hLastModified, formatHTTPDate date),
          (hAcceptRanges, "bytes")
        ]
          <> [(hContentEncoding, codingName c) | Just c <- [coding]]
          <> siteHeaders site,
      resourcePath = path <> maybe "" codingSuffix coding,
      resourceVariants = []
    }
  where
    size = case body of
      InMemory bytes -> fromIntegral (B.length bytes)
      OnDisk -> fromIntegral (statusSize status)
    date = dateOf status
    tag = tagOf coding status
    mime = charset (defaultMimeLookup (T.decodeUtf8With T.lenientDecode path))
    charset t
      | "text/" `B.isPrefixOf` t || t `elem` ["application/javascript", "application/json", "image/svg+xml"] = t <> "; charset=utf-8"
      | otherwise = t

dateOf :: FileStatus -> HTTPDate
dateOf = epochTimeToHTTPDate . fromIntegral . fst . statusModified

-- | Strong: it changes with every change that the file system can tell.
tagOf :: Maybe Coding -> FileStatus -> ByteString
tagOf coding s = "\"" <> B.intercalate "-" (map hex parts <> [codingName c | Just c <- [coding]]) <> "\""
  where
    parts = [toInteger seconds .&. 0xffffffffff, toInteger nanos, toInteger (statusSize s), toInteger (statusInode s) .&. 0xffff]
    (seconds, nanos) = statusModified s
    hex n = C.pack (showHex n "")

-- | Is what a path leads to the file that the resource was made of?
unchanged :: Site -> Resource -> IO Bool
unchanged site r = do
  whole <- one r
  and . (whole :) <$> mapM (one . snd) (resourceVariants r)
  where
    one x = do
      status <- opening site (resourcePath x) statFile
      pure (either (const False) (same (resourceStatus x)) status)
    same a b = statusModified a == statusModified b && statusSize a == statusSize b && statusInode a == statusInode b && statusDevice a == statusDevice b

-- | Open the file of a resource that is not in memory, as long as it is the one
-- that the resource describes; 'Nothing' when it is another by now.
withBody :: Site -> Resource -> (File -> IO a) -> IO (Maybe a)
withBody site r act = do
  opened <- opening site (resourcePath r) $ \file -> do
    status <- statFile file
    if status == resourceStatus r then Just <$> act file else pure Nothing
  pure (fromRight Nothing opened)

-- | Run something with a name under which a folder below the root can be opened as
-- long as the action takes; 'Nothing' if there is no such folder.
withFolder :: Site -> ByteString -> (ByteString -> IO a) -> IO (Maybe a)
withFolder site path act = do
  opened <- opening site path $ \file -> do
    status <- statFile file
    if statusType status == DirectoryFile
      then Just <$> withFileFd file (\fd -> act (C.pack ("/proc/self/fd/" <> show fd)))
      else pure Nothing
  pure (fromRight Nothing opened)
