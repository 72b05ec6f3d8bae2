-- |
-- Rate limits: a sustained rate per second and a burst (the generic cell rate algorithm, ITU-T I.371);
-- and limits on how long the server waits for a client. Pure; time is passed in.
--
-- @since 0.1.0
module Weft.Http2.Budget
  ( Rate (..),
    Budget,
    fullBudget,
    spend,
    earn,
    earnTime,
  )
where

import Data.Int (Int64)
import Weft.Core.Time (Duration (..), Instant (..))

-- | A rate per second, and a burst that is allowed after a quiet time.
data Rate = Rate
  { rateSecond :: !Int,
    rateBurst :: !Int
  }
  deriving (Eq, Show)

-- | The time at which the next event would be due if all came evenly.
newtype Budget = Budget Int64
  deriving (Eq, Show)

-- | A budget that allows a full burst now.
fullBudget :: Budget
fullBudget = Budget minBound

-- | Record an event at that time; 'Nothing' if it exceeds the rate.
spend :: Rate -> Instant -> Budget -> Maybe Budget
spend rate (Instant t) (Budget due)
  | next - t > interval rate * fromIntegral (max 1 (rateBurst rate)) = Nothing
  | otherwise = Just (Budget next)
  where
    next = max t due + interval rate

-- | Allow this many more events, but never more than the burst.
earn :: Rate -> Int -> Budget -> Budget
earn rate n (Budget due)
  | due < minBound + gain = Budget minBound
  | otherwise = Budget (due - gain)
  where
    gain = interval rate * fromIntegral n

-- | How long the server still waits for a client, in nanoseconds, after more bytes were transferred. Arguments: the
-- initial time, the rate in bytes a second, the number of bytes, and the time that was left before. The bytes add the
-- time that they take at the rate. A client cannot save up more than the initial time and the time of 65,535 bytes.
earnTime :: Duration -> Int -> Int -> Int64 -> Int64
earnTime (Duration wait) rate n left = max left (min (wait `plus` timeOf 65535) (left `plus` timeOf n))
  where
    -- Saturates, so that a limit of 'maxBound' stays one.
    plus a b = if a > maxBound - b then maxBound else a + b
    timeOf :: Int -> Int64
    timeOf bytes = (fromIntegral bytes * 1000000000) `div` fromIntegral (max 1 rate)

interval :: Rate -> Int64
interval rate = 1000000000 `div` fromIntegral (max 1 (rateSecond rate))
