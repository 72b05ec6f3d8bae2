{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @warp@
--
-- The same WAI application on Warp over Weft and on Warp as it is, two capabilities.
module Weft.Tools.Bench.Warp (warp) where

import qualified Data.Text as T
import Weft.Tools.Bench.Bounds
import Weft.Tools.Bench.Http
import Weft.Tools.Bench.Load (loadTool)
import Weft.Tools.Bench.Types

warp :: Benchmark
warp =
  Benchmark
    { benchName = "warp",
      benchTitle = "a small WAI application on Warp, -N2, at saturation",
      benchCases = const [serverCase count 2 subject | count <- loads, subject <- subjects],
      benchTools = [loadTool],
      benchRts = [],
      benchBounds = const (map bound loads),
      benchColumns =
        ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "alloc_bytes_per_op", "syscalls_per_op", "max_rss_mb"],
      benchPlotted = id
    }
  where
    loads = [64, 400]
    subjects = [Subject "weft" "warp-weft" WeftProgram, Subject "ghc" "warp-ghc" GhcProgram]
    bound count =
      atMost
        ("CPU -N2, " <> T.pack (show count) <> " connections: weft / ghc")
        (cpu "weft" count `Over` cpu "ghc" count)
        0.65
    cpu subject count = on subject (params count 2) "cpu_us_per_op"
