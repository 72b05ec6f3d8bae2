{-# LANGUAGE OverloadedStrings #-}

-- |
-- Extensible priorities (RFC 9218): what a client asks for, and whose turn it is. Pure.
--
-- Of the streams that can send, those of the lowest urgency number come first; among them those that are not
-- incremental, one after the other in the order of their numbers, then the incremental ones in turn. Every eighth turn
-- goes to the stream that has waited for the longest, so that nobody starves (section 10).
module Weft.Http2.Core.Priority
  ( Priority (..),
    defaultPriority,
    parsePriority,
    Ready,
    Place (..),
    newPlace,
    enter,
    leave,
    next,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B8
import Data.Char (isOctDigit)
import Data.List (foldl', minimumBy)
import Data.Ord (comparing)
import qualified Data.Set as Set

-- | From 0, the most urgent, to 7; and whether the response is of use in parts.
data Priority = Priority
  { urgency :: !Int,
    incremental :: !Bool
  }
  deriving (Eq, Ord, Show)

-- | Section 4: urgency 3, not incremental.
defaultPriority :: Priority
defaultPriority = Priority 3 False

-- | The value of the field @priority@, or of PRIORITY_UPDATE: a dictionary of RFC 8941. What is unknown, malformed or
-- out of range is ignored, and of two values for a key the last one counts.
parsePriority :: ByteString -> Priority
parsePriority = foldl' member defaultPriority . map (fst . B8.break (== ';') . strip) . B8.split ','
  where
    strip = B8.dropWhile blank . B8.dropWhileEnd blank
    blank c = c == ' ' || c == '\t'
    member p text = case B8.break (== '=') text of
      ("u", value)
        | B8.length value == 2, c <- B8.index value 1, isOctDigit c -> p {urgency = fromEnum c - fromEnum '0'}
      ("i", "") -> p {incremental = True}
      ("i", "=?1") -> p {incremental = True}
      ("i", "=?0") -> p {incremental = False}
      _ -> p

-- | The place of a stream among those that can send: its priority, the turn in which it was last served or began, and
-- whether it is in the set now.
data Place = Place
  { placePriority :: !Priority,
    placeTurn :: !Int,
    placeReady :: !Bool
  }
  deriving (Eq, Show)

-- | A stream begins in a turn.
newPlace :: Priority -> Int -> Place
newPlace priority turn = Place priority turn False

-- | The streams that can send: urgency, turn if it is incremental, number, turn.
type Ready = Set.Set (Int, Int, Int, Int)

key :: Int -> Place -> (Int, Int, Int, Int)
key n (Place (Priority u i) turn _) = (u, if i then 1 + turn else 0, n, turn)

-- | A stream can send.
enter :: Int -> Place -> Ready -> (Place, Ready)
enter n place ready
  | placeReady place = (place, ready)
  | otherwise = (place {placeReady = True}, Set.insert (key n place) ready)

-- | It cannot, or is over.
leave :: Int -> Place -> Ready -> (Place, Ready)
leave n place ready
  | placeReady place = (place {placeReady = False}, Set.delete (key n place) ready)
  | otherwise = (place, ready)

-- | Whose turn it is, given the turn's number.
next :: Int -> Ready -> Maybe Int
next turn ready
  | Set.null ready = Nothing
  | turn `mod` 8 == 7 = Just (number (minimumBy (comparing lastTurn) (Set.toList ready)))
  | otherwise = number <$> Set.lookupMin ready
  where
    number (_, _, n, _) = n
    lastTurn (_, _, n, t) = (t, n)
