-- |
-- Counts of durations by powers of two, in words that are allocated once: an observation is a count of leading
-- zeros and two additions, and allocates nothing. Each manager has histograms of its own.
--
-- Any thread may read. 'observe' is for the thread that runs the manager, 'observeShared' for any thread; a histogram
-- belongs either to the one or to the other.
module Weft.Core.Histogram
  ( Histogram,
    newHistogram,
    observe,
    observeShared,
    HistogramCounts (..),
    readHistogram,
    noCounts,
    addCounts,
    countsTotal,
    bucketBounds,
  )
where

import Data.Bits (countLeadingZeros, finiteBitSize)
import Data.Int (Int64)
import Weft.Core.Time (Duration (..))
import Weft.Sys

-- | The words, on cache lines of their own: the buckets, and the sum of what was observed.
newtype Histogram = Histogram WordArray

firstPower, lastPower, bucketCount :: Int
firstPower = 10
lastPower = 34
bucketCount = lastPower - firstPower + 2

-- | All zero.
newHistogram :: IO Histogram
newHistogram = Histogram <$> newStatistics (bucketCount + 1)

-- | The upper ends of all buckets but the last, which has none: 2^10 ns (a microsecond), 2^11 ns, and so on up to
-- 2^34 ns (17 s). A duration that equals an end is below it.
bucketBounds :: [Duration]
bucketBounds = [Duration (2 ^ k) | k <- [firstPower .. lastPower]]

-- | The bucket of a duration in nanoseconds.
bucketOf :: Int64 -> Int
bucketOf ns
  | ns <= 2 ^ firstPower = 0
  | otherwise = min (bucketCount - 1) (finiteBitSize ns - countLeadingZeros (ns - 1) - firstPower)
{-# INLINE bucketOf #-}

-- | Count a duration; only for the thread that runs the manager.
observe :: Histogram -> Duration -> IO ()
observe (Histogram w) (Duration ns) = do
  bumpWord w (bucketOf ns) 1
  bumpWord w bucketCount (fromIntegral ns)
{-# INLINE observe #-}

-- | Count a duration, from any thread.
observeShared :: Histogram -> Duration -> IO ()
observeShared (Histogram w) (Duration ns) = do
  _ <- addWord w (bucketOf ns) 1
  () <$ addWord w bucketCount (fromIntegral ns)

-- | The contents of a histogram.
data HistogramCounts = HistogramCounts
  { -- | The number of durations in each bucket (not cumulative). One element more than 'bucketBounds'.
    countsBuckets :: [Int],
    countsSum :: !Duration
  }
  deriving (Eq, Show)

-- | The present counts.
readHistogram :: Histogram -> IO HistogramCounts
readHistogram (Histogram w) =
  HistogramCounts <$> mapM (peekWord w) [0 .. bucketCount - 1] <*> (Duration . fromIntegral <$> peekWord w bucketCount)

-- | The counts of an empty histogram.
noCounts :: HistogramCounts
noCounts = HistogramCounts (replicate bucketCount 0) mempty

-- | The sum of two histograms' counts.
addCounts :: HistogramCounts -> HistogramCounts -> HistogramCounts
addCounts (HistogramCounts a s) (HistogramCounts b t) = HistogramCounts (zipWith (+) a b) (s <> t)

-- | The number of observed durations.
countsTotal :: HistogramCounts -> Int
countsTotal = sum . countsBuckets
