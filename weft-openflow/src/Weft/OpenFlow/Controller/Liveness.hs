-- |
-- Is the switch alive? While it speaks, a deadline is pushed later, which costs a write. When it has said nothing for a
-- while it is asked for an echo; when nothing comes then, its connection is dropped.
--
-- @
--   Quiet    deadline: ask          -> Asked (the dispatcher)
--   Asked    deadline: drop         -> Quiet (the switch's thread, when something came)
-- @
module Weft.OpenFlow.Controller.Liveness
  ( Liveness,
    withLiveness,
    alive,
  )
where

import Control.Concurrent.MVar
import Control.Exception (bracket)
import Data.IORef
import Weft.Duration (Duration)
import Weft.IdleTimer

-- | The watch over a switch.
data Liveness = Liveness
  { livenessAfter :: !Duration,
    livenessDead :: !Duration,
    -- | Sends an ECHO_REQUEST; does not block.
    livenessAsk :: IO (),
    -- | Drops the connection; does not block.
    livenessDrop :: IO (),
    -- | Written under 'livenessLock'; read without it by the switch's thread.
    livenessState :: !(IORef LivenessState),
    livenessLock :: !(MVar ())
  }

data LivenessState = Quiet !IdleTimer | Asked !IdleTimer | Over

-- | Watch while an action runs: ask after that long, drop after that long more.
withLiveness :: Duration -> Duration -> IO () -> IO () -> (Liveness -> IO a) -> IO a
withLiveness after dead ask gone = bracket start over
  where
    start = do
      state <- newIORef Over
      lock <- newMVar ()
      let w = Liveness after dead ask gone state lock
      d <- newIdleTimer after (silent w)
      -- The deadline may have passed by now only if it is shorter than this takes.
      atomicModifyIORef' state (\s -> case s of Over -> (Quiet d, ()); _ -> (s, ()))
      pure w
    over w = withMVar (livenessLock w) $ \_ -> do
      state <- readIORef (livenessState w)
      writeIORef (livenessState w) Over
      stopState state

stopState :: LivenessState -> IO ()
stopState state = case state of
  Quiet d -> stop d
  Asked d -> stop d
  Over -> pure ()

-- | On the dispatcher, which must not wait: who holds the lock ends the watch or has just heard the switch.
silent :: Liveness -> IO ()
silent w = do
  free <- tryTakeMVar (livenessLock w)
  case free of
    Nothing -> pure ()
    Just () -> do
      state <- readIORef (livenessState w)
      case state of
        Over -> pure ()
        _ -> do
          d <- newIdleTimer (livenessDead w) (livenessDrop w)
          writeIORef (livenessState w) (Asked d)
          livenessAsk w
      putMVar (livenessLock w) ()

-- | Something came from the switch. By its thread.
alive :: Liveness -> IO ()
alive w = do
  state <- readIORef (livenessState w)
  case state of
    Quiet d -> reset d
    _ -> withMVar (livenessLock w) $ \_ -> do
      now <- readIORef (livenessState w)
      case now of
        Asked d -> do
          stop d
          d' <- newIdleTimer (livenessAfter w) (silent w)
          writeIORef (livenessState w) (Quiet d')
        _ -> pure ()
