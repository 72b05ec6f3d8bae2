-- |
-- Operations on descriptors: try the system call, park after @EAGAIN@, try again; deadlines;
-- closing. "Weft.Hybrid.Socket" is built on it, and so are operations on other descriptors, such as
-- pipes.
--
-- A descriptor is registered, edge-triggered, with the manager of the loop on which a thread first
-- had to wait for it. That loop, its owner, resumes the threads that wait for it. If a thread has moved to another loop
-- (work was shared), its descriptors follow it, each when the thread next waits for it. Other threads that wait
-- for such a descriptor are then resumed on the new loop, unless they are another scheduler's: then on one of its
-- loops.
--
-- @
--   owner  Nobody  -> Moving l    a thread on loop l that is going to wait, and uses it ('acquire')
--          Owner k -> Moving l    such a thread, which takes it from loop k's back end
--          Moving l -> Owner l    that thread, when l's back end has it; Nobody if that refused it
-- @
--
-- A thread that finds it moving just waits: a new registration reports the present readiness.
--
-- @since 0.1.0
module Weft.Hybrid.Descriptor
  ( Descriptor,
    descriptorFd,
    adopt,
    openDescriptor,
    closeDescriptor,
    isOpen,

    -- * Operations
    Source (..),
    sourceOf,
    Kind (..),
    Direction (..),
    Attempt (..),
    decodeResult,
    perform,
    immediately,

    -- * Readiness
    waitReadable,
    waitWritable,
  )
where

import Control.Concurrent (forkIO)
import Control.Exception (toException, try)
import Control.Monad (forM_, join, unless, void, when)
import Foreign.C.Error (Errno (..), eBADF, eTIMEDOUT)
import Foreign.C.Types (CInt)
import GHC.Exts (oneShot)
import System.Posix.Types (Fd (..))
import Weft.Core.Backend
import Weft.Core.Descriptor (Attempt (..), decodeResult)
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
import Weft.FFI.Errno (errnoError, throwErrnoCode, throwIfNegative_)
import Weft.FFI.Socket (cCloseLingering, cCloseNow, cDrains, cSetNonBlocking)
import Weft.Hybrid.DescriptorTable
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (touchRef)
import Weft.Sys (Ref, globalRef, mask_, newRef, onException, readRef, writeRef)

-- | Take ownership of an open descriptor. It is made non-blocking; close it only by
-- 'closeDescriptor'. Throws @EBADF@ if it is negative or not open.
adopt :: Fd -> IO Descriptor
adopt fd@(Fd n) = do
  throwIfNegative_ "Weft.Hybrid.adopt" (cSetNonBlocking n)
  drains <- cDrains n
  d <- openDescriptor True fd
  d <$ unless (drains > 0) (markPiecemeal d)

-- | Close a descriptor. Operations that wait, and all later ones, fail with @EBADF@. The number is given back to the
-- kernel when no thread is inside a system call with it. 'False' if it was closed already. Any thread may call this.
closeDescriptor :: Descriptor -> IO Bool
closeDescriptor d = mask_ $ do
  outcome <- shut d
  case outcome of
    WasShut -> pure False
    _ -> do
      -- These are plain reads, of the owner and the queues. They are not done before other threads see the mark, since
      -- 'shut' ends with an atomic read. A thread that waits enters its queue before it reads the mark ('recheck').
      owner <- readOwner d
      forM_ (loopOf owner) $ \l -> do
        let wake = wakeQueue l toLoop d
            {-# NOINLINE wake #-}
        mapM_ wake [Reading, Writing]
      when (outcome == YoursToClose) (closeNumber d)
      pure True

-- | Give the number back to the kernel. No thread uses it any more. With @SO_LINGER@ set, close(2) waits for the peer,
-- which a GHC thread does, with a duplicate.
closeNumber :: Descriptor -> IO ()
closeNumber d = do
  released <- readOwner d >>= detachDescriptor d
  let Fd n = descriptorFd d
  lingering <- cCloseNow n
  when (lingering >= 0) (void (forkIO (released >> cCloseLingering lingering)))

-- Operations --------------------------------------------------------------------------

-- | The argument of operations: a descriptor, an object that has to stay alive until they are done, and a deadline.
data Source = Source
  { sourceDescriptor :: {-# UNPACK #-} !Descriptor,
    sourceAnchor :: !(Ref ()),
    sourceDeadline :: {-# UNPACK #-} !Instant
  }

-- | A descriptor without a deadline and without a finalizer.
sourceOf :: Descriptor -> Source
sourceOf d = Source d noAnchor never

noAnchor :: Ref ()
noAnchor = globalRef "Weft.Hybrid.Descriptor.noAnchor" (pure ())
{-# NOINLINE noAnchor #-}

-- | The name of the operation, for errors, and its direction.
data Kind = Kind String !Direction

-- | An operation: what is tried, what comes after it, and the trace that runs the operation again from its beginning.
-- It is allocated for each try; a thread that waits keeps only that trace.
data Operation a = Operation
  { opSource :: !Source,
    opKind :: !Kind,
    opTry :: CInt -> IO (Attempt a),
    opThen :: a -> Trace,
    opAgain :: Trace
  }

-- | Run an operation until it is done, has failed, or its deadline has passed; in the last two cases an
-- 'IOError' that names the operation is raised. The action must neither block nor throw. It
-- is tried once more after the deadline, so data that came in time is not lost. A thread
-- that waits can be interrupted; nothing was done then.
perform :: Kind -> Source -> (CInt -> IO (Attempt a)) -> Hybrid a
perform kind s op = Hybrid (oneShot (\k -> let self = Call (\l ctx -> begin (Operation s kind op k self) l ctx) in self))
{-# INLINE perform #-}

-- | Run a call that needs no waiting and returns a result or @-errno@.
immediately :: (Integral a) => String -> Descriptor -> (CInt -> IO a) -> IO a
immediately loc d op = do
  open <- acquire d
  if not open
    then throwErrnoCode loc (errnoCode eBADF)
    else do
      r <- op fd `onException` out
      out
      if r < 0 then throwErrnoCode loc (fromIntegral (negate r)) else pure r
  where
    Fd fd = descriptorFd d
    out = release d >>= \lastOut -> when lastOut (closeNumber d)

-- | Try if the queue is signalled, else wait.
begin :: Operation a -> Loop -> Context -> IO Trace
begin o@Operation {opSource = Source d _ _, opKind = Kind _ dir} l ctx = do
  queue <- readQueue d dir
  case queue of
    Signalled -> casQueue d dir queue NotReady >>= \ok -> if ok then tryOnce True o l ctx else begin o l ctx
    _ -> await o l ctx

-- | Try. After @EAGAIN@ wait, or, if this is the try after the deadline, fail.
tryOnce :: Bool -> Operation a -> Loop -> Context -> IO Trace
tryOnce again o@Operation {opSource = Source d anchor _, opKind = Kind loc dir} l ctx = do
  open <- acquire d
  if not open
    then passOn >> failed (errnoCode eBADF)
    else do
      r <- opTry o fd
      lastOut <- release d
      when lastOut (closeNumber d)
      touchRef anchor
      case r of
        Done a -> passOn >> (pure $! opThen o a)
        Drained a -> do
          hides <- mayHideMore d
          when hides passOn
          pure $! opThen o a
        Failed e -> passOn >> failed e
        NotYet
          | again -> await o l ctx
          | otherwise -> failed (errnoCode eTIMEDOUT)
  where
    Fd fd = descriptorFd d
    passOn = wakeHere l d dir
    failed e = pure (Throw (toException (errnoError loc e)))

errnoCode :: Errno -> CInt
errnoCode (Errno e) = e

-- Waiting -------------------------------------------------------------------------------

-- | Wait in the queue. A thread without an identity and without a deadline takes no memory besides its
-- entry there.
await :: Operation a -> Loop -> Context -> IO Trace
await o@Operation {opSource = Source d _ deadline, opKind = Kind _ dir} l ctx = do
  reported <- try (attach l d dir)
  case reported of
    Left e -> pure (Throw (toException (e :: IOError)))
    Right ()
      | Anonymous <- contextIdentity ctx,
        deadline == never -> do
        joined <- joinQueue d dir 0 (opAgain o) (withHome l (Waiter ctx 0))
        if joined then Parked <$ recheck l d dir else begin o l ctx
      | deadline == never -> do
        n <- newNumber
        parkWith ctx (leaveQueue d dir n) (waitNumbered n o l) (begin o l ctx)
      | otherwise -> do
        n <- newNumber
        timer <- newRef (pure ())
        let withdraw = leaveQueue d dir n >>= \left -> left <$ when left (join (readRef timer))
        parkWith ctx withdraw (waitUntilDeadline n timer o l) (begin o l ctx)

-- | The descriptor may have been closed before the thread was in the queue.
recheck :: Loop -> Descriptor -> Direction -> IO ()
recheck l d dir = do
  open <- isOpen d
  unless open (wakeHere l d dir)

-- | Join the queue.
waitNumbered :: Int -> Operation a -> Loop -> Waiter -> IO Bool
waitNumbered n o@Operation {opSource = Source d _ _, opKind = Kind _ dir} l w = do
  joined <- joinQueue d dir n (opAgain o) (withHome l w)
  joined <$ recheck l d dir

-- | Join the queue, with a timer for the deadline. The action that cancels the timer is put into the reference.
waitUntilDeadline :: Int -> Ref (IO ()) -> Operation a -> Loop -> Waiter -> IO Bool
waitUntilDeadline n timer o@Operation {opSource = Source d _ deadline, opKind = Kind _ dir} l w = do
  -- Set before another thread can resume this one. The timer fires on this loop, so not before this step ends.
  t <- addOwnTimer (loopManager l) deadline expired
  writeRef timer (void (cancelTimer t))
  joined <- joinQueue d dir n again (withHome l w)
  unless joined (void (cancelTimer t))
  joined <$ recheck l d dir
  where
    again = Call $ \l' ctx -> do
      stop <- readRef timer
      stop
      begin o l' ctx
    expired = do
      mine <- leaveQueue d dir n
      early <- isEarly l deadline
      when mine (resume (onLoop l) w (\() -> if early then again else Call (tryOnce False o)))

-- | Remove the descriptor from its owner's back end. The action that it returns waits until that has released the file
-- ('backendForget').
detachDescriptor :: Descriptor -> Owner -> IO (IO ())
detachDescriptor d owner = sequence_ <$> traverse forget (loopOf owner)
  where
    forget l = do
      let m = loopManager l
      alive <- isAlive m
      found <- newRef (pure ())
      when alive (mask_ (unlessFinished m (backendForget (managerBackend m) (descriptorFd d) >>= writeRef found)))
      readRef found

-- | Register the descriptor with this loop's manager.
attach :: Loop -> Descriptor -> Direction -> IO ()
attach l d dir = do
  owner <- readOwner d
  case owner of
    Owner l' | loopManager l' `sameManager` loopManager l -> proceed
    Moving _ -> pure ()
    _ -> move owner
  where
    proceed = case backendResume (managerBackend (loopManager l)) of
      Nothing -> pure ()
      Just again -> again (descriptorFd d) events >> wakeManager (loopManager l)
    events = case dir of
      Reading -> evtRead <> evtPeerClosed
      Writing -> evtWrite
    move owner = do
      open <- acquire d
      when open $ do
        ours <- casOwner d owner (loopMoving l)
        when ours (detachDescriptor d owner >> arm l d)
        lastOut <- release d
        when lastOut (closeNumber d)
        unless ours (attach l d dir)

-- | Register it with the back end: one system call. The caller has acquired it, and releases it; if this throws, it has
-- been released.
arm :: Loop -> Descriptor -> IO ()
arm l d = do
  armed <- backendArm backend (descriptorFd d) tok Edge wanted `onException` fails
  moved (loopOwner l)
  when (armed == AlwaysReady) tryAll
  where
    backend = managerBackend (loopManager l)
    tok = externalToken (descriptorFd d) (descriptorGeneration d)
    wanted = evtRead <> evtWrite <> evtPeerClosed <> evtUrgent
    moved = void . casOwner d (loopMoving l)
    tryAll = mapM_ (wakeHere l d) [Reading, Writing]
    -- Threads that wait try again, and find out for themselves.
    fails = do
      moved Nobody
      tryAll
      lastOut <- release d
      when lastOut (closeNumber d)

-- Readiness -------------------------------------------------------------------------------

-- | Park until the kernel reports that the descriptor may be readable. Use it only after a read that
-- said @EAGAIN@, and in a loop: it may return though nothing can be read. Raises @EBADF@ if
-- the descriptor is closed.
waitReadable :: Descriptor -> Hybrid ()
waitReadable d = perform (Kind "Weft.Hybrid.waitReadable" Reading) (sourceOf d) (const (pure (Drained ())))

-- | 'waitReadable' for writing.
waitWritable :: Descriptor -> Hybrid ()
waitWritable d = perform (Kind "Weft.Hybrid.waitWritable" Writing) (sourceOf d) (const (pure (Drained ())))
