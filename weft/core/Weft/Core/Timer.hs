-- |
-- The timers of one event manager. Any thread may set, move and cancel; it does
-- so by pushing an edit on an inbox (2010, 8.3), one compare-and-swap. The queue
-- behind the inbox is a priority search queue (2010, 7.2) that only the thread
-- that runs the manager touches, so nothing is locked.
--
-- A timer fires once or is cancelled, never both: each takes the action out of
-- the timer's reference, and whoever finds it there has won.
module Weft.Core.Timer
  ( -- * Timers
    Timer,
    Expiry (..),
    setTimer,
    moveTimer,
    cancelTimer,

    -- * The queue, for the thread that runs the manager
    Timers,
    newTimers,
    hasEdits,
    applyEdits,
    nextDue,
    takeDue,
    takeAll,
    fireTimer,
    pendingTimers,
  )
where

import qualified Data.IntPSQ as PSQ
import Data.List (sortOn)
import Weft.Core.Time (Instant, never)
import Weft.Sys

-- | A timer that was set: its key in the queue, and what it does. 'Nothing' once
-- it has fired or was cancelled. Written by whoever fires or cancels.
data Timer = Timer !Int !(Ref (Maybe (Expiry -> IO ())))

-- | Why a timer's action runs.
data Expiry
  = -- | Its time has come.
    Due
  | -- | Its manager was stopped; it is not due, and nobody else will look after it.
    Orphaned
  deriving (Eq, Show)

-- | A change to the queue, on its way.
data Edit
  = Insert !Timer !Instant
  | Move !Timer !Instant
  | Remove !Timer

-- | Edits, the latest first.
data Inbox = Empty | Push !Edit Inbox

-- | The timers of one manager.
data Timers = Timers
  { -- | Pushed on by any thread, emptied by the owner.
    timersInbox :: !(Ref Inbox),
    -- | The owner's alone.
    timersQueue :: !(Ref (PSQ.IntPSQ Instant Timer)),
    -- | Cell 0: the next key, taken by any thread. Cell 1: how many edits were
    -- pushed since the owner last emptied the inbox, within a few.
    timersCounts :: !Cells
  }

-- | No timers.
newTimers :: IO Timers
newTimers = Timers <$> newRef Empty <*> newRef PSQ.empty <*> newCells 2

-- | So many edits at most wait behind a sleeping owner; then it is woken to
-- apply them, or a program that sets and cancels long timers would pile them up.
inboxLimit :: Int
inboxLimit = 1024

-- | Set a timer. The action runs on the manager's thread: it must not block. Also
-- returned: whether the inbox is so full that the owner should be woken now.
setTimer :: Timers -> Instant -> (Expiry -> IO ()) -> IO (Timer, Bool)
setTimer ts due act = do
  key <- addCell (timersCounts ts) 0 1
  t <- Timer key <$> newRef (Just act)
  full <- push ts (Insert t due)
  pure (t, full)

-- | Change when a timer fires. No effect on one that has fired or was cancelled.
-- The result is as with 'setTimer'.
moveTimer :: Timers -> Timer -> Instant -> IO Bool
moveTimer ts t due = push ts (Move t due)

-- | Cancel a timer. The first 'Bool' is whether it had not fired, and now never
-- will; the second is as with 'setTimer'.
cancelTimer :: Timers -> Timer -> IO (Bool, Bool)
cancelTimer ts t@(Timer _ ref) = do
  old <- swapRef ref Nothing
  case old of
    Nothing -> pure (False, False)
    Just _ -> (,) True <$> push ts (Remove t)

push :: Timers -> Edit -> IO Bool
push ts e = do
  _ <- updateRef (timersInbox ts) (Push e)
  waiting <- addCell (timersCounts ts) 1 1
  pure (waiting >= inboxLimit)

-- | Has anything been pushed since 'applyEdits'?
hasEdits :: Timers -> IO Bool
hasEdits ts = notEmpty <$> readRef (timersInbox ts)
  where
    notEmpty Empty = False
    notEmpty (Push _ _) = True

-- | Bring the queue up to date. O(log n) an edit.
applyEdits :: Timers -> IO ()
applyEdits ts = do
  waiting <- hasEdits ts
  if waiting
    then do
      writeCell (timersCounts ts) 1 0
      edits <- swapRef (timersInbox ts) Empty
      q <- readRef (timersQueue ts)
      let q' = foldl (flip edit) q (oldestFirst edits [])
      q' `seq` writeRef (timersQueue ts) q'
    else pure ()
  where
    oldestFirst Empty acc = acc
    oldestFirst (Push e rest) acc = oldestFirst rest (e : acc)

edit :: Edit -> PSQ.IntPSQ Instant Timer -> PSQ.IntPSQ Instant Timer
edit e q = case e of
  Insert t@(Timer k _) due -> PSQ.insert k due t q
  Move (Timer k _) due -> snd (PSQ.alter (\old -> ((), fmap (\(_, t) -> (due, t)) old)) k q)
  Remove (Timer k _) -> PSQ.delete k q

-- | When the first timer of the queue is due. O(1).
nextDue :: Timers -> IO (Maybe Instant)
nextDue ts = fmap (\(_, due, _) -> due) . PSQ.findMin <$> readRef (timersQueue ts)

-- | Take all that are due out of the queue, the earliest first.
takeDue :: Timers -> Instant -> IO [Timer]
takeDue ts t = do
  q <- readRef (timersQueue ts)
  let (due, q') = PSQ.atMostView t q
  writeRef (timersQueue ts) q'
  pure [timer | (_, _, timer) <- sortOn (\(_, when, _) -> when) due]

-- | Run the action; 'False' when the timer had been cancelled.
fireTimer :: Expiry -> Timer -> IO Bool
fireTimer why (Timer _ ref) =
  swapRef ref Nothing >>= maybe (pure False) (\act -> True <$ guarded (act why))

-- | Take all out of the queue, for the end.
takeAll :: Timers -> IO [Timer]
takeAll ts = applyEdits ts >> takeDue ts never

-- | How many are in the queue, applied edits only.
pendingTimers :: Timers -> IO Int
pendingTimers ts = PSQ.size <$> readRef (timersQueue ts)
