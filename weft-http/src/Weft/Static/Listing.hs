{-# LANGUAGE OverloadedStrings #-}

-- |
-- Listings of folders, as HTML, or as JSON for clients that prefer it. They are rendered once for each change, and kept
-- in the cache of contents.
--
-- The time of a folder says nothing about the sizes and times of its files, and it may stay the same at the next change
-- within a tick of the file system's clock. So what shows whether a listing is current is what it shows: its entity tag
-- is made from all entries, in any order. An entry that changes twice in a tick shows its second size too, since the
-- entries are read each time that the listing is compared with the disk.
module Weft.Static.Listing
  ( listingOf,
  )
where

import Data.Aeson (Value, encode, object, (.=))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as BB
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.Foldable (fold)
import Data.List (foldl', sortOn)
import Data.Maybe (catMaybes)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Network.HTTP.Date (formatHTTPDate)
import Network.HTTP.Types.Header
import System.Posix.Types (EpochTime)
import qualified Weft.AccessLog.Put as P
import Weft.Core.Time (Instant)
import Weft.File (File, FileStatus (..), FileType (..), foldEntries, openedStatus)
import Weft.Http.Conditional (Validators (..), fileDate, tagField)
import Weft.Static.Accept (prefersJson)
import Weft.Static.Cache
import Weft.Static.Digest (digest)
import Weft.Static.File
import Weft.Static.OpenFiles (briefly)
import qualified Weft.Static.Path as Path
import Weft.Sys (now)

-- | An entry of a folder.
data Item = Item
  { itemName :: !ByteString,
    itemFolder :: !Bool,
    itemSize :: !Integer,
    itemTime :: !EpochTime
  }

-- | The media types of listings.
data Form = Html | Json
  deriving (Eq, Enum)

-- | The listing of a folder below the root for a client with these fields, or what is there if it is no folder that can
-- be read. The instant is the earliest at which a listing in the cache may have been compared with the disk. That takes
-- O(n) system calls for n entries, and O(n log n) time if they have changed.
listingOf :: DocumentRoot -> Cache Found Resource -> Instant -> ByteString -> RequestHeaders -> IO (Either Found Resource)
listingOf root cache since path fields = do
  hit <- lookupCache cache since key
  maybe (fetch cache key (\r -> Keep (resourceBytes r + B.length key)) refreshed) (pure . Right) hit
  where
    form = if prefersJson [value | (name, value) <- fields, name == hAccept] then Json else Html
    -- No file's path has a zero byte.
    key = (if form == Json then "\0json/" else "\0html/") <> path
    refreshed old = do
      began <- now
      found <- briefly (rootOpenFiles root) (withFolder root path (\folder -> (,) (openedStatus folder) <$> contents root path folder))
      pure $ case found of
        Left other -> Left other
        Right (status, items)
          | Just r <- old, validTag (resourceValid r) == validTag valid -> Right (Same began)
          | otherwise -> Right (Changed began (negotiated root (rendered status items)))
          where
            valid = Validators (tagOfItems items) Nothing
            rendered = listed key form path valid
    tagOfItems items = numbersTag [version, fromIntegral (fromEnum form), foldl' (\s i -> s + digestOf i) 0 items, fromIntegral (length items)]
    -- Of the texts that 'html' and 'toJson' write. To be counted up when these change.
    version = 1

-- | Of all that is shown. The sum for several entries does not depend on their order.
digestOf :: Item -> Word
digestOf i =
  digest . P.putString (B.length (itemName i) + 48) $
    P.bytes (itemName i) <> P.byte (if itemFolder i then 0x2f else 0) <> P.decimal (fromInteger (itemSize i)) <> P.byte 0 <> P.decimal (fromEnum (max 0 (itemTime i)))

listed :: ByteString -> Form -> ByteString -> Validators -> FileStatus -> [Item] -> Resource
listed key form path valid status items =
  Resource
    { resourceBody = InMemory body,
      resourceSize = toInteger (B.length body),
      resourceValid = valid,
      resourceStatus = status,
      resourceRacy = False,
      resourceHeaders =
        [ (hContentType, if form == Json then "application/json; charset=utf-8" else "text/html; charset=utf-8"),
          (hContentLength, C.pack (show (B.length body))),
          (hETag, fold (tagField (validTag valid))),
          (hAcceptRanges, "bytes"),
          (hVary, "Accept"),
          (hCacheControl, "no-cache")
        ],
      resourcePath = key,
      resourceVariants = [],
      resourceCodings = []
    }
  where
    sorted = sortOn (\i -> (not (itemFolder i), itemName i)) items
    !body = L.toStrict (if form == Json then encode (map toJson sorted) else BB.toLazyByteString (html path sorted))

-- | The entries, in any order. Omits hidden ones, entries that are gone or may not be read, entries that are
-- neither files nor folders, and symbolic links that lead out of the root. Blocks no capability.
contents :: DocumentRoot -> ByteString -> File -> IO [Item]
contents root path folder = do
  found <- foldEntries folder (\found name status -> pure (if "." `B.isPrefixOf` name then found else (B.copy name, status) : found)) []
  catMaybes <$> mapM item found
  where
    item (name, status) = either (const Nothing) (described name) <$> followed name status
    -- Of a link, the status of where it leads.
    followed name status = case status of
      Right s
        | statusType s == SymbolicLink -> opening root (below name) (pure . openedStatus)
        | otherwise -> pure (Right s)
      Left e -> maybe (ioError e) (pure . Left) (refusal e)
    below name = if B.null path then name else path <> "/" <> name
    described name s
      | statusType s `elem` [DirectoryFile, RegularFile] = Just (Item name (statusType s == DirectoryFile) (fromIntegral (statusSize s)) (fromIntegral (fst (statusModified s))))
      | otherwise = Nothing

toJson :: Item -> Value
toJson i =
  object
    [ "name" .= shown (itemName i),
      "type" .= (if itemFolder i then "folder" else "file" :: T.Text),
      "size" .= itemSize i,
      "modified" .= T.decodeLatin1 (formatHTTPDate (fileDate (itemTime i)))
    ]

shown :: ByteString -> T.Text
shown = T.decodeUtf8With T.lenientDecode

html :: ByteString -> [Item] -> BB.Builder
html path items =
  "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>"
    <> title
    <> "</title>\n<style>body{font:16px/1.6 system-ui,sans-serif;margin:2rem auto;max-width:50rem;padding:0 1rem}\
       \table{width:100%;border-collapse:collapse}td,th{padding:.15rem .5rem;text-align:left;overflow-wrap:anywhere}\
       \td+td,th+th{text-align:right;white-space:nowrap}tr:hover{background:#8882}</style>\n<h1>"
    <> title
    <> "</h1>\n<table>\n<tr><th>Name<th>Size<th>Modified\n"
    <> (if B.null path then mempty else "<tr><td><a href=\"../\">../</a><td><td>\n")
    <> foldMap row items
    <> "</table>\n"
  where
    title = "/" <> escaped (shown path) <> (if B.null path then mempty else "/")
    row i =
      "<tr><td><a href=\"./" <> BB.byteString (Path.encode (itemName i)) <> slash i <> "\">" <> escaped (shown (itemName i)) <> slash i
        <> "</a><td>"
        <> (if itemFolder i then mempty else BB.integerDec (itemSize i))
        <> "<td>"
        <> BB.byteString (formatHTTPDate (fileDate (itemTime i)))
        <> "\n"
    slash i = if itemFolder i then "/" else mempty

escaped :: T.Text -> BB.Builder
escaped = BB.byteString . T.encodeUtf8 . T.concatMap one
  where
    one c = case c of
      '<' -> "&lt;"
      '>' -> "&gt;"
      '&' -> "&amp;"
      '"' -> "&quot;"
      _ -> T.singleton c
