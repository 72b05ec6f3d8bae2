{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What changed between two results
--
-- Pure. A metric has changed beyond noise if all rounds of one result lie on one side of all rounds of the other and
-- the medians differ by more than 3 %. Few rounds may lie so by chance: with three on both sides a change counts from
-- 10 % on, and with one or two on either side, whose noise is not known, from 25 % on. Totals, such as CPU time, are
-- not compared if the measured times differ. Settings that differ, bounds whose verdict changed, and runs and failures
-- that only one result has are always reported.
module Weft.Bench.Compare
  ( Difference (..),
    differences,
    comparable,
    worsened,
    becameWorse,
    renderComparison,
  )
where

import Data.List (nub, sort)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Numeric (showFFloat)
import Weft.Bench.Change (separationChance)
import Weft.Bench.Saved
import Weft.Bench.Stats
import Weft.Bench.Types
import Weft.Bench.Units
import Weft.Tools.Numbers (columns, renderNumber)

-- | A metric that changed beyond noise.
data Difference = Difference
  { differenceBench :: !Text,
    differenceSubject :: !Text,
    differenceParams :: !Params,
    differenceMetric :: !Text,
    differenceBefore :: !Double,
    differenceAfter :: !Double
  }
  deriving (Eq, Show)

-- | The benchmarks that are in both results.
shared :: [Saved] -> [Saved] -> [(Saved, Saved)]
shared before after = [(a, b) | a <- before, b <- after, savedBench a == savedBench b]

-- | Runs that are in both results: equal benchmark, subject and parameters.
data Pair = Pair
  { pairBench :: !Text,
    pairBefore :: !Run,
    pairAfter :: !Run,
    -- | Whether both were measured for the same time, as far as the results say.
    pairSameTime :: !Bool
  }

pairs :: [Saved] -> [Saved] -> [Pair]
pairs before after =
  [ Pair (savedBench a) ra rb (null [() | (name, Just _, Just _) <- settingsApart a b, name `elem` ["duration_s", "quick"]])
    | (a, b) <- shared before after,
      ra <- savedRuns a,
      rb <- savedRuns b,
      runSubject ra == runSubject rb,
      runParams ra == runParams rb
  ]

-- | Whether there is anything to compare: a run that is in both results.
comparable :: [Saved] -> [Saved] -> Bool
comparable before after = not (null (pairs before after))

-- | The settings that differ: the name, and the value in each result that has it.
settingsApart :: Saved -> Saved -> [(Text, Maybe Text, Maybe Text)]
settingsApart a b =
  [ (name, before, after)
    | name <- nub (map fst (savedSettings a <> savedSettings b)),
      let before = lookup name (savedSettings a)
          after = lookup name (savedSettings b),
      before /= after
  ]

-- | The metrics of a pair, with their summaries in both results, and whether they can be compared.
metricsOf :: Pair -> [(Text, (Summary, Summary), Bool)]
metricsOf p =
  [ (metric, both, pairSameTime p || not (isTotal metric))
    | (metric, both) <- M.toList (M.intersectionWith (,) (metricSummaries (pairBefore p)) (metricSummaries (pairAfter p)))
  ]

-- | What changed beyond noise.
differences :: [Saved] -> [Saved] -> [Difference]
differences before after =
  [ Difference (pairBench p) (runSubject ra) (runParams ra) metric (summaryMedian sa) (summaryMedian sb)
    | p@(Pair _ ra rb _) <- pairs before after,
      (metric, (sa, sb), True) <- metricsOf p,
      changed (roundsOf metric ra) (roundsOf metric rb) sa sb
  ]
  where
    roundsOf metric r = length [() | m <- M.elems (runRounds r), M.member metric m]

changed :: Int -> Int -> Summary -> Summary -> Bool
changed roundsA roundsB a b = apart && relative > least
  where
    apart = summaryMax a < summaryMin b || summaryMax b < summaryMin a
    least
      | min roundsA roundsB < 3 = 0.25
      | separationChance roundsA roundsB > 0.05 = 0.1
      | otherwise = 0.03
    relative
      | summaryMedian a == summaryMedian b = 0
      | otherwise = abs (summaryMedian b - summaryMedian a) / max 1e-12 (abs (summaryMedian a))

-- | Whether it is a change for the worse.
worsened :: Difference -> Bool
worsened d
  | higherIsBetter (differenceMetric d) = differenceAfter d < differenceBefore d
  | otherwise = differenceAfter d > differenceBefore d

-- | Whether anything is worse than before: a figure, a bound that is missed now, a run that is missing.
becameWorse :: [Saved] -> [Saved] -> Bool
becameWorse before after =
  any worsened (differences before after) || any missedNow (turnedBounds before after) || not (null (runsOnlyIn before after))
  where
    missedNow (_, was, now) = savedHolds now == Just False && savedHolds was /= Just False

-- | The bounds with another verdict: the benchmark, the bound before and after.
turnedBounds :: [Saved] -> [Saved] -> [(Text, SavedBound, SavedBound)]
turnedBounds before after =
  [ (savedBench ka, a, b)
    | (ka, kb) <- shared before after,
      a <- savedBounds ka,
      b <- savedBounds kb,
      savedBoundName a == savedBoundName b,
      savedHolds a /= savedHolds b
  ]

-- | The runs of the first results that the second ones lack, although they have the benchmark.
runsOnlyIn :: [Saved] -> [Saved] -> [(Text, Run)]
runsOnlyIn these those =
  [ (savedBench a, r)
    | a <- these,
      let others = [b | b <- those, savedBench b == savedBench a],
      not (null others),
      r <- savedRuns a,
      (runSubject r, runParams r) `notElem` [(runSubject o, runParams o) | b <- others, o <- savedRuns b]
  ]

-- | The comparison as text for a terminal.
renderComparison :: [Saved] -> [Saved] -> Text
renderComparison before after =
  T.unlines . concat $
    [ ["not the same machine, kernel or compiler: " <> machines before <> "; " <> machines after | machines before /= machines after],
      nub ["not the same settings of " <> savedBench a <> ": " <> T.intercalate ", " (map apart found') | (a, b) <- shared before after, let found' = settingsApart a b, not (null found')],
      ["not compared, since the measured times differ: " <> T.intercalate ", " leftOut | not (null leftOut)],
      [benches <> " only in the " <> which <> " result" | (which, benches) <- lonely],
      ["only in the " <> which <> " result: " <> T.unwords (bench : subjectAndParams r) | (which, these, those) <- sides, (bench, r) <- runsOnlyIn these those],
      ["failed in the " <> which <> " result: " <> savedBench k <> ": " <> failure | (which, these, _) <- sides, k <- these, failure <- savedFailed k],
      [number (length compared) <> " runs are in both; " <> number (length found) <> " figures changed beyond noise"],
      columns [row d | d <- found],
      ["" | not (null turned)],
      turned
    ]
  where
    compared = pairs before after
    found = differences before after
    apart (name, a, b) = name <> " " <> fromMaybe "none" a <> " and " <> fromMaybe "none" b
    leftOut = sort (nub [metric | p <- compared, (metric, _, False) <- metricsOf p])
    number = T.pack . show
    machines list = maybe "unknown" (T.intercalate " / ") (nonEmpty (dedupe (filter (not . T.null) (map (machineText . only) list))))
    only k = k {savedMachine = filter ((`elem` ["cores", "cpu", "ghc", "kernel"]) . fst) (savedMachine k)}
    nonEmpty list = if null list then Nothing else Just list
    dedupe list = M.keys (M.fromList [(k, ()) | k <- list])
    sides = [("first", before, after), ("second", after, before)]
    subjectAndParams r = runSubject r : shown (runParams r)
    shown params = [k <> "=" <> paramText v | (k, v) <- params]
    lonely =
      [ (which, T.unwords names)
        | (which, these, those) <- sides,
          let names = [savedBench k | k <- these, savedBench k `notElem` map savedBench those],
          not (null names)
      ]
    row d =
      [ if worsened d then "worse " else "better",
        differenceBench d,
        differenceSubject d,
        T.unwords (shown (differenceParams d)),
        differenceMetric d,
        renderNumber (differenceBefore d) <> " -> " <> renderNumber (differenceAfter d),
        percent (differenceAfter d / differenceBefore d)
      ]
    -- In tenths of a per cent.
    percent r
      | isNaN r || isInfinite r = ""
      | otherwise = (if r >= 1 then "+" else "") <> T.pack (showFFloat (Just 1) (100 * (r - 1)) " %")
    turned = ["bound " <> said (savedHolds b) <> ", was " <> said (savedHolds a) <> ": " <> bench <> ": " <> savedBoundName a | (bench, a, b) <- turnedBounds before after]
    said holds = fromMaybe "not judged" (lookup holds [(Just True, "holds"), (Just False, "MISSED")])
