-- |
-- The end of a scheduler: every thread that can be found is killed once, so that its
-- handlers run, and is waited for, within a limit.
--
-- Found are threads that are ready, and those that wait for a descriptor or for time: a loop
-- has the former in its queue, and makes the latter ready to try again, or early. Those for
-- whom somebody outside of the loops works are found when that ends. Threads in the queue
-- are told before each turn; so, once a loop knows of the end, none runs on it that was not
-- told, but for one that another thread has resumed within the turn.
--
-- To tell a thread is to send it an exception, for which one that has none gets an
-- identity: so its masking counts, as ever. A thread in the plain context has no
-- handlers, and is dropped.
--
-- The steps of a loop, counted in 'worldEnding':
--
-- @
--   knows    it has seen the flag and tells who is ready
--   told     after all loops know: those who wait on its descriptors and timers are told too
--   ends     after all have told, when nobody who was told is left and nobody works outside;
--            or when the time is over
-- @
module Weft.Hybrid.Ending
  ( endThreads,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (AsyncException (ThreadKilled), SomeException, evaluate, toException, try)
import Control.Monad (replicateM_, unless, void, when)
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Manager (orphanTimers, poll)
import Weft.Core.Time (after)
import Weft.Hybrid.Gate (admitAll)
import Weft.Hybrid.Machine
import Weft.Hybrid.Park
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys

cellKnow, cellTold, cellAlive :: Int
cellKnow = 0
cellTold = 1
cellAlive = 2

-- | Run the loop until its threads have ended, given how it empties its inbox. For the loop's
-- thread, once the scheduler is to stop.
endThreads :: Loop -> IO () -> IO ()
endThreads l takeInbox = do
  limit <- after (worldGrace world) <$> now
  count cellKnow
  untilTold limit
  untilEnded limit
  where
    world = loopWorld l
    count cell = void (addCell (worldEnding world) cell 1)
    reached cell = do
      loops <- sizeSlots <$> readRef (worldLoops world)
      (>= loops) <$> readCell (worldEnding world) cell

    untilTold limit = do
      all' <- reached cellKnow
      if all'
        then do
          -- What they do goes into the queue; then all in it are told.
          admitAll l
          orphanTimers (loopManager l)
          tellReady l
          count cellTold
        else do
          late <- turn limit
          unless late (untilTold limit)

    -- Who resumes a thread of this loop is counted until that is in the inbox: so the inbox is
    -- looked at last.
    untilEnded limit = do
      told <- reached cellTold
      alive <- readCell (worldEnding world) cellAlive
      outside <- readCell (worldOutside world) 0
      takeInbox
      ready <- sizeReady (loopReady l)
      unless (told && alive <= 0 && outside <= 0 && ready == 0) $ do
        late <- turn limit
        unless late (untilEnded limit)

    -- 'True': the time is over.
    turn limit = do
      takeInbox
      tellReady l
      _ <- runTurn l
      found <- poll (loopManager l)
      ready <- sizeReady (loopReady l)
      if found || ready > 0 then yield else threadDelay 500
      (> limit) <$> now

-- | Tell every thread of the queue.
tellReady :: Loop -> IO ()
tellReady l = do
  n <- sizeReady (loopReady l)
  replicateM_ n $ do
    task <- popReady (loopReady l)
    -- Pure, and looked at again by the machine; only a plain thread can fail here.
    next <- try (evaluate (task ()))
    case next of
      Right (Enter ctx k) -> do
        ctx' <- tell l ctx
        pushReady (loopReady l) ctx' k
      Right _ -> pure ()
      Left e -> const (pure ()) (e :: SomeException)

-- | Kill the thread, unless it has been told: the context to go on in.
tell :: Loop -> Context -> IO Context
tell l ctx = do
  t <- case contextIdentity ctx of
    Known t -> pure t
    Anonymous -> newThread world
  fresh <- claim t
  when fresh $ do
    void (addCell (worldEnding world) cellAlive 1)
    throwTo (onLoop l) t (toException ThreadKilled)
  pure (identified t ctx)
  where
    world = loopWorld l
    -- Numbers of watchers begin with 1.
    claim t = do
      watchers <- readRef (threadWatchers t)
      case watchers of
        Watchers ws | IntMap.notMember 0 ws -> do
          ok <- casRef (threadWatchers t) watchers (Watchers (IntMap.insert 0 (const over) ws))
          if ok then pure True else claim t
        _ -> pure False
    over = void (addCell (worldEnding world) cellAlive (-1))
