{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @static@
--
-- A folder of files: @weft serve@, nginx (one worker, sendfile, open_file_cache, no access log), and Warp with
-- wai-app-static on GHC's own manager, each on one core.
module Weft.Bench.Static (static) where

import Data.Text (Text)
import qualified Data.Text as T
import System.FilePath (takeDirectory)
import Weft.Bench.Bounds
import Weft.Bench.Folders
import Weft.Bench.Load (loadTool)
import Weft.Bench.Types
import Weft.Bench.Workload

static :: Benchmark
static =
  Benchmark
    { benchName = "static",
      benchTitle = "static files, one core",
      benchCases = const ([fileCase size connections s | size <- sizes, connections <- loads, s <- subjects] <> map largeCase (take 2 subjects)),
      benchTools = [loadTool],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = const ([bound size connections peer limit | (peer, limits) <- [("nginx", [0.85, 0.95]), ("ghc", [0.5, 0.5])], (size, limit) <- zip sizes limits, connections <- loads] <> [largeBound]),
      benchColumns = ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "syscalls_per_op", "mb_per_cpu_s", "max_rss_mb"],
      benchPlotted = id
    }
  where
    sizes = [1, 16]
    loads = [64, 400]
    -- The program itself prints no heap statistics and runs unchanged.
    subjects = [Subject "weft" "weft" CProgram, Subject "nginx" "nginx-static" CProgram, Subject "ghc" "static-ghc" GhcProgram]

fileParams :: Int -> Int -> Params
fileParams size connections = ("size_kib", Count size) : params connections 1

fileCase :: Int -> Int -> Subject -> Case
fileCase size connections =
  workloadCase
    (fileParams size connections)
    (onePage connections 1)
      { workPath = "/" <> show size <> "k",
        workArguments = \env subject -> rootArguments subject <$> smallFolder env
      }

-- | A file of 1 GiB for 64 clients.
largeCase :: Subject -> Case
largeCase =
  workloadCase
    largeParams
    (onePage 64 1)
      { workPath = "/file",
        workLong = True,
        workArguments = \env subject -> rootArguments subject . takeDirectory <$> bigFile env 1024
      }

largeParams :: Params
largeParams = ("size_kib", Count 1048576) : params 64 1

largeBound :: Bound
largeBound = atMost "bytes a CPU second, 1 GiB, 64 connections: nginx / weft" (rate "nginx" `Over` rate "weft") (1 / 0.95)
  where
    rate subject = on subject largeParams "mb_per_cpu_s"

bound :: Int -> Int -> Text -> Double -> Bound
bound size connections peer =
  atMost
    ("CPU, " <> number size <> " KiB, " <> number connections <> " connections: weft / " <> peer)
    (cpu "weft" `Over` cpu peer)
  where
    cpu subject = on subject (fileParams size connections) "cpu_us_per_op"
    number = T.pack . show
