-- |
-- Detection of dead peers. Each message of a switch postpones a deadline, which costs two writes. A switch that has
-- been silent until the deadline is sent an echo request. If it stays silent, its connection is closed.
--
-- @
--   quiet     the deadline passes: send the request        -> asked   (dispatcher)
--   asked     a message arrives                            -> quiet   (the switch's thread)
--   asked     the deadline passes: close the connection    -> expired (dispatcher)
--   any       the connection has ended                     -> stopped (the switch's thread)
-- @
--
-- The state is that of one idle timer and a flag. If a message arrives as the deadline passes, the flag may stay set
-- although the timer was reset: the switch was sent a request. Its answer clears the flag.
module Weft.OpenFlow.Controller.Liveness
  ( Liveness,
    withLiveness,
    alive,
  )
where

import Control.Exception (bracket)
import Data.IORef
import Weft.Duration (Duration, seconds)
import Weft.Runtime.IdleTimer

-- | The liveness of a switch.
data Liveness = Liveness
  { livenessTimer :: !IdleTimer,
    -- | Whether it was sent a request and has been silent since. Set by the dispatcher, cleared by the switch's thread.
    livenessAsked :: !(IORef Bool)
  }

-- | Run an action, and watch for the switch's silence meanwhile. The arguments: the time of silence until the request,
-- the time from the request until the connection is closed, the action that sends the request, and the action that
-- closes the connection. Neither may block.
withLiveness :: Duration -> Duration -> IO () -> IO () -> (Liveness -> IO a) -> IO a
withLiveness after dead ask gone = bracket start (stop . livenessTimer)
  where
    start = do
      asked <- newIORef False
      timer <- newDecidingIdleTimer after (silent asked)
      Liveness timer asked <$ reset timer
    silent asked late = do
      before <- readIORef asked
      case () of
        _
          -- What switches have sent while the process did not run is read first.
          | ranLate late -> pure (Later (seconds 1))
          | before -> pure (Expire gone)
          | otherwise -> Later dead <$ (writeIORef asked True >> ask)

-- | The switch has sent something. Called by its thread.
alive :: Liveness -> IO ()
alive w = writeIORef (livenessAsked w) False >> reset (livenessTimer w)
