{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Bounds on figures
--
-- Pure: determines from the runs of a benchmark which of its bounds hold. A bound that could not be evaluated never
-- counts as one that holds.
module Weft.Bench.Bounds
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

import Data.Char (isDigit)
import Data.List (nub)
import Data.Map.Strict (elems)
import Data.Maybe (fromMaybe)
import qualified Data.Set as S
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Stats
import Weft.Bench.Types

-- | @on subject params metric@.
on :: Text -> Params -> Text -> Figure
on = Metric

-- | @figure \`atMost\` limit@, with a name.
atMost :: Text -> Figure -> Double -> Bound
atMost name figure limit = Bound name MedianRound limit figure

-- | A bound on what must not happen in any round.
never :: Text -> Figure -> Bound
never name = Bound name EveryRound 0

-- | The verdict on a bound.
data Verdict
  = Holds
  | Missed
  | -- | The rounds lie too close to the limit: the next run might say the opposite.
    TooClose
  | -- | A subject is missing or failed.
    NotMeasured
  | -- | @--only@ excluded one of its subjects.
    NotAsked
  deriving (Eq, Show)

-- | A bound with its figure and verdict.
data Judged = Judged
  { judgedBound :: !Bound,
    judgedFigure :: !(Maybe Summary),
    judgedVerdict :: !Verdict,
    -- | Why there is no verdict.
    judgedReason :: !Text
  }
  deriving (Show)

-- | Whether another run could have another verdict. In the order of the guards:
--
-- * What must never occur, and what repeats exactly, is never too close.
-- * One round of twenty is an outlier, mostly a slow one. So one round alone may hold a bound, but not miss it.
-- * Bytes repeat to about a hundredth; with fewer than five rounds they have to differ from the limit by two.
-- * A difference of two values has the noise of both, and its limit says nothing about that. With fewer than five
--   rounds the limit has to be away from all of them by twice their width; one or two say nothing of the width.
-- * A percentile of times has no peer that the same hour slows down as well: of two runs of two rounds one found 141 us
--   and the other 304. With fewer than five rounds it is clear if it differs from the limit by more than a factor of
--   two.
-- * One or two rounds are clear if they are farther from the limit than a quarter of it.
-- * Three rounds or more are clear if the middle half of them, widened by half of its width to each side, does not
--   contain the limit. Three or four may agree by chance, so the middle half is widened by a tenth of the limit at
--   least.
tooClose :: Bound -> [Double] -> Bool
tooClose bound rounds = case (percentile 25 rounds, percentile 75 rounds) of
  (Just low, Just high)
    | boundRule bound == EveryRound || every exact -> False
    | [only] <- rounds, only > limit -> True
    | every isSize, few -> within low high (0.02 * abs limit)
    | isDifference (boundFigure bound), few -> length rounds < 3 || within (minimum rounds) (maximum rounds) (2 * (maximum rounds - minimum rounds))
    | Metric _ _ metric <- boundFigure bound, isPercentile metric, few -> any (\x -> 2 * x > limit && x < 2 * limit) rounds || divided low high
    | length rounds < 3 -> any ((<= 0.25 * abs limit) . abs . subtract limit) rounds || divided low high
    | otherwise -> within low high (max ((high - low) / 2) (if few then 0.1 * abs limit else 0))
  _ -> False
  where
    limit = boundLimit bound
    few = length rounds < 5
    within low high margin = low - margin < limit && limit < high + margin
    divided low high = (low <= limit) /= (high <= limit)
    every kind = all (\(_, _, metric) -> kind metric) (figureMetrics (boundFigure bound))
    exact = (`elem` ["syscalls_per_op", "user_instructions_per_op", "live_bytes_per_idle", "live_bytes_per_thread", "live_bytes_per_timer", "wakeups", "collections", "early"])
    isSize = (`elem` ["alloc_bytes_per_op", "rss_bytes_per_idle"])

-- | Whether a metric is a percentile of times, such as @p99_us@.
isPercentile :: Text -> Bool
isPercentile metric = case T.stripPrefix "p" metric >>= T.stripSuffix "_us" of
  Just digits -> not (T.null digits) && T.all isDigit digits
  Nothing -> False

-- | Whether a figure is, or is computed from, a difference.
isDifference :: Figure -> Bool
isDifference figure = case figure of
  Minus _ _ -> True
  Over a b -> isDifference a || isDifference b
  Worst several -> any isDifference several
  Metric {} -> False

-- | Whether more rounds are unnecessary for a bound: its verdict is not 'tooClose', and if rounds miss it, there are
-- three (what is counted, and what must never happen, needs no second one); or the middle half of five or more rounds
-- differs by less than a twentieth.
settled :: [Run] -> Bound -> Bool
settled runs bound
  | tooClose bound rounds = length rounds >= 5 && narrow
  | otherwise = boundRule bound == EveryRound || length rounds >= 3 || maybe True (<= boundLimit bound) (median rounds)
  where
    rounds = elems (figureRounds runs (boundFigure bound))
    narrow = fromMaybe False ((\low high -> high - low <= 0.05 * abs (boundLimit bound)) <$> percentile 25 rounds <*> percentile 75 rounds)

-- | Judge a bound by the rounds, according to its rule. The first argument says which subjects were requested.
judge :: (Text -> Bool) -> [Run] -> Bound -> Judged
judge asked runs bound = case summarize rounds of
  _ | not (all asked subjects) -> Judged bound Nothing NotAsked ("not asked for: " <> names (filter (not . asked) subjects))
  Nothing -> Judged bound Nothing NotMeasured ("needs " <> names (if null absent then uncounted else absent))
  Just summary
    | tooClose bound rounds -> Judged bound (Just summary) TooClose ("too close to call" <> (if length rounds == 1 then " after one round" else ""))
    | decisive summary <= boundLimit bound -> Judged bound (Just summary) Holds ""
    | otherwise -> Judged bound (Just summary) Missed ""
  where
    rounds = elems (figureRounds runs (boundFigure bound))
    decisive = case boundRule bound of
      MedianRound -> summaryMedian
      EveryRound -> summaryMax
    subjects = S.toList (figureSubjects (boundFigure bound))
    absent = filter (`notElem` map runSubject runs) subjects
    -- Considers subjects that are present: metrics missing from all rounds or, if there are none, metrics missing from
    -- any round.
    uncounted = nub [metric <> " of " <> subject | (subject, _, metric) <- if null nowhere then wanted else nowhere]
    nowhere = filter (\(subject, params, metric) -> null (figureRounds runs (Metric subject params metric))) wanted
    wanted = figureMetrics (boundFigure bound)
    names = T.intercalate ", "

-- | Whether the bound holds; 'Nothing' if the figure is not known.
holds :: Judged -> Maybe Bool
holds judged = case judgedVerdict judged of
  Holds -> Just True
  Missed -> Just False
  _ -> Nothing

-- | Whether @--check@ fails because of this bound, also because it should have been measured and was not.
missed :: Judged -> Bool
missed judged = judgedVerdict judged `elem` [Missed, NotMeasured]
