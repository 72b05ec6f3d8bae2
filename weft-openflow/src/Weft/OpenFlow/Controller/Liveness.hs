-- |
-- Detection of dead peers. Each message of a switch postpones a deadline, which costs one write. A switch that has been
-- silent until the deadline is sent an echo request. If it stays silent, its connection is closed.
--
-- @
--   Quiet     the deadline passes: send the request        -> Asked   (dispatcher)
--   Asked     a message arrives                            -> Quiet   (the switch's thread)
--   Asked     the deadline passes: close the connection    -> Asked   (dispatcher)
--   any       the connection has ended                     -> Over    (the switch's thread)
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

-- | The liveness of a switch.
data Liveness = Liveness
  { livenessAfter :: !Duration,
    livenessDead :: !Duration,
    -- | Sends an ECHO_REQUEST; does not block.
    livenessAsk :: IO (),
    -- | Closes the connection; does not block.
    livenessDrop :: IO (),
    -- | Written under 'livenessLock'; read without it by the switch's thread.
    livenessState :: !(IORef LivenessState),
    livenessLock :: !(MVar ())
  }

data LivenessState = Quiet !IdleTimer | Asked !IdleTimer | Over

-- | Run an action, and watch for the switch's silence meanwhile. The arguments: the time of silence until the request,
-- the time from the request until the connection is closed, the action that sends the request, and the action that
-- closes the connection.
withLiveness :: Duration -> Duration -> IO () -> IO () -> (Liveness -> IO a) -> IO a
withLiveness after dead ask gone = bracket start over
  where
    start = do
      state <- newIORef Over
      lock <- newMVar ()
      let w = Liveness after dead ask gone state lock
      d <- newIdleTimer after (silent w)
      -- The deadline may have passed already, if it is very short.
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

-- | The deadline has passed. This runs in the dispatcher, which must not wait. If the lock is taken, the watch is
-- ending or the switch has just sent something.
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

-- | The switch has sent something. Called by its thread.
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
