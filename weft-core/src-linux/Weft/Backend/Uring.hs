-- |
-- The io_uring back end (Linux 5.13): readiness by poll requests. Arming queues a
-- request and enters the kernel only to check the descriptor; the next poll
-- submits all that is queued in the call it waits with.
--
-- The kernel finishes a request on the OS thread that submitted it. Which one that is depends on where the scheduler
-- runs the owner. So ring flags that bind a ring to one submitter cannot be used, and:
--
-- * When the thread exits, its requests are cancelled. They are made again.
--
-- * While it sleeps uninterruptibly (a safe call that reads a disk), its requests report nothing. epoll has no such
--   dependence, one reason why it is preferred for sockets.
--
-- * A system call that it is blocked in may return @EINTR@ where a signal that the
--   process ignores would not do that (epoll_wait, semop).
--
-- * A request holds a reference to its file, so a descriptor that is closed without
--   'backendForget' stays half open. With 'backendForget' it stays so until the OS thread that
--   submitted the request has left the kernel. That is at once, unless the machine is
--   so busy that this thread is stopped there: then the peer notices the close some
--   milliseconds later (20 were seen, with more threads computing than there
--   were cores). After 0.2 ms 'backendForget' gives up, and the action that it returns goes on.
--
-- Rings are cooperative: an event does not interrupt the thread that it is for, but waits until that thread enters the
-- kernel. So a submitter that computes in a safe call delays its events to the next clock tick. Figures:
-- @doc\/rationale\/waiting.md@.
--
-- Throws 'IOError's only. Any thread may arm and forget, one at a time polls.
module Weft.Backend.Uring
  ( new,
  )
where

import Control.Monad (forM_, unless, void, when)
import Data.Bifunctor (first)
import Data.Bits (complement, (.&.), (.|.))
import Data.Int (Int32)
import Data.Word (Word32, Word64)
import Foreign.C.Error
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (free, reallocBytes)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, nullPtr, plusPtr)
import Foreign.Storable
import System.Posix.Types (Fd (..))
import Weft.Backend.UringEntry
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration (..), after, never, until)
import Weft.FFI.Errno
import Weft.FFI.Poll (alwaysReady)
import Weft.FFI.RingEntries (ringEntries)
import Weft.FFI.Uring
import Weft.FFI.Wakeup
import Weft.Sys
import Weft.Sys.OffHeap (mallocOwnBytes)
import Prelude hiding (until)

-- The ring -------------------------------------------------------------------------

-- | A ring. The lock protects all fields except those of the owner, the thread that polls.
data Ring = Ring
  { ringHandle :: !(Ptr Uring),
    ringWakeup :: !Wakeup,
    ringLock :: !(MVar ()),
    -- | A record for each descriptor number up to the highest that was armed. The
    -- null pointer after 'backendClose'.
    ringTable :: !(Ref Table),
    -- | Requests for the next poll, the latest first: what the present one must not see, and what found no room.
    ringBacklog :: !(Ref [Request]),
    -- | Room for completions, and so how many standing requests of the backlog a poll makes. One whose completion finds
    -- no room ends; if all were made at once, they would end each other, and be reported over and over.
    ringRoom :: !Int,
    -- | The last request that was cancelled and had not ended when 'forget' gave up.
    ringStuck :: !(Ref (Maybe Word64)),
    -- | Used by the owner: whether a wake-up was seen, which ends a blocking poll.
    ringWoken :: !(Ref Bool),
    -- | Used by the owner: completions from the kernel, and the events to report for them.
    ringCompletions :: !(Ptr Completion),
    ringEvents :: !(Ptr Report),
    -- | The number of completions, and of reports, that fit into these.
    ringBatch :: !Int
  }

data Table = Table !Int !(Ptr Entry)

-- | Tokens with their events, 16 bytes each.
data Report

data Request
  = -- | Watch the descriptor, if its entry still has the sequence number, by a request that stands or by a single one.
    Watch !CInt !Word32 !EntryState
  | -- | Cancel the request with that user data.
    Cancel !Word64

-- | Room for requests that wait to be submitted, for completions that wait to be
-- seen (past which the kernel allocates memory), and for those that are taken
-- out at a time. Smaller queues than these ('ringEntries') are slower and otherwise the same.
queueSize, completionsSize, batchSize :: (Num a) => a
queueSize = 256
completionsSize = 8192
batchSize = 256

reportSize :: Int
reportSize = 16

-- | A new ring. Throws when the kernel refuses; "Weft.Backend.UringTrial" says why.
new :: IO Backend
new = do
  (entries, completions) <- maybe (queueSize, completionsSize) (\n -> (n, n)) <$> ringEntries
  u <- either (throwErrnoCode "io_uring_setup") pure =<< openUring entries completions
  wk <- newWakeup `onException` closeUring u
  let batch = min batchSize (fromIntegral completions)
  ring <-
    Ring u wk <$> newMVar ()
      <*> newRef (Table 0 nullPtr)
      <*> newRef []
      <*> pure (fromIntegral completions)
      <*> newRef Nothing
      <*> newRef False
      <*> mallocOwnBytes (batch * completionSize)
      <*> mallocOwnBytes (batch * reportSize)
      <*> pure batch
  let Fd wakeFd = wakeupFd wk
  ringFd <- uringDescriptor u
  growTable ring (max 63 wakeFd)
  locked ring (watchAs ring wakeFd (Entry wakeToken 0 evtRead Edge Vacant) Standing)
  pure
    Backend
      { backendName = "io_uring",
        backendPoll = poll ring,
        backendArm = arm ring,
        backendForget = forget ring,
        backendDeferred = True,
        backendResume = Nothing,
        backendDescriptors = Fd ringFd : wakeupFds wk,
        backendWake = signalWakeup wk,
        backendClose = close ring
      }

-- | The token of the wake-up descriptor. No other token has this value.
wakeToken :: Token
wakeToken = Token (-1)

-- | Release the ring. In a forked child this is done without the lock, which may be held by a thread of the parent.
close :: Ring -> IO ()
close ring = do
  forked <- isForked (ringHandle ring)
  if forked /= 0 then release else locked ring release
  where
    release = do
      Table _ p <- readRef (ringTable ring)
      writeRef (ringTable ring) (Table 0 nullPtr)
      unless (p == nullPtr) $ do
        closeUring (ringHandle ring)
        closeWakeup (ringWakeup ring)
        free p
        free (ringCompletions ring)
        free (ringEvents ring)

-- | Run an action with the lock, uninterruptibly: nothing inside of it blocks.
locked :: Ring -> IO a -> IO a
locked ring act = mask_ (withMVar (ringLock ring) (const act))
{-# INLINE locked #-}

isClosed :: Ring -> IO Bool
isClosed ring = (\(Table _ p) -> p == nullPtr) <$> readRef (ringTable ring)

-- Entries --------------------------------------------------------------------------

readEntry :: Ring -> CInt -> IO Entry
readEntry ring fd = do
  Table size p <- readRef (ringTable ring)
  if fd >= 0 && fromIntegral fd < size
    then peekElemOff p (fromIntegral fd)
    else pure vacant

-- | The number must be in the table.
writeEntry :: Ring -> CInt -> Entry -> IO ()
writeEntry ring fd e = do
  Table _ p <- readRef (ringTable ring)
  pokeElemOff p (fromIntegral fd) e

-- | Make room for a descriptor number. New entries are all zero, which is 'Vacant'.
growTable :: Ring -> CInt -> IO ()
growTable ring fd = do
  Table size p <- readRef (ringTable ring)
  when (fromIntegral fd >= size) $ do
    let size' = max (2 * size) (fromIntegral fd + 1)
    p' <- reallocBytes p (size' * sizeOf vacant)
    fillBytes (p' `plusPtr` (size * sizeOf vacant)) 0 ((size' - size) * sizeOf vacant)
    writeRef (ringTable ring) (Table size' p')

-- Arming and forgetting ------------------------------------------------------------

arm :: Ring -> Fd -> Token -> Trigger -> Events -> IO Armed
arm ring (Fd fd) tok trigger evs = do
  known <- locked ring ((/= Vacant) . entryState <$> readEntry ring fd)
  -- Repeated waits are the common case; they need only the cheaper check. If the number belongs to a regular file by
  -- now, the file will be reported ready.
  idle <- throwIfNegative "io_uring" (if known && trigger == Once then isOpen fd else alwaysReady fd)
  locked ring $ do
    shut <- isClosed ring
    when shut (throwErrnoCode "io_uring" (let Errno e = eBADF in e))
    if idle /= 0
      then do
        e <- readEntry ring fd
        vacate ring fd e
        AlwaysReady <$ cancelLive ring fd e
      else do
        growTable ring fd
        e <- readEntry ring fd
        _ <- cancelLive ring fd e
        watchAs ring fd e {entryToken = tok, entryTrigger = trigger, entryEvents = evs} (usual trigger)
        pure Armed

-- | Cancel the request at once, not with the next poll, and wait for its end: until then the kernel keeps the file
-- open, even if the caller has closed it. (Before Linux 6.0 it may do so for some microseconds more, up to a clock
-- tick.) If that takes more than 'patience', the returned action goes on waiting.
--
-- The caller holds the capability and two locks meanwhile. If the thread that submitted the request sleeps
-- uninterruptibly (as the parent of vfork(2) does), it has probably submitted others too. So while the last request
-- that did not end in time has not ended, this does not wait for any other.
forget :: Ring -> Fd -> IO (IO ())
forget ring (Fd fd) = locked ring $ do
  e <- readEntry ring fd
  vacate ring fd e
  let request = userData fd (entrySequence e)
  outcome <- if isLive e then patient >>= cancel ring request else pure Ended
  case outcome of
    Ended -> pure (pure ())
    _ -> do
      when (outcome == Unfinished) (writeRef (ringStuck ring) (Just request))
      queue ring (Cancel request)
      void (flush ring 10)
      pure (when (outcome == Unfinished) (awaitEnd ring request))
  where
    patient = do
      stuck <- readRef (ringStuck ring)
      outcome <- maybe (pure Ended) (\request -> cancel ring request 0) stuck
      if outcome == Unfinished then pure 0 else patience <$ writeRef (ringStuck ring) Nothing

-- | How long 'forget' waits for the end of a request, in microseconds.
patience :: CInt
patience = 200

-- | What 'cancel' can say of a request.
data Cancelled
  = -- | It has ended and released its file.
    Ended
  | -- | It has not ended yet.
    Unfinished
  | -- | The kernel cannot cancel synchronously.
    Unknown
  deriving (Eq)

-- | Submit what is queued, and cancel a request. Waits for its end for at most so many microseconds.
cancel :: Ring -> Word64 -> CInt -> IO Cancelled
cancel ring request us = do
  done <- flush ring 10
  r <- cancelNow (ringHandle ring) request us
  pure $ case () of
    _
      | r /= 0 && Errno (negate r) /= eBUSY -> Unknown
      -- The kernel does not know requests that are still queued, and cannot cancel them.
      | r == 0 && done -> Ended
      | otherwise -> Unfinished

-- | Wait until a request that was cancelled has ended. The file of a request is released by the thread that submitted
-- it, which may be stopped or asleep in the kernel.
awaitEnd :: Ring -> Word64 -> IO ()
awaitEnd ring request = do
  over <- locked ring $ do
    shut <- isClosed ring
    -- Before the second try the submitting thread is interrupted, if it computes.
    if shut then pure True else (/= Unfinished) <$> cancel ring request 0
  unless over (pauseUring >> awaitEnd ring request)

-- | Empty an entry.
vacate :: Ring -> CInt -> Entry -> IO ()
vacate ring fd e = unless (entryState e == Vacant) (writeEntry ring fd e {entryState = Vacant})

-- | Submit all queued requests. The number limits the attempts while the kernel refuses for lack of
-- memory; after that the owner has to try. 'True' if none is left.
flush :: Ring -> Int -> IO Bool
flush ring tries = do
  _ <- submitUring (ringHandle ring)
  state <- uringState (ringHandle ring)
  case () of
    _
      | state .&. stateQueued == 0 -> pure True
      | tries > 0 -> flush ring (tries - 1)
      | otherwise -> False <$ signalWakeup (ringWakeup ring)

-- | Cancel an entry's request. 'True' if there was one.
cancelLive :: Ring -> CInt -> Entry -> IO Bool
cancelLive ring fd e
  | isLive e = True <$ queue ring (Cancel (userData fd (entrySequence e)))
  | otherwise = pure False

-- | Make a new request for an entry.
watchAs :: Ring -> CInt -> Entry -> EntryState -> IO ()
watchAs ring fd e state = queue ring =<< renew ring fd e state

-- | Store an entry as having a new request.
renew :: Ring -> CInt -> Entry -> EntryState -> IO Request
renew ring fd e state = do
  let number = entrySequence e + 1
  writeEntry ring fd e {entrySequence = number, entryState = state}
  pure (Watch fd number state)

-- | Put a request into the submission queue. If the queue is full, it is submitted; if the kernel has no room either,
-- the next poll tries again.
queue :: Ring -> Request -> IO ()
queue ring request = do
  r <- put
  when (r < 0) $ do
    _ <- submitUring (ringHandle ring)
    r' <- put
    when (r' < 0) (later ring request)
  where
    put = case request of
      Cancel target -> queueCancel (ringHandle ring) target
      Watch fd number state -> do
        e <- readEntry ring fd
        if isLive e && entrySequence e == number
          then queueWatch (ringHandle ring) fd (eventBits (entryEvents e)) (if state == Standing then 1 else 0) (userData fd number)
          else pure 0

later :: Ring -> Request -> IO ()
later ring request = do
  waiting <- readRef (ringBacklog ring)
  writeRef (ringBacklog ring) (request : waiting)

-- Polling --------------------------------------------------------------------------

poll :: Ring -> Wait -> (Token -> Events -> IO ()) -> IO Int
poll ring wait report = do
  more <- requeue ring
  case wait of
    NoWait -> look
    WaitFor d | d <= mempty -> look
    WaitFor d -> block more d . after d =<< now
    Forever -> block more (Duration (-1)) never
  where
    look = do
      enter (lookUring (ringHandle ring))
      collect ring report
    block more left deadline = do
      writeRef (ringWoken ring) False
      enter (if more then lookUring (ringHandle ring) else waitUring (ringHandle ring) (durationNs left))
      n <- collect ring report
      woken <- readRef (ringWoken ring)
      if n > 0 || woken then pure n else resume deadline
    -- A stale completion, a request made again, a signal: wait for the remaining time.
    resume deadline = do
      more <- requeue ring
      left <- if deadline == never then pure (Duration (-1)) else until deadline <$> now
      if deadline /= never && left <= mempty then pure 0 else block more left deadline
    enter call = do
      r <- call
      when (r < 0) (failed ring (negate r))

-- | Ignore the errors of entering the kernel that are harmless, and throw all others.
failed :: Ring -> CInt -> IO ()
failed ring code
  | code == errnoDropped = locked ring (renewAll ring)
  | Errno code `elem` [eINTR, eTIME, eAGAIN, eBUSY] = pure ()
  | otherwise = throwErrnoCode "io_uring_enter" code

-- | The kernel was out of memory and lost completions: make all requests again.
renewAll :: Ring -> IO ()
renewAll ring = do
  Table size _ <- readRef (ringTable ring)
  forM_ [0 .. fromIntegral size - 1] $ \fd -> do
    e <- readEntry ring fd
    live <- cancelLive ring fd e
    when live (watchAs ring fd e (usual (entryTrigger e)))

-- | Queue the requests that were left for this poll, the oldest first. 'True' if some are left for which there may be
-- room: then the poll must not block.
requeue :: Ring -> IO Bool
requeue ring = do
  waiting <- readRef (ringBacklog ring)
  if null waiting
    then pure False
    else locked ring $ do
      (present, others) <- share (ringRoom ring) . reverse <$> readRef (ringBacklog ring)
      writeRef (ringBacklog ring) []
      mapM_ (queue ring) present
      refused <- readRef (ringBacklog ring)
      writeRef (ringBacklog ring) (refused <> reverse others)
      pure (null refused && not (null others))

-- | The requests that a poll makes, with so many standing ones at most, and those that it leaves for the next.
share :: Int -> [Request] -> ([Request], [Request])
share n (r@(Watch _ _ Standing) : rs)
  | n == 0 = (r :) <$> share 0 rs
  | otherwise = first (r :) (share (n - 1) rs)
share n (r : rs) = first (r :) (share n rs)
share _ [] = ([], [])

-- | Report all available completions. Requests that were queued while the caller was
-- in the kernel are submitted too. So if a thread armed a descriptor and then woke
-- the owner, the poll that it ended reports that descriptor.
collect :: Ring -> (Token -> Events -> IO ()) -> IO Int
collect ring report = harvest ring report >>= more (stateQueued .|. stateOverflown)
  where
    more wanted n = do
      state <- uringState (ringHandle ring)
      if state .&. wanted == 0
        then pure n
        else do
          r <- lookUring (ringHandle ring)
          when (r < 0) (failed ring (negate r))
          m <- harvest ring report
          more stateOverflown (n + m)

-- | Take the completions out of the ring, a batch at a time, and report the resulting events. The callback runs
-- without the lock: it may arm.
harvest :: Ring -> (Token -> Events -> IO ()) -> IO Int
harvest ring report = mask_ (batches 0)
  where
    batches n = do
      k <- reapUring (ringHandle ring) (ringCompletions ring) (fromIntegral (ringBatch ring))
      if k == 0
        then pure n
        else do
          m <- locked ring (takeIn 0 0 (fromIntegral k))
          dispatch 0 m
          if fromIntegral k == ringBatch ring then batches (n + m) else pure (n + m)
    takeIn m i k
      | i == k = pure m
      | otherwise = do
        m' <- absorb ring m i
        takeIn m' (i + 1) k
    dispatch :: Int -> Int -> IO ()
    dispatch i m = when (i < m) $ do
      tok <- peekByteOff (ringEvents ring) (i * reportSize)
      evs <- peekByteOff (ringEvents ring) (i * reportSize + 8)
      report (Token tok) (Events evs)
      dispatch (i + 1) m

-- | Process one completion: @absorb ring m i@ processes the one at position @i@, after @m@ reports, and returns the
-- new number of reports.
absorb :: Ring -> Int -> Int -> IO Int
absorb ring m i = do
  from <- peekUserData (ringCompletions ring) i
  let fd = userDataFd from
  e <- readEntry ring fd
  if not (isLive e) || userData fd (entrySequence e) /= from
    then pure m
    else do
      more <- peekMore (ringCompletions ring) i
      result <- refine fd e =<< peekResult (ringCompletions ring) i
      let (evs, next) = decide e more result
      proceed ring fd e more next
      emit (entryToken e) evs
  where
    emit tok@(Token t) evs@(Events bitset)
      | isNoEvent evs = pure m
      | tok == wakeToken = do
        -- An eventfd need not be read: a further write is reported in any case.
        when (wakeupIsPipe (ringWakeup ring)) (drainWakeup (ringWakeup ring))
        m <$ writeRef (ringWoken ring) True
      | otherwise = do
        -- Several changes of one descriptor make one report, if they come together.
        before <- if m == 0 then pure wakeToken else Token <$> peekByteOff (ringEvents ring) (at (m - 1))
        if before == tok
          then do
            bitset' <- peekByteOff (ringEvents ring) (at (m - 1) + 8)
            m <$ pokeByteOff (ringEvents ring) (at (m - 1) + 8) (bitset .|. bitset')
          else do
            pokeByteOff (ringEvents ring) (at m) t
            pokeByteOff (ringEvents ring) (at m + 8) bitset
            pure (m + 1)
    at n = n * reportSize

-- | Replace the 'doubtful' bits of a result by the present state.
refine :: CInt -> Entry -> Int32 -> IO Int32
refine fd e result
  | result <= 0 || result .&. doubtful == 0 = pure result
  | otherwise = do
    present <- presentEvents fd (eventBits (entryEvents e))
    pure ((result .&. complement doubtful) .|. fromIntegral present)

proceed :: Ring -> CInt -> Entry -> Bool -> Next -> IO ()
proceed ring fd e more next = case next of
  Stay -> pure ()
  Drop state -> leftover >> writeEntry ring fd e {entryState = state}
  Now state -> leftover >> watchAs ring fd e state
  Next state -> leftover >> renew ring fd e state >>= later ring
  where
    leftover = when more (queue ring (Cancel (userData fd (entrySequence e))))
