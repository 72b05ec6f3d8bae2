-- |
-- Defining system calls. A system call is a function that the loop's thread runs when a hybrid
-- thread makes the call. It answers at once, fails, or parks the thread and arranges that it is
-- resumed later. It must not block. It may use the events and timers of the loop
-- by "Weft.Event" ('callManager').
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

-- | A system call that a thread has made. Its result has the type @a@.
data Call a = Call' !Loop !Context (a -> Trace)

-- | The outcome of a system call.
newtype Answer = Answer (IO Trace)

-- | Make a system call.
systemCall :: (Call a -> Answer) -> Hybrid a
systemCall f = call $ \l ctx k -> let Answer act = f (Call' l ctx k) in act

-- | The manager of the loop that runs the thread. Callbacks and timers that are registered there
-- run on the loop's thread, between turns.
callManager :: Call a -> EventManager
callManager (Call' l _ _) = loopManager l

-- | Answer with the result of an action, which must not block.
immediate :: Call a -> IO a -> Answer
immediate (Call' _ _ k) act = Answer (act >>= \a -> pure $! k a)

-- | Answer with an exception, which is raised in the thread.
failing :: SomeException -> Answer
failing e = Answer (pure (Throw e))

-- | Park the thread and answer later. The function starts the work. It is given a callback for the outcome, which any
-- thread may call, once; further calls have no effect and return 'False'. It
-- returns an action that cancels the work; that runs if the thread is interrupted first. It must not block. If it
-- throws, the thread is interrupted all the same, and the exception goes to the program's handler for uncaught
-- exceptions ('GHC.Conc.setUncaughtExceptionHandler').
later :: Call a -> ((Either SomeException a -> IO Bool) -> IO (IO ())) -> Answer
later (Call' l ctx k) begin = Answer (outside l ctx k (Leaves (const (pure ()))) (begin . fulfil))
