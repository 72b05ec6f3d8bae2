-- |
-- What the managers of a program have done: read at any time, from any thread,
-- without stopping anything. Figures of one reading may differ by the events of
-- the microsecond it took.
--
-- @since 0.1.0
module Weft.Metrics
  ( Metrics (..),
    CapabilityMetrics (..),
    readMetrics,
    total,

    -- * Histograms
    HistogramCounts (..),
    bucketBounds,
    countsTotal,
    addCounts,
    noCounts,
  )
where

import Data.List (foldl')
import System.Posix.Types (Fd)
import Weft.Core.Backend (backendName)
import Weft.Core.Counters
import Weft.Core.Heartbeat (longestCallback)
import Weft.Core.Histogram
import Weft.Core.Latency (latencyHistogram)
import Weft.Core.Manager
import Weft.Core.Registry (registeredCount)
import Weft.Core.Time (Duration)
import Weft.Runtime.Managers

-- | Counters of the whole program.
data Metrics = Metrics
  { -- | By capability; only those on which something has waited yet.
    metricsCapabilities :: [CapabilityMetrics],
    -- | Descriptors that are registered now.
    metricsRegistered :: !Int
  }
  deriving (Eq, Show)

-- | Counters of one capability's manager, since it was started.
data CapabilityMetrics = CapabilityMetrics
  { metricsCapability :: !Int,
    metricsBackend :: !String,
    -- | Times a thread waited for a descriptor.
    metricsWaits :: !Int,
    -- | System calls made to wake the dispatcher.
    metricsWakeupsSent :: !Int,
    -- | Times such a call was not needed.
    metricsWakeupsSaved :: !Int,
    -- | Events handed to threads and callbacks.
    metricsDispatched :: !Int,
    -- | Polls that found nothing.
    metricsPollsEmpty :: !Int,
    -- | Polls that found something.
    metricsPollsFull :: !Int,
    -- | Times the dispatcher blocked in the kernel.
    metricsSleeps :: !Int,
    metricsTimersSet :: !Int,
    metricsTimersFired :: !Int,
    metricsTimersCancelled :: !Int,
    -- | Descriptors whose events it reports now.
    metricsDescriptors :: !Int,
    -- | Timers that are pending now.
    metricsTimersPending :: !Int,
    -- | From the moment at which the dispatcher learns of an event to that at which the thread that waited for it runs, by
    -- "Weft.Socket" or "Weft.Thread". Measured for the events of one batch in 64.
    metricsWakeLatency :: !HistogramCounts,
    -- | From the instant at which a timer was due to the beginning of the round in which it was fired. Of all timers.
    metricsTimerLateness :: !HistogramCounts,
    -- | The longest time that the callbacks of one descriptor, or the timers of one turn, took while there was a watchdog
    -- ("Weft.Watchdog"), and which descriptor it was; 'Nothing' for timers.
    metricsLongestCallback :: !(Duration, Maybe Fd)
  }
  deriving (Eq, Show)

-- | The present figures.
readMetrics :: IO Metrics
readMetrics = do
  ms <- managers
  Metrics <$> mapM ofManager ms <*> (registeredCount =<< currentRegistry)

ofManager :: Manager -> IO CapabilityMetrics
ofManager m =
  CapabilityMetrics (managerIndex m) (backendName (managerBackend m))
    <$> get Waits
    <*> get WakeupsSent
    <*> get WakeupsSaved
    <*> get Dispatched
    <*> get PollsEmpty
    <*> get PollsFull
    <*> get Sleeps
    <*> get TimersSet
    <*> get TimersFired
    <*> get TimersCancelled
    <*> get Descriptors
    <*> managerPending m
    <*> readHistogram (latencyHistogram (managerLatency m))
    <*> readHistogram (managerLateness m)
    <*> longestCallback (managerHeartbeat m)
  where
    get = readCounter (managerCounters m)

-- | One figure, added over all capabilities.
total :: (CapabilityMetrics -> Int) -> Metrics -> Int
total f = foldl' (\n c -> n + f c) 0 . metricsCapabilities
