-- |
-- Is the switch alive? While it speaks, a deadline is pushed later, which costs a write. When it has said nothing for a
-- while it is asked for an echo; when nothing comes then, its connection is dropped.
--
-- @
--   Quiet    deadline: ask          -> Asked (the dispatcher)
--   Asked    deadline: drop         -> Quiet (the switch's thread, when something came)
-- @
module Weft.OpenFlow.Controller.Watch
  ( Watch,
    withWatch,
    alive,
  )
where

import Control.Concurrent.MVar
import Control.Exception (bracket)
import Data.IORef
import Weft.Duration (Duration)
import Weft.IdleTimer

-- | The watch over a switch.
data Watch = Watch
  { watchAfter :: !Duration,
    watchDead :: !Duration,
    -- | Sends an ECHO_REQUEST; does not block.
    watchAsk :: IO (),
    -- | Drops the connection; does not block.
    watchDrop :: IO (),
    -- | Written under 'watchLock'; read without it by the switch's thread.
    watchState :: !(IORef State),
    watchLock :: !(MVar ())
  }

data State = Quiet !IdleTimer | Asked !IdleTimer | Over

-- | Watch while an action runs: ask after that long, drop after that long more.
withWatch :: Duration -> Duration -> IO () -> IO () -> (Watch -> IO a) -> IO a
withWatch after dead ask gone = bracket start over
  where
    start = do
      state <- newIORef Over
      lock <- newMVar ()
      let w = Watch after dead ask gone state lock
      d <- newIdleTimer after (silent w)
      -- The deadline may have passed by now only if it is shorter than this takes.
      atomicModifyIORef' state (\s -> case s of Over -> (Quiet d, ()); _ -> (s, ()))
      pure w
    over w = withMVar (watchLock w) $ \_ -> do
      state <- readIORef (watchState w)
      writeIORef (watchState w) Over
      stopState state

stopState :: State -> IO ()
stopState state = case state of
  Quiet d -> stop d
  Asked d -> stop d
  Over -> pure ()

-- | On the dispatcher, which must not wait: who holds the lock ends the watch or has just heard the switch.
silent :: Watch -> IO ()
silent w = do
  free <- tryTakeMVar (watchLock w)
  case free of
    Nothing -> pure ()
    Just () -> do
      state <- readIORef (watchState w)
      case state of
        Over -> pure ()
        _ -> do
          d <- newIdleTimer (watchDead w) (watchDrop w)
          writeIORef (watchState w) (Asked d)
          watchAsk w
      putMVar (watchLock w) ()

-- | Something came from the switch. By its thread.
alive :: Watch -> IO ()
alive w = do
  state <- readIORef (watchState w)
  case state of
    Quiet d -> reset d
    _ -> withMVar (watchLock w) $ \_ -> do
      now <- readIORef (watchState w)
      case now of
        Asked d -> do
          stop d
          d' <- newIdleTimer (watchAfter w) (silent w)
          writeIORef (watchState w) (Quiet d')
        _ -> pure ()
