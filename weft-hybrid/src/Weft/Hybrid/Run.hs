-- |
-- Starting hybrid threads from GHC threads. (For the opposite, see
-- 'Weft.Hybrid.Blocking.onGhcThread'.)
module Weft.Hybrid.Run
  ( run,
    runIn,
    forkFrom,
    forkFromIn,
    withScheduler,
  )
where

import Control.Concurrent (myThreadId)
import Control.Concurrent.MVar
import Control.Exception hiding (MaskingState (..))
import Control.Monad (void, when)
import Foreign.StablePtr (freeStablePtr, newStablePtr)
import Weft.Hybrid.Monad
import Weft.Hybrid.Park (identified, newThread)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Scheduler
import Weft.Hybrid.Thread
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (weakly, whatIsLeft)
import Weft.Sys (readWord)

-- | Run a hybrid thread on the program's scheduler and wait for it. Returns its result, or throws its
-- exception; a user error if it ended by 'ret'. An asynchronous exception that the calling thread gets meanwhile is
-- raised in the hybrid thread. When that has ended, it is thrown in the calling thread,
-- unless the hybrid thread ended with another exception. A deadlock of the
-- hybrid thread is raised in that one.
run :: Hybrid a -> IO a
run body = currentScheduler >>= (`runIn` body)

-- | 'run' on a given scheduler. If the scheduler is stopped meanwhile, the thread is
-- killed. If the thread does not end within 'settingsGrace' then, or the scheduler had been stopped before, this waits
-- until the calling thread gets an exception.
runIn :: Scheduler -> Hybrid a -> IO a
runIn scheduler body = mask $ \restore -> do
  box <- newEmptyMVar
  t <- newThread scheduler
  -- It has not run to the end of its task if it called 'ret'.
  watch t (void . tryPutMVar box . either Left (const (Left noResult)))
  -- Masked but for the body: an exception that comes before the body begins, or when it has ended, must not end the
  -- thread before the box is full.
  submit scheduler (masked t) . taskOf $
    (Right <$> withMask Unmasked body) `catchAny` (pure . Left) >>= nonBlocking . putMVar box
  -- If both threads wait for ever, GHC finds the caller first, and the hybrid thread would be alive as a part of it. So
  -- the caller never counts as deadlocked, and refers to the hybrid thread weakly: a deadlock is raised there, and what
  -- that leads to comes through the box.
  reference <- weakly (threadState t) t (pure ())
  -- The box stays full: an exception may come as the caller has just read it, and then it is read again.
  let await = try (restore (readMVar box)) >>= either passOn (either throwIO pure)
      passOn e = do
        place <- placeIn scheduler
        whatIsLeft reference >>= mapM_ (\thread -> Park.throwTo place thread e)
        -- Without loops the thread does not run any more.
        loops <- readWord (schedulerStop scheduler) 1
        when (loops > 0) (void await)
        throwIO (e :: SomeException)
  bracket (myThreadId >>= newStablePtr) freeStablePtr (const await)
  where
    masked t = With (extraOf Plain) {extraMask = Masked, extraThread = Known t}
    noResult = toException (userError "Weft.Hybrid.run: the thread has ended without a result")

-- | Start a hybrid thread, with an identity, on the program's scheduler.
forkFrom :: Hybrid () -> IO Thread
forkFrom body = currentScheduler >>= (`forkFromIn` body)

-- | 'forkFrom' on a given scheduler.
forkFromIn :: Scheduler -> Hybrid () -> IO Thread
forkFromIn scheduler body = mask_ $ do
  t <- newThread scheduler
  t <$ submit scheduler (identified t Plain) (taskOf body)

-- | Run an action with a new scheduler, which is stopped afterwards: threads that are
-- left are killed ('stopScheduler').
withScheduler :: Settings -> (Scheduler -> IO a) -> IO a
withScheduler settings = bracket (startScheduler settings) (void . stopScheduler)
