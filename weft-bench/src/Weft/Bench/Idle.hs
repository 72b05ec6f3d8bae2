{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @idle@
--
-- Sixty-four busy connections, first alone and then together with thousands of idle connections of one process.
-- Measures what the idle ones cost in latency and memory, for the bare pong, other servers, and @weft serve@.
module Weft.Bench.Idle
  ( idle,
    idleCase,
    idleParams,
    idleTools,
    withAndWithout,
  )
where

import qualified Data.Map.Strict as M
import Data.Maybe (isJust)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Folders
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Bench.Workload
import Weft.Tools.Proc

idle :: Benchmark
idle =
  Benchmark
    { benchName = "idle",
      benchTitle = "64 busy connections beside many idle ones, -N1",
      benchCases = \plan -> map (idleCase (planIdle plan)) subjects <> [serveCase (planIdle plan)],
      benchTools = idleTools,
      benchRts = [],
      benchIgnores = [],
      benchBounds = bounds . planIdle,
      benchColumns =
        ["p99_us", "p50_us", "max_us", "cpu_us_per_op", "live_bytes_per_idle", "rss_bytes_per_idle", "max_rss_mb"],
      benchPlotted = id
    }
  where
    subjects =
      [ Subject "weft" "pong-weft" WeftProgram,
        Subject "ghc" "pong-ghc" GhcProgram,
        Subject "c-epoll" "c-epoll" CProgram
      ]

bounds :: Int -> [Bound]
bounds many =
  [ atMost
      ("99th percentile: with " <> T.pack (show many) <> " idle / without")
      (on "weft" (idleParams many) "p99_us" `Over` on "weft" (idleParams 0) "p99_us")
      1.5,
    atMost "bytes live an idle connection" (on "weft" (idleParams many) "live_bytes_per_idle") 1700,
    atMost "bytes resident an idle connection" (on "weft" (idleParams many) "rss_bytes_per_idle") 4000,
    atMost "bytes resident an idle connection of weft serve" (on "weft-serve" (idleParams many) "rss_bytes_per_idle") 4096
  ]

active :: Int
active = 64

idleParams :: Int -> Params
idleParams count = ("idle", Count count) : params active 1

-- | The programs that provide busy and idle connections.
idleTools :: [FilePath]
idleTools = [loadTool, idleTool]

-- | A server under load, alone and with the given number of idle connections.
idleCase :: Int -> Subject -> Case
idleCase many subject =
  Case
    { caseSubject = subject,
      caseParams = params active 1,
      caseGroup = params active 1,
      caseMeasure = \env -> withServer env 1 subject (measuredBoth env (onePage active 1) many),
      caseCounts = []
    }

-- | @weft serve@ in the same measurement, with its defaults except for the limits on connections and on the time of a
-- first head.
serveCase :: Int -> Case
serveCase many =
  Case
    { caseSubject = subject,
      caseParams = params active 1,
      caseGroup = params active 1,
      caseMeasure = \env -> do
        root <- smallFolder env
        withServerOf env 1 subject (rootArguments subject root <> ["--connections", "0", "--head-timeout", "600"]) $
          measuredBoth env (onePage active 1) {workPath = "/1k"} many,
      caseCounts = []
    }
  where
    subject = Subject "weft-serve" "weft" CProgram

measuredBoth :: Env -> Workload -> Int -> Server -> IO [Measured]
measuredBoth env work many server = do
  (alone, beside) <- withAndWithout env work many server
  pure [(idleParams 0, alone), (idleParams many, beside)]

-- | Both loads on the same process, without and with idle connections. Resident memory is measured right after each
-- load, live bytes after a full collection. If the load is over TLS, so are the idle connections, each of which has had
-- an answer.
withAndWithout :: Env -> Workload -> Int -> Server -> IO (Metrics, Metrics)
withAndWithout env work many server = do
  (alone, residentAlone, liveAlone) <- loaded
  withIdle env (clientCores env 1) path many server $ do
    (beside, residentBeside, liveBeside) <- loaded
    let each a b = (b - a) / fromIntegral many
        memory = ("rss_bytes_per_idle", each residentAlone residentBeside)
        live = [("live_bytes_per_idle", each a b) | Just a <- [liveAlone], Just b <- [liveBeside]]
    pure (alone, M.union beside (M.fromList (memory : live)))
  where
    path = if isJust (workTls work) then Just (workPath work) else Nothing
    loaded = do
      metrics <- underLoad env work server
      resident <- residentBytes (serverPid server)
      live <- fmap reportLive <$> report server
      pure (metrics, resident, live)
