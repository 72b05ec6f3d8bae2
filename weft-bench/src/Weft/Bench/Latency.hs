-- |
-- Description : Histograms of latencies
--
-- Pure. A histogram of nanoseconds whose classes are narrower than 1 % of their values, so that millions of samples
-- take a few hundred entries, and percentiles have that precision. The largest sample is exact.
module Weft.Bench.Latency
  ( Latencies,
    none,
    record,
    recordTimes,
    recordMany,
    recordBetween,
    samples,
    largest,
    percentileOf,

    -- * Classes
    classOf,
    upperEnd,
  )
where

import Data.Bits (countLeadingZeros, finiteBitSize, shiftL, shiftR)
import qualified Data.IntMap.Strict as I
import Data.List (foldl')

-- | The number of samples in each class, and the largest sample.
data Latencies = Latencies !(I.IntMap Int) !Int
  deriving (Eq, Show)

instance Semigroup Latencies where
  Latencies a m <> Latencies b n = Latencies (I.unionWith (+) a b) (max m n)

instance Monoid Latencies where
  mempty = none

-- | An empty histogram.
none :: Latencies
none = Latencies I.empty 0

-- | Add a sample in nanoseconds; a negative one counts as zero. O(1) in the number of samples.
record :: Int -> Latencies -> Latencies
record = recordTimes 1

-- | Add a sample the given number of times.
recordTimes :: Int -> Int -> Latencies -> Latencies
recordTimes times ns latencies@(Latencies counts most)
  | times <= 0 = latencies
  | otherwise = Latencies (I.insertWith (+) (classOf sample) times counts) (max most sample)
  where
    sample = max 0 ns

-- | Add several samples.
recordMany :: [Int] -> Latencies -> Latencies
recordMany list latencies = foldl' (flip record) latencies list

-- | Add samples from one above zero to the given largest one, which are known by how many of them are larger than a
-- number. O(1) in the number of samples.
recordBetween :: Int -> (Int -> Int) -> Latencies -> Latencies
recordBetween most larger latencies = foldl' add latencies [1 .. classOf most]
  where
    add histogram c = recordTimes (larger (upperEnd (c - 1)) - larger (upperEnd c)) (min most (upperEnd c)) histogram

-- | The number of samples.
samples :: Latencies -> Int
samples (Latencies counts _) = sum counts

-- | The largest sample in nanoseconds; zero if there is none.
largest :: Latencies -> Int
largest (Latencies _ most) = most

-- | The percentile by nearest rank, in nanoseconds, rounded up to the end of its class: at least this many per cent of
-- the samples are not larger. The percentage is exact, since 99.9 / 100 as a 'Double' is above 0.999, so that of a
-- thousand samples it would be the largest.
percentileOf :: Rational -> Latencies -> Maybe Int
percentileOf percent latencies@(Latencies counts most)
  | total == 0 = Nothing
  | otherwise = Just (go 0 (I.toAscList counts))
  where
    total = samples latencies
    rank = max 1 (min total (ceiling (percent * fromIntegral total / 100)))
    go _ [] = most
    go before ((c, n) : others)
      | before + n >= rank = min most (upperEnd c)
      | otherwise = go (before + n) others

-- | The class of a sample: the sample itself below 128, then 128 classes for each power of two.
classOf :: Int -> Int
classOf ns
  | ns < 128 = ns
  | otherwise = (e + 1) * 128 + (ns `shiftR` e) - 128
  where
    e = finiteBitSize ns - 1 - countLeadingZeros ns - 7

-- | The largest sample of a class.
upperEnd :: Int -> Int
upperEnd c
  | c < 128 = c
  | otherwise = ((c `mod` 128 + 129) `shiftL` (c `div` 128 - 1)) - 1
