-- |
-- Delays: never early, any argument, gone when they are given up.
module Spec.Time
  ( Api (..),
    weft,
    ghc,
    tests,
    ownTests,
  )
where

import Control.Concurrent (yield)
import qualified Control.Concurrent as G
import Control.Concurrent.STM
import Control.Monad (forM, forM_, forever, replicateM_, unless, when)
import Harness
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (NonNegative (..), counterexample, ioProperty, testProperty, withMaxSuccess)
import qualified Weft.Event as E
import Weft.Metrics
import qualified Weft.Thread as W

-- | One way to let time pass.
data Api = Api
  { apiName :: String,
    delay :: Int -> IO (),
    flag :: Int -> IO (TVar Bool)
  }

weft, ghc :: Api
weft = Api "Weft" W.threadDelay W.registerDelay
ghc = Api "GHC" G.threadDelay registerDelay

-- | Tests of both implementations.
tests :: Api -> TestTree
tests api =
  testGroup
    ("delays, " <> apiName api)
    [ testCase "timers: nothing to wait for" $
        forM_ [minBound, minBound + 1, -1, 0] $ \n -> do
          ((), s) <- timed (finishes "delay" (delay api n))
          assertBool ("delay of " <> show n <> " took " <> show s) (s < 5)
          var <- flag api n
          finishes "flag" (atomically (readTVar var >>= check)),
      testCase "timers: a loop of delays of nothing lets others run, and can be interrupted" $ do
        t <- G.forkIO (forever (delay api 0))
        yield
        finishes "killThread" (G.killThread t),
      testProperty "timers: never early" . withMaxSuccess (times 50) $ \(NonNegative n) ->
        ioProperty $ do
          let us = n * 97 `mod` 15000
          ((), s) <- timed (delay api us)
          (_, s') <- timed (flag api us >>= \v -> atomically (readTVar v >>= check))
          pure (counterexample (show (us, s, s')) (min s s' * 1e6 >= fromIntegral us)),
      testCase "timers: the longest delays begin, and can be given up" $
        forM_ long $ \n -> do
          t <- start (delay api n)
          pause 5
          blocked t >>= assertBool ("delay of " <> show n <> " ended")
          stop t
          var <- flag api n
          pause 1
          set <- readTVarIO var
          assertBool ("flag of " <> show n <> " is set") (not set),
      testCase "many at once: all end, none early" $
        parallel (times 500) $ \i -> do
          let us = 1000 + (i * 7919) `mod` 30000
          ((), s) <- timed (delay api us)
          assertBool (show (us, s)) (s * 1e6 >= fromIntegral us)
    ]

-- | Around the limits of the types that are inside: 2^31 microseconds and
-- milliseconds, 24.8 days, nanoseconds in 64 bits.
long :: [Int]
long =
  concat [[2 ^ k - 1, 2 ^ k, 2 ^ k + 1] | k <- [31, 32, 53 :: Int]]
    <> map (* 1000) [2 ^ (31 :: Int) - 1, 2 ^ (31 :: Int), 2 ^ (31 :: Int) + 1]
    <> [maxBound `div` 1000 - 1, maxBound `div` 1000, maxBound `div` 1000 + 1, maxBound - 1, maxBound]

-- | Tests that need Weft's counters.
ownTests :: TestTree
ownTests =
  testGroup
    "delays, beyond GHC"
    [ testCase "cancellation: a killed delay cancels its timer" $ do
        before <- cancelled
        ts <- forM [1 .. 100 :: Int] (const (start (W.threadDelay 100000000)))
        forM_ ts (\t -> blocked t >>= assertBool "does not block")
        mapM_ stop ts
        after' <- cancelled
        after' - before @?= 100,
      testCase "kills around the end of a delay: every thread ends" $
        forM_ [1 .. times 300 :: Int] $ \i -> do
          t <- start (W.threadDelay (200 + i `mod` 50))
          k <- start (G.threadDelay (i `mod` 300) >> stop t)
          result "killing" k,
      testCase "collector: a delay is not taken for a deadlock" $ do
        t <- start (W.threadDelay 60000)
        var <- W.registerDelay 60000
        u <- start (atomically (readTVar var >>= check))
        replicateM_ 5 collect
        result "delay" t
        result "flag" u,
      testCase "timers: a million set and cancelled leave nothing behind" setAndCancelled,
      testCase "a shorter delay set later ends earlier" $ do
        slow <- start (W.threadDelay 100000000)
        blocked slow >>= assertBool "does not block"
        quick <- start (W.threadDelay 5000)
        result "quick" quick
        blocked slow >>= assertBool "the longer one has ended"
        stop slow,
      testCase "a dispatcher behind threads that compute (starvation)" starved
    ]
  where
    cancelled = total metricsTimersCancelled <$> readMetrics

-- | On a manager of its own that is asleep all the while.
setAndCancelled :: Assertion
setAndCancelled = do
  m <- E.new
  t <- start (E.loop m)
  before <- liveBytes
  parallel 4 $ \_ ->
    replicateM_ (times 250000) $ do
      k <- E.registerTimeout m (E.seconds 3600) (pure ())
      E.unregisterTimeout m k
  -- The inbox is emptied once it is full.
  E.wakeManager m
  grown <- settled (before + 1000000) liveBytes
  assertBool (show (grown - before) <> " bytes more") (grown <= before + 1000000)
  E.shutdown m
  result "loop" t

starved :: Assertion
starved = do
  stopped <- newTVarIO False
  let busy :: Int -> IO ()
      busy n = do
        end <- readTVarIO stopped
        -- Yield explicitly now and then: the ticker of GHC 9.0.2, which would
        -- interrupt it, sometimes stays off after an idle phase.
        when (n `mod` 1000000 == 0) yield
        unless (end || n < 0) (busy (n + 1))
  ts <- forM [1 .. 4 :: Int] (const (start (busy 0)))
  ((), s) <- timed (replicateM_ 5 (W.threadDelay 1000 >> yield))
  atomically (writeTVar stopped True)
  mapM_ (result "busy thread") ts
  -- A time slice is 20 ms; four threads, and the machine may have others.
  assertBool ("five delays of 1 ms took " <> show s <> " s") (s < 30)
