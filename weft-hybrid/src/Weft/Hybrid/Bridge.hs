-- |
-- Between GHC threads and hybrid threads. (From a hybrid thread to the GHC world:
-- 'Weft.Hybrid.Blocking.onGhcThread'.)
module Weft.Hybrid.Bridge
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

-- | Run a hybrid thread on the program's scheduler and wait for it: its result, or its
-- exception. An asynchronous exception that reaches the calling thread meanwhile is
-- raised in the hybrid thread, whose end is waited for, and then in the calling thread,
-- unless the hybrid thread ended with another.
run :: Hybrid a -> IO a
run body = currentScheduler >>= (`runIn` body)

-- | The same on a scheduler of one's own. If that is stopped meanwhile the thread is
-- killed; one that does not end in the time for that never answers.
runIn :: Scheduler -> Hybrid a -> IO a
runIn world body = mask $ \restore -> do
  box <- newEmptyMVar
  t <- newThread world
  submit world (identified t Plain) . taskOf $
    (Right <$> body) `catchAny` (pure . Left) >>= nonBlocking . putMVar box
  let await = try (restore (takeMVar box)) >>= either passOn (either throwIO pure)
      passOn e = do
        place <- placeIn world
        Park.throwTo place t e
        _ <- await
        throwIO (e :: SomeException)
  await

-- | Start a hybrid thread on the program's scheduler.
forkFrom :: Hybrid () -> IO Thread
forkFrom body = currentScheduler >>= (`forkFromIn` body)

-- | The same on a scheduler of one's own.
forkFromIn :: Scheduler -> Hybrid () -> IO Thread
forkFromIn world body = do
  t <- newThread world
  t <$ submit world (identified t Plain) (taskOf body)

-- | Run an action with a scheduler of its own, which is stopped afterwards: threads that are
-- left are killed ('stopScheduler').
withScheduler :: Settings -> (Scheduler -> IO a) -> IO a
withScheduler settings = bracket (startScheduler settings) (void . stopScheduler)
