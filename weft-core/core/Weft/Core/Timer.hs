-- |
-- One timer, and what a queue of timers has to do. A timer fires once or is
-- cancelled, never both: each takes the job out of the timer's reference, and
-- whoever finds it there has won.
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

-- | A timer that was set. The reference holds what it does until it has fired or
-- was cancelled; written by whoever fires or cancels. Eleven words with its place
-- in a queue.
data Timer = Timer !Instant !(Ref TimerState)

data TimerState
  = -- | It has fired or was cancelled.
    Spent
  | -- | To be run when it is due; and should its manager be stopped before, to be
    -- set again elsewhere.
    Plain !TimerOwner (IO ())
  | -- | To be told in either case.
    Aware !TimerOwner Action

-- | What a timer does, on the thread that runs the manager. It must not block.
type Action = Expiry -> IO ()

-- | Why a timer's action runs.
data Expiry
  = -- | Its time has come.
    Due
  | -- | Its manager was stopped; it is not due, and nobody else will look after it.
    Orphaned
  deriving (Eq, Show)

-- | What timers know of the manager that they were set with: one for all of them.
data TimerOwner = TimerOwner
  { -- | One of them was cancelled.
    ownerCancelled :: !(IO ()),
    -- | The manager was stopped before a plain timer was due: what becomes of it.
    ownerResettle :: !(Instant -> IO () -> IO ())
  }

-- | A timer that is in no queue yet.
newTimer :: TimerOwner -> Instant -> Action -> IO Timer
newTimer owner due act = Timer due <$> (newRef $! Aware owner act)
{-# INLINE newTimer #-}

-- | One that need not be told when its manager is stopped.
newPlainTimer :: TimerOwner -> Instant -> IO () -> IO Timer
newPlainTimer owner due act = Timer due <$> (newRef $! Plain owner act)
{-# INLINE newPlainTimer #-}

-- | When it is to fire.
timerDue :: Timer -> Instant
timerDue (Timer due _) = due

-- | Has it neither fired nor been cancelled?
isPending :: Timer -> IO Bool
isPending (Timer _ ref) = waits <$> readRef ref
  where
    waits Spent = False
    waits _ = True

-- | Run the action; 'False' when it was cancelled, or has run.
fireTimer :: Expiry -> Timer -> IO Bool
fireTimer why (Timer due ref) = do
  state <- swapRef ref Spent
  case state of
    Spent -> pure False
    Aware _ act -> True <$ guarded (act why)
    Plain owner act
      | why == Due -> True <$ guarded act
      | otherwise -> True <$ guarded (ownerResettle owner due act)

-- | Cancel a timer, from any thread. 'True': it had not fired, and now never will.
cancelTimer :: Timer -> IO Bool
cancelTimer (Timer _ ref) = do
  state <- swapRef ref Spent
  case state of
    Spent -> pure False
    Plain owner _ -> True <$ ownerCancelled owner
    Aware owner _ -> True <$ ownerCancelled owner

-- | The same, without telling its owner.
defuseTimer :: Timer -> IO Bool
defuseTimer (Timer _ ref) = won <$> swapRef ref Spent
  where
    won Spent = False
    won _ = True

-- | A queue of timers, used by one thread. Cancelled timers may stay in it until
-- they are due or swept out.
--
-- Laws: a timer comes out of 'queueExpire' once, in the first call with an
-- instant that is not before its due time by more than the queue's resolution,
-- and in no call with an instant before it. 'queueNext' is not later than the
-- earliest due time by more than the resolution.
data Queue = Queue
  { queueInsert :: !(Timer -> IO ()),
    -- | Take out all that are due at an instant, handing each to the function.
    queueExpire :: !(Instant -> (Timer -> IO ()) -> IO ()),
    -- | When to call 'queueExpire' next; @never@ when there is no need.
    queueNext :: !(IO Instant),
    -- | Keep only those that satisfy the predicate. O(timers).
    queueSweep :: !((Timer -> IO Bool) -> IO ()),
    -- | How many are in it, cancelled ones included.
    queueSize :: !(IO Int)
  }
