-- |
-- A registry of the wait queues in which threads are blocked (of MVars, semaphores, channels and
-- threads that are waited for), and of single waits that end outside of the loops. A
-- scheduler that stops finds there the threads to which nothing else refers. If a queue
-- becomes garbage with threads in it, their handlers are run.
--
-- A queue is registered when a thread with a context (handlers, an
-- identity) first blocks in it. A bit of its state says that it is registered, so blocking again in
-- the same queue costs nothing. A thread in the plain context, which has nothing to clean
-- up, never registers one. The registry refers to queues weakly.
--
-- Any thread may call these functions.
module Weft.Hybrid.Blocked
  ( Blocked (..),
    Candidate (..),
    register,
    blockedNow,

    -- * Schedulers by their numbers
    noteStarted,
    noteEnded,
    schedulerOf,
  )
where

import Control.Monad (unless, void, when)
import qualified Data.IntMap.Strict as IntMap
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak
import Weft.Sys

-- | A wait queue, or a single wait.
newtype Blocked = Blocked {blockedCandidates :: IO [Candidate]}

-- | A blocked thread, and the action that takes it out of its queue; it is given the place for other threads that can
-- go on then. 'False' if the thread is not there any more.
data Candidate = Candidate !Waiter ((Context -> Task -> IO ()) -> IO Bool)

-- | Each entry has a word, which is 1 when its queue is garbage and its threads have been dealt with.
data Entries = NoEntries | Entry !(Weak Blocked) !WordArray Entries

-- | The latest first. Changed by compare-and-swap, by any thread.
entries :: Ref Entries
entries = globalRef "Weft.Hybrid.Blocked.entries" (pure NoEntries)
{-# NOINLINE entries #-}

-- Word 0: the number of entries that were put in since the last sweep. Word 1: how many were left by that. Word 2:
-- the number of sweeps that are running. Word 3: the process image ('forkGeneration'). Any thread changes them; a
-- superfluous sweep does no harm.
counts :: WordArray
counts = globalWords "Weft.Hybrid.Blocked.counts" 4
{-# NOINLINE counts #-}

-- | Register a queue until the reference is garbage. Then the action runs; its result says whether
-- to register it again. O(1) amortised: entries of garbage are swept when the registry has doubled.
register :: Ref a -> Blocked -> IO Bool -> IO ()
register key blocked whenLost = do
  done <- newWordArray 1
  weak <- weakly key blocked $ do
    again <- whenLost
    when again (register key blocked whenLost)
    writeWord done 0 1
  _ <- updateRef entries (Entry weak done)
  added <- addWord counts 0 1
  left <- readWord counts 1
  when (added >= 1024 + left) sweep

sweep :: IO ()
sweep = mask_ $ do
  writeWord counts 0 0
  _ <- addWord counts 2 1
  old <- swapRef entries NoEntries
  n <- keep 0 old
  writeWord counts 1 n
  void (addWord counts 2 (-1))
  where
    keep :: Int -> Entries -> IO Int
    keep n NoEntries = pure n
    keep n (Entry weak done rest) = do
      over <- readWord done 0
      if over /= 0 then keep n rest else updateRef entries (Entry weak done) >> keep (n + 1) rest

-- | All entries that are alive, and whether the list is complete: a queue that has just become garbage may
-- be registered again. O(entries).
blockedNow :: IO (Bool, [Blocked])
blockedNow = do
  found <- readRef entries >>= alive True []
  sweeping <- readWord counts 2
  pure (fst found && sweeping == 0, snd found)
  where
    alive complete acc NoEntries = pure (complete, acc)
    alive complete acc (Entry weak done rest) = do
      left <- whatIsLeft weak
      case left of
        Just b -> alive complete (b : acc) rest
        Nothing -> readWord done 0 >>= \over -> alive (complete && over /= 0) acc rest

-- Schedulers ------------------------------------------------------------------------------

-- | The schedulers that run, by number. Changed by compare-and-swap, when one starts or ends.
runningSchedulers :: Ref (IntMap.IntMap Scheduler)
runningSchedulers = globalRef "Weft.Hybrid.Blocked.runningSchedulers" (pure IntMap.empty)
{-# NOINLINE runningSchedulers #-}

changeRunning :: (IntMap.IntMap Scheduler -> IntMap.IntMap Scheduler) -> IO ()
changeRunning f = do
  old <- readRef runningSchedulers
  let !new = f old
  ok <- casRef runningSchedulers old new
  unless ok (changeRunning f)

-- | Note that it runs from now on. In a forked child the first one drops the parent's entries.
noteStarted :: Scheduler -> IO ()
noteStarted scheduler = do
  before <- readWord counts 3
  when (before /= schedulerGeneration scheduler) $ do
    _ <- swapRef entries NoEntries
    _ <- swapRef runningSchedulers IntMap.empty
    writeWord counts 2 0
    writeWord counts 3 (schedulerGeneration scheduler)
  changeRunning (IntMap.insert (schedulerNumber scheduler) scheduler)

-- | Note that it has ended.
noteEnded :: Scheduler -> IO ()
noteEnded scheduler = changeRunning (IntMap.delete (schedulerNumber scheduler))

-- | The scheduler with that number, if it runs. O(log n) in the schedulers.
schedulerOf :: Int -> IO (Maybe Scheduler)
schedulerOf n = IntMap.lookup n <$> readRef runningSchedulers
