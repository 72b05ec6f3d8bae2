-- |
-- Functions that the tests of the suite @spec@ share: durations and repetitions, waiting with
-- a limit, counting the resources of the process.
--
-- The limits ("Weft.Test.Limits") are watched by GHC's own timers, so that a test of
-- ours that never wakes up is noticed.
module Harness
  ( -- * How much
    scale,
    times,

    -- * Limits
    within,
    finishes,
    eventually,
    stays,

    -- * Threads
    Task (..),
    start,
    parallel,
    outcome,
    result,
    blocked,
    stop,
    pause,

    -- * Time
    timed,

    -- * What the process holds
    openDescriptors,
    noneLeftOpen,
    withoutNew,
    liveBytes,
    settled,
    collect,
    leavesNothing,
    activity,

    -- * Expecting
    failsWith,
    failure,
    isErrno,
    (@>=),
  )
where

import Control.Concurrent
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception (SomeException, bracket, mask_, throwIO, try)
import Control.Monad (unless, void)
import Foreign.C.Error (Errno (..))
import GHC.Clock (getMonotonicTime)
import GHC.Conc (BlockReason (..), ThreadStatus (..), threadStatus)
import GHC.IO.Exception (IOException (ioe_errno))
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import System.Directory (listDirectory)
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import System.Mem (performMajorGC)
import System.Posix.Resource (Resource (..), ResourceLimit (..), ResourceLimits (..), getResourceLimit, setResourceLimit)
import Test.Tasty.HUnit
import Text.Read (readMaybe)
import Weft.Metrics
import Weft.Test.Limits (within)

-- | How many times the usual number of repetitions: @WEFT_TEST_SCALE@, 1 when it
-- is not set. Fractions are possible.
scale :: Double
scale = unsafePerformIO $ do
  set <- lookupEnv "WEFT_TEST_SCALE"
  pure (maybe 1 (max 0.001) (set >>= readMaybe))
{-# NOINLINE scale #-}

-- | This many repetitions, scaled, at least one.
times :: Int -> Int
times n = max 1 (round (scale * fromIntegral n))

-- Limits -----------------------------------------------------------------------------

-- | A limit for what should take no time at all; generous, as machines that run
-- tests are busy, and longer if there are more repetitions.
finishes :: String -> IO a -> IO a
finishes = within (20 * max 1 scale)

-- | Fail unless the condition comes to hold.
eventually :: String -> IO Bool -> Assertion
eventually what cond = within 20 what go
  where
    go = do
      ok <- cond
      unless ok (threadDelay 2000 >> go)

-- | Fail if the condition ceases to hold within this many milliseconds.
stays :: Int -> String -> IO Bool -> Assertion
stays ms what cond = go (max 1 (ms `div` 5))
  where
    go :: Int -> Assertion
    go 0 = pure ()
    go n = do
      ok <- cond
      assertBool what ok
      threadDelay 5000
      go (n - 1)

-- Threads ----------------------------------------------------------------------------

-- | A thread, and what became of it.
data Task a = Task !ThreadId !(MVar (Either SomeException a))

-- | Run an action in a thread of its own.
start :: IO a -> IO (Task a)
start act = do
  done <- newEmptyMVar
  t <- mask_ (forkIOWithUnmask (\unmask -> try (unmask act) >>= putMVar done))
  pure (Task t done)

-- | The outcome of a task, waiting for it within limits.
outcome :: String -> Task a -> IO (Either SomeException a)
outcome what (Task _ done) = finishes what (readMVar done)

-- | Its result; what it threw is thrown here.
result :: String -> Task a -> IO a
result what task = outcome what task >>= either throwIO pure

-- | Wait until it blocks or is done; is it blocked?
blocked :: Task a -> IO Bool
blocked (Task t _) = finishes "a thread that is to block" go
  where
    go = do
      status <- threadStatus t
      case status of
        ThreadRunning -> threadDelay 200 >> go
        -- A dispatcher that is being started is waited for like this too.
        ThreadBlocked BlockedOnOther -> threadDelay 200 >> go
        ThreadBlocked _ -> pure True
        _ -> pure False

-- | Kill it and wait for its end.
stop :: Task a -> IO ()
stop (Task t done) = finishes "killing a thread" (killThread t >> void (readMVar done))

-- | Run the action in this many threads, numbered from zero, and wait for all.
parallel :: Int -> (Int -> IO ()) -> IO ()
parallel n act = mapConcurrently_ act [0 .. n - 1]

-- | This many milliseconds, by GHC's clock.
pause :: Int -> IO ()
pause ms = threadDelay (1000 * ms)

-- | The action, and the seconds it took.
timed :: IO a -> IO (a, Double)
timed act = do
  t0 <- getMonotonicTime
  a <- act
  t1 <- getMonotonicTime
  pure (a, t1 - t0)

-- What the process holds -------------------------------------------------------------

-- | How many descriptors the process has open.
openDescriptors :: IO Int
openDescriptors = subtract 1 . length <$> listDirectory "/proc/self/fd"

-- | Run an action while no descriptor can be opened, not even one with a number that is freed meanwhile.
withoutNew :: IO a -> IO a
withoutNew act = bracket (getResourceLimit ResourceOpenFiles) (setResourceLimit ResourceOpenFiles) $ \old ->
  setResourceLimit ResourceOpenFiles old {softLimit = ResourceLimit 3} >> act

-- | No more descriptors are open than before. Fewer are, if one of an earlier test was closed meanwhile.
noneLeftOpen :: Int -> Assertion
noneLeftOpen before = do
  now <- openDescriptors
  assertBool (show (now - before) <> " descriptors are left open") (now <= before)

-- | Bytes that are alive, after a collection.
liveBytes :: IO Int
liveBytes = performMajorGC >> fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats

-- | The figure once it is no greater than the limit, or, after a while, whatever
-- it is.
settled :: Int -> IO Int -> IO Int
settled limit figure = go (400 :: Int)
  where
    go n = do
      x <- figure
      if x <= limit || n == 0 then pure x else collect >> threadDelay 10000 >> go (n - 1)

-- | Let the collector and finalizers run.
collect :: IO ()
collect = performMajorGC >> yield

-- | The action leaves no registrations behind.
leavesNothing :: IO a -> IO a
leavesNothing act = do
  registered0 <- metricsRegistered <$> readMetrics
  a <- act
  registered <- settled registered0 (metricsRegistered <$> readMetrics)
  assertBool (show (registered - registered0) <> " registrations left behind") (registered <= registered0)
  pure a

-- | Polls and sleeps of all dispatchers so far: does not move while the program is
-- idle.
activity :: IO Int
activity = total (\c -> metricsPollsEmpty c + metricsPollsFull c + metricsSleeps c) <$> readMetrics

-- Expecting --------------------------------------------------------------------------

-- | The action fails with that errno.
failsWith :: String -> Errno -> IO a -> Assertion
failsWith what errno act = do
  e <- failure what act
  unless (isErrno errno e) (assertFailure (what <> ": threw " <> show e))

-- | The exception of an action that fails.
failure :: String -> IO a -> IO IOException
failure what act = do
  r <- try (void (finishes what act))
  either pure (\() -> assertFailure (what <> ": threw nothing")) r

-- | Does the exception carry that errno?
isErrno :: Errno -> IOException -> Bool
isErrno (Errno n) e = ioe_errno e == Just n

-- | At least.
(@>=) :: (Ord a, Show a) => a -> a -> Assertion
a @>= b = unless (a >= b) (assertFailure (show a <> " is less than " <> show b))

infix 1 @>=
