-- |
-- A registry of the wait queues in which threads are blocked: MVars, semaphores, channels,
-- threads that are waited for; and of single waits that somebody outside of the loops ends. A
-- scheduler that stops finds there the threads that nothing else refers to. A queue that
-- becomes garbage with threads in it has their handlers run.
--
-- A queue is registered when a thread first blocks in it that has a context (handlers, an
-- identity); it says so itself, in a bit of its state, and is registered once. So blocking again in
-- the same queue costs nothing, and a thread in the plain context, which has nothing to clean
-- up, never does. The registry refers to queues weakly.
--
-- Any thread may call these.
module Weft.Hybrid.Blocked
  ( Blocked (..),
    Candidate (..),
    register,
    blockedNow,

    -- * Schedulers by their numbers
    beginWorld,
    endWorld,
    schedulerOf,
  )
where

import Control.Monad (unless, void, when)
import qualified Data.IntMap.Strict as IntMap
import System.IO.Unsafe (unsafePerformIO)
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak
import Weft.Sys

-- | Something in which threads are blocked.
newtype Blocked = Blocked {blockedCandidates :: IO [Candidate]}

-- | A blocked thread, and what takes it out, given where to put others that can go on then. 'False': it
-- is not there any more.
data Candidate = Candidate !Waiter ((Context -> Task -> IO ()) -> IO Bool)

-- | With each, a cell that is 1 once what is done about garbage has been done.
data Entries = NoEntries | Entry !(Weak Blocked) !AtomicWords Entries

-- | The latest first. Moved by compare-and-swap, by anybody.
entries :: Ref Entries
entries = unsafePerformIO (newRef NoEntries)
{-# NOINLINE entries #-}

-- Cell 0: entries that were put in since the last sweep. Cell 1: how many were left by that. Cell 2: sweeps
-- under way. Cell 3: the process image ('forkGeneration'). Changed by anybody; a sweep too many does no harm.
counts :: AtomicWords
counts = unsafePerformIO (newAtomicWords 4)
{-# NOINLINE counts #-}

-- | Register what is blocked, for as long as the reference lives; then the action runs, which says whether
-- to register it again. O(1) amortised: entries of what is garbage are swept when the registry has doubled.
register :: Ref a -> Blocked -> IO Bool -> IO ()
register key blocked whenLost = do
  done <- newAtomicWords 1
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

-- | All that is registered and alive; and whether that is all: what has become garbage a moment ago may
-- be registered again the next. O(registered).
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

-- | Those that run. Moved by compare-and-swap, when one starts or ends.
worlds :: Ref (IntMap.IntMap Scheduler)
worlds = unsafePerformIO (newRef IntMap.empty)
{-# NOINLINE worlds #-}

changeWorlds :: (IntMap.IntMap Scheduler -> IntMap.IntMap Scheduler) -> IO ()
changeWorlds f = do
  old <- readRef worlds
  let !new = f old
  ok <- casRef worlds old new
  unless ok (changeWorlds f)

-- | It runs from now on. In a forked child the first one forgets the parent's.
beginWorld :: Scheduler -> IO ()
beginWorld scheduler = do
  before <- readWord counts 3
  when (before /= schedulerGeneration scheduler) $ do
    _ <- swapRef entries NoEntries
    _ <- swapRef worlds IntMap.empty
    writeWord counts 2 0
    writeWord counts 3 (schedulerGeneration scheduler)
  changeWorlds (IntMap.insert (schedulerNumber scheduler) scheduler)

-- | It has ended.
endWorld :: Scheduler -> IO ()
endWorld scheduler = changeWorlds (IntMap.delete (schedulerNumber scheduler))

-- | The one with that number, if it runs. O(log schedulers).
schedulerOf :: Int -> IO (Maybe Scheduler)
schedulerOf n = IntMap.lookup n <$> readRef worlds
