{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Paths of requests, and patterns for them
--
-- The spellings in which a path is compared, and the patterns of rules. Pure.
--
-- A path can be written in many ways: @\/%61\/\/b@ is @\/a\/b@. It is decoded once, as "Weft.Static" does that finds
-- the file. A server behind a proxy gets the path as it was sent, and may understand more: a backslash or an encoded
-- slash as a slash, or what follows a semicolon in a segment as a parameter (RFC 3986, 3.3). So a path has several
-- readings where it has such characters, and one otherwise; a restriction has to hold for all of them. None has a
-- segment @.@ or @..@ to resolve: such paths are refused where files and proxies are found.
module Weft.Tools.Serve.Paths
  ( -- * Paths
    nextByte,
    readings,

    -- * Patterns
    Pattern,
    everyPath,
    isEveryPath,
    pathPattern,
    matches,
    covers,
  )
where

import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isHexDigit)
import Data.List (nub, unfoldr)
import Network.HTTP.Types (urlDecode)
import Weft.Tools.Serve.Values (Reader, sitePath)

-- Paths ------------------------------------------------------------------------------------

-- | The first byte of a path, decoded, and the rest. Slashes in a row are one slash. An encoded slash stays encoded,
-- since it separates no segments.
nextByte :: ByteString -> Maybe (ByteString, ByteString)
nextByte path = case B.uncons path of
  Nothing -> Nothing
  Just ('/', rest) -> Just ("/", B.dropWhile (== '/') rest)
  Just ('%', rest) | (digits, rest') <- B.splitAt 2 rest, B.length digits == 2, B.all isHexDigit digits -> Just (kept (urlDecode False (B.take 3 path)), rest')
  Just (c, rest) -> Just (B.singleton c, rest)
  where
    kept byte = if byte == "/" then "%2F" else byte

decoded :: ByteString -> ByteString
decoded = B.concat . unfoldr nextByte

-- | What a path can mean to those who answer, each once. O(n), and without a copy for a path in its usual spelling.
readings :: ByteString -> [ByteString]
readings raw
  | not (B.any (\c -> c == '%' || c == ';' || c == '\\') raw), not ("//" `B.isInfixOf` raw) = [raw]
  | otherwise = nub [once, slashed once, withoutParameters once, withoutParameters (slashed once)]
  where
    once = decoded raw

-- | With every other way to write a slash.
slashed :: ByteString -> ByteString
slashed path = oneSlash (B.map (\c -> if c == '\\' then '/' else c) (pieces path))
  where
    pieces text = case B.breakSubstring "%2F" text of
      (whole, "") -> whole
      (before, rest) -> before <> "/" <> pieces (B.drop 3 rest)

withoutParameters :: ByteString -> ByteString
withoutParameters = oneSlash . B.intercalate "/" . map (B.takeWhile (/= ';')) . B.split '/'

oneSlash :: ByteString -> ByteString
oneSlash path
  | "//" `B.isInfixOf` path = B.concat (unfoldr next path)
  | otherwise = path
  where
    next text = case B.uncons text of
      Just ('/', rest) -> Just ("/", B.dropWhile (== '/') rest)
      Just _ -> Just (B.break (== '/') text)
      Nothing -> Nothing

-- Patterns ---------------------------------------------------------------------------------

-- | A pattern for decoded paths: the texts between its stars, of which each stands for any characters, slashes too.
newtype Pattern = Pattern [ByteString]
  deriving (Eq, Show)

-- | The pattern for all requests, also for those without a path (@OPTIONS *@).
everyPath :: Pattern
everyPath = Pattern ["", ""]

-- | True if it is 'everyPath'.
isEveryPath :: Pattern -> Bool
isEveryPath = (== everyPath)

-- | @\/assets\/*@, @\/*.css@, @\/about@.
pathPattern :: Reader Pattern
pathPattern text = do
  path <- sitePath text
  when (any (`elem` [".", ".."]) (B.split '/' (decoded path))) (Left ("expected a path without the segments . and .., which no request gets past, not " <> show text))
  unless (all escape (drop 1 (B.split '%' path))) (Left ("expected two hexadecimal digits after each % (a percent sign is written as %25), not " <> show text))
  when (B.elem '\0' (decoded path)) (Left ("expected a path without the byte zero, which no file's has, not " <> show text))
  Right (Pattern (oneStar (map decoded (B.split '*' path))))
  where
    -- Several stars in a row are one.
    oneStar parts = case parts of
      first : rest@(_ : _) -> first : filter (not . B.null) (init rest) <> [last rest]
      _ -> parts
    escape rest = B.length rest >= 2 && B.all isHexDigit (B.take 2 rest)

-- | Whether a path, as 'readings' gives it, is one of the pattern's. A slash at the end makes no difference, so that
-- @\/admin\/*@ is @\/admin@ and all that is below it. O(n) for each star.
matches :: Pattern -> ByteString -> Bool
matches (Pattern parts) path = case parts of
  ["", ""] -> True
  [whole] -> whole == trimmed || whole == trimmed <> "/"
  first : rest -> any (\text -> maybe False (behind rest) (B.stripPrefix first text)) [path, trimmed, trimmed <> "/"]
  [] -> False
  where
    trimmed = if "/" `B.isSuffixOf` path then B.init path else path
    behind rest text = case rest of
      [end] -> end `B.isSuffixOf` text
      part : others -> let (before, found) = B.breakSubstring part text in (B.length before < B.length text || B.null part) && behind others (B.drop (B.length part) found)
      [] -> B.null text

-- | Whether all paths of the second pattern are paths of the first one. The byte zero stands for its stars, and is in
-- no pattern, so that a star is matched by a star only; at the end of a folder it can also be nothing.
covers :: Pattern -> Pattern -> Bool
covers a (Pattern parts) = all (a `matches`) (text : [B.init text | "/\0" `B.isSuffixOf` text])
  where
    text = B.intercalate "\0" parts
