{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @pong@
--
-- An HTTP server that answers every request with the same few bytes, at saturation: the server's CPU time
-- for a request, compared with a bare C loop, Go and GHC's own manager.
module Weft.Bench.Pong (pong) where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Load (loadTool)
import Weft.Bench.Types
import Weft.Bench.Workload

pong :: Benchmark
pong =
  Benchmark
    { benchName = "pong",
      benchTitle = "a small HTTP answer over kept connections, at saturation",
      benchCases = const ([pongCase count cores subject | cores <- [1, 2], count <- loads, subject <- subjects cores] ++ map sharedCase loads),
      benchTools = [loadTool],
      benchRts = [],
      benchIgnores = [],
      benchBounds = const (oneCore ++ twoCores ++ lean),
      benchColumns =
        ["cpu_us_per_op", "ops_per_s", "p50_us", "p99_us", "alloc_bytes_per_op", "syscalls_per_op", "max_rss_mb"],
      benchPlotted = filter (notElem shared . runParams)
    }

loads :: [Int]
loads = [64, 400]

subjects :: Int -> [Subject]
subjects cores =
  [Subject "weft" "pong-weft" WeftProgram, Subject "ghc" "pong-ghc" GhcProgram]
    ++ [Subject "c-epoll" "c-epoll" CProgram]
    ++ [Subject "c-uring" "c-uring" CProgram | cores == 1]
    ++ [Subject "go" "go-pong" GoProgram]

-- | A case of the benchmark. On several cores the C program has a loop with its own listener (@SO_REUSEPORT@) for
-- each core.
pongCase :: Int -> Int -> Subject -> Case
pongCase count cores = workloadCase (params count cores) (onePage count cores) {workArguments = \_ s -> pure (concat [["--threads", show cores] | subjectKind s == CProgram, cores > 1])}

-- | One capability that shares all cores with the clients, as two capabilities on two cores do. The cost of the second
-- capability is the difference from this case, not from a server with a core of its own.
sharedCase :: Int -> Case
sharedCase count = (workloadCase (sharedParams count) (onePage count 1) {workShared = True} (Subject "weft" "pong-weft" WeftProgram)) {caseGroup = params count 2, caseCounts = []}

sharedParams :: Int -> Params
sharedParams count = params count 1 ++ [shared]

shared :: (Text, ParamValue)
shared = ("placement", Word "shared")

cpu :: Text -> Int -> Int -> Figure
cpu subject count cores = on subject (params count cores) "cpu_us_per_op"

oneCore :: [Bound]
oneCore =
  [ atMost ("CPU -N1, " <> connections count <> ": weft / c-epoll") (cpu "weft" count 1 `Over` cpu "c-epoll" count 1) 1.15
    | count <- loads
  ]

twoCores :: [Bound]
twoCores =
  concat
    [ [ atMost (at count "weft / ghc") (cpu "weft" count 2 `Over` cpu "ghc" count 2) limit,
        atMost (at count "weft / c-epoll") (cpu "weft" count 2 `Over` cpu "c-epoll" count 2) 1.15,
        atMost (at count "weft / go") (cpu "weft" count 2 `Over` cpu "go" count 2) 0.95,
        atMost (at count "weft / weft -N1, clients on the same cores in both") (cpu "weft" count 2 `Over` on "weft" (sharedParams count) "cpu_us_per_op") 1.10
      ]
      | -- C takes 0.70 and 0.53 of GHC's manager there.
        (count, limit) <- [(64, 0.78), (400, 0.66)]
    ]
  where
    at count what = "CPU -N2, " <> connections count <> ": " <> what

lean :: [Bound]
lean =
  [ atMost "bytes allocated a request, worst of all" (worst "alloc_bytes_per_op") 400,
    atMost "system calls a request, worst of all" (worst "syscalls_per_op") 2.3
  ]
  where
    worst name = Worst [on "weft" (params count cores) name | count <- loads, cores <- [1, 2]]

connections :: Int -> Text
connections count = T.pack (show count) <> " connections"
