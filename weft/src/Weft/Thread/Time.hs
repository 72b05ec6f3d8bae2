-- | Delays and time limits of GHC's threads: what "Weft.Thread" (in microseconds) and "Weft.Timer" (with durations)
-- offer.
module Weft.Thread.Time
  ( threadDelay,
    sleep,
    registerDelay,
    timeout,
    within,
    Timeout,
  )
where

import Control.Concurrent (ThreadId, forkIOWithUnmask, killThread, myThreadId, yield)
import Control.Concurrent.STM (atomically, newTVarIO, writeTVar)
import Control.Exception hiding (handle)
import Control.Monad (unless, void)
import Data.Unique (newUnique)
import GHC.Conc (TVar)
import System.IO.Unsafe (unsafeInterleaveIO)
import System.Timeout (Timeout)
import Unsafe.Coerce (unsafeCoerce)
import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Timer, cancelTimer)
import Weft.Runtime.Managers
import Weft.Sys (now)
import qualified Weft.Sys as Sys
import Weft.Sys.Label

-- | Block for at least this many microseconds, by the monotonic clock. Zero and
-- negative numbers yield to other threads and return; 'maxBound' is 292 thousand years and counts as
-- for ever.
threadDelay :: Int -> IO ()
threadDelay = sleep . microseconds

-- | Block the calling thread for at least the given time. Interruptible. Zero and negative durations yield to other
-- threads.
sleep :: Duration -> IO ()
sleep d
  -- A loop of such calls would otherwise never give way, nor be interrupted, where it does not allocate.
  | d <= mempty = yield
  | otherwise = mask_ $ do
    due <- after d <$> now
    box <- Sys.newEmptyMVar
    m <- currentManager
    timer <- addTimer m due (void (Sys.tryPutMVar box ()))
    Sys.takeMVar box `onException` cancelTimer timer

-- | A variable that becomes 'True' after this many microseconds. Zero and negative
-- numbers make it 'True' at once.
registerDelay :: Int -> IO (TVar Bool)
registerDelay us
  | us <= 0 = newTVarIO True
  | otherwise = do
    var <- newTVarIO False
    due <- after (microseconds us) <$> now
    m <- currentManager
    var <$ addTimer m due (atomically (writeTVar var True))

-- | A new exception of the type in "System.Timeout", so that programs that look for that type find it. Its
-- unique number is made lazily: only when the time has run out, or when another exception is compared with it.
newTimeout :: IO Timeout
newTimeout = unsafeInterleaveIO (unsafeCoerce <$> newUnique)

-- | Run an action for at most this many microseconds; 'Nothing' if it took longer
-- and was interrupted. A negative number is no limit; zero gives 'Nothing' without running
-- the action. The action runs in the calling thread. Calls nest; other exceptions pass through;
-- after the call has returned, its exception cannot arrive any more. A thread is forked only
-- if the time runs out. Data that the action has received when it is interrupted is
-- lost: for sockets prefer a deadline ("Weft.Socket").
timeout :: Int -> IO a -> IO (Maybe a)
timeout us act
  | us < 0 = Just <$> act
  | otherwise = within (microseconds us) act

-- | Run an action with a time limit; 'Nothing' if it took longer and was
-- interrupted. Differs from 'Weft.Thread.timeout' in this: zero and negative durations
-- give 'Nothing' without running the action, and 'maxBound' is no limit.
within :: Duration -> IO a -> IO (Maybe a)
within d act
  | d == maxBound = Just <$> act
  | d <= mempty = pure Nothing
  | otherwise = do
    self <- myThreadId
    mine <- newTimeout
    handleJust (\e -> if e == mine then Just () else Nothing) (\() -> pure Nothing) $
      bracket (startAlarm d self mine) stopAlarm (\_ -> Just <$> act)

-- | A timeout that is running: its timer, and an MVar for the thread that throws when
-- the time has run out. Taking the timer's action out of it decides which came first, the time or the end.
data Alarm = Alarm !Timer !(Sys.MVar ThreadId)

startAlarm :: Duration -> ThreadId -> Timeout -> IO Alarm
startAlarm d self ex = do
  due <- after d <$> now
  thrower <- Sys.newEmptyMVar
  m <- currentManager
  timer <- addTimer m due (void (forkThrower thrower (evaluate ex >>= throwTo self)))
  pure (Alarm timer thrower)

forkThrower :: Sys.MVar ThreadId -> IO () -> IO ThreadId
forkThrower place act = mask_ $
  forkIOWithUnmask $ \unmask -> do
    t <- myThreadId
    setLabel t throwerLabel
    Sys.putMVar place t
    unmask act

-- | The label of threads that throw.
throwerLabel :: Label
throwerLabel = threadLabel "weft timeout"

-- | The thread that throws may be blocked in 'throwTo', as the calling thread is masked. Killing it
-- there cancels its exception.
stopAlarm :: Alarm -> IO ()
stopAlarm (Alarm timer thrower) = uninterruptibleMask_ $ do
  won <- cancelTimer timer
  unless won (Sys.takeMVar thrower >>= killThread)
