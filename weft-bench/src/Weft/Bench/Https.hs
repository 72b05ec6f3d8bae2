{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @https@
--
-- Small and large files over TLS 1.3 with HTTP/1.1: @weft serve@, nginx, Go's net/http, and hyper with rustls. Modes:
-- @keep@, connections that are kept; @handshake@, a connection and a full handshake for each request; @resumed@, a
-- connection for each request that resumes the session of the one before; @idle@, the memory of idle connections.
module Weft.Bench.Https (https) where

import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Certificates
import Weft.Bench.Idle
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Bench.Workload

https :: Benchmark
https =
  Benchmark
    { benchName = "https",
      benchTitle = "files over TLS with HTTP/1.1: kept connections, handshakes, idle connections",
      benchCases = \plan -> [run subject | run <- map loadCase loads <> [idleTlsCase (idleOnes plan)], subject <- subjects],
      benchTools = [loadTool, idleTool, "openssl"],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = bounds . idleOnes,
      benchColumns = ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "mb_per_cpu_s", "rss_bytes_per_idle", "max_rss_mb"],
      benchPlotted = id
    }
  where
    subjects =
      [ Subject "weft" "weft" CProgram,
        Subject "nginx" "nginx-static" CProgram,
        Subject "go-http" "go-http" GoProgram,
        Subject "hyper-rustls" "hyper-tls" RustProgram
      ]
    idleOnes plan = min 10000 (planIdle plan)

-- | Requests over kept connections, by size in KiB, connections and capabilities; or a connection for each, by key.
data Load
  = Persistent !Int !Int !Int
  | Fresh !Handshakes !Key

loads :: [Load]
loads = [small, medium, large, full, Fresh Full Rsa2048, resumed, shared]

small, medium, large, full, resumed, shared :: Load
small = Persistent 1 64 1
medium = Persistent 16 64 1
large = Persistent 1024 16 1
full = Fresh Full P256
resumed = Fresh Resumed P256
-- On two cores, which the clients share if there are no others.
shared = Persistent 1 64 2

loadParams :: Load -> Params
loadParams load = case load of
  Persistent size connections cores -> ("mode", Word "keep") : ("size_kib", Count size) : params connections cores
  Fresh handshakes key -> ("mode", Word (if handshakes == Resumed then "resumed" else "handshake")) : ("key", Word (keyName key)) : params 32 1

workOf :: Load -> Workload
workOf load = case load of
  Persistent size connections cores -> (onePage connections cores) {workPath = path size, workTls = Just Kept, workArguments = secureFiles cores P256}
  Fresh handshakes key -> (onePage 32 1) {workPath = path 1, workTls = Just handshakes, workArguments = secureFiles 1 key}
  where
    path :: Int -> String
    path size = if size == 1024 then "/1m" else "/" <> show size <> "k"

loadCase :: Load -> Subject -> Case
loadCase load subject = plain {caseMeasure = fmap (map (fmap own)) . caseMeasure plain, caseCounts = []}
  where
    plain = workloadCase (loadParams load) (workOf load) subject
    -- nginx has a process for each of several workers, and only the first of them is watched.
    own = case load of
      Persistent _ _ cores | cores > 1 -> M.filterWithKey (\metric _ -> metric `elem` ["ops_per_s", "wall_s", "p50_us", "p95_us", "p99_us", "max_us"])
      _ -> id

idleTlsParams :: Int -> Params
idleTlsParams many = [("mode", Word "idle"), ("idle", Count many), ("capabilities", Count 1)]

-- | Memory with idle connections and without, right after a load of others.
idleTlsCase :: Int -> Subject -> Case
idleTlsCase many subject =
  timedCase subject (idleTlsParams many) $ \env -> do
    arguments <- workArguments work env subject
    (_, beside) <- withServerOf env 1 subject (arguments <> patience) (withAndWithout env work many)
    pure (M.filterWithKey (\metric _ -> metric `elem` ["rss_bytes_per_idle", "max_rss_mb", "p50_us", "p99_us"]) beside)
  where
    work = workOf small
    patience = concat [["--connections", "0", "--keep-alive", "600"] | subjectName subject == "weft"]

bounds :: Int -> [Bound]
bounds idleOnes =
  [cpu "1 KiB, 64 connections" small 0.9, cpu "16 KiB, 64 connections" medium 0.9, cpu "1 MiB, 16 connections" large 1]
    <> [cpu "a full handshake, P-256" full 1, cpu "a resumed handshake" resumed 1]
    <> [ atMost "99th percentile, 1 KiB, 64 connections, -N2: weft / nginx" (ratio (loadParams shared) "p99_us") 2,
         atMost ("bytes resident an idle connection, of " <> T.pack (show idleOnes) <> ": weft / nginx") (ratio (idleTlsParams idleOnes) "rss_bytes_per_idle") 1
       ]
  where
    cpu what load = atMost ("CPU, " <> what <> ": weft / nginx") (ratio (loadParams load) "cpu_us_per_op")

ratio :: Params -> Text -> Figure
ratio given metric = on "weft" given metric `Over` on "nginx" given metric
