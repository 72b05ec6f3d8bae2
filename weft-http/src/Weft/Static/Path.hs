{-# LANGUAGE OverloadedStrings #-}

-- |
-- Converts the target of a request to a path below the root, or to the reason why it
-- is invalid. Pure.
module Weft.Static.Path
  ( Target (..),
    target,
    mountedTarget,
    NotAPath (..),
    cacheKey,
    mountedKey,
    segments,
    encode,
    encodeUrl,
  )
where

import Data.Bits (shiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (isJust)
import Data.Text (Text)
import qualified Data.Text.Encoding as T
import Data.Word (Word8)

-- | The target of a request.
data Target
  = -- | A path below the root, without a slash at either end.
    FileTarget !ByteString
  | -- | The path of a folder: the target ends in a slash. Empty for the root.
    FolderTarget !ByteString
  deriving (Eq, Show)

-- | Why a target is not a path.
data NotAPath
  = -- | It cannot be decoded: a percent sign without two digits.
    Malformed
  | -- | It would lead out of the root or to a hidden file: a segment
    -- begins with a dot (except @.well-known@, RFC 8615), or it contains an encoded slash or a zero
    -- byte.
    Forbidden
  deriving (Eq, Show)

-- | Parse a target's path (RFC 3986). Percent-encoding is decoded once, and empty
-- segments are dropped.
target :: ByteString -> Either NotAPath Target
target raw
  -- Most paths have nothing to decode, no double slash and no hidden segment.
  | plain raw = Right (shape raw)
  | otherwise = mapM decode (filter (not . B.null) (C.split '/' raw)) >>= joined ("/" `B.isSuffixOf` raw || B.null raw)

-- | The target of a request whose application is mounted below a path, from the segments that are left of the path.
-- They are decoded; an empty one at the end stands for a slash.
mountedTarget :: [Text] -> Either NotAPath Target
mountedTarget parts = joined (null parts || B.null (last named)) (filter (not . B.null) named)
  where
    named = map T.encodeUtf8 parts

-- | The target of decoded segments. The first argument is true for a folder.
joined :: Bool -> [ByteString] -> Either NotAPath Target
joined isFolder parts = do
  mapM_ admissible parts
  let path = B.intercalate "/" parts
  Right (if isFolder then FolderTarget path else FileTarget path)

plain :: ByteString -> Bool
plain raw = "/" `B.isPrefixOf` raw && not (B.any (\c -> c == 0x25 || c == 0) raw) && not (crooked raw)
  where
    crooked path = or (B.zipWith (\a b -> a == 0x2f && (b == 0x2f || b == 0x2e)) path (B.drop 1 path))

shape :: ByteString -> Target
shape raw
  | "/" `B.isSuffixOf` raw = FolderTarget (B.take (B.length raw - 2) (B.drop 1 raw))
  | otherwise = FileTarget (B.drop 1 raw)

decode :: ByteString -> Either NotAPath ByteString
decode part
  | 0x25 `B.notElem` part = Right part
  | otherwise = B.pack <$> go (B.unpack part)
  where
    go (0x25 : a : b : rest) = case (digit a, digit b) of
      (Just x, Just y) -> ((x `shiftL` 4 .|. y) :) <$> go rest
      _ -> Left Malformed
    go (0x25 : _) = Left Malformed
    go (c : rest) = (c :) <$> go rest
    go [] = Right []

digit :: Word8 -> Maybe Word8
digit c
  | c >= 0x30 && c <= 0x39 = Just (c - 0x30)
  | c >= 0x41 && c <= 0x46 = Just (c - 0x37)
  | c >= 0x61 && c <= 0x66 = Just (c - 0x57)
  | otherwise = Nothing

admissible :: ByteString -> Either NotAPath ()
admissible part
  | "." `B.isPrefixOf` part && part /= ".well-known" = Left Forbidden
  | B.any (\c -> c == 0 || c == 0x2f) part = Left Forbidden
  | B.null part = Left Forbidden
  | otherwise = Right ()

-- | The one spelling of a target under which it is cached: the decoded path, in which only percent signs are encoded.
-- It is itself a request's path for that target, and equal to the usual spelling of it.
cacheKey :: Target -> ByteString
cacheKey (FileTarget path) = C.cons '/' (escaped path)
cacheKey (FolderTarget path)
  | B.null path = "/"
  | otherwise = C.cons '/' (C.snoc (escaped path) '/')

-- | The key of a target of a mounted application. It is no request's path, since these begin with a slash: the path of
-- one file can be a path of another one where the application is mounted.
mountedKey :: Target -> ByteString
mountedKey = C.cons '.' . cacheKey

-- | A path with its percent signs encoded: otherwise the key of a file named @%61@ would be a spelling of @a@.
escaped :: ByteString -> ByteString
escaped path
  | 0x25 `B.notElem` path = path
  | otherwise = B.intercalate "%25" (C.split '%' path)

-- | The parts of a path.
segments :: ByteString -> [ByteString]
segments = filter (not . B.null) . C.split '/'

-- | A path as the target of a link: all characters except unreserved ones and slashes (RFC 3986,
-- 2.3) are percent-encoded.
encode :: ByteString -> ByteString
encode = encodeUnless (\c -> unreserved c || c == 0x2f)

-- | A URL, or a part of one, that may contain bytes which are not valid there: these are percent-encoded. Reserved
-- characters and what is encoded already stay as they are (RFC 3986, 2), except for @#@, so that there is no fragment.
encodeUrl :: ByteString -> ByteString
encodeUrl url = case B.split 0x25 url of
  [] -> B.empty
  first : rest -> B.concat (valid first : concatMap (\part -> [if encoded part then "%" else "%25", valid part]) rest)
  where
    valid = encodeUnless (\c -> unreserved c || c `B.elem` ":/?[]@!$&'()*+,;=")
    encoded part = B.length part >= 2 && all (isJust . digit) (B.unpack (B.take 2 part))

-- | Percent-encode the bytes for which the predicate is false.
encodeUnless :: (Word8 -> Bool) -> ByteString -> ByteString
encodeUnless kept text
  | B.all kept text = text
  | otherwise = B.concatMap one text
  where
    one c
      | kept c = B.singleton c
      | otherwise = B.pack [0x25, hex (c `div` 16), hex (c `mod` 16)]
    hex n = if n < 10 then 0x30 + n else 0x37 + n

-- | RFC 3986, 2.3.
unreserved :: Word8 -> Bool
unreserved c = c >= 0x30 && c <= 0x39 || c >= 0x41 && c <= 0x5a || c >= 0x61 && c <= 0x7a || c `B.elem` "-._~"
