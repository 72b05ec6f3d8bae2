-- |
-- Calls that block, for hybrid threads (Li and Zdancewic 2007, section 4.6): on the pool of OS threads
-- of "Weft.Blocking", or on a GHC thread of their own.
--
-- @since 0.1.0
module Weft.Hybrid.Blocking
  ( blocking,
    blockingOr,
    onGhcThread,
  )
where

import Control.Concurrent (forkIOWithUnmask, killThread)
import Control.Exception (mask, mask_, try)
import Control.Monad (void, when)
import qualified Weft.Blocking.Pool as Pool
import Weft.Hybrid.ExternalCall
import Weft.Hybrid.Monad

-- | Run a call that may block on the program's pool ("Weft.Blocking"), and wait for it. Its exceptions are
-- raised here. If the thread is interrupted, a call that has begun goes on, and its result
-- is dropped. (@sys_blio@)
blocking :: IO a -> Hybrid a
blocking = blockingOr (const (pure ()))

-- | 'blocking', with a way to dispose of a result that arrives after the thread was interrupted.
blockingOr :: (a -> IO ()) -> IO a -> Hybrid a
blockingOr dispose act = call $ \l ctx k -> outside l ctx k (Leaves dispose) $ \promise ->
  Pool.enqueue Pool.programPool $ do
    still <- wanted promise
    when still (mask $ \restore -> try (restore act) >>= void . fulfil promise)

-- | Run an action that waits as GHC threads do (on an 'Control.Concurrent.MVar', a
-- @Handle@, another library) on a GHC thread of its own. It is killed if the thread is
-- interrupted.
onGhcThread :: IO a -> Hybrid a
onGhcThread act = call $ \l ctx k -> outside l ctx k (Leaves (const (pure ()))) $ \promise -> do
  t <- mask_ (forkIOWithUnmask (\unmask -> try (unmask act) >>= void . fulfil promise))
  -- 'killThread' waits until the exception is received, so it runs in another thread.
  pure (void (forkIOWithUnmask (\_ -> killThread t)))
