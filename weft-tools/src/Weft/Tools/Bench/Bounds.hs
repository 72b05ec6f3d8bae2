{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Bounds on figures
--
-- Pure: from the runs of a benchmark to which of its bounds hold. A bound that could not be worked out is never
-- taken for one that holds.
module Weft.Tools.Bench.Bounds
  ( -- * Writing bounds
    on,
    atMost,

    -- * Judging them
    Verdict (..),
    Judged (..),
    judge,
    holds,
    missed,
  )
where

import Data.Map.Strict (elems)
import qualified Data.Set as S
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Tools.Bench.Stats
import Weft.Tools.Bench.Types

-- | @on subject params metric@.
on :: Text -> Params -> Text -> Figure
on = Metric

-- | @figure \`atMost\` limit@, under a name.
atMost :: Text -> Figure -> Double -> Bound
atMost name figure limit = Bound name limit figure

-- | What became of a bound.
data Verdict
  = Holds
  | Missed
  | -- | A subject is missing or failed.
    NotMeasured
  | -- | @--only@ left out one of its subjects.
    NotAsked
  deriving (Eq, Show)

-- | A bound with its figure.
data Judged = Judged
  { judgedBound :: !Bound,
    judgedFigure :: !(Maybe Summary),
    judgedVerdict :: !Verdict,
    -- | Empty when the figure is known.
    judgedReason :: !Text
  }
  deriving (Show)

-- | Judge a bound by the median over the rounds. The first argument says which subjects were asked for.
judge :: (Text -> Bool) -> [Run] -> Bound -> Judged
judge asked runs bound = case summarize (elems (figureRounds runs (boundFigure bound))) of
  _ | not (all asked subjects) -> Judged bound Nothing NotAsked ("not asked for: " <> names (filter (not . asked) subjects))
  Nothing -> Judged bound Nothing NotMeasured ("needs " <> names (if null absent then subjects else absent))
  Just summary
    | summaryMedian summary <= boundLimit bound -> Judged bound (Just summary) Holds ""
    | otherwise -> Judged bound (Just summary) Missed ""
  where
    subjects = S.toList (figureSubjects (boundFigure bound))
    absent = filter (`notElem` map runSubject runs) subjects
    names = T.intercalate ", "

-- | 'Nothing' where the figure is not known.
holds :: Judged -> Maybe Bool
holds judged = case judgedVerdict judged of
  Holds -> Just True
  Missed -> Just False
  _ -> Nothing

-- | Does @--check@ fail because of this one? Also when it should have been measured and was not.
missed :: Judged -> Bool
missed judged = judgedVerdict judged `elem` [Missed, NotMeasured]
