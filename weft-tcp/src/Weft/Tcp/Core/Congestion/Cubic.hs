-- |
-- CUBIC (RFC 9438).
--
-- @since 0.1.0
module Weft.Tcp.Core.Congestion.Cubic (cubic, Cubic) where

import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Time

-- | In the RFC's names, in segments and seconds.
data Cubic = Cubic
  { wMax :: !Double,
    -- | When the present congestion avoidance stage began; 'never' before it does.
    epochStart :: !Instant,
    -- | The window then.
    cwndEpoch :: !Double,
    timeToMax :: !Double,
    wEst :: !Double,
    -- | The window at the last loss.
    cwndPrior :: !Double
  }

-- | CUBIC (RFC 9438), under the name @cubic@.
cubic :: Algorithm Cubic
cubic =
  Algorithm
    { algorithmName = "cubic",
      algorithmStart = Cubic 0 never 0 0 0 0,
      onAcknowledged = grow,
      onLoss = reduce,
      onTimeout = reduce
    }

-- | Section 5: C, and beta of section 4.6.
scaling, decrease :: Double
scaling = 0.4
decrease = 0.7

-- | Sections 4.2 to 4.5.
grow :: Sample -> Window -> Cubic -> (Window, Cubic)
grow s w0 c0
  | left <= 0 = (w, c0)
  | otherwise = (w {congestionWindow = max (congestionWindow w) (floor (next * mss))}, c {wEst = est})
  where
    (w, left) = slowStart s w0
    mss = fromIntegral (sampleMss s)
    cwnd = fromIntegral (congestionWindow w) / mss
    acked = fromIntegral left / mss
    c = if epochStart c0 == never then begin (sampleNow s) cwnd c0 else c0
    t = seconds (sampleNow s `since` epochStart c)
    rtt = seconds (sampleRtt s)
    at u = scaling * (u - timeToMax c) ^ (3 :: Int) + wMax c
    target = max cwnd (min (1.5 * cwnd) (at (t + rtt)))
    alpha = if wEst c >= cwndPrior c then 1 else 3 * (1 - decrease) / (1 + decrease)
    est = wEst c + alpha * acked / cwnd
    -- Section 4.3: where Reno would be ahead, be as it.
    next
      | at t < est = max cwnd est
      | otherwise = cwnd + (target - cwnd) / cwnd * acked
    seconds d = fromIntegral d / 1000000

begin :: Instant -> Double -> Cubic -> Cubic
begin at cwnd c
  | cwnd < wMax c = c {epochStart = at, cwndEpoch = cwnd, wEst = cwnd, timeToMax = ((wMax c - cwnd) / scaling) ** (1 / 3)}
  | otherwise = c {epochStart = at, cwndEpoch = cwnd, wEst = cwnd, timeToMax = 0, wMax = cwnd}

-- | Section 4.6, and fast convergence (section 4.7).
reduce :: Sample -> Window -> Cubic -> (Int, Cubic)
reduce s w c = (halve decrease s, c {epochStart = never, wMax = top, cwndPrior = cwnd})
  where
    cwnd = fromIntegral (congestionWindow w) / fromIntegral (sampleMss s)
    top = if cwnd < wMax c then cwnd * (1 + decrease) / 2 else cwnd
