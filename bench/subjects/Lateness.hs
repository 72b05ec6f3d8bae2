-- |
-- Description : How late delays are
--
-- Delays of 100 us to 10 ms, evenly spread, from a generator that starts the same way in every run, over this many
-- threads. How late one is: the monotonic clock after it, less the clock before it, less what was asked for.
-- Every lateness is kept, in one block of memory that no collection looks into.
module Main (main) where

import Clock (threadDelay)
import Control.Concurrent (forkIO, runInUnboundThread)
import Control.Monad (forM_)
import Countdown
import Data.Bits (shiftL, shiftR, xor)
import Data.Int (Int64)
import Data.Word (Word64)
import Foreign (Ptr, allocaArray, copyArray, mallocArray, peekElemOff, pokeElemOff)
import GHC.Clock (getMonotonicTimeNSec)
import Measure
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case map readMaybe given of
    [Just count, Just threads] | threads > 0 && count >= threads -> runInUnboundThread (lateness count threads)
    _ -> usage "COUNT THREADS"

lateness :: Int -> Int -> IO ()
lateness count threads = do
  samples <- mallocArray taken
  finished <- newCountdown threads
  spent <- spending $ do
    forM_ [0 .. threads - 1] $ \i ->
      forkIO (observe samples (i * each) ((i + 1) * each) (seed i) >> arrive finished)
    await finished
  sortSamples taken samples
  ranks <- mapM (at samples) [0.5, 0.95, 0.99, 1]
  early <- length . takeWhile (< 0) <$> mapM (peekElemOff samples) [0 .. min taken 1000 - 1]
  say $
    zip ["p50_us", "p95_us", "p99_us", "max_us"] ranks
      ++ [ ("early", fromIntegral early),
           ("delays", fromIntegral taken),
           ("wall_s", spentWall spent),
           ("cpu_s", spentCpu spent)
         ]
  hear
  where
    each = count `div` threads
    taken = each * threads
    seed i = 0x9e3779b97f4a7c15 * fromIntegral (i + 1)
    at samples share =
      (/ 1000) . fromIntegral <$> peekElemOff samples (max 1 (ceiling (share * fromIntegral taken :: Double)) - 1)

-- | Delays one after the other; their lateness, in nanoseconds, into this part of the block.
observe :: Ptr Int64 -> Int -> Int -> Word64 -> IO ()
observe samples from to = go from
  where
    go i state
      | i == to = pure ()
      | otherwise = do
        let next = step state
            asked = 100 + fromIntegral (next `shiftR` 33) `mod` 9901
        begun <- getMonotonicTimeNSec
        threadDelay asked
        ended <- getMonotonicTimeNSec
        pokeElemOff samples i (fromIntegral (ended - begun) - 1000 * fromIntegral asked)
        go (i + 1) next

-- | Marsaglia's xorshift generator of 64 bits.
step :: Word64 -> Word64
step x0 = x2 `xor` (x2 `shiftL` 17)
  where
    x1 = x0 `xor` (x0 `shiftL` 13)
    x2 = x1 `xor` (x1 `shiftR` 7)

-- | Sort upwards, by merging runs that double in length.
sortSamples :: Int -> Ptr Int64 -> IO ()
sortSamples count samples = allocaArray count $ \other -> passes 1 samples other
  where
    passes :: Int -> Ptr Int64 -> Ptr Int64 -> IO ()
    passes width from to
      | width >= count = if from == samples then pure () else copyArray samples from count
      | otherwise = do
        forM_ [0, 2 * width .. count - 1] $ \low ->
          merge from to low (min count (low + width)) (min count (low + 2 * width))
        passes (2 * width) to from

-- | Merge @[low, middle)@ and @[middle, high)@ of the first block into the second.
merge :: Ptr Int64 -> Ptr Int64 -> Int -> Int -> Int -> IO ()
merge from to low middle high = go low middle low
  where
    go i j k
      | k == high = pure ()
      | i == middle = takeRight
      | j == high = takeLeft
      | otherwise = do
        a <- peekElemOff from i
        b <- peekElemOff from j
        if a <= b then takeLeft else takeRight
      where
        takeLeft = peekElemOff from i >>= pokeElemOff to k >> go (i + 1) j (k + 1)
        takeRight = peekElemOff from j >>= pokeElemOff to k >> go i (j + 1) (k + 1)
