-- |
-- Delays, time limits and timers, with durations that carry their unit.
--
-- > import Weft.Timer
-- >
-- > main :: IO ()
-- > main = do
-- >   reminder <- schedule (seconds 60) (putStrLn "a minute has passed")
-- >   answer <- within (milliseconds 500) getLine
-- >   print (answer, "in time")
-- >   _ <- cancel reminder
-- >   sleep (milliseconds 10)
--
-- Times are those of the monotonic clock, so changing the date has no effect. A timer that comes
-- due while the process or the machine is stopped fires once when it continues. Nothing fires early;
-- on an idle machine a timer is late by at most the wheel's tick of 33 us, the kernel's timer slack (20 us), and the
-- time of a wake-up.
--
-- Operations that take a deadline ("Weft.Deadline") need no 'within'.
--
-- A duration of zero or less is over at once; 'maxBound' never ends.
--
-- Setting a timer is one compare-and-swap, and a system call only if the
-- capability's dispatcher would sleep past it. Cancelling is one atomic operation.
--
-- @since 0.1.0
module Weft.Timer
  ( -- * Threads
    sleep,
    within,

    -- * Timers
    Timer,
    schedule,
    cancel,

    -- * Durations
    module Weft.Duration,
  )
where

import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Timer, cancelTimer)
import Weft.Duration
import Weft.Runtime.Managers
import Weft.Sys (now)
import Weft.Thread.Time (sleep, within)

-- | Run an action after the given duration, on the dispatcher of the capability that the
-- caller runs on. The action must not block: it delays every event of the
-- capability while it runs. To do more, let it fill an MVar or fork a thread. Its
-- exceptions go to the program's handler for uncaught exceptions, on another thread; an asynchronous one, other than
-- @StackOverflow@, ends the dispatcher after the turn, and another one takes its place. The timer fires even if
-- nothing refers to it. While it is pending it takes 88 bytes, and the memory that
-- the action refers to.
schedule :: Duration -> IO () -> IO Timer
schedule d act = do
  due <- after d <$> now
  m <- currentManager
  addTimer m due act

-- | Cancel a timer. 'True' if it had not fired; it never will then. To let it fire at
-- another time, cancel it and set a new one.
cancel :: Timer -> IO Bool
cancel = cancelTimer
