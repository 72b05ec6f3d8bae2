-- |
-- Idle timers: limits on how long nothing may happen, as a server has one for each
-- connection. Such a timer is pushed later all the time, so that costs a write to a word; a
-- timer of the manager looks at the word when it would have been due, and no queue is
-- touched. Made to take the place of a time manager:
--
-- > timer <- newIdleTimer (seconds 30) (close connection)
-- > forever $ do
-- >   request <- receive connection
-- >   reset timer           -- 30 seconds again, from now
-- >   pause timer           -- however long the answer takes
-- >   answer request
-- >   resume timer
--
-- Any thread may do any of this. Two that write at the same time leave what the
-- later one wrote. Where several threads wait for one peer, as one that receives and one that
-- sends, 'during' takes the place of resuming and pausing.
--
-- The clock that is read for it is the kernel's coarse one, of a few milliseconds,
-- and is rounded up: an idle timer never fires early and is late by less than 20 ms.
-- (A deadline, an instant by which one operation has to be done, is
-- 'Weft.Socket.withDeadline'.)
--
-- @since 0.1.0
module Weft.IdleTimer
  ( IdleTimer,
    newIdleTimer,
    newPausedIdleTimer,
    newDecidingIdleTimer,
    WhenDue (..),
    withIdleTimer,
    reset,
    resetFor,
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
import Control.Monad (join, when)
import Data.IORef
import Data.Int (Int64)
import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Expiry (..), Timer, cancelTimer)
import Weft.FFI.Clock (coarseNow)
import Weft.Runtime.Managers
import Weft.Sys (AtomicWords, addWord, casWord, newAtomicWords, now, peekWord, pokeWord, readWord)

-- | An idle timer. Word 0 holds when it is due, in nanoseconds: written by its users,
-- without more ado, so that pushing it costs next to nothing; read by the dispatcher.
-- Word 1 holds how it stands, as below. Word 2: for how many operations it runs ('during'), by
-- atomic addition. Word 3: when the timer that is in charge looks at word 0, moved by
-- compare-and-swap.
data IdleTimer = IdleTimer
  { idleTimerWords :: !AtomicWords,
    -- | How far 'reset' pushes it.
    idleTimerSpan :: !Int64,
    -- | What to do; dropped by 'stop', and once it has expired.
    idleTimerAction :: !(IORef (IO WhenDue)),
    -- | The timer that looks at the word next. Written by whoever sets it.
    idleTimerTimer :: !(IORef (Maybe Timer))
  }

wordDue, wordState, wordUses, wordLook :: Int
wordDue = 0
wordState = 1
wordUses = 2
wordLook = 3

-- @
--   Running   a timer looks at it          -> Expired (the dispatcher), Stopped ('stop')
--   Expired   the action runs, or has run
--   Stopped
-- @
--
-- Both moves are one compare-and-swap, so one of them is made. What users write
-- into word 0 afterwards nobody reads.
stateRunning, stateExpired, stateStopped :: Int
stateRunning = 0
stateExpired = 1
stateStopped = 2

-- | What becomes of a timer that is due.
data WhenDue
  = -- | It is due so much later, unless somebody has set it meanwhile.
    Later !Duration
  | -- | It expires, and the action runs.
    Expire !(IO ())

-- | In word 0, while it is paused, and in word 3, while no timer is set.
paused :: Int
paused = maxBound

-- | An idle timer of that length that runs, and the action that runs once when it has
-- passed, on the dispatcher: it must not block (closing a socket does not).
newIdleTimer :: Duration -> IO () -> IO IdleTimer
newIdleTimer len act = do
  d <- newPausedIdleTimer len act
  d <$ reset d

-- | 'newIdleTimer', but paused: it does not run until 'resume', and no timer is set before that.
newPausedIdleTimer :: Duration -> IO () -> IO IdleTimer
newPausedIdleTimer len act = newDecidingIdleTimer len (pure (Expire act))

-- | The same for one that may be given more time when it is due: the action, run on the dispatcher each time, decides. It must
-- neither block nor throw.
newDecidingIdleTimer :: Duration -> IO WhenDue -> IO IdleTimer
newDecidingIdleTimer (Duration len) decide = do
  d <- (\ws -> IdleTimer ws (max 0 len)) <$> newAtomicWords 4 <*> newIORef decide <*> newIORef Nothing
  pokeWord (idleTimerWords d) wordLook paused
  d <$ pause d

-- | Run an action with an idle timer, which is stopped at its end.
withIdleTimer :: Duration -> IO () -> (IdleTimer -> IO a) -> IO a
withIdleTimer len onExpiry = bracket (newIdleTimer len onExpiry) stop

-- | Set the timer that looks at it next, in the place of the one that was to look at
-- the given time: at the time that the word names; while it is paused, none.
watch :: IdleTimer -> Int -> IO ()
watch d from = do
  next <- readWord ws wordDue
  found <- casWord ws wordLook from next
  when (found == from) $ do
    state <- readWord ws wordState
    when (state == stateRunning && next /= paused) $ do
      m <- currentManager
      t <- addTimer m (Instant (fromIntegral next)) (look next)
      writeIORef (idleTimerTimer d) (Just t)
    -- It may have been brought forward before the new time could be seen.
    again <- readWord ws wordDue
    when (again < next) (watch d next)
  where
    ws = idleTimerWords d
    -- One that was set for another time has been replaced.
    look mine expiry = do
      current <- readWord ws wordLook
      at <- readWord ws wordDue
      t <- now
      when (current == mine) $ case expiry of
        Due | Instant (fromIntegral at) <= t -> join (readIORef (idleTimerAction d)) >>= fire mine at
        _ -> watch d mine
    fire mine at due = case due of
      Later (Duration more) -> do
        t <- coarseNow
        _ <- casWord ws wordDue at (fromIntegral (pushed t (max 0 more)))
        watch d mine
      Expire act -> do
        found <- casWord ws wordState stateRunning stateExpired
        when (found == stateRunning) (writeIORef (idleTimerAction d) nothing >> act)

-- | Due its full span from now, whatever it was. One read of the coarse clock, one
-- write, one atomic read. No effect on one that has expired or was stopped.
reset :: IdleTimer -> IO ()
reset d = resetFor d (Duration (idleTimerSpan d))
{-# INLINE reset #-}

-- | Due another time than its span from now, this once. One that is due sooner than
-- it was sets a timer.
resetFor :: IdleTimer -> Duration -> IO ()
resetFor d (Duration len) = do
  t <- coarseNow
  let due = fromIntegral (pushed t (max 0 len))
  -- Written before the look is read, as 'watch' writes the look before it reads this: one
  -- of the two sees the other's. (Adding nothing is the cheapest read that stays behind a write.)
  pokeWord ws wordDue due
  next <- addWord ws wordLook 0
  when (due < next) (watch d next)
  where
    ws = idleTimerWords d
{-# INLINE resetFor #-}

-- | Just short of 'paused' at the latest.
pushed :: Int64 -> Int64 -> Int64
pushed t len = if t > maxBound - 1 - len then maxBound - 1 else t + len
{-# INLINE pushed #-}

-- | Not due until 'resume' or 'reset'. One write.
pause :: IdleTimer -> IO ()
pause d = pokeWord (idleTimerWords d) wordDue paused
{-# INLINE pause #-}

-- | End a pause: due its full span from now.
resume :: IdleTimer -> IO ()
resume = reset
{-# INLINE resume #-}

-- | Never due any more; the action is let go of, and the timer cancelled.
stop :: IdleTimer -> IO ()
stop d = do
  found <- casWord (idleTimerWords d) wordState stateRunning stateStopped
  when (found == stateRunning) $ do
    writeIORef (idleTimerAction d) nothing
    readIORef (idleTimerTimer d) >>= mapM_ cancelTimer

nothing :: IO WhenDue
nothing = pure (Expire (pure ()))

-- | Run an operation that waits for a peer, with the timer set to that length. While no
-- such operation is under way the timer is paused. Several may be, in several threads: the
-- one that began last has set it, and the last to end pauses it.
during :: IdleTimer -> Duration -> IO a -> IO a
during d len = bracket_ (awaiting d len) (awaited d)
{-# INLINE during #-}

-- | The first half of 'during', for an operation that has a handler for exceptions of its own: the
-- other half has to follow, once, however it ends.
awaiting :: IdleTimer -> Duration -> IO ()
awaiting d len = addWord (idleTimerWords d) wordUses 1 >> resetFor d len
{-# INLINE awaiting #-}

-- | The second half.
awaited :: IdleTimer -> IO ()
awaited d = do
  uses <- addWord ws wordUses (-1)
  when (uses == 1) idle
  where
    ws = idleTimerWords d
    -- Another may have begun before the pause was written, and ended before the reset was: so what was written last is looked
    -- at until it is right. Reading by an atomic addition orders this after the write.
    idle = do
      pause d
      began <- addWord ws wordUses 0
      when (began > 0) $ do
        reset d
        left <- addWord ws wordUses 0
        when (left == 0) idle

-- | How long until it is due, not less than zero, by the coarse clock; its full
-- span while it is paused.
remaining :: IdleTimer -> IO Duration
remaining d = do
  at <- peekWord (idleTimerWords d) wordDue
  if at == paused
    then pure (Duration (idleTimerSpan d))
    else Duration . max 0 . (fromIntegral at -) <$> coarseNow

-- | Has it passed, so that the action ran or is running?
expired :: IdleTimer -> IO Bool
expired d = (== stateExpired) <$> peekWord (idleTimerWords d) wordState
