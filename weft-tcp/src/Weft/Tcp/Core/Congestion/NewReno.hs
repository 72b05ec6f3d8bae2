-- |
-- Reno's congestion avoidance (RFC 5681), for NewReno recovery (RFC 6582).
--
-- @since 0.1.0
module Weft.Tcp.Core.Congestion.NewReno (newReno) where

import Weft.Tcp.Core.Congestion

-- | Reno's congestion avoidance, under the name @newreno@: the window grows by one segment for each window of
-- acknowledged data, and is halved after a loss. The state is the number of bytes acknowledged since the window last
-- grew.
newReno :: Algorithm Int
newReno =
  Algorithm
    { algorithmName = "newreno",
      algorithmStart = 0,
      onAcknowledged = grow,
      onLoss = \s _ _ -> (halve 0.5 s, 0),
      onTimeout = \s _ _ -> (halve 0.5 s, 0)
    }

grow :: Sample -> Window -> Int -> (Window, Int)
grow s w0 counted
  | total >= congestionWindow w = (w {congestionWindow = congestionWindow w + sampleMss s}, total - congestionWindow w)
  | otherwise = (w, total)
  where
    (w, left) = slowStart s w0
    total = counted + left
