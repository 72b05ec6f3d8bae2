-- |
-- What a manager's runner does at this moment, in words that the watchdog (@cbits\/watchdog.c@) reads from an OS thread
-- of its own. While there is no watchdog a turn reads and tests one word, and so does a callback.
--
-- The runner writes its state, a word, and then moves a number, the beat. The watchdog takes the two that do not change for longer than its bound
-- for a capability that is held. Asleep, the runner comes back within the bound, even if it has nothing to do: when it does not, other threads
-- have kept it from running.
module Weft.Core.Heartbeat
  ( Heartbeat,
    newHeartbeat,
    dropHeartbeat,
    isWatched,
    Phase (..),
    beat,
    during,
    restWatched,

    -- * Figures
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

-- | The words of one manager. Those below are written by its runner, but for 'wordWatched', which the watchdog writes: its
-- bound in nanoseconds, or 0.
newtype Heartbeat = Heartbeat OffHeapWords

wordBeat, wordState, wordWatched, wordLongest, wordLongestOf :: Int
wordBeat = 0
wordState = 1
wordWatched = 2
wordLongest = 3
wordLongestOf = 4

-- | Of the manager of that capability, or -1.
newHeartbeat :: Int -> IO Heartbeat
newHeartbeat index = Heartbeat <$> openHeartbeat index

-- | The manager is finished.
dropHeartbeat :: Heartbeat -> IO ()
dropHeartbeat (Heartbeat w) = closeHeartbeat w

-- | What the runner does.
data Phase
  = -- | It is not in a turn: the program runs it when it likes.
    Outside
  | -- | It looks for events and hands them out.
    InTurn
  | -- | It runs the callbacks of a descriptor.
    InCallback !Fd
  | -- | It fires timers.
    InTimers
  | -- | It lets other threads run.
    Yielded
  | -- | It blocks in the kernel, and will be back at that instant at the latest.
    AsleepUntil !Instant

-- | Is there a watchdog?
isWatched :: Heartbeat -> IO Bool
isWatched (Heartbeat w) = (/= 0) <$> readOffHeap w wordWatched
{-# INLINE isWatched #-}

-- | The runner begins something else.
beat :: Heartbeat -> Phase -> IO ()
beat (Heartbeat w) phase = do
  watched <- readOffHeap w wordWatched
  when (watched /= 0) (enter w phase)
{-# INLINE beat #-}

enter :: OffHeapWords -> Phase -> IO ()
enter w = write w . stateOf
{-# NOINLINE enter #-}

-- | A phase in three bits, and above them what belongs to it: one word, so that no mixture of two is ever seen.
stateOf :: Phase -> Int
stateOf phase = case phase of
  Outside -> 0
  InTurn -> 1
  InCallback fd -> 2 .|. (fromIntegral fd `shiftL` 3)
  InTimers -> 3
  Yielded -> 4
  AsleepUntil (Instant t) -> 5 .|. (fromIntegral t `shiftL` 3)

write :: OffHeapWords -> Int -> IO ()
write w state = do
  writeOffHeap w wordState state
  n <- readOffHeap w wordBeat
  writeOffHeap w wordBeat (n + 1)

-- | Run an action as a phase; afterwards the runner is where it was. The action does not throw.
during :: Heartbeat -> Phase -> IO a -> IO a
during (Heartbeat w) phase act = do
  watched <- readOffHeap w wordWatched
  if watched == 0 then act else timed
  where
    timed = do
      before <- readOffHeap w wordState
      enter w phase
      from <- now
      a <- act
      Duration took <- (`Time.until` from) <$> now
      longest <- readOffHeap w wordLongest
      when (fromIntegral took > longest) $ do
        writeOffHeap w wordLongestOf (case phase of InCallback fd -> fromIntegral fd; _ -> -1)
        writeOffHeap w wordLongest (fromIntegral took)
      a <$ write w before
{-# INLINE during #-}

-- | The runner is about to block for that long. How long it should, so that the watchdog sees it back in time.
restWatched :: Heartbeat -> Wait -> IO Wait
restWatched (Heartbeat w) wait = do
  bound <- Duration . fromIntegral <$> readOffHeap w wordWatched
  if bound <= mempty
    then pure wait
    else do
      let most = case wait of
            NoWait -> mempty
            WaitFor d -> min d bound
            Forever -> bound
      back <- after most <$> now
      enter w (AsleepUntil back)
      pure (if most <= mempty then NoWait else WaitFor most)
{-# NOINLINE restWatched #-}

-- | The longest time that one descriptor's callbacks, or the timers of one turn, took while there was a watchdog; and the descriptor, or
-- 'Nothing' for timers. Zero: there was none.
longestCallback :: Heartbeat -> IO (Duration, Maybe Fd)
longestCallback (Heartbeat w) = do
  longest <- readOffHeap w wordLongest
  which <- readOffHeap w wordLongestOf
  pure (Duration (fromIntegral longest), if which < 0 then Nothing else Just (fromIntegral which))
