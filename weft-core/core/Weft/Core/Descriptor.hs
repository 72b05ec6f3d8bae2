{-# LANGUAGE PatternSynonyms #-}

-- |
-- An open descriptor that is read and written by operations that try a system call, wait after @EAGAIN@, and try
-- again. Sockets are built on it. It adds to "Weft.Core.Readiness" the manager that reports the descriptor's events,
-- deadlines, and closing when the last operation has ended.
--
-- A descriptor is attached to a manager when a thread first has to wait for it, to the
-- manager of that thread's capability; or before, by 'prepareDescriptor'. If no thread ever waits, it is not
-- registered. It is attached again after that manager has stopped, and in a forked
-- child.
module Weft.Core.Descriptor
  ( Descriptor,
    newDescriptor,
    descriptorReadiness,
    descriptorFd,
    Direction (..),

    -- * Operations
    Attempt (..),
    decodeResult,
    Outcome (..),
    perform,
    performThen,
    useDescriptor,
    useDescriptorToSend,
    prepareDescriptor,
    isQuiet,
    forbidSending,
    isSendingForbidden,

    -- * Closing
    closeDescriptor,
    closeDescriptorWith,
    descriptorClosed,
  )
where

import Control.Monad (unless, void, when)
import Data.Coerce (coerce)
import Foreign.C.Error (Errno (..), eAGAIN)
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
    -- | The manager that it was attached to last. Written by the thread that attaches it.
    descriptorManager :: !(Ref (Maybe Manager)),
    -- | Finds the manager for the calling thread, when one is needed.
    descriptorFindManager :: !(IO Manager),
    -- | Closes the descriptor without blocking. The action that it returns finishes the close, and may block.
    descriptorRelease :: !(IO (IO ()))
  }

-- | Take ownership of an open, non-blocking descriptor. The arguments find the registry, find
-- a manager for the calling thread, and close the
-- descriptor. The last one does not block. It is given an action that waits until the back ends have released the file
-- ('backendForget'), and returns one that finishes the close, which is run without any lock.
newDescriptor :: IO (Registry Manager) -> IO Manager -> Fd -> (IO () -> IO (IO ())) -> IO Descriptor
newDescriptor registry manager fd free = do
  r <- registry
  rd <- trackReadiness r fd
  serving <- newRef Nothing
  -- Uninterruptible: no other thread would close it after an exception. The waits inside, for
  -- a stripe's lock and for a poll that holds the descriptor, are short.
  let closing = uninterruptibleMask_ (registry >>= \current -> closeRegistered current fd free)
  pure (Descriptor rd serving manager closing)

-- | The descriptor's number. Valid only while the descriptor is known to be open.
descriptorFd :: Descriptor -> Fd
descriptorFd = readinessFd . descriptorReadiness
{-# INLINE descriptorFd #-}

-- | The result of a system call.
data Attempt a
  = -- | Not now (@EAGAIN@).
    NotYet
  | -- | Done, and the kernel had no more than that to give or take.
    Drained !a
  | -- | Done; trying again may succeed at once.
    Done !a
  | -- | It failed with that errno.
    Failed !CInt

-- | Decode what a system call returned: a count goes to the continuation, @-EAGAIN@ means 'NotYet', other negative
-- numbers are errors.
decodeResult :: (Integral n) => n -> (Int -> IO (Attempt a)) -> IO (Attempt a)
decodeResult r k
  | r >= 0 = k (fromIntegral r)
  | Errno code == eAGAIN = pure NotYet
  | otherwise = pure (Failed code)
  where
    code = fromIntegral (negate r)
{-# INLINE decodeResult #-}

-- | The result of an operation.
data Outcome a
  = Completed !a
  | -- | It failed with that errno.
    Refused !CInt
  | -- | The descriptor was closed, before the operation or during it; or its sending was cut off
    -- ('forbidSending').
    DescriptorClosed
  | -- | The deadline passed and the operation still could not be done.
    DeadlinePassed
  deriving (Eq, Show)

-- | What an attempt returns that got @EAGAIN@. It is the outcome of the operation if no attempt follows. (A type of its
-- own would take an allocation more in each operation.)
pattern NotDoneYet :: Outcome a
pattern NotDoneYet = DeadlinePassed

-- | Try an operation, and wait and try again until it is done. The operation runs masked; it must neither block nor
-- throw. It is tried once more after the deadline has passed, so that data that arrived in time is never lost. Any
-- number of threads may perform operations; those of one direction that wait are served in turn. An exception can
-- interrupt it only while it waits; the operation has had no effect then.
perform :: Descriptor -> Direction -> Instant -> IO (Attempt a) -> IO (Outcome a)
perform d dir deadline op = performThen d dir deadline op pure
{-# INLINE perform #-}

-- | 'perform', and then the function, masked throughout: no exception arrives between the two.
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
          woken <- waitToken d dir deadline
          -- See Note [Woken and interrupted].
          allowInterrupt `onException` tryPutMVar (token rd dir) unstamped
          case woken of
            TooLate -> insideFor attemptOnce
            Wakening stamp
              | stamp == unstamped -> try
              | otherwise -> noteWoken d stamp >> try
    try = do
      outcome <- insideFor attemptOnce
      case outcome of
        NotDoneYet -> again
        _ -> pure outcome
    attemptOnce = do
      r <- op
      case r of
        -- A waiter whose deadline has passed gave the token, perhaps to this one.
        Drained a -> do
          more <- mayHideMore rd
          others <- if more then pure True else anyExpired rd dir
          when others passOn
          pure (Completed a)
        Done a -> Completed a <$ passOn
        Failed e -> Refused e <$ passOn
        NotYet -> do
          others <- anyExpired rd dir
          when others passOn
          pure NotDoneYet
    insideFor = case dir of
      Reading -> inside acquire d DescriptorClosed
      Writing -> inside acquireToSend d DescriptorClosed
{-# INLINE performThen #-}

-- Note [Woken and interrupted]. A thread that has been woken may have to wait for its turn. It is masked and not
-- blocked then, so an exception (a timeout) that comes meanwhile is thrown where the mask ends: after the operation,
-- whose result it takes away. Received bytes and accepted connections would be lost. So the exception is let in before
-- the operation, and the token goes to others. What remains is the time of the operation itself, as in GHC's own
-- library.

-- | Run a call with the descriptor that neither blocks nor throws; 'Nothing' if the
-- descriptor is closed.
useDescriptor :: Descriptor -> IO a -> IO (Maybe a)
useDescriptor d act = mask_ (inside acquire d Nothing (Just <$> act))
{-# INLINE useDescriptor #-}

-- | 'useDescriptor' for a call that sends: 'Nothing' also after 'forbidSending'.
useDescriptorToSend :: Descriptor -> IO a -> IO (Maybe a)
useDescriptorToSend d act = mask_ (inside acquireToSend d Nothing (Just <$> act))
{-# INLINE useDescriptorToSend #-}

-- | Whether it is known, without a system call, that nothing can be read: a read has taken all that there was, and the
-- manager has reported nothing since. 'False' if it is not known: nothing was read yet, the last read may have left
-- something, the descriptor is closed, or no manager watches it. Any thread may call it.
isQuiet :: Descriptor -> IO Bool
isQuiet d = do
  serving <- readRef (descriptorManager d)
  case serving of
    Nothing -> pure False
    Just m -> do
      alive <- isAlive m
      if alive then isEmptyMVar (token (descriptorReadiness d) Reading) else pure False

-- | Make all further sends fail. A part of a message has been sent, and the peer would mistake
-- further bytes for the rest of it.
forbidSending :: Descriptor -> IO ()
forbidSending = markSendForbidden . descriptorReadiness

-- | Whether 'forbidSending' was called.
isSendingForbidden :: Descriptor -> IO Bool
isSendingForbidden = isSendForbidden . descriptorReadiness

-- | Run an action that uses the descriptor, if it is open; otherwise return the
-- result for a closed one. Masked; the action must not throw.
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

-- | Close the descriptor. The function runs the action that finishes the close, which may block.
giveBack :: Descriptor -> (IO () -> IO ()) -> IO ()
giveBack d run = descriptorRelease d >>= run
{-# NOINLINE giveBack #-}

-- | How a wait for a token has ended, in one word: 'TooLate', or the token was taken, with the stamp of its event.
newtype Wakening = Wakening Stamp

-- | The deadline has passed. No event has this stamp.
pattern TooLate :: Wakening
pattern TooLate = Wakening (-1)

-- | Wait for the token and take it. If the deadline has passed, the token is left to others, and nothing is waited for
-- if it has passed before. Without a deadline the last call is a tail call: a thread that waits keeps no frame of this
-- function.
waitToken :: Descriptor -> Direction -> Instant -> IO Wakening
waitToken d dir deadline
  | deadline == never = waiting
  | otherwise = do
    t <- now
    if deadline <= t then pure TooLate else waiting
  where
    waiting = awaitToken d dir deadline

awaitToken :: Descriptor -> Direction -> Instant -> IO Wakening
awaitToken d dir deadline = do
  serving <- servingManager d
  case serving of
    Nothing -> pure (Wakening unstamped) -- closed: the next attempt reports it
    Just m -> do
      countShared (managerCounters m) Waits
      mark (managerEventLog m) Waited
      case backendResume (managerBackend m) of
        Nothing -> pure ()
        Just resume -> do
          resume (readinessFd rd) (eventOf dir)
          wakeManager m
      if deadline == never then coerce (takeMVar (token rd dir)) else waitBefore m
  where
    rd = descriptorReadiness d
    eventOf Reading = evtRead <> evtPeerClosed
    eventOf Writing = evtWrite
    passOn = void (tryPutMVar (token rd dir) unstamped)
    -- If the manager is stopped meanwhile, every token is put ('wakeReadiness'). The word says which came first, the
    -- timer or the token. It is moved from 'undecided' once, by compare-and-swap.
    waitBefore m = do
      first <- newWordArray 1
      timer <- addTimer m deadline $ do
        found <- casWord first 0 undecided timerFirst
        when (found == undecided) (noteExpired rd dir)
      let beforeTimer = do
            found <- casWord first 0 undecided tokenFirst
            if found == undecided then True <$ cancelTimer timer else False <$ expiredDone rd dir
      stamp <- takeMVar (token rd dir) `onException` (beforeTimer >>= \won -> unless won passOn)
      won <- beforeTimer
      if won then pure (Wakening stamp) else TooLate <$ passOn

-- | The word of a wait with a deadline. New words are zero.
undecided, timerFirst, tokenFirst :: Int
undecided = 0
timerFirst = 1
tokenFirst = 2

-- | Measure the latency of a thread that was woken by an event with a stamp.
noteWoken :: Descriptor -> Stamp -> IO ()
noteWoken d stamp = readRef (descriptorManager d) >>= mapM_ (\m -> noteRunning (managerLatency m) stamp)
{-# NOINLINE noteWoken #-}

-- | The running manager that reports the descriptor's events. If there is none, the descriptor is attached to
-- one. 'Nothing' if the descriptor is closed.
servingManager :: Descriptor -> IO (Maybe Manager)
servingManager d = do
  serving <- readRef (descriptorManager d)
  case serving of
    Just m -> do
      alive <- isAlive m
      if alive then pure serving else attachDescriptor d
    Nothing -> attachDescriptor d
{-# INLINE servingManager #-}

-- | Attach the descriptor now, to the manager of the calling thread's capability, for a thread that is going to wait.
-- Attaching needs more stack than all that follows. If a thread attaches early, with little on its stack, its first
-- stack chunk of 1 KiB may suffice; otherwise it gets a chunk of 32 KiB, and keeps it. Throws as an operation would.
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
      -- Otherwise the manager has been stopped just now.
      if closed then pure Nothing else attachDescriptor d
{-# NOINLINE attachDescriptor #-}

-- | Close the descriptor: no operation begins any more, those that wait end with
-- 'DescriptorClosed', and its number is given back when no thread is inside a
-- system call with it. 'False' if it was closed already.
closeDescriptor :: Descriptor -> IO Bool
closeDescriptor = closeDescriptorWith id

-- | 'closeDescriptor' with a function that runs the action which finishes the close, and may
-- block.
closeDescriptorWith :: (IO () -> IO ()) -> Descriptor -> IO Bool
closeDescriptorWith run d = mask_ $ do
  outcome <- shut (descriptorReadiness d)
  case outcome of
    WasShut -> pure False
    StillUsed -> pure True
    YoursToClose -> True <$ giveBack d run

-- | Whether it has been closed.
descriptorClosed :: Descriptor -> IO Bool
descriptorClosed = isShut . descriptorReadiness
