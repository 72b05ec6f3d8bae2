-- |
-- CUBIC (RFC 9438).
--
-- @since 0.1.0
module Weft.Tcp.Core.Congestion.Cubic (cubic, Cubic) where

import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Time

-- | The state of a connection, with the RFC's names, in segments and seconds.
data Cubic = Cubic
  { wMax :: !Double,
    -- | The time at which the current congestion avoidance stage began, later by the time that does not count; 'never'
    -- before it begins.
    epochStart :: !Instant,
    -- | The time of the last acknowledgment.
    heardAt :: !Instant,
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
      algorithmStart = Cubic 0 never never 0 0 0,
      onAcknowledged = grow,
      onLoss = reduce,
      onTimeout = \s w c -> (\c' -> c' {wMax = 0}) <$> reduce s w c
    }

-- | The constants C (section 5) and beta (section 4.6).
scaling, decrease :: Double
scaling = 0.4
decrease = 0.7

-- | Growth of the window (sections 4.2 to 4.5).
grow :: Sample -> Window -> Cubic -> (Window, Cubic)
grow s w0 c0
  | left <= 0 = (w, c0)
  | otherwise = (w {congestionWindow = max (congestionWindow w) (floor (next * mss))}, c {wEst = est})
  where
    (w, left) = slowStart s w0
    mss = fromIntegral (sampleMss s)
    cwnd = fromIntegral (congestionWindow w) / mss
    acked = fromIntegral left / mss
    c
      | epochStart c0 == never = begin (sampleNow s) cwnd c0
      | otherwise = c0 {epochStart = epochStart c0 `after` unlimited, heardAt = sampleNow s}
    -- Section 5.8: time in which the window did not limit the sender does not count. While it does, no round trip is
    -- without an acknowledgment, which may be delayed.
    unlimited = let silence = sampleNow s `since` heardAt c0 in if silence > 2 * sampleRtt s + millis 500 then silence else 0
    t = seconds (sampleNow s `since` epochStart c)
    rtt = seconds (sampleRtt s)
    at u = scaling * (u - timeToMax c) ^ (3 :: Int) + wMax c
    target = max cwnd (min (1.5 * cwnd) (at (t + rtt)))
    alpha = if wEst c >= cwndPrior c then 1 else 3 * (1 - decrease) / (1 + decrease)
    est = wEst c + alpha * acked / cwnd
    -- Section 4.3: if Reno's window would be larger, use it.
    next
      | at t < est = max cwnd est
      | otherwise = cwnd + (target - cwnd) / cwnd * acked
    seconds d = fromIntegral d / 1000000

begin :: Instant -> Double -> Cubic -> Cubic
begin at cwnd c
  | cwnd < wMax c = c {epochStart = at, heardAt = at, wEst = cwnd, timeToMax = ((wMax c - cwnd) / scaling) ** (1 / 3)}
  | otherwise = c {epochStart = at, heardAt = at, wEst = cwnd, timeToMax = 0, wMax = cwnd}

-- | Threshold after a loss (section 4.6), with fast convergence (section 4.7). After a timeout it is the same, but the
-- next stage of congestion avoidance begins with K = 0, and W_max is its first window (section 4.8): 'begin' does so if
-- W_max is 0.
reduce :: Sample -> Window -> Cubic -> (Int, Cubic)
reduce s w c = (halve decrease s, c {epochStart = never, wMax = top, cwndPrior = cwnd})
  where
    cwnd = fromIntegral (congestionWindow w) / fromIntegral (sampleMss s)
    top = if cwnd < wMax c then cwnd * (1 + decrease) / 2 else cwnd
