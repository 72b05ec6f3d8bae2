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

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (void)
import Weft.Hybrid.Monad
import Weft.Hybrid.Park (identified, newThread)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Scheduler
import Weft.Hybrid.Thread
import Weft.Hybrid.Trace

-- | Run a hybrid thread on the program's scheduler and wait for it. Returns its result, or throws its
-- exception. An asynchronous exception that the calling thread gets meanwhile is
-- raised in the hybrid thread. When that has ended, it is thrown in the calling thread,
-- unless the hybrid thread ended with another exception.
run :: Hybrid a -> IO a
run body = currentScheduler >>= (`runIn` body)

-- | 'run' on a given scheduler. If the scheduler is stopped meanwhile, the thread is
-- killed; if the thread does not end within 'settingsGrace' then, this never returns.
runIn :: Scheduler -> Hybrid a -> IO a
runIn scheduler body = mask $ \restore -> do
  box <- newEmptyMVar
  t <- newThread scheduler
  submit scheduler (identified t Plain) . taskOf $
    (Right <$> body) `catchAny` (pure . Left) >>= nonBlocking . putMVar box
  let await = try (restore (takeMVar box)) >>= either passOn (either throwIO pure)
      passOn e = do
        place <- placeIn scheduler
        Park.throwTo place t e
        _ <- await
        throwIO (e :: SomeException)
  await

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
