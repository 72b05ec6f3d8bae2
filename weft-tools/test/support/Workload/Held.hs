-- |
-- What the process holds between the rounds of the workload: memory, descriptors, OS threads; and how long round trips took.
module Workload.Held
  ( Sample,
    sampled,
    shown,
    judgeGrowth,
    percentiles,
  )
where

import Control.Concurrent
import Control.Monad
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import System.Directory
import System.Mem (performMajorGC)
import Workload.Run

-- | What it held once.
data Sample = Sample {sampleLive, sampleDescriptors, sampleTasks, sampleResident :: Int}

-- | Once connections are over.
sampled :: Run -> IO Sample
sampled run = do
  settle (200 :: Int)
  performMajorGC
  threadDelay 50000
  performMajorGC
  stats <- getRTSStats
  fds <- length <$> listDirectory "/proc/self/fd"
  tasks <- length <$> listDirectory "/proc/self/task"
  status <- readFile "/proc/self/status"
  let resident = case [w | l <- lines status, ("VmRSS:" : w : _) <- [words l]] of
        w : _ -> read w
        [] -> 0
  pure (Sample (fromIntegral (gcdetails_live_bytes (gc stats))) fds tasks resident)
  where
    settle 0 = pure ()
    settle n = do
      open <- readMVar (runOpen run)
      unless (open == 0) (threadDelay 20000 >> settle (n - 1))

shown :: Sample -> String
shown s =
  show (sampleLive s `div` 1024) <> " KB live, " <> show (sampleDescriptors s) <> " descriptors, " <> show (sampleTasks s)
    <> " OS threads, "
    <> show (sampleResident s)
    <> " KB resident"

-- | The first round starts what is needed; the last one must hold no more than the second. With six rounds and more, live memory must have come to
-- rest: what the last third always holds is no more than what the first one holds, after that round, and a tenth. (Cancelled timers stay in their
-- queues until there are four thousand of them, so it goes up and down by half a megabyte.)
judgeGrowth :: Run -> [Sample] -> IO ()
judgeGrowth run samples = case samples of
  _ : second : rest@(_ : _) -> do
    let final = last rest
        third = length samples `div` 3
        early = maximum (map sampleLive (take (third - 1) (second : rest)))
        late = minimum (map sampleLive (drop (length samples - third) samples))
    when (sampleDescriptors final > sampleDescriptors second + 2) (blame run ("descriptors grew: " <> shown second <> ", then " <> shown final))
    when (sampleLive final > sampleLive second * 3 `div` 2 + 1000000) (blame run ("memory grew: " <> shown second <> ", then " <> shown final))
    when (third >= 2 && late > early + early `div` 10 + 250000) (blame run ("memory keeps growing: " <> show early <> " bytes, then " <> show late))
    when (sampleTasks final > sampleTasks second + 8) (blame run ("OS threads grew: " <> shown second <> ", then " <> shown final))
  _ -> pure ()

-- | Upper bounds.
percentiles :: [Int] -> String
percentiles ts
  | total == 0 = "none"
  | otherwise = show total <> " round trips, half below " <> at 0.5 <> ", 99 % below " <> at 0.99 <> ", all below " <> at 1
  where
    total = sum ts
    at :: Double -> String
    at q = show (2 ^ length (takeWhile (< ceiling (q * fromIntegral total)) (scanl1 (+) ts)) `div` (1 :: Int)) <> " us"
