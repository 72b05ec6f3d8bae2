{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE RankNTypes #-}

-- |
-- A scheduler for tests. Threads are real threads of which one runs at a time: each
-- stops before every operation on shared state ("Weft.Sys" of this directory, and the kernel of "Kernel") until
-- it is chosen. A schedule is the list of choices made; a search runs a scenario under many schedules, by
-- running it anew for each.
--
-- Time is virtual: it stands still until the scheduler lets it go on to the next instant for which somebody waits. So
-- the clock is one more thread, and may be chosen while others could go on, which are slow then.
--
-- To keep schedules short, only operations on objects that several threads use, of which one writes, are scheduling
-- points. Which these are is learnt: an object that turns out to be shared starts the search anew.
--
-- One simulation at a time in a process.
module Simulation
  ( -- * Running
    Scenario (..),
    Outcome (..),
    Schedule,
    runSchedule,
    replay,
    seeded,

    -- * Searches
    Explored (..),
    explore,
    exploreWithin,
    exploreReduced,
    sample,
    shorten,

    -- * For the simulated machine
    Object,
    newObject,
    newObjects,
    Access (..),
    kernelObject,
    point,
    touch,
    blockUntil,
    blockOn,
    blockInKernel,
    giveWay,
    choose,
    note,
    virtualTime,

    -- * Threads and exceptions
    Masking (..),
    currentThread,
    threadEnded,
    throwTo',
    throwSoon,
    postpone,
    withMasking,
    getMasking,
    catching,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Bits
import Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Data.List (elemIndex, find, foldl', group, sortOn)
import Data.Maybe (fromMaybe, isJust, isNothing)
import System.IO.Unsafe (unsafePerformIO)

-- | At each step, which of the threads that could go on did, or which answer 'choose' gave: counted from zero.
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
    -- | Choices, each with the number of possibilities.
    outcomeChoices :: [(Int, Int)],
    outcomeMoves :: [Move],
    -- | What happened, to be read.
    outcomeStory :: [String],
    -- | Did an object turn out to be shared that was not known to be?
    outcomeLearnt :: Bool,
    -- | Was it ended early, as it would have repeated another?
    outcomeCut :: Bool
  }

-- | What became of a search.
data Explored
  = -- | Every schedule was run; so many.
    AllHold Int
  | -- | This schedule, after so many, breaks the scenario.
    Broken Schedule String Int
  deriving (Eq, Show)

-- | One step of a run.
data Move
  = -- | The thread that ran before (-1 for none, or one that gave way), those that could go on with what each does
    -- next, and the one that did.
    Ran !Int [(Int, Access)] !Int
  | -- | How many answers there were, and which was given.
    Answered !Int !Int

-- | Something that threads share: its number within a run.
type Object = Int

-- | What an operation does, for telling whether two of them can be exchanged without any difference.
data Access
  = Reads !Object
  | Writes !Object
  | -- | Cannot be exchanged with anything.
    Anything
  deriving (Eq, Show)

-- | All that the kernel knows: one object, which is shared.
kernelObject :: Object
kernelObject = 1

-- | Can the two be exchanged?
independent :: Access -> Access -> Bool
independent (Reads _) (Reads _) = True
independent a b = case (objectOf a, objectOf b) of
  (Just x, Just y) -> x /= y
  _ -> False

objectOf :: Access -> Maybe Object
objectOf (Reads x) = Just x
objectOf (Writes x) = Just x
objectOf Anything = Nothing

-- | Which asynchronous exceptions a thread lets in.
data Masking = AllIn | WhereItBlocks | NoneIn
  deriving (Eq, Ord, Show)

-- | A simulated thread, as the scheduler sees it.
data Agent = Agent
  { agentNumber :: !Int,
    agentGo :: MVar (),
    -- | Before what it has stopped; 'Nothing' when it has ended.
    agentWaits :: IORef (Maybe Stop),
    agentMasking :: IORef Masking,
    agentPending :: IORef [SomeException],
    -- | How many objects it has made.
    agentMade :: IORef Int
  }

-- | Where a thread has stopped.
data Stop = Stop
  { -- | Can it go on?
    stopReady :: IO Bool,
    -- | Or can it from that virtual instant on?
    stopUntil :: !Int64,
    stopAccess :: !Access,
    stopWhat :: String,
    stopKind :: !Kind
  }

data Kind
  = -- | An operation.
    Runs
  | -- | An operation after which others should run first.
    Yields
  | -- | It may block, and is interruptible then.
    Blocks
  | -- | It may block, in the kernel, where nobody interrupts it.
    BlocksInKernel
  deriving (Eq)

-- | One run.
data World = World
  { worldAgents :: IORef [Agent],
    worldBack :: MVar Asked,
    worldTime :: IORef Int64,
    -- | Objects that are known to be shared, and threads that are known to be thrown at (negative).
    worldShared :: !IntSet.IntSet,
    -- | Who used the others: two bits for each thread.
    worldUsed :: IORef (IntMap.IntMap Int),
    worldSetUp :: IORef Int,
    -- | Newest first.
    worldStory :: IORef [String]
  }

-- | Why a thread gives control back.
data Asked = Stopped | Which !Int (MVar Int)

data Running
  = Outside
  | SettingUp World
  | Inside World Agent
  | -- | The run is over: whoever comes is to end.
    Over

-- | Written by the scheduler before it lets an agent go on.
current :: IORef Running
current = unsafePerformIO (newIORef Outside)
{-# NOINLINE current #-}

-- | What is known to be shared in the scenario that is searched.
learnt :: IORef IntSet.IntSet
learnt = unsafePerformIO (newIORef IntSet.empty)
{-# NOINLINE learnt #-}

-- | Ends the threads of a run that is over.
data RunIsOver = RunIsOver
  deriving (Show)

instance Exception RunIsOver

-- For the simulated machine ---------------------------------------------------------

-- | A new object's number: the same in every run that came to this place the same way.
newObject :: IO Object
newObject = newObjects 1

-- | So many; the first one's number, which is 64 less than the next one's.
newObjects :: Int -> IO Object
newObjects count = do
  running <- readIORef current
  case running of
    SettingUp w -> bump (worldSetUp w) 0
    Inside _ a -> bump (agentMade a) (agentNumber a + 1)
    _ -> pure 0
  where
    bump ref who = do
      n <- readIORef ref
      writeIORef ref (n + count)
      pure (64 * (n + 1) + who)

-- | Let the scheduler choose. No effect outside a simulation.
point :: IO ()
point = touch Anything "goes on"

-- | Before an operation that never blocks.
touch :: Access -> String -> IO ()
touch = stopAt Runs (pure True) maxBound

-- | Before an operation after which others are to run.
giveWay :: IO ()
giveWay = stopAt Yields (pure True) maxBound Anything "yields"

-- | Stop until the condition holds and the scheduler chooses this thread; nothing
-- happens between that and what the caller does next.
blockUntil :: IO Bool -> IO ()
blockUntil ready = blockOn ready Anything "waits"

-- | The same, with what the operation does. Interruptible while the condition does not hold.
blockOn :: IO Bool -> Access -> String -> IO ()
blockOn ready = stopAt Blocks ready maxBound

-- | The same for a system call, which is not interruptible and may end at an instant.
blockInKernel :: IO Bool -> Int64 -> Access -> String -> IO ()
blockInKernel = stopAt BlocksInKernel

stopAt :: Kind -> IO Bool -> Int64 -> Access -> String -> IO ()
stopAt kind ready end access what = do
  running <- readIORef current
  case running of
    Over -> throwIO RunIsOver
    Inside w a -> do
      seen <- visible w a
      ok <- if seen then pure False else ready
      unless ok $ do
        writeIORef (agentWaits a) (Just (Stop ready end access what kind))
        putMVar (worldBack w) Stopped
        takeMVar (agentGo a)
        over <- isOver
        when over (throwIO RunIsOver)
        interrupted <- isInterrupted a (Stop ready end access what kind)
        when interrupted (raisePending a)
    _ -> pure ()
  where
    isOver = (\r -> case r of Over -> True; _ -> False) <$> readIORef current
    -- An operation on what nobody else uses is no scheduling point.
    visible w a = case objectOf access of
      Nothing -> pure True
      Just x
        | x == kernelObject || IntSet.member x (worldShared w) -> pure True
        | otherwise -> do
          let mark = bit (2 * agentNumber a + case access of Reads _ -> 0; _ -> 1)
          modifyIORef' (worldUsed w) (IntMap.insertWith (.|.) x mark)
          open <- (== AllIn) <$> readIORef (agentMasking a)
          pure (open && IntSet.member (victim (agentNumber a)) (worldShared w))

-- | Stands for a thread that is thrown at.
victim :: Int -> Int
victim n = negate (n + 1)

isInterrupted :: Agent -> Stop -> IO Bool
isInterrupted a s = do
  pending <- not . null <$> readIORef (agentPending a)
  masking <- readIORef (agentMasking a)
  if not pending
    then pure False
    else case (masking, stopKind s) of
      (_, BlocksInKernel) -> pure False
      (AllIn, _) -> pure True
      (WhereItBlocks, Blocks) -> not <$> stopReady s
      _ -> pure False

raisePending :: Agent -> IO ()
raisePending a = do
  pending <- readIORef (agentPending a)
  case pending of
    [] -> pure ()
    e : rest -> do
      writeIORef (agentPending a) rest
      note "takes the exception"
      throwIO e

-- | An answer of the surroundings, of that many: zero is the ordinary one.
choose :: Int -> IO Int
choose n = do
  running <- readIORef current
  case running of
    Inside w _ | n > 1 -> do
      answer <- newEmptyMVar
      putMVar (worldBack w) (Which n answer)
      takeMVar answer
    _ -> pure 0

-- | A line for the story.
note :: String -> IO ()
note text = do
  running <- readIORef current
  case running of
    Inside w a -> modifyIORef (worldStory w) (("  thread " <> show (agentNumber a) <> "       " <> text) :)
    _ -> pure ()

-- | The virtual clock.
virtualTime :: IO Int64
virtualTime = do
  running <- readIORef current
  case running of
    Inside w _ -> readIORef (worldTime w)
    SettingUp w -> readIORef (worldTime w)
    _ -> pure 0

-- Threads and exceptions --------------------------------------------------------------

-- | The number of the thread that runs, or -1.
currentThread :: IO Int
currentThread = (\r -> case r of Inside _ a -> agentNumber a; _ -> -1) <$> readIORef current

agentOf :: Int -> IO (Maybe (World, Agent))
agentOf n = do
  running <- readIORef current
  case running of
    Inside w _ -> fmap ((,) w) . find ((== n) . agentNumber) <$> readIORef (worldAgents w)
    _ -> pure Nothing

-- | Has it come to its end?
threadEnded :: Int -> IO Bool
threadEnded n = do
  point
  maybe (pure True) (fmap isNothing . readIORef . agentWaits . snd) =<< agentOf n

-- | Throw at another thread, and wait until it has taken the exception, or ended.
throwTo' :: Int -> SomeException -> IO ()
throwTo' n e = do
  throwSoon n e
  target <- agentOf n
  forM_ target $ \(_, a) ->
    blockOn
      ((||) <$> (null <$> readIORef (agentPending a)) <*> (isNothing <$> readIORef (agentWaits a)))
      Anything
      "waits until the exception is taken"

-- | Throw at another thread, and do not wait.
throwSoon :: Int -> SomeException -> IO ()
throwSoon n e = do
  touch Anything ("throws at thread " <> show n)
  target <- agentOf n
  forM_ target $ \(w, a) -> do
    modifyIORef' (worldUsed w) (IntMap.insert (victim n) 15)
    ended <- isNothing <$> readIORef (agentWaits a)
    unless ended (modifyIORef' (agentPending a) (<> [e]))

-- | The running thread is to get the exception when exceptions are next let in.
postpone :: SomeException -> IO ()
postpone e = currentThread >>= agentOf >>= mapM_ (\(_, a) -> modifyIORef' (agentPending a) (<> [e]))

getMasking :: IO Masking
getMasking = currentThread >>= agentOf >>= maybe (pure AllIn) (readIORef . agentMasking . snd)

setMasking :: Masking -> IO ()
setMasking m = do
  found <- currentThread >>= agentOf
  forM_ found $ \(_, a) -> do
    writeIORef (agentMasking a) m
    when (m == AllIn) (raisePending a)

-- | Run an action in that state; it is set back afterwards, and a pending exception then arrives.
withMasking :: Masking -> IO a -> IO a
withMasking m act = do
  before <- getMasking
  setMasking m
  a <- act
  a <$ setMasking before

-- | Catch, as the run-time system does: the handler runs masked.
catching :: IO a -> (SomeException -> IO a) -> IO a
catching act handler = do
  before <- getMasking
  act `catch` \e -> case fromException e of
    Just RunIsOver -> throwIO e
    Nothing -> do
      found <- currentThread >>= agentOf
      forM_ found (\(_, a) -> writeIORef (agentMasking a) (max WhereItBlocks before))
      r <- handler e
      r <$ setMasking before

-- Running -------------------------------------------------------------------------------

-- | How a run is steered: the thread that ran before and those that can go on, with what they do; or the number of
-- answers. 'Nothing' ends the run, as it would repeat another.
data Steering = Steering
  { steerThread :: Int -> [(Int, Access)] -> IO (Maybe Int),
    steerAnswer :: Int -> IO Int
  }

-- | Follow the schedule as far as it goes and then go on with the thread that ran last, or the first that can.
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

-- | Where in the list the thread is that goes on ordinarily.
onward :: Int -> [(Int, Access)] -> Int
onward before able = case ordered before able of
  (t, _) : _ -> fromMaybe 0 (elemIndex t (map fst able))
  [] -> 0

-- | Run a scenario, following the schedule as far as it goes and then without interrupting a thread.
runSchedule :: IO Scenario -> Schedule -> IO Outcome
runSchedule make schedule = do
  writeIORef learnt IntSet.empty
  settled' (followed schedule >>= run make)

-- | Run one, again and again until nothing new is learnt.
settled' :: IO Outcome -> IO Outcome
settled' act = act >>= \o -> if outcomeLearnt o then settled' act else pure o

-- | The longest run: a scenario that goes on beyond does not come to rest.
mostSteps :: Int
mostSteps = 20000

run :: IO Scenario -> Steering -> IO Outcome
run make steering = do
  known <- readIORef learnt
  agentsRef <- newIORef []
  back <- newEmptyMVar
  w <- World agentsRef back <$> newIORef 0 <*> pure known <*> newIORef IntMap.empty <*> newIORef 0 <*> newIORef []
  writeIORef current (SettingUp w)
  scenario <- make
  failure <- newIORef Nothing
  agents <- zipWithM (start w failure) [0 ..] (scenarioThreads scenario)
  writeIORef agentsRef agents
  (moves, cut) <- steps w agents steering
  let tooLong = length moves >= mostSteps
  stuck <- filterM (fmap isJust . readIORef . agentWaits) agents
  writeIORef current Outside
  fault <- case () of
    _
      | cut -> pure Nothing
      | tooLong -> pure (Just "it does not come to rest")
      | otherwise -> scenarioCheck scenario (map agentNumber stuck)
  broke <- readIORef failure
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
    -- Several threads used it, and one of them changed it.
    severally who =
      let users = [i | i <- [0 .. 30 :: Int], who .&. (3 `shiftL` (2 * i)) /= 0]
       in who == 15 || (length users > 1 && who .&. 0x2aaaaaaaaaaaaaaa /= 0)

-- | Lines that are repeated, once.
collapse :: [String] -> [String]
collapse ls = [if n == 1 then l else l <> " (" <> show n <> " times)" | same@(l : _) <- group ls, let n = length same]

choiceOf :: Move -> (Int, Int)
choiceOf (Ran _ able chosen) = (fromMaybe 0 (elemIndex chosen (map fst able)), length able)
choiceOf (Answered n given) = (given, n)

start :: World -> IORef (Maybe String) -> Int -> IO () -> IO Agent
start w failure number body = do
  agent <-
    Agent number <$> newEmptyMVar
      <*> newIORef (Just (Stop (pure True) maxBound Anything "begins" Runs))
      <*> newIORef AllIn
      <*> newIORef []
      <*> newIORef 0
  _ <- mask_ . forkIO $ do
    takeMVar (agentGo agent)
    over <- readIORef current
    case over of
      Over -> pure ()
      _ -> try body >>= either failed pure
    writeIORef (agentWaits agent) Nothing
    putMVar (worldBack w) Stopped
  pure agent
  where
    failed :: SomeException -> IO ()
    failed e
      | Just RunIsOver <- fromException e = pure ()
      | Just (SomeAsyncException _) <- fromException e = pure ()
      | otherwise = writeIORef failure (Just ("thread " <> show number <> " died: " <> show e))

-- | The number under which the clock is chosen.
clock :: Int
clock = 99

-- | After so many steps of one thread others are to run, as the run-time system sees to.
slice :: Int
slice = 300

-- | No thread ran before.
nobody :: Int
nobody = -1000

-- | This one did, and gave way.
gaveWay :: Int -> Int
gaveWay number = -2 - number

-- | Choose and run, until nobody can go on. The newest move comes first.
-- The second result: was it ended early?
steps :: World -> [Agent] -> Steering -> IO ([Move], Bool)
steps w agents steering = go 0 nobody 0 []
  where
    go :: Int -> Int -> Int -> [Move] -> IO ([Move], Bool)
    go !alone before !n done
      | n >= mostSteps = pure (done, False)
      | otherwise = do
        time <- readIORef (worldTime w)
        stops <- forM agents (\a -> (,) a <$> readIORef (agentWaits a))
        let waiting = [(a, s) | (a, Just s) <- stops]
        ready <- filterM (canGo time) waiting
        let ahead = [stopUntil s | (_, s) <- waiting, stopUntil s > time, stopUntil s < maxBound]
            able = [(agentNumber a, stopAccess s) | (a, s) <- ready] <> [(clock, Anything) | not (null ahead)]
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

-- Searches --------------------------------------------------------------------------------

-- | Run every schedule of a scenario that differs from the others in more than the order of steps that can be exchanged
-- (sleep sets, Godefroid 1996), or until one breaks it.
explore :: IO Scenario -> IO Explored
explore = search maxBound True

-- | Run every schedule that departs that often at most from the ordinary one, in which a thread goes on until it blocks,
-- or has run for long, and then the first that can does; and in which the kernel gives its ordinary answers (delay
-- bounding: Emmi, Qadeer and Rakamaric 2011). Few departures are enough for most faults, and the number of schedules grows
-- with the length of the threads to that power only, not exponentially. Nothing is left out within the bound.
exploreWithin :: Int -> IO Scenario -> IO Explored
exploreWithin bound = search bound False

-- | The same, with sleep sets: of schedules that differ in the order of steps that can be exchanged one is run, if it is within
-- the bound. Another of them may have fewer interruptions than the one that stands for it, so some that are within the
-- bound are left out: a larger bound in the same time.
exploreReduced :: Int -> IO Scenario -> IO Explored
exploreReduced bound = search bound True

-- | Where a search stands: a step, and which of its alternatives are done.
data Node = Node
  { nodeMove :: Move,
    -- | What was chosen before, and need not be again.
    nodeDone :: [Int],
    -- | Threads whose next step is covered elsewhere, with what they do.
    nodeAsleep :: [(Int, Access)]
  }

search :: Int -> Bool -> IO Scenario -> IO Explored
search bound reduce make = do
  writeIORef learnt IntSet.empty
  go [] 0
  where
    -- The nodes to be repeated, oldest first, the last one with its new choice.
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
          _ -> maybe (pure (AllHold (n + 1))) (`go` (n + 1)) (backtrack path)
    -- Newest node first.
    backtrack [] = Nothing
    backtrack (node : earlier) = case alternative (spent earlier) node of
      Just node' -> Just (reverse (node' : earlier))
      Nothing -> backtrack earlier
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
    spent = foldl' (\k node -> k + costOf (nodeMove node)) 0

costOf :: Move -> Int
costOf (Answered _ c) = fromEnum (c > 0)
costOf (Ran before able c) = fromEnum (interrupts before able c)

-- | Is choosing that thread a departure from the ordinary?
interrupts :: Int -> [(Int, Access)] -> Int -> Bool
interrupts before able c = case ordered before able of
  (t, _) : _ -> c /= t
  [] -> False

-- | The thread that ran before comes first, then the others; one that gave way comes last.
ordered :: Int -> [(Int, Access)] -> [(Int, Access)]
ordered before = sortOn (rank . fst)
  where
    rank t
      | t == before = 0 :: Int
      | t == gaveWay before = 2
      | t == clock = 3
      | otherwise = 1

-- | So many schedules that a seed determines. The same seed makes the same choices. Every other one interrupts
-- rarely.
sample :: Int -> Int -> IO Scenario -> IO Explored
sample seed runs make = do
  writeIORef learnt IntSet.empty
  go 0
  where
    go !n
      | n >= runs = pure (AllHold n)
      | otherwise = do
        outcome <- seeded (seed + n) make
        case outcomeFault outcome of
          Just why -> pure (Broken (map fst (outcomeChoices outcome)) why (n + 1))
          Nothing -> go (n + 1)

-- | The one schedule that a seed determines.
seeded :: Int -> IO Scenario -> IO Outcome
seeded seed make = settled' $ do
  state <- newIORef (scramble (scramble (seed * 2 + 1)))
  let draw k = do
        s <- readIORef state
        let s' = lcg s
        writeIORef state s'
        pure ((s' `div` 65536) `mod` k)
      rarely = even seed
      thread before able = do
        stay <- if rarely then (> 0) <$> draw 8 else pure False
        let order = ordered before able
        if stay then pure (Just (fst (firstOf order))) else Just . fst . (able !!) <$> draw (length able)
      answer k = do
        ordinary <- (> 0) <$> draw 4
        if ordinary then pure 0 else draw k
  run make (Steering thread answer)
  where
    firstOf (t : _) = t
    firstOf [] = error "Simulation.seeded"
    scramble = lcg . (+ 1013904223)
    lcg x = (x * 6364136223846793005 + 1442695040888963407) .&. 0x7fffffffffffffff

-- | Run a schedule that was found by a search or by 'sample' just now, knowing what that has learnt.
replay :: IO Scenario -> Schedule -> IO Outcome
replay make schedule = followed schedule >>= unlearning . run make

-- | Run it without learning anything.
unlearning :: IO a -> IO a
unlearning act = do
  known <- readIORef learnt
  act <* writeIORef learnt known

-- | A schedule with fewer interruptions that breaks the scenario too: they are taken back, one after the other, as long
-- as it does. To be used as 'replay'.
shorten :: IO Scenario -> Schedule -> IO Schedule
shorten make found = do
  outcome <- replay make found
  if isNothing (outcomeFault outcome) then pure found else go found (deviations outcome) 1000
  where
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
          then pure (Just (map fst (outcomeChoices o), devs', budget - 1))
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
