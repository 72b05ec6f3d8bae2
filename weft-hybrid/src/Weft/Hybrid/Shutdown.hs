-- |
-- The shutdown of a scheduler: every thread that can be found is killed once, so that its
-- handlers run, and is waited for, within a time limit.
--
-- Three kinds of threads can be found. Ready threads are in a loop's queue. Threads that wait for a descriptor or for
-- a time are made ready by the loop, to try again, or early. Threads that wait for each other, or for an external
-- call that they can leave, are in a registry ("Weft.Hybrid.Blocked"). Threads that have to stay in an external call
-- are found when it ends. The threads in the queue are notified before each turn. So once a loop knows of the
-- shutdown, it runs only threads that were notified, except one that another thread has resumed within the turn.
--
-- To notify a thread is to send it an exception. A thread without an identity gets one for that, so its masking state
-- is respected. A thread in the plain context has no handlers, and is dropped.
--
-- The steps of a loop, counted in 'schedulerEnding':
--
-- @
--   knows    it has seen the flag and notifies ready threads
--   notified after all loops know: threads that wait on its descriptors and timers are notified too
--   ends     after all loops are in the step above, when no notified thread and no external call is left, and it
--            finds no other thread; or when the time is over
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

wordKnow, wordNotified, wordAlive :: Int
wordKnow = 0
wordNotified = 1
wordAlive = 2

-- | Run the loop until its threads have ended, given how it empties its inbox. For the loop's
-- thread, once the scheduler is to stop.
endThreads :: Loop -> IO () -> IO ()
endThreads l takeInbox = do
  limit <- after (schedulerGrace scheduler) <$> now
  count wordKnow
  untilNotified limit
  untilEnded limit
  where
    scheduler = loopScheduler l
    count word = void (addWord (schedulerEnding scheduler) word 1)
    reached word = do
      loops <- sizeBoxedArray <$> readRef (schedulerLoops scheduler)
      (>= loops) <$> readWord (schedulerEnding scheduler) word

    untilNotified limit = do
      all' <- reached wordKnow
      if all'
        then do
          _ <- notifyAll
          count wordNotified
        else do
          late <- turn limit
          unless late (untilNotified limit)

    -- A thread that resumes a thread of this loop is counted until the latter is in the inbox. So the inbox is
    -- checked last.
    untilEnded limit = do
      notified <- reached wordNotified
      alive <- readWord (schedulerEnding scheduler) wordAlive
      outside <- readWord (schedulerOutside scheduler) 0
      takeInbox
      ready <- sizeReady (loopReady l)
      let over = notified && alive <= 0 && outside <= 0 && ready == 0
      -- A thread that another one resumed within the turn may wait now without having been notified; and the registry
      -- was incomplete if the garbage collector ran meanwhile.
      found <- if over then notifyAll else True <$ unless (ready > 0) (void (notifyBlocked l))
      when found $ do
        late <- turn limit
        unless late (untilEnded limit)

    -- Waiting threads go into the queue; then all threads in it are notified. 'True' if there was any, or may be one.
    notifyAll = do
      wakeAllQueues l
      orphanTimers (loopManager l)
      complete <- notifyBlocked l
      n <- sizeReady (loopReady l)
      notifyReady l
      pure (n > 0 || not complete)

    -- 'True': the time is over.
    turn limit = do
      takeInbox
      notifyReady l
      _ <- runTurn l
      found <- poll (loopManager l)
      ready <- sizeReady (loopReady l)
      if found || ready > 0 then yield else threadDelay 500
      (> limit) <$> now

-- | Notify every thread of the queue.
notifyReady :: Loop -> IO ()
notifyReady l = do
  n <- sizeReady (loopReady l)
  replicateM_ n $ do
    task <- popReady (loopReady l)
    -- Pure, and evaluated again by the interpreter; only a plain thread can fail here.
    next <- try (evaluate (task ()))
    case next of
      Right (Enter Plain _) -> pure ()
      Right (Enter ctx k) -> do
        ctx' <- notify l ctx
        pushReady (loopReady l) ctx' k
      Right _ -> pure ()
      Left e -> const (pure ()) (e :: SomeException)

-- | Notify the threads that wait for each other, or for external calls that they can leave. 'False': there may
-- be more.
notifyBlocked :: Loop -> IO Bool
notifyBlocked l = do
  (complete, blocked) <- blockedNow
  complete <$ mapM_ (\b -> blockedCandidates b >>= mapM_ each) blocked
  where
    number = schedulerNumber (loopScheduler l)
    each (Candidate (Waiter ctx n) leaveQueue) = case contextIdentity ctx of
      Known t -> when (schedulerNumber (threadScheduler t) == number) (void (notify l ctx))
      Anonymous -> when (n == number && contextMask ctx < Uninterruptible) $ do
        mine <- leaveQueue (onLoop l)
        when mine $ do
          t <- newThread (loopScheduler l)
          _ <- claim l t
          pushReady (loopReady l) (uninterruptibly (identified t ctx)) (\() -> Throw (toException ThreadKilled))

-- | Kill the thread, unless it was notified before. Returns the context in which it goes on.
notify :: Loop -> Context -> IO Context
notify l ctx = do
  t <- case contextIdentity ctx of
    Known t -> pure t
    Anonymous -> newThread scheduler
  fresh <- claim l t
  when fresh (throwTo (onLoop l) t (toException ThreadKilled))
  pure (identified t ctx)
  where
    scheduler = loopScheduler l

-- | Mark a thread as notified, and count it until its end. 'False' if it was notified before, or has ended.
claim :: Loop -> Thread -> IO Bool
claim l t = do
  void (addWord (schedulerEnding scheduler) wordAlive 1)
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
    over = void (addWord (schedulerEnding scheduler) wordAlive (-1))
