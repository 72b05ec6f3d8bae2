{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- Waiting for descriptors by GHC's threads, on the manager of the caller's capability. "Weft.Thread" exports it.
module Weft.Thread.Wait
  ( threadWaitRead,
    threadWaitWrite,
    threadWaitReadSTM,
    threadWaitWriteSTM,
    closeFdWith,
  )
where

import Control.Concurrent.STM (STM, atomically, newTVarIO, readTVar, retry, throwSTM, writeTVar)
import Control.Exception (catch, mask_, onException)
import Control.Monad (void, when)
import Foreign.C.Error (Errno (..), eBADF)
import GHC.Conc (TVar (..))
import GHC.Exts (mkWeak#)
import GHC.IO (IO (..))
import System.Posix.Types (Fd)
import Weft.Core.Counters
import Weft.Core.EventLog (Marker (Waited), mark)
import Weft.Core.Events
import Weft.Core.Latency (noteRunning, presentStamp)
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.FFI.Errno (errnoError)
import Weft.Runtime.Managers
import Weft.Sys (newRef, readRef, writeRef)
import qualified Weft.Sys as Sys

-- | Block until a descriptor can be read without blocking: there is data, the end
-- of the stream, a connection to accept, or an error. Returns at once if the descriptor is
-- always ready (a regular file). Level-triggered: if data was left unread, the next call returns
-- at once.
--
-- Throws @EBADF@ if the descriptor is negative or not open, or if 'closeFdWith' closes it
-- meanwhile. (If it is closed by close(2) directly, only poll notices that.)
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
  placed <- register (managerRegistry m) m fd evs OneShot $ \_ e -> do
    stamp <- presentStamp (managerLatency m)
    void (Sys.tryPutMVar box (Woken e stamp))
  case placed of
    Ready -> pure ()
    ManagerGone -> threadWait loc evs fd
    Placed key -> do
      countShared (managerCounters m) Waits
      mark (managerEventLog m) Waited
      Woken found stamp <- Sys.takeMVar box `onException` unregister (managerRegistry m) fd key
      when (stamp /= unstamped) (noteRunning (managerLatency m) stamp)
      case verdict loc found of
        Right () -> pure ()
        Left (Just err) -> ioError err
        Left Nothing -> threadWait loc evs fd

-- | The message that wakes a waiting thread: the events, and their time stamp.
data Woken = Woken !Events !Stamp

-- | Ready, an error, or neither, because the manager was stopped.
verdict :: String -> Events -> Either (Maybe IOError) ()
verdict loc found
  | found `includes` evtOrphaned = Left Nothing
  | found `includes` evtClose = let Errno e = eBADF in Left (Just (errnoError loc e))
  | otherwise = Right ()

-- | Register now and wait later. The transaction succeeds when the descriptor can be
-- read, and throws @EBADF@ if it is closed. The action cancels the wait. If
-- both are garbage, the registration is cancelled.
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

-- | Run an action when the variable has become garbage.
finalizer :: TVar a -> IO () -> IO ()
finalizer var@(TVar var#) (IO act) = IO $ \s -> case mkWeak# var# var act s of (# s', _ #) -> (# s', () #)

-- | Close a descriptor by the given action. Threads that wait for it,
-- here or by a "Weft.Socket" of that number, get @EBADF@, and no thread can begin to
-- wait meanwhile. The cost does not depend on the number of capabilities.
closeFdWith :: (Fd -> IO ()) -> Fd -> IO ()
closeFdWith close fd = do
  registry <- currentRegistry
  closeRegistered registry fd (close fd)
