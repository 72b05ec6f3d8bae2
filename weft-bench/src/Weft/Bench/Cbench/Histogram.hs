-- |
-- Description : A histogram of times
--
-- A histogram whose buckets grow with the value: an eighth of a power of two wide, so a percentile is right within
-- 12 %. Recording costs a few instructions and allocates nothing. Used by one thread at a time.
module Weft.Bench.Cbench.Histogram
  ( Histogram,
    newHistogram,
    record,
    mergeInto,
    clear,
    percentile,
    largest,
    total,
  )
where

import Control.Monad (forM_)
import Control.Monad.Primitive (RealWorld)
import Data.Bits (countLeadingZeros, unsafeShiftL, unsafeShiftR, (.&.), (.|.))
import Data.Primitive.ByteArray

-- | Counts by bucket; the last cell is the largest value.
newtype Histogram = Histogram (MutableByteArray RealWorld)

-- | Powers of two up to 2^40, eight buckets each.
buckets :: Int
buckets = 41 * 8

-- | An empty histogram.
newHistogram :: IO Histogram
newHistogram = do
  cells <- newByteArray ((buckets + 1) * 8)
  setByteArray cells 0 (buckets + 1) (0 :: Int)
  pure (Histogram cells)

-- | Count a value the given number of times.
record :: Histogram -> Int -> Int -> IO ()
record (Histogram cells) value times = do
  n <- readByteArray cells i
  writeByteArray cells i (n + times :: Int)
  most <- readByteArray cells buckets
  if value > most then writeByteArray cells buckets value else pure ()
  where
    i = bucketOf value
{-# INLINE record #-}

bucketOf :: Int -> Int
bucketOf value
  | value < 8 = max 0 value
  | otherwise = min (buckets - 1) (((e - 2) `unsafeShiftL` 3) .|. ((value `unsafeShiftR` (e - 3)) .&. 7))
  where
    e = 63 - countLeadingZeros value

-- | The middle of a bucket.
valueOf :: Int -> Int
valueOf i
  | i < 8 = i
  | otherwise = ((8 .|. (i .&. 7)) `unsafeShiftL` (e - 3)) + (1 `unsafeShiftL` (e - 3)) `div` 2
  where
    e = (i `unsafeShiftR` 3) + 2

-- | Add the second one's counts to the first one's.
mergeInto :: Histogram -> Histogram -> IO ()
mergeInto (Histogram to) (Histogram from) = do
  forM_ [0 .. buckets - 1] $ \i -> do
    a <- readByteArray to i
    b <- readByteArray from i
    writeByteArray to i (a + b :: Int)
  a <- readByteArray to buckets
  b <- readByteArray from buckets
  writeByteArray to buckets (max a b :: Int)

-- | Clear the histogram.
clear :: Histogram -> IO ()
clear (Histogram cells) = setByteArray cells 0 (buckets + 1) (0 :: Int)

-- | The number of values.
total :: Histogram -> IO Int
total (Histogram cells) = sum <$> mapM (readByteArray cells) [0 .. buckets - 1]

-- | The value that the given part (0 to 1) of all values does not exceed; 0 if there are none.
percentile :: Histogram -> Double -> IO Int
percentile h@(Histogram cells) part = do
  n <- total h
  let wanted = max 1 (ceiling (part * fromIntegral n)) :: Int
      go i seen
        | i >= buckets = largest h
        | otherwise = do
          here <- readByteArray cells i
          if seen + here >= wanted then pure (valueOf i) else go (i + 1) (seen + here)
  if n == 0 then pure 0 else go 0 0

-- | The largest value.
largest :: Histogram -> IO Int
largest (Histogram cells) = readByteArray cells buckets
