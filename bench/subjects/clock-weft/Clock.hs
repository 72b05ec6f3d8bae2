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
    Deadline,
    newDeadline,
    postpone,
    pauseAndResume,
  )
where

import Control.Monad (void)
import Weft.Deadline (Deadline, pause, postpone, resume)
import qualified Weft.Deadline as W
import Weft.Duration (microseconds)
import Weft.Thread (registerDelay, threadDelay, timeout)
import Weft.Timer (Timer)
import qualified Weft.Timer as W

-- | Run an action after so many microseconds, on the dispatcher.
schedule :: Int -> IO () -> IO Timer
schedule = W.schedule . microseconds

-- | Cancel a timer that has not fired.
cancel :: Timer -> IO ()
cancel = void . W.cancel

-- | An action after so many microseconds, unless it is postponed.
newDeadline :: Int -> IO () -> IO Deadline
newDeadline = W.newDeadline . microseconds

-- | Take a deadline out of the reckoning and put it back.
pauseAndResume :: Maybe (Deadline -> IO ())
pauseAndResume = Just (\deadline -> pause deadline >> resume deadline)
