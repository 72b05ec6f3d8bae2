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
-- All times are by the monotonic clock: changing the date moves nothing, and a
-- process that was stopped, or a machine that slept, finds each timer that came
-- due meanwhile fired once. Nothing fires early; on an idle machine a timer is
-- late by its tick of 33 us and the time a wake-up takes.
--
-- A duration of zero or less is over at once; 'maxBound' never ends.
--
-- Setting a timer is one compare-and-swap, and a system call only when the
-- capability's dispatcher sleeps past it; cancelling is one more.
module Weft.Timer
  ( -- * Threads
    sleep,
    within,

    -- * Timers
    Timer,
    schedule,
    reschedule,
    cancel,

    -- * Durations
    module Weft.Duration,
  )
where

import Control.Monad (when)
import Data.IORef
import Weft.Core.Manager
import Weft.Core.Time
import qualified Weft.Core.Timer as Core
import Weft.Duration
import Weft.Runtime
import Weft.Sys (now)
import Weft.Thread (delayFor, timeoutFor)

-- | Block the calling thread for at least that long. Interruptible.
sleep :: Duration -> IO ()
sleep = delayFor

-- | Run an action, for at most that long: 'Nothing' if it took longer and was
-- interrupted. As 'Weft.Thread.timeout', except that zero and negative durations
-- give 'Nothing' without running the action, and 'maxBound' is no limit.
within :: Duration -> IO a -> IO (Maybe a)
within = timeoutFor

-- | A timer that was set.
newtype Timer = Timer (IORef State)

-- | Where the timer is now, and what it does. Replaced by 'reschedule', under the
-- rule that only who has cancelled the present one may set the next.
data State = State !Manager !Core.Timer !(IO ())

-- | Run an action after that long, on the dispatcher of the capability that the
-- caller runs on. The action must not block: it delays every event of the
-- capability while it runs. To do more, let it fill an MVar or fork a thread. What
-- it throws goes to the program's handler for uncaught exceptions. A timer that
-- nobody holds fires all the same.
schedule :: Duration -> IO () -> IO Timer
schedule d act = do
  due <- after d <$> now
  Timer <$> (newIORef =<< place due act)

-- | Set on the caller's capability; set again should its manager be stopped.
place :: Instant -> IO () -> IO State
place due act = do
  m <- currentManager
  t <- addTimer m due $ \why ->
    if why == Core.Due then act else () <$ place due act
  pure (State m t act)

-- | Let a timer that has not fired fire that long from now instead. 'False': it
-- has fired or was cancelled.
reschedule :: Timer -> Duration -> IO Bool
reschedule (Timer ref) d = do
  due <- after d <$> now
  State m t act <- readIORef ref
  pending <- dropTimer m t
  when pending (place due act >>= writeIORef ref)
  pure pending

-- | Cancel a timer. 'True': it had not fired, and now never will.
cancel :: Timer -> IO Bool
cancel (Timer ref) = do
  State m t _ <- readIORef ref
  dropTimer m t
