-- |
-- "Weft.Metrics": counters move as they should, and not while the program is idle.
module Spec.Metrics
  ( tests,
  )
where

import Control.Monad (forM_)
import Weft.Test.Descriptors
import Harness
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Metrics
import Weft.Thread (threadDelay, threadWaitRead)

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
      testCase "spin: an idle program neither polls nor sleeps anew" . withFds $ \fds -> do
        (r, w) <- pipe fds
        t <- start (threadWaitRead r)
        _ <- blocked t
        -- What earlier tests left behind may still come to its end.
        quiet <- anyOf 10 $ do
          before <- activity
          pause 600
          (== before) <$> activity
        assertBool "it is never quiet for 600 ms" quiet
        say w 1
        result "wait" t
    ]

-- | Does a check hold at one of so many attempts?
anyOf :: Int -> IO Bool -> IO Bool
anyOf 0 _ = pure False
anyOf n check = check >>= \ok -> if ok then pure True else anyOf (n - 1) check
