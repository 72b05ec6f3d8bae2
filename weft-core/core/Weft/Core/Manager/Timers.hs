-- | Timers of a manager: three ways to set one. 'addTimer' is for any thread. 'addOptionalTimer' is for a timer that
-- may not be needed any more when the manager is stopped. 'addOwnTimer' is for the manager's own runner, and the
-- cheapest. "Weft.Core.Timer" cancels a timer, "Weft.Core.Timers" keeps those of a manager. No function throws, except
-- for what 'wakeManager' throws.
module Weft.Core.Manager.Timers
  ( addTimer,
    addOptionalTimer,
    addOwnTimer,
    moveTimer,
    orphanTimers,
    managerPending,
  )
where

import Control.Monad (void, when)
import Weft.Core.Counters
import Weft.Core.Manager.Lifecycle
import Weft.Core.Time (Instant (..))
import Weft.Core.Timer
import Weft.Core.Timers
import Weft.Core.Wake
import Weft.Sys

-- | Run an action on the runner at an instant, or as soon as possible after it, never before. The action must not
-- block. Costs one compare-and-swap, and a signal only if the runner would sleep past the instant. 'cancelTimer'
-- cancels it. If the manager is stopped before, the function of 'newManager' gets the timer.
addTimer :: Manager -> Instant -> IO () -> IO Timer
addTimer m due act = newTimer (managerTimerOwner m) due act >>= set m

-- | 'addTimer' for a timer that may not be needed any more when the manager is stopped: the action is run then too, and
-- returns whether another manager is to have the timer.
addOptionalTimer :: Manager -> Instant -> (Expiry -> IO Bool) -> IO Timer
addOptionalTimer m due act = newOptionalTimer (managerTimerOwner m) due act >>= set m

-- | Take over a pending timer of a manager that was stopped. No effect if it was cancelled.
moveTimer :: Manager -> Timer -> IO ()
moveTimer m t = mask_ (adoptTimer (managerTimerOwner m) t >>= \pending -> when pending (void (set m t)))

set :: Manager -> Timer -> IO Timer
set m t = mask_ $ do
  full <- setTimer (managerTimers m) t
  countShared (managerCounters m) TimersSet
  t <$ settled m full (timerDue t)
{-# INLINE set #-}

-- | 'addTimer' for the runner only: it puts the timer directly into the queue, without atomic instructions.
addOwnTimer :: Manager -> Instant -> IO () -> IO Timer
addOwnTimer m due act = newTimer (managerTimerOwner m) due act >>= \t -> t <$ enterTimer (managerTimers m) t
{-# INLINE addOwnTimer #-}

-- | For the runner: do with all pending timers what happens when the manager is stopped. O(timers).
orphanTimers :: Manager -> IO ()
orphanTimers = orphanAll . managerTimers

-- | To be called after a timer was pushed, masked from there on. The runner of a stopping manager empties the inbox
-- after it has changed the state. A thread that pushes later sees the state, and does the runner's work
-- ('orphanTimer').
settled :: Manager -> Bool -> Instant -> IO ()
settled m full due = do
  state <- readState m
  if state <= stateRunning
    then prod m full due
    else takeInbox (managerTimers m) >>= mapM_ orphanTimer
{-# INLINE settled #-}

prod :: Manager -> Bool -> Instant -> IO ()
prod m True _ = wakeManager m
prod m False due@(Instant t) = do
  needed <- notifyBefore (managerWake m) due
  when needed (writeWord (managerHint m) 0 (max 1 (fromIntegral t)))
  signalIf m needed
{-# INLINE prod #-}

-- | The number of pending timers. Any thread may call this.
managerPending :: Manager -> IO Int
managerPending = pendingTimers . managerTimers
