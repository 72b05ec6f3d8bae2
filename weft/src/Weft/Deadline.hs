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
-- later one wrote. Where several threads wait for one peer, as one that receives and one that
-- sends, 'during' takes the place of resuming and pausing.
--
-- The clock that is read for it is the kernel's coarse one, of a few milliseconds,
-- and is rounded up: a deadline never comes early and is late by less than 20 ms.
module Weft.Deadline
  ( Deadline,
    newDeadline,
    newPausedDeadline,
    withDeadlineFor,
    postpone,
    postponeFor,
    pause,
    resume,
    stop,

    -- * While something is awaited
    during,
    awaiting,
    awaited,
    remaining,
    expired,
  )
where

import Control.Exception (bracket, bracket_)
import Control.Monad (when)
import Data.IORef
import Data.Int (Int64)
import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Expiry (..), Timer, cancelTimer)
import Weft.Runtime
import Weft.Sys (Cells, addCell, casCell, newCells, now, peekCell, pokeCell, readCell)

-- | A deadline. Cell 0 holds when it is due, in nanoseconds: written by its users,
-- without more ado, so that pushing it costs next to nothing; read by the dispatcher.
-- Cell 1 holds how it stands, as below. Cell 2: for how many operations it runs ('during'), by
-- atomic addition. Cell 3: when the timer that is in charge looks at cell 0, moved by
-- compare-and-swap.
data Deadline = Deadline
  { deadlineCells :: !Cells,
    -- | How far 'postpone' pushes it.
    deadlineSpan :: !Int64,
    -- | What to do; dropped by 'stop'.
    deadlineAction :: !(IORef (IO ())),
    -- | The timer that looks at the cell next. Written by whoever sets it.
    deadlineTimer :: !(IORef (Maybe Timer))
  }

cellDue, cellState, cellUses, cellLook :: Int
cellDue = 0
cellState = 1
cellUses = 2
cellLook = 3

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

-- | In cell 0, while it is paused, and in cell 3, while no timer is set.
paused :: Int
paused = maxBound

-- | A deadline that long from now, and the action that runs once when it has
-- passed, on the dispatcher: it must not block (closing a socket does not).
newDeadline :: Duration -> IO () -> IO Deadline
newDeadline len act = do
  d <- newPausedDeadline len act
  d <$ postpone d

-- | The same, not running yet: see 'resume'. No timer is set before that.
newPausedDeadline :: Duration -> IO () -> IO Deadline
newPausedDeadline (Duration len) act = do
  d <- (\cells -> Deadline cells (max 0 len)) <$> newCells 4 <*> newIORef act <*> newIORef Nothing
  pokeCell (deadlineCells d) cellLook paused
  d <$ pause d

-- | Run an action with a deadline, which ends with it.
withDeadlineFor :: Duration -> IO () -> (Deadline -> IO a) -> IO a
withDeadlineFor len onExpiry = bracket (newDeadline len onExpiry) stop

-- | Set the timer that looks at it next, in the place of the one that was to look at
-- the given time: at the time that the cell names; while it is paused, none.
watch :: Deadline -> Int -> IO ()
watch d from = do
  next <- readCell cells cellDue
  found <- casCell cells cellLook from next
  when (found == from) $ do
    state <- readCell cells cellState
    when (state == stateRunning && next /= paused) $ do
      m <- currentManager
      t <- addTimer m (Instant (fromIntegral next)) (look next)
      writeIORef (deadlineTimer d) (Just t)
    -- It may have been brought forward before the new time could be seen.
    again <- readCell cells cellDue
    when (again < next) (watch d next)
  where
    cells = deadlineCells d
    -- One that was set for another time has been replaced.
    look mine expiry = do
      current <- readCell cells cellLook
      at <- readCell cells cellDue
      t <- now
      when (current == mine) $ case expiry of
        Due | Instant (fromIntegral at) <= t -> do
          found <- casCell cells cellState stateRunning stateExpired
          when (found == stateRunning) fire
        _ -> watch d mine
    fire = do
      act <- readIORef (deadlineAction d)
      writeIORef (deadlineAction d) (pure ())
      act

-- | Due its full span from now, whatever it was. One read of the coarse clock, one
-- write, one atomic read. No effect on one that has expired or was stopped.
postpone :: Deadline -> IO ()
postpone d = postponeFor d (Duration (deadlineSpan d))
{-# INLINE postpone #-}

-- | Due another time than its span from now, this once. One that is due sooner than
-- it was sets a timer.
postponeFor :: Deadline -> Duration -> IO ()
postponeFor d (Duration len) = do
  t <- coarseNow
  let due = fromIntegral (pushed t (max 0 len))
  -- Written before the look is read, as 'watch' writes the look before it reads this: one
  -- of the two sees the other's. (Adding nothing is the cheapest read that stays behind a write.)
  pokeCell cells cellDue due
  next <- addCell cells cellLook 0
  when (due < next) (watch d next)
  where
    cells = deadlineCells d
{-# INLINE postponeFor #-}

-- | Just short of 'paused' at the latest.
pushed :: Int64 -> Int64 -> Int64
pushed t len = if t > maxBound - 1 - len then maxBound - 1 else t + len
{-# INLINE pushed #-}

-- | Not due until 'resume' or 'postpone'. One write.
pause :: Deadline -> IO ()
pause d = pokeCell (deadlineCells d) cellDue paused
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

-- | Run an operation that waits for a peer, with the deadline so far away. While no
-- such operation is under way the deadline is paused. Several may be, in several threads: the
-- one that began last has set it, and the last to end pauses it.
during :: Deadline -> Duration -> IO a -> IO a
during d len = bracket_ (awaiting d len) (awaited d)
{-# INLINE during #-}

-- | The first half of 'during', for an operation that has a handler for exceptions of its own: the
-- other half has to follow, once, however it ends.
awaiting :: Deadline -> Duration -> IO ()
awaiting d len = addCell (deadlineCells d) cellUses 1 >> postponeFor d len
{-# INLINE awaiting #-}

-- | The second half.
awaited :: Deadline -> IO ()
awaited d = do
  uses <- addCell cells cellUses (-1)
  when (uses == 1) $ do
    pause d
    -- Another may have begun before the pause was written. Reading by an atomic addition
    -- orders this after the write.
    began <- addCell cells cellUses 0
    when (began > 0) (postpone d)
  where
    cells = deadlineCells d

-- | How long until it is due, not less than zero, by the coarse clock; its full
-- span while it is paused.
remaining :: Deadline -> IO Duration
remaining d = do
  at <- peekCell (deadlineCells d) cellDue
  if at == paused
    then pure (Duration (deadlineSpan d))
    else Duration . max 0 . (fromIntegral at -) <$> coarseNow

-- | Has it passed, so that the action ran or is running?
expired :: Deadline -> IO Bool
expired d = (== stateExpired) <$> peekCell (deadlineCells d) cellState

-- | The coarse monotonic clock, rounded up past the next tick of it.
foreign import ccall unsafe "weft_coarse_now" coarseNow :: IO Int64
