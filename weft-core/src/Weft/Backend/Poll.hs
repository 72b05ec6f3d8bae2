-- |
-- The poll back end: every POSIX system has it. The set of descriptors lives in
-- a map here and is handed to the kernel whole at each poll, so a turn costs
-- O(descriptors). poll(2) knows levels only; one-shot and edge-triggered
-- reports are made by leaving out of the next call what was reported.
module Weft.Backend.Poll
  ( new,
    available,
    fromPoll,
    toPoll,
  )
where

import Control.Monad (unless, void, when)
import Data.Bits ((.&.), (.|.))
import qualified Data.IntMap.Strict as IntMap
import Foreign.C.Error (Errno (..), eINTR)
import Foreign.C.Types (CInt, CShort)
import Foreign.Marshal.Alloc (free)
import Foreign.Ptr (Ptr)
import System.Posix.Types (Fd (..))
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration (..))
import Weft.FFI.Errno
import Weft.FFI.Poll
import Weft.FFI.Wakeup
import Weft.Sys
import Weft.Sys.OffHeap (mallocOwnBytes)

-- | Why it cannot be used here, or 'Nothing' when it can.
available :: IO (Maybe String)
available = pure Nothing

-- | The watched descriptors. Any thread changes them, under the lock.
type Watched = MVar (IntMap.IntMap Entry)

data Entry = Entry
  { entryToken :: !Token,
    entryTrigger :: !Trigger,
    -- | The requested events.
    entryAsked :: !Events,
    -- | The events of the next poll: 'entryAsked' without the events that were reported
    -- and, with 'Edge', have not been resumed.
    entryArmed :: !Events,
    -- | False after a hang-up was reported, which poll(2) repeats unasked.
    entryListed :: !Bool
  }

-- | An empty set.
new :: IO Backend
new = do
  watched <- newMVar IntMap.empty
  wk <- newWakeup
  busy <- newRef Nothing
  array <- newRef . (,) firstCapacity =<< mallocOwnBytes (firstCapacity * pollFdSize)
  pure
    Backend
      { backendName = "poll",
        backendPoll = poll watched busy wk array,
        backendArm = arm watched,
        backendForget = \fd -> pure () <$ forget watched busy wk fd,
        backendDeferred = True,
        backendResume = Just (resume watched),
        backendDescriptors = wakeupFds wk,
        backendWake = signalWakeup wk,
        backendClose = do
          closeWakeup wk
          free . snd =<< readRef array
      }

firstCapacity :: Int
firstCapacity = 64

arm :: Watched -> Fd -> Token -> Trigger -> Events -> IO Armed
arm watched (Fd fd) tok trigger evs = do
  idle <- throwIfNegative "poll" (alwaysReady fd)
  if idle /= 0
    then pure AlwaysReady
    else do
      modifyMVar_ watched (pure . IntMap.insert (fromIntegral fd) (Entry tok trigger evs evs True))
      pure Armed

-- | The MVar is full when the current poll has returned. The owner writes the reference before
-- it reads the set and after the kernel has returned; a thread that removes a
-- descriptor from the set reads it.
type Busy = Ref (Maybe (MVar ()))

-- | Remove a descriptor. The kernel holds every file that a running poll(2) has in its list open, so that closing one
-- would have no effect before the poll returns. So the poll is woken, and this waits until it has returned.
forget :: Watched -> Busy -> Wakeup -> Fd -> IO ()
forget watched busy wk (Fd fd) = do
  known <- modifyMVar watched (\set -> pure (IntMap.delete key set, IntMap.member key set))
  when known (readRef busy >>= mapM_ (\done -> signalWakeup wk >> uninterruptibleMask_ (readMVar done)))
  where
    key = fromIntegral fd

-- | Arm again the events that were reported and are still requested.
resume :: Watched -> Fd -> Events -> IO ()
resume watched (Fd fd) evs = modifyMVar_ watched (pure . IntMap.adjust again (fromIntegral fd))
  where
    again e = e {entryArmed = entryArmed e <> (evs `common` entryAsked e), entryListed = True}

poll :: Watched -> Busy -> Wakeup -> Ref (Int, Ptr PollFd) -> Wait -> (Token -> Events -> IO ()) -> IO Int
poll watched busy wk ref wait report = mask_ $ do
  done <- newEmptyMVar
  writeRef busy (Just done)
  let returned = writeRef busy Nothing >> putMVar done ()
  (set, p, r) <- called `onException` returned
  returned
  collect p r (IntMap.toAscList set)
  where
    -- It may throw: there may be no memory for the list.
    called = do
      -- An entry without requested events is polled too: a hang-up is always reported.
      set <- IntMap.filter entryListed <$> readMVar watched
      let n = IntMap.size set
      p <- roomFor ref (n + 1)
      let Fd wakeFd = wakeupFd wk
      pokePollFd p 0 wakeFd pollIn
      sequence_
        [ pokePollFd p i (fromIntegral fd) (toPoll (entryArmed e))
          | (i, (fd, e)) <- zip [1 ..] (IntMap.toAscList set)
        ]
      r <- case wait of
        NoWait -> pollLook p (fromIntegral n + 1)
        WaitFor (Duration ns) -> pollWait p (fromIntegral n + 1) (max 0 ns)
        Forever -> pollWait p (fromIntegral n + 1) (-1)
      pure (set, p, r)
    collect :: Ptr PollFd -> CInt -> [(Int, Entry)] -> IO Int
    collect p r set
      | r < 0 = 0 <$ unless (Errno (negate r) == eINTR) (throwErrnoCode "poll" (negate r))
      | r == 0 = pure 0
      | otherwise = do
        woken <- peekRevents p 0
        when (woken /= 0) (drainWakeup wk)
        sum <$> traverse (dispatch p) (zip [1 ..] set)
    dispatch :: Ptr PollFd -> (Int, (Int, Entry)) -> IO Int
    dispatch p (i, (fd, e)) = do
      revents <- peekRevents p i
      if revents == 0
        then pure 0
        else do
          let evs = fromPoll revents
          current <- modifyMVar watched (pure . reported fd (entryToken e) evs)
          if current then 1 <$ report (entryToken e) evs else pure 0

-- | Record a report. 'False' if the descriptor was removed or armed again during the poll, so
-- that the report is stale.
reported :: Int -> Token -> Events -> IntMap.IntMap Entry -> (IntMap.IntMap Entry, Bool)
reported fd tok evs set = case IntMap.lookup fd set of
  Just e
    | entryToken e == tok ->
      ( if entryTrigger e == Once || evs `includes` evtClose
          then IntMap.delete fd set
          else IntMap.insert fd (after e) set,
        True
      )
  _ -> (set, False)
  where
    after e
      | entryTrigger e == Level = e
      | otherwise =
        e
          { entryArmed = entryArmed e `without` evs,
            entryListed = not (evs `includes` evtHangup)
          }

roomFor :: Ref (Int, Ptr PollFd) -> Int -> IO (Ptr PollFd)
roomFor ref n = do
  (cap, p) <- readRef ref
  if n <= cap
    then pure p
    else do
      let cap' = max n (2 * cap)
      p' <- mallocOwnBytes (cap' * pollFdSize)
      writeRef ref (cap', p')
      void (free p)
      pure p'

-- | The kernel's bits for the requested events.
toPoll :: Events -> CShort
toPoll evs =
  bit evtRead pollIn .|. bit evtWrite pollOut .|. bit evtPeerClosed pollRdHup
    .|. bit evtUrgent pollPri
  where
    bit e b = if evs `includes` e then b else 0

-- | What the kernel's bits mean. @POLLNVAL@, a descriptor that is not open, is
-- 'evtClose'.
fromPoll :: CShort -> Events
fromPoll w =
  bit pollIn evtRead <> bit pollOut evtWrite <> bit pollRdHup evtPeerClosed
    <> bit pollPri (evtUrgent <> evtRead)
    <> bit (pollErr .|. pollHup) (evtHangup <> evtRead <> evtWrite)
    <> bit pollNval evtClose
  where
    bit b e = if w .&. b /= 0 then e else mempty
