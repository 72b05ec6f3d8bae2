-- |
-- No production code depends on the measurements. On the simulated machine nothing is measured, so that a search has no schedules
-- that differ only in that.
module Weft.Core.Latency
  ( Latency,
    newLatency,
    stampEvent,
    endBatch,
    presentStamp,
    noteRunning,
  )
where

import Weft.Core.Events (Stamp, unstamped)

-- | Nothing.
data Latency = Latency

newLatency :: Applicative m => m Latency
newLatency = pure Latency

stampEvent, presentStamp :: Applicative m => Latency -> m Stamp
stampEvent Latency = pure unstamped
presentStamp Latency = pure unstamped

endBatch :: Applicative m => Latency -> m ()
endBatch Latency = pure ()

noteRunning :: Applicative m => Latency -> Stamp -> m ()
noteRunning Latency _ = pure ()
