-- |
-- A watchdog of a scheduler's loops, for steps that do not end. A step is not interrupted, and a loop's
-- queue, timers and descriptors are its own, without locks: so what waits there waits for the end of the
-- step, and the watchdog says which thread it is. What is in the loop's inbox goes to another
-- loop: threads that other loops, callbacks and GHC threads have resumed since.
--
-- It looks twice a second while any loop is awake, and sleeps when all do.
module Weft.Hybrid.Watchdog
  ( watchLoops,
    wakeWatchdog,
    endWatchdog,
  )
where

import Control.Monad (forM, forM_, void, when)
import Data.Maybe (catMaybes)
import Weft.Core.Boundary (contained)
import Weft.Core.Time (milliseconds)
import Weft.Hybrid.Interpreter
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys

-- | Between two looks, in milliseconds.
period :: Int
period = 500

-- | A loop that was awake at a look: its number; when it had looked at the clock; and at how many looks before
-- that was the same. It was in one step for as many periods.
data Sample = Sample !Int !Int !Int

-- | Watch the loops until the scheduler stops.
watchLoops :: Scheduler -> IO ()
watchLoops scheduler = do
  slots <- readRef (schedulerLoops scheduler)
  loops <- mapM (readBoxedArray slots) [0 .. sizeBoxedArray slots - 1]
  watch loops []
  where
    watch loops samples = unlessStopped $ do
      rested <- restIf scheduler (length loops)
      threadDelay (1000 * period)
      unlessStopped $ do
        samples' <- catMaybes <$> forM loops (sample (if rested then [] else samples))
        let stuck = [i | Sample i _ n <- samples', n >= 1]
            (held, free) = partitionBy ((`elem` stuck) . loopIndex) loops
        forM_ (take 1 free) (\other -> mapM_ (passInbox other) held)
        forM_ loops (reportStall samples')
        watch loops samples'
    unlessStopped act = do
      stop <- readWord (schedulerStop scheduler) 0
      when (stop == 0) act
    partitionBy p xs = (filter p xs, filter (not . p) xs)

-- | One look at a loop.
sample :: [Sample] -> Loop -> IO (Maybe Sample)
sample before l = do
  idle <- readWord (schedulerIdle (loopScheduler l)) (loopIndex l + 1)
  seen <- lastLook l
  let n = sum [k + 1 | Sample i t k <- before, i == loopIndex l, t == seen]
  pure (if idle /= 0 then Nothing else Just (Sample (loopIndex l) seen n))

-- | Once, after a second.
reportStall :: [Sample] -> Loop -> IO ()
reportStall samples l = forM_ [n | Sample i _ n <- samples, i == loopIndex l, n == 2] $ \n -> do
  ctx <- readRef (loopContext l)
  name <- case contextIdentity ctx of
    Known t -> readRef (threadLabel t)
    Anonymous -> pure ""
  contained (schedulerOnStall (loopScheduler l) (if null name then Nothing else Just name) (milliseconds (n * period)))

-- | Move the contents of a loop's inbox to another loop's inbox. The move is counted meanwhile, so that no loop ends
-- in between.
passInbox :: Loop -> Loop -> IO ()
passInbox other l = mask_ $ do
  _ <- addWord (schedulerOutside (loopScheduler l)) 0 1
  inbox <- swapRef (loopInbox l) NoMail
  pass inbox
  void (addWord (schedulerOutside (loopScheduler l)) 0 (-1))
  where
    pass NoMail = pure ()
    pass (Mail ctx task rest) = pass rest >> toLoop other ctx task

-- | Wait while all loops sleep. Had it to? (Who announces and then looks, as in "Weft.Core.Wake".)
restIf :: Scheduler -> Int -> IO Bool
restIf scheduler loops = do
  writeWord (schedulerWatched scheduler) 0 1
  asleep <- readWord (schedulerIdle scheduler) 0
  stop <- readWord (schedulerStop scheduler) 0
  let resting = asleep >= loops && stop == 0
  when resting (takeMVar (schedulerWake scheduler))
  writeWord (schedulerWatched scheduler) 0 0
  pure resting

-- | A loop does not sleep any more, after it has said so.
wakeWatchdog :: Scheduler -> IO ()
wakeWatchdog scheduler = do
  watched <- readWord (schedulerWatched scheduler) 0
  when (watched /= 0) (void (tryPutMVar (schedulerWake scheduler) ()))

-- | After the scheduler was told to stop: its thread ends, within a period.
endWatchdog :: Scheduler -> IO ()
endWatchdog = wakeWatchdog
