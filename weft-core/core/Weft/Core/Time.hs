-- |
-- Points and spans of time, in nanoseconds, with arithmetic that clamps instead
-- of wrapping round. Pure: nothing here reads a clock.
module Weft.Core.Time
  ( -- * Durations
    Duration (..),
    nanoseconds,
    microseconds,
    milliseconds,
    seconds,
    toSeconds,

    -- * Instants
    Instant (..),
    never,
    after,
    until,
  )
where

import Data.Int (Int64)
import Prelude hiding (until)

-- | A span of time in nanoseconds. The longest, 'maxBound', is 292 years, and
-- means for ever. Waiting for a negative one returns at once.
newtype Duration = Duration {durationNs :: Int64}
  deriving (Eq, Ord, Bounded)

instance Show Duration where
  showsPrec d t = showParen (d > 10) (showString "seconds " . showsPrec 11 (toSeconds t))

-- | Sums clamp at 'minBound' and 'maxBound'.
instance Semigroup Duration where
  Duration a <> Duration b = Duration (clampedAdd a b)

instance Monoid Duration where
  mempty = Duration 0

-- | A duration in nanoseconds.
nanoseconds :: Int -> Duration
nanoseconds = Duration . fromIntegral

-- | A duration in microseconds, clamped.
microseconds :: Int -> Duration
microseconds = scaled 1000

-- | A duration in milliseconds, clamped.
milliseconds :: Int -> Duration
milliseconds = scaled 1000000

-- | A duration in seconds, clamped. @seconds 0.25@ is a quarter of a second; NaN counts as
-- zero.
seconds :: Double -> Duration
seconds s
  | isNaN s = mempty
  | ns >= 9.2e18 = maxBound
  | ns <= -9.2e18 = minBound
  | otherwise = Duration (round ns)
  where
    ns = s * 1e9

-- | The number of seconds in a duration.
toSeconds :: Duration -> Double
toSeconds (Duration ns) = fromIntegral ns / 1e9

scaled :: Int64 -> Int -> Duration
scaled unit n
  | n' > maxBound `div` unit = maxBound
  | n' < minBound `div` unit = minBound
  | otherwise = Duration (n' * unit)
  where
    n' = fromIntegral n
{-# INLINE scaled #-}

-- | A reading of the monotonic clock, in nanoseconds since an origin that is
-- fixed for the life of the process.
newtype Instant = Instant {instantNs :: Int64}
  deriving (Eq, Ord)

instance Show Instant where
  show (Instant ns) = show (fromIntegral ns / 1e9 :: Double) <> " s"

-- | An instant later than all others. As a deadline it means that there is none.
never :: Instant
never = Instant maxBound

-- | The instant that is the given duration after another; 'never' if it cannot be represented.
after :: Duration -> Instant -> Instant
after (Duration d) (Instant t) = Instant (clampedAdd d t)
{-# INLINE after #-}

-- | @until deadline t@ is the time from @t@ to the deadline; negative if
-- the deadline has passed.
until :: Instant -> Instant -> Duration
until (Instant deadline) (Instant t) = Duration (clampedAdd deadline (negate t))
{-# INLINE until #-}

clampedAdd :: Int64 -> Int64 -> Int64
clampedAdd a b
  | b >= 0 = if a > maxBound - b then maxBound else a + b
  | otherwise = if a < minBound - b then minBound else a + b
{-# INLINE clampedAdd #-}
