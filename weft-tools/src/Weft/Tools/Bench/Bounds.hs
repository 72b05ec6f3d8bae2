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
    tooClose,
    holds,
    missed,
  )
where

import Data.List (nub)
import Data.Map.Strict (elems)
import Data.Maybe (fromMaybe)
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
  | -- | The rounds lie too close to the limit: the next run might say the opposite.
    TooClose
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
    -- | Why it neither holds nor is missed.
    judgedReason :: !Text
  }
  deriving (Show)

-- | Is the limit so close to the rounds that another run may have another verdict? So it is when it lies within the middle half of them, or is farther from
-- that by less than half of its width. One or two rounds have no middle half: they are believed where they are farther from the limit than a quarter of
-- it. What must never happen, and what repeats exactly, is believed as it is.
tooClose :: Bound -> [Double] -> Bool
tooClose bound rounds = case (percentile 25 rounds, percentile 75 rounds) of
  (Just low, Just high)
    | boundRule bound == EveryRound || all exact (figureMetrics (boundFigure bound)) -> False
    | length rounds < 3 -> any ((<= 0.25 * abs limit) . abs . subtract limit) rounds || (low <= limit) /= (high <= limit)
    | otherwise -> let margin = (high - low) / 2 in low - margin < limit && limit < high + margin
  _ -> False
  where
    limit = boundLimit bound
    exact (_, _, metric) = metric `elem` ["alloc_bytes_per_op", "syscalls_per_op", "user_instructions_per_op", "live_bytes_per_idle", "live_bytes_per_thread", "live_bytes_per_timer", "wakeups", "collections", "early"]

-- | Do the rounds leave no doubt about a bound, or would more of them be no better? So it is when its verdict is not 'tooClose', or when the middle half of three and
-- more differ by less than a twentieth.
settled :: [Run] -> Bound -> Bool
settled runs bound = not (tooClose bound rounds) || (length rounds >= 3 && narrow)
  where
    rounds = elems (figureRounds runs (boundFigure bound))
    narrow = fromMaybe False ((\low high -> high - low <= 0.05 * abs (boundLimit bound)) <$> percentile 25 rounds <*> percentile 75 rounds)

-- | Judge a bound by the rounds, as its rule says. The first argument says which subjects were asked for.
judge :: (Text -> Bool) -> [Run] -> Bound -> Judged
judge asked runs bound = case summarize rounds of
  _ | not (all asked subjects) -> Judged bound Nothing NotAsked ("not asked for: " <> names (filter (not . asked) subjects))
  Nothing -> Judged bound Nothing NotMeasured ("needs " <> names (if null absent then uncounted else absent))
  Just summary
    | tooClose bound rounds -> Judged bound (Just summary) TooClose "too close to call"
    | decisive summary <= boundLimit bound -> Judged bound (Just summary) Holds ""
    | otherwise -> Judged bound (Just summary) Missed ""
  where
    rounds = elems (figureRounds runs (boundFigure bound))
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
