-- |
-- System calls of one's own. A system call is a function that the loop's thread runs when the
-- thread makes it; it answers at once, fails, or parks the thread and sees to it that
-- somebody resumes it. It must not block. The events and timers of the loop are at hand
-- through "Weft.Event": 'callManager'.
--
-- > -- Park until the callback of some library has a result.
-- > fetch :: Library -> Key -> Hybrid Value
-- > fetch library key = systemCall $ \c -> later c $ \answer -> do
-- >   request <- startRequest library key (\value -> answer (Right value))
-- >   pure (cancelRequest library request)
--
-- @since 0.1.0
module Weft.Hybrid.SystemCall
  ( systemCall,
    Call,
    callManager,

    -- * Answers
    Answer,
    immediate,
    failing,
    later,
  )
where

import Control.Exception (SomeException)
import Weft.Event (EventManager)
import Weft.Hybrid.ExternalCall
import Weft.Hybrid.Monad
import Weft.Hybrid.Trace

-- | A system call that a thread has made, and wants an @a@ from.
data Call a = Call' !Loop !Context (a -> Trace)

-- | The outcome of a system call.
newtype Answer = Answer (IO Trace)

-- | Make a system call.
systemCall :: (Call a -> Answer) -> Hybrid a
systemCall f = call $ \l ctx k -> let Answer act = f (Call' l ctx k) in act

-- | The manager of the loop that runs the thread: callbacks and timers that are registered there
-- run on the loop's thread, between turns.
callManager :: Call a -> EventManager
callManager (Call' l _ _) = loopManager l

-- | Run an action that does not block; the thread goes on with its result.
immediate :: Call a -> IO a -> Answer
immediate (Call' _ _ k) act = Answer (act >>= \a -> pure $! k a)

-- | The exception is raised in the thread.
failing :: SomeException -> Answer
failing e = Answer (pure (Throw e))

-- | Park the thread. The function starts what has to be done and gets what is to be called with
-- the outcome, once, from any thread; further calls have no effect and return 'False'. It
-- returns what gives the work up, which runs if the thread is interrupted first.
later :: Call a -> ((Either SomeException a -> IO Bool) -> IO (IO ())) -> Answer
later (Call' l ctx k) begin = Answer (outside l ctx k (Leaves (const (pure ()))) (begin . fulfil))
