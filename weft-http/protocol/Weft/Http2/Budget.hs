-- |
-- How often something may happen: so many times a second in the long run, so many at once. Pure; time is passed in.
-- (The generic cell rate algorithm, ITU-T I.371.)
--
-- @since 0.1.0
module Weft.Http2.Budget
  ( Rate (..),
    Budget,
    fullBudget,
    spend,
    earn,
  )
where

import Data.Int (Int64)
import Weft.Core.Time (Instant (..))

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

interval :: Rate -> Int64
interval rate = 1000000000 `div` fromIntegral (max 1 (rateSecond rate))
