{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Rounds of a benchmark
--
-- Every round runs every case once. Cases that are compared with each other run one after another,
-- and each round starts with a different subject, so that no subject always runs on a warmer or busier
-- machine. Measurements that would disturb the timing run once, after the last round.
module Weft.Bench.Runner
  ( Outcome (..),
    Missing (..),
    Failure (..),
    Selection,
    runBenchmark,
    plannedCases,
    matches,

    -- * Several benchmarks in turn
    Measurement (measuredBenchmark, measuredRounds, measuredEnv),
    firstRounds,
    inDoubt,
    furtherRound,
    outcomeOf,

    -- * Order
    roundOrder,
    rotate,

    -- * Collecting
    collect,
  )
where

import Control.Exception (Handler (..), SomeAsyncException, SomeException (..), catches, displayException, throwIO)
import Control.Monad (filterM, foldM, forM)
import Data.List (nub, sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (isNothing)
import Data.Text (Text)
import qualified Data.Text as T
import GHC.Clock (getMonotonicTime)
import Weft.Bench.Bounds
import Weft.Bench.Child (locate)
import Weft.Bench.Progress
import Weft.Bench.Server (available)
import Weft.Bench.Stats (figureMetrics)
import Weft.Bench.Types

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
runBenchmark env selected benchmark = firstRounds env selected benchmark >>= fmap outcomeOf . further
  where
    further measurement = furtherRound (const (pure ())) (M.singleton () measurement) >>= maybe (pure measurement) (further . M.findWithDefault measurement ())

-- | What has been measured of a benchmark so far.
data Measurement = Measurement
  { measuredBenchmark :: !Benchmark,
    measuredEnv :: !Env,
    measuredSelection :: !Selection,
    -- | Those whose subjects are present.
    measuredCases :: ![Case],
    measuredMissing :: ![Missing],
    -- | The number of rounds so far.
    measuredRounds :: !Int,
    measuredResults :: ![Result],
    measuredFailures :: ![Failure],
    -- | Seconds that each case took in its last round.
    measuredSeconds :: !(M.Map (Text, Params) Double)
  }

-- | Run the rounds of the plan, and what is counted once. Rounds after the first are skipped if they would not end in
-- time. The first round and what is counted are skipped only if they would begin after the end.
firstRounds :: Env -> Selection -> Benchmark -> IO Measurement
firstRounds env selected benchmark = do
  noTools <- filterM (fmap isNothing . locate env) (benchTools benchmark)
  absent <- filterM (fmap not . available env) (nub (map caseSubject asked))
  noCounters <- filterM (fmap isNothing . locate env) (nub (map countingTool (concatMap caseCounts asked)))
  let cases = [c | null noTools, c <- asked, caseSubject c `notElem` absent]
      counts = [(c, k) | c <- cases, k <- caseCounts c, countingTool k `notElem` noCounters, not (planNeededOnly plan) || any (needs c k . boundFigure) bounds]
      missing = nub (map nameMissing absent ++ map tool noTools ++ map counter noCounters)
  withProgress (planRounds plan * length cases + length counts) $ \progress -> do
    let planned measurement
          | measuredRounds measurement >= planRounds plan || null cases = pure measurement
          | otherwise = do
            tooLate <- if measuredRounds measurement == 0 then pure False else late measurement cases
            if tooLate then pure measurement else oneRound progress cases measurement >>= planned
    timed <- planned (Measurement benchmark env selected cases missing 0 [] [] M.empty)
    counted <- forM counts $ \(c, k) -> unlessOver env progress 0 ("counting by " <> T.pack (countingTool k)) c (countingRun k env)
    pure (foldl (flip add) timed counted)
  where
    plan = envPlan env
    bounds = benchBounds benchmark plan
    asked = filter (selected . subjectName . caseSubject) (plannedCases plan benchmark)
    nameMissing subject = Missing (subjectName subject) (noProgram (subjectProgram subject))
    tool name = Missing (T.pack name) (noProgram name)
    counter name = Missing (T.pack name) (noProgram name <> "; not counted: " <> T.intercalate ", " (nub [countingMetric k | k <- concatMap caseCounts asked, countingTool k == name]))
    noProgram name = "there is no program " <> T.pack name <> " in bin/subjects, bin/peers or PATH"

-- | The cases of another round: all, if the time was over before the last round of the plan; then those of the bounds
-- that are not settled, while the plan allows more rounds.
inDoubt :: Measurement -> [Case]
inDoubt measurement
  | measuredRounds measurement < planRounds plan = measuredCases measurement
  | measuredRounds measurement >= planRounds plan + planMoreRounds plan = []
  | otherwise = [c | let unsettled = filter (not . settled (wholeRuns measurement)) (benchBounds (measuredBenchmark measurement) plan), c <- measuredCases measurement, any (uses c . boundFigure) unsettled]
  where
    plan = envPlan (measuredEnv measurement)

-- | A further round of one of several benchmarks, which is announced before. It is one with the fewest rounds so far,
-- and of these the one whose round is the shortest: so the time that is left decides most bounds. 'Nothing' if no bound
-- is in doubt, the plan allows no more rounds, or none would end in time.
furtherRound :: Ord place => (Measurement -> IO ()) -> M.Map place Measurement -> IO (Maybe (M.Map place Measurement))
furtherRound announce several = do
  inTime <- filterM (\(_, measurement, cases) -> not <$> late measurement cases) [(place, measurement, cases) | (place, measurement) <- M.toList several, let cases = inDoubt measurement, not (null cases)]
  case sortOn (\(_, measurement, cases) -> (measuredRounds measurement, expected measurement cases)) inTime of
    [] -> pure Nothing
    (place, next, cases) : _ -> do
      announce next
      after <- withProgress (length cases) (\progress -> oneRound progress cases next)
      pure (Just (M.insert place after several))

-- | Seconds that another round of these cases is expected to take.
expected :: Measurement -> [Case] -> Double
expected measurement cases = sum [M.findWithDefault 0 (caseKey c) (measuredSeconds measurement) | c <- cases]

-- | Whether a round of these cases would end too late.
late :: Measurement -> [Case] -> IO Bool
late measurement cases = case envSchedule (measuredEnv measurement) of
  Nothing -> pure False
  Just schedule -> (> scheduleRounds schedule) . (+ expected measurement cases) <$> getMonotonicTime

-- | The result so far.
outcomeOf :: Measurement -> Outcome
outcomeOf measurement =
  Outcome
    { outcomeRuns = runs,
      outcomeBounds = map (judge (measuredSelection measurement) (wholeRuns measurement)) (benchBounds (measuredBenchmark measurement) (envPlan (measuredEnv measurement))),
      outcomeMissing = measuredMissing measurement,
      outcomeFailures = nub (measuredFailures measurement)
    }
  where
    runs = measuredRuns measurement

measuredRuns :: Measurement -> [Run]
measuredRuns measurement = collect (map caseKey (measuredCases measurement)) (measuredResults measurement)

-- | What distinguishes a case from the others of its benchmark.
caseKey :: Case -> (Text, Params)
caseKey c = (subjectName (caseSubject c), caseParams c)

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
wholeRuns :: Measurement -> [Run]
wholeRuns measurement = filter (\run -> not (any (concerns run) (measuredFailures measurement))) (measuredRuns measurement)
  where
    concerns run f = failureSubject f == runSubject run && all (`elem` runParams run) (failureParams f)

-- | A round's number, a subject, and what was measured.
type Result = (Int, Text, Measured)

-- | One round of these cases.
oneRound :: Progress -> [Case] -> Measurement -> IO Measurement
oneRound progress cases measurement = foldM measured measurement {measuredRounds = number + 1} (roundOrder number cases)
  where
    measured before c = do
      begun <- getMonotonicTime
      result <- (if number == 0 then unlessOver (measuredEnv before) else perform) progress number label c (caseMeasure c (measuredEnv before))
      ended <- getMonotonicTime
      pure (add result before {measuredSeconds = M.insert (caseKey c) (ended - begun) (measuredSeconds before)})
    number = measuredRounds measurement
    label = "round " <> T.pack (show (number + 1)) <> "/" <> T.pack (show (max (number + 1) (planRounds (envPlan (measuredEnv measurement)))))

-- | Measure a case, unless it would begin after the end.
unlessOver :: Env -> Progress -> Int -> Text -> Case -> IO [Measured] -> IO (Either Failure [Result])
unlessOver env progress number label c action = do
  over <- maybe (pure False) ((<$> getMonotonicTime) . (<)) (scheduleEnd <$> envSchedule env)
  if over
    then pure (Left (Failure (subjectName (caseSubject c)) (caseParams c) "there was no time left for it (--minutes)"))
    else perform progress number label c action

-- | Measure a case.
perform :: Progress -> Int -> Text -> Case -> IO [Measured] -> IO (Either Failure [Result])
perform progress number label c action = do
  step progress (label <> "  " <> T.unwords (subjectName (caseSubject c) : [k <> "=" <> paramText v | (k, v) <- caseParams c]))
  orFailure number c action

add :: Either Failure [Result] -> Measurement -> Measurement
add (Left failure) measurement = measurement {measuredFailures = measuredFailures measurement ++ [failure]}
add (Right results) measurement = measurement {measuredResults = measuredResults measurement ++ results}

orFailure :: Int -> Case -> IO [Measured] -> IO (Either Failure [Result])
orFailure number c action =
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
