{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Rules for paths
--
-- Values that hold for the paths of a pattern, as they are written in settings, and which of them count for a request.
-- Pure.
--
-- A rule is @\/PATTERN=VALUE@, or a value alone, which is for all paths that no pattern of the setting covers. The
-- first rule that covers a path counts.
module Weft.Tools.Serve.Rules
  ( -- * Rules
    Rule (..),
    ruled,
    hidden,
    inOrder,
    merged,

    -- * Which count
    Places,
    placesOf,
    ruleAt,
    governing,
    fieldsFor,

    -- * Values
    networks,
    methodNames,
    byteCount,
    Rate (..),
    rateOf,
    typeRule,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isAlphaNum, isDigit)
import Data.Int (Int64)
import Data.List (find, nub, nubBy, partition)
import Data.Maybe (mapMaybe, maybeToList)
import Data.Word (Word64)
import Network.HTTP.Types (Header, Method)
import Text.Read (readMaybe)
import Weft.Static (cleanUrl)
import Weft.Tools.Serve.Paths
import Weft.Tools.Serve.Values

-- | A value for some paths.
data Rule a = Rule
  { rulePattern :: !Pattern,
    ruleValue :: !a
  }
  deriving (Eq)

-- | @\/PATTERN=VALUE@, or a value for all paths.
ruled :: Reader a -> Reader (Rule a)
ruled value text = case break (== '=') text of
  ('/' : _, '=' : rest) -> Rule <$> pathPattern (takeWhile (/= '=') text) <*> value rest
  ('/' : _, _) -> Left ("expected a path, = and a value, not " <> show text)
  _ -> Rule everyPath <$> value text

-- | Whether the second rule, which is given after the first one, never counts since the first one covers its paths. One
-- without a path comes after those that have one, wherever it is given.
hidden :: Rule a -> Rule a -> Bool
hidden (Rule a _) (Rule b _) = isEveryPath a == isEveryPath b && a `covers` b

-- | The rules in the order in which they count: those without a path are the last.
inOrder :: [Rule a] -> [Rule a]
inOrder rules = let (general, own) = partition (isEveryPath . rulePattern) rules in own <> general

-- | 'inOrder', and rules of the same pattern are one.
merged :: Semigroup a => [Rule a] -> [Rule a]
merged given = [Rule p (foldr1 (<>) [v | Rule q v <- rules, p == q]) | p <- nub (map rulePattern rules)]
  where
    rules = inOrder given

-- Which count ------------------------------------------------------------------------------

-- | The places for which a request may be answered, for rules: all readings of its path, and the files that it can get
-- by another name than their own.
type Places = [ByteString]

-- | The places of a path, where these are the names of index files, and a path may leave out @.html@ if the flag is
-- true ('cleanUrl').
placesOf :: [ByteString] -> Bool -> ByteString -> Places
placesOf indexes clean raw
  -- /docs/index is /docs/index.html, which is /docs/.
  | clean = nub (concatMap names (concatMap names paths))
  | otherwise = concatMap names paths
  where
    paths = readings (if B.null raw then "/" else raw)
    names path
      | "/" `B.isSuffixOf` path = path : map (path <>) indexes
      | (folder, name) <- B.breakEnd (== '/') path = path : [folder | name `elem` indexes] <> concat [pages path | clean]
    pages path = maybeToList (cleanUrl path) <> [short | Just short <- [B.stripSuffix ".html" path], cleanUrl short == Just path]

-- | The rule for a place, of rules that are 'inOrder'. O(n) for n rules.
ruleAt :: [Rule a] -> ByteString -> Maybe (Rule a)
ruleAt rules place = find ((`matches` place) . rulePattern) rules

-- | The rules for the places, of rules that are 'inOrder', each once: a restriction has to hold for all of them.
governing :: Eq a => [Rule a] -> Places -> [Rule a]
governing rules = nub . mapMaybe (ruleAt rules)

-- | The fields for a request, of rules that are 'inOrder': of each name those of the first pattern that covers one of
-- the places, and else those without a path.
fieldsFor :: [Rule Header] -> Places -> [Header]
fieldsFor rules places = [field | rule@(Rule p field) <- found, fmap rulePattern (find (sameName rule) chosen) == Just p]
  where
    found = filter (\(Rule p _) -> any (matches p) places) rules
    chosen = nubBy sameName found
    sameName (Rule _ (a, _)) (Rule _ (b, _)) = a == b

-- Values -----------------------------------------------------------------------------------

-- | Networks, separated by commas; @all@ is every client.
networks :: Reader [Network]
networks text = concat <$> mapM one (separated text)
  where
    one network = if network == "all" then Right everyone else (: []) <$> networkAddress network

-- | Methods, separated by commas, as they are sent. GET allows HEAD.
methodNames :: Reader [Method]
methodNames text = case separated text of
  names | all valid names -> Right (nub (concatMap (\name -> if name == "GET" then ["GET", "HEAD"] else [B.pack name]) names))
  _ -> Left ("expected methods, separated by commas, as GET,POST, not " <> show text)
  where
    valid name = not (null name) && all (\c -> c < '\128' && (isAlphaNum c || c `elem` ("!#$%&'*+-.^_`|~" :: String))) name

-- | A number of bytes; with k, M or G a thousand, a million or a thousand millions of them.
byteCount :: Reader Word64
byteCount text = case span isDigit text of
  (digits@(_ : _), unit) | length digits <= 15, Just n <- readMaybe digits, Just times <- lookup unit [("", 1), ("k", 1000), ("M", 1000000), ("G", 1000000000)], n * times <= 1000000000000000 -> Right (fromInteger (n * times))
  _ -> Left ("expected a number of bytes, as 65536, 64k, 10M or 1G, not " <> show text)

-- | How often something may be done.
data Rate = Rate
  { -- | In nanoseconds, from one time to the next, on average.
    rateInterval :: !Int64,
    -- | How often at once.
    rateBurst :: !Int
  }
  deriving (Eq)

-- | @10\/s@, @5\/m burst 20@.
rateOf :: Reader Rate
rateOf text = case words text of
  [rate] | Just (n, interval) <- perTime rate -> Right (Rate interval n)
  [rate, "burst", burst] | Just (_, interval) <- perTime rate -> Rate interval <$> range 1 1000000 burst
  _ -> Left ("expected a number of requests in a second, a minute or an hour, as 10/s, 100/m or '5/h burst 20', not " <> show text)
  where
    perTime :: String -> Maybe (Int, Int64)
    perTime rate = case span isDigit rate of
      (digits@(_ : _), '/' : unit) | length digits <= 7, Just n <- readMaybe digits, n > 0, n <= 1000000, Just period <- lookup unit [("s", 1), ("m", 60), ("h", 3600)] -> Just (n, period * 1000000000 `quot` fromIntegral n)
      _ -> Nothing

-- | A media type for a pattern, or for a suffix.
typeRule :: Reader (Either (Rule ByteString) (ByteString, ByteString))
typeRule text = case text of
  '/' : _ -> Left <$> ruled mediaTypeName text
  _ -> Right <$> mediaType text

separated :: String -> [String]
separated text = case break (== ',') text of
  (one, ',' : rest) -> trim one : separated rest
  (one, _) -> [trim one]
  where
    trim = dropWhile (== ' ') . reverse . dropWhile (== ' ') . reverse
