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
    never,

    -- * Judging them
    Verdict (..),
    Judged (..),
    judge,
    settled,
    holds,
    missed,
  )
where

import Data.List (nub)
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
atMost name figure limit = Bound name MedianRound limit figure

-- | What must not happen, in any round.
never :: Text -> Figure -> Bound
never name = Bound name EveryRound 0

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

-- | Do the rounds leave no doubt about a bound? So it is when the middle half of them lie on one side of the limit, or differ by
-- less than a twentieth. One or two rounds have no middle half: they are believed where they are farther from the limit than a
-- quarter of it.
settled :: [Run] -> Bound -> Bool
settled runs bound = case (percentile 25 rounds, percentile 75 rounds) of
  (Just low, Just high)
    | boundRule bound /= EveryRound && length rounds < 3 -> all ((> 0.25 * abs limit) . abs . subtract limit) rounds && (low <= limit) == (high <= limit)
    | otherwise -> boundRule bound == EveryRound || (low <= limit) == (high <= limit) || high - low <= 0.05 * abs limit
  _ -> True
  where
    limit = boundLimit bound
    rounds = elems (figureRounds runs (boundFigure bound))

-- | Judge a bound by the rounds, as its rule says. The first argument says which subjects were asked for.
judge :: (Text -> Bool) -> [Run] -> Bound -> Judged
judge asked runs bound = case summarize (elems (figureRounds runs (boundFigure bound))) of
  _ | not (all asked subjects) -> Judged bound Nothing NotAsked ("not asked for: " <> names (filter (not . asked) subjects))
  Nothing -> Judged bound Nothing NotMeasured ("needs " <> names (if null absent then uncounted else absent))
  Just summary
    | decisive summary <= boundLimit bound -> Judged bound (Just summary) Holds ""
    | otherwise -> Judged bound (Just summary) Missed ""
  where
    decisive = case boundRule bound of
      MedianRound -> summaryMedian
      EveryRound -> summaryMax
    subjects = S.toList (figureSubjects (boundFigure bound))
    absent = filter (`notElem` map runSubject runs) subjects
    -- Of subjects that are there: what no round has, or all where no round has all of it.
    uncounted = nub [metric <> " of " <> subject | (subject, _, metric) <- if null nowhere then wanted else nowhere]
    nowhere = filter (\(subject, params, metric) -> null (figureRounds runs (Metric subject params metric))) wanted
    wanted = figureMetrics (boundFigure bound)
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
