{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @eventlog@
--
-- The cost of the markers in GHC's event log for a request of the bare pong: linked without the event log, linked with
-- it while it is off, and while it is written to a file with the options of @weft trace@.
module Weft.Bench.EventLog (eventLog) where

import Data.Text (Text)
import System.FilePath ((</>))
import Weft.Bench.Bounds
import Weft.Bench.Load (loadTool)
import Weft.Bench.Types
import Weft.Bench.Workload

eventLog :: Benchmark
eventLog =
  Benchmark
    { benchName = "eventlog",
      benchTitle = "the pong with GHC's event log absent, off and on, 64 connections, -N1",
      benchCases = const (map logCase [Absent, Off, On]),
      benchTools = [loadTool],
      benchRts = [],
      benchIgnores = [],
      benchBounds = const [bound "off / absent" Off Absent 1.03, bound "on / off" On Off 1.10],
      benchColumns = ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "alloc_bytes_per_op"],
      benchPlotted = id
    }
  where
    bound what a b = atMost ("CPU a request: event log " <> what) (cpu a `Over` cpu b)
    cpu mode = on "weft" (logParams mode) "cpu_us_per_op"

data LogMode = Absent | Off | On
  deriving (Eq)

logParams :: LogMode -> Params
logParams mode = ("mode", Word name) : params 64 1
  where
    name :: Text
    name = case mode of
      Absent -> "absent"
      Off -> "off"
      On -> "on"

logCase :: LogMode -> Case
logCase mode =
  (workloadCase (logParams mode) work (Subject "weft" program WeftProgram)) {caseGroup = params 64 1, caseCounts = []}
  where
    program = if mode == Absent then "pong-weft" else "pong-weft-eventlog"
    work = (onePage 64 1) {workArguments = \env _ -> pure (concat [["+RTS", "-l-asgu", "-ol" <> (envScratch env </> "pong.eventlog"), "-RTS"] | mode == On])}
