-- |
-- Round-trip times and the retransmission timeout (RFC 6298).
--
-- @since 0.1.0
module Weft.Tcp.Core.Rtt
  ( initialRtt,
    measured,
    timeoutNow,
    backedOff,
    progressed,
  )
where

import Weft.Tcp.Core.Config
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | Before any measurement (2.1).
initialRtt :: Config -> Rtt
initialRtt cfg = Rtt 0 0 (initialRto cfg) 0 0

-- | Add a measurement (2.2, 2.3). The caller must not measure retransmitted data (Karn's algorithm, section 3).
measured :: Config -> Micros -> Rtt -> Rtt
measured cfg sample r
  | srtt r == 0 = update m (m `div` 2)
  | otherwise = update ((7 * srtt r + m) `div` 8) ((3 * rttvar r + abs (srtt r - m)) `div` 4)
  where
    m = max 1 sample
    update s v =
      r
        { srtt = max 1 s,
          rttvar = v,
          rto = max (minRto cfg) (min (maxRto cfg) (s + max (millis 1) (4 * v))),
          minRtt = if minRtt r == 0 then m else min m (minRtt r)
        }

-- | The timeout with backing off (5.5).
timeoutNow :: Config -> Rtt -> Micros
timeoutNow cfg r = min (maxRto cfg) (rto r * 2 ^ min 16 (backoff r))

-- | The retransmission timer expired: the timeout doubles, up to 'maxRto' (5.5).
backedOff :: Rtt -> Rtt
backedOff r = r {backoff = backoff r + 1}

-- | New data was acknowledged.
progressed :: Rtt -> Rtt
progressed r
  | backoff r == 0 = r
  | otherwise = r {backoff = 0}
