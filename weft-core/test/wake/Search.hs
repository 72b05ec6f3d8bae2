-- |
-- Searches as test cases.
module Search
  ( holds,
    holdsWithin,
    isFound,
    large,
  )
where

import Simulation
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit
import Text.Read (readMaybe)

-- | The scenario holds under every schedule, of which there are at least so many.
holds :: TestName -> Int -> IO Scenario -> TestTree
holds name least scenario = testCaseSteps name $ \say -> do
  bound <- (>>= readMaybe) <$> lookupEnv "WEFT_SIM_PREEMPTIONS"
  judge say (maybe least (const 1) bound) =<< maybe explore exploreWithin bound scenario

-- | The scenario holds under every schedule with that many interruptions at most.
holdsWithin :: Int -> TestName -> IO Scenario -> TestTree
holdsWithin bound name scenario = testCaseSteps name $ \say -> judge say 10 =<< exploreWithin bound scenario

judge :: (String -> IO ()) -> Int -> Explored -> Assertion
judge say least result =
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
      -- Few interruptions find it too, and so do random schedules, twice the same.
      few <- mapM (`exploreWithin` scenario) [1, 2, 3]
      case [(k, m) | (k, Broken _ _ m) <- zip [1 :: Int ..] few] of
        (k, m) : _ -> say ("with " <> show k <> " interruptions after " <> show m)
        [] -> assertFailure "not found with three interruptions"
      one <- sample 1 20000 scenario
      two <- sample 1 20000 scenario
      one @?= two
      case one of
        Broken _ _ m -> say ("by seed 1 after " <> show m)
        AllHold _ -> assertFailure "not found by 20,000 random schedules"
