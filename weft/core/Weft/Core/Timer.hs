-- |
-- One timer, and what a queue of timers has to do. A timer fires once or is
-- cancelled, never both: each takes the action out of the timer's reference, and
-- whoever finds it there has won.
module Weft.Core.Timer
  ( -- * Timers
    Timer,
    Action,
    Expiry (..),
    newTimer,
    timerDue,
    isPending,
    fireTimer,
    defuseTimer,

    -- * Queues
    Queue (..),
  )
where

import Weft.Core.Time (Instant)
import Weft.Sys

-- | A timer that was set. The reference holds what it does; 'Nothing' once it has
-- fired or was cancelled. Written by whoever fires or cancels. Ten words with its
-- place in a queue.
data Timer = Timer !Instant !(Ref (Maybe Action))

-- | What a timer does, on the thread that runs the manager. It must not block.
type Action = Expiry -> IO ()

-- | Why a timer's action runs.
data Expiry
  = -- | Its time has come.
    Due
  | -- | Its manager was stopped; it is not due, and nobody else will look after it.
    Orphaned
  deriving (Eq, Show)

-- | A timer that is in no queue yet.
newTimer :: Instant -> Action -> IO Timer
newTimer due act = Timer due <$> newRef (Just act)
{-# INLINE newTimer #-}

-- | When it is to fire.
timerDue :: Timer -> Instant
timerDue (Timer due _) = due

-- | Has it neither fired nor been cancelled?
isPending :: Timer -> IO Bool
isPending (Timer _ ref) = maybe False (const True) <$> readRef ref

-- | Run the action; 'False' when it was cancelled, or has run.
fireTimer :: Expiry -> Timer -> IO Bool
fireTimer why (Timer _ ref) =
  swapRef ref Nothing >>= maybe (pure False) (\act -> True <$ guarded (act why))

-- | Take the action out; 'False' when it was cancelled before, or has run.
defuseTimer :: Timer -> IO Bool
defuseTimer (Timer _ ref) = maybe False (const True) <$> swapRef ref Nothing

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
