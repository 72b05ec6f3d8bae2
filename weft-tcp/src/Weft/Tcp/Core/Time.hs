{-# LANGUAGE DerivingStrategies #-}
{-# LANGUAGE GeneralizedNewtypeDeriving #-}

-- |
-- Time and positions in the stream.
--
-- @since 0.1.0
module Weft.Tcp.Core.Time
  ( -- * Time
    Micros (..),
    millis,
    secs,
    Instant (..),
    never,
    longAgo,
    after,
    since,

    -- * Positions
    Pos,
    unwrap,
    wrap,
  )
where

import Data.Int (Int32)
import Data.Word (Word32)

-- | A duration in microseconds.
newtype Micros = Micros Int
  deriving newtype (Eq, Ord, Show, Num, Enum, Real, Integral)

-- | A duration of that many milliseconds (@millis@) or seconds (@secs@).
millis, secs :: Int -> Micros
millis n = Micros (n * 1000)
secs n = Micros (n * 1000000)

-- | Microseconds of a clock that never goes back. Its origin is arbitrary: the core
-- only compares instants, and is told what time it is.
newtype Instant = Instant Int
  deriving newtype (Eq, Ord, Show)

-- | Later than all other instants: a timer that is off.
never :: Instant
never = Instant maxBound

-- | Before all events, but far enough from the ends of an 'Int' to subtract.
longAgo :: Instant
longAgo = Instant (minBound `div` 4)

-- | That long after an instant.
after :: Instant -> Micros -> Instant
after (Instant t) (Micros d) = Instant (t + d)

-- | @t `since` s@: how long from @s@ to @t@.
since :: Instant -> Instant -> Micros
since (Instant t) (Instant s) = Micros (t - s)

-- | A sequence number that does not wrap around. The number on the wire is its low 32 bits. The core compares positions
-- by plain @<@; only 'unwrap' handles wraparound (RFC 9293, section 3.4).
type Pos = Int

-- | The position with the given number on the wire that is nearest to a known position. Correct for distances below
-- 2^31; windows are at most 2^30 (RFC 7323, section 2.2).
unwrap :: Pos -> Word32 -> Pos
unwrap near w = near + fromIntegral (fromIntegral (w - wrap near) :: Int32)
{-# INLINE unwrap #-}

-- | The 32-bit sequence number of a position: the position modulo 2^32.
wrap :: Pos -> Word32
wrap = fromIntegral
{-# INLINE wrap #-}
