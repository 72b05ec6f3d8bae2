-- |
-- Description : The types of benchmarks
--
-- A 'Benchmark' is data: the cases that every round runs in turn, and the bounds that are evaluated from the runs.
-- Everything here is pure except the actions in a 'Case'.
module Weft.Bench.Types
  ( -- * Results
    ParamValue (..),
    Params,
    Metrics,
    Run (..),
    paramText,

    -- * Benchmarks
    Benchmark (..),
    Case (..),
    timedCase,
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

-- | The metrics of one subject with one set of parameters, round by round (counted from 0).
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

-- | A benchmark. To add one, write a module that exports it, and add a line to the registry of "Weft.Bench".
data Benchmark = Benchmark
  { -- | The name on the command line.
    benchName :: !Text,
    -- | One line: what is measured.
    benchTitle :: !Text,
    -- | The cases of each round. Cases that are compared with each other are adjacent.
    benchCases :: Plan -> [Case],
    -- | Programs that it needs in addition to the subjects.
    benchTools :: [FilePath],
    -- | Options of the run-time system for its Haskell subjects, unless others are given.
    benchRts :: [String],
    -- | Command-line options that its subjects do not support.
    benchIgnores :: [Text],
    -- | The bounds to check.
    benchBounds :: Plan -> [Bound],
    -- | The metrics in the table, the most important first; the first one is plotted.
    benchColumns :: [Text],
    -- | Selects the runs to plot, and renames them for the plot.
    benchPlotted :: [Run] -> [Run]
  }

-- | One subject with one set of parameters.
data Case = Case
  { caseSubject :: !Subject,
    caseParams :: !Params,
    -- | The parameters that it shares with the cases that it is compared with, usually all.
    caseGroup :: !Params,
    -- | The timed measurement, once a round.
    caseMeasure :: Env -> IO [Measured],
    -- | Measurements that would disturb the timing; each runs once, after all rounds.
    caseCounts :: [Counting]
  }

-- | A case that has all of its parameters in common with those that it is compared with. A round measures the metrics
-- of these parameters, and nothing is counted.
timedCase :: Subject -> Params -> (Env -> IO Metrics) -> Case
timedCase subject params measure =
  Case
    { caseSubject = subject,
      caseParams = params,
      caseGroup = params,
      caseMeasure = fmap (\metrics -> [(params, metrics)]) . measure,
      caseCounts = []
    }

-- | A measurement under a tool that slows the subject down, such as strace. If the tool is missing, only this
-- measurement is left out.
data Counting = Counting
  { -- | The measuring tool.
    countingTool :: FilePath,
    -- | The counted metric.
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

-- | A program's language determines its options: of the run-time system, in the environment, or none.
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

-- | Which value of the rounds the limit applies to: the median, for times; or each, for what must
-- never happen.
data Rule = MedianRound | EveryRound
  deriving (Eq, Show)

-- | How to compute a figure from the runs, round by round.
data Figure
  = -- | A metric of this subject's run with exactly these parameters, in any order.
    Metric !Text !Params !Text
  | -- | A ratio, taken within a round.
    Over !Figure !Figure
  | -- | A difference, taken within a round.
    Minus !Figure !Figure
  | -- | The largest of several.
    Worst ![Figure]
  deriving (Show)

-- | How long and how often; see "Weft.Bench.Options" for the values.
data Plan = Plan
  { planRounds :: !Int,
    -- | Rounds that may be added while the noise does not allow a verdict on a bound.
    planMoreRounds :: !Int,
    -- | Seconds of load before measuring.
    planWarmup :: !Double,
    -- | Seconds of load that are measured.
    planDuration :: !Double,
    -- | Seconds of load under @strace@.
    planTrace :: !Double,
    -- | Whether to measure and count only what bounds need. (Benchmarks without bounds are measured completely.)
    planNeededOnly :: !Bool,
    -- | Idle connections of the benchmark @idle@.
    planIdle :: !Int,
    -- | Connections of the benchmark @quiet@.
    planQuiet :: !Int,
    -- | Seconds until a server without traffic has come to rest.
    planSettle :: !Double,
    -- | Seconds for which a quiet server is watched.
    planWindow :: !Double,
    -- | Round trips of one @echo@ client, and the number of warm-up round trips before them.
    planTrips :: !Int,
    planTripsBefore :: !Int,
    -- | Threads of the benchmark @delay@, from few to many.
    planDelays :: ![Int],
    -- | The numbers of threads to which its bounds apply.
    planDelaysBound :: !Int,
    -- | The total number of calls in the benchmark @timeout@.
    planTimeouts :: !Int,
    -- | For the benchmark @deadline@: the number of resets, of pending timers, and of timed delays.
    planPushes :: !Int,
    planPending :: !Int,
    planDelaysTimed :: !Int,
    -- | How often a program is started to measure its start-up time.
    planStarts :: !Int,
    -- | For the benchmark @disk@: the size of its file, and the number of reads with many in flight.
    planFileMiB :: !Int,
    planReads :: !Int,
    -- | The largest number of hybrid threads.
    planHybrid :: !Int,
    -- | How often the threads of the benchmark @hybrid-switch@ yield in total.
    planSwitches :: !Int,
    -- | Idle connections of the benchmark @tcp@.
    planIdleTcp :: !Int,
    -- | MiB of the upload of the benchmark @http2@.
    planUploadMiB :: !Int
  }
  deriving (Eq, Show)

-- | Properties of the machine and the command line that measurements need.
data Env = Env
  { -- | Directories in which to look for programs, in order.
    envSearch :: ![FilePath],
    -- | A directory for the error output and traces of this run.
    envScratch :: !FilePath,
    envCores :: !Int,
    -- | Run-time system options for every Haskell subject, which replace the benchmark's own.
    envRts :: !(Maybe [String]),
    envBackend :: !(Maybe Text),
    envPlan :: !Plan,
    -- | 'Nothing' means no time limit.
    envSchedule :: !(Maybe Schedule)
  }

-- | When a benchmark has to end, on the monotonic clock.
data Schedule = Schedule
  { -- | Rounds after the first do not begin if they would end later than this.
    scheduleRounds :: !Double,
    -- | Nothing begins after this time.
    scheduleEnd :: !Double
  }
  deriving (Eq, Show)

-- | A measurement failed; the text says what and why.
newtype BenchError = BenchError Text
  deriving (Show)

instance Exception BenchError where
  displayException (BenchError message) = T.unpack message

-- | Abort this measurement.
failWith :: Text -> IO a
failWith = throwIO . BenchError
