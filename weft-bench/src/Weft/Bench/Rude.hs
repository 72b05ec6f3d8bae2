{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @rude@
--
-- Sixty-four clients of @weft serve@, first alone and then together with misbehaving clients: thousands that send a
-- head one byte at a time, some that hardly read, floods, resets, contradictory requests and endless heads. Measures
-- what these cost the others, compared with nginx.
module Weft.Bench.Rude (rude) where

import Weft.Bench.Bounds
import Weft.Bench.Folders
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Bench.Workload

rude :: Benchmark
rude =
  Benchmark
    { benchName = "rude",
      benchTitle = "64 clients beside rude ones, static files, one core",
      benchCases = \plan -> map (rudeCase (slowOnes plan)) [Subject "weft" "weft" CProgram, Subject "nginx" "nginx-static" CProgram],
      benchTools = [loadTool, rudeTool],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = \plan ->
        [ atMost
            "99th percentile: beside rude clients / without"
            (on "weft" (rudeParams (slowOnes plan)) "p99_us" `Over` on "weft" (rudeParams 0) "p99_us")
            2
        ],
      benchColumns = ["p99_us", "p50_us", "max_us", "ops_per_s", "max_rss_mb"],
      benchPlotted = id
    }
  where
    slowOnes plan = planIdle plan `div` 2

active :: Int
active = 64

rudeParams :: Int -> Params
rudeParams slow = ("rude", Count slow) : params active 1

rudeCase :: Int -> Subject -> Case
rudeCase slow subject =
  Case
    { caseSubject = subject,
      caseParams = params active 1,
      caseGroup = params active 1,
      caseMeasure = measure,
      caseCounts = []
    }
  where
    measure env = do
      root <- rudeFolder env
      withServerOf env 1 subject (rootArguments subject root) $ \server -> do
        alone <- underLoad env page server
        beside <- withRude env (clientCores env 1) slow server (underLoad env page server)
        pure [(rudeParams 0, alone), (rudeParams slow, beside)]
    page = (onePage active 1) {workPath = "/1k"}
