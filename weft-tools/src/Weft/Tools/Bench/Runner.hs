{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Rounds of a benchmark
--
-- Every round runs every case once. Cases that are compared with each other run one after another,
-- and each round starts with a different subject, so that no subject always runs on a warmer or busier
-- machine. Measurements that would disturb the timing run once, after the last round.
module Weft.Tools.Bench.Runner
  ( Outcome (..),
    Missing (..),
    Failure (..),
    Selection,
    runBenchmark,
    plannedCases,
    matches,

    -- * Order
    roundOrder,
    rotate,

    -- * Collecting
    collect,
  )
where

import Control.Exception (Handler (..), SomeAsyncException, SomeException (..), catches, displayException, throwIO)
import Control.Monad (filterM, when)
import Data.List (nub)
import qualified Data.Map.Strict as M
import Data.Maybe (isNothing)
import Data.Text (Text)
import qualified Data.Text as T
import GHC.Clock (getMonotonicTime)
import Weft.Tools.Bench.Bounds
import Weft.Tools.Bench.Child (locate)
import Weft.Tools.Bench.Progress
import Weft.Tools.Bench.Server (available)
import Weft.Tools.Bench.Stats (figureMetrics)
import Weft.Tools.Bench.Types

-- | The complete result of a benchmark.
data Outcome = Outcome
  { outcomeRuns :: ![Run],
    outcomeBounds :: ![Judged],
    outcomeMissing :: ![Missing],
    outcomeFailures :: ![Failure]
  }

-- | A missing subject or tool, and the reason.
data Missing = Missing
  { missingName :: !Text,
    missingWhy :: !Text
  }
  deriving (Eq, Show)

-- | A measurement that failed.
data Failure = Failure
  { failureSubject :: !Text,
    failureParams :: !Params,
    failureMessage :: !Text
  }
  deriving (Eq, Show)

-- | Whether a subject is to be measured.
type Selection = Text -> Bool

-- | Run all rounds. Fails only if nothing at all can be measured; the outcome lists what is missing or has failed.
runBenchmark :: Env -> Selection -> Benchmark -> IO Outcome
runBenchmark env selected benchmark = do
  noTools <- filterM (fmap isNothing . locate env) (benchTools benchmark)
  absent <- filterM (fmap not . available env) (nub (map caseSubject asked))
  noCounters <- filterM (fmap isNothing . locate env) (nub (map countingTool (concatMap caseCounts asked)))
  let cases = [c | null noTools, c <- asked, caseSubject c `notElem` absent]
      counts = [(c, k) | c <- cases, k <- caseCounts c, countingTool k `notElem` noCounters, not (planNeededOnly plan) || any (needs c k . boundFigure) bounds]
      missing = map tool noTools ++ map counter noCounters
  (results, failures) <- measureAll env (inDoubt cases) cases counts
  let runs = collect (map caseKey cases) results
  pure
    Outcome
      { outcomeRuns = runs,
        outcomeBounds = map (judge selected (whole failures runs)) bounds,
        outcomeMissing = nub (map nameMissing absent ++ missing),
        outcomeFailures = nub failures
      }
  where
    plan = envPlan env
    bounds = benchBounds benchmark plan
    asked = filter (selected . subjectName . caseSubject) (plannedCases plan benchmark)
    caseKey c = (subjectName (caseSubject c), caseParams c)
    nameMissing subject = Missing (subjectName subject) (noProgram (subjectProgram subject))
    tool name = Missing (T.pack name) (noProgram name)
    counter name = Missing (T.pack name) (noProgram name <> "; not counted: " <> T.intercalate ", " (nub [countingMetric k | k <- concatMap caseCounts asked, countingTool k == name]))
    noProgram name = "there is no program " <> T.pack name <> " in bin/subjects, bin/peers or PATH"
    inDoubt cases results = [c | let unsettled = filter (not . settled (collect (map caseKey cases) results)) bounds, c <- cases, any (uses c . boundFigure) unsettled]

-- | The cases of a plan: all, or those that bounds need.
plannedCases :: Plan -> Benchmark -> [Case]
plannedCases plan benchmark
  | planNeededOnly plan && not (null bounds) = filter (\c -> any (needed c . boundFigure) bounds) cases
  | otherwise = cases
  where
    cases = benchCases benchmark plan
    bounds = benchBounds benchmark plan
    needed c figure = uses c figure || or [needs c k figure | k <- caseCounts c]

-- | Whether a figure needs the counted metric of a case.
needs :: Case -> Counting -> Figure -> Bool
needs c counting figure = or [metric == countingMetric counting && matches c subject params | (subject, params, metric) <- figureMetrics figure]

-- | Whether a figure needs what a case measures in each round. Further rounds do not improve counted metrics.
uses :: Case -> Figure -> Bool
uses c figure = or [matches c subject params | (subject, params, metric) <- figureMetrics figure, metric `notElem` map countingMetric (caseCounts c)]

-- | Whether the case may measure a run with exactly these parameters. A case may measure more parameters than it has
-- itself.
matches :: Case -> Text -> Params -> Bool
matches c subject params = subject == subjectName (caseSubject c) && all (`elem` params) (caseParams c)

-- | The runs in which no round failed. Only these are used to judge bounds.
whole :: [Failure] -> [Run] -> [Run]
whole failures = filter (\run -> not (any (concerns run) failures))
  where
    concerns run f = failureSubject f == runSubject run && all (`elem` runParams run) (failureParams f)

-- | A round's number, a subject, and what was measured.
type Result = (Int, Text, Measured)

-- | Run the rounds of the plan, then further rounds of the cases whose bounds are not settled, then the measurements
-- that run once. Rounds after the first are skipped if they would not end in time. The first round and the measurements
-- that run once are skipped only if they would begin after the end.
measureAll :: Env -> ([Result] -> [Case]) -> [Case] -> [(Case, Counting)] -> IO ([Result], [Failure])
measureAll env inDoubt cases counts = withProgress (planRounds plan * length cases + length counts) $ \progress -> do
  let perform (number, label, c, action) = do
        step progress (label <> "  " <> describe c)
        attempt number c action
      unlessOver part@(_, _, c, _) = do
        over <- maybe (pure False) ((<$> getMonotonicTime) . (<)) (scheduleEnd <$> envSchedule env)
        if over then pure (Left (Failure (subjectName (caseSubject c)) (caseParams c) noTimeLeft)) else perform part
      more n pace outcomes = do
        now <- getMonotonicTime
        let tooLate = n > 0 && maybe False (\s -> now + pace * fromIntegral (length asked) > scheduleRounds s) (envSchedule env)
        if n >= planRounds plan + planMoreRounds plan || null asked || tooLate
          then pure outcomes
          else do
            when (n >= planRounds plan) $ extend progress (length asked)
            outcomes' <- mapM (if n == 0 then unlessOver else perform) (roundSteps n asked)
            later <- getMonotonicTime
            more (n + 1) ((later - now) / fromIntegral (length asked)) (outcomes ++ outcomes')
        where
          asked = if n < planRounds plan then cases else inDoubt (results outcomes)
  outcomes <- more 0 0 []
  outcomes' <- mapM unlessOver [(0, "counting by " <> T.pack (countingTool k), c, countingRun k env) | (c, k) <- counts]
  pure (results (outcomes ++ outcomes'), [f | Left f <- outcomes ++ outcomes'])
  where
    plan = envPlan env
    results outcomes = concat [r | Right r <- outcomes]
    roundSteps n asked = [(n, roundLabel n, c, caseMeasure c env) | c <- roundOrder n asked]
    roundLabel n = "round " <> T.pack (show (n + 1)) <> "/" <> T.pack (show (max (n + 1) (planRounds plan)))
    describe c = T.unwords (subjectName (caseSubject c) : [k <> "=" <> paramText v | (k, v) <- caseParams c])
    noTimeLeft = "there was no time left for it (--minutes)"

attempt :: Int -> Case -> IO [Measured] -> IO (Either Failure [Result])
attempt number c action =
  (Right . map result <$> action)
    `catches` [ Handler (\e -> throwIO (e :: SomeAsyncException)),
                -- Without the wrapper, which newer compilers may show with a backtrace.
                Handler (\(SomeException e) -> pure (Left (failed (displayException e))))
              ]
  where
    name = subjectName (caseSubject c)
    result measured = (number, name, measured)
    failed = Failure name (caseParams c) . T.pack

-- | Convert results to runs, in the order of the cases; other runs that a case has measured follow it. The metrics of a
-- round are merged.
collect :: [(Text, Params)] -> [Result] -> [Run]
collect keys results = [Run subject params rounds | key@(subject, params) <- ordered, Just rounds <- [M.lookup key found]]
  where
    found = M.fromListWith (M.unionWith M.union) [(keyOf result, roundOf result) | result <- results]
    ordered = nub (keys ++ map keyOf results)
    keyOf (_, subject, (params, _)) = (subject, params)
    roundOf (number, _, (_, metrics)) = M.singleton number metrics

-- | The cases of a round. The groups of compared cases keep their order; within a group the round's number determines
-- which case begins.
roundOrder :: Int -> [Case] -> [Case]
roundOrder number cases = concatMap (rotate number) [filter ((== group) . caseGroup) cases | group <- groups]
  where
    groups = nub (map caseGroup cases)

-- | @rotate n@ moves the first n elements to the end, n modulo the length.
rotate :: Int -> [a] -> [a]
rotate _ [] = []
rotate number list = drop turn list ++ take turn list
  where
    turn = number `mod` length list
