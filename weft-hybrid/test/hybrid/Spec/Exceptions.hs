-- |
-- Exceptions from other threads that come at an unusual moment. The schedulers have one loop, so the order of most
-- steps is known.
module Spec.Exceptions
  ( tests,
  )
where

import qualified Control.Concurrent as GHC
import qualified Control.Exception as E
import Control.Monad (forM_, replicateM_, void)
import Control.Monad.Catch (uninterruptibleMask_)
import Data.IORef
import GHC.Conc (BlockReason (..), ThreadStatus (..), threadStatus)
import Support
import System.IO.Error (isUserError)
import System.Mem (performMajorGC)
import qualified System.Timeout as GHC
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Manager (managerPending)
import Weft.Hybrid
import Weft.Hybrid.Flag (awaitFlagUntil, newFlag)
import Weft.Hybrid.Scheduler (startScheduler, stopScheduler)
import Weft.Hybrid.Trace (Loop (..), Scheduler (..))
import qualified Weft.Socket as Weft
import Weft.Sys (readBoxedArray, readRef, sizeBoxedArray)

tests :: TestTree
tests =
  testGroup
    "exceptions"
    [ test "run ends if its thread was interrupted before it began" early,
      test "run throws if its thread ended by ret" byRet,
      test "run throws the exception that comes when its thread has just ended" asItEnds,
      test "a time limit ends run on a scheduler that has been stopped" onStopped,
      test "timeout: an action that catches the exception has its own result" caught,
      test "timeout: a kill just before the time is over is not lost" bothAtOnce,
      test "two exceptions are raised in order, wherever the turn ends" inOrder,
      test "an interrupted wait with a deadline leaves no timer behind" noTimers,
      test "a thread's watchers hear of its end, though the collector ran between their registrations" watched
    ]
  where
    test name act = testCase name (finishes name act)

settings :: Settings
settings =
  defaultSettings
    { settingsLoops = Just 1,
      settingsOnException = \_ _ -> pure (),
      settingsOnStall = \_ _ -> pure ()
    }

early :: Assertion
early = withScheduler settings $ \s -> do
  began <- GHC.newEmptyMVar
  gate <- GHC.newEmptyMVar
  ended <- GHC.newEmptyMVar
  -- The loop does nothing else until the gate is open.
  _ <- forkFromIn s (nonBlocking (GHC.putMVar began () >> GHC.takeMVar gate))
  GHC.takeMVar began
  caller <- GHC.forkIO (E.try (runIn s (pure 'x')) >>= GHC.putMVar ended)
  eventually "the caller waits" (waits caller)
  E.throwTo caller Oops
  eventually "the caller waits again" (waits caller)
  GHC.putMVar gate ()
  GHC.takeMVar ended >>= (@?= Left Oops)
  where
    waits t = (== ThreadBlocked BlockedOnMVar) <$> threadStatus t

byRet :: Assertion
byRet = withScheduler settings $ \s -> do
  r <- E.try (runIn s (ret :: Hybrid ()))
  either isUserError (const False) r @? show r

-- | The caller may have the result in its hands already when the exception comes.
asItEnds :: Assertion
asItEnds = withScheduler settings $ \s -> forM_ [1 .. 4000] $ \n -> do
  r <- E.try (GHC.timeout (50 + n `mod` 100) (runIn s (sleep (microseconds 100))))
  either (\e -> assertFailure (show (e :: E.SomeException))) (const (pure ())) r

onStopped :: Assertion
onStopped = do
  s <- startScheduler settings
  stopScheduler s
  GHC.timeout 10000 (runIn s (pure ())) >>= (@?= Nothing)

caught :: Assertion
caught = withScheduler settings $ \s -> do
  r <- runIn s (within (milliseconds 5) (try (sleep (seconds 100))))
  fmap (either (show :: E.SomeException -> String) (const "slept")) r @?= Just "<<timeout>>"

-- | The time is over when the kill has been sent, and the thread has not run since.
bothAtOnce :: Assertion
bothAtOnce = withScheduler settings $ \s -> do
  end <- runIn s $ do
    t <- forkThread (within (milliseconds 20) (sleep (seconds 100)) >> sleep (seconds 100))
    replicateM_ 20 yield
    killThread t
    nonBlocking (GHC.threadDelay 60000)
    -- The clock is read within so many system calls, and the turn ends.
    replicateM_ 200 (nonBlocking (pure ()))
    waitCatch t
  isKilled end @? show end

newtype Nth = Nth Int
  deriving (Eq, Show)

instance E.Exception Nth

-- | Both are pending when the thread unmasks. By the number of system calls before that, the turn ends at another one.
inOrder :: Assertion
inOrder = withScheduler settings $ \s -> forM_ [1 .. times 300] $ \i -> do
  got <- newIORef []
  runIn s $ do
    go <- newEmptyMVar
    t <- forkThread (mask (\restore -> unmasking go i got (restore (pure ()))))
    replicateM_ 20 yield
    throwTo t (Nth 1)
    throwTo t (Nth 2)
    -- Until the clock is read every 64 system calls again.
    replicateM_ 300 yield
    putMVar go ()
    void (waitCatch t)
  readIORef got >>= (@?= [Left (Nth 2), Left (Nth 1)])
  where
    unmasking go i got unmasked = do
      void (uninterruptibleMask_ (takeMVar go))
      -- Longer than a turn, which ends when the clock is read next.
      nonBlocking (GHC.threadDelay 600)
      replicateM_ (i `mod` 140) (nonBlocking (pure ()))
      replicateM_ 2 (try unmasked >>= \r -> nonBlocking (modifyIORef got (r :)))

noTimers :: Assertion
noTimers = withScheduler settings $ \s -> do
  before <- pending s
  runIn s $ do
    (a, b) <- nonBlocking (Weft.socketPair Weft.AF_UNIX Weft.Stream 0)
    a' <- fromSocket a
    b' <- fromSocket b
    flag <- nonBlocking newFlag
    limit <- deadlineIn (seconds 1000)
    forM_ [void (recv (withDeadline limit a') 1), void (awaitFlagUntil limit flag)] $ \act ->
      replicateM_ 50 $ do
        t <- forkThread act
        replicateM_ 20 yield
        killThread t
        waitCatch t
    close a' >> close b'
  after' <- pending s
  (after' <= before + 5) @? show (before, after')
  where
    pending s = do
      slots <- readRef (schedulerLoops s)
      sum <$> mapM (pendingAt slots) [0 .. sizeBoxedArray slots - 1]
    pendingAt slots i = readBoxedArray slots i >>= managerPending . loopManager

-- | A value that was stored unevaluated, and is evaluated in the old generation, has another address than before.
watched :: Assertion
watched = withScheduler settings $ \s -> do
  heard <- newIORef (0 :: Int)
  runIn s $ do
    t <- forkThread (sleep (seconds 100))
    replicateM_ 3 (nonBlocking (watch t (const (modifyIORef heard (+ 1))) >> replicateM_ 2 performMajorGC))
    killThread t
    void (waitCatch t)
  readIORef heard >>= (@?= 3)
