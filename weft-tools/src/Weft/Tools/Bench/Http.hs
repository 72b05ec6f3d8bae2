{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Measuring a server of small HTTP answers
--
-- What @pong@, @warp@ and @idle@ have in common: a server under a closed-loop load, its CPU time and allocation a
-- request, the latencies its clients saw, and, in a run of its own, its system calls.
module Weft.Tools.Bench.Http
  ( -- * Subjects
    serverCase,
    params,

    -- * Measuring
    underLoad,
    countingCalls,
  )
where

import Data.Map.Strict (Map)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import Weft.Tools.Bench.Load
import Weft.Tools.Bench.Proc
import Weft.Tools.Bench.Server
import Weft.Tools.Bench.Trace
import Weft.Tools.Bench.Types

-- | The parameters of a case: connections and capabilities.
params :: Int -> Int -> Params
params connections capabilities = [("connections", Count connections), ("capabilities", Count capabilities)]

-- | A server under this many connections, timed every round, and its system calls counted once.
serverCase :: Int -> Int -> Subject -> Case
serverCase connections capabilities subject =
  Case
    { caseSubject = subject,
      caseParams = given,
      caseGroup = given,
      caseMeasure = \env -> single <$> withServer env capabilities subject (underLoad env capabilities connections),
      caseOnce = Just $ \env -> single <$> withServer env capabilities subject (countingCalls env capabilities connections)
    }
  where
    given = params connections capabilities
    single metrics = [(given, metrics)]

-- | Load a server for as long as the plan says.
underLoad :: Env -> Int -> Int -> Server -> IO Metrics
underLoad env capabilities connections server = requestLoad env cores spec server $ \load -> do
  first <- report server
  result <- load
  peak <- peakResidentBytes (serverPid server)
  threads <- osThreads (serverPid server)
  final <- report server
  pure $
    M.unions
      [ loadLatencies result,
        M.fromList
          [ ("wall_s", loadWall result),
            ("cpu_s", loadCpu result),
            ("ops_per_s", loadRequests result / loadWall result),
            ("cpu_us_per_op", 1e6 * loadCpu result / loadRequests result),
            ("max_rss_mb", peak / 1e6),
            ("os_threads", threads)
          ],
        allocation first final (loadTotal result)
      ]
  where
    cores = clientCores env capabilities
    spec = loadSpec capabilities connections (planWarmup (envPlan env)) (planDuration (envPlan env))

allocation :: Maybe Report -> Maybe Report -> Double -> Map Text Double
allocation (Just first) (Just final) requests =
  M.singleton "alloc_bytes_per_op" ((reportAllocated final - reportAllocated first) / requests)
allocation _ _ _ = M.empty

-- | Load a server under @strace@: its connections stand before the tracing begins and stay until it has ended, so
-- only requests are counted.
countingCalls :: Env -> Int -> Int -> Server -> IO Metrics
countingCalls env capabilities connections server = requestLoad env cores spec server $ \load ->
  withTrace env (serverPid server) $ \counted -> do
    result <- load
    counts <- counted
    pure (M.singleton "syscalls_per_op" (fromIntegral (sum counts) / loadTotal result))
  where
    cores = clientCores env capabilities
    spec = loadSpec capabilities connections 0 (planTrace (envPlan env))

-- | One thread of the load for each capability of the server.
loadSpec :: Int -> Int -> Double -> Double -> LoadSpec
loadSpec capabilities connections warmup duration =
  LoadSpec
    { loadConnections = connections,
      loadThreads = min capabilities connections,
      loadWarmup = warmup,
      loadDuration = duration
    }
