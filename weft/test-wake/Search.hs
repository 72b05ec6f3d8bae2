-- |
-- Searches as test cases.
module Search
  ( holds,
    isFound,
    large,
  )
where

import Simulation
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit

-- | The scenario holds under every schedule, of which there are at least so many.
holds :: TestName -> Int -> IO Scenario -> TestTree
holds name least scenario = testCaseSteps name $ \say -> do
  result <- explore scenario
  case result of
    AllHold n -> do
      say (show n <> " interleavings")
      assertBool ("only " <> show n <> " interleavings") (n >= least)
    Broken schedule why n ->
      assertFailure (why <> "\nafter " <> show n <> " interleavings, by the schedule " <> show schedule)

-- | A search of minutes: made when @WEFT_TEST_SCALE@ is 10 or more.
large :: TestTree -> IO [TestTree]
large test = do
  scale <- maybe 1 read <$> lookupEnv "WEFT_TEST_SCALE"
  pure [test | scale >= (10 :: Double)]

-- | Some schedule breaks the scenario, and does so again when it is replayed.
isFound :: TestName -> IO Scenario -> TestTree
isFound name scenario = testCaseSteps name $ \say -> do
  result <- explore scenario
  case result of
    AllHold n -> assertFailure ("not found in " <> show n <> " interleavings")
    Broken schedule why n -> do
      say ("found after " <> show n <> " interleavings: " <> why)
      again <- runSchedule scenario schedule
      outcomeFault again @?= Just why
