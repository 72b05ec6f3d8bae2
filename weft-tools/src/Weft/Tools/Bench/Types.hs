-- |
-- Description : What benchmarks are made of
--
-- A 'Benchmark' is data: the cases that every round runs in turn, and the bounds that are worked out from the runs.
-- Everything here is pure except the actions that a 'Case' carries.
module Weft.Tools.Bench.Types
  ( -- * Results
    ParamValue (..),
    Params,
    Metrics,
    Run (..),
    paramText,

    -- * Benchmarks
    Benchmark (..),
    Case (..),
    Counting (..),
    Measured,
    Subject (..),
    Kind (..),

    -- * Bounds
    Bound (..),
    Rule (..),
    Figure (..),

    -- * How to run
    Plan (..),
    Env (..),
    Schedule (..),

    -- * Errors
    BenchError (..),
    failWith,
  )
where

import Control.Exception (Exception (..), throwIO)
import Data.Map.Strict (Map)
import Data.Text (Text)
import qualified Data.Text as T

-- | The value of a parameter: a count, or a word such as a mode.
data ParamValue = Count !Int | Word !Text
  deriving (Eq, Ord, Show)

-- | Parameters by name, in the order in which they are shown.
type Params = [(Text, ParamValue)]

-- | Figures by metric; the name of a metric ends in its unit.
type Metrics = Map Text Double

-- | What one subject did under one set of parameters, round by round (counted from 0).
data Run = Run
  { runSubject :: !Text,
    runParams :: !Params,
    runRounds :: !(Map Int Metrics)
  }
  deriving (Eq, Show)

-- | A parameter's value as text.
paramText :: ParamValue -> Text
paramText (Count n) = T.pack (show n)
paramText (Word w) = w

-- | One benchmark. Adding one is a module that exports this, and a line in the registry of "Weft.Tools.Bench".
data Benchmark = Benchmark
  { -- | The word on the command line.
    benchName :: !Text,
    -- | One line: what is measured.
    benchTitle :: !Text,
    -- | What every round runs. Cases that are compared with each other run next to each other.
    benchCases :: Plan -> [Case],
    -- | The programs that it needs besides the subjects.
    benchTools :: [FilePath],
    -- | Options of the run-time system for its Haskell subjects, unless others are given.
    benchRts :: [String],
    -- | Options of the command line that its subjects do not take.
    benchIgnores :: [Text],
    -- | What must hold.
    benchBounds :: Plan -> [Bound],
    -- | The metrics in the table, most important first; the first is plotted.
    benchColumns :: [Text],
    -- | Of all runs those that are plotted, under the names that the plot shows.
    benchPlotted :: [Run] -> [Run]
  }

-- | One subject under one set of parameters.
data Case = Case
  { caseSubject :: !Subject,
    caseParams :: !Params,
    -- | What it has in common with the cases that it is compared with, usually all parameters.
    caseGroup :: !Params,
    -- | The timed measurement, once a round.
    caseMeasure :: Env -> IO [Measured],
    -- | What would disturb the timing; each runs once, after all rounds.
    caseCounts :: [Counting]
  }

-- | A measurement under a tool that slows the subject down, such as strace. Where the tool is missing this is left out, and
-- what is timed is not.
data Counting = Counting
  { -- | The program that counts.
    countingTool :: FilePath,
    -- | What is counted.
    countingMetric :: Text,
    countingRun :: Env -> IO [Measured]
  }

-- | Metrics, and the parameters that they belong to.
type Measured = (Params, Metrics)

-- | A program to be measured.
data Subject = Subject
  { -- | One of the fixed names of the result format, such as @weft@ or @c-epoll@.
    subjectName :: !Text,
    -- | The executable's file name.
    subjectProgram :: !FilePath,
    subjectKind :: !Kind
  }
  deriving (Eq, Show)

-- | What a program is written in decides its options: the run-time system's, the environment's, or none.
data Kind = WeftProgram | GhcProgram | GoProgram | RustProgram | CProgram
  deriving (Eq, Show)

-- | A limit on a figure.
data Bound = Bound
  { boundName :: !Text,
    boundRule :: !Rule,
    boundLimit :: !Double,
    boundFigure :: !Figure
  }
  deriving (Show)

-- | Which figure of the rounds must be at most the limit: the median, as for all that takes time; or each, as for what must
-- never happen.
data Rule = MedianRound | EveryRound
  deriving (Eq, Show)

-- | How a figure is worked out of the runs, round by round.
data Figure
  = -- | A metric of the run of this subject whose parameters include these.
    Metric !Text !Params !Text
  | -- | A ratio, taken within a round.
    Over !Figure !Figure
  | -- | A difference, taken within a round.
    Minus !Figure !Figure
  | -- | The largest of several.
    Worst ![Figure]
  deriving (Show)

-- | How long and how often; see "Weft.Tools.Bench.Options" for the values.
data Plan = Plan
  { planRounds :: !Int,
    -- | Rounds that may be added while a bound's verdict is within the noise.
    planMoreRounds :: !Int,
    -- | Seconds of load before measuring.
    planWarmup :: !Double,
    -- | Seconds of load that are measured.
    planDuration :: !Double,
    -- | Seconds of load under @strace@.
    planTrace :: !Double,
    -- | Measure and count only what a bound needs? (All of a benchmark that has no bounds.)
    planNeededOnly :: !Bool,
    -- | Idle connections of the benchmark @idle@.
    planIdle :: !Int,
    -- | Connections of the benchmark @quiet@.
    planQuiet :: !Int,
    -- | Seconds until a server without traffic has come to rest.
    planSettle :: !Double,
    -- | Seconds for which a quiet server is watched.
    planWindow :: !Double,
    -- | Round trips of one @echo@ client, and those before they count.
    planTrips :: !Int,
    planTripsBefore :: !Int,
    -- | Threads of the benchmark @delay@, from few to many.
    planDelays :: ![Int],
    -- | Those for which its bounds are given.
    planDelaysBound :: !Int,
    -- | Calls of the benchmark @timeout@, in all.
    planTimeouts :: !Int,
    -- | Of the benchmark @deadline@: how often one is pushed, how many timers are pending, how many delays are timed.
    planPushes :: !Int,
    planPending :: !Int,
    planDelaysTimed :: !Int,
    -- | How often a program is started to know how long that takes.
    planStarts :: !Int,
    -- | Of the benchmark @disk@: the size of its file, and reads with many in flight.
    planFileMiB :: !Int,
    planReads :: !Int,
    -- | Hybrid threads, at the most.
    planHybrid :: !Int
  }
  deriving (Eq, Show)

-- | What a measurement needs to know about the machine and the command line.
data Env = Env
  { -- | Directories that may hold a program, in order.
    envSearch :: ![FilePath],
    -- | A directory for the errors and traces of this run.
    envScratch :: !FilePath,
    envCores :: !Int,
    -- | Options of the run-time system for every Haskell subject, instead of the benchmark's own.
    envRts :: !(Maybe [String]),
    envBackend :: !(Maybe Text),
    envPlan :: !Plan,
    -- | Nothing: it may take as long as it takes.
    envSchedule :: !(Maybe Schedule)
  }

-- | When a benchmark has to end, on the monotonic clock.
data Schedule = Schedule
  { -- | Rounds beyond the first that would end later are not begun.
    scheduleRounds :: !Double,
    -- | Nothing is begun any more.
    scheduleEnd :: !Double
  }
  deriving (Eq, Show)

-- | A measurement failed; the text says of what and how.
newtype BenchError = BenchError Text
  deriving (Show)

instance Exception BenchError where
  displayException (BenchError message) = T.unpack message

-- | Give up this measurement.
failWith :: Text -> IO a
failWith = throwIO . BenchError
