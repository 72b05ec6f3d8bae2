-- |
-- Event flags: raised before, during and after a wait, by GHC's threads and by hybrid ones; deadlines; and
-- an attempt that waits for a flag loses no event.
module Spec.Flags
  ( tests,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import qualified Control.Concurrent as GHC
import Control.Monad (forM, forM_, forever, replicateM_, when)
import Data.IORef
import Support
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import Weft.Hybrid.Flag

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "flags"
    [ test "raised before the wait: once" before,
      test "raised by a GHC thread: all waiting threads continue" everybody,
      test "a deadline, and a flag that is raised in time" deadline,
      test "deadlines and raising at the same moment" deadlineRaces,
      test "a kill and raising at the same moment" killRaces,
      test "no item of a queue is missed" nothingMissed
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))

before :: Scheduler -> Assertion
before s = do
  flag <- newFlag
  raiseFlag flag
  raiseFlag flag
  (first, second) <- runIn s $ do
    soon <- deadlineIn (milliseconds 20)
    (,) <$> awaitFlagUntil soon flag <*> awaitFlagUntil soon flag
  (first, second) @?= (True, False)
  raiseFlag flag
  lowerFlag flag
  third <- runIn s (deadlineIn (milliseconds 20) >>= \soon -> awaitFlagUntil soon flag)
  third @?= False

everybody :: Scheduler -> Assertion
everybody s = do
  flag <- newFlag
  waiting <- newIORef (0 :: Int)
  n <- runIn s $ do
    threads <- forM [1 .. 100 :: Int] $ \i -> forkThread $ do
      nonBlocking (atomicModifyIORef' waiting (\k -> (k + 1, ())))
      later <- deadlineIn (seconds 15)
      if even i then awaitFlag flag else awaitFlagUntil later flag >>= \ok -> when (not ok) (throwM (userError "too late"))
    let settled = nonBlocking (readIORef waiting) >>= \k -> when (k < 100) (yield >> settled)
    settled
    sleep (milliseconds 5)
    _ <- nonBlocking (forkIO (raiseFlag flag))
    ends <- mapM waitCatch threads
    pure (length [() | Right () <- ends])
  n @?= 100

deadline :: Scheduler -> Assertion
deadline s = do
  flag <- newFlag
  r <- runIn s $ do
    late <- deadlineIn (seconds 15)
    fork (sleep (milliseconds 5) >> nonBlocking (raiseFlag flag))
    awaitFlagUntil late flag
  r @?= True

-- | A thread that learns that the flag was not raised in time finds it raised afterwards; never both, never neither.
deadlineRaces :: Scheduler -> Assertion
deadlineRaces s = forM_ [1 .. times 300] $ \i -> do
  flag <- newFlag
  (raised, again) <- runIn s $ do
    soon <- deadlineIn (microseconds (200 + i `mod` 50))
    done <- nonBlocking GHC.newEmptyMVar
    _ <- nonBlocking (forkIO (threadDelay 200 >> raiseFlag flag >> GHC.putMVar done ()))
    raised <- awaitFlagUntil soon flag
    onGhcThread (GHC.takeMVar done)
    late <- deadlineIn (microseconds 1)
    (,) raised <$> awaitFlagUntil late flag
  -- A flag stays raised for those who come later.
  when (not raised) (again @? "the flag was raised and nobody was told")

-- | The thread ends in one of two ways, and another one that waits is woken.
killRaces :: Scheduler -> Assertion
killRaces s = replicateM_ (times 300) $ do
  flag <- newFlag
  end <- runIn s $ do
    t <- forkThread (awaitFlag flag)
    other <- forkThread (awaitFlag flag)
    yield
    _ <- nonBlocking (forkIO (raiseFlag flag))
    killThread t
    end <- waitCatch t
    wait other
    pure end
  either (const (isKilled end @? show end)) pure end

-- | Two readers of a counter that GHC's threads fill; each passes on what it leaves.
nothingMissed :: Scheduler -> Assertion
nothingMissed s = do
  flag <- newFlag
  filled <- newIORef (0 :: Int)
  replicateM_ 4 (forkIO (replicateM_ each' (atomicModifyIORef' filled (\n -> (n + 1, ())) >> raiseFlag flag)))
  total <- runIn s $ do
    taken <- newMVar (0 :: Int)
    ended <- newEmptyMVar
    let one = do
          r <- nonBlocking $ do
            lowerFlag flag
            (got, left) <- atomicModifyIORef' filled (\n -> if n > 0 then (n - 1, (True, n > 1)) else (n, (False, False)))
            when left (raiseFlag flag)
            pure got
          if r
            then do
              n <- modifyMVar taken (\n -> pure (n + 1, n + 1))
              when (n == 4 * each') (putMVar ended ())
            else awaitFlag flag
    readers <- mapM (const (forkThread (forever one))) [1, 2 :: Int]
    takeMVar ended
    mapM_ killThread readers
    takeMVar taken
  total @?= 4 * each'
  where
    each' = times 2000
