-- |
-- Operations on descriptors: try, and park while the kernel says not yet; deadlines;
-- closing. The means of "Weft.Hybrid.Socket", and of programs that have descriptors of
-- other kinds (pipes, say).
--
-- A descriptor is registered, edge-triggered, with the manager of the loop on which a thread first
-- had to wait for it; that loop then runs who waits for it. So a thread stays with its descriptors.
-- When work was shared it has moved: then its descriptors follow it, each when it next waits for
-- it. Of several threads that use a descriptor, the others come along.
--
-- @
--   owner  Nobody  -> Moving l    a thread on loop l that is going to wait, and uses it ('acquire')
--          Owner k -> Moving l    the same, which takes it from loop k's back end
--          Moving l -> Owner l    that thread, when l's back end has it; or Nobody, if that refused
-- @
--
-- Who finds it moving just waits: the new registration reports what is there.
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
    perform,
    immediately,

    -- * Readiness
    waitReadable,
    waitWritable,
  )
where

import Control.Exception (toException, try)
import Control.Monad (forM_, unless, void, when)
import Foreign.C.Error (Errno (..), eBADF, eTIMEDOUT)
import Foreign.C.Types (CInt)
import GHC.Exts (oneShot)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Core.Backend
import Weft.Core.Descriptor (Attempt (..))
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
import Weft.FFI.Errno (errnoError, throwErrnoCode)
import Weft.FFI.Socket (cClose, cSetNonBlocking)
import Weft.Hybrid.DescriptorTable
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (touchRef)
import Weft.Sys (Ref, mask_, newRef, onException, readRef, writeRef)

-- | Take charge of an open descriptor of a stream: it is made non-blocking and belongs
-- to the result. Nobody else may close it.
adopt :: Fd -> IO Descriptor
adopt fd@(Fd n) = cSetNonBlocking n >> openDescriptor True fd

-- | Close: operations that wait, and those to come, fail with @EBADF@; the descriptor
-- is closed when nobody is inside a system call with it. 'False': it was closed
-- already. From any thread.
closeDescriptor :: Descriptor -> IO Bool
closeDescriptor d = mask_ $ do
  outcome <- shut d
  case outcome of
    WasShut -> pure False
    _ -> do
      owner <- readOwner d
      forM_ (loopOf owner) $ \l -> wakeQueue (toLoop l) d Reading >> wakeQueue (toLoop l) d Writing
      when (outcome == YoursToClose) (closeNumber d)
      pure True

-- | Nobody uses it any more. The number is the kernel's after this.
closeNumber :: Descriptor -> IO ()
closeNumber d = do
  readOwner d >>= disown d
  let Fd n = descriptorFd d in cClose n

-- Operations --------------------------------------------------------------------------

-- | A descriptor as operations use it: with what has to be alive until they are done, and
-- until when they may take.
data Source = Source
  { sourceDescriptor :: {-# UNPACK #-} !Descriptor,
    sourceAnchor :: !(Ref ()),
    sourceDeadline :: {-# UNPACK #-} !Instant
  }

-- | One without a deadline, that nothing but its owner closes.
sourceOf :: Descriptor -> Source
sourceOf d = Source d noAnchor never

noAnchor :: Ref ()
noAnchor = unsafePerformIO (newRef ())
{-# NOINLINE noAnchor #-}

-- | The place that errors name, and the direction.
data Kind = Kind String !Direction

-- | An operation under way: what is tried, what comes after it, and its own trace, which
-- tries anew. Made for each try; a thread that waits keeps only that trace.
data Operation a = Operation
  { opSource :: !Source,
    opKind :: !Kind,
    opTry :: CInt -> IO (Attempt a),
    opThen :: a -> Trace,
    opAgain :: Trace
  }

-- | Run an operation until it is done, failed, or the deadline has passed; then an
-- 'IOError' with the place is raised. What is tried must neither block nor throw. It
-- is tried once more after the deadline, so what came in time is not lost. A thread
-- that waits can be interrupted, and then nothing was done.
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

-- | Try if there are news, else wait for them.
begin :: Operation a -> Loop -> Context -> IO Trace
begin o@Operation {opSource = Source d _ _, opKind = Kind _ dir} l ctx = do
  queue <- readQueue d dir
  case queue of
    Signalled -> casQueue d dir queue NotReady >>= \ok -> if ok then attempt True o l ctx else begin o l ctx
    _ -> await o l ctx

-- | Try, and if it is too early wait, or, after the deadline, fail.
attempt :: Bool -> Operation a -> Loop -> Context -> IO Trace
attempt again o@Operation {opSource = Source d anchor _, opKind = Kind loc dir} l ctx = do
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
    passOn = wakeQueue (onLoop l) d dir
    failed e = pure (Throw (toException (errnoError loc e)))

errnoCode :: Errno -> CInt
errnoCode (Errno e) = e

-- Waiting -------------------------------------------------------------------------------

-- | Wait at the queue. A thread without an identity and without a deadline needs no more
-- than its place there.
await :: Operation a -> Loop -> Context -> IO Trace
await o@Operation {opSource = Source d _ deadline, opKind = Kind _ dir} l ctx = do
  reported <- try (attach l d dir)
  case reported of
    Left e -> pure (Throw (toException (e :: IOError)))
    Right ()
      | Anonymous <- contextIdentity ctx,
        deadline == never -> do
        joined <- joinQueue d dir 0 (opAgain o) (Waiter ctx 0)
        if joined then Parked <$ recheck l d dir else begin o l ctx
      | otherwise -> do
        n <- newNumber
        parkWith ctx (leaveQueue d dir n) (waitNumbered n o l) (begin o l ctx)

-- | It may have been closed before the thread was in its place.
recheck :: Loop -> Descriptor -> Direction -> IO ()
recheck l d dir = do
  open <- isOpen d
  unless open (wakeQueue (onLoop l) d dir)

-- | In its place, with a timer if there is a deadline.
waitNumbered :: Int -> Operation a -> Loop -> Waiter -> IO Bool
waitNumbered n o@Operation {opSource = Source d _ deadline, opKind = Kind _ dir} l w
  | deadline == never = do
    joined <- joinQueue d dir n (opAgain o) w
    joined <$ recheck l d dir
  | otherwise = do
    timer <- newRef (pure ())
    let again = Call $ \l' ctx -> do
          stop <- readRef timer
          stop
          begin o l' ctx
        expired = do
          mine <- leaveQueue d dir n
          early <- isEarly l deadline
          when mine (resume (onLoop l) w (\() -> if early then again else Call (attempt False o)))
    -- Before it can be resumed elsewhere; the timer fires on this loop, so not before the end of this.
    t <- addOwnTimer (loopManager l) deadline expired
    writeRef timer (void (cancelTimer t))
    joined <- joinQueue d dir n again w
    unless joined (void (cancelTimer t))
    joined <$ recheck l d dir

-- | Take it out of its owner's back end.
disown :: Descriptor -> Owner -> IO ()
disown d owner = forM_ (loopOf owner) $ \l -> do
  let m = loopManager l
  alive <- isAlive m
  when alive (backendForget (managerBackend m) (descriptorFd d))

-- | Have this loop's manager report the descriptor.
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
        when ours (disown d owner >> arm l d)
        lastOut <- release d
        when lastOut (closeNumber d)
        unless ours (attach l d dir)

-- | One system call. The caller is inside, and taken out if it fails.
arm :: Loop -> Descriptor -> IO ()
arm l d = do
  armed <- backendArm backend (descriptorFd d) tok Edge wanted `onException` fails
  settle (loopOwner l)
  when (armed == AlwaysReady) tryAll
  where
    backend = managerBackend (loopManager l)
    tok = externalToken (descriptorFd d) (descriptorGeneration d)
    wanted = evtRead <> evtWrite <> evtPeerClosed <> evtUrgent
    settle = void . casOwner d (loopMoving l)
    tryAll = mapM_ (wakeQueue (onLoop l) d) [Reading, Writing]
    -- Those who wait find out for themselves.
    fails = do
      settle Nobody
      tryAll
      lastOut <- release d
      when lastOut (closeNumber d)

-- Readiness -------------------------------------------------------------------------------

-- | Park until the kernel reports that reading may be worth it. Only after an attempt that
-- said @EAGAIN@; and it may come for nothing, so try again in a loop. Raises @EBADF@ when
-- the descriptor is closed.
waitReadable :: Descriptor -> Hybrid ()
waitReadable d = perform (Kind "Weft.Hybrid.waitReadable" Reading) (sourceOf d) (const (pure (Drained ())))

-- | 'waitReadable' for writing.
waitWritable :: Descriptor -> Hybrid ()
waitWritable d = perform (Kind "Weft.Hybrid.waitWritable" Writing) (sourceOf d) (const (pure (Drained ())))
