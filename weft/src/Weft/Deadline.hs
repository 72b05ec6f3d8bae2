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
import Weft.Core.Timer (Expiry (..), Timer, cancelTimer)
import Weft.Runtime
import Weft.Sys (Cells, casCell, newCells, now, peekCell, pokeCell, readCell)

-- | A deadline. Cell 0 holds when it is due, in nanoseconds: written by its users,
-- without more ado, so that pushing it costs next to nothing; read by the dispatcher.
-- Cell 1 holds how it stands, as below.
data Deadline = Deadline
  { deadlineCells :: !Cells,
    -- | How far 'postpone' pushes it.
    deadlineSpan :: !Int64,
    -- | What to do; dropped by 'stop'.
    deadlineAction :: !(IORef (IO ())),
    -- | The timer that looks at the cell next. Written by whoever sets it.
    deadlineTimer :: !(IORef (Maybe Timer))
  }

cellDue, cellState :: Int
cellDue = 0
cellState = 1

-- @
--   Running   a timer looks at it          -> Expired (the dispatcher), Stopped ('stop')
--   Expired   the action runs, or has run
--   Stopped
-- @
--
-- Both moves are one compare-and-swap, so one of them is made. What users write
-- into cell 0 afterwards nobody reads.
stateRunning, stateExpired, stateStopped :: Int
stateRunning = 0
stateExpired = 1
stateStopped = 2

-- | In cell 0, while it is paused.
markPaused :: Int
markPaused = maxBound

-- | A deadline that long from now, and the action that runs once when it has
-- passed, on the dispatcher: it must not block (closing a socket does not).
newDeadline :: Duration -> IO () -> IO Deadline
newDeadline (Duration len) act = do
  d <- (\cells -> Deadline cells (max 0 len)) <$> newCells 2 <*> newIORef act <*> newIORef Nothing
  postpone d
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
  at <- readCell (deadlineCells d) cellDue
  due <- if at == markPaused then after (Duration (deadlineSpan d)) <$> now else pure (Instant (fromIntegral at))
  state <- readCell (deadlineCells d) cellState
  when (state == stateRunning) $ do
    t <- addTimer m due look
    writeIORef (deadlineTimer d) (Just t)
  where
    look Orphaned = watch d
    look Due = do
      at <- readCell (deadlineCells d) cellDue
      t <- now
      if at == markPaused || Instant (fromIntegral at) > t
        then watch d
        else do
          found <- casCell (deadlineCells d) cellState stateRunning stateExpired
          when (found == stateRunning) fire
    fire = do
      act <- readIORef (deadlineAction d)
      writeIORef (deadlineAction d) (pure ())
      act

-- | Due its full span from now. One read of the coarse clock and one write. No
-- effect on one that has expired or was stopped.
postpone :: Deadline -> IO ()
postpone d = do
  t <- coarseNow
  pokeCell (deadlineCells d) cellDue (fromIntegral (pushed t (deadlineSpan d)))
{-# INLINE postpone #-}

-- | Just short of 'markPaused' at the latest.
pushed :: Int64 -> Int64 -> Int64
pushed t len = if t > maxBound - 1 - len then maxBound - 1 else t + len
{-# INLINE pushed #-}

-- | Not due until 'resume' or 'postpone'. One write.
pause :: Deadline -> IO ()
pause d = pokeCell (deadlineCells d) cellDue markPaused
{-# INLINE pause #-}

-- | End a pause: due its full span from now.
resume :: Deadline -> IO ()
resume = postpone
{-# INLINE resume #-}

-- | Never due any more; the action is let go of, and the timer cancelled.
stop :: Deadline -> IO ()
stop d = do
  found <- casCell (deadlineCells d) cellState stateRunning stateStopped
  when (found == stateRunning) $ do
    writeIORef (deadlineAction d) (pure ())
    readIORef (deadlineTimer d) >>= mapM_ cancelTimer

-- | Has it passed, so that the action ran or is running?
expired :: Deadline -> IO Bool
expired d = (== stateExpired) <$> peekCell (deadlineCells d) cellState

-- | The coarse monotonic clock, rounded up past the next tick of it.
foreign import ccall unsafe "weft_coarse_now" coarseNow :: IO Int64
