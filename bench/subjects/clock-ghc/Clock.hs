-- |
-- Description : Delays and timers of GHC's own manager
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

import Control.Concurrent (threadDelay)
import Control.Concurrent.STM (registerDelay)
import GHC.Event (TimeoutKey, getSystemTimerManager, registerTimeout, unregisterTimeout, updateTimeout)
import System.Timeout (timeout)

-- | A timer of the system's timer manager.
type Timer = TimeoutKey

-- | Run an action after this many microseconds, on the timer manager's thread.
schedule :: Int -> IO () -> IO Timer
schedule microseconds act = do
  manager <- getSystemTimerManager
  registerTimeout manager microseconds act

-- | Cancel a timer that has not fired.
cancel :: Timer -> IO ()
cancel timer = do
  manager <- getSystemTimerManager
  unregisterTimeout manager timer

-- | A timer that is moved, and how far.
data IdleTimer = IdleTimer !Int !TimeoutKey

-- | An action after this many microseconds, unless it is postponed.
newIdleTimer :: Int -> IO () -> IO IdleTimer
newIdleTimer microseconds act = IdleTimer microseconds <$> schedule microseconds act

-- | Due its full time from now.
reset :: IdleTimer -> IO ()
reset (IdleTimer microseconds key) = do
  manager <- getSystemTimerManager
  updateTimeout manager key microseconds

-- | GHC's timers cannot be paused.
pauseAndResume :: Maybe (IdleTimer -> IO ())
pauseAndResume = Nothing
