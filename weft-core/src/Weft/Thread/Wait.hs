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
    waitDescriptor,
    End (..),
    Ends (..),
    threadWait,
    threadWaitSTM,
  )
where

import Control.Concurrent.STM (STM, atomically, newTVarIO, readTVar, retry, throwSTM, writeTVar)
import Control.Exception (catch, mask_, onException)
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
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
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

-- | The error of a wait whose descriptor was closed meanwhile.
closedError :: Ends -> IOError
closedError ends = let Errno e = eBADF in errnoError (endClosed ends) e

-- | Block until one of these events.
threadWait :: Ends -> Events -> Fd -> IO ()
threadWait ends evs fd = do
  end <- waitOnce ends evs fd (fmap Just) never
  when (end == Closed) (ioError (closedError ends))

-- | How a wait with a deadline has ended.
data End
  = -- | One of the events has happened, or the descriptor is always ready.
    Happened
  | -- | The descriptor was closed, before or meanwhile.
    Closed
  | -- | The deadline has passed.
    Late
  deriving (Eq)

-- | Block until one of these events of a descriptor that the program owns, until it is closed, or until the deadline.
-- Unlike 'Weft.Core.Descriptor.perform', whose registration stays armed, this registers for one event. That is one more
-- system call for each wait, but events during the reader's work do not wake the dispatcher. It suits descriptors that
-- deliver many messages, each with an event of its own. Throws an 'IOError' if the kernel refuses the registration.
waitDescriptor :: Descriptor -> Events -> Instant -> IO End
waitDescriptor d evs = waitOnce (endsOf "") evs (descriptorFd d) whileOpen
  where
    -- The number cannot be reused before the registration is made; closing the descriptor then finds the registration.
    whileOpen act = useDescriptor d (Sys.attempt act) >>= sequence

-- | Register for one event and wait for it; again, if the manager is stopped meanwhile. The function runs the
-- registration, unless the descriptor is closed.
waitOnce :: Ends -> Events -> Fd -> (IO Placed -> IO (Maybe Placed)) -> Instant -> IO End
waitOnce ends evs fd whileOpen deadline = mask_ again
  where
    again = do
      box <- Sys.newEmptyMVar
      placed <- registerOnce ends evs fd whileOpen $ \m e -> do
        stamp <- presentStamp (managerLatency m)
        void (Sys.tryPutMVar box (Woken e stamp))
      case placed of
        AtOnce end -> pure end
        Standing m key -> do
          mark (managerEventLog m) Waited
          timer <- if deadline == never then pure Nothing else Just <$> addTimer m deadline (void (Sys.tryPutMVar box TooLate))
          let withdraw = mapM_ cancelTimer timer >> void (unregister (managerRegistry m) fd key)
          woken <- Sys.takeMVar box `onException` withdraw
          case woken of
            TooLate -> Late <$ withdraw
            Woken found stamp -> do
              mapM_ cancelTimer timer
              when (stamp /= unstamped) (noteRunning (managerLatency m) stamp)
              maybe again pure (endBy found)
{-# INLINE waitOnce #-}

-- | The message that wakes a waiting thread: the events, and their time stamp; or the deadline has passed.
data Woken = Woken !Events !Stamp | TooLate

-- | How these events end a wait. 'Nothing' if the manager was stopped: another one has to be waited with.
endBy :: Events -> Maybe End
endBy found
  | found `includes` evtOrphaned = Nothing
  | found `includes` evtClose = Just Closed
  | otherwise = Just Happened

-- | A registration for one event: over at once, or made, with a manager and by a key.
data Once = AtOnce !End | Standing !Manager !Int

-- | Register for one event, with the manager of the caller's capability; masked. The first function runs the
-- registration, unless the descriptor is closed. The second one gets the events ('endBy'), on the thread that runs the
-- manager.
registerOnce :: Ends -> Events -> Fd -> (IO Placed -> IO (Maybe Placed)) -> (Manager -> Events -> IO ()) -> IO Once
registerOnce ends evs fd whileOpen told = do
  m <- currentManager
  placed <- whileOpen . modifyIOError (endRefused ends) $ register (managerRegistry m) m fd evs OneShot (\_ e -> told m e)
  case placed of
    Nothing -> pure (AtOnce Closed)
    Just Ready -> AtOnce Happened <$ endAlwaysReady ends
    Just ManagerGone -> registerOnce ends evs fd whileOpen told
    Just (Placed key) -> Standing m key <$ countShared (managerCounters m) Waits
{-# INLINE registerOnce #-}

-- | Register now and wait later. The transaction succeeds when the descriptor can be read, and throws @EBADF@ if it
-- is closed. The action cancels the wait. If both are garbage, the registration is removed.
threadWaitReadSTM :: Fd -> IO (STM (), IO ())
threadWaitReadSTM = threadWaitSTM (endsOf "threadWaitReadSTM") evtRead

-- | 'threadWaitReadSTM' for writing.
threadWaitWriteSTM :: Fd -> IO (STM (), IO ())
threadWaitWriteSTM = threadWaitSTM (endsOf "threadWaitWriteSTM") evtWrite

-- | The registrations of a wait of 'threadWaitSTM'. Changed atomically: by the thread that has registered (the caller,
-- or a dispatcher that is being stopped), and by the one that cancels, which may be at work at the same time.
--
-- @
--   Armed keys   -> Armed (key : keys)  a registration was made
--                -> Cancelled           cancelled; that thread removes the registrations of all keys
--   Cancelled    for good; a thread that has registered meanwhile removes its registration itself
-- @
--
-- A dispatcher that stops takes the registration out of the registry first and then makes another one with a new
-- dispatcher. So there may be several keys. The registry ignores those of registrations that have ended.
data Registrations
  = Armed [(Registry Manager, Int)]
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
  standing <- newIORef (Armed [])
  image <- forkGeneration
  let arm = do
        placed <- registerOnce ends evs fd (fmap Just) (\_ e -> maybe armAgain finished (endBy e))
        case placed of
          AtOnce end -> finished end
          Standing m key -> do
            wanted <- atomicModifyIORef' standing (noting (managerRegistry m, key))
            unless wanted (void (unregister (managerRegistry m) fd key))
      noting _ Cancelled = (Cancelled, False)
      noting key (Armed keys) = (Armed (key : keys), True)
      armAgain = do
        found <- readIORef standing
        case found of
          Cancelled -> pure ()
          Armed _ -> arm `catch` \err -> finish (Left (err :: IOError))
      finished end = finish (if end == Closed then Left (closedError ends) else Right ())
      finish = atomically . writeTVar result . Just
      -- Masked: nobody else removes the registrations afterwards. In a forked child they are not in use, and a thread
      -- that is missing there may hold a lock of the parent's registry.
      cancel = mask_ $ do
        before <- atomicModifyIORef' standing (\found -> (Cancelled, found))
        generation <- forkGeneration
        case before of
          Armed keys | generation == image -> mapM_ (\(registry, key) -> unregister registry fd key) keys
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
