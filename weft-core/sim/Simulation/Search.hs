{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE PackageImports #-}

-- |
-- Searches: a scenario is run under many schedules, either all up to a bound or a number that a seed determines, until
-- one fails. A failing schedule can be run again or shortened.
module Simulation.Search
  ( -- * Searches
    Explored (..),
    explore,
    exploreWithin,
    exploreReduced,
    sample,
    seeded,

    -- * What was found
    replay,
    shorten,
  )
where

import Control.Monad
import Data.Bits
import "base" Data.IORef
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Data.Maybe (fromMaybe, isJust, isNothing)
import Data.Word (Word64)
import Simulation.Run
import Simulation.World

-- Searches -------------------------------------------------------------------------------

-- | The result of a search.
data Explored
  = -- | No schedule fails. The number of runs.
    AllHold Int
  | -- | A schedule that fails, the error, and the number of runs.
    Broken Schedule String Int
  deriving (Eq, Show)

-- | Run every schedule of a scenario until one fails. Of schedules that differ only in the order of independent steps,
-- one is run (sleep sets, Godefroid 1996).
explore :: IO Scenario -> IO Explored
explore = search maxBound True

-- | Run every schedule that departs from the ordinary one at most the given number of times (delay bounding: Emmi,
-- Qadeer and Rakamaric 2011). In the ordinary schedule, a thread continues until it blocks or has run for long, then
-- the first one that can continue runs; and the kernel makes its ordinary choices. A few departures are enough to find
-- most faults. The number of schedules grows with the length of the threads to the power of the bound, not
-- exponentially. The search is complete within the bound.
exploreWithin :: Int -> IO Scenario -> IO Explored
exploreWithin bound = search bound False

-- | 'exploreWithin' with sleep sets: of schedules that differ only in the order of independent steps, one is run if it
-- is within the bound. An equivalent schedule may have fewer departures than the one that is chosen, so some schedules
-- within the bound are left out. In exchange, a larger bound can be searched in the same time.
exploreReduced :: Int -> IO Scenario -> IO Explored
exploreReduced bound = search bound True

-- | A step of the run that the search repeats, with the alternatives that have been searched.
data Node = Node
  { nodeMove :: Move,
    -- | The threads that were chosen here before.
    nodeDone :: [Int],
    -- | The sleep set: threads whose next step was searched elsewhere, with that step's access.
    nodeAsleep :: [(Int, Access)]
  }

search :: Int -> Bool -> IO Scenario -> IO Explored
search bound reduce make = do
  writeIORef learnt IntSet.empty
  go [] 0
  where
    -- The prefix is repeated, oldest step first; its last node has the new choice.
    go prefix !n = do
      asleep <- newIORef []
      left <- newIORef prefix
      nodes <- newIORef []
      let record node = modifyIORef nodes (node :)
          thread before able = do
            todo <- readIORef left
            sleeping <- readIORef asleep
            (node, chosen) <- case todo of
              node : rest | Ran _ _ c <- nodeMove node -> do
                writeIORef left rest
                pure (node {nodeMove = Ran before able c, nodeAsleep = sleeping}, Just c)
              _ -> do
                let awake = [t | t <- able, fst t `notElem` map fst sleeping]
                    order = ordered before (if reduce then awake else able)
                    c = case order of (t, _) : _ -> Just t; [] -> Nothing
                pure (Node (Ran before able (fromMaybe 0 c)) [] sleeping, c)
            forM_ chosen $ \c -> do
              record node
              let did = fromMaybe Anything (lookup c able)
                  candidates = sleeping <> [(t, a) | (t, a) <- able, t `elem` nodeDone node]
              when reduce $ writeIORef asleep [(t, a) | (t, a) <- candidates, t /= c, independent a did]
            pure chosen
          answer k = do
            todo <- readIORef left
            case todo of
              node : rest | Answered _ c <- nodeMove node -> c <$ (writeIORef left rest >> record node)
              _ -> 0 <$ record (Node (Answered k 0) [] [])
      outcome <- run make (Steering thread answer)
      path <- readIORef nodes
      if outcomeLearnt outcome
        then go [] (n + 1)
        else case outcomeFault outcome of
          Just why -> pure (Broken (map fst (outcomeChoices outcome)) why (n + 1))
          _ -> maybe (pure (AllHold (n + 1))) (`go` (n + 1)) (backtrack (sum (map nodeCost path)) path)
    -- Newest node first; the number is the departures of all of them.
    backtrack :: Int -> [Node] -> Maybe [Node]
    backtrack _ [] = Nothing
    backtrack cost (node : earlier) = case alternative before node of
      Just node' -> Just (reverse (node' : earlier))
      Nothing -> backtrack before earlier
      where
        !before = cost - nodeCost node
    nodeCost = costOf . nodeMove
    alternative cost (Node move done sleeping) = case move of
      Answered k c | c + 1 < k && cost + 1 <= bound -> Just (Node (Answered k (c + 1)) done sleeping)
      Answered _ _ -> Nothing
      Ran before able c ->
        let done' = c : done
            fresh = [t | (t, _) <- ordered before able, t `notElem` done', not reduce || t `notElem` map fst sleeping]
            dear t = fromEnum (interrupts before able t)
         in case [t | t <- fresh, cost + dear t <= bound] of
              t : _ -> Just (Node (Ran before able t) done' sleeping)
              [] -> Nothing

costOf :: Move -> Int
costOf (Answered _ c) = fromEnum (c > 0)
costOf (Ran before able c) = fromEnum (interrupts before able c)

-- | Whether choosing the thread is a departure from the ordinary choice.
interrupts :: Int -> [(Int, Access)] -> Int -> Bool
interrupts before able c = case ordered before able of
  (t, _) : _ -> c /= t
  [] -> False

-- | Run random schedules: the first number is the first seed, the second the number of seeds. Equal seeds make equal
-- choices. Of four seeds in a row, one chooses among the threads with equal probability at each step, one mostly
-- continues with the same thread, and two run the threads by random priorities ('byPriority').
sample :: Int -> Int -> IO Scenario -> IO Explored
sample seed runs make = ordinaryRun make >>= go 0
  where
    go !n ordinary
      | n >= runs = pure (AllHold n)
      | otherwise = do
        outcome <- seededFrom ordinary (seed + n) make
        case outcomeFault outcome of
          Just why -> pure (Broken (map fst (outcomeChoices outcome)) why (n + 1))
          Nothing -> go (n + 1) ordinary

-- | What random schedules take from the ordinary one.
data Ordinary = Ordinary
  { -- | The shared objects that it finds. The run of each seed begins with them.
    ordinaryShared :: IntSet.IntSet,
    -- | The number of steps of each thread, and of the clock.
    ordinarySteps :: [(Int, Int)]
  }

ordinaryRun :: IO Scenario -> IO Ordinary
ordinaryRun make = do
  outcome <- runSchedule make []
  shared <- readIORef learnt
  pure (Ordinary shared (IntMap.toList (IntMap.fromListWith (+) [(t, 1) | Ran _ _ t <- outcomeMoves outcome])))

-- | Run the schedule of a seed. It does not depend on earlier searches.
seeded :: Int -> IO Scenario -> IO Outcome
seeded seed make = ordinaryRun make >>= \ordinary -> seededFrom ordinary seed make

seededFrom :: Ordinary -> Int -> IO Scenario -> IO Outcome
seededFrom ordinary seed make = (writeIORef learnt (ordinaryShared ordinary) >>) . settled $ do
  state <- newIORef (fromIntegral seed)
  let draw :: Int -> IO Int
      draw k = do
        modifyIORef' state (+ 0x9e3779b97f4a7c15)
        drawn <- mixed <$> readIORef state
        pure (fromIntegral (drawn `mod` fromIntegral k))
      evenly _ able = fst . (able !!) <$> draw (length able)
      rarely before able = do
        stay <- (> 0) <$> draw 8
        if stay then pure (fst (able !! onward before able)) else evenly before able
      answer k = do
        usual <- (> 0) <$> draw 4
        if usual then pure 0 else draw k
  thread <- case seed `mod` 4 of
    0 -> pure rarely
    1 -> pure evenly
    _ -> byPriority draw (ordinarySteps ordinary) evenly
  run make (Steering (\before able -> Just <$> thread before able) answer)

-- | The output function of SplitMix (Steele, Lea and Flood 2014). The seeds of a search are consecutive numbers, and
-- their choices have to be independent.
mixed :: Word64 -> Word64
mixed = times 31 1 . times 27 0x94d049bb133111eb . times 30 0xbf58476d1ce4e5b9
  where
    times by factor z = (z `xor` shiftR z by) * factor

-- | Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi and Nagarakatte 2010): each thread has a random
-- priority, and the thread of the highest priority runs. At one to three change points the priority of the running
-- thread is lowered, below all that has not been lowered. So a thread may stand still for as long as others can
-- continue, which the other random schedules reach with a probability that falls exponentially with the number of their
-- steps.
--
-- Differences from the paper:
--
--  * A change point is a random step of a random thread, not a random step of the run: a short thread is stopped
--    between two given steps as easily if others take many steps.
--  * A thread that yields, or has run for long ('gaveWay'), gets the lowest priority, so a thread that polls does not
--    keep the others from what it waits for.
--  * After three times as many steps as the ordinary schedule has, the choice is that of the last argument, since
--    threads that wake each other for ever would keep a third one from ending them.
--
-- The first two arguments draw a number below the given one, and are the number of steps of each thread.
byPriority :: (Int -> IO Int) -> [(Int, Int)] -> (Int -> [(Int, Access)] -> IO Int) -> IO (Int -> [(Int, Access)] -> IO Int)
byPriority draw lengths afterwards = do
  points <-
    draw 3 >>= \more -> forM [0 .. more] $ \level -> do
      (thread, len) <- (lengths !!) <$> draw (length lengths)
      -- In another schedule the thread may take more steps.
      at <- (+ 1) <$> draw (len + len `div` 4)
      pure ((thread, at), level)
  priorities <- newIORef IntMap.empty
  taken <- newIORef IntMap.empty
  lowest <- newIORef (0 :: Int)
  total <- newIORef (0 :: Int)
  let demote t = do
        modifyIORef' lowest (subtract 1)
        readIORef lowest >>= modifyIORef' priorities . IntMap.insert t
      -- Above the levels of the change points.
      meet t = do
        known <- IntMap.member t <$> readIORef priorities
        unless known $ draw 1000000 >>= modifyIORef' priorities . IntMap.insert t . (+ length points)
      highest able = do
        known <- readIORef priorities
        pure (snd (maximum [(known IntMap.! t, t) | (t, _) <- able]))
      choose before able = do
        mapM_ (meet . fst) able
        forM_ [t | (t, _) <- able, t == gaveWay before] demote
        t <- highest able
        steps <- maybe 1 (+ 1) . IntMap.lookup t <$> readIORef taken
        modifyIORef' taken (IntMap.insert t steps)
        forM_ (lookup (t, steps) points) (modifyIORef' priorities . IntMap.insert t)
        pure t
  pure $ \before able -> do
    n <- readIORef total
    writeIORef total $! n + 1
    if n < 3 * sum (map snd lengths) then choose before able else afterwards before able

-- What was found ------------------------------------------------------------------------------

-- | Run a schedule that the last search found. It uses the shared objects found by that search, on which the meaning
-- of a schedule depends.
replay :: IO Scenario -> Schedule -> IO Outcome
replay make schedule = followed schedule >>= unlearning . run make

-- | Restore 'learnt' after the action.
unlearning :: IO a -> IO a
unlearning act = do
  known <- readIORef learnt
  act <* writeIORef learnt known

-- | A failing schedule with fewer departures from the ordinary one, up to the last of them. It undoes the departures
-- one after the other. Like 'replay', it is for a schedule that the last search found.
shorten :: IO Scenario -> Schedule -> IO Schedule
shorten make found = do
  outcome <- replay make found
  if isNothing (outcomeFault outcome) then pure found else go (trimmed outcome) (deviations outcome) 1000
  where
    -- Without the ordinary choices at the end, which a run makes by itself.
    trimmed o = take (1 + maximum (-1 : map fst (deviations o))) (map fst (outcomeChoices o))
    -- The choices that are not the ordinary ones, by step.
    deviations o = [(i, fst (choiceOf m)) | (i, m) <- zip [0 :: Int ..] (outcomeMoves o), not (ordinary m)]
    ordinary (Answered _ c) = c == 0
    ordinary (Ran before able c) = Just c == fmap fst (headOf (ordered before able))
    headOf = foldr (const . Just) Nothing
    go best devs budget = do
      shorter <- firstThat devs [rest | i <- [0 .. length devs - 1], let { rest = take i devs <> drop (i + 1) devs }] budget
      case shorter of
        Just (best', devs', left) -> go best' devs' left
        Nothing -> pure best
    firstThat _ [] _ = pure Nothing
    firstThat devs (rest : others) budget
      | budget <= (0 :: Int) = pure Nothing
      | otherwise = do
        o <- steered rest
        let devs' = deviations o
        if isJust (outcomeFault o) && length devs' < length devs
          then pure (Just (trimmed o, devs', budget - 1))
          else firstThat devs others (budget - 1)
    steered devs = do
      at <- newIORef (0 :: Int)
      let next = readIORef at <* modifyIORef' at (+ 1)
          thread before able = do
            i <- next
            let c = maybe (onward before able) (`mod` length able) (lookup i devs)
            pure (Just (fst (able !! c)))
          answer k = do
            i <- next
            pure (maybe 0 (`mod` k) (lookup i devs))
      unlearning (run make (Steering thread answer))
