-- |
-- Idle timers: limits on how long nothing may happen. "Weft.IdleTimer" says what they are for, and exports what
-- programs use; the servers of this project use the rest, too.
module Weft.Runtime.IdleTimer
  ( IdleTimer,
    newIdleTimer,
    newPausedIdleTimer,
    newDecidingIdleTimer,
    WhenDue (..),
    ranLate,
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
    remainingAt,
    expired,
  )
where

import Control.Exception (bracket, bracket_, onException)
import Control.Monad (forM_, when)
import Data.IORef
import Data.Int (Int64)
import Weft.Core.Manager
import Weft.Core.Time
import Weft.Core.Timer (Expiry (..), Timer, cancelTimer)
import Weft.FFI.Clock (coarseNow)
import Weft.Runtime.Managers
import Weft.Sys (WordArray, addWord, casWord, mask_, newWordArray, now, peekWord, pokeWord, readWord)

-- | An idle timer: five words that any thread may read.
--
--   * Word 0, the due time in nanoseconds, or 'paused'. Users write it without an atomic instruction. A dispatcher
--     reads it; when a decision gives more time, it changes the word by compare-and-swap, so that a reset made
--     meanwhile counts.
--   * Word 1, the state, changed by compare-and-swap (see below).
--   * Word 2, the number of operations that it runs for ('during'), changed by atomic addition.
--   * Word 3, the look: when a timer of a manager checks word 0 next. Changed by compare-and-swap.
--   * Word 4, the time limit of the operation that began last. Written before the operation is counted in word 2.
--
-- The moves of word 3, each by a thread that then has to do what is on the right:
--
-- @
--   paused    -> t         a user who found that word 0 is earlier    set a timer for t
--   t         -> u         a user who found that word 0 is earlier    set a timer for u (t's finds another look)
--   t         -> u         t's timer, not due                         set a timer for u
--   t         -> paused    t's timer; word 0 is paused                nothing
--   t         -> deciding  t's timer; word 0 has passed               run the action
--   deciding  -> u         the action gave more time                  set a timer for u
--   deciding  -> paused    the action gave more time; it is paused    nothing
--   deciding               for good: the action let it expire
--   deciding  -> paused    the action threw; a user sets the next timer
--   t, deciding  -> paused t's timer; no dispatcher can be started    throw; a user sets the next timer
-- @
--
-- A timer whose own time is not the look does nothing. Two timers may have the same time (a due time that was brought
-- forward and then moved back to the same tick of the coarse clock); the first one to change word 3 wins. So the action
-- never runs twice at the same time, on two dispatchers.
--
-- No due time is overlooked. A user writes word 0, then reads word 3; whoever changes word 3 reads word 0 after that.
-- Both have a full barrier between the two. So either the user sees the new look, and sets an earlier one if that is
-- too late, or the other thread sees the user's due time, and does. While the look is 'deciding', users set no timer:
-- the dispatcher reads word 0 after the decision.
--
-- The move of word 1 to Expired is not atomic with the reading of word 0. So a reset or pause that is made at the
-- due time or later may find that it comes too late, and 'expired' then tells so. One that has returned before the due
-- time is never overlooked, since the dispatcher reads word 0 at the due time or later.
data IdleTimer = IdleTimer
  { idleTimerWords :: !WordArray,
    -- | The time, in nanoseconds, that 'reset' gives it.
    idleTimerSpan :: !Int64,
    -- | What to do when it is due; dropped by 'stop', and once it has expired.
    idleTimerAction :: !(IORef (Duration -> IO WhenDue)),
    -- | The manager's timer that checks word 0 next. Written by the thread that sets it.
    idleTimerTimer :: !(IORef (Maybe Timer))
  }

wordDue, wordState, wordUses, wordLook, wordLimit :: Int
wordDue = 0
wordState = 1
wordUses = 2
wordLook = 3
wordLimit = 4

-- @
--   Running   it may be due or paused      -> Expired (the dispatcher), Stopped ('stop')
--   Expired   the action runs, or has run
--   Stopped
-- @
--
-- Both moves are a compare-and-swap, so only one of them is made. After it word 0 is not
-- read any more.
stateRunning, stateExpired, stateStopped :: Int
stateRunning = 0
stateExpired = 1
stateStopped = 2

-- | The decision about a timer that is due.
data WhenDue
  = -- | It is due so much later, unless it has been set meanwhile.
    Later !Duration
  | -- | It expires, and the action runs.
    Expire !(IO ())

-- | The value of word 0 while the idle timer is paused, and of word 3 while no timer is set.
paused :: Int
paused = maxBound

-- | The value of word 3 while a dispatcher runs the action. No due time is earlier.
deciding :: Int
deciding = minBound

-- | A running idle timer of that length. The action runs once, when the timer has expired, on the dispatcher: it must
-- not block (closing a socket does not).
newIdleTimer :: Duration -> IO () -> IO IdleTimer
newIdleTimer len act = do
  d <- newPausedIdleTimer len act
  d <$ reset d

-- | A paused idle timer: it does not run until 'resume', and the manager has no timer for it before.
newPausedIdleTimer :: Duration -> IO () -> IO IdleTimer
newPausedIdleTimer len act = newDecidingIdleTimer len (\_ -> pure (Expire act))

-- | A paused idle timer that may get more time when it is due. The dispatcher runs the action each time, and its result
-- decides. It must not block. If it throws, the exception goes to the program's handler for uncaught exceptions, and
-- the timer is not due again before it is reset. It does not run twice at the same time. It gets the time by which the
-- dispatcher is late ('ranLate').
newDecidingIdleTimer :: Duration -> (Duration -> IO WhenDue) -> IO IdleTimer
newDecidingIdleTimer (Duration len) decide = do
  d <- (\ws -> IdleTimer ws (max 0 len)) <$> newWordArray 5 <*> newIORef decide <*> newIORef Nothing
  pokeWord (idleTimerWords d) wordLook paused
  d <$ pause d

-- | Whether a timer that is late by so much, a second or more, shows that the process did not run: it was stopped, or
-- its machine was, or is overloaded. What a peer has sent meanwhile may not have been read.
ranLate :: Duration -> Bool
ranLate late = late >= Duration 1000000000

-- | Run an action with an idle timer, which is stopped when the action ends.
withIdleTimer :: Duration -> IO () -> (IdleTimer -> IO a) -> IO a
withIdleTimer len onExpiry = bracket (newIdleTimer len onExpiry) stop

-- | Set the manager's timer that checks word 0 next, for the due time in that word; it replaces the one that was set
-- for the given time, or follows a decision. If the idle timer is paused, no timer is set. Masked: word 3 must not name
-- a timer that was never set.
watch :: IdleTimer -> Int -> IO ()
watch d from = mask_ $ do
  next <- readWord ws wordDue
  state <- readWord ws wordState
  -- One that has been stopped or has expired starts no dispatcher: the managers may be stopping.
  when (state == stateRunning) $ do
    -- Before word 3 is changed, as it throws if no dispatcher can be started.
    manager <- if next == paused then pure Nothing else Just <$> currentManager
    found <- casWord ws wordLook from next
    when (found == from) $ do
      forM_ manager $ \m -> do
        t <- addOptionalTimer m (Instant (fromIntegral next)) (look next)
        writeIORef (idleTimerTimer d) (Just t)
      -- The due time may have been moved earlier by a thread that had not seen word 3 yet.
      again <- readWord ws wordDue
      when (again < next) (watch d next)
  where
    ws = idleTimerWords d
    -- A timer that was set for another time has been replaced.
    look mine why = do
      current <- readWord ws wordLook
      at <- readWord ws wordDue
      t <- now
      running <- (== stateRunning) <$> readWord ws wordState
      case why of
        _ | current /= mine -> pure False
        -- The manager was stopped. If the timer is not needed, no other manager is started for it.
        Orphaned
          | at == paused -> False <$ follow mine
          | otherwise -> pure running
        Due | Instant (fromIntegral at) <= t -> do
          -- Another timer of this time may be here too, on another dispatcher.
          claimed <- casWord ws wordLook mine deciding
          False <$ when (claimed == mine) (readIORef (idleTimerAction d) >>= decided (lateAt t at) >>= fire at)
        Due -> False <$ follow mine
    -- The timer that word 3 names is spent. Should 'watch' throw, the next reset sets a timer.
    follow mine = watch d mine `onException` casWord ws wordLook mine paused
    -- Nor may a decision that throws leave word 3 at 'deciding'.
    decided late decide = (decide late >>= (pure $!)) `onException` casWord ws wordLook deciding paused
    lateAt (Instant t) at = Duration (t - fromIntegral at)
    fire at due = case due of
      Later (Duration more) -> do
        t <- coarseNow
        _ <- casWord ws wordDue at (fromIntegral (pushed t (max 0 more)))
        follow deciding
      Expire act -> do
        found <- casWord ws wordState stateRunning stateExpired
        when (found == stateRunning) (writeIORef (idleTimerAction d) nothing >> act)

-- | Make it due its full length from now. One read of the coarse clock, one
-- write, one atomic read. No effect if it has expired or was stopped.
reset :: IdleTimer -> IO ()
reset d = resetFor d (Duration (idleTimerSpan d))
{-# INLINE reset #-}

-- | Make it due after the given duration from now, this once. If that is earlier than the manager's timer, another
-- timer is set.
resetFor :: IdleTimer -> Duration -> IO ()
resetFor d (Duration len) = do
  t <- coarseNow
  let due = fromIntegral (pushed t (max 0 len))
  -- Here word 0 is written before word 3 is read; 'watch' writes word 3 before it reads word 0. So at least one
  -- of the two sees what the other wrote. (Adding zero is the cheapest read that is ordered after a write.)
  pokeWord ws wordDue due
  next <- addWord ws wordLook 0
  when (due < next) (watch d next)
  where
    ws = idleTimerWords d
{-# INLINE resetFor #-}

-- | The sum, less than 'paused'.
pushed :: Int64 -> Int64 -> Int64
pushed t len = if t > maxBound - 1 - len then maxBound - 1 else t + len
{-# INLINE pushed #-}

-- | Stop it until 'resume' or 'reset'. One write.
pause :: IdleTimer -> IO ()
pause d = pokeWord (idleTimerWords d) wordDue paused
{-# INLINE pause #-}

-- | End a pause: it is due its full length from now. The same as 'reset'.
resume :: IdleTimer -> IO ()
resume = reset
{-# INLINE resume #-}

-- | Stop it for good. The action is dropped, and the manager's timer cancelled.
stop :: IdleTimer -> IO ()
stop d = do
  found <- casWord (idleTimerWords d) wordState stateRunning stateStopped
  when (found == stateRunning) $ do
    writeIORef (idleTimerAction d) nothing
    readIORef (idleTimerTimer d) >>= mapM_ cancelTimer

nothing :: Duration -> IO WhenDue
nothing _ = pure (Expire (pure ()))

-- | Run an operation that waits for a peer, with the timer set to that length. Several threads may do that at once:
-- each that begins sets the timer, and the last one that ends pauses it.
during :: IdleTimer -> Duration -> IO a -> IO a
during d len = bracket_ (awaiting d len) (awaited d)
{-# INLINE during #-}

-- | The first half of 'during', for an operation that handles exceptions itself. 'awaited' has to
-- follow once, however the operation ends.
awaiting :: IdleTimer -> Duration -> IO ()
awaiting d len@(Duration ns) = do
  pokeWord ws wordLimit (fromIntegral ns)
  _ <- addWord ws wordUses 1
  resetFor d len
  where
    ws = idleTimerWords d
{-# INLINE awaiting #-}

-- | The second half of 'during'.
awaited :: IdleTimer -> IO ()
awaited d = do
  uses <- addWord ws wordUses (-1)
  when (uses == 1) idle
  where
    ws = idleTimerWords d
    -- Another may have begun before the pause was written: it gets its time limit again. It may have ended, or a third
    -- one may have begun, before that limit was written: so what was written last is looked at until it is right.
    -- Reading by an atomic addition orders this after the write.
    idle = do
      pause d
      began <- addWord ws wordUses 0
      when (began > 0) $ do
        limit <- readWord ws wordLimit
        resetFor d (Duration (fromIntegral limit))
        left <- addWord ws wordUses 0
        latest <- readWord ws wordLimit
        when (left == 0 || latest /= limit) idle

-- | The time until it is due by the coarse clock, at least zero. While it is paused, its full length.
remaining :: IdleTimer -> IO Duration
remaining d = coarseNow >>= \t -> remainingAt (Instant t) d

-- | The time from an instant until it is due, at least zero. While it is paused, its full length. The times of several
-- idle timers can be compared if they are all from the same instant.
remainingAt :: Instant -> IdleTimer -> IO Duration
remainingAt (Instant t) d = do
  at <- peekWord (idleTimerWords d) wordDue
  pure (Duration (if at == paused then idleTimerSpan d else max 0 (fromIntegral at - t)))

-- | Whether it has expired: its action is running, or has run.
expired :: IdleTimer -> IO Bool
expired d = (== stateExpired) <$> peekWord (idleTimerWords d) wordState
