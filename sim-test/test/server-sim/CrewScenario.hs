-- |
-- "Weft.Http2.Crew": its threads run jobs, and one of them receives, whatever the jobs wait for. Every job that is
-- received ends, once, segments are received while jobs of earlier ones wait, and at the end no thread is left.
module CrewScenario
  ( crewTests,
  )
where

import Control.Concurrent
import Control.Monad
import Data.IORef
import Data.List (sort)
import Kernel
import Search
import Simulation (Scenario (..))
import Test.Tasty
import Weft.Http2.Crew

-- | A numbered job: it ends at once, or when the gate is open, or it opens the gate.
data Work = Work !Kind !Int

data Kind = Plain | Waits | Opens

-- | A connection whose client sends jobs in segments, and then its end. The run of one of them may be cancelled
-- meanwhile. The connection ends its crew when all others have ended.
serving :: [[Work]] -> Maybe Int -> IO Scenario
serving segments victim = do
  bootKernel noFaults
  [gate, over, finished, cancelled] <- replicateM 4 newEmptyMVar
  made <- newEmptyMVar
  inbox <- mapM (const newEmptyMVar) segments
  ended <- newIORef []
  crew <- newCrew
  let note n = do
        complete <- atomicModifyIORef' ended (\ns -> (n : ns, all (`elem` (n : ns)) spared))
        when complete (void (tryPutMVar finished ()))
      job (Work kind n) = do
        run <- newRun
        when (victim == Just n) (putMVar made run)
        pure . Job run True $ \unmask -> unmask (case kind of Plain -> yield; Waits -> readMVar gate; Opens -> void (tryPutMVar gate ())) >> note n
      duty slots = Duty $ case slots of
        [] -> Nothing <$ putMVar over ()
        slot : rest -> do
          takeMVar slot >>= mapM job >>= addJobs crew
          pure (Just (duty rest))
      client = zipWithM_ putMVar inbox segments
      canceller = takeMVar made >>= cancelRun >> putMVar cancelled ()
      connection = do
        onDuty crew (duty inbox)
        takeMVar over
        when (victim /= Nothing) (takeMVar cancelled)
        takeMVar finished
        endCrew crew
  pure . Scenario ([client, connection] <> [canceller | victim /= Nothing]) $ \stuck -> do
    done <- sort <$> readIORef ended
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck <> ", ended: " <> show done)
        | done `notElem` [wanted, spared] -> Just ("jobs that ended: " <> show done)
        | otherwise -> Nothing
  where
    wanted = [n | works <- segments, Work _ n <- works]
    spared = filter ((/= victim) . Just) wanted

-- | The client's end comes, and the connection ends, while jobs wait and others are pending: no thread is left, and no job
-- has ended twice.
broken :: IO Scenario
broken = do
  bootKernel noFaults
  never <- newEmptyMVar
  inbox <- replicateM 3 newEmptyMVar
  ended <- newIORef []
  crew <- newCrew
  let job n = (\run -> Job run True (\unmask -> unmask (if odd n then takeMVar never else yield) >> atomicModifyIORef' ended (\ns -> (n : ns, ())))) <$> newRun
      duty slots = Duty $ do
        segment <- maybe (pure Nothing) (takeMVar . fst) slots
        case (segment, slots) of
          (Just n, Just (_, rest)) -> do
            mapM job [n, n + 1 :: Int] >>= addJobs crew
            pure (Just (duty (next rest)))
          _ -> pure Nothing
      next slots = case slots of
        [] -> Nothing
        slot : rest -> Just (slot, rest)
      client = zipWithM_ putMVar inbox [Just 1, Just 3, Nothing]
  pure . Scenario [client, onDuty crew (duty (next inbox)) >> yield >> endCrew crew] $ \stuck -> do
    done <- sort <$> readIORef ended
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | any odd done || not (and (zipWith (/=) done (drop 1 done))) -> Just ("jobs that ended: " <> show done)
        | otherwise -> Nothing

crewTests :: TestTree
crewTests =
  testGroup
    "a crew that receives and works"
    [ holdsWithin 1 "jobs that do not wait" (serving [[Work Plain 1, Work Plain 2], [Work Plain 3]] Nothing),
      holdsWithin 1 "a job waits for one of the next segment" (serving [[Work Waits 1], [Work Opens 2]] Nothing),
      holdsAtRandom "jobs of two segments wait for one of the third" (serving [[Work Waits 1, Work Waits 2], [Work Waits 3, Work Plain 4], [Work Opens 5], [Work Plain 6]] Nothing),
      holdsWithin 1 "a job that waits is cancelled, and another one comes" (serving [[Work Waits 1], [Work Plain 2]] (Just 1)),
      holdsAtRandom "a job that waits is cancelled, and others wait" (serving [[Work Waits 1, Work Waits 2], [Work Waits 3], [Work Opens 4], [Work Plain 5]] (Just 2)),
      holdsAtRandom "the connection ends at any time" broken
    ]
