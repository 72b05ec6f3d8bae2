{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @relink@
--
-- Programs on GHC's own manager, and the same object files linked with @weft-relink@: delays,
-- time limits, Warp, a folder of files on Warp, Warp with idle connections, and the time that a program takes to start.
module Weft.Bench.Relink (relink) where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Folders (smallFolder)
import Weft.Bench.Idle (idleCase, idleParams, idleTools)
import Weft.Bench.StartTime (startCase, startParams)
import Weft.Bench.Timing
import Weft.Bench.Types
import Weft.Bench.Workload

relink :: Benchmark
relink =
  Benchmark
    { benchName = "relink",
      benchTitle = "unmodified programs, as they are and linked with weft-relink",
      benchCases = cases,
      benchTools = idleTools,
      benchRts = [],
      benchIgnores = [],
      benchBounds = bounds,
      benchColumns = ["wall_s", "ns_per_op", "cpu_us_per_op", "start_ms", "p99_us", "alloc_bytes_per_op", "syscalls_per_op", "max_rss_mb"],
      benchPlotted = id
    }

cases :: Plan -> [Case]
cases plan =
  [trialCase selfMeasured (delays plan s) | s <- programs "delay"]
    <> [trialCase selfMeasured (timeouts plan s) | s <- programs "timeouts"]
    <> [serverCase connections n s | (connections, n) <- servers, s <- programs "warp"]
    <> [workloadCase (fileParams connections n) (oneFile connections n) s | (connections, n) <- fileServers, s <- programs "static"]
    <> [startCase (planStarts plan) s | s <- programs "hello"]
    <> [idleCase (planIdle plan) s | s <- programs "warp"]

-- | A program linked normally, and relinked.
programs :: String -> [Subject]
programs name = [Subject variant (name <> "-" <> T.unpack variant) GhcProgram | variant <- [plain, relinked]]

plain, relinked :: Text
plain = "ghc"
relinked = "relinked"

servers :: [(Int, Int)]
servers = [(400, 1), (64, 2), (400, 2)]

fileServers :: [(Int, Int)]
fileServers = [(64, 1), (64, 2)]

fileParams :: Int -> Int -> Params
fileParams connections n = ("size_kib", Count 1) : params connections n

-- | A workload with one file of 1 KiB.
oneFile :: Int -> Int -> Workload
oneFile connections n =
  (onePage connections n)
    { workPath = "/1k",
      workArguments = \env _ -> (\root -> ["--root", root]) <$> smallFolder env
    }

delays :: Plan -> Subject -> Trial
delays plan subject = Trial subject [show n] 2 (delayParams n)
  where
    n = planDelaysBound plan

timeouts :: Plan -> Subject -> Trial
timeouts plan subject = Trial subject ["1000", show (max 1 (planTimeouts plan `div` 1000))] 2 timeoutParams

delayParams :: Int -> Params
delayParams n = [("workload", Word "delay"), ("threads", Count n)]

timeoutParams :: Params
timeoutParams = [("workload", Word "timeout"), ("threads", Count 1000)]

bounds :: Plan -> [Bound]
bounds plan =
  [ atMost "delays, wall: relinked / as it is" (ratio delay' "wall_s") 0.1,
    atMost "timeouts that do not fire: relinked / as it is" (ratio timeoutParams "ns_per_op") 0.334
  ]
    -- With fewer, most of the memory is what every program takes.
    <> [atMost "delays, peak memory: relinked / as it is" (ratio delay' "max_rss_mb") 0.02 | planDelaysBound plan >= 1000000]
    <> [ atMost
           ("Warp -N" <> number n <> ", " <> number connections <> " connections, CPU: relinked / as it is")
           (ratio (params connections n) "cpu_us_per_op")
           1.02
         | (connections, n) <- servers
       ]
    <> [ atMost
           ("files of 1 KiB -N" <> number n <> ", " <> number connections <> " connections, CPU: relinked / as it is")
           (ratio (fileParams connections n) "cpu_us_per_op")
           1.02
         | (connections, n) <- fileServers
       ]
    <> [ atMost
           "start and end of a program, ms: relinked - as it is"
           (on relinked startParams "start_ms" `Minus` on plain startParams "start_ms")
           2
       ]
    -- Each idle connection has one of Warp's timers.
    <> [ atMost
           ("Warp -N1, 64 connections beside " <> number idle <> " idle, CPU: relinked / as it is")
           (ratio (idleParams idle) "cpu_us_per_op")
           limit
         | (idle, limit) <- [(0, 1.02), (planIdle plan, 1.0)]
       ]
  where
    delay' = delayParams (planDelaysBound plan)
    ratio at metric = on relinked at metric `Over` on plain at metric
    number = T.pack . show :: Int -> Text
