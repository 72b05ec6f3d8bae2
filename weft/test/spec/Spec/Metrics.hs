-- |
-- "Weft.Metrics": counters move as they should, and not while the program is idle.
module Spec.Metrics
  ( tests,
  )
where

import Control.Concurrent (forkOn, killThread, newEmptyMVar, putMVar, takeMVar, yield)
import Control.Monad (forM_, forever, join, replicateM, replicateM_, when)
import Data.IORef
import GHC.Clock (getMonotonicTime)
import Harness
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Core.Histogram (newHistogram, observe, observeShared, readHistogram)
import Weft.Core.Time (Duration (..))
import Weft.Metrics
import Weft.Test.Descriptors
import Weft.Test.Limits (patience)
import Weft.Test.Skip
import Weft.Thread (threadDelay, threadWaitRead)
import Weft.Timer (cancel, schedule, seconds)

tests :: TestTree
tests =
  testGroup
    "metrics"
    [ testCase "waits, dispatched events and timers are counted" . withFds $ \fds -> do
        (r, w) <- pipe fds
        threadDelay 1000
        before <- readMetrics
        threadDelay 1000
        forM_ [1 .. 5 :: Int] $ \_ -> do
          t <- start (threadWaitRead r)
          _ <- blocked t
          say w 1
          result "wait" t
          drain r
        let moved f = subtract (total f before) . total f <$> readMetrics
        -- A dispatcher counts a batch after it has handed it out.
        eventually "5 events dispatched" ((>= 5) <$> moved metricsDispatched)
        moved metricsWaits >>= (@?= 5)
        -- At least: a timer that an earlier test left behind may come due.
        moved metricsTimersSet >>= (@>= 1)
        moved metricsTimersFired >>= (@>= 1),
      testCase "how late threads and timers are" . withFds $ \fds -> do
        (r, w) <- pipe fds
        before <- readMetrics
        forM_ [1 .. 300 :: Int] $ \_ -> do
          t <- start (threadWaitRead r)
          _ <- blocked t
          say w 1
          result "wait" t
          drain r
        threadDelay 1000
        -- Threads are measured for one batch in 64, timers always.
        let moved f = subtract (total f before) . total f <$> readMetrics
        eventually "a wake-up is measured" ((>= 1) <$> moved (countsTotal . metricsWakeLatency))
        moved (countsTotal . metricsWakeLatency) >>= \n -> assertBool (show n) (n <= 300)
        moved (countsTotal . metricsTimerLateness) >>= (@>= 1)
        eventually "as many as have fired" $ do
          present <- readMetrics
          pure (total (countsTotal . metricsTimerLateness) present == total metricsTimersFired present)
        late <- readMetrics
        forM_ (metricsCapabilities late) $ \c -> do
          assertBool (show c) (countsSum (metricsWakeLatency c) >= mempty)
          assertBool (show c) (countsSum (metricsTimerLateness c) >= mempty),
      testCase "descriptors and pending timers" . withFds $ \fds -> do
        pipes <- replicateM 3 (pipe fds)
        before <- total metricsDescriptors <$> readMetrics
        waiting <- mapM (start . threadWaitRead . fst) pipes
        mapM_ blocked waiting
        eventually "3 descriptors" ((== before + 3) . total metricsDescriptors <$> readMetrics)
        forM_ pipes $ \(_, w) -> say w 1
        mapM_ (result "wait") waiting
        eventually "none of them" ((== before) . total metricsDescriptors <$> readMetrics)
        timers <- replicateM 2000 (schedule (seconds 600) (pure ()))
        eventually "2000 timers" ((>= 2000) . total metricsTimersPending <$> readMetrics)
        cancelled <- mapM cancel timers
        assertBool "cancelled" (and cancelled)
        eventually "none of them" ((< 2000) . total metricsTimersPending <$> readMetrics),
      testCase "buckets" $ do
        let ends = [ns | Duration ns <- bucketBounds]
            bucket ns = length (takeWhile (< ns) ends)
            samples = [0, 1, minBound] <> concat [[e - 1, e, e + 1] | e <- ends] <> [maxBound]
        forM_ samples $ \ns -> do
          h <- newHistogram
          observe h (Duration ns)
          observeShared h (Duration ns)
          counts <- readHistogram h
          [i | (i, n) <- zip [0 ..] (countsBuckets counts), n == 2] @?= [bucket ns]
          countsTotal counts @?= 2
        length (countsBuckets noCounts) @?= length ends + 1,
      -- Otherwise the capability goes to another OS thread, and back at the next event.
      testCase "a chain of threads runs before the dispatcher blocks" . withFds $ \fds -> do
        -- A dispatcher yields for 200 us at most.
        skipUnless "an emulated machine runs no chain of threads in the time for which a dispatcher yields" (patience == 1)
        (r, w) <- pipe fds
        first <- newEmptyMVar
        links <- (first :) <$> replicateM 2 newEmptyMVar
        let sleeps = sum . map metricsSleeps . filter ((== 0) . metricsCapability) . metricsCapabilities <$> readMetrics
            rounds = 200 :: Int
        chains <- replicateM rounds $ do
          done <- newEmptyMVar
          _ <- forkOn 0 (threadWaitRead r >> drain r >> sleeps >>= putMVar first)
          forM_ (zip links (drop 1 links)) $ \(from, to) -> forkOn 0 (takeMVar from >>= putMVar to)
          _ <- forkOn 0 (takeMVar (last links) >>= \before -> sleeps >>= \now -> compute 0.00001 >> putMVar done (now - before))
          pause 2
          say w 1
          result "the chain" =<< start (takeMVar done)
        let whole = length (filter (== 0) chains)
        -- On a busy machine a time slice may end at any point, also in a measurement, which decides about 32 turns. If
        -- the dispatcher yields only once, there is no whole chain at all.
        assertBool (show chains) (10 * whole > rounds),
      -- Otherwise each event waits for the time slices of computing threads several times, until chains are measured
      -- again.
      testCase "once for computing threads, also after chains were long" . withFds $ \fds -> do
        (r, w) <- pipe fds
        let sleeps = sum . map metricsSleeps . filter ((== 0) . metricsCapability) . metricsCapabilities <$> readMetrics
            chain = do
              first <- newEmptyMVar
              links <- (first :) <$> replicateM 3 newEmptyMVar
              _ <- forkOn 0 (threadWaitRead r >> drain r >> putMVar first ())
              forM_ (zip links (drop 1 links)) $ \(from, to) -> forkOn 0 (takeMVar from >>= \x -> compute 0.00001 >> putMVar to x)
              pause 1
              say w 1
              result "the chain" =<< start (takeMVar (last links))
            -- The slices of the computing thread, from the one after an event to the one that finds the dispatcher
            -- asleep.
            event :: IORef Int -> IORef (Int -> Int -> IO ()) -> IO Int
            event slices atSlice = do
              found <- newEmptyMVar
              asleep <- newEmptyMVar
              _ <- forkOn 0 $ do
                _ <- threadWaitRead r >> drain r
                first <- readIORef slices
                before <- takeMVar asleep
                writeIORef atSlice $ \slice now -> when (now > before) $ do
                  writeIORef atSlice (\_ _ -> pure ())
                  putMVar found (slice - first)
              pause 20
              sleeps >>= putMVar asleep
              say w 1
              result "the event" =<< start (takeMVar found)
            counted = fmap concat . replicateM 4 $ do
              replicateM_ 40 chain
              slices <- newIORef (0 :: Int)
              atSlice <- newIORef (\_ _ -> pure ())
              computing <- forkOn 0 . forever $ do
                compute 0.002
                slice <- atomicModifyIORef' slices (\n -> (n + 1, n + 1))
                join (readIORef atSlice <*> pure slice <*> sleeps)
                yield
              replicateM 6 (event slices atSlice) <* killThread computing
        -- All but a few, at one of three attempts: a time slice may end at any point.
        few <- anyOf 3 ((\counts -> 3 * length (filter (<= 2) counts) > 2 * length counts) <$> counted)
        assertBool "events wait for computing threads repeatedly" few,
      testCase "spin: an idle program neither polls nor goes to sleep again" . withFds $ \fds -> do
        (r, w) <- pipe fds
        t <- start (threadWaitRead r)
        _ <- blocked t
        -- Threads of earlier tests may still be ending.
        quiet <- anyOf 10 $ do
          before <- activity
          pause 600
          (== before) <$> activity
        assertBool "it is never quiet for 600 ms" quiet
        say w 1
        result "wait" t
    ]

-- | Whether a check holds at one of this many attempts.
anyOf :: Int -> IO Bool -> IO Bool
anyOf 0 _ = pure False
anyOf n check = check >>= \ok -> if ok then pure True else anyOf (n - 1) check

-- | Keep the capability for that many seconds.
compute :: Double -> IO ()
compute duration = getMonotonicTime >>= go . (+ duration)
  where
    go end = getMonotonicTime >>= \t -> when (t < end) (go end)
