-- |
-- Searches as test cases. Environment variables:
--
-- [@WEFT_SIM_PREEMPTIONS=n@] every search uses this bound on departures.
-- [@WEFT_SIM_DEEPER=n@] the bounds of searches are raised by n, and sleep sets are used.
-- [@WEFT_SIM_SECONDS=n@] each scenario is then searched by random schedules for n seconds, from a seed that is
-- printed; 0, the default, means 200 schedules (@WEFT_SIM_RANDOM@) from seed 1.
-- [@WEFT_SIM_SEED=n@] instead of a search, each scenario is run by the schedule of this seed.
module Search
  ( holds,
    holdsWithin,
    holdsAtRandom,
    holdsOnArm,
    holdsOnArmAtRandom,
    isFound,
    isFoundWithin,
    isFoundAtRandom,
    isFoundOnArm,
    large,
  )
where

import Data.Maybe (fromMaybe)
import Data.Time.Clock.POSIX (getPOSIXTime)
import Simulation
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit
import Text.Read (readMaybe)

-- | The scenario holds under every schedule; there must be at least the given number of schedules.
holds :: TestName -> Int -> IO Scenario -> TestTree
holds name least scenario = testCaseSteps name $ \say -> do
  bound <- number <$> lookupEnv "WEFT_SIM_PREEMPTIONS"
  searched say scenario (maybe least (const 1) bound) (maybe explore exploreWithin bound scenario)

-- | The scenario holds under every schedule with at most the given number of departures.
holdsWithin :: Int -> TestName -> IO Scenario -> TestTree
holdsWithin bound name scenario = testCaseSteps name $ \say -> do
  wanted <- number <$> lookupEnv "WEFT_SIM_PREEMPTIONS"
  deeper <- fromMaybe 0 . number <$> lookupEnv "WEFT_SIM_DEEPER"
  let search = if deeper > 0 then exploreReduced else exploreWithin
  searched say scenario 10 (search (maybe bound (min bound) wanted + deeper) scenario)

-- | The scenario holds under the ordinary schedule and under random ones.
holdsAtRandom :: TestName -> IO Scenario -> TestTree
holdsAtRandom name scenario = testCaseSteps name (\say -> searched say scenario 1 (exploreWithin 0 scenario))

-- | The scenario holds if reads may return an old value ("Simulation.Memory"), at most twice in a run. Such a read
-- counts as a departure. Searches without sleep sets: whether a read may be early depends on the order of steps that
-- sleep sets treat as exchangeable.
holdsOnArm :: Int -> TestName -> IO Scenario -> TestTree
holdsOnArm bound name scenario = testCaseSteps name $ \say -> do
  wanted <- number <$> lookupEnv "WEFT_SIM_PREEMPTIONS"
  deeper <- fromMaybe 0 . number <$> lookupEnv "WEFT_SIM_DEEPER"
  searched say (onArm scenario) 10 (exploreWithin (maybe bound (min bound) wanted + deeper) (onArm scenario))

-- | The scenario holds with that memory under the ordinary schedule and under random ones.
holdsOnArmAtRandom :: TestName -> IO Scenario -> TestTree
holdsOnArmAtRandom name scenario = testCaseSteps name (\say -> searched say (onArm scenario) 1 (exploreWithin 0 (onArm scenario)))

onArm :: IO Scenario -> IO Scenario
onArm scenario = weakMemory 2 >> scenario

-- | Some schedule breaks the scenario with that memory, but none does if each read returns what was written last; both
-- with at most the given number of departures.
isFoundOnArm :: Int -> TestName -> IO Scenario -> TestTree
isFoundOnArm bound name scenario = testCaseSteps name $ \say -> do
  strong <- exploreWithin bound scenario
  case strong of
    AllHold n -> say ("not where reads return what was written last: " <> show n <> " interleavings")
    Broken _ why _ -> assertFailure ("it takes no weak memory: " <> why)
  found say (onArm scenario) (exploreWithin bound)

number :: Maybe String -> Maybe Int
number = (>>= readMaybe)

searched :: (String -> IO ()) -> IO Scenario -> Int -> IO Explored -> Assertion
searched say scenario least search = do
  one <- number <$> lookupEnv "WEFT_SIM_SEED"
  case one of
    Just seed -> do
      outcome <- seeded seed scenario
      say ("the schedule of seed " <> show seed <> ": " <> show (length (outcomeMoves outcome)) <> " steps")
      case outcomeFault outcome of
        Just why -> judge say scenario 1 ("seed " <> show seed) (Broken (map fst (outcomeChoices outcome)) why 1)
        Nothing -> pure ()
    Nothing -> do
      judge say scenario least "the search" =<< search
      seconds <- fromMaybe 0 . number <$> lookupEnv "WEFT_SIM_SECONDS"
      if seconds <= 0
        then lookupEnv "WEFT_SIM_RANDOM" >>= randomly 1 . fromMaybe 200 . number
        else do
          start <- getPOSIXTime
          let first = floor start * 1000000
          say ("random schedules for " <> show seconds <> " s from seed " <> show first)
          untilTime (start + fromIntegral seconds) first
  where
    randomly seed runs = do
      result <- sample seed runs scenario
      let n = case result of AllHold k -> k; Broken _ _ k -> k
      judge say scenario 1 ("WEFT_SIM_SEED=" <> show (seed + n - 1)) result
    untilTime end seed = do
      t <- getPOSIXTime
      if t >= end then say ("up to seed " <> show seed) else randomly seed 500 >> untilTime end (seed + 500 :: Int)

-- | A failure is reported as the trace of the shortest failing schedule that is found.
judge :: (String -> IO ()) -> IO Scenario -> Int -> String -> Explored -> Assertion
judge say scenario least how result =
  case result of
    AllHold n -> do
      say (show n <> " interleavings")
      assertBool ("only " <> show n <> " interleavings") (n >= least)
    Broken schedule why n -> do
      short <- shorten scenario schedule
      outcome <- replay scenario short
      assertFailure . unlines $
        [why, "found after " <> show n <> " interleavings by " <> how <> "; by the schedule " <> show short]
          <> maybe ["(it does not fail again)"] (const []) (outcomeFault outcome)
          <> outcomeStory outcome

-- | A search that takes minutes; included if @WEFT_TEST_SCALE@ is 10 or more.
large :: TestTree -> IO [TestTree]
large test = do
  scale <- maybe 1 read <$> lookupEnv "WEFT_TEST_SCALE"
  pure [test | scale >= (10 :: Double)]

-- | Some schedule with at most the given number of departures breaks the scenario, and so does the shortened schedule.
isFoundWithin :: Int -> TestName -> IO Scenario -> TestTree
isFoundWithin bound name scenario = testCaseSteps name (\say -> found say scenario (exploreWithin bound))

-- | One of the given number of random schedules, from seed 1 on, breaks the scenario, and so does the shortened
-- schedule.
isFoundAtRandom :: Int -> TestName -> IO Scenario -> TestTree
isFoundAtRandom runs name scenario = testCaseSteps name (\say -> found say scenario (sample 1 runs))

found :: (String -> IO ()) -> IO Scenario -> (IO Scenario -> IO Explored) -> Assertion
found say scenario search = do
  result <- search scenario
  case result of
    AllHold n -> assertFailure ("not found in " <> show n <> " interleavings")
    Broken schedule why n -> do
      say ("found after " <> show n <> " interleavings: " <> why)
      shorter <- shorten scenario schedule >>= replay scenario
      assertBool "the shortened schedule does not fail" (outcomeFault shorter /= Nothing)

-- | Some schedule breaks the scenario, and breaks it again when it is replayed.
isFound :: TestName -> IO Scenario -> TestTree
isFound name scenario = testCaseSteps name $ \say -> do
  result <- explore scenario
  case result of
    AllHold n -> assertFailure ("not found in " <> show n <> " interleavings")
    Broken schedule why n -> do
      say ("found after " <> show n <> " interleavings: " <> why)
      again <- replay scenario schedule
      outcomeFault again @?= Just why
      short <- shorten scenario schedule
      shorter <- replay scenario short
      assertBool "the shortened schedule does not fail" (outcomeFault shorter /= Nothing)
      -- A few departures find it too, and so do random schedules, which are reproducible.
      few <- mapM (`exploreWithin` scenario) [1, 2, 3]
      case [(k, m) | (k, Broken _ _ m) <- zip [1 :: Int ..] few] of
        (k, m) : _ -> say ("with " <> show k <> " interruptions after " <> show m)
        [] -> assertFailure "not found with three interruptions"
      one <- sample 1 20000 scenario
      two <- sample 1 20000 scenario
      one @?= two
      case one of
        Broken _ _ m -> say ("by seed " <> show m)
        AllHold _ -> assertFailure "not found by 20,000 random schedules"
