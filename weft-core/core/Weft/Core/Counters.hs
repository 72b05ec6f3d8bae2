-- |
-- The counters of an event manager. Each manager has words of its own, on cache lines of their own,
-- so counting never moves a cache line between cores. Any thread may read them at any time,
-- without stopping others.
module Weft.Core.Counters
  ( Counters,
    Counter (..),
    newCounters,
    count,
    countBy,
    countShared,
    countSharedBy,
    readCounter,
  )
where

import Weft.Sys

-- | The counters. All but 'Descriptors' only increase.
data Counter
  = -- | Times a thread waited for a descriptor.
    Waits
  | -- | Signals sent to a manager that slept.
    WakeupsSent
  | -- | Times a signal was not needed since the manager was awake, or would wake
    -- in time.
    WakeupsSaved
  | -- | Events handed to a tracked descriptor or a callback.
    Dispatched
  | -- | Polls that found nothing.
    PollsEmpty
  | -- | Polls that found something.
    PollsFull
  | -- | Times the manager blocked in the kernel.
    Sleeps
  | TimersSet
  | TimersFired
  | TimersCancelled
  | -- | Descriptors whose events the manager reports now.
    Descriptors
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | A word for each counter.
newtype Counters = Counters WordArray

-- | All zero.
newCounters :: IO Counters
newCounters = Counters <$> newStatistics (fromEnum (maxBound :: Counter) + 1)

-- | Count one; only for the thread that runs the manager.
count :: Counters -> Counter -> IO ()
count c k = countBy c k 1
{-# INLINE count #-}

-- | Count several; only for the thread that runs the manager.
countBy :: Counters -> Counter -> Int -> IO ()
countBy (Counters c) k = bumpWord c (fromEnum k)
{-# INLINE countBy #-}

-- | Count one, from any thread. For each counter either this or 'count' is used, not both.
countShared :: Counters -> Counter -> IO ()
countShared c k = countSharedBy c k 1
{-# INLINE countShared #-}

-- | Add a number, which may be negative, from any thread.
countSharedBy :: Counters -> Counter -> Int -> IO ()
countSharedBy (Counters c) k n = () <$ addWord c (fromEnum k) n
{-# INLINE countSharedBy #-}

-- | The present value. Any thread may read it.
readCounter :: Counters -> Counter -> IO Int
readCounter (Counters c) k = peekWord c (fromEnum k)
