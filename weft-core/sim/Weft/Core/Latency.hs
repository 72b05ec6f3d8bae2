-- |
-- A replacement without effect. No production code depends on the measurements, and without them a search has no
-- schedules that differ only in measurements.
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

-- | A measurement without contents.
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
