{-# LANGUAGE OverloadedStrings #-}

-- |
-- A listing of a folder, as HTML, or as JSON for clients that prefer it.
module Weft.Static.Listing
  ( listing,
  )
where

import Control.Exception (tryJust)
import Data.Aeson (Value, encode, object, (.=))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as BB
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.List (sortOn)
import Data.Maybe (catMaybes)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Network.HTTP.Date (formatHTTPDate)
import Network.HTTP.Types
import Network.HTTP.Types.Header
import Network.Wai
import System.Posix.Types (EpochTime)
import Weft.File (File, FileStatus (..), FileType (..), foldNames, openedStatus, statEntry)
import Weft.Http.Conditional (fileDate)
import Weft.Static.Accept (prefersJson)
import Weft.Static.Answer (plain)
import Weft.Static.File (DocumentRoot (..), Found (Denied), opening, refusal, withFolder)
import Weft.Static.OpenFiles (briefly)
import qualified Weft.Static.Path as Path

-- | An entry of a folder.
data Item = Item
  { itemName :: !ByteString,
    itemFolder :: !Bool,
    itemSize :: !Integer,
    itemTime :: !EpochTime
  }

-- | Respond with a listing of a folder below the root.
listing :: DocumentRoot -> ByteString -> Request -> (Response -> IO ResponseReceived) -> IO ResponseReceived
listing root path request respond = do
  found <- briefly (rootOpenFiles root) (withFolder root path (contents root path))
  case found of
    Left Denied -> respond (plain forbidden403 [])
    Left _ -> respond (plain notFound404 [])
    Right items
      | wantsJson -> respond (page "application/json; charset=utf-8" (encode (map toJson items)))
      | otherwise -> respond (page "text/html; charset=utf-8" (BB.toLazyByteString (html path items)))
  where
    wantsJson = prefersJson [value | (name, value) <- requestHeaders request, name == hAccept]
    page mime body = responseLBS ok200 [(hContentType, mime), (hContentLength, C.pack (show (L.length body))), (hVary, "Accept"), (hCacheControl, "no-cache")] body

-- | Folders first, sorted by name. Omits hidden entries, entries that are gone or may not be read, entries that are
-- neither files nor folders, and symbolic links that lead out of the root. Blocks no capability.
contents :: DocumentRoot -> ByteString -> File -> IO [Item]
contents root path folder = do
  names <- foldNames folder (\names name -> pure (if "." `B.isPrefixOf` name then names else B.copy name : names)) []
  sortOn (\i -> (not (itemFolder i), itemName i)) . catMaybes <$> mapM item names
  where
    item name = either (const Nothing) (described name) <$> status name
    -- Of a link, the status of where it leads.
    status name = do
      found <- tryJust refusal (statEntry folder name)
      case found of
        Right s | statusType s == SymbolicLink -> opening root (below name) (pure . openedStatus)
        _ -> pure found
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
