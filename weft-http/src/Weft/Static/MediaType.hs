{-# LANGUAGE OverloadedStrings #-}

-- |
-- The media types of files, by the suffixes of their names: those of the package @mime-types@, newer ones, and a user's
-- own. Pure.
--
-- @since 0.1.0
module Weft.Static.MediaType
  ( MediaTypes,
    mediaTypes,
    mediaTypeOf,
    hasKnownSuffix,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as C
import Data.Char (isAsciiUpper, toLower)
import qualified Data.HashMap.Strict as H
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe)
import qualified Data.Text.Encoding as T
import Network.Mime (defaultMimeMap, defaultMimeType)

-- | Types by path, and for other paths by suffix, in lower case and without the dot in front.
data MediaTypes = MediaTypes (ByteString -> Maybe ByteString) (H.HashMap ByteString ByteString)

-- | The known types, with others by suffix that replace or join them, and those of some paths, which come first. For
-- texts without a parameter @charset@, UTF-8 is added.
mediaTypes :: (ByteString -> Maybe ByteString) -> [(ByteString, ByteString)] -> MediaTypes
mediaTypes ofPath [] = MediaTypes ofPath standardTypes
mediaTypes ofPath own = MediaTypes ofPath (H.union (H.fromList [(C.map toLower suffix, charset t) | (suffix, t) <- own]) standardTypes)

-- | Shared by all folders.
standardTypes :: H.HashMap ByteString ByteString
standardTypes = charset <$> H.union (H.fromList newer) (H.fromList [(T.encodeUtf8 suffix, t) | (suffix, t) <- M.toList defaultMimeMap])
{-# NOINLINE standardTypes #-}

-- | Types that the package does not have, as the registry of IANA names them. A source map is JSON (ECMA-426).
newer :: [(ByteString, ByteString)]
newer =
  [ ("apng", "image/apng"),
    ("avif", "image/avif"),
    ("cjs", "application/javascript"),
    ("geojson", "application/geo+json"),
    ("glb", "model/gltf-binary"),
    ("gltf", "model/gltf+json"),
    ("heic", "image/heic"),
    ("heif", "image/heif"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("map", "application/json"),
    ("toml", "application/toml"),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zst", "application/zstd")
  ]

-- | The media type of a file by its path: that of the path, or else of the longest known suffix of its name. O(n) in
-- the length of the name.
mediaTypeOf :: MediaTypes -> ByteString -> ByteString
mediaTypeOf (MediaTypes ofPath types) path = maybe (go (C.map lower (snd (C.breakEnd (== '/') path)))) charset (ofPath path)
  where
    go name
      | C.null suffix = charset defaultMimeType
      | otherwise = fromMaybe (go suffix) (H.lookup suffix types)
      where
        suffix = C.drop 1 (C.dropWhile (/= '.') name)
    -- Bytes of UTF-8 stay as they are.
    lower c = if isAsciiUpper c then toLower c else c

-- | Whether a suffix of a file's name says its type, in general.
hasKnownSuffix :: ByteString -> Bool
hasKnownSuffix = go . C.map toLower . snd . C.breakEnd (== '/')
  where
    go name = let suffix = C.drop 1 (C.dropWhile (/= '.') name) in not (C.null suffix) && (H.member suffix standardTypes || go suffix)

charset :: ByteString -> ByteString
charset t
  | "charset=" `C.isInfixOf` C.map toLower t = t
  | "text/" `C.isPrefixOf` t || t `elem` ["application/javascript", "application/json", "image/svg+xml"] = t <> "; charset=utf-8"
  | otherwise = t
