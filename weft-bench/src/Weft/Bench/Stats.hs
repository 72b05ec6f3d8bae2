-- |
-- Description : Medians, percentiles and figures from runs
--
-- Pure. Percentiles are exact (nearest rank over all samples). A figure is the median of the rounds, shown with the
-- smallest and largest round. Ratios are computed within a round, before the median.
module Weft.Bench.Stats
  ( -- * Samples
    Summary (..),
    summarize,
    median,
    percentile,

    -- * Figures
    figureRounds,
    figureSubjects,
    figureMetrics,
    metricSummaries,
  )
where

import Data.List (sort)
import Data.Map.Strict (Map)
import qualified Data.Map.Strict as M
import Data.Maybe (listToMaybe)
import qualified Data.Set as S
import Data.Text (Text)
import Weft.Bench.Types

-- | The median, smallest and largest of some rounds.
data Summary = Summary
  { summaryMedian :: !Double,
    summaryMin :: !Double,
    summaryMax :: !Double
  }
  deriving (Eq, Show)

-- | 'Nothing' without samples.
summarize :: [Double] -> Maybe Summary
summarize samples = do
  middle <- median samples
  pure (Summary middle (minimum samples) (maximum samples))

-- | The middle sample, or the mean of the two middle ones. 'Nothing' without samples.
median :: [Double] -> Maybe Double
median samples = case drop ((count - 1) `div` 2) (sort samples) of
  low : high : _ | even count -> Just ((low + high) / 2)
  middle : _ -> Just middle
  [] -> Nothing
  where
    count = length samples

-- | Nearest rank: the smallest sample such that at least this many per cent of the samples are not larger. 'Nothing'
-- without samples. Percentages below 0 and above 100 count as 0 and 100.
percentile :: Ord a => Double -> [a] -> Maybe a
percentile percent samples = listToMaybe (drop (rank - 1) (sort samples))
  where
    count = length samples
    rank = max 1 (min count (ceiling (percent / 100 * fromIntegral count)))

-- | The value of a figure in every round in which everything that it needs was measured.
figureRounds :: [Run] -> Figure -> Map Int Double
figureRounds runs figure = case figure of
  Metric subject params name ->
    maybe M.empty (M.mapMaybe (M.lookup name) . runRounds) (findRun subject params)
  Over a b -> M.filter (not . isNaN) (M.intersectionWith (/) (rounds a) (rounds b))
  Minus a b -> M.intersectionWith (-) (rounds a) (rounds b)
  Worst [] -> M.empty
  Worst figures -> foldr1 (M.intersectionWith max) (map rounds figures)
  where
    rounds = figureRounds runs
    -- A run with further parameters is another measurement: it must not stand in for one that failed.
    findRun subject params = listToMaybe [run | run <- runs, runSubject run == subject, params `within` runParams run, runParams run `within` params]
    within some others = all (`elem` others) some

-- | The subjects that a figure needs.
figureSubjects :: Figure -> S.Set Text
figureSubjects figure = S.fromList [subject | (subject, _, _) <- figureMetrics figure]

-- | The metrics that a figure needs: subject, parameters, metric.
figureMetrics :: Figure -> [(Text, Params, Text)]
figureMetrics figure = case figure of
  Metric subject params metric -> [(subject, params, metric)]
  Over a b -> figureMetrics a <> figureMetrics b
  Minus a b -> figureMetrics a <> figureMetrics b
  Worst figures -> concatMap figureMetrics figures

-- | Every metric of a run over its rounds.
metricSummaries :: Run -> Map Text Summary
metricSummaries = M.mapMaybe summarize . M.unionsWith (++) . map (M.map pure) . M.elems . runRounds
