-- |
-- The timers of one event manager. Any thread may set and cancel: to set is one
-- compare-and-swap on an inbox, to cancel one on the timer. The queue behind the
-- inbox belongs to the thread that runs the manager, the owner, so nothing is
-- locked.
module Weft.Core.Timers
  ( Timers,
    newTimers,

    -- * Any thread
    setTimer,
    noteCancelled,
    Fresh,
    setFresh,
    cancelFresh,
    takeInbox,

    -- * The owner
    hasNews,
    applyNews,
    enterTimer,
    nextDue,
    expireTimers,
    takeAll,
    orphanAll,

    -- * Figures
    pendingTimers,
  )
where

import Control.Monad (forM_, unless, void, when)
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer
import Weft.Sys

-- | Timers that the owner has not seen yet, the latest first. (The field is lazy, but
-- holds an evaluated timer: GHC would take a strict one apart and build it again, a
-- second copy for as long as the timer is pending.)
data Inbox = Empty | Push Timer Inbox

-- | The timers of one manager.
data Timers = Timers
  { -- | Pushed on by any thread, emptied by the owner.
    timersInbox :: !(Ref Inbox),
    -- | The owner's alone.
    timersQueue :: !Queue,
    -- | Word 0: how many are in the inbox, within a few; changed by any thread.
    -- Word 1: how many timers are cancelled and still somewhere here; changed by
    -- any thread. Word 2: how many are in the queue; written by the owner.
    timersCounts :: !AtomicWords
  }

wordInbox, wordDead, wordQueued :: Int
wordInbox = 0
wordDead = 1
wordQueued = 2

-- | No timers yet; they will be kept in that queue.
newTimers :: Queue -> IO Timers
newTimers q = (\inbox -> Timers inbox q) <$> newRef Empty <*> newAtomicWords 3

-- | So many may wait behind a sleeping owner, or be dead, before it is woken: a
-- program that sets and cancels long timers would pile them up.
sweepThreshold :: Int
sweepThreshold = 4096

-- | Put a new timer in. The result: has the owner so much to tidy that it should be
-- woken now?
setTimer :: Timers -> Timer -> IO Bool
setTimer ts t = push ts t >> arrived ts
{-# INLINE setTimer #-}

-- | A timer that is likely to be cancelled soon, by the thread that set it, and
-- remembers its place in the inbox for that.
data Fresh = Fresh !Timer !Inbox

-- | As 'setTimer'.
setFresh :: Timers -> Timer -> IO (Fresh, Bool)
setFresh ts t = do
  node <- push ts t
  full <- arrived ts
  pure (Fresh t node, full)
{-# INLINE setFresh #-}

-- | Returns the inbox's new first word.
push :: Timers -> Timer -> IO Inbox
push ts t = do
  below <- readRef (timersInbox ts)
  let !node = Push t below
  done <- casRef (timersInbox ts) below node
  if done then pure node else push ts t

arrived :: Timers -> IO Bool
arrived ts = (>= sweepThreshold) <$> addWord (timersCounts ts) wordInbox 1
{-# INLINE arrived #-}

-- | Cancel it. The first 'Bool' is whether it had not fired, and now never will; the
-- second is as with 'setTimer'. When nothing was set after it and the owner has not
-- come by, the timer is taken off the inbox again and leaves no trace.
cancelFresh :: Timers -> Fresh -> IO (Bool, Bool)
cancelFresh ts (Fresh t node) = do
  won <- defuseTimer t
  if not won
    then pure (False, False)
    else do
      gone <- unpush
      if gone
        then (True, False) <$ addWord (timersCounts ts) wordInbox (-1)
        else (,) True <$> noteCancelled ts
  where
    unpush = case node of
      Push _ below -> casRef (timersInbox ts) node below
      Empty -> pure False
{-# INLINE cancelFresh #-}

-- | A timer was cancelled that stays in the inbox or the queue for now. The result is
-- as with 'setTimer'.
noteCancelled :: Timers -> IO Bool
noteCancelled ts = do
  dead <- (+ 1) <$> addWord (timersCounts ts) wordDead 1
  if dead < sweepThreshold
    then pure False
    else (< 4 * dead) <$> peekWord (timersCounts ts) wordQueued

-- | Has anything been set since 'applyNews'?
hasNews :: Timers -> IO Bool
hasNews ts = notEmpty <$> readRef (timersInbox ts)
  where
    notEmpty Empty = False
    notEmpty (Push _ _) = True

-- | Put what is in the inbox into the queue, and sweep the queue when more than a
-- quarter of it is dead.
applyNews :: Timers -> IO ()
applyNews ts = do
  some <- hasNews ts
  when some $ do
    writeWord (timersCounts ts) wordInbox 0
    inbox <- takeInbox ts
    mapM_ enter inbox
    noteSize ts
  dead <- peekWord (timersCounts ts) wordDead
  when (dead >= sweepThreshold) $ do
    queued <- queueSize (timersQueue ts)
    when (4 * dead > queued) sweep
  where
    enter t = do
      pending <- isPending t
      if pending then queueInsert (timersQueue ts) t else noteSwept ts 1
    sweep = do
      before <- queueSize (timersQueue ts)
      queueSweep (timersQueue ts) isPending
      after <- queueSize (timersQueue ts)
      noteSwept ts (before - after)
      noteSize ts

-- | Put a timer into the queue at once.
enterTimer :: Timers -> Timer -> IO ()
enterTimer ts t = do
  queueInsert (timersQueue ts) t
  bumpWord (timersCounts ts) wordQueued 1
{-# INLINE enterTimer #-}

noteSwept :: Timers -> Int -> IO ()
noteSwept ts n = unless (n == 0) (void (addWord (timersCounts ts) wordDead (negate n)))

noteSize :: Timers -> IO ()
noteSize ts = writeWord (timersCounts ts) wordQueued =<< queueSize (timersQueue ts)

-- | When the queue next needs looking at; @never@ if it is empty.
nextDue :: Timers -> IO Instant
nextDue = queueNext . timersQueue

-- | Fire what is due at an instant; how many fired. The function is told when each of those was due, after it has fired.
expireTimers :: Timers -> Instant -> (Instant -> IO ()) -> IO Int
expireTimers ts instant told = do
  fired <- newAtomicWords 1
  queueExpire (timersQueue ts) instant $ \t -> do
    ok <- fireTimer Due t
    if ok then bumpWord fired 0 1 >> told (timerDue t) else noteSwept ts 1
  noteSize ts
  peekWord fired 0

-- | Take all out, for the end.
takeAll :: Timers -> IO [Timer]
takeAll ts = do
  applyNews ts
  out <- newRef []
  queueExpire (timersQueue ts) never $ \t -> readRef out >>= writeRef out . (t :)
  queueSweep (timersQueue ts) (\t -> False <$ (readRef out >>= writeRef out . (t :)))
  reverse <$> readRef out

-- | Take all out and have each told so ('Orphaned'); others may be entered afterwards.
-- O(timers).
orphanAll :: Timers -> IO ()
orphanAll ts = do
  applyNews ts
  out <- newRef []
  queueSweep (timersQueue ts) (\t -> False <$ (readRef out >>= writeRef out . (t :)))
  noteSize ts
  timers <- readRef out
  forM_ (reverse timers) $ \t -> fireTimer Orphaned t >>= \ok -> unless ok (noteSwept ts 1)

-- | Take what is in the inbox out again; from any thread.
takeInbox :: Timers -> IO [Timer]
takeInbox ts = (`listed` []) <$> swapRef (timersInbox ts) Empty
  where
    listed Empty acc = acc
    listed (Push t rest) acc = listed rest (t : acc)

-- | How many are pending, from any thread. Those that were set or cancelled in this moment may be missing.
pendingTimers :: Timers -> IO Int
pendingTimers ts = pending <$> peekWord counts wordInbox <*> peekWord counts wordQueued <*> peekWord counts wordDead
  where
    counts = timersCounts ts
    pending inbox queued dead = max 0 (inbox + queued - dead)
