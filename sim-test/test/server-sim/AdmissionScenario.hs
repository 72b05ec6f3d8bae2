-- |
-- Which connections have to end when there are too many ("Weft.Http.Admission").
module AdmissionScenario
  ( admissionTests,
  )
where

import Control.Concurrent
import Control.Monad (forM_, join, when)
import Data.IORef
import Data.List (sort)
import Kernel
import Search
import Simulation (Scenario (..), patientClock)
import Test.Tasty
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import Weft.Core.Time (Instant (..))
import Weft.Duration (seconds)
import Weft.Http.Admission
import Weft.Http.Limits (Limits (..), defaultLimits)
import Weft.Http.Table
import Weft.Http.Types (cellCount, cellPhase, phaseBusy)
import Weft.Http2.Control (Http2Control (..))
import Weft.Runtime.IdleTimer (newPausedIdleTimer)
import Weft.Sys (newWordArray, now, pokeWord)

-- | As many HTTP\/2 connections as are allowed, and two more at once. They became idle a millisecond after one another;
-- the order in the table is given. A thread that examines them takes ten milliseconds for each, as one that is
-- preempted does. The two that have been idle for the longest time have to end.
oldestEnd :: [Int] -> IO Scenario
oldestEnd order = do
  bootKernel noFaults
  Choice.useBackend Epoll.new
  patientClock
  ended <- newIORef []
  admitted <- newIORef (0 :: Int)
  up <- newEmptyMVar
  let limits = defaultLimits {limitConnections = length order}
      keeper = do
        admission <- newAdmission
        table <- newTable
        Instant t0 <- now
        forM_ order $ \i -> do
          _ <- admit limits admission [table]
          idle <- idleSince (Instant (t0 + 1000000 * fromIntegral i)) (atomicModifyIORef' ended (\is -> (i : is, ())))
          addEntry table idle
        threadDelay 1000000
        putMVar up (admit limits admission [table])
      newcomer = join (readMVar up) >>= \there -> when there (atomicModifyIORef' admitted (\n -> (n + 1, ())))
  pure . Scenario [keeper, newcomer, newcomer] $ \stuck -> do
    found <- readIORef ended
    n <- readIORef admitted
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | n /= 2 -> Just (show n <> " new connections were admitted")
        | sort found /= take 2 (sort order) -> Just ("ended: " <> show found)
        | otherwise -> Nothing

-- | An HTTP\/2 connection that is idle until it is evicted, which runs an action.
idleSince :: Instant -> IO () -> IO Entry
idleSince since onEvict = do
  self <- myThreadId
  cells <- newWordArray cellCount
  pokeWord cells cellPhase phaseBusy
  timer <- newPausedIdleTimer (seconds 5) (pure ())
  isIdle <- newIORef True
  let state = (\is -> if is then Just since else Nothing) <$> readIORef isIdle
      evicted = atomicModifyIORef' isIdle (\is -> (False, is)) >>= \was -> was <$ when was onEvict
  Entry self cells timer <$> newIORef (Just (Http2Control (pure ()) (threadDelay 10000 >> state) evicted))

admissionTests :: TestTree
admissionTests =
  testGroup
    "which connections have to end"
    [ holdsWithin 1 "the oldest idle ones, which are examined first" (oldestEnd [1, 2, 3]),
      holdsWithin 1 "the oldest idle ones, which are examined last" (oldestEnd [3, 2, 1])
    ]
