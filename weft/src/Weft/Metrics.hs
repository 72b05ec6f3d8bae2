-- |
-- Counters of the program's managers. Any thread may read them at any time; reading stops
-- nothing, so the counters of one reading are not from exactly the same instant.
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
  { -- | One entry for each capability that has a manager: a manager starts when something first waits there.
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
    -- | The time from when the dispatcher receives an event to when the thread that waited for it (by "Weft.Socket" or
    -- "Weft.Thread") runs. Measured for the events of one batch in 64.
    metricsWakeLatency :: !HistogramCounts,
    -- | The time from when a timer is due to the beginning of the turn in which it is fired. Measured for all timers.
    metricsTimerLateness :: !HistogramCounts,
    -- | The longest time that the callbacks of one descriptor, or the timers of one turn, have taken, and the
    -- descriptor ('Nothing' for timers). Measured while the watchdog is on ("Weft.Watchdog").
    metricsLongestCallback :: !(Duration, Maybe Fd)
  }
  deriving (Eq, Show)

-- | Read the counters.
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

-- | One counter, added over all capabilities.
total :: (CapabilityMetrics -> Int) -> Metrics -> Int
total f = foldl' (\n c -> n + f c) 0 . metricsCapabilities
