-- |
-- The timers of one event manager. Any thread may set and cancel timers: setting is one
-- compare-and-swap on an inbox, cancelling one on the timer. Only the owner, the thread that runs the manager, uses the
-- queue behind the inbox, so there are no locks.
module Weft.Core.Timers
  ( Timers,
    newTimers,

    -- * Any thread
    setTimer,
    dropCancelled,
    takeInbox,

    -- * The owner
    hasNews,
    applyNews,
    enterTimer,
    nextDue,
    expireTimers,
    takeAll,
    orphanAll,

    -- * Metrics
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
    -- | Used by the owner only.
    timersQueue :: !Queue,
    -- | Word 0: roughly the number of timers in the inbox; changed by any thread.
    -- Word 1: the number of cancelled timers that are still in inbox or queue; changed by
    -- any thread. Word 2: the number of timers in the queue; written by the owner.
    timersCounts :: !WordArray
  }

wordInbox, wordDead, wordQueued :: Int
wordInbox = 0
wordDead = 1
wordQueued = 2

-- | An empty set of timers, with the queue that will hold them.
newTimers :: Queue -> IO Timers
newTimers q = (\inbox -> Timers inbox q) <$> newRef Empty <*> newOwnWords 3

-- | The number of timers that may be in the inbox of a sleeping owner, or be cancelled, before it is woken. Without
-- it a program that sets and cancels long timers would accumulate them.
sweepThreshold :: Int
sweepThreshold = 4096

-- | Put a new timer in. 'True' if the owner has to be woken to tidy up ('sweepThreshold').
setTimer :: Timers -> Timer -> IO Bool
setTimer ts t = push >> (>= sweepThreshold) <$> addWord (timersCounts ts) wordInbox 1
  where
    push = do
      below <- readRef (timersInbox ts)
      let !node = Push t below
      done <- casRef (timersInbox ts) below node
      unless done push
{-# INLINE setTimer #-}

-- | Drop a timer that was cancelled. It is taken out at once if it is on top of the inbox: no timer was set after it,
-- and the owner has not emptied the inbox. Otherwise it stays for now, and is counted. The result is that of
-- 'setTimer'.
dropCancelled :: Timers -> Timer -> IO Bool
dropCancelled ts t = do
  inbox <- readRef (timersInbox ts)
  gone <- case inbox of
    Push top below | top == t -> casRef (timersInbox ts) inbox below
    _ -> pure False
  if gone then False <$ addWord (timersCounts ts) wordInbox (-1) else stays
  where
    stays = do
      dead <- (+ 1) <$> addWord (timersCounts ts) wordDead 1
      if dead < sweepThreshold
        then pure False
        else (< 4 * dead) <$> peekWord (timersCounts ts) wordQueued

-- | Whether a timer has been set since 'applyNews'.
hasNews :: Timers -> IO Bool
hasNews ts = notEmpty <$> readRef (timersInbox ts)
  where
    notEmpty Empty = False
    notEmpty (Push _ _) = True

-- | Move the timers of the inbox into the queue, and sweep the queue if more than a
-- quarter of it is cancelled.
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

-- | Put a timer directly into the queue.
enterTimer :: Timers -> Timer -> IO ()
enterTimer ts t = do
  queueInsert (timersQueue ts) t
  bumpWord (timersCounts ts) wordQueued 1
{-# INLINE enterTimer #-}

noteSwept :: Timers -> Int -> IO ()
noteSwept ts n = unless (n == 0) (void (addWord (timersCounts ts) wordDead (negate n)))

noteSize :: Timers -> IO ()
noteSize ts = writeWord (timersCounts ts) wordQueued =<< queueSize (timersQueue ts)

-- | The instant of the next 'expireTimers'; @never@ if the queue is empty.
nextDue :: Timers -> IO Instant
nextDue = queueNext . timersQueue

-- | Fire the timers that are due at an instant. Returns their number. The function gets the due time of each, after
-- it has fired.
expireTimers :: Timers -> Instant -> (Instant -> IO ()) -> IO Int
expireTimers ts instant told = do
  fired <- newWordArray 1
  queueExpire (timersQueue ts) instant $ \t -> do
    ok <- fireTimer t
    if ok then bumpWord fired 0 1 >> told (timerDue t) else noteSwept ts 1
  noteSize ts
  peekWord fired 0

-- | Take all timers out, for the manager's end.
takeAll :: Timers -> IO [Timer]
takeAll ts = do
  applyNews ts
  out <- newRef []
  queueExpire (timersQueue ts) never $ \t -> readRef out >>= writeRef out . (t :)
  queueSweep (timersQueue ts) (\t -> False <$ (readRef out >>= writeRef out . (t :)))
  reverse <$> readRef out

-- | Take all timers out and tell their owner ('orphanTimer'). Others may be entered afterwards.
-- O(timers).
orphanAll :: Timers -> IO ()
orphanAll ts = do
  applyNews ts
  out <- newRef []
  queueSweep (timersQueue ts) (\t -> False <$ (readRef out >>= writeRef out . (t :)))
  noteSize ts
  timers <- readRef out
  forM_ (reverse timers) $ \t -> orphanTimer t >>= \ok -> unless ok (noteSwept ts 1)

-- | Take the timers out of the inbox. Any thread may call this.
takeInbox :: Timers -> IO [Timer]
takeInbox ts = (`listed` []) <$> swapRef (timersInbox ts) Empty
  where
    listed Empty acc = acc
    listed (Push t rest) acc = listed rest (t : acc)

-- | The number of pending timers. Any thread may call this; timers that are being set or cancelled may be missing.
pendingTimers :: Timers -> IO Int
pendingTimers ts = pending <$> peekWord counts wordInbox <*> peekWord counts wordQueued <*> peekWord counts wordDead
  where
    counts = timersCounts ts
    pending inbox queued dead = max 0 (inbox + queued - dead)
