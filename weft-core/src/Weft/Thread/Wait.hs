{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- GHC's threads that wait for descriptors: "Weft.Thread"'s half of "GHC.Conc", on the manager of the caller's capability.
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

-- | What a waiting thread is told: what happened, and when ('Stamp').
data Woken = Woken !Events !Stamp

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
