{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Benchmark @delay-shared@
--
-- The program of the benchmark @delay@ as users would write it: @main@ is a bound thread, and the threads count
-- themselves by @atomicModifyIORef'@ or an 'Control.Concurrent.MVar.MVar' that all share. For comparison it also runs
-- the tuned program, and one whose only difference is the bound @main@: they show what the program's own counter and
-- its bound thread cost. GHC's own manager takes part with only a part of the threads.
module Weft.Bench.DelayShared (delayShared) where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds
import Weft.Bench.Timing
import Weft.Bench.Types

delayShared :: Benchmark
delayShared =
  Benchmark
    { benchName = "delay-shared",
      benchTitle = "threads that wait 1 ms each and count themselves in a shared variable, -N2",
      benchCases = \plan -> [trialCase selfMeasured t | threads <- sizes plan, program <- programs, t <- trials plan threads program],
      benchTools = [],
      -- The defaults, as users run their programs.
      benchRts = [],
      benchIgnores = ["--duration"],
      benchBounds = bounds,
      benchColumns = ["wall_s", "cpu_s", "max_rss_mb", "ns_per_op", "alloc_bytes_per_op"],
      benchPlotted = filter ((== Just (Count 2)) . lookup "capabilities" . runParams)
    }

sizes :: Plan -> [Int]
sizes plan = [fewer plan, planDelaysBound plan]

-- | The number of threads with which GHC's own manager takes part. A tenth of few threads would end within 30 ms, and a
-- ratio of such times is noise.
fewer :: Plan -> Int
fewer plan = planDelaysBound plan `div` (if planDelaysBound plan > 100000 then 10 else 3)

-- | The thread that forks, and the counter.
data Program = Program !Text !Text

programs :: [Program]
programs = [tuned, Program "bound" "word", Program "bound" "ioref", Program "bound" "mvar"]

tuned :: Program
tuned = Program "unbound" "word"

-- | Go always counts with its @WaitGroup@.
trials :: Plan -> Int -> Program -> [Trial]
trials plan threads program@(Program thread counter) =
  [ Trial subject (arguments subject) 2 (sharedParams threads program)
    | subject <- [weft, relinked, ghc, go],
      subject /= ghc || threads < planDelaysBound plan
  ]
  where
    arguments subject
      | subject == go = ["delay", show threads]
      | otherwise = [T.unpack thread, T.unpack counter, show threads]
    weft = Subject "weft" "delay-shared-weft" WeftProgram
    relinked = Subject "weft-relink" "delay-shared-relinked" GhcProgram
    ghc = Subject "ghc" "delay-shared-ghc" GhcProgram
    go = Subject "go" "go-timers" GoProgram

sharedParams :: Int -> Program -> Params
sharedParams threads (Program thread counter) =
  [("main", Word thread), ("counter", Word counter), ("threads", Count threads), ("capabilities", Count 2)]

-- | The bounds say only that Weft makes a plainly written program no slower than GHC's own manager does.
bounds :: Plan -> [Bound]
bounds plan =
  [ atMost
      (counter <> ", " <> number few <> " threads, wall: " <> subject <> " / ghc")
      (wall subject program few `Over` wall "ghc" program few)
      0.5
    | program@(Program _ counter) <- drop 2 programs,
      subject <- ["weft", "weft-relink"]
  ]
    <> [ atMost (counter <> ", " <> number few <> " threads, peak memory: weft / ghc") (memory "weft" program `Over` memory "ghc" program) 0.25
         | program@(Program _ counter) <- drop 2 programs
       ]
  where
    few = fewer plan
    wall subject program threads = on subject (sharedParams threads program) "wall_s"
    memory subject program = on subject (sharedParams few program) "max_rss_mb"
    number = T.pack . show :: Int -> Text
