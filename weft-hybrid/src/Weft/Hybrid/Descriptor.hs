-- |
-- Operations on descriptors: try, and park while the kernel says not yet; deadlines;
-- closing. The means of "Weft.Hybrid.Socket", and of programs that have descriptors of
-- other kinds (pipes, say).
--
-- A descriptor is registered once, edge-triggered, with the manager of the loop on which
-- a thread first had to wait for it; that loop then runs who waits for it.
module Weft.Hybrid.Descriptor
  ( Descriptor,
    descriptorFd,
    adopt,
    openDescriptor,
    closeDescriptor,
    isOpen,

    -- * Operations
    Direction (..),
    Attempt (..),
    perform,
    performKeeping,
    immediately,

    -- * Readiness
    waitReadable,
    waitWritable,
  )
where

import Control.Exception (toException, try)
import Control.Monad (unless, void, when)
import Foreign.C.Error (Errno (..), eBADF, eTIMEDOUT)
import Foreign.C.Types (CInt)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Core.Backend
import Weft.Core.Endpoint (Attempt (..))
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
import Weft.FFI.Errno (errnoError, throwErrnoCode)
import Weft.FFI.Socket (cClose, cSetNonBlocking)
import Weft.Hybrid.Gate
import Weft.Hybrid.Monad hiding (enter)
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys (Ref, mask_, newRef, onException, readRef, touchRef, writeRef)

-- | Take charge of an open descriptor: it is made non-blocking and belongs to the
-- result. Nobody else may close it.
adopt :: Fd -> IO Descriptor
adopt fd@(Fd n) = cSetNonBlocking n >> openDescriptor fd

-- | Close: operations that wait, and those to come, fail with @EBADF@; the descriptor
-- is closed when nobody is inside a system call with it. 'False': it was closed
-- already. From any thread.
closeDescriptor :: Descriptor -> IO Bool
closeDescriptor d = mask_ $ do
  outcome <- shut d
  case outcome of
    Nothing -> pure False
    Just mine -> do
      owner <- readOwner d
      case owner of
        Owner l -> admitAll (toLoop l) d Reading >> admitAll (toLoop l) d Writing
        Nobody -> pure ()
      when mine (release d)
      pure True

-- | Nobody uses it any more. Of its generation; the number is the kernel's after this.
release :: Descriptor -> IO ()
release d = do
  owner <- readOwner d
  case owner of
    Owner l -> do
      let m = loopManager l
      alive <- isAlive m
      when alive (backendForget (managerBackend m) (descriptorFd d))
    Nobody -> pure ()
  let Fd n = descriptorFd d in cClose n

-- Operations --------------------------------------------------------------------------

-- | An operation under way: where it is, with what, which way, until when, what is
-- tried, for a thread in that context, and what comes after it.
data Operation a = Operation
  { opPlace :: String,
    opDescriptor :: !Descriptor,
    opAnchor :: !(Ref ()),
    opDirection :: !Direction,
    opDeadline :: !Instant,
    opTry :: CInt -> IO (Attempt a),
    opContext :: !Context,
    opThen :: a -> Trace
  }

-- | Run an operation until it is done, failed, or the deadline has passed; then an
-- 'IOError' with the place is raised. What is tried must neither block nor throw. It
-- is tried once more after the deadline, so what came in time is not lost. A thread
-- that waits can be interrupted, and then nothing was done.
perform :: String -> Descriptor -> Direction -> Instant -> (CInt -> IO (Attempt a)) -> Hybrid a
perform = performKeeping noAnchor
{-# INLINE perform #-}

-- | The same; the reference is alive until it is done.
performKeeping :: Ref () -> String -> Descriptor -> Direction -> Instant -> (CInt -> IO (Attempt a)) -> Hybrid a
performKeeping anchor loc d dir deadline op = call $ \l ctx k -> begin (Operation loc d anchor dir deadline op ctx k) l
{-# INLINE performKeeping #-}

noAnchor :: Ref ()
noAnchor = unsafePerformIO (newRef ())
{-# NOINLINE noAnchor #-}

-- | Run a call that needs no waiting and returns a result or @-errno@.
immediately :: (Integral a) => String -> Descriptor -> (CInt -> IO a) -> IO a
immediately loc d op = do
  open <- enter d
  if not open
    then throwErrnoCode loc (errnoCode eBADF)
    else do
      r <- op fd `onException` out
      out
      if r < 0 then throwErrnoCode loc (fromIntegral (negate r)) else pure r
  where
    Fd fd = descriptorFd d
    out = leave d >>= \lastOut -> when lastOut (release d)

-- | Try if there are news, else wait for them.
begin :: Operation a -> Loop -> IO Trace
begin o l = do
  gate <- readGate d dir
  case gate of
    News -> casGate d dir gate Quiet >>= \ok -> if ok then attempt (opThen o) True o l else begin o l
    _ -> await o l
  where
    d = opDescriptor o
    dir = opDirection o

-- | Try, and if it is too early wait, or, after the deadline, fail. The news are the caller's
-- to pass on.
attempt :: (a -> Trace) -> Bool -> Operation a -> Loop -> IO Trace
attempt k again o l = do
  open <- enter d
  if not open
    then admitAll (onLoop l) d dir >> failed (errnoCode eBADF)
    else do
      r <- opTry o fd
      lastOut <- leave d
      when lastOut (release d)
      touchRef (opAnchor o)
      case r of
        Done a -> passOn >> (pure $! k a)
        Drained a -> do
          hides <- mayHideMore d
          when hides passOn
          pure $! k a
        Failed e -> passOn >> failed e
        NotYet
          | again -> await o l
          | otherwise -> failed (errnoCode eTIMEDOUT)
  where
    d@(Descriptor (Fd fd) _) = opDescriptor o
    dir = opDirection o
    passOn = admit (onLoop l) d dir
    failed e = pure (Throw (toException (errnoError (opPlace o) e)))

errnoCode :: Errno -> CInt
errnoCode (Errno e) = e

-- Waiting -------------------------------------------------------------------------------

-- | Wait at the gate, and then try. A thread without an identity and without a deadline needs no more
-- than its place there.
await :: Operation a -> Loop -> IO Trace
await o l = do
  reported <- try (attach l d dir)
  case reported of
    Left e -> pure (Throw (toException (e :: IOError)))
    Right () -> case opContext o of
      Plain | opDeadline o == never -> do
        joined <- joinGate d dir 0 (\() -> Call (\l' _ -> attempt (opThen o) True o l')) (Waiter Plain 0)
        if joined then checked else retry
      _ -> do
        n <- newNumber
        parkWith (opContext o) (takeOut d dir n) (waitNumbered n o l checked) retry
  where
    d = opDescriptor o
    dir = opDirection o
    retry = attempt (opThen o) True o l
    -- It may have been closed before the thread was in its place.
    checked = do
      open <- isOpen d
      unless open (admitAll (onLoop l) d dir)
      pure Parked

-- | In its place, with a timer if there is a deadline. The thread comes back sheltered, for the
-- news that it was given are its to pass on.
waitNumbered :: Int -> Operation a -> Loop -> IO Trace -> Waiter -> IO Bool
waitNumbered n o l checked w = do
  timer <- newRef (pure ())
  let goOn more () = Call $ \l' _ -> do
        stop <- readRef timer
        stop
        attempt (Enter (opContext o) . const . opThen o) more o l'
      expired = do
        mine <- takeOut d dir n
        when mine (resumeSheltered w (goOn False))
  joined <- joinGate d dir n (goOn True) w
  when joined $ do
    when (opDeadline o /= never) $ do
      t <- addOwnTimer (loopManager l) (opDeadline o) expired
      writeRef timer (void (cancelTimer t))
    void checked
  pure joined
  where
    d = opDescriptor o
    dir = opDirection o
    resumeSheltered (Waiter ctx _) task = awaken w >> onLoop l (sheltered ctx) task

-- | Have a loop's manager report the descriptor, this loop's if none does yet.
attach :: Loop -> Descriptor -> Direction -> IO ()
attach l d dir = do
  owner <- readOwner d
  case owner of
    Owner l' -> do
      alive <- isAlive (loopManager l')
      if alive then proceed l' else settle owner
    Nobody -> settle owner
  where
    proceed l' = case backendResume (managerBackend (loopManager l')) of
      Nothing -> pure ()
      Just again -> again (descriptorFd d) events >> wakeManager (loopManager l')
    events = case dir of
      Reading -> evtRead <> evtPeerClosed
      Writing -> evtWrite
    settle owner = do
      open <- enter d
      when open $ do
        ours <- casOwner d owner (Owner l)
        when ours (arm l d)
        lastOut <- leave d
        when lastOut (release d)
        unless ours (attach l d dir)

-- | One system call. Inside.
arm :: Loop -> Descriptor -> IO ()
arm l d = do
  armed <- backendArm backend (descriptorFd d) tok Edge wanted `onException` fails
  when (armed == AlwaysReady) (mapM_ (admit (onLoop l) d) [Reading, Writing])
  where
    backend = managerBackend (loopManager l)
    tok = guestToken (descriptorFd d) (descriptorGeneration d)
    wanted = evtRead <> evtWrite <> evtPeerClosed <> evtUrgent
    fails = do
      owner <- readOwner d
      void (casOwner d owner Nobody)
      lastOut <- leave d
      when lastOut (release d)

-- Readiness -------------------------------------------------------------------------------

-- | Park until the kernel reports that reading may be worth it. Only after an attempt that
-- said @EAGAIN@; and it may come for nothing, so try again in a loop. Raises @EBADF@ when
-- the descriptor is closed.
waitReadable :: Descriptor -> Hybrid ()
waitReadable = ready "Weft.Hybrid.waitReadable" Reading

-- | The same for writing.
waitWritable :: Descriptor -> Hybrid ()
waitWritable = ready "Weft.Hybrid.waitWritable" Writing

ready :: String -> Direction -> Descriptor -> Hybrid ()
ready loc dir d = perform loc d dir never (const (pure (Drained ())))
