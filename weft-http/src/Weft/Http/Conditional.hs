{-# LANGUAGE OverloadedStrings #-}

-- |
-- Conditional requests (RFC 9110, section 13) and ranges (section 14). Pure.
module Weft.Http.Conditional
  ( -- * Validators
    Validators (..),
    fileDate,
    EntityTag (..),
    entityTag,
    tagField,

    -- * Conditions
    Verdict (..),
    verdict,

    -- * Ranges
    Ranges (..),
    Extent (..),
    ranges,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.CaseInsensitive (foldedCase)
import qualified Data.CaseInsensitive as CI
import Data.Char (isDigit)
import Data.Maybe (mapMaybe)
import Network.HTTP.Date (HTTPDate, epochTimeToHTTPDate)
import Network.HTTP.Types.Header
import System.Posix.Types (EpochTime)
import Weft.Http.DateForms (dateOf)

-- | The validators of a representation: its entity tag, and the second in which it was last modified. Conditions on a
-- date that is not known are ignored (RFC 9110, 13.1.3 and 13.1.4).
data Validators = Validators
  { validTag :: !EntityTag,
    validDate :: !(Maybe HTTPDate)
  }

-- | The date of a file's modification time. Dates of HTTP have years of four digits, and 'epochTimeToHTTPDate' takes no
-- time before 1970, so times outside of these give the first or last date.
fileDate :: EpochTime -> HTTPDate
fileDate = epochTimeToHTTPDate . max 0 . min 253402300799

-- | An entity tag, including its quotes (RFC 9110, 8.8.3). Equal weak tags mean equivalent, not identical,
-- representations.
data EntityTag = NoTag | WeakTag !ByteString | StrongTag !ByteString
  deriving (Eq, Show)

-- | The tag in an @ETag@ field.
entityTag :: ByteString -> EntityTag
entityTag field = case B.stripPrefix "W/" given of
  Just rest | quoted rest -> WeakTag rest
  Nothing | quoted given -> StrongTag given
  _ -> NoTag
  where
    given = strip field
    quoted tag = B.length tag >= 2 && C.head tag == '"' && C.last tag == '"'

-- | The value of an @ETag@ field, if there is a tag.
tagField :: EntityTag -> Maybe ByteString
tagField tag = case tag of
  NoTag -> Nothing
  WeakTag name -> Just ("W/" <> name)
  StrongTag name -> Just name

-- | The result of the conditions of a request.
data Verdict
  = -- | Answer the request. The flag says whether a range may be honoured.
    Proceed !Bool
  | -- | 304.
    NotModified
  | -- | 412.
    PreconditionFailed
  deriving (Eq, Show)

-- | Evaluate the conditions of a GET or HEAD in the order of RFC 9110, 13.2.2.
verdict :: RequestHeaders -> Validators -> Verdict
verdict headers v
  | not (any (conditional . fst) headers) = Proceed False
  | failed = PreconditionFailed
  | unchanged = NotModified
  | otherwise = Proceed (maybe True sameAs (listed hIfRange))
  where
    failed = case (listed hIfMatch, lookup hIfUnmodifiedSince headers >>= dateOf) of
      (Just tags, _) -> not (matches strongly tags)
      (Nothing, Just date) -> maybe False (> date) (validDate v)
      (Nothing, Nothing) -> False
    unchanged = case (listed hIfNoneMatch, lookup hIfModifiedSince headers >>= dateOf) of
      (Just tags, _) -> matches weakly tags
      (Nothing, Just date) -> maybe False (<= date) (validDate v)
      (Nothing, Nothing) -> False
    matches how tags = strip tags == "*" || any how (entityTags tags)
    strongly tag = case validTag v of
      StrongTag own -> tag == own
      _ -> False
    weakly tag = case validTag v of
      NoTag -> False
      WeakTag own -> opaque tag == own
      StrongTag own -> opaque tag == own
    opaque tag = if "W/" `B.isPrefixOf` tag then B.drop 2 tag else tag
    -- A list may be in several lines (RFC 9110, 5.3).
    listed name = case [value | (n, value) <- headers, n == name] of
      [] -> Nothing
      values -> Just (B.intercalate "," values)
    -- Either a tag, by strong comparison, or a date, which must be exactly the file's. The contents may change within
    -- the second of the date, so it is a weak validator (8.8.2.2), and counts only if there is no tag: the client has
    -- the tag, and the whole file is always a right answer (13.1.5).
    sameAs given
      | "\"" `B.isPrefixOf` strip given = strongly (strip given)
      | NoTag <- validTag v, Just date <- validDate v = dateOf given == Just date
      | otherwise = False

-- | Does 'verdict' or 'ranges' use this field?
conditional :: HeaderName -> Bool
conditional name = case B.length (foldedCase name) of
  5 -> name == hRange
  8 -> name == hIfMatch || name == hIfRange
  13 -> name == hIfNoneMatch
  17 -> name == hIfModifiedSince
  19 -> name == hIfUnmodifiedSince
  _ -> False

-- | The tags of a list. A tag may contain a comma.
entityTags :: ByteString -> [ByteString]
entityTags list = case C.uncons rest of
  Nothing -> []
  Just ('"', more) -> tag "" more
  Just ('W', more) | "/\"" `B.isPrefixOf` more -> tag "W/" (B.drop 2 more)
  _ -> entityTags (C.dropWhile (/= ',') rest)
  where
    rest = C.dropWhile (`elem` (" \t," :: String)) list
    tag weak more =
      let (name, behind) = C.break (== '"') more
       in if B.null behind then [] else (weak <> "\"" <> name <> "\"") : entityTags (B.drop 1 behind)

strip :: ByteString -> ByteString
strip = C.dropWhileEnd blank . C.dropWhile blank
  where
    blank c = c == ' ' || c == '\t'

-- Ranges ------------------------------------------------------------------------

-- | A part of a file: the offset of its first byte, and its length.
data Extent = Extent !Integer !Integer
  deriving (Eq, Show)

-- | The ranges of a Range field, for a file of a known size.
data Ranges
  = -- | The whole file: there is no such field, it is not understood, or it asks for too many ranges.
    Whole
  | Part !Extent
  | -- | Several ranges, in their order.
    Parts [Extent]
  | -- | 416: none of the ranges is in the file.
    Unsatisfiable
  deriving (Eq, Show)

-- | The most ranges that are answered individually. If there are more, or if several overlap, the whole file is sent
-- (RFC 9110, 14.2 allows that), since such requests are attacks.
mostRanges :: Int
mostRanges = 16

-- | Parse a Range field.
ranges :: Maybe ByteString -> Integer -> Ranges
ranges Nothing _ = Whole
ranges (Just field) size = case byteRanges field of
  Nothing -> Whole
  Just wanted
    | length wanted > mostRanges -> Whole
    | otherwise -> case mapMaybe (within size) wanted of
      [] -> Unsatisfiable
      [one] -> Part one
      several
        | apart several -> Parts several
        | otherwise -> Whole
  where
    apart rs = and [disjoint a b | (i, a) <- zip [0 :: Int ..] rs, (j, b) <- zip [0 ..] rs, i < j]
    disjoint (Extent a n) (Extent b m) = a + n <= b || b + m <= a

-- | Parse the field's value (RFC 9110, 14.1.1 and 14.1.2): the unit in any case, and a list with blanks around its
-- members and with empty members (5.6.1), which the parser of http-types does not accept.
byteRanges :: ByteString -> Maybe [ByteRange]
byteRanges field = case C.break (== '=') field of
  (unit, list)
    | CI.mk unit == "bytes", members@(_ : _) <- filter (not . B.null) (map strip (C.split ',' (B.drop 1 list))) -> mapM range members
    | otherwise -> Nothing
  where
    range member = case C.break (== '-') member of
      (from, rest)
        | B.null rest -> Nothing
        | B.null from -> ByteRangeSuffix <$> number to
        | B.null to -> ByteRangeFrom <$> number from
        | otherwise -> do
          a <- number from
          b <- number to
          if a <= b then Just (ByteRangeFromTo a b) else Nothing
        where
          to = B.drop 1 rest
    number digits = if not (B.null digits) && C.all isDigit digits then fst <$> C.readInteger digits else Nothing

within :: Integer -> ByteRange -> Maybe Extent
within size wanted = case wanted of
  ByteRangeFrom from -> fromTo from size
  ByteRangeFromTo from to -> fromTo from (to + 1)
  ByteRangeSuffix n
    | n <= 0 || size == 0 -> Nothing
    | otherwise -> let k = min n size in Just (Extent (size - k) k)
  where
    fromTo from end
      | from >= size = Nothing
      | otherwise = Just (Extent from (min size end - from))
