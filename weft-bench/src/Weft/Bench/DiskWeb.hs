{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @disk-web@
--
-- Web servers whose files do not fit into their caches (2007, figure 19): 128 K files of 16 KiB, requested at random,
-- none of them in the page cache when the load begins. Compares the example @hybrid-web@ and @weft serve@, with a cache
-- of 100 MB each, and nginx, which leaves
-- caching to the kernel, keeps descriptors open and reads in a thread pool (@aio threads@); each on one core.
module Weft.Bench.DiskWeb (diskWeb) where

import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Cold
import Weft.Bench.Load (loadTool)
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Bench.Workload

diskWeb :: Benchmark
diskWeb =
  Benchmark
    { benchName = "disk-web",
      benchTitle = "many files at random, from a cold page cache, one core",
      benchCases = \plan -> [fileCase (fileCount plan) connections s | connections <- loads, s <- subjects],
      benchTools = [loadTool],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = const [bound connections subject | subject <- ["weft-hybrid", "weft"], connections <- loads],
      benchColumns = ["ops_per_s", "mb_per_s", "cpu_us_per_op", "p50_us", "p99_us", "max_rss_mb"],
      benchPlotted = id
    }
  where
    loads = [16, 64, 256, 1024]
    -- These programs print no heap statistics and run unchanged.
    subjects = [Subject "weft-hybrid" "examples/hybrid-web" CProgram, Subject "weft" "weft" CProgram, Subject "nginx" "nginx-static" CProgram]

-- | 128 files for each MiB of the benchmark @disk@'s file, which has 1024.
fileCount :: Plan -> Int
fileCount plan = 128 * planFileMiB plan

fileKiB :: Int
fileKiB = 16

fileCase :: Int -> Int -> Subject -> Case
fileCase count connections subject =
  timedCase subject (params connections 1) $ \env -> do
    root <- manyFiles count fileKiB
    withServerOf env 1 subject (arguments (subjectName subject) root) $ \server -> do
      forgetFiles root count
      metrics <- underLoad env work server
      pure (maybe metrics (\n -> M.insert "mb_per_s" (megabytes n) metrics) (M.lookup "ops_per_s" metrics))
  where
    work = (onePage connections 1) {workPath = "/f%ld", workFiles = count}
    megabytes n = n * fromIntegral (1024 * fileKiB) / 1e6
    arguments :: Text -> FilePath -> [String]
    arguments "weft-hybrid" root = [root, "--cache", "100"]
    arguments "weft" root = ["serve", root, "--cores", "1", "--cache", "100"]
    arguments _ root = ["--root", root, "--aio-threads"]

bound :: Int -> Text -> Bound
bound connections subject =
  atMost
    ("requests a second, " <> T.pack (show connections) <> " connections: nginx / " <> subject)
    (rate "nginx" `Over` rate subject)
    1
  where
    rate name = on name (params connections 1) "ops_per_s"
