-- |
-- An open descriptor that its owner reads and writes through operations of the
-- form \"try, and wait when the kernel says not yet\": what sockets are made of.
-- It joins a tracked descriptor with the manager that serves it, adds deadlines, and closes
-- the descriptor when the last operation has left it.
--
-- A descriptor is attached to a manager when a thread first has to wait, to the
-- manager of that thread's capability; one that never waits costs no
-- registration; 'prepareDescriptor' does it before. It is attached anew when that manager has stopped, or in a forked
-- child.
module Weft.Core.Descriptor
  ( Descriptor,
    newDescriptor,
    descriptorReadiness,
    descriptorFd,
    Direction (..),

    -- * Operations
    Attempt (..),
    Outcome (..),
    perform,
    performThen,
    useDescriptor,
    useDescriptorToSend,
    prepareDescriptor,
    cutDescriptor,
    descriptorCut,

    -- * Closing
    closeDescriptor,
    closeDescriptorWith,
    descriptorClosed,
  )
where

import Control.Monad (unless, void, when)
import Foreign.C.Types (CInt)
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Counters
import Weft.Core.EventLog (Marker (Waited), mark)
import Weft.Core.Events
import Weft.Core.Latency (noteRunning)
import Weft.Core.Manager
import Weft.Core.Readiness
import Weft.Core.Registry
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
import Weft.Sys

-- | An open descriptor.
data Descriptor = Descriptor
  { -- | Its readiness, and the threads that wait for it.
    descriptorReadiness :: !Readiness,
    -- | The manager that it was attached to last. Written by whoever attaches.
    descriptorManager :: !(Ref (Maybe Manager)),
    -- | The manager for the calling thread, when one is needed.
    descriptorFindManager :: !(IO Manager),
    -- | Gives the descriptor's number back; what is left to be done, which may block, is the
    -- action returned.
    descriptorRelease :: !(IO (IO ()))
  }

-- | Take charge of an open, non-blocking descriptor. The arguments say where to
-- find the registry and a manager for the calling thread, and how to close the
-- descriptor: an action that gives its number back without blocking and returns what
-- is left to be done, outside of every lock.
newDescriptor :: IO (Registry Manager) -> IO Manager -> Fd -> IO (IO ()) -> IO Descriptor
newDescriptor registry manager fd free = do
  r <- registry
  rd <- trackReadiness r fd
  serving <- newRef Nothing
  -- Who has to close cannot be relieved of it by an exception: the waits inside, for
  -- a stripe's lock and for a poll that holds the descriptor, are short.
  let closing = uninterruptibleMask_ (registry >>= \current -> closeRegistered current fd free)
  pure (Descriptor rd serving manager closing)

-- | The descriptor. Only for a moment in which the descriptor is surely open.
descriptorFd :: Descriptor -> Fd
descriptorFd = readinessFd . descriptorReadiness
{-# INLINE descriptorFd #-}

-- | What a system call said.
data Attempt a
  = -- | Not now (@EAGAIN@).
    NotYet
  | -- | Done, and the kernel had no more than that to give or take.
    Drained !a
  | -- | Done; trying again may succeed at once.
    Done !a
  | -- | It failed with that errno.
    Failed !CInt

-- | What became of an operation.
data Outcome a
  = Completed !a
  | -- | It failed with that errno.
    Refused !CInt
  | -- | The descriptor was closed, before or meanwhile, or, for one that sends, cut
    -- ('cutDescriptor').
    DescriptorClosed
  | -- | The deadline passed and the operation still could not be done.
    DeadlinePassed
  deriving (Eq, Show)

-- | Try an operation, and wait and try again until it is done. The operation runs
-- masked; it must neither block nor throw. It is tried once more after the
-- deadline has passed, so that what arrived in time is never lost. Any number of
-- threads may perform operations; those of one direction that wait are served in
-- turn. Interruptible while it waits, and then nothing was done.
perform :: Descriptor -> Direction -> Instant -> IO (Attempt a) -> IO (Outcome a)
perform d dir deadline op = performThen d dir deadline op pure
{-# INLINE perform #-}

-- | The same, and then what follows from the outcome, masked throughout: no exception arrives between the two.
performThen :: Descriptor -> Direction -> Instant -> IO (Attempt a) -> (Outcome a -> IO b) -> IO b
performThen d dir deadline op next = mask_ (again >>= next)
  where
    rd = descriptorReadiness d
    passOn = void (tryPutMVar (token rd dir) unstamped)
    again = do
      free <- tryTakeMVar (token rd dir)
      case free of
        Just _ -> try
        Nothing -> do
          stamp <- waitToken d dir deadline
          if stamp == unstamped
            then try
            else if stamp == tooLate then lastTry else noteWoken d stamp >> try
    try = do
      outcome <- insideFor attemptOnce
      case outcome of
        DeadlinePassed -> again
        _ -> pure outcome
    -- DeadlinePassed stands for "not yet" here.
    attemptOnce = do
      r <- op
      case r of
        Drained a -> do
          more <- mayHideMore rd
          when more passOn
          pure (Completed a)
        Done a -> Completed a <$ passOn
        Failed e -> Refused e <$ passOn
        NotYet -> do
          others <- anyExpired rd dir
          when others passOn
          pure DeadlinePassed
    lastTry = insideFor attemptOnce
    insideFor = case dir of
      Reading -> inside acquire d DescriptorClosed
      Writing -> inside acquireToSend d DescriptorClosed
{-# INLINE performThen #-}

-- | Run a call with the descriptor that neither blocks nor throws; 'Nothing' if the
-- descriptor is closed.
useDescriptor :: Descriptor -> IO a -> IO (Maybe a)
useDescriptor d act = mask_ (inside acquire d Nothing (Just <$> act))
{-# INLINE useDescriptor #-}

-- | The same for one that sends: 'Nothing' also after 'cutDescriptor'.
useDescriptorToSend :: Descriptor -> IO a -> IO (Maybe a)
useDescriptorToSend d act = mask_ (inside acquireToSend d Nothing (Just <$> act))
{-# INLINE useDescriptorToSend #-}

-- | Let nothing more be sent: what went out last was a part of a message, and whatever
-- followed would be taken for its rest.
cutDescriptor :: Descriptor -> IO ()
cutDescriptor = cutSending . descriptorReadiness

-- | Has that happened?
descriptorCut :: Descriptor -> IO Bool
descriptorCut = isSendingCut . descriptorReadiness

-- | Run something that uses the descriptor, if it is open, else give the first
-- argument. Masked; the action does not throw.
inside :: (Readiness -> IO Bool) -> Descriptor -> a -> IO a -> IO a
inside entering d closed act = do
  open <- entering rd
  if open
    then do
      a <- act
      lastOut <- release rd
      when lastOut (giveBack d id)
      pure a
    else do
      wakeAll rd
      pure closed
  where
    rd = descriptorReadiness d
{-# INLINE inside #-}

-- | Close the descriptor; the function runs what may block.
giveBack :: Descriptor -> (IO () -> IO ()) -> IO ()
giveBack d run = descriptorRelease d >>= run
{-# NOINLINE giveBack #-}

-- | Take the token, blocking: the stamp of the event that put it. 'tooLate': the deadline passed, and the token is left
-- to others. Without a deadline the last call is a tail call: a thread that waits keeps no frame of this function.
waitToken :: Descriptor -> Direction -> Instant -> IO Stamp
waitToken d dir deadline = do
  serving <- servingManager d
  case serving of
    Nothing -> pure unstamped -- closed: the caller's attempt finds out
    Just m -> do
      countShared (managerCounters m) Waits
      mark (managerEventLog m) Waited
      case backendResume (managerBackend m) of
        Nothing -> pure ()
        Just resume -> do
          resume (readinessFd rd) (eventOf dir)
          wakeManager m
      if deadline == never then takeMVar (token rd dir) else waitBefore m
  where
    rd = descriptorReadiness d
    eventOf Reading = evtRead <> evtPeerClosed
    eventOf Writing = evtWrite
    passOn = void (tryPutMVar (token rd dir) unstamped)
    -- Should the manager be stopped meanwhile, the timer comes early, and so does
    -- every token ('wakeReadiness'). The word: 0 while both may still happen, 1 when the timer came first, 2
    -- when the token did. Whoever moves it from 0 decides.
    waitBefore m = do
      cell <- newAtomicWords 1
      timer <- addTimer m deadline $ \_ -> do
        found <- casWord cell 0 0 1
        when (found == 0) (noteExpired rd dir)
      let settle = do
            found <- casWord cell 0 0 2
            if found == 0 then True <$ cancelTimer timer else False <$ expiredDone rd dir
      stamp <- takeMVar (token rd dir) `onException` (settle >>= \won -> unless won passOn)
      inTime <- settle
      if inTime then pure stamp else tooLate <$ passOn

-- | No stamp of an event.
tooLate :: Stamp
tooLate = -1

-- | A thread runs that was woken by an event with a stamp.
noteWoken :: Descriptor -> Stamp -> IO ()
noteWoken d stamp = readRef (descriptorManager d) >>= mapM_ (\m -> noteRunning (managerLatency m) stamp)
{-# NOINLINE noteWoken #-}

-- | The living manager that serves the descriptor; the descriptor is attached to one
-- if there is none. 'Nothing': the descriptor is closed.
servingManager :: Descriptor -> IO (Maybe Manager)
servingManager d = do
  serving <- readRef (descriptorManager d)
  case serving of
    Just m -> do
      alive <- isAlive m
      if alive then pure serving else attachDescriptor d
    Nothing -> attachDescriptor d
{-# INLINE servingManager #-}

-- | Attach it now, to the manager of the calling thread's capability, for a thread that is going to wait. To attach needs more stack
-- than all that follows, so a thread that does it first, with little on its stack, may get by with a thread's first stack, of 1 KiB:
-- what does not fit there moves to the next, of 32 KiB, and stays. Throws as an operation would.
prepareDescriptor :: Descriptor -> IO ()
prepareDescriptor d = mask_ (void (attachDescriptor d))

attachDescriptor :: Descriptor -> IO (Maybe Manager)
attachDescriptor d = do
  m <- descriptorFindManager d
  attempted <- inside acquire d (pure ManagerStopped) (attach (managerRegistry m) m (descriptorReadiness d))
  found <- attempted
  case found of
    Serving serving -> Just serving <$ writeRef (descriptorManager d) (Just serving)
    BeingClosed over -> readMVar over >> attachDescriptor d
    ManagerStopped -> do
      closed <- descriptorClosed d
      -- Else stopped in this very moment.
      if closed then pure Nothing else attachDescriptor d
{-# NOINLINE attachDescriptor #-}

-- | Close: no operation begins any more, those that wait end with
-- 'DescriptorClosed', and the descriptor is closed as soon as no thread is inside a
-- system call with it. 'False': it was closed already.
closeDescriptor :: Descriptor -> IO Bool
closeDescriptor = closeDescriptorWith id

-- | The same; the function runs what is left to be done when the number is given back, and may
-- block.
closeDescriptorWith :: (IO () -> IO ()) -> Descriptor -> IO Bool
closeDescriptorWith run d = mask_ $ do
  outcome <- shut (descriptorReadiness d)
  case outcome of
    WasShut -> pure False
    StillUsed -> pure True
    YoursToClose -> True <$ giveBack d run

-- | Has it been closed?
descriptorClosed :: Descriptor -> IO Bool
descriptorClosed = isShut . descriptorReadiness
