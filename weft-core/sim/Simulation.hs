{-# LANGUAGE BangPatterns #-}

-- |
-- A scheduler for tests. Threads are real threads of which one runs at a time: each
-- stops before every operation on shared state ("Weft.Sys" of this directory) until
-- it is chosen. A schedule is the list of choices made; 'explore' runs a scenario
-- under every schedule there is, depth first, by running it anew for each.
--
-- One simulation at a time in a process.
module Simulation
  ( -- * Running
    Scenario (..),
    Outcome (..),
    Schedule,
    runSchedule,
    explore,
    exploreWithin,
    sample,
    Explored (..),

    -- * For the simulated machine
    point,
    blockUntil,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.IORef
import Data.List (elemIndex)
import Data.Maybe (fromMaybe)
import System.IO.Unsafe (unsafePerformIO)

-- | At each step, which of the threads that could go on did: counted from zero.
type Schedule = [Int]

-- | Made anew for every schedule: threads, and what must hold when no thread can
-- go on any more. The check gets the numbers of the threads that are stuck and
-- returns what is wrong.
data Scenario = Scenario
  { scenarioThreads :: [IO ()],
    scenarioCheck :: [Int] -> IO (Maybe String)
  }

-- | What became of one run.
data Outcome = Outcome
  { outcomeFault :: Maybe String,
    -- | Choices, each with the number of threads to choose from.
    outcomeChoices :: [(Int, Int)],
    -- | The threads by number: those that could go on at each step, and the one that did.
    outcomeSteps :: [([Int], Int)]
  }

-- | What became of a search.
data Explored
  = -- | Every schedule was run; so many.
    AllHold Int
  | -- | This schedule, after so many, breaks the scenario.
    Broken Schedule String Int
  deriving (Eq, Show)

-- | A simulated thread, as the scheduler sees it.
data Agent = Agent
  { agentGo :: MVar (),
    -- | Whether it could go on; 'Nothing' when it has ended.
    agentWaits :: IORef (Maybe (IO Bool))
  }

-- | The agent that runs now, and how it gives control back.
data Turn = Turn Agent (MVar ())

-- | Written by the scheduler before it lets an agent go on.
current :: IORef (Maybe Turn)
current = unsafePerformIO (newIORef Nothing)
{-# NOINLINE current #-}

-- | Let the scheduler choose. No effect outside a simulation.
point :: IO ()
point = blockUntil (pure True)

-- | Stop until the condition holds and the scheduler chooses this thread; nothing
-- happens between that and what the caller does next.
blockUntil :: IO Bool -> IO ()
blockUntil ready = do
  turn <- readIORef current
  case turn of
    Nothing -> pure ()
    Just (Turn agent back) -> do
      writeIORef (agentWaits agent) (Just ready)
      putMVar back ()
      takeMVar (agentGo agent)

-- | Run a scenario, following the schedule as far as it goes and then always the
-- first thread that can go on.
runSchedule :: IO Scenario -> Schedule -> IO Outcome
runSchedule = runWith (\_ _ -> 0)

-- | The same; where the schedule has ended, the function chooses, from the thread that ran last and those that can
-- go on.
runWith :: (Int -> [Int] -> Int) -> IO Scenario -> Schedule -> IO Outcome
runWith further make schedule = do
  scenario <- make
  back <- newEmptyMVar
  failure <- newIORef Nothing
  agents <- forM (scenarioThreads scenario) (start back failure)
  taken <- steps further back (zip [0 ..] (map fst agents)) schedule []
  writeIORef current Nothing
  stuck <- filterM (fmap (maybe False (const True)) . readIORef . agentWaits . fst . snd) (zip [0 ..] agents)
  fault <- scenarioCheck scenario (map fst stuck)
  broke <- readIORef failure
  forM_ agents (killThread . snd)
  let (choices, moves) = unzip (reverse taken)
  pure (Outcome (maybe fault Just broke) choices moves)

start :: MVar () -> IORef (Maybe String) -> IO () -> IO (Agent, ThreadId)
start back failure body = do
  agent <- Agent <$> newEmptyMVar <*> newIORef (Just (pure True))
  thread <- mask_ . forkIO . handle killed $ do
    takeMVar (agentGo agent)
    try body >>= either failed pure
    writeIORef (agentWaits agent) Nothing
    putMVar back ()
  pure (agent, thread)
  where
    killed :: AsyncException -> IO ()
    killed _ = pure ()
    failed :: SomeException -> IO ()
    failed e
      | Just async <- fromException e = throwIO (async :: AsyncException)
      | otherwise = writeIORef failure (Just (show e))

-- | Choose and run, until nobody can go on. The newest choice comes first.
steps :: (Int -> [Int] -> Int) -> MVar () -> [(Int, Agent)] -> Schedule -> [((Int, Int), ([Int], Int))] -> IO [((Int, Int), ([Int], Int))]
steps further back agents schedule done = do
  able <- filterM (maybe (pure False) id <=< readIORef . agentWaits . snd) agents
  case able of
    [] -> pure done
    _ -> do
      let numbers = map fst able
          (choice, rest) = case schedule of
            [] -> (further (previous done) numbers, [])
            c : cs -> (c `mod` length able, cs)
          (number, agent) = able !! choice
      writeIORef current (Just (Turn agent back))
      putMVar (agentGo agent) ()
      takeMVar back
      steps further back agents rest (((choice, length able), (numbers, number)) : done)

-- | The thread that ran last, or none.
previous :: [(a, (b, Int))] -> Int
previous ((_, (_, number)) : _) = number
previous [] = -1

-- | Run every schedule of a scenario, or until one breaks it.
explore :: IO Scenario -> IO Explored
explore make = go [] 0
  where
    go schedule !n = do
      outcome <- runSchedule make schedule
      let taken = map fst (outcomeChoices outcome)
      case outcomeFault outcome of
        Just why -> pure (Broken taken why (n + 1))
        Nothing -> maybe (pure (AllHold (n + 1))) (`go` (n + 1)) (next (outcomeChoices outcome))

-- | The next schedule in order: the last choice that has an alternative left takes
-- it.
next :: [(Int, Int)] -> Maybe Schedule
next choices = case dropWhile (\(c, n) -> c + 1 >= n) (reverse choices) of
  [] -> Nothing
  (c, _) : earlier -> Just (reverse ((c + 1) : map fst earlier))

-- | Run every schedule in which a thread that could go on is interrupted by another that often at most. Few
-- interruptions are enough for most faults, and the number of schedules grows with the length of the threads to that
-- power only, not exponentially.
exploreWithin :: Int -> IO Scenario -> IO Explored
exploreWithin bound make = go [] 0
  where
    go schedule !n = do
      outcome <- runWith onward make schedule
      case outcomeFault outcome of
        Just why -> pure (Broken (map fst (outcomeChoices outcome)) why (n + 1))
        Nothing -> maybe (pure (AllHold (n + 1))) (`go` (n + 1)) (nextWithin bound (outcomeSteps outcome))
    onward before able = fromMaybe 0 (elemIndex before able)

-- | The next schedule within the bound: at each step the thread that ran before comes first, and then the others in
-- order.
nextWithin :: Int -> [([Int], Int)] -> Maybe Schedule
nextWithin bound taken = go (reverse (zip3 (-1 : map snd taken) taken costs))
  where
    -- How many interruptions there were before each step.
    costs = scanl (+) 0 (zipWith interrupts (-1 : map snd taken) taken)
    interrupts before (able, chosen) = fromEnum (before `elem` able && chosen /= before) :: Int
    go [] = Nothing
    go ((before, (able, chosen), cost) : earlier) =
      case drop 1 (dropWhile (/= chosen) (inOrder before able)) of
        other : _
          | cost + interrupts before (able, other) <= bound ->
            Just (map indexOf (reverse [move | (_, move, _) <- earlier]) <> [indexOf (able, other)])
        _ -> go earlier
    inOrder before able = [t | t <- able, t == before] <> [t | t <- able, t /= before]
    indexOf (able, chosen) = length (takeWhile (/= chosen) able)

-- | So many schedules that a seed determines. The same seed makes the same choices.
sample :: Int -> Int -> IO Scenario -> IO Explored
sample seed runs make = go 0 (drop 1 (iterate lcg seed))
  where
    go !n numbers
      | n >= runs = pure (AllHold n)
      | otherwise = do
        outcome <- runSchedule make (map (`div` 65536) (iterate lcg (head' numbers)))
        case outcomeFault outcome of
          Just why -> pure (Broken (map fst (outcomeChoices outcome)) why (n + 1))
          Nothing -> go (n + 1) (drop 1 numbers)
    head' = foldr const 0
    lcg x = (x * 6364136223846793005 + 1442695040888963407) `mod` 9223372036854775807
