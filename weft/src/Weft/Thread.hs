{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- Waiting, for threads: what "GHC.Conc" and "System.Timeout" offer, with the same
-- types and meanings, on Weft's managers. A program that imports these instead
-- runs unchanged.
--
-- Every function may be called from any thread, takes asynchronous exceptions
-- while it waits, and leaves nothing registered when it ends, however it ends.
-- Times are microseconds, as there.
module Weft.Thread
  ( -- * Descriptors
    threadWaitRead,
    threadWaitWrite,
    threadWaitReadSTM,
    threadWaitWriteSTM,
    closeFdWith,

    -- * Time
    threadDelay,
    registerDelay,
    timeout,
    Timeout,

    -- * The same with durations
    -- $durations
    delayFor,
    timeoutFor,
  )
where

import Control.Concurrent (ThreadId, forkIOWithUnmask, killThread, myThreadId)
import Control.Concurrent.STM (STM, atomically, newTVarIO, readTVar, retry, throwSTM, writeTVar)
import Control.Exception hiding (handle)
import Control.Monad (unless, void, when)
import Data.Unique (newUnique)
import Foreign.C.Error (Errno (..), eBADF)
import GHC.Conc (TVar (..), labelThread)
import GHC.Exts (mkWeak#)
import GHC.IO (IO (..))
import System.IO.Unsafe (unsafeInterleaveIO)
import System.Posix.Types (Fd)
import System.Timeout (Timeout)
import Unsafe.Coerce (unsafeCoerce)
import Weft.Core.Counters
import Weft.Core.EventLog (Marker (Waited), mark)
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.Core.Time
import Weft.Core.Timer (Expiry (..), cancelTimer)
import Weft.Core.Timers (Fresh)
import Weft.FFI.Errno (errnoError)
import Weft.Runtime
import Weft.Sys (newRef, now, readRef, writeRef)
import qualified Weft.Sys as Sys

-- Descriptors ----------------------------------------------------------------------

-- | Block until a descriptor can be read without blocking: there is data, the end
-- of the stream, a connection to accept, or an error. Returns at once for what is
-- always ready (a regular file). Level-triggered: data that was left unread wakes
-- the next call.
--
-- Throws @EBADF@ when the descriptor is negative, not open, or closed by
-- 'closeFdWith' meanwhile. (A descriptor closed behind Weft's back, by @close@
-- itself, is noticed by no kernel mechanism but poll.)
threadWaitRead :: Fd -> IO ()
threadWaitRead = threadWait "threadWaitRead" evtRead

-- | Block until a descriptor can be written without blocking, or has an error.
-- Otherwise as 'threadWaitRead'.
threadWaitWrite :: Fd -> IO ()
threadWaitWrite = threadWait "threadWaitWrite" evtWrite

threadWait :: String -> Events -> Fd -> IO ()
threadWait loc evs fd = mask_ $ do
  m <- currentManager
  box <- Sys.newEmptyMVar
  placed <- register (managerRegistry m) m fd evs OneShot (\_ e -> void (Sys.tryPutMVar box e))
  case placed of
    Ready -> pure ()
    ManagerGone -> threadWait loc evs fd
    Placed key -> do
      countShared (managerCounters m) Waits
      mark (managerEventLog m) Waited
      found <- Sys.takeMVar box `onException` unregister (managerRegistry m) fd key
      case verdict loc found of
        Right () -> pure ()
        Left (Just err) -> ioError err
        Left Nothing -> threadWait loc evs fd

-- | Ready, or an error, or neither since the manager was stopped.
verdict :: String -> Events -> Either (Maybe IOError) ()
verdict loc found
  | found `includes` evtOrphaned = Left Nothing
  | found `includes` evtClose = let Errno e = eBADF in Left (Just (errnoError loc e))
  | otherwise = Right ()

-- | Register now, wait later: the transaction succeeds once the descriptor can be
-- read, or throws @EBADF@ if it is closed; the action gives the wait up. If
-- neither is reachable any more the registration is given up by itself.
threadWaitReadSTM :: Fd -> IO (STM (), IO ())
threadWaitReadSTM = threadWaitSTM "threadWaitReadSTM" evtRead

-- | 'threadWaitReadSTM' for writing.
threadWaitWriteSTM :: Fd -> IO (STM (), IO ())
threadWaitWriteSTM = threadWaitSTM "threadWaitWriteSTM" evtWrite

-- Two variables. The callback holds 'result', so that a thread blocked on it is
-- never taken for deadlocked. Only the two results of the call hold 'handle', and
-- through it the weak pointer's key: when both are garbage the registration goes.
threadWaitSTM :: String -> Events -> Fd -> IO (STM (), IO ())
threadWaitSTM loc evs fd = mask_ $ do
  result <- newTVarIO Nothing
  handle <- newTVarIO result
  current <- newRef Nothing
  let arm = do
        m <- currentManager
        placed <- register (managerRegistry m) m fd evs OneShot (\_ e -> settle e)
        case placed of
          Ready -> settle evs
          ManagerGone -> arm
          Placed key -> do
            countShared (managerCounters m) Waits
            writeRef current (Just (managerRegistry m, key))
      settle e = case verdict loc e of
        Left Nothing -> arm `catch` \err -> finish (Left (err :: IOError))
        Left (Just err) -> finish (Left err)
        Right () -> finish (Right ())
      finish = atomically . writeTVar result . Just
      cancel = readRef current >>= mapM_ (\(registry, key) -> unregister registry fd key)
  arm
  finalizer handle cancel
  let wait = readTVar handle >>= readTVar >>= maybe retry (either throwSTM pure)
  pure (wait, cancel >> void (atomically (readTVar handle)))

-- | Run an action when the variable is garbage.
finalizer :: TVar a -> IO () -> IO ()
finalizer var@(TVar var#) (IO act) = IO $ \s -> case mkWeak# var# var act s of (# s', _ #) -> (# s', () #)

-- | Close a descriptor with the given action, so that threads that wait for it,
-- here or on a "Weft.Socket" of that number, get @EBADF@ and nobody begins to
-- wait meanwhile. The cost does not depend on the number of capabilities.
closeFdWith :: (Fd -> IO ()) -> Fd -> IO ()
closeFdWith close fd = do
  registry <- currentRegistry
  closeRegistered registry fd (close fd)

-- Time ---------------------------------------------------------------------------------

-- | Block for at least this many microseconds, by the monotonic clock. Zero and
-- negative numbers return at once; 'maxBound' is 292 thousand years and counts as
-- for ever.
threadDelay :: Int -> IO ()
threadDelay = delayFor . microseconds

-- $durations
-- See "Weft.Timer", where they have better names.

-- | 'threadDelay' for a duration.
delayFor :: Duration -> IO ()
delayFor d
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
  | otherwise = timeoutFor (microseconds us) act

-- | 'timeout' with a duration; 'maxBound' is no limit, and one that is not positive
-- is over before the action is run.
timeoutFor :: Duration -> IO a -> IO (Maybe a)
timeoutFor d act
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
