-- |
-- Limits on how often something may happen: a rate a second in the long run, and a number at once (the generic cell rate algorithm, ITU-T I.371);
-- and on how long the server waits for a client. Pure; time is passed in.
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

-- | A number a second, and a number at once after a quiet time.
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

-- | Allow this many more, but never more than the burst.
earn :: Rate -> Int -> Budget -> Budget
earn rate n (Budget due)
  | due < minBound + gain = Budget minBound
  | otherwise = Budget (due - gain)
  where
    gain = interval rate * fromIntegral n

-- | The nanoseconds for which the server waits for a client after this many more bytes have moved, from those before: an initial wait, and
-- the bytes' time at a rate in bytes a second. A client cannot save up more than the initial wait and the time of 65,535 bytes.
earnTime :: Duration -> Int -> Int -> Int64 -> Int64
earnTime (Duration wait) rate n left = max left (min (wait `plus` timeOf 65535) (left `plus` timeOf n))
  where
    -- A wait without a limit is the longest.
    plus a b = if a > maxBound - b then maxBound else a + b
    timeOf :: Int -> Int64
    timeOf bytes = (fromIntegral bytes * 1000000000) `div` fromIntegral (max 1 rate)

interval :: Rate -> Int64
interval rate = 1000000000 `div` fromIntegral (max 1 (rateSecond rate))
