{-# LANGUAGE OverloadedStrings #-}

-- |
-- Compression of files without precompressed variants: which files are worth compressing, and gzip (RFC 1952) in
-- pieces.
module Weft.Static.Compress
  ( compressedTypes,
    compressible,
    gzipped,
  )
where

import qualified Codec.Compression.Zlib.Internal as Z
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)

-- | The media types whose files are worth compressing, as 'compressible' takes them: texts, and some binary formats.
-- Most images, videos, archives and web fonts are compressed already.
compressedTypes :: [ByteString]
compressedTypes =
  [ "text/*",
    "*+xml",
    "*+json",
    "application/javascript",
    "application/json",
    "application/rtf",
    "application/toml",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-font-otf",
    "application/x-font-ttf",
    "application/x-javascript",
    "application/xml",
    "application/yaml",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/x-icon"
  ]

-- | Whether a media type, with or without parameters, is one of these: @type\/*@ stands for all that begin so, @*+suffix@
-- for all that end so. Case does not matter (RFC 9110, 8.3.1).
compressible :: [ByteString] -> ByteString -> Bool
compressible types = \mediaType -> any (isOne (C.map toLower (C.takeWhile (`notElem` ("; " :: String)) mediaType))) folded
  where
    folded = map (C.map toLower) types
    isOne t pattern'
      | Just suffix <- B.stripPrefix "*" pattern' = suffix `B.isSuffixOf` t
      | Just prefix <- B.stripSuffix "*" pattern' = prefix `B.isPrefixOf` t
      | otherwise = t == pattern'

-- | Compress a string; 'Nothing' if that saves less than a tenth. Each call of zlib has 16 KiB, which take less than a
-- millisecond; the action is run between two calls.
gzipped :: IO () -> ByteString -> IO (Maybe ByteString)
gzipped between bytes = do
  result <- B.concat . reverse <$> go [] bytes (Z.compressIO Z.gzipFormat Z.defaultCompressParams)
  pure (if B.length result * 10 <= B.length bytes * 9 then Just result else Nothing)
  where
    -- The pieces that there are, in reverse, and what is left. An empty piece is the end.
    go done left stream = case stream of
      Z.CompressInputRequired supply -> do
        unless (B.length left == B.length bytes) between
        supply (B.take 16384 left) >>= go done (B.drop 16384 left)
      Z.CompressOutputAvailable piece next -> next >>= go (piece : done) left
      Z.CompressStreamEnd -> pure done
