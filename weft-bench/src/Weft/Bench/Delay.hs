{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @delay@
--
-- Very many threads, each of which waits for one millisecond (2010, section 9.2). Measures the whole life of a timer
-- and of the thread that waits for it. GHC's own manager takes part only up to a million threads: its single timer
-- thread starves behind them, so all stacks are live at once, 10 GB at a million threads and 100 GB at ten million.
module Weft.Bench.Delay
  ( delay,
    delayTrials,
    paperFigure,
  )
where

import Control.Monad (when)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Child (Child)
import Weft.Bench.Timing
import Weft.Bench.Types
import Weft.Tools.Proc (availableBytes)

delay :: Benchmark
delay =
  Benchmark
    { benchName = "delay",
      benchTitle = "threads that wait 1 ms each (ghc to 1,000,000: ten times that needs 100 GB)",
      benchCases = map delayCase . delayTrials,
      benchTools = [],
      -- Chosen by measurement: see "The allocation area" in doc/rationale/memory.md.
      benchRts = ["-A16m"],
      benchIgnores = ["--duration"],
      benchBounds = bounds,
      benchColumns = ["wall_s", "cpu_s", "ns_per_op", "max_rss_mb", "alloc_bytes_per_op"],
      benchPlotted = paperFigure
    }

-- | All sizes on two cores, one on a single core.
delayTrials :: Plan -> [Trial]
delayTrials plan = [trial threads 2 | threads <- planDelays plan] `with` subjects ++ [trial one 1] `with` subjects
  where
    one = planDelaysBound plan
    with sizes makers = [t | size <- sizes, Just t <- map size makers]
    trial threads capabilities (subject, arguments)
      | subjectKind subject == GhcProgram && threads > mostOnGhc = Nothing
      | otherwise =
        Just
          Trial
            { trialSubject = subject,
              trialArguments = arguments ++ [show threads],
              trialCapabilities = capabilities,
              trialParams = delayParams threads capabilities
            }
    subjects =
      [ (Subject "weft" "delay-weft" WeftProgram, []),
        (Subject "ghc" "delay-ghc" GhcProgram, []),
        (Subject "go" "go-timers" GoProgram, ["delay"])
      ]

mostOnGhc :: Int
mostOnGhc = 1000000

delayParams :: Int -> Int -> Params
delayParams threads capabilities = [("threads", Count threads), ("capabilities", Count capabilities)]

delayCase :: Trial -> Case
delayCase trial = trialCase measure trial
  where
    measure :: Env -> Child -> IO Metrics
    measure env child = do
      free <- availableBytes
      when (subjectKind (trialSubject trial) == GhcProgram && free < need) $
        failWith (T.pack (show (round (need / 1e9) :: Int)) <> " GB of memory are needed and not there")
      selfMeasured env child
    need = case lookup "threads" (trialParams trial) of
      Just (Count threads) -> 12000 * fromIntegral threads
      _ -> 0 :: Double

bounds :: Plan -> [Bound]
bounds plan =
  [ atMost (at "wall: weft / go") (weft many "wall_s" `Over` figure "go" many "wall_s") 1.0,
    atMost (at "wall: weft / ghc") (weft many "wall_s" `Over` figure "ghc" many "wall_s") 0.1,
    atMost (at "peak memory of weft, MB") (weft many "max_rss_mb") 100,
    atMost
      ("time a timer, weft: " <> number largest <> " / " <> number smallest <> " threads")
      (weft largest "ns_per_op" `Over` weft smallest "ns_per_op")
      1.5
  ]
  where
    many = planDelaysBound plan
    (smallest, largest) = (minimum (planDelays plan), maximum (planDelays plan))
    at what = number many <> " threads, -N2, " <> what
    weft = figure "weft"
    figure subject threads = on subject (delayParams threads 2)

number :: Int -> Text
number = T.pack . show

-- | The figure of the paper: threads against seconds on two cores, for GHC's manager, Weft and Go.
paperFigure :: [Run] -> [Run]
paperFigure runs =
  [ run {runParams = [p | p@("threads", _) <- runParams run]}
    | run <- runs,
      lookup "capabilities" (runParams run) == Just (Count 2)
  ]
