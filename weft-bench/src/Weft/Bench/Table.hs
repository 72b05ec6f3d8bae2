{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Results as a table
--
-- Pure. A block for each set of parameters has a line for each subject, with the median and the smallest and largest
-- round. The bounds follow, then the subjects' settings, and what is missing or failed.
module Weft.Bench.Table
  ( renderOutcome,
    renderVerdicts,
  )
where

import Data.List (nub)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Peers (settingsAmong)
import Weft.Bench.Runner
import Weft.Bench.Stats
import Weft.Bench.Types
import Weft.Tools.Numbers (columns, renderNumber)

-- | The whole result as text for a terminal.
renderOutcome :: Plan -> Benchmark -> Outcome -> Text
renderOutcome plan benchmark outcome =
  T.unlines . concat $
    [ [benchName benchmark <> ": " <> benchTitle benchmark <> " (" <> rounds <> "; median, min..max)"],
      concatMap (block benchmark) groups,
      bounds (outcomeBounds outcome),
      ["" | not (null notes)],
      notes
    ]
  where
    runs = outcomeRuns outcome
    rounds = count (maximum (planRounds plan : map (M.size . runRounds) runs)) "round"
    groups = [[run | run <- runs, runParams run == params] | params <- nub (map runParams runs)]
    notes = [subject <> ": " <> text | (subject, text) <- settingsAmong (benchName benchmark) (map runSubject runs)] ++ map missingLine (outcomeMissing outcome) ++ map failureLine (outcomeFailures outcome)
    failureLine f = "failed: " <> T.unwords (failureSubject f : map parameter (failureParams f)) <> ": " <> failureMessage f

missingLine :: Missing -> Text
missingLine m = "missing: " <> missingName m <> ": " <> missingWhy m

-- | The results of several benchmarks: all bounds in one table, how many hold, and what could not be measured, with the
-- reason. Equal failures are merged.
renderVerdicts :: [(Benchmark, Outcome)] -> Text
renderVerdicts outcomes =
  T.unlines . concat $
    [ columns (["benchmark", "bound", "figure", "limit", "verdict"] : [benchName b : boundCells j | (b, o) <- outcomes, j <- outcomeBounds o]),
      ["", T.intercalate ", " (count (length verdicts) "bound" : [number n <> " " <> word | (word, v) <- counted, let n = length (filter (== v) verdicts), n > 0])],
      ["without a bound of its own: " <> T.intercalate ", " unbounded | not (null unbounded)],
      concat [[benchName b <> ": nothing was measured" | null (outcomeRuns o)] <> map ((benchName b <> ": ") <>) (notes o) | (b, o) <- outcomes]
    ]
  where
    verdicts = [judgedVerdict j | (_, o) <- outcomes, j <- outcomeBounds o]
    counted = [("hold", Holds), ("missed", Missed), ("too close to call", TooClose), ("not measured", NotMeasured), ("not asked for", NotAsked)]
    unbounded = [benchName b | (b, o) <- outcomes, null (outcomeBounds o)]
    notes o = map missingLine (outcomeMissing o) <> nub [failed message o | message <- nub (map failureMessage (outcomeFailures o))]
    failed message o = case [f | f <- outcomeFailures o, failureMessage f == message] of
      [f] -> "failed: " <> T.unwords (failureSubject f : map parameter (failureParams f)) <> ": " <> message
      several -> "failed " <> number (length several) <> " times (" <> T.intercalate ", " (nub (map failureSubject several)) <> "): " <> message
    number = T.pack . show

count :: Int -> Text -> Text
count 1 what = "1 " <> what
count n what = T.pack (show n) <> " " <> what <> "s"

parameter :: (Text, ParamValue) -> Text
parameter (name, value) = name <> "=" <> paramText value

block :: Benchmark -> [Run] -> [Text]
block _ [] = []
block benchmark runs@(first : _) = "" : T.unwords (map parameter (runParams first)) : columns (header : map line runs)
  where
    summaries = map metricSummaries runs
    shown = filter (\name -> any (M.member name) summaries) (benchColumns benchmark)
    header = "  subject" : shown
    line run = ("  " <> runSubject run) : [maybe "-" renderSummary (M.lookup name (metricSummaries run)) | name <- shown]

bounds :: [Judged] -> [Text]
bounds [] = []
bounds judged = "" : columns (["bound", "figure", "limit", ""] : map boundCells judged)

-- | A bound's name, figure, limit and verdict.
boundCells :: Judged -> [Text]
boundCells judged =
  [ boundName (judgedBound judged),
    maybe "-" renderSummary (judgedFigure judged),
    renderNumber (boundLimit (judgedBound judged)),
    verdict judged
  ]
  where
    verdict j = case judgedVerdict j of
      Holds -> "holds"
      Missed -> "MISSED"
      TooClose -> judgedReason j
      NotMeasured -> "NOT MEASURED, " <> judgedReason j
      NotAsked -> judgedReason j

-- | The median, and the range if it adds information.
renderSummary :: Summary -> Text
renderSummary (Summary middle low high)
  | renderNumber low == renderNumber high = renderNumber middle
  | otherwise = renderNumber middle <> " (" <> renderNumber low <> ".." <> renderNumber high <> ")"
