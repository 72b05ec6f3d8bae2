-- |
-- The activity of a manager's runner, in words that the watchdog (@cbits\/watchdog\/watchdog.c@) reads on its own OS
-- thread. Without a watchdog, a turn and each callback read and test one word.
--
-- The runner writes its state to a word and then increments a second one, the beat. If both do not change for longer
-- than the watchdog's bound, the capability is occupied. A runner that sleeps wakes up five times within the bound,
-- even if it has nothing to do; if it does not come back, other threads have kept it from running.
module Weft.Core.Heartbeat
  ( Heartbeat,
    newHeartbeat,
    dropHeartbeat,
    isWatched,
    Phase (..),
    beat,
    during,
    restWatched,

    -- * Metrics
    longestCallback,
  )
where

import Control.Monad (when)
import Data.Bits (shiftL, (.|.))
import System.Posix.Types (Fd)
import Weft.Core.Backend (Wait (..))
import Weft.Core.Time
import qualified Weft.Core.Time as Time
import Weft.Sys (now)
import Weft.Sys.OffHeap

-- | The words of one manager. Its runner writes them, except 'wordWatched', which the watchdog writes: its
-- bound in nanoseconds, or 0.
newtype Heartbeat = Heartbeat OffHeapWords

wordBeat, wordState, wordWatched, wordLongest, wordLongestOf, wordAt :: Int
wordBeat = 0
wordState = 1
wordWatched = 2
wordLongest = 3
wordLongestOf = 4
wordAt = 5

-- | The words for the manager of that capability; -1 for another manager.
newHeartbeat :: Int -> IO Heartbeat
newHeartbeat index = Heartbeat <$> openHeartbeat index

-- | Release them, when the manager is finished.
dropHeartbeat :: Heartbeat -> IO ()
dropHeartbeat (Heartbeat w) = closeHeartbeat w

-- | What the runner is doing.
data Phase
  = -- | It is not in a turn; the program decides when to run the next one.
    Outside
  | -- | It polls for events and handles them.
    InTurn
  | -- | It runs the callbacks of a descriptor.
    InCallback !Fd
  | -- | It fires timers.
    InTimers
  | -- | It lets other threads run.
    Yielded
  | -- | It blocks in the kernel, until that instant at the latest.
    AsleepUntil !Instant

-- | Whether there is a watchdog.
isWatched :: Heartbeat -> IO Bool
isWatched (Heartbeat w) = (/= 0) <$> readOffHeap w wordWatched
{-# INLINE isWatched #-}

-- | Note that the runner enters another phase.
beat :: Heartbeat -> Phase -> IO ()
beat (Heartbeat w) phase = do
  watched <- readOffHeap w wordWatched
  when (watched /= 0) (setPhase w phase)
{-# INLINE beat #-}

setPhase :: OffHeapWords -> Phase -> IO ()
setPhase w phase = now >>= writeAt w (stateOf phase)
{-# NOINLINE setPhase #-}

-- | A phase as one word, so that the watchdog never sees a mixture of two: the phase in three bits, its argument above
-- them.
stateOf :: Phase -> Int
stateOf phase = case phase of
  Outside -> 0
  InTurn -> 1
  InCallback fd -> 2 .|. (fromIntegral fd `shiftL` 3)
  InTimers -> 3
  Yielded -> 4
  AsleepUntil (Instant t) -> 5 .|. (fromIntegral t `shiftL` 3)

-- | Write a state that began at that instant.
writeAt :: OffHeapWords -> Int -> Instant -> IO ()
writeAt w state (Instant t) = do
  writeOffHeap w wordAt (fromIntegral t)
  writeOffHeap w wordState state
  n <- readOffHeap w wordBeat
  writeOffHeap w wordBeat (n + 1)

-- | Run an action in a phase, and return to the earlier phase. The action must not throw.
during :: Heartbeat -> Phase -> IO a -> IO a
during (Heartbeat w) phase act = do
  watched <- readOffHeap w wordWatched
  if watched == 0 then act else timed
  where
    timed = do
      before <- readOffHeap w wordState
      from <- now
      writeAt w (stateOf phase) from
      a <- act
      to <- now
      let Duration took = to `Time.until` from
      longest <- readOffHeap w wordLongest
      when (fromIntegral took > longest) $ do
        writeOffHeap w wordLongestOf (case phase of InCallback fd -> fromIntegral fd; _ -> -1)
        writeOffHeap w wordLongest (fromIntegral took)
      a <$ writeAt w before to
{-# INLINE during #-}

-- | Note that the runner is about to block for the given time. Returns that time, limited to a fifth of the watchdog's
-- bound: a hold that begins meanwhile counts from when the runner should be back. Not to less than a millisecond, since
-- back ends may round up to that.
restWatched :: Heartbeat -> Wait -> IO Wait
restWatched (Heartbeat w) wait = do
  bound <- Duration . fromIntegral <$> readOffHeap w wordWatched
  let Duration ns = bound
      longest = min bound (max (milliseconds 1) (Duration (ns `div` 5)))
  if bound <= mempty
    then pure wait
    else do
      let most = case wait of
            NoWait -> mempty
            WaitFor d -> min d longest
            Forever -> longest
      from <- now
      writeAt w (stateOf (AsleepUntil (after most from))) from
      pure (if most <= mempty then NoWait else WaitFor most)
{-# NOINLINE restWatched #-}

-- | The longest time that the callbacks of one descriptor, or the timers of one turn, have taken while there was a
-- watchdog; and the descriptor, or 'Nothing' for timers. Zero if there was no watchdog.
longestCallback :: Heartbeat -> IO (Duration, Maybe Fd)
longestCallback (Heartbeat w) = do
  longest <- readOffHeap w wordLongest
  which <- readOffHeap w wordLongestOf
  pure (Duration (fromIntegral longest), if which < 0 then Nothing else Just (fromIntegral which))
