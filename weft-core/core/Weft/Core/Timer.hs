-- |
-- One timer, and the operations of a queue of timers. A timer fires once or is
-- cancelled, never both: firing and cancelling take the action out of the timer's reference by an atomic swap, and the
-- first one gets it. When its manager is stopped it moves to another one, and stays the same timer.
module Weft.Core.Timer
  ( -- * Timers
    Timer,
    TimerOwner (..),
    Expiry (..),
    newTimer,
    newOptionalTimer,
    timerDue,
    isPending,
    fireTimer,
    orphanTimer,
    adoptTimer,
    cancelTimer,
    defuseTimer,

    -- * Queues
    Queue (..),
  )
where

import Control.Monad (void)
import Weft.Core.Boundary (guarded)
import Weft.Core.Time (Instant)
import Weft.Sys

-- | A timer. The reference holds its action until it has fired or
-- was cancelled; written by the thread that fires, moves or cancels it. Eleven words, with its entry
-- in a queue.
data Timer = Timer !Instant !(Ref TimerState)

-- | Whether they are the same timer.
instance Eq Timer where
  Timer _ a == Timer _ b = a == b

-- | @
--   Pending, Optional   -> the same with another owner ('adoptTimer'), Spent ('fireTimer', 'cancelTimer')
--   Spent               for good
-- @
data TimerState
  = -- | It has fired or was cancelled.
    Spent
  | -- | The thread that runs the manager runs the action when the timer is due. The action must not block.
    Pending !TimerOwner (IO ())
  | -- | 'Pending', and the action is also run when the manager is stopped. It returns whether the timer is still needed.
    Optional !TimerOwner (Expiry -> IO Bool)

-- | Why the action of an optional timer runs.
data Expiry
  = -- | It is due. The action's result is ignored.
    Due
  | -- | Its manager was stopped before it was due.
    Orphaned

-- | A manager as its timers see it. All timers of a manager share one value.
data TimerOwner = TimerOwner
  { -- | To be called with each timer that was cancelled.
    ownerCancelled :: !(Timer -> IO ()),
    -- | To be called with each timer that was pending when the manager was stopped.
    ownerOrphaned :: !(Timer -> IO ())
  }

-- | A timer that is in no queue yet.
newTimer :: TimerOwner -> Instant -> IO () -> IO Timer
newTimer owner due act = Timer due <$> (newRef $! Pending owner act)
{-# INLINE newTimer #-}

-- | A timer that may not be needed any more when its manager is stopped: its action decides.
newOptionalTimer :: TimerOwner -> Instant -> (Expiry -> IO Bool) -> IO Timer
newOptionalTimer owner due act = Timer due <$> (newRef $! Optional owner act)
{-# INLINE newOptionalTimer #-}

-- | The instant at which it is due.
timerDue :: Timer -> Instant
timerDue (Timer due _) = due

-- | Whether it has neither fired nor been cancelled.
isPending :: Timer -> IO Bool
isPending (Timer _ ref) = waits <$> readRef ref
  where
    waits Spent = False
    waits _ = True

-- | Run the action. 'False' if it was cancelled, or has run already.
fireTimer :: Timer -> IO Bool
fireTimer (Timer _ ref) = do
  state <- swapRef ref Spent
  case state of
    Spent -> pure False
    Pending _ act -> True <$ guarded act
    Optional _ act -> True <$ guarded (void (act Due))

-- | Tell the owner that the timer is in no queue any more ('ownerOrphaned'). 'False' if it was cancelled, or has fired.
orphanTimer :: Timer -> IO Bool
orphanTimer t@(Timer _ ref) = do
  state <- readRef ref
  case state of
    Spent -> pure False
    Pending owner _ -> True <$ guarded (ownerOrphaned owner t)
    Optional owner act -> True <$ guarded (act Orphaned >>= \needed -> if needed then ownerOrphaned owner t else writeRef ref Spent)

-- | Give a timer that is in no queue another owner, which then puts it into a queue. 'False' if it was cancelled.
adoptTimer :: TimerOwner -> Timer -> IO Bool
adoptTimer owner t@(Timer _ ref) = do
  state <- readRef ref
  case state of
    Spent -> pure False
    Pending _ act -> become state (Pending owner act)
    Optional _ act -> become state (Optional owner act)
  where
    become old new = do
      done <- casRef ref old new
      if done then pure True else adoptTimer owner t

-- | Cancel a timer. Any thread may call this. 'True' if it had not fired; it never will then.
-- Masked, so that each timer that is cancelled is counted.
cancelTimer :: Timer -> IO Bool
cancelTimer t = mask_ (defuseTimer t (pure False) (\owner -> True <$ ownerCancelled owner t))

-- | Cancel a timer without telling the owner: run the last argument with the owner, or the one before it if the timer
-- had fired or was cancelled.
defuseTimer :: Timer -> IO a -> (TimerOwner -> IO a) -> IO a
defuseTimer (Timer _ ref) spent cancelled = do
  state <- swapRef ref Spent
  case state of
    Spent -> spent
    Pending owner _ -> cancelled owner
    Optional owner _ -> cancelled owner
{-# INLINE defuseTimer #-}

-- | A queue of timers, used by one thread. Cancelled timers may stay in it until
-- they are due or swept out.
--
-- Laws: a timer comes out of 'queueExpire' once. No call with an instant before
-- its due time takes it out, and the first call with an instant that is later than its
-- due time by the queue's resolution or more does. 'queueNext' is not later than
-- the earliest due time by more than the resolution.
data Queue = Queue
  { queueInsert :: !(Timer -> IO ()),
    -- | Take out all timers that are due at an instant, and give each to the function.
    queueExpire :: !(Instant -> (Timer -> IO ()) -> IO ()),
    -- | When to call 'queueExpire' next; @never@ when there is no need.
    queueNext :: !(IO Instant),
    -- | Keep only those that satisfy the predicate. O(timers).
    queueSweep :: !((Timer -> IO Bool) -> IO ()),
    -- | The number of timers in it, cancelled ones included.
    queueSize :: !(IO Int)
  }
