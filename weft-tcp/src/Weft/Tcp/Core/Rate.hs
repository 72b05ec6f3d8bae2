-- |
-- Limits on rates: of the answers of a connection to segments that may be forged, and of those of a stack to strangers.
-- Each is a token bucket whose state is one instant (the generic cell rate algorithm). Pure.
--
-- @since 0.1.0
module Weft.Tcp.Core.Rate
  ( Rate (..),
    perSecond,
    spend,
    isUnspent,
  )
where

import Weft.Tcp.Core.Time

-- | A greatest rate.
data Rate = Rate
  { -- | The number that is allowed at once after a long time with none; 0 allows none ever.
    rateAtOnce :: !Int,
    -- | The time in which one more is allowed.
    rateInterval :: !Micros
  }

-- | The given number a second, to the microsecond, of which so many may come at once.
perSecond :: Int -> Int -> Rate
perSecond atOnce n = Rate atOnce (Micros (1000000 `div` max 1 n))

-- | Count one, if the rate allows it. The state is the time at which the next one would be due if all came at the
-- greatest rate; 'longAgo' at first.
spend :: Rate -> Instant -> Instant -> Maybe Instant
spend r t due
  | due' <= t = Just (due' `after` rateInterval r)
  | otherwise = Nothing
  where
    due' = max due (unspentAt r t)

-- | Whether a state is as good as 'longAgo'.
isUnspent :: Rate -> Instant -> Instant -> Bool
isUnspent r t due = due <= unspentAt r t

-- | The latest state, at a time, that allows as many as any.
unspentAt :: Rate -> Instant -> Instant
unspentAt r t = t `after` (fromIntegral (1 - rateAtOnce r) * rateInterval r)
