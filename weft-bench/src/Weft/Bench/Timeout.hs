{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @timeout@
--
-- Actions under a time limit that they do not reach: what does the limit cost? Measured on few threads that do nothing
-- else, and on a thousand. Go's equivalent is a timer that AfterFunc sets and that is then stopped.
module Weft.Bench.Timeout (timeout) where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Timing
import Weft.Bench.Types

timeout :: Benchmark
timeout =
  Benchmark
    { benchName = "timeout",
      benchTitle = "timeouts that do not fire, -N2",
      benchCases = \plan ->
        [ trialCase selfMeasured (trial plan threads subject)
          | threads <- threadCounts,
            subject <- subjects
        ],
      benchTools = [],
      benchRts = [],
      benchIgnores = ["--duration"],
      benchBounds = const (concatMap bounds threadCounts),
      benchColumns = ["ns_per_op", "cpu_us_per_op", "alloc_bytes_per_op", "wall_s", "max_rss_mb"],
      benchPlotted = id
    }
  where
    subjects =
      [ (Subject "weft" "timeouts-weft" WeftProgram, []),
        (Subject "ghc" "timeouts-ghc" GhcProgram, []),
        (Subject "go" "go-timers" GoProgram, ["timeouts"])
      ]

threadCounts :: [Int]
threadCounts = [2, 1000]

trial :: Plan -> Int -> (Subject, [String]) -> Trial
trial plan threads (subject, arguments) =
  Trial
    { trialSubject = subject,
      trialArguments = arguments ++ map show [threads, max 1 (planTimeouts plan `div` threads)],
      trialCapabilities = 2,
      trialParams = timeoutParams threads
    }

timeoutParams :: Int -> Params
timeoutParams threads = [("threads", Count threads), ("capabilities", Count 2)]

bounds :: Int -> [Bound]
bounds threads =
  [ atMost (many <> "weft, ns a timeout") (cost "weft") 300,
    atMost (many <> "weft / go") (cost "weft" `Over` cost "go") 1.0
  ]
  where
    many = T.pack (show threads) <> " threads: "
    cost :: Text -> Figure
    cost subject = on subject (timeoutParams threads) "ns_per_op"
