{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- | Waiting for descriptors by GHC's threads, on the manager of the caller's capability. "Weft.Thread" exports it,
-- without the last group.
module Weft.Thread.Wait
  ( threadWaitRead,
    threadWaitWrite,
    threadWaitReadSTM,
    threadWaitWriteSTM,
    closeFdWith,

    -- * For other packages
    waitDescriptorRead,
    Ends (..),
    threadWait,
    threadWaitSTM,
  )
where

import Control.Concurrent.STM (STM, atomically, newTVarIO, readTVar, retry, throwSTM, writeTVar)
import Control.Exception (IOException, catch, mask_, onException, throwIO, try)
import Control.Monad (unless, void, when)
import Data.IORef (atomicModifyIORef', newIORef, readIORef)
import Foreign.C.Error (Errno (..), eBADF)
import GHC.Conc (TVar (..))
import GHC.Exts (mkWeak#)
import GHC.IO (IO (..))
import System.IO.Error (modifyIOError)
import System.Posix.Types (Fd)
import Weft.Core.Counters
import Weft.Core.Descriptor (Descriptor, descriptorFd, useDescriptor)
import Weft.Core.EventLog (Marker (Waited), mark)
import Weft.Core.Events
import Weft.Core.Latency (noteRunning, presentStamp)
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.FFI.Errno (errnoError)
import Weft.Runtime.Managers
import Weft.Sys (forkGeneration)
import qualified Weft.Sys as Sys

-- | Block until a descriptor can be read without blocking: there is data, the end
-- of the stream, a connection to accept, or an error. Returns at once if the descriptor is
-- always ready (a regular file). Level-triggered: if data was left unread, the next call returns
-- at once.
--
-- Throws @EBADF@ if the descriptor is negative or not open, or if 'closeFdWith' closes it
-- meanwhile. (If it is closed by close(2) directly, only poll notices that.)
threadWaitRead :: Fd -> IO ()
threadWaitRead = threadWait (endsOf "threadWaitRead") evtRead

-- | Block until a descriptor can be written without blocking, or has an error.
-- Otherwise as 'threadWaitRead'.
threadWaitWrite :: Fd -> IO ()
threadWaitWrite = threadWait (endsOf "threadWaitWrite") evtWrite

-- | How a wait ends if its descriptor does not become ready.
data Ends = Ends
  { -- | The error if it cannot be registered, from that of the back end.
    endRefused :: IOError -> IOError,
    -- | What is done if it is always ready.
    endAlwaysReady :: IO (),
    -- | The location in the error if it is closed meanwhile.
    endClosed :: String
  }

-- | The ends of Weft's own function of that name.
endsOf :: String -> Ends
endsOf = Ends id (pure ())

-- | Block until one of these events.
threadWait :: Ends -> Events -> Fd -> IO ()
threadWait ends evs fd = waitOnce ends evs fd (fmap Just) (threadWait ends evs fd)

-- | Block until a descriptor that the program owns can be read, or is closed. The location is for error messages.
-- Unlike 'Weft.Core.Descriptor.perform', whose registration stays armed, this registers for one event. That is one more
-- system call for each wait, but events during the reader's work do not wake the dispatcher. It suits descriptors that
-- deliver many messages, each with an event of its own. Throws @EBADF@ if the descriptor is closed meanwhile. Returns
-- at once if it was closed before.
waitDescriptorRead :: String -> Descriptor -> IO ()
waitDescriptorRead loc d = waitOnce (endsOf loc) evtRead (descriptorFd d) whileOpen (waitDescriptorRead loc d)
  where
    -- The number cannot be reused before the registration is made; closing the descriptor then finds the registration.
    whileOpen act = useDescriptor d (try act) >>= traverse (either (throwIO :: IOException -> IO a) pure)

-- | Register for one event and wait for it. The function runs the registration, unless the descriptor is closed. The
-- last argument waits again, if the manager was stopped.
waitOnce :: Ends -> Events -> Fd -> (IO Placed -> IO (Maybe Placed)) -> IO () -> IO ()
waitOnce ends evs fd whileOpen again = mask_ $ do
  m <- currentManager
  box <- Sys.newEmptyMVar
  placed <- whileOpen . modifyIOError (endRefused ends) . register (managerRegistry m) m fd evs OneShot $ \_ e -> do
    stamp <- presentStamp (managerLatency m)
    void (Sys.tryPutMVar box (Woken e stamp))
  case placed of
    Nothing -> pure ()
    Just Ready -> endAlwaysReady ends
    Just ManagerGone -> again
    Just (Placed key) -> do
      countShared (managerCounters m) Waits
      mark (managerEventLog m) Waited
      Woken found stamp <- Sys.takeMVar box `onException` unregister (managerRegistry m) fd key
      when (stamp /= unstamped) (noteRunning (managerLatency m) stamp)
      case verdict ends found of
        Right () -> pure ()
        Left (Just err) -> ioError err
        Left Nothing -> again
{-# INLINE waitOnce #-}

-- | The message that wakes a waiting thread: the events, and their time stamp.
data Woken = Woken !Events !Stamp

-- | Whether the descriptor is ready, has an error, or neither, because the manager was stopped.
verdict :: Ends -> Events -> Either (Maybe IOError) ()
verdict ends found
  | found `includes` evtOrphaned = Left Nothing
  | found `includes` evtClose = let Errno e = eBADF in Left (Just (errnoError (endClosed ends) e))
  | otherwise = Right ()

-- | Register now and wait later. The transaction succeeds when the descriptor can be read, and throws @EBADF@ if it
-- is closed. The action cancels the wait. If both are garbage, the registration is removed.
threadWaitReadSTM :: Fd -> IO (STM (), IO ())
threadWaitReadSTM = threadWaitSTM (endsOf "threadWaitReadSTM") evtRead

-- | 'threadWaitReadSTM' for writing.
threadWaitWriteSTM :: Fd -> IO (STM (), IO ())
threadWaitWriteSTM = threadWaitSTM (endsOf "threadWaitWriteSTM") evtWrite

-- | The registrations of a wait of 'threadWaitSTM'. Changed atomically: by the thread that has registered (the caller, or
-- a dispatcher that is being stopped), and by the one that cancels, which may be at work at the same time.
--
-- @
--   Standing keys   -> Standing (key : keys)  a registration was made
--                   -> Cancelled              cancelled; that thread removes the registrations of all keys
--   Cancelled       for good; a thread that has registered meanwhile removes its registration itself
-- @
--
-- A dispatcher that stops takes the registration out of the registry first and then makes another one with a new
-- dispatcher. So there may be several keys. The registry ignores those of registrations that have ended.
data Standing
  = Standing [(Registry Manager, Int)]
  | Cancelled

-- | Register for these events and wait later, as 'threadWaitReadSTM' does.
--
-- There are two variables. The callback holds @result@, so that the run-time system never reports a thread blocked on
-- it as deadlocked. Only the two results of the call hold @handle@, and through it the weak pointer's key: when both
-- are garbage, the registration is removed.
threadWaitSTM :: Ends -> Events -> Fd -> IO (STM (), IO ())
threadWaitSTM ends evs fd = mask_ $ do
  result <- newTVarIO Nothing
  handle <- newTVarIO result
  standing <- newIORef (Standing [])
  image <- forkGeneration
  let arm = do
        m <- currentManager
        placed <- modifyIOError (endRefused ends) $ register (managerRegistry m) m fd evs OneShot (\_ e -> settle e)
        case placed of
          Ready -> endAlwaysReady ends >> settle evs
          ManagerGone -> arm
          Placed key -> do
            countShared (managerCounters m) Waits
            wanted <- atomicModifyIORef' standing (noting (managerRegistry m, key))
            unless wanted (void (unregister (managerRegistry m) fd key))
      noting _ Cancelled = (Cancelled, False)
      noting key (Standing keys) = (Standing (key : keys), True)
      armAgain = do
        found <- readIORef standing
        case found of
          Cancelled -> pure ()
          Standing _ -> arm `catch` \err -> finish (Left (err :: IOError))
      settle e = case verdict ends e of
        Left Nothing -> armAgain
        Left (Just err) -> finish (Left err)
        Right () -> finish (Right ())
      finish = atomically . writeTVar result . Just
      -- Masked: nobody else removes the registrations afterwards. In a forked child they are not in use, and a thread
      -- that is missing there may hold a lock of the parent's registry.
      cancel = mask_ $ do
        before <- atomicModifyIORef' standing (\found -> (Cancelled, found))
        generation <- forkGeneration
        case before of
          Standing keys | generation == image -> mapM_ (\(registry, key) -> unregister registry fd key) keys
          _ -> pure ()
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
  closeRegistered registry fd (const (close fd))
