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
import Simulation (Scenario (..), patientClock)
import Test.Tasty
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import Weft.Duration (Duration, seconds)
import Weft.IdleTimer
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

span' :: Duration
span' = seconds 5

idleTimerTests :: TestTree
idleTimerTests =
  testGroup
    "idle timers"
    [ holdsWithin 2 "two operations at once leave it paused" (using False [operation, operation]),
      holdsWithin 1 "an operation that begins as another ends has its time" (using True [operation, (`awaiting` span')]),
      holdsAtRandom "three operations at once leave it paused" (using False [operation, operation, operation])
    ]
  where
    operation d = during d span' (pure ())
