-- |
-- Deadlines that are pushed later all the time, as a server's for each
-- connection: a cell that says when, and a timer in the background that looks at it
-- when it would have been due. Pushing it later is a write to the cell; no queue is
-- touched. Made to take the place of a time manager:
--
-- > deadline <- newDeadline (seconds 30) (close connection)
-- > forever $ do
-- >   request <- receive connection
-- >   postpone deadline       -- 30 seconds again, from now
-- >   pause deadline          -- however long the answer takes
-- >   answer request
-- >   resume deadline
--
-- Any thread may do any of this. Two that write at the same time leave what the
-- later one wrote.
--
-- The clock that is read for it is the kernel's coarse one, of a few milliseconds,
-- and is rounded up: a deadline never comes early and is late by less than 20 ms.
module Weft.Deadline
  ( Deadline,
    newDeadline,
    withDeadlineFor,
    postpone,
    pause,
    resume,
    stop,
    expired,
  )
where

import Control.Exception (bracket)
import Control.Monad (when)
import Data.IORef
import Data.Int (Int64)
import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Expiry (..), Timer)
import Weft.Runtime
import Weft.Sys (Cells, casCell, newCells, now, readCell, writeCell)

-- | A deadline. The cell holds when it is due, in nanoseconds, or one of the marks
-- below. Written by the users; by the dispatcher only from a due time to
-- 'markExpired', by compare-and-swap.
data Deadline = Deadline
  { deadlineCell :: !Cells,
    -- | How far 'postpone' pushes it.
    deadlineSpan :: !Int64,
    -- | What to do; dropped by 'stop'.
    deadlineAction :: !(IORef (IO ())),
    -- | The timer that looks at the cell next. Written by whoever sets it.
    deadlineTimer :: !(IORef (Maybe (Manager, Timer)))
  }

markPaused, markStopped, markExpired :: Int
markPaused = maxBound
markStopped = 0
markExpired = -1

-- | A deadline that long from now, and the action that runs once when it has
-- passed, on the dispatcher: it must not block (closing a socket does not).
newDeadline :: Duration -> IO () -> IO Deadline
newDeadline (Duration len) act = do
  d <- (\cell -> Deadline cell (max 0 len)) <$> newCells 1 <*> newIORef act <*> newIORef Nothing
  postponeFrom d
  watch d
  pure d

-- | Run an action with a deadline, which ends with it.
withDeadlineFor :: Duration -> IO () -> (Deadline -> IO a) -> IO a
withDeadlineFor len onExpiry = bracket (newDeadline len onExpiry) stop

-- | Keep a timer on it: at the time that the cell names, or, while it is paused, a
-- span later.
watch :: Deadline -> IO ()
watch d = do
  m <- currentManager
  at <- readCell (deadlineCell d) 0
  due <- if at == markPaused then after (Duration (deadlineSpan d)) <$> now else pure (Instant (fromIntegral at))
  when (at /= markStopped && at /= markExpired) $ do
    t <- addTimer m due look
    writeIORef (deadlineTimer d) (Just (m, t))
  where
    look Orphaned = watch d
    look Due = do
      at <- readCell (deadlineCell d) 0
      t <- now
      if at == markStopped || at == markExpired
        then pure ()
        else
          if at == markPaused || Instant (fromIntegral at) > t
            then watch d
            else do
              found <- casCell (deadlineCell d) 0 at markExpired
              if found == at then fire else look Due
    fire = do
      act <- readIORef (deadlineAction d)
      writeIORef (deadlineAction d) (pure ())
      act

-- | Due its full span from now. One read of the coarse clock and one write. No
-- effect on one that has expired or was stopped.
postpone :: Deadline -> IO ()
postpone d = do
  at <- readCell (deadlineCell d) 0
  when (at > markStopped) (postponeFrom d)
{-# INLINE postpone #-}

postponeFrom :: Deadline -> IO ()
postponeFrom d = do
  t <- coarseNow
  writeCell (deadlineCell d) 0 (fromIntegral (pushed t (deadlineSpan d)))
{-# INLINE postponeFrom #-}

-- | Just short of 'markPaused' at the latest.
pushed :: Int64 -> Int64 -> Int64
pushed t len = if t > maxBound - 1 - len then maxBound - 1 else t + len
{-# INLINE pushed #-}

-- | Not due until 'resume' or 'postpone'. One write.
pause :: Deadline -> IO ()
pause d = do
  at <- readCell (deadlineCell d) 0
  when (at > markStopped) (writeCell (deadlineCell d) 0 markPaused)
{-# INLINE pause #-}

-- | End a pause: due its full span from now.
resume :: Deadline -> IO ()
resume = postpone
{-# INLINE resume #-}

-- | Never due any more; the action is let go of, and the timer cancelled.
stop :: Deadline -> IO ()
stop d = do
  writeCell (deadlineCell d) 0 markStopped
  writeIORef (deadlineAction d) (pure ())
  readIORef (deadlineTimer d) >>= mapM_ (uncurry dropTimer)

-- | Has it passed, so that the action ran or is running?
expired :: Deadline -> IO Bool
expired d = (== markExpired) <$> readCell (deadlineCell d) 0

-- | The coarse monotonic clock, rounded up past the next tick of it.
foreign import ccall unsafe "weft_coarse_now" coarseNow :: IO Int64
