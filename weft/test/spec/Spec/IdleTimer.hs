-- |
-- Deadlines that are pushed: that they pass once, when they should and no earlier,
-- whatever is written to them meanwhile.
module Spec.IdleTimer
  ( tests,
  )
where

import Control.Concurrent (forkOn, getNumCapabilities, threadDelay, yield)
import Control.Concurrent.MVar
import Control.Exception (IOException, throwIO, try)
import Control.Monad
import Data.IORef
import Data.Word (Word64)
import GHC.Clock (getMonotonicTimeNSec)
import Harness hiding (pause, stop)
import qualified Harness as H
import Spec.Serve (withNoneLeft)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Runtime (stopManagers)
import Weft.Runtime.IdleTimer

tests :: TestTree
tests =
  testGroup
    "deadline"
    [ test "passes once, not early" $ do
        (fired, act) <- counter
        t0 <- getMonotonicTimeNSec
        at <- newEmptyMVar
        d <- newIdleTimer (milliseconds 30) (act >> getMonotonicTimeNSec >>= putMVar at)
        t1 <- takeMVar at
        assertBool (show (t1 - t0) <> " ns: early") (t1 - t0 >= 30000000)
        expired d >>= (@?= True)
        -- Nothing brings it back.
        reset d >> resume d >> resetFor d (milliseconds 1)
        during d (milliseconds 1) (threadDelay 20000)
        readIORef fired >>= (@?= 1),
      test "a span of zero, or less, is over at once" . forM_ [milliseconds 0, milliseconds (-3)] $ \len -> do
        (fired, act) <- counter
        _ <- newIdleTimer len act
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "pushed, it passes a span after the last push" $ do
        at <- newEmptyMVar
        d <- newIdleTimer (milliseconds 60) (getMonotonicTimeNSec >>= putMVar at)
        pushes <- newIORef 0
        replicateM_ 20 $ do
          t <- getMonotonicTimeNSec
          reset d
          gone <- expired d
          unless gone (writeIORef pushes t)
          threadDelay 4000
        t1 <- takeMVar at
        t0 <- readIORef pushes
        assertBool (show (t1 - t0) <> " ns after the push") (t1 - t0 >= 60000000),
      test "made paused, it waits for its first use" $ do
        (fired, act) <- counter
        d <- newPausedIdleTimer (milliseconds 30) act
        remaining d >>= (@?= milliseconds 30)
        threadDelay 60000
        expired d >>= (@?= False)
        during d (seconds 100) (threadDelay 60000)
        expired d >>= (@?= False)
        resume d
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "paused, it does not pass; resumed, it does" $ do
        -- Another one if it expired before it could be paused.
        let pausedInTime = do
              (fired, act) <- counter
              d <- newIdleTimer (milliseconds 30) act
              pause d
              gone <- expired d
              if gone then pausedInTime else pure (fired, d)
        (fired, d) <- pausedInTime
        remaining d >>= (@?= milliseconds 30)
        stays 150 "it passed in the pause" ((== 0) <$> readIORef fired)
        resume d
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "stopped, it never passes, and lets go of its action" $ do
        fired <- newIORef False
        gone <- newIORef False
        _ <- mkWeakIORef fired (writeIORef gone True)
        d <- newIdleTimer (seconds 100) (writeIORef fired True)
        collect
        readIORef gone >>= (@?= False)
        stop d
        eventually "the action is collected" (collect >> readIORef gone)
        expired d >>= (@?= False),
      test "stopped in time, it does not pass" $ do
        (fired, act) <- counter
        d <- newIdleTimer (milliseconds 40) act
        stop d
        gone <- expired d
        stays 100 "it passed" ((== fromEnum gone) <$> readIORef fired),
      test "brought forward, it passes then" $ do
        (fired, act) <- counter
        d <- newIdleTimer (seconds 100) act
        threadDelay 1000
        resetFor d (milliseconds 20)
        left <- remaining d
        assertBool (show left) (left <= milliseconds 30)
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "brought forward from a pause" $ do
        (fired, act) <- counter
        d <- newIdleTimer (seconds 100) act
        pause d
        during d (milliseconds 10) $ eventually "it passes" ((== 1) <$> readIORef fired),
      test "brought forward again and again while the timer looks" . forM_ [1 .. times 20] $ \i -> do
        done <- newEmptyMVar
        d <- newIdleTimer (milliseconds 40) (putMVar done ())
        parallel 3 . const . forM_ [1 .. 30 :: Int] $ \j -> do
          resetFor d (microseconds (37 * (i * j `mod` 60)))
          when (j `mod` 5 == 0) (threadDelay 300)
        resetFor d (milliseconds 1)
        within 10 "its end" (takeMVar done),
      test "pushed while it passes, it passes once" . forM_ [1 .. times 20] $ \i -> do
        (fired, act) <- counter
        d <- newIdleTimer (milliseconds 4) act
        threadDelay (3500 + 30 * (i `mod` 60))
        parallel 2 (const (reset d))
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "during: passes when the operation is too long" $ do
        done <- newEmptyMVar
        d <- newIdleTimer (milliseconds 20) (putMVar done ())
        during d (milliseconds 20) (within 10 "its end" (takeMVar done)),
      test "during: between operations it is paused" $ do
        (fired, act) <- counter
        d <- newPausedIdleTimer (milliseconds 30) act
        replicateM_ 5 $ do
          during d (seconds 100) (threadDelay 1000)
          remaining d >>= (@?= milliseconds 30)
        stays 120 "it passed" ((== 0) <$> readIORef fired),
      test "during: a short operation beside a long one pauses nothing" . forM_ [1 .. times 5] $ \_ -> do
        done <- newEmptyMVar
        d <- newIdleTimer (milliseconds 30) (putMVar done ())
        long <- start (during d (milliseconds 30) (readMVar done))
        parallel 4 . const $ replicateM_ 50 (during d (milliseconds 30) (pure ()))
        result "the long one" long,
      test "during: short operations of several threads leave it paused" $ do
        ds <- forM [1 .. times 300] $ \_ -> do
          d <- newIdleTimer (seconds 100) (pure ())
          d <$ parallel 4 (const (replicateM_ 30 (during d (seconds 50) (pure ()))))
        threadDelay 20000
        -- Its whole length is left of one that is paused.
        left <- mapM remaining ds
        length (filter (/= seconds 100) left) @?= 0,
      test "given more time when it is due, until the action has it pass" $ do
        (fired, act) <- counter
        asked <- newIORef (0 :: Int)
        _ <- newDecidingIdleTimer (milliseconds 10) (\_ -> atomicModifyIORef' asked (\n -> (n + 1, if n < 3 then Later (milliseconds 10) else Expire act))) >>= \d -> d <$ reset d
        eventually "it passes" ((== 1) <$> readIORef fired)
        stays 50 "it passed again" ((== 1) <$> readIORef fired)
        readIORef asked >>= (@?= 4),
      test "pushed while the action decides, it is due when it was pushed to" $ do
        (fired, act) <- counter
        asked <- newIORef (0 :: Int)
        ref <- newIORef (pure ())
        d <- newDecidingIdleTimer (milliseconds 10) $ \_ -> do
          join (readIORef ref)
          atomicModifyIORef' asked (\n -> (n + 1, if n == 0 then Later (milliseconds 5) else Expire act))
        writeIORef ref (resetFor d (seconds 100))
        reset d
        eventually "it asks" ((== 1) <$> readIORef asked)
        stays 50 "it passed" ((== 0) <$> readIORef fired)
        resetFor d (milliseconds 1)
        eventually "it asks again" ((== 2) <$> readIORef asked),
      test "resumed in vain, as no descriptor is left for a dispatcher, it can be resumed later" $ do
        (fired, act) <- counter
        d <- newPausedIdleTimer (milliseconds 10) act
        stopManagers
        tried <- withNoneLeft (try (resume d))
        -- Timers of other tests may have started a dispatcher again.
        either (\e -> const (pure ()) (e :: IOException)) pure tried
        resume d
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "one dispatcher at a time decides" . forM_ [1 .. times 10] $ \_ -> do
        caps <- getNumCapabilities
        (inside, most) <- (,) <$> newIORef (0 :: Int) <*> newIORef 0
        d <- newDecidingIdleTimer (seconds 100) $ \_ -> do
          n <- atomicModifyIORef' inside (\n -> (n + 1, n + 1))
          atomicModifyIORef' most (\m -> (max m n, ()))
          spin 5
          atomicModifyIORef' inside (\m -> (m - 1, Expire (pure ())))
        -- Within a tick of the coarse clock, the first and the last have the same due time: two timers, on two
        -- dispatchers.
        forM_ [(0, 40), (caps - 1, 10), (0, 40)] $ \(cap, ms) -> do
          done <- newEmptyMVar
          _ <- forkOn cap (resetFor d (milliseconds ms) >> putMVar done ())
          takeMVar done
        eventually "it passes" (expired d)
        eventually "no decision is under way" ((== 0) <$> readIORef inside)
        readIORef most >>= (@?= 1),
      test "during: an operation that throws, or is killed, is over" $ do
        (fired, act) <- counter
        d <- newPausedIdleTimer (milliseconds 30) act
        _ <- failure "during" (during d (seconds 100) (throwIO (userError "on purpose")))
        remaining d >>= (@?= milliseconds 30)
        gate <- newEmptyMVar
        t <- start (during d (seconds 100) (takeMVar gate :: IO ()))
        _ <- blocked t
        H.stop t
        remaining d >>= (@?= milliseconds 30)
        stays 100 "it passed" ((== 0) <$> readIORef fired),
      test "an action that throws hurts no other" $ do
        (fired, act) <- counter
        _ <- newIdleTimer (milliseconds 5) (throwIO (userError "this line belongs to a test"))
        _ <- newIdleTimer (milliseconds 20) act
        eventually "the other passes" ((== 1) <$> readIORef fired),
      test "it outlives its dispatcher" $ do
        (fired, act) <- counter
        t0 <- getMonotonicTimeNSec
        d <- newIdleTimer (milliseconds 100) act
        stopManagers
        gone <- expired d
        t1 <- getMonotonicTimeNSec
        assertBool (show (t1 - t0) <> " ns: early") (not gone || t1 - t0 >= 100000000)
        eventually "it passes" ((== 1) <$> readIORef fired),
      test "many, pushed by many" $ do
        (fired, act) <- counter
        ds <- replicateM 500 (newIdleTimer (milliseconds 500) act)
        parallel 4 . const . replicateM_ 10 $ mapM_ reset ds >> threadDelay 2000
        forM_ (zip ds (cycle [True, False, False])) $ \(d, stopped) -> when stopped (stop d)
        -- On a slow machine some may have expired before they were stopped.
        gone <- length . filter id <$> sequence [expired d | (d, True) <- zip ds (cycle [True, False, False])]
        let expected = gone + length (filter id (take 500 (cycle [False, True, True])))
        eventually "those that were not stopped pass" ((>= expected) <$> readIORef fired)
        threadDelay 100000
        readIORef fired >>= (@?= expected)
    ]

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

-- | Compute for this many milliseconds.
spin :: Word64 -> IO ()
spin ms = getMonotonicTimeNSec >>= \t -> go (t + 1000000 * ms)
  where
    go end = getMonotonicTimeNSec >>= \t -> when (t < end) (yield >> go end)

-- | A count, and the action that adds one.
counter :: IO (IORef Int, IO ())
counter = do
  ref <- newIORef 0
  pure (ref, atomicModifyIORef' ref (\n -> (n + 1, ())))
