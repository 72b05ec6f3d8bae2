{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A result as a chart
--
-- Pure: plots the main metric of a benchmark (the first of its columns). If exactly one numeric
-- parameter has three or more values, the chart has lines over it; otherwise it has bars, grouped by parameters.
module Weft.Bench.Plot
  ( outcomePlot,
    chartOf,
    varying,
  )
where

import Data.List (nub, sort)
import qualified Data.Map.Strict as M
import Data.Maybe (listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Palette (subjectColour)
import Weft.Bench.Runner
import Weft.Bench.Stats
import Weft.Bench.Svg
import Weft.Bench.Types

-- | The SVG document for a result.
outcomePlot :: Benchmark -> Outcome -> Text
outcomePlot benchmark = renderChart . chartOf title metric . benchPlotted benchmark . outcomeRuns
  where
    title = benchName benchmark <> ": " <> benchTitle benchmark
    metric = T.concat (take 1 (benchColumns benchmark))

-- | A chart of runs by a metric; runs without the metric are left out.
chartOf :: Text -> Text -> [Run] -> Chart
chartOf title metric runs =
  Chart
    { chartTitle = title,
      chartValue = metric,
      chartAxis = maybe (Groups (map groupName groups)) (\(name, values) -> Line name (map fromIntegral values)) numeric,
      chartSeries =
        [Series subject (subjectColour subject) (map (at subject) places) | subject <- nub (map runSubject measured)]
    }
  where
    measured = filter (M.member metric . metricSummaries) runs
    groups = nub (map runParams measured)
    numeric = numberLine groups
    places = case numeric of
      Just (name, values) -> [group | v <- values, group <- groups, lookup name group == Just (Count v)]
      Nothing -> groups
    at subject params =
      listToMaybe
        [ s
          | run <- measured,
            runSubject run == subject,
            runParams run == params,
            Just s <- [M.lookup metric (metricSummaries run)]
        ]
    groupName params =
      T.intercalate "\n" [name <> " " <> paramText v | (name, v) <- params, length groups == 1 || name `elem` varying groups]

-- | The parameters that differ between groups.
varying :: [Params] -> [Text]
varying groups = [name | name <- nub (concatMap (map fst) groups), length (nub (map (lookup name) groups)) > 1]

-- | The only parameter that varies, if it is a number with three or more values.
numberLine :: [Params] -> Maybe (Text, [Int])
numberLine groups = case varying groups of
  [name] | length values >= 3, length values == length groups -> Just (name, values)
    where
      values = sort (nub [v | Just (Count v) <- map (lookup name) groups])
  _ -> Nothing
