-- |
-- One timer, and the operations of a queue of timers. A timer fires once or is
-- cancelled, never both: firing and cancelling take the action out of the timer's reference by an atomic swap, and the
-- first one gets it.
module Weft.Core.Timer
  ( -- * Timers
    Timer,
    Action,
    Expiry (..),
    TimerOwner (..),
    newTimer,
    newPlainTimer,
    timerDue,
    isPending,
    fireTimer,
    cancelTimer,
    defuseTimer,

    -- * Queues
    Queue (..),
  )
where

import Weft.Core.Time (Instant)
import Weft.Sys

-- | A timer. The reference holds its action until it has fired or
-- was cancelled; written by the thread that fires or cancels it. Eleven words, with its entry
-- in a queue.
data Timer = Timer !Instant !(Ref TimerState)

data TimerState
  = -- | It has fired or was cancelled.
    Spent
  | -- | The action runs when the timer is due. If its manager is stopped before, it is
    -- set again with another one ('ownerResettle').
    Plain !TimerOwner (IO ())
  | -- | The action runs in both cases, and gets the case as its argument.
    Aware !TimerOwner Action

-- | The action of a timer. The thread that runs the manager runs it; it must not block.
type Action = Expiry -> IO ()

-- | Why a timer's action runs.
data Expiry
  = -- | It is due.
    Due
  | -- | Its manager was stopped before it was due.
    Orphaned
  deriving (Eq, Show)

-- | A manager as its timers see it. All timers of a manager share one value.
data TimerOwner = TimerOwner
  { -- | To be called when one of its timers was cancelled.
    ownerCancelled :: !(IO ()),
    -- | To be called with a plain timer that was not due when the manager was stopped.
    ownerResettle :: !(Instant -> IO () -> IO ())
  }

-- | A timer that is in no queue yet.
newTimer :: TimerOwner -> Instant -> Action -> IO Timer
newTimer owner due act = Timer due <$> (newRef $! Aware owner act)
{-# INLINE newTimer #-}

-- | A timer whose action need not know when its manager is stopped.
newPlainTimer :: TimerOwner -> Instant -> IO () -> IO Timer
newPlainTimer owner due act = Timer due <$> (newRef $! Plain owner act)
{-# INLINE newPlainTimer #-}

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
fireTimer :: Expiry -> Timer -> IO Bool
fireTimer why (Timer due ref) = do
  state <- swapRef ref Spent
  case state of
    Spent -> pure False
    Aware _ act -> True <$ guarded (act why)
    Plain owner act
      | why == Due -> True <$ guarded act
      | otherwise -> True <$ guarded (ownerResettle owner due act)

-- | Cancel a timer. Any thread may call this. 'True' if it had not fired; it never will then.
-- Masked, so that each timer that is cancelled is counted.
cancelTimer :: Timer -> IO Bool
cancelTimer (Timer _ ref) = mask_ $ do
  state <- swapRef ref Spent
  case state of
    Spent -> pure False
    Plain owner _ -> True <$ ownerCancelled owner
    Aware owner _ -> True <$ ownerCancelled owner

-- | 'cancelTimer' that does not call 'ownerCancelled'.
defuseTimer :: Timer -> IO Bool
defuseTimer (Timer _ ref) = won <$> swapRef ref Spent
  where
    won Spent = False
    won _ = True

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
