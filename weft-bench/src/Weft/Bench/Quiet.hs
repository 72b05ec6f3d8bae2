{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @quiet@
--
-- A server with many connections on which nothing happens should do nothing: none of its threads wakes up, no garbage
-- collection runs, and no CPU time is used.
module Weft.Bench.Quiet (quiet) where

import Control.Concurrent (threadDelay)
import qualified Data.Map.Strict as M
import Weft.Bench.Bounds
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Tools.Proc

quiet :: Benchmark
quiet =
  Benchmark
    { benchName = "quiet",
      benchTitle = "idle connections and no traffic, -N2",
      benchCases = \plan -> map (quietCase (planQuiet plan)) subjects,
      benchTools = [idleTool],
      benchRts = [],
      benchIgnores = ["--duration"],
      benchBounds = \plan ->
        [ never "threads woken up" (on "weft" (quietParams (planQuiet plan)) "wakeups"),
          never "collections" (on "weft" (quietParams (planQuiet plan)) "collections"),
          atMost "CPU, per cent of a core" (on "weft" (quietParams (planQuiet plan)) "cpu_percent") 0.1
        ],
      benchColumns = ["wakeups", "collections", "cpu_percent", "wall_s", "os_threads", "max_rss_mb"],
      benchPlotted = id
    }
  where
    subjects = [Subject "weft" "pong-weft" WeftProgram, Subject "ghc" "pong-ghc" GhcProgram]

quietParams :: Int -> Params
quietParams count = [("idle", Count count), ("capabilities", Count 2)]

quietCase :: Int -> Subject -> Case
quietCase count subject =
  timedCase subject (quietParams count) $ \env ->
    withServer env 2 subject $ \server ->
      withIdle env (clientCores env 2) Nothing count server (watch env server)

-- | Observe a server that has come to rest. A report wakes the program, which then does one more collection before it
-- rests again. Two reports without an observed period between them show how many collections that adds.
watch :: Env -> Server -> IO Metrics
watch env server = do
  settle
  first <- report server
  settle
  second <- report server
  settle
  switches <- voluntarySwitches (serverPid server)
  cpu <- cpuSeconds (serverPid server)
  sleep window
  cpuAfter <- cpuSeconds (serverPid server)
  switchesAfter <- voluntarySwitches (serverPid server)
  third <- report server
  peak <- peakResidentBytes (serverPid server)
  threads <- osThreads (serverPid server)
  pure . M.fromList $
    [ ("wakeups", switchesAfter - switches),
      ("cpu_percent", 100 * (cpuAfter - cpu) / window),
      ("wall_s", window),
      ("os_threads", threads),
      ("max_rss_mb", peak / 1e6)
    ]
      ++ [ ("collections", max 0 (between b c - between a b))
           | Just a <- [first],
             Just b <- [second],
             Just c <- [third]
         ]
  where
    settle = sleep (planSettle (envPlan env))
    window = planWindow (envPlan env)
    between earlier later = reportCollectionsBefore later - reportCollections earlier

sleep :: Double -> IO ()
sleep seconds = threadDelay (round (seconds * 1e6))
