{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @echo@
--
-- One client with one message of 64 bytes in flight (Mio, section 6.4): the round-trip time when nothing
-- else is running, compared with the non-threaded run-time system, which never moves a thread to another OS thread.
-- The placement of server and client matters more than anything else here, so each comparison has its own placement:
-- server and client on a core each, or both free on two cores.
module Weft.Bench.Echo (echo) where

import qualified Data.Map.Strict as M
import Data.Text (Text)
import Weft.Bench.Bounds
import Weft.Bench.Load
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Tools.Proc

echo :: Benchmark
echo =
  Benchmark
    { benchName = "echo",
      benchTitle = "round trips of one client",
      benchCases = const [echoCase mode cores subject | cores <- [1, 2], (mode, subject) <- subjects],
      benchTools = [tripTool],
      benchRts = [],
      benchIgnores = ["--duration"],
      benchBounds = const [bound 1 "-N1", bound 2 "-N2"],
      benchColumns = ["p50_us", "p95_us", "p99_us", "max_us", "cpu_us_per_op"],
      benchPlotted = id
    }
  where
    subjects =
      [ (Threaded, Subject "weft" "echo-weft" WeftProgram),
        (Threaded, Subject "ghc" "echo-ghc" GhcProgram),
        (NonThreaded, Subject "ghc" "echo-ghc-nonthreaded" GhcProgram)
      ]
    bound cores name =
      atMost
        ("median " <> name <> ": weft - ghc non-threaded, us")
        (median "weft" Threaded cores `Minus` median "ghc" NonThreaded cores)
        3
    median subject mode cores = on subject (echoParams mode cores) "p50_us"

-- | Which run-time system.
data Mode = Threaded | NonThreaded

-- | The threaded run-time system has a capability for each core that the server may use.
echoParams :: Mode -> Int -> Params
echoParams mode cores = case mode of
  Threaded -> given "threaded" cores
  NonThreaded -> given "non-threaded" 1
  where
    given :: Text -> Int -> Params
    given name capabilities = [("mode", Word name), ("capabilities", Count capabilities), ("cores", Count cores)]

echoCase :: Mode -> Int -> Subject -> Case
echoCase mode cores subject =
  (timedCase subject (echoParams mode cores) (\env -> withServer env cores subject (trips env cores))) {caseGroup = [("cores", Count cores)]}

trips :: Env -> Int -> Server -> IO Metrics
trips env cores server = do
  before <- cpuSeconds (serverPid server)
  result <- roundTrips env (clientCores env cores) 64 warmup count server
  after <- cpuSeconds (serverPid server)
  let perTrip = 1e6 * (after - before) / fromIntegral (warmup + count)
  pure (M.insert "cpu_us_per_op" perTrip (tripLatencies result))
  where
    warmup = planTripsBefore (envPlan env)
    count = planTrips (envPlan env)
