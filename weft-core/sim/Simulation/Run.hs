{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE PackageImports #-}

-- |
-- One run of a scenario: its threads are started, and a 'Steering' chooses at each step which of them continues. The
-- 'Outcome' contains the choices, what happened, and the error.
module Simulation.Run
  ( -- * Scenarios
    Scenario (..),
    Outcome (..),
    Schedule,
    Move (..),
    choiceOf,

    -- * Running
    Steering (..),
    run,
    settled,
    followed,
    runSchedule,

    -- * The ordinary choice
    ordered,
    onward,
    gaveWay,
  )
where

import "base" Control.Concurrent.MVar
import Control.Monad
import Data.Bits
import "base" Data.IORef
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Data.List (elemIndex, find, group, sortOn)
import Data.Maybe (fromMaybe, isJust)
import Simulation.Machine (isInterrupted, start)
import Simulation.Memory (strongMemory)
import Simulation.World

-- Scenarios ------------------------------------------------------------------------------

-- | The choices of a run, in order. Each is an index: of a thread among those that could continue, or of an outcome of
-- 'choose'.
type Schedule = [Int]

-- | Threads, and a check of the state at the end, when no thread can continue. The check gets the numbers of
-- the threads that have not ended, and returns an error message if something is wrong. Each run creates a new scenario.
data Scenario = Scenario
  { scenarioThreads :: [IO ()],
    scenarioCheck :: [Int] -> IO (Maybe String)
  }

-- | The result of one run.
data Outcome = Outcome
  { outcomeFault :: Maybe String,
    -- | Choices, each with the number of possibilities.
    outcomeChoices :: [(Int, Int)],
    outcomeMoves :: [Move],
    -- | The steps as lines of text, in order.
    outcomeStory :: [String],
    -- | Whether the run found a shared object that was not known to be shared ('learnt').
    outcomeLearnt :: Bool,
    -- | Whether the steering ended the run early, because it would have repeated another one.
    outcomeCut :: Bool
  }

-- | One step of a run.
data Move
  = -- | A thread ran. Fields: the thread that ran before ('nobody' if there was none, 'gaveWay' of it if it yielded),
    -- the threads that could continue with their next steps, and the one that was chosen.
    Ran !Int [(Int, Access)] !Int
  | -- | A 'choose': the number of possible outcomes, and the one that was chosen.
    Answered !Int !Int

-- Running ---------------------------------------------------------------------------------

-- | How to choose. 'steerThread' gets the thread that ran before and the threads that can continue, with the next
-- step of each; 'Nothing' ends the run. 'steerAnswer' gets the number of possible outcomes.
data Steering = Steering
  { steerThread :: Int -> [(Int, Access)] -> IO (Maybe Int),
    steerAnswer :: Int -> IO Int
  }

-- | Follow the schedule to its end, and then make the ordinary choices ('ordered').
followed :: Schedule -> IO Steering
followed schedule = do
  rest <- newIORef schedule
  let next ordinary n = do
        left <- readIORef rest
        case left of
          [] -> pure ordinary
          c : cs -> (c `mod` n) <$ writeIORef rest cs
  pure
    Steering
      { steerThread = \before able -> Just . fst . (able !!) <$> next (onward before able) (length able),
        steerAnswer = next 0
      }

-- | Run a scenario by a schedule and, after the schedule's end, by the ordinary choices.
runSchedule :: IO Scenario -> Schedule -> IO Outcome
runSchedule make schedule = do
  writeIORef learnt IntSet.empty
  settled (followed schedule >>= run make)

-- | Repeat a run until it finds no more shared objects.
settled :: IO Outcome -> IO Outcome
settled act = act >>= \o -> if outcomeLearnt o then settled act else pure o

-- | The number of steps after which a run fails because the scenario does not come to rest.
mostSteps :: Int
mostSteps = 20000

-- | One run. The shared objects that it finds are in 'learnt' afterwards.
run :: IO Scenario -> Steering -> IO Outcome
run make steering = do
  known <- readIORef learnt
  agentsRef <- newIORef []
  back <- newEmptyMVar
  w <- World agentsRef back <$> newIORef 0 <*> newIORef False <*> pure known <*> newIORef IntMap.empty <*> newIORef 0 <*> newIORef [] <*> newIORef strongMemory <*> newIORef 0 <*> newIORef Nothing
  modifyIORef' runsMade (+ 1)
  writeIORef current (SettingUp w)
  scenario <- make
  zipWithM (start w) [0 ..] (scenarioThreads scenario) >>= writeIORef agentsRef
  (moves, cut) <- steps w steering
  let tooLong = length moves >= mostSteps
  stuck <- readIORef agentsRef >>= filterM (fmap isJust . readIORef . agentWaits)
  writeIORef current Outside
  fault <- case () of
    _
      | cut -> pure Nothing
      | tooLong -> pure (Just "it does not come to rest")
      | otherwise -> scenarioCheck scenario (map agentNumber stuck)
  broke <- readIORef (worldFailure w)
  writeIORef current Over
  forM_ stuck (\a -> putMVar (agentGo a) () >> takeMVar back)
  writeIORef current Outside
  used <- readIORef (worldUsed w)
  let new = IntSet.fromList [x | (x, who) <- IntMap.toList used, severally who] `IntSet.difference` known
  modifyIORef' learnt (IntSet.union new)
  story <- collapse . reverse <$> readIORef (worldStory w)
  pure
    Outcome
      { outcomeFault = maybe fault Just broke,
        outcomeChoices = map choiceOf (reverse moves),
        outcomeMoves = reverse moves,
        outcomeStory = story,
        outcomeLearnt = not (IntSet.null new),
        outcomeCut = cut
      }
  where
    -- At least two threads used it, and one of them wrote.
    severally who =
      let users = [i | i <- [0 .. 30 :: Int], who .&. (3 `shiftL` (2 * i)) /= 0]
       in who == 15 || (length users > 1 && who .&. 0x2aaaaaaaaaaaaaaa /= 0)

-- | Merge repeated lines into one, with the number of repetitions.
collapse :: [String] -> [String]
collapse ls = [if n == 1 then l else l <> " (" <> show n <> " times)" | same@(l : _) <- group ls, let n = length same]

choiceOf :: Move -> (Int, Int)
choiceOf (Ran _ able chosen) = (fromMaybe 0 (elemIndex chosen (map fst able)), length able)
choiceOf (Answered n given) = (given, n)

-- | The number that stands for the clock.
clock :: Int
clock = 99

-- | After this number of steps of one thread the ordinary choice is another thread, since the run-time system preempts
-- threads too.
slice :: Int
slice = 300

-- | The number that stands for the thread that ran before if there was none.
nobody :: Int
nobody = -1000

-- | The number that stands for the thread that ran before if that thread yielded.
gaveWay :: Int -> Int
gaveWay number = -2 - number

-- | Choose a thread and let it run, until none can continue. Returns the moves, newest first, and whether the steering
-- ended the run early.
steps :: World -> Steering -> IO ([Move], Bool)
steps w steering = go 0 nobody 0 []
  where
    go :: Int -> Int -> Int -> [Move] -> IO ([Move], Bool)
    go !alone before !n done
      | n >= mostSteps = pure (done, False)
      | otherwise = do
        time <- readIORef (worldTime w)
        agents <- readIORef (worldAgents w)
        stops <- forM agents (\a -> (,) a <$> readIORef (agentWaits a))
        let waiting = [(a, s) | (a, Just s) <- stops]
        ready <- filterM (canGo time) waiting
        patient <- readIORef (worldPatient w)
        let ahead = [stopUntil s | (_, s) <- waiting, stopUntil s > time, stopUntil s < maxBound]
            able = [(agentNumber a, stopAccess s) | (a, s) <- ready] <> [(clock, Anything) | not (null ahead), not patient || null ready]
        choice <- if null able then pure Nothing else steerThread steering before able
        case choice of
          Nothing -> pure (done, not (null able))
          Just number
            | number == clock -> do
              let time' = minimum ahead
              writeIORef (worldTime w) time'
              modifyIORef (worldStory w) (("  clock          it is " <> show time' <> " ns") :)
              go 0 nobody (n + 1) (Ran before able number : done)
            | otherwise -> do
              let (agent, stop) = fromMaybe (error "Simulation.steps") (find ((== number) . agentNumber . fst) ready)
              modifyIORef (worldStory w) (("  thread " <> show number <> "     " <> stopWhat stop) :)
              writeIORef current (Inside w agent)
              putMVar (agentGo agent) ()
              answered <- untilStopped []
              let alone' = if number == before then alone + 1 else 0
              go alone' (if alone' >= slice || stopKind stop == Yields then gaveWay number else number) (n + 1) (answered <> (Ran before able number : done))
    untilStopped given = do
      asked <- takeMVar (worldBack w)
      case asked of
        Stopped -> pure given
        Which k answer -> do
          c <- steerAnswer steering k
          putMVar answer c
          untilStopped (Answered k c : given)
    canGo time (a, s)
      | stopUntil s <= time = pure True
      | otherwise = (||) <$> stopReady s <*> isInterrupted a s

-- The ordinary choice ------------------------------------------------------------------------

-- | The possible threads in order of preference: the thread that ran before, the others, one that yielded, the
-- clock. The first one is the ordinary choice.
ordered :: Int -> [(Int, Access)] -> [(Int, Access)]
ordered before = sortOn (rank . fst)
  where
    rank t
      | t == before = 0 :: Int
      | t == gaveWay before = 2
      | t == clock = 3
      | otherwise = 1

-- | The index of the ordinary choice.
onward :: Int -> [(Int, Access)] -> Int
onward before able = case ordered before able of
  (t, _) : _ -> fromMaybe 0 (elemIndex t (map fst able))
  [] -> 0
