{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmarks @hybrid-memory@, @hybrid-switch@, @fifo@, @hybrid-idle@
--
-- Hybrid threads (2007, section 5), compared with threads of GHC, Go and the kernel.
module Weft.Bench.Hybrid
  ( hybridMemory,
    hybridSwitch,
    fifo,
    hybridIdle,
  )
where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Idle (idleCase, idleParams, idleTools)
import Weft.Bench.Timing
import Weft.Bench.Types

hybrid, ghc, go, kernel :: Subject
hybrid = Subject "weft-hybrid" "hybrid" WeftProgram
ghc = Subject "ghc" "threads-ghc" GhcProgram
go = Subject "go" "go-timers" GoProgram
kernel = Subject "c-threads" "c-fifo" CProgram

-- | A benchmark of programs that measure themselves.
program :: Text -> Text -> (Plan -> [Trial]) -> (Plan -> [Bound]) -> [Text] -> Benchmark
program name title trials bounds columns =
  Benchmark
    { benchName = name,
      benchTitle = title,
      benchCases = map (trialCase selfMeasured) . trials,
      benchTools = [],
      benchRts = ["-A16m"],
      benchIgnores = ["--duration"],
      benchBounds = bounds,
      benchColumns = columns,
      benchPlotted = id
    }

threads :: Text -> Int -> Params
threads work n = [("workload", Word work), ("threads", Count n)]

-- | Ten million threads that loop on yield (2007, 5.1).
hybridMemory :: Benchmark
hybridMemory =
  program
    "hybrid-memory"
    "memory of hybrid threads that loop on yield"
    (\plan -> [Trial hybrid ["memory", show n] 1 (threads "yield" n) | n <- sizes plan])
    (\plan -> [atMost "live bytes a thread, the most threads" (on "weft-hybrid" (threads "yield" (planHybrid plan)) "live_bytes_per_thread") 48])
    ["live_bytes_per_thread", "max_rss_mb"]
  where
    sizes plan = [planHybrid plan `div` 100, planHybrid plan `div` 10, planHybrid plan]

-- | Switching, whole lives of threads, sleeping, sharing.
hybridSwitch :: Benchmark
hybridSwitch =
  program
    "hybrid-switch"
    "switches, forks and sleeps of hybrid threads; work shared by two cores"
    ( \plan ->
        concat
          [ [Trial s ["yield", show n, show (max 1 (planSwitches plan `div` n))] 1 (threads "yield" n) | n <- yielding plan, s <- [hybrid, ghc]],
            [Trial s ["fork", show (planHybrid plan)] 1 (threads "fork" (planHybrid plan)) | s <- [hybrid, ghc]],
            [ Trial hybrid ["sleep", show (sleeping plan)] 2 (threads "sleep" (sleeping plan)),
              Trial go ["delay", show (sleeping plan)] 2 (threads "sleep" (sleeping plan)),
              Trial hybrid ["share", "1000"] 2 (threads "share" 1000)
            ]
          ]
    )
    bounds
    ["ns_per_op", "over_ideal_ratio", "alloc_bytes_per_op", "wall_s", "max_rss_mb"]
  where
    sleeping plan = planHybrid plan `div` 10
    yielding plan = [10, planHybrid plan `div` 10]
    bounds plan =
      [atMost (number n <> " threads: ns a switch") (cost "weft-hybrid" (threads "yield" n)) 25 | n <- yielding plan]
        <> [atMost (number n <> " threads: a switch, to GHC's yield") (versus (threads "yield" n)) 0.3 | n <- yielding plan]
        <> [ atMost "fork and end, to forkIO" (versus (threads "fork" (planHybrid plan))) 0.2,
             atMost "sleeping 1 ms, to Go" (wall "weft-hybrid" (sleepers plan) `Over` wall "go" (sleepers plan)) 0.4,
             atMost "the same: peak memory, MB" (on "weft-hybrid" (sleepers plan) "max_rss_mb") 120,
             atMost "1000 unequal threads on two cores, to ideal" (on "weft-hybrid" (threads "share" 1000) "over_ideal_ratio") 1.1
           ]
    sleepers plan = threads "sleep" (sleeping plan)
    cost subject params = on subject params "ns_per_op"
    versus params = cost "weft-hybrid" params `Over` cost "ghc" params
    wall subject params = on subject params "wall_s"

-- | Pairs and pipes (2007, figure 18).
fifo :: Benchmark
fifo =
  measured {benchIgnores = []}
  where
    measured =
      program
        "fifo"
        "128 pairs, turns of 32 KiB through pipes of 4 KiB, beside idle readers; kernel threads in C"
        ( \plan ->
            [ Trial s (arguments s (seconds plan) idle) 2 (fifoParams idle)
              | idle <- idlers plan,
                s <- [hybrid, kernel]
            ]
        )
        bounds
        ["gbit_per_s", "max_rss_mb"]
    arguments s time idle
      | subjectName s == "c-threads" = ["--pairs", "128", "--idle", show idle, "--seconds", time]
      | otherwise = ["fifo", "128", show idle, time]
    seconds plan = show (max 1 (round (planDuration plan)) :: Int)
    bounds plan =
      [atMost (number idle <> " idle: kernel threads / hybrid") (rate "c-threads" idle `Over` rate "weft-hybrid" idle) (1 / 1.3) | idle <- idlers plan]
        <> [atMost "hybrid: without idle ones / beside the most" (rate "weft-hybrid" 0 `Over` rate "weft-hybrid" (last (idlers plan))) 1.05]
    rate subject idle = on subject (fifoParams idle) "gbit_per_s"

fifoParams :: Int -> Params
fifoParams idle = [("workload", Word "fifo"), ("idle", Count idle)]

-- | Each needs two descriptors, which stays below the usual limit of 20,000.
idlers :: Plan -> [Int]
idlers plan = [0, planIdle plan * 9 `div` 160, planIdle plan * 9 `div` 16]

-- | The pong server with idle sessions.
hybridIdle :: Benchmark
hybridIdle =
  Benchmark
    { benchName = "hybrid-idle",
      benchTitle = "64 busy connections beside many idle ones, a hybrid thread each, -N1",
      benchCases = \plan -> map (idleCase (planIdle plan)) [Subject "weft-hybrid" "pong-hybrid" WeftProgram, Subject "weft" "pong-weft" WeftProgram],
      benchTools = idleTools,
      benchRts = [],
      benchIgnores = [],
      benchBounds = \plan ->
        [ atMost "bytes resident an idle session" (on "weft-hybrid" (idleParams (planIdle plan)) "rss_bytes_per_idle") 600,
          atMost
            "99th percentile: with idle ones / without"
            (on "weft-hybrid" (idleParams (planIdle plan)) "p99_us" `Over` on "weft-hybrid" (idleParams 0) "p99_us")
            1.3
        ],
      benchColumns = ["p99_us", "p50_us", "cpu_us_per_op", "live_bytes_per_idle", "rss_bytes_per_idle", "max_rss_mb"],
      benchPlotted = id
    }

number :: Int -> Text
number = T.pack . show
