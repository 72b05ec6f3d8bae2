-- |
-- Idle timers ("Weft.IdleTimer") used by two threads at the same time, as by the two directions of a connection.
module IdleTimerScenario
  ( idleTimerTests,
  )
where

import Control.Concurrent
import Data.IORef
import Kernel
import Search
import Simulation (Scenario (..), patientClock, virtualTime)
import Test.Tasty
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import Weft.Core.Time (Duration (..))
import Weft.Duration (seconds)
import Weft.Runtime.IdleTimer
import Weft.Runtime.Managers (stopManagers)
import qualified Weft.Thread as W

-- | Threads use a timer of five seconds, which is paused at first. The flag says whether it must have expired a hundred
-- seconds after the threads are done.
using :: Bool -> [IdleTimer -> IO ()] -> IO Scenario
using due users = do
  bootKernel noFaults
  Choice.useBackend Epoll.new
  patientClock
  up <- newEmptyMVar
  ended <- mapM (const newEmptyMVar) users
  fired <- newIORef (0 :: Int)
  let keeper = do
        d <- newPausedIdleTimer (seconds 5) (modifyIORef' fired (+ 1))
        putMVar up d
        mapM_ takeMVar ended
        W.threadDelay 100000000
        stop d
        stopManagers
      user (act, done) = readMVar up >>= act >> putMVar done ()
  pure . Scenario (keeper : map user (zip users ended)) $ \stuck -> do
    n <- readIORef fired
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | n /= fromEnum due -> Just ("it expired " <> show n <> " times")
        | otherwise -> Nothing

-- | Threads use a timer of five seconds, which is paused at first. The time that is left when they are done has to
-- satisfy the predicate.
leaving :: (Duration -> Bool) -> [IdleTimer -> IO ()] -> IO Scenario
leaving right users = do
  bootKernel noFaults
  Choice.useBackend Epoll.new
  patientClock
  up <- newEmptyMVar
  ended <- mapM (const newEmptyMVar) users
  left <- newIORef mempty
  let keeper = do
        d <- newPausedIdleTimer span' (pure ())
        putMVar up d
        mapM_ takeMVar ended
        remaining d >>= writeIORef left
        stop d
        stopManagers
      user (act, done) = readMVar up >>= act >> putMVar done ()
  pure . Scenario (keeper : map user (zip users ended)) $ \stuck -> do
    found <- readIORef left
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | not (right found) -> Just ("the time left is " <> show found)
        | otherwise -> Nothing

-- | A running timer of five seconds is reset shortly before it is due, and stopped at the moment when it is due. It
-- expires then, or was stopped, and does not expire earlier.
resetting :: IO Scenario
resetting = do
  bootKernel noFaults
  Choice.useBackend Epoll.new
  patientClock
  up <- newEmptyMVar
  late <- newEmptyMVar
  done <- newEmptyMVar
  fired <- newIORef []
  hasExpired <- newIORef False
  let keeper = do
        d <- newIdleTimer (seconds 5) (virtualTime >>= \t -> modifyIORef' fired (t :))
        putMVar up d
        -- Started after the dispatcher: of two threads that can continue, the older one runs first.
        _ <- forkIO (stopper d)
        takeMVar done
        W.threadDelay 100000000
        stopManagers
      resetter = do
        d <- readMVar up
        threadDelay 4900000
        reset d
        putMVar late ()
      stopper d = do
        takeMVar late
        Duration left <- remaining d
        threadDelay (fromIntegral (left `div` 1000))
        stop d
        expired d >>= writeIORef hasExpired
        putMVar done ()
  pure . Scenario [keeper, resetter] $ \stuck -> do
    times <- readIORef fired
    may <- readIORef hasExpired
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | any (< 9900000000) times -> Just ("it expired at " <> show times)
        | length times /= fromEnum may -> Just ("it expired " <> show (length times) <> " times; expired: " <> show may)
        | otherwise -> Nothing

span' :: Duration
span' = seconds 5

idleTimerTests :: TestTree
idleTimerTests =
  testGroup
    "idle timers"
    [ holdsWithin 2 "two operations at once leave it paused" (using False [operation, operation]),
      holdsWithin 1 "the timer runs for an operation that begins as another ends" (using True [operation, (`awaiting` span')]),
      holdsWithin 1 "an operation that begins as another ends has a time limit that an operation set" $
        leaving (> seconds 10) [\d -> during d (seconds 50) (pure ()), (`awaiting` seconds 20)],
      holdsWithin 1 "it is reset, and stopped as it is due" resetting,
      holdsAtRandom "three operations at once leave it paused" (using False [operation, operation, operation])
    ]
  where
    operation d = during d span' (pure ())
