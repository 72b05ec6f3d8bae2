-- |
-- Delays and time limits of GHC's threads: what "Weft.Thread" (in microseconds) and "Weft.Timer" (with durations) offer.
module Weft.Thread.Time
  ( threadDelay,
    sleep,
    registerDelay,
    timeout,
    within,
    Timeout,
  )
where

import Control.Concurrent (ThreadId, forkIOWithUnmask, killThread, myThreadId)
import Control.Concurrent.STM (atomically, newTVarIO, writeTVar)
import Control.Exception hiding (handle)
import Control.Monad (unless, void, when)
import Data.Unique (newUnique)
import GHC.Conc (TVar, labelThread)
import System.IO.Unsafe (unsafeInterleaveIO)
import System.Timeout (Timeout)
import Unsafe.Coerce (unsafeCoerce)
import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Expiry (..), cancelTimer)
import Weft.Core.Timers (Fresh)
import Weft.Runtime.Managers
import Weft.Sys (now)
import qualified Weft.Sys as Sys

-- | Block for at least this many microseconds, by the monotonic clock. Zero and
-- negative numbers return at once; 'maxBound' is 292 thousand years and counts as
-- for ever.
threadDelay :: Int -> IO ()
threadDelay = sleep . microseconds

-- | Block the calling thread for at least that long. Interruptible.
sleep :: Duration -> IO ()
sleep d
  | d <= mempty = pure ()
  | otherwise = mask_ $ do
    due <- after d <$> now
    box <- Sys.newEmptyMVar
    delayUntil due box

delayUntil :: Instant -> Sys.MVar () -> IO ()
delayUntil due box = do
  m <- currentManager
  timer <- addTimer m due (\_ -> void (Sys.tryPutMVar box ()))
  Sys.takeMVar box `onException` cancelTimer timer
  alive <- isAlive m
  unless alive $ do
    t <- now
    when (t < due) (delayUntil due box)

-- | A variable that becomes 'True' after this many microseconds. Zero and negative
-- numbers make it 'True' at once.
registerDelay :: Int -> IO (TVar Bool)
registerDelay us
  | us <= 0 = newTVarIO True
  | otherwise = do
    var <- newTVarIO False
    due <- after (microseconds us) <$> now
    m <- currentManager
    var <$ addPlainTimer m due (atomically (writeTVar var True))

-- | The exception of a call of its own: "System.Timeout"'s, so that a program that
-- looks for that type finds it. Its number is drawn when somebody looks at it, which is when
-- the time has run out, or another exception passes by.
newTimeout :: IO Timeout
newTimeout = unsafeInterleaveIO (unsafeCoerce <$> newUnique)

-- | Run an action, for at most this many microseconds: 'Nothing' if it took longer
-- and was interrupted. Negative is no limit; zero is 'Nothing' without running
-- the action. The action runs in the calling thread; calls nest; exceptions pass;
-- after the call has returned nothing is thrown any more. A thread is made only
-- if the time runs out. What an action has received when it is interrupted is
-- lost: for sockets prefer a deadline ("Weft.Socket").
timeout :: Int -> IO a -> IO (Maybe a)
timeout us act
  | us < 0 = Just <$> act
  | otherwise = within (microseconds us) act

-- | Run an action, for at most that long: 'Nothing' if it took longer and was
-- interrupted. As 'Weft.Thread.timeout', except that zero and negative durations
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

-- | A timeout under way: its timer, and where the thread that throws is put when
-- the time has run out. Who takes the timer's action decides which came first.
data Alarm = Alarm !Manager !Fresh !(Sys.MVar ThreadId)

startAlarm :: Duration -> ThreadId -> Timeout -> IO Alarm
startAlarm d self ex = do
  due <- after d <$> now
  thrower <- Sys.newEmptyMVar
  m <- currentManager
  timer <- addFresh m due $ \why ->
    void . forkThrower thrower $ do
      -- A manager that is stopped leaves the rest of the time to the thrower.
      when (why == Orphaned) (Sys.newEmptyMVar >>= delayUntil due)
      evaluate ex >>= throwTo self
  pure (Alarm m timer thrower)

forkThrower :: Sys.MVar ThreadId -> IO () -> IO ThreadId
forkThrower place act = mask_ $
  forkIOWithUnmask $ \unmask -> do
    t <- myThreadId
    labelThread t "weft timeout"
    Sys.putMVar place t
    unmask act

-- | The thrower may be blocked in 'throwTo', as this thread is masked: killing it
-- there takes its exception back.
stopAlarm :: Alarm -> IO ()
stopAlarm (Alarm m timer thrower) = uninterruptibleMask_ $ do
  won <- dropFresh m timer
  unless won (Sys.takeMVar thrower >>= killThread)
