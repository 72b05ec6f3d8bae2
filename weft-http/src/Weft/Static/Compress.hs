{-# LANGUAGE OverloadedStrings #-}

-- |
-- Compression of files without precompressed variants: which files are worth compressing, and gzip (RFC 1952) in
-- pieces.
module Weft.Static.Compress
  ( compressible,
    gzipped,
  )
where

import qualified Codec.Compression.GZip as Z
import Control.Concurrent (yield)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L

-- | Whether files of a media type, with or without parameters, are worth compressing: texts, and some binary formats.
-- Most images, videos, archives and web fonts are compressed already.
compressible :: ByteString -> Bool
compressible mediaType = "text/" `B.isPrefixOf` t || "+xml" `B.isSuffixOf` t || "+json" `B.isSuffixOf` t || t `elem` known
  where
    t = C.takeWhile (`notElem` ("; " :: String)) mediaType
    known =
      [ "application/javascript",
        "application/json",
        "application/manifest+json",
        "application/toml",
        "application/wasm",
        "application/xml",
        "application/yaml",
        "application/rtf",
        "application/x-javascript",
        "application/vnd.ms-fontobject",
        "font/otf",
        "font/ttf",
        "application/x-font-ttf",
        "application/x-font-otf",
        "image/bmp",
        "image/x-icon"
      ]

-- | Compress a string; 'Nothing' if that saves less than a tenth. Each call of zlib consumes or produces at most 16
-- KiB, which takes less than a millisecond; other threads of the capability can run between two calls.
gzipped :: ByteString -> IO (Maybe ByteString)
gzipped bytes = do
  chunks <- go [] (L.toChunks (Z.compressWith Z.defaultCompressParams {Z.compressBufferSize = piece} (L.fromChunks (pieces bytes))))
  let made = B.concat chunks
  pure (if B.length made * 10 <= B.length bytes * 9 then Just made else Nothing)
  where
    go done chunks = case chunks of
      [] -> pure (reverse done)
      c : rest -> yield >> go (c : done) rest
    pieces string
      | B.null string = []
      | otherwise = let (now, later) = B.splitAt piece string in now : pieces later
    piece = 16384
