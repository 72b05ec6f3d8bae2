-- |
-- The simulator's random schedules ("Simulation.Search") reach races in which threads have to stand still while others
-- take hundreds of steps.
module SearchScenario
  ( searchTests,
    standingStill,
  )
where

import Control.Monad
import Data.IORef
import Search
import Simulation
import Test.Tasty
import Weft.Sys

-- | Threads that read a counter twice, and one that increments it. It fails if each of the readers reads zero and then
-- the last value: then each of them stood still between its reads for all steps of the other one.
standingStill :: Int -> IO Scenario
standingStill readers = do
  counter <- newRef (0 :: Int)
  results <- replicateM readers (newIORef (0, 0))
  let reader result = (,) <$> readRef counter <*> readRef counter >>= writeIORef result
      writer = replicateM_ increments (updateRef counter (+ 1))
      check _ = do
        found <- mapM readIORef results
        pure (if all (== (0, increments)) found then Just "the readers stood still" else Nothing)
  pure (Scenario (map reader results <> [writer]) check)
  where
    increments = 250

-- | Neither race is found by 10,000 schedules that choose each step without regard to priorities.
searchTests :: TestTree
searchTests =
  testGroup
    "random schedules"
    [ isFoundAtRandom 200 "one thread stands still" (standingStill 1),
      isFoundAtRandom 600 "two threads stand still" (standingStill 2)
    ]
