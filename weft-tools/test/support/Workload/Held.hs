-- |
-- The resources that the process holds after each round of the workload (memory, descriptors, OS threads), and how the
-- round went: round-trip times, processor use, and the share of time in which the process could run.
module Workload.Held
  ( Sample,
    sampled,
    shown,
    judgeGrowth,
  )
where

import Control.Concurrent
import Control.Monad
import Data.IORef
import GHC.Clock (getMonotonicTime)
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import Numeric (showFFloat)
import System.Directory
import System.Mem (performMajorGC)
import Workload.Connections (open)
import Workload.OwnTime
import Workload.Run

-- | The resources at one time, and how the round before it went.
data Sample = Sample
  { sampleLive, sampleDescriptors, sampleTasks, sampleResident :: Int,
    sampleTrips :: [Int],
    -- | Cores used; the share of time in which the process could run, from 0 to 1; the longest delay of a sleep, in
    -- seconds.
    sampleCores, sampleRan, sampleDelay :: Double
  }

-- | Run a round, and measure once its connections have ended.
sampled :: Run -> IO () -> IO Sample
sampled run act = do
  writeIORef (runTrips run) (replicate 32 0)
  _ <- longestDelay
  [begin, own, used] <- sequence [getMonotonicTime, ownTime, processorTime]
  act
  [end, own', used'] <- sequence [getMonotonicTime, ownTime, processorTime]
  delay <- longestDelay
  trips <- readIORef (runTrips run)
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
      per x = x / max 0.001 (end - begin)
  pure (Sample (fromIntegral (gcdetails_live_bytes (gc stats))) fds tasks resident trips (per (used' - used)) (min 1 (per (own' - own))) delay)
  where
    settle 0 = pure ()
    settle n = do
      n' <- open (runConnections run)
      unless (n' == 0) (threadDelay 20000 >> settle (n - 1))

shown :: Sample -> String
shown s =
  show (sampleLive s `div` 1024) <> " KB live, " <> show (sampleDescriptors s) <> " descriptors, " <> show (sampleTasks s)
    <> " OS threads, "
    <> show (sampleResident s)
    <> " KB resident; echo "
    <> percentiles (sampleTrips s)
    <> "; "
    <> showFFloat (Just 2) (sampleCores s) " cores used; could run "
    <> show (round (100 * sampleRan s) :: Int)
    <> " % of the time, longest delay "
    <> show (round (1000 * sampleDelay s) :: Int)
    <> " ms"

-- | The first round starts what is needed; the last round must hold no more than the second. With six or more rounds,
-- live memory must stabilise: the least in the last third may exceed the most in the first third, without the first
-- round, by at most a tenth and 250 KB. (Cancelled timers stay in their queues until there are four thousand of them,
-- so memory varies by half a megabyte.)
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
    -- Latency is judged only by rounds in which the process could run most of the time.
    let median = typical . sampleTrips
        slow = [median x | x <- drop (length samples - third) samples, sampleRan x >= 0.9]
        quick = [median x | x <- take third (second : rest), sampleRan x >= 0.9]
    when (length slow >= 2 && length quick >= 2 && minimum slow > maximum quick + 2) $
      blame run ("round trips keep getting longer: half of them below " <> show (2 ^ maximum quick :: Int) <> " us, then below " <> show (2 ^ minimum slow :: Int))
    when (sampleTasks final > sampleTasks second + 8) (blame run ("OS threads grew: " <> shown second <> ", then " <> shown final))
  _ -> pure ()

-- | Percentiles of the round-trip times, as upper bounds.
percentiles :: [Int] -> String
percentiles ts
  | total == 0 = "none"
  | otherwise = show total <> " round trips, half below " <> at 0.5 <> ", 99 % below " <> at 0.99 <> ", all below " <> at 1
  where
    total = sum ts
    at q = show (2 ^ quantile q ts :: Int) <> " us"

-- | The exponent of the power of two, in microseconds, below which the given share of the round trips lies.
quantile :: Double -> [Int] -> Int
quantile q ts = length (takeWhile (< ceiling (q * fromIntegral (sum ts))) (scanl1 (+) ts))

-- | The median of the round trips, as an exponent of two in microseconds.
typical :: [Int] -> Int
typical = quantile 0.5
