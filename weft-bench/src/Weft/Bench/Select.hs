{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A part of a benchmark
--
-- Pure. Restricts a benchmark to some of its cases: those with the parameters given on the command line, or those whose
-- figures a document shows. Bounds that need any other case are left out.
module Weft.Bench.Select
  ( -- * By parameters
    Wanted,
    readWanted,
    withCases,

    -- * By figures
    Shown,
    withFigures,
  )
where

import Data.List (nub)
import Data.Maybe (mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Runner (matches)
import Weft.Bench.Stats (figureMetrics)
import Weft.Bench.Types

-- | A parameter's name and a value.
type Wanted = (Text, Text)

-- | Parse @NAME=VALUE@.
readWanted :: Text -> Either Text Wanted
readWanted text = case T.breakOn "=" text of
  (name, value) | not (T.null name), T.length value > 1 -> Right (name, T.drop 1 value)
  _ -> Left ("not NAME=VALUE: " <> text)

-- | The cases that have each of these parameters with one of the values given for it; all cases if none is given. If no
-- case matches, 'Left' lists the existing values.
withCases :: [Wanted] -> Plan -> Benchmark -> Either Text Benchmark
withCases [] _ benchmark = Right benchmark
withCases wanted plan benchmark
  | any has cases = Right (restricted (\c -> if has c then Just c else Nothing) benchmark)
  | otherwise = Left (benchName benchmark <> " has no case with " <> T.unwords [n <> "=" <> v | (n, v) <- wanted] <> "; its parameters: " <> T.intercalate ", " (map offered names))
  where
    cases = benchCases benchmark plan
    has c = and [maybe False ((`elem` [v | (n, v) <- wanted, n == name]) . paramText) (lookup name (caseParams c)) | name <- nub (map fst wanted)]
    names = nub (concatMap (map fst . caseParams) cases)
    offered name = name <> "=" <> T.intercalate "|" (nub [paramText v | c <- cases, Just v <- [lookup name (caseParams c)]])

-- | A metric of every subject, with the given parameters.
type Shown = (Params, Text)

-- | The cases from which these figures come, with only those counted metrics that are shown.
withFigures :: [Shown] -> Benchmark -> Benchmark
withFigures shown = restricted $ \c -> case [metric | (params, metric) <- shown, fits c params] of
  [] -> Nothing
  metrics -> Just c {caseCounts = filter ((`elem` metrics) . countingMetric) (caseCounts c)}
  where
    -- A case may measure more parameters than it has itself.
    fits c params = and [v == v' | (k, v) <- params, Just v' <- [lookup k (caseParams c)]]

-- | The chosen cases, and the bounds that need only these.
restricted :: (Case -> Maybe Case) -> Benchmark -> Benchmark
restricted choose benchmark =
  benchmark
    { benchCases = mapMaybe choose . benchCases benchmark,
      benchBounds = \plan -> filter (judged (benchCases benchmark plan)) (benchBounds benchmark plan)
    }
  where
    judged cases bound = and [any (measures wanted) cases | wanted <- figureMetrics (boundFigure bound)]
    measures (subject, params, metric) c = case choose c of
      Just chosen -> matches c subject params && (metric `notElem` counted c || metric `elem` counted chosen)
      Nothing -> False
    counted = map countingMetric . caseCounts
