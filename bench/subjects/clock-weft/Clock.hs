-- |
-- Description : Delays and timers of Weft
--
-- The same names as in @clock-ghc@.
module Clock
  ( -- * Threads
    threadDelay,
    timeout,
    registerDelay,

    -- * Timers
    Timer,
    schedule,
    cancel,

    -- * Deadlines
    IdleTimer,
    newIdleTimer,
    reset,
    pauseAndResume,
  )
where

import Control.Monad (void)
import Weft.Duration (microseconds)
import Weft.IdleTimer (IdleTimer, pause, reset, resume)
import qualified Weft.IdleTimer as W
import Weft.Thread (registerDelay, threadDelay, timeout)
import Weft.Timer (Timer)
import qualified Weft.Timer as W

-- | Run an action after this many microseconds, on the dispatcher.
schedule :: Int -> IO () -> IO Timer
schedule = W.schedule . microseconds

-- | Cancel a timer that has not fired.
cancel :: Timer -> IO ()
cancel = void . W.cancel

-- | An action after this many microseconds, unless it is postponed.
newIdleTimer :: Int -> IO () -> IO IdleTimer
newIdleTimer = W.newIdleTimer . microseconds

-- | Take a deadline out of the reckoning and put it back.
pauseAndResume :: Maybe (IdleTimer -> IO ())
pauseAndResume = Just (\deadline -> pause deadline >> resume deadline)
