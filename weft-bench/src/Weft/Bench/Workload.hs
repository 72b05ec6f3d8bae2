{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE RankNTypes #-}

-- |
-- Description : Measuring a server of small HTTP responses
--
-- The common part of @pong@, @http@ and @idle@: a server under a closed-loop load, its CPU time and allocation for a
-- request, the latencies that its clients measure and, in separate runs, its system calls and instructions.
module Weft.Bench.Workload
  ( -- * Workloads
    Workload (..),
    onePage,

    -- * Cases
    serverCase,
    workloadCase,
    workloadCaseBeside,
    params,

    -- * Measuring
    underLoad,
    countingInstructions,
  )
where

import Data.ByteString (ByteString)
import Data.Map.Strict (Map)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import Weft.Bench.Callgrind
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Trace
import Weft.Bench.Types
import Weft.Tools.Proc

-- | The parameters of a case: connections and capabilities.
params :: Int -> Int -> Params
params connections capabilities = [("connections", Count connections), ("capabilities", Count capabilities)]

-- | What the clients request, and how many clients there are.
data Workload = Workload
  { workConnections :: !Int,
    workCapabilities :: !Int,
    -- | The path or, with 'workFiles', a pattern with one @%ld@ for a file's number.
    workPath :: !String,
    -- | The number of files to choose from, or 0.
    workFiles :: !Int,
    -- | Responses are too long to wait for: bytes are counted, and there are no latencies or calls.
    workLong :: !Bool,
    -- | Requests have the ten fields that a browser sends.
    workBrowser :: !Bool,
    -- | Bytes of the body that is posted.
    workPost :: !(Maybe Int),
    -- | Requests that each connection sends in turn, whole, instead of the path; and whether there is a new connection
    -- after the last of them.
    workScript :: ![ByteString],
    workRenew :: !Bool,
    -- | The path is a WebSocket, which gets and echoes messages of this many bytes.
    workMessage :: !(Maybe Int),
    -- | Over TLS.
    workTls :: !(Maybe Handshakes),
    -- | Requests a second, of an open loop.
    workRate :: !(Maybe Int),
    -- | Whether server and clients share all cores, as they do if none are left for clients.
    workShared :: !Bool,
    -- | Arguments for the subject in addition to its port.
    workArguments :: !(Env -> Subject -> IO [String])
  }

-- | The page @/@ for this many connections, from a server with this many capabilities.
onePage :: Int -> Int -> Workload
onePage connections capabilities = Workload connections capabilities "/" 0 False False Nothing [] False Nothing Nothing Nothing False (\_ _ -> pure [])

-- | A server with this many connections, timed in every round, with its system calls counted once.
serverCase :: Int -> Int -> Subject -> Case
serverCase connections capabilities = workloadCase (params connections capabilities) (onePage connections capabilities)

-- | A server under a load, with these parameters.
workloadCase :: Params -> Workload -> Subject -> Case
workloadCase = workloadCaseBeside (\_ act -> act [])

-- | 'workloadCase' beside something else that runs meanwhile, such as the server behind a proxy, and that gives
-- arguments for the subject, which come first.
workloadCaseBeside :: (forall a. Env -> ([String] -> IO a) -> IO a) -> Params -> Workload -> Subject -> Case
workloadCaseBeside beside given work subject =
  Case
    { caseSubject = subject,
      caseParams = given,
      caseGroup = given,
      caseMeasure = running underLoad,
      caseCounts = [Counting traceTool "syscalls_per_op" (running countingCalls) | not (workLong work)]
    }
  where
    running measure env = beside env $ \further -> do
      arguments <- workArguments work env subject
      metrics <- withServerOn (coresOfServer env work) env (workCapabilities work) subject (further <> arguments) (measure env work)
      pure [(given, metrics)]

coresOfServer, coresOfClients :: Env -> Workload -> [Int]
coresOfServer env work = if workShared work then allCores env else serverCores env (workCapabilities work)
coresOfClients env work = if workShared work then allCores env else clientCores env (workCapabilities work)

-- | Put load on a server for as long as the plan says.
underLoad :: Env -> Workload -> Server -> IO Metrics
underLoad env work server = requestLoad env cores spec server $ \load -> do
  first <- report server
  result <- load
  peak <- peakResidentBytes (serverPid server)
  threads <- osThreads (serverPid server)
  final <- report server
  pure $
    M.unions
      [ M.fromList
          [ ("wall_s", loadWall result),
            ("cpu_s", loadCpu result),
            ("mb_per_cpu_s", loadBytes result / 1e6 / loadCpu result),
            ("max_rss_mb", peak / 1e6),
            ("os_threads", threads)
          ],
        if workLong work then M.empty else answers result,
        allocation first final (loadTotal result)
      ]
  where
    answers result =
      M.union (loadLatencies result) $
        M.fromList
          [ ("ops_per_s", loadRequests result / loadWall result),
            ("cpu_us_per_op", 1e6 * loadCpu result / loadRequests result)
          ]
    cores = coresOfClients env work
    spec = loadSpec work (planWarmup (envPlan env)) (planDuration (envPlan env))

allocation :: Maybe Report -> Maybe Report -> Double -> Map Text Double
allocation (Just first) (Just final) requests =
  M.singleton "alloc_bytes_per_op" ((reportAllocated final - reportAllocated first) / requests)
allocation _ _ _ = M.empty

-- | Put load on a server under @strace@. Connections are opened before the tracing begins and stay open until it has
-- ended, so only requests are counted.
countingCalls :: Env -> Workload -> Server -> IO Metrics
countingCalls env work server = requestLoad env cores spec server $ \load ->
  withTrace env (serverPid server) $ \counted -> do
    result <- load
    counts <- counted
    pure (M.singleton "syscalls_per_op" (fromIntegral (sum counts) / loadTotal result))
  where
    cores = coresOfClients env work
    spec = loadSpec work 0 (planTrace (envPlan env))

-- | Count the instructions for a request in user space, on one core: the difference of two runs, divided by the
-- difference of the numbers of requests that they answered.
countingInstructions :: Env -> Workload -> Subject -> [String] -> IO Metrics
countingInstructions env work subject arguments = do
  (few, before) <- counted (planTrace (envPlan env))
  (many, after) <- counted (4 * planTrace (envPlan env))
  if many > few
    then pure (M.singleton "user_instructions_per_op" ((after - before) / (many - few)))
    else failWith "callgrind: the longer run answered no more requests"
  where
    counted seconds = do
      program <- subjectProgramWith env 1 subject (arguments ++ ["--port", "0"])
      underCallgrind env program $ \child -> do
        server <- listening child subject
        requestLoad env (clientCores env 1) (loadSpec work 0 seconds) server (fmap loadTotal)

-- | One thread of the load for each of the server's capabilities.
loadSpec :: Workload -> Double -> Double -> LoadSpec
loadSpec work warmup duration =
  LoadSpec
    { loadConnections = workConnections work,
      loadThreads = min (workCapabilities work) (workConnections work),
      loadPath = workPath work,
      loadFiles = workFiles work,
      loadCut = workLong work,
      loadBrowser = workBrowser work,
      loadPost = workPost work,
      loadScript = workScript work,
      loadRenew = workRenew work,
      loadMessage = workMessage work,
      loadTls = workTls work,
      loadRate = workRate work,
      loadWarmup = warmup,
      loadDuration = duration
    }
