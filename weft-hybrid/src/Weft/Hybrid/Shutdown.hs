-- |
-- The end of a scheduler: every thread that can be found is killed once, so that its
-- handlers run, and is waited for, within a limit.
--
-- Found are threads that are ready, and those that wait for a descriptor or for time: a loop
-- has the former in its queue, and makes the latter ready to try again, or early; and those that wait
-- for each other, or for somebody outside of the loops whom they can leave: a registry has them
-- ("Weft.Hybrid.Blocked"). Those that have to stay are found when the work for them ends. Threads in the queue
-- are told before each turn; so, once a loop knows of the end, none runs on it that was not
-- told, but for one that another thread has resumed within the turn.
--
-- To tell a thread is to send it an exception, for which one that has none gets an
-- identity: so its masking counts, as ever. A thread in the plain context has no
-- handlers, and is dropped.
--
-- The steps of a loop, counted in 'schedulerEnding':
--
-- @
--   knows    it has seen the flag and tells who is ready
--   told     after all loops know: those who wait on its descriptors and timers are told too
--   ends     after all have told, when nobody who was told is left and nobody works outside, and it
--            finds nobody any more; or when the time is over
-- @
module Weft.Hybrid.Shutdown
  ( endThreads,
  )
where

import Control.Exception (AsyncException (ThreadKilled), SomeException, evaluate, toException, try)
import Control.Monad (replicateM_, unless, void, when)
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Manager (orphanTimers, poll)
import Weft.Core.Time (after)
import Weft.Hybrid.Blocked
import Weft.Hybrid.DescriptorTable (wakeAllQueues)
import Weft.Hybrid.Interpreter
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
  limit <- after (schedulerGrace scheduler) <$> now
  count cellKnow
  untilTold limit
  untilEnded limit
  where
    scheduler = loopScheduler l
    count cell = void (addWord (schedulerEnding scheduler) cell 1)
    reached cell = do
      loops <- sizeBoxedArray <$> readRef (schedulerLoops scheduler)
      (>= loops) <$> readWord (schedulerEnding scheduler) cell

    untilTold limit = do
      all' <- reached cellKnow
      if all'
        then do
          _ <- tellAll
          count cellTold
        else do
          late <- turn limit
          unless late (untilTold limit)

    -- Who resumes a thread of this loop is counted until that is in the inbox: so the inbox is
    -- looked at last.
    untilEnded limit = do
      told <- reached cellTold
      alive <- readWord (schedulerEnding scheduler) cellAlive
      outside <- readWord (schedulerOutside scheduler) 0
      takeInbox
      ready <- sizeReady (loopReady l)
      let over = told && alive <= 0 && outside <= 0 && ready == 0
      -- A thread that another one resumed within the turn may have come to wait without being told; and the registry
      -- was incomplete if the collector came by.
      found <- if over then tellAll else True <$ unless (ready > 0) (void (tellBlocked l))
      when found $ do
        late <- turn limit
        unless late (untilEnded limit)

    -- What those do who wait goes into the queue; then all in it are told. Was there anybody, or may there be?
    tellAll = do
      wakeAllQueues l
      orphanTimers (loopManager l)
      complete <- tellBlocked l
      n <- sizeReady (loopReady l)
      tellReady l
      pure (n > 0 || not complete)

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
      Right (Enter Plain _) -> pure ()
      Right (Enter ctx k) -> do
        ctx' <- tell l ctx
        pushReady (loopReady l) ctx' k
      Right _ -> pure ()
      Left e -> const (pure ()) (e :: SomeException)

-- | Tell the threads that wait for each other, or for somebody whom they can leave. 'False': there may
-- be more.
tellBlocked :: Loop -> IO Bool
tellBlocked l = do
  (complete, blocked) <- blockedNow
  complete <$ mapM_ (\b -> blockedCandidates b >>= mapM_ each) blocked
  where
    number = schedulerNumber (loopScheduler l)
    each (Candidate (Waiter ctx n) leaveQueue) = case contextIdentity ctx of
      Known t -> when (schedulerNumber (threadScheduler t) == number) (void (tell l ctx))
      Anonymous -> when (n == number && contextMask ctx < Uninterruptible) $ do
        mine <- leaveQueue (onLoop l)
        when mine $ do
          t <- newThread (loopScheduler l)
          _ <- claim l t
          pushReady (loopReady l) (sheltered (identified t ctx)) (\() -> Throw (toException ThreadKilled))

-- | Kill the thread, unless it has been told: the context to go on in.
tell :: Loop -> Context -> IO Context
tell l ctx = do
  t <- case contextIdentity ctx of
    Known t -> pure t
    Anonymous -> newThread scheduler
  fresh <- claim l t
  when fresh (throwTo (onLoop l) t (toException ThreadKilled))
  pure (identified t ctx)
  where
    scheduler = loopScheduler l

-- | The thread is going to be told, and is counted until its end. 'False': it has been told, or has
-- ended.
claim :: Loop -> Thread -> IO Bool
claim l t = do
  void (addWord (schedulerEnding scheduler) cellAlive 1)
  mine <- mark
  mine <$ unless mine over
  where
    scheduler = loopScheduler l
    -- Numbers of watchers begin with 1.
    mark = do
      watchers <- readRef (threadWatchers t)
      case watchers of
        Watchers ws | IntMap.notMember 0 ws -> do
          ok <- casRef (threadWatchers t) watchers (Watchers (IntMap.insert 0 (Hears (const over)) ws))
          if ok then pure True else mark
        _ -> pure False
    over = void (addWord (schedulerEnding scheduler) cellAlive (-1))
