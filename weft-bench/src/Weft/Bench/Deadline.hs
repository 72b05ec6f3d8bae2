{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @deadline@
--
-- The costs of timers that rarely fire, and the accuracy of those that do: resetting a timer, keeping very many
-- of them, and the lateness of short delays.
module Weft.Bench.Deadline (deadline) where

import Control.Concurrent (threadDelay)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import Weft.Bench.Bounds
import Weft.Bench.Child
import Weft.Bench.Stats (metricSummaries)
import Weft.Bench.Timing
import Weft.Bench.Types
import Weft.Tools.Proc

deadline :: Benchmark
deadline =
  Benchmark
    { benchName = "deadline",
      benchTitle = "pushing deadlines later, pending timers, lateness of delays, -N2",
      benchCases = \plan ->
        pushCases (planPushes plan) ++ pendingCases (planPending plan) ++ latenessCases (planDelaysTimed plan),
      benchTools = [],
      benchRts = [],
      benchIgnores = ["--duration"],
      benchBounds = bounds,
      benchColumns =
        ["ns_per_op", "alloc_bytes_per_op"]
          ++ ["live_bytes_per_timer", "left_bytes_per_timer", "cpu_percent", "wakeups", "set_ns_per_op", "cancel_ns_per_op"]
          ++ ["p50_us", "p99_us", "max_us", "early", "delays", "cpu_s", "max_rss_mb"],
      benchPlotted = filter (M.member "ns_per_op" . metricSummaries)
    }

bounds :: Plan -> [Bound]
bounds plan =
  [ atMost "reset, ns" (weft (taskParams "reset") "ns_per_op") 20,
    atMost "bytes live a pending timer" (weft pending "live_bytes_per_timer") 96,
    atMost "CPU while timers are pending, per cent of a core" (weft pending "cpu_percent") 0.1,
    atMost "bytes left a timer after cancelling all" (weft pending "left_bytes_per_timer") 1,
    atMost "lateness of 100 us to 10 ms, 99th percentile, us" (weft late "p99_us") 200,
    never "delays that ended early" (weft late "early")
  ]
  where
    weft = on "weft"
    pending = pendingParams (planPending plan)
    late = taskParams "lateness"

taskParams :: Text -> Params
taskParams task = [("task", Word task), ("capabilities", Count 2)]

pendingParams :: Int -> Params
pendingParams count = taskParams "pending" ++ [("timers", Count count)]

-- | A trial on two cores.
trial :: Params -> [String] -> Subject -> Trial
trial params arguments subject =
  Trial
    { trialSubject = subject,
      trialArguments = arguments,
      trialCapabilities = 2,
      trialParams = params
    }

-- ---------------------------------------------------------------------------------------------------------------
-- Resetting

-- | GHC's manager searches its queue for each reset and its timers cannot be paused, so it gets a tenth of the
-- resets.
pushCases :: Int -> [Case]
pushCases count =
  [ push "reset" ["reset", show count] weftSubject,
    push "reset" ["reset", show (max 1 (count `div` 10))] (Subject "ghc" "deadlines-ghc" GhcProgram),
    push "reset" ["reset", show count] goSubject,
    push "pause+resume" ["pause+resume", show count] weftSubject
  ]
  where
    push task arguments = trialCase selfMeasured . trial (taskParams task) arguments
    weftSubject = Subject "weft" "deadlines-weft" WeftProgram

goSubject :: Subject
goSubject = Subject "go" "go-timers" GoProgram

-- ---------------------------------------------------------------------------------------------------------------
-- Pending

pendingCases :: Int -> [Case]
pendingCases count =
  [ trialCase watched (trial (pendingParams count) (arguments ++ [show count]) subject)
    | (subject, arguments) <-
        [ (weftSubject, []),
          (Subject "ghc" "pending-ghc" GhcProgram, []),
          (goSubject, ["pending"])
        ]
  ]
  where
    weftSubject = Subject "weft" "pending-weft" WeftProgram

-- | The timers are pending for a minute. During part of it the program is observed from outside, after it has come to
-- rest (its run-time system does one collection when it becomes idle).
watched :: Env -> Child -> IO Metrics
watched env child = do
  SubjectMetrics full <- hearJson 60 child
  sleep (planSettle plan)
  switches <- voluntarySwitches (childPid child)
  cpu <- cpuSeconds (childPid child)
  sleep window
  cpuAfter <- cpuSeconds (childPid child)
  switchesAfter <- voluntarySwitches (childPid child)
  peak <- peakResidentBytes (childPid child)
  sendLine child "go"
  SubjectMetrics cancelled <- hearJson 60 child
  pure . M.unions $
    [ full,
      cancelled,
      M.fromList
        [ ("cpu_percent", 100 * (cpuAfter - cpu) / window),
          ("wakeups", switchesAfter - switches),
          ("max_rss_mb", peak / 1e6)
        ]
    ]
  where
    plan = envPlan env
    window = min 20 (planWindow plan)
    sleep seconds = threadDelay (round (seconds * 1e6))

-- ---------------------------------------------------------------------------------------------------------------
-- Lateness

latenessCases :: Int -> [Case]
latenessCases count =
  [ trialCase selfMeasured (trial (taskParams "lateness") (arguments ++ map show [count, threads]) subject)
    | (subject, arguments) <-
        [ (weftSubject, []),
          (Subject "ghc" "lateness-ghc" GhcProgram, []),
          (goSubject, ["lateness"])
        ]
  ]
  where
    weftSubject = Subject "weft" "lateness-weft" WeftProgram
    -- A million delays of 5 ms on average take 25 s, with two cores idle nine tenths of the time.
    threads = 200 :: Int
