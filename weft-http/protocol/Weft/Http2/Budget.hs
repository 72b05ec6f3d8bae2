-- |
-- How often something may happen: so many times a second in the long run, so many at once (the generic cell rate algorithm, ITU-T I.371);
-- and how long a client may be waited for. Pure; time is passed in.
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

-- | So many a second, and so many at once after a quiet time.
data Rate = Rate
  { rateSecond :: !Int,
    rateBurst :: !Int
  }
  deriving (Eq, Show)

-- | When the next would be due if all came evenly.
newtype Budget = Budget Int64
  deriving (Eq, Show)

-- | All that may come at once may come now.
fullBudget :: Budget
fullBudget = Budget minBound

-- | Let one happen at that time; 'Nothing' if it is one too many.
spend :: Rate -> Instant -> Budget -> Maybe Budget
spend rate (Instant t) (Budget due)
  | next - t > interval rate * fromIntegral (max 1 (rateBurst rate)) = Nothing
  | otherwise = Just (Budget next)
  where
    next = max t due + interval rate

-- | Allow so many more, though never more than the burst.
earn :: Rate -> Int -> Budget -> Budget
earn rate n (Budget due)
  | due < minBound + gain = Budget minBound
  | otherwise = Budget (due - gain)
  where
    gain = interval rate * fromIntegral n

-- | How many nanoseconds a client may be waited for when so many bytes more have moved, from those before: a wait to begin with, and
-- the bytes' time at a rate in bytes a second. No more is saved than that wait and the time of 65,535 bytes.
earnTime :: Duration -> Int -> Int -> Int64 -> Int64
earnTime (Duration wait) rate n left = max left (min (wait `plus` timeOf 65535) (left `plus` timeOf n))
  where
    -- A wait without a limit is the longest.
    plus a b = if a > maxBound - b then maxBound else a + b
    timeOf :: Int -> Int64
    timeOf bytes = (fromIntegral bytes * 1000000000) `div` fromIntegral (max 1 rate)

interval :: Rate -> Int64
interval rate = 1000000000 `div` fromIntegral (max 1 (rateSecond rate))
