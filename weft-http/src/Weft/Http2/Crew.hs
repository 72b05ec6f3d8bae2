-- |
-- The threads of a connection: one of them receives, and they run jobs, in the order in which the jobs come, and are
-- kept for further jobs.
--
-- Jobs may wait for a long time, and nobody can see that a thread waits. So whenever a thread takes a job and leaves
-- others, another thread is on its way to take the next one. A job that does not wait is followed by the next one on
-- the same thread, and the other thread finds nothing. So a burst of jobs that do not wait costs two changes of
-- threads, whatever their number; and a job that waits delays none.
--
-- To receive is the duty of one thread at a time. Jobs come from what was received. The thread that has received leaves
-- the duty and runs them itself, if a thread that could take the duty is on its way: then what many connections have
-- received at once is served one connection after the other, and not first received from all, and a collection finds
-- the requests of one. If the jobs do not wait, the same thread receives again. If one waits, the other thread receives.
--
-- Invariants: if a job is pending, a thread is coming; if the duty is left, a thread that may take it is coming. The
-- moves of a thread:
--
-- @
--   Coming     woken or forked, has not looked yet               -> Receiving, Working, Resting, gone (as it looks)
--   Receiving  has the duty                                      -> Working (it leaves the duty, as it looks for a job)
--                                                                -> Working, Resting, gone (the duty is over)
--   Working    runs a job                                        -> Receiving, Working, Resting, gone (as it looks)
--                                                                -> gone (its run was cancelled)
--   Resting    waits to be woken                                 -> Coming (by whoever adds a job, or takes one and
--                                                                   leaves others; by 'endCrew')
-- @
--
-- All of this is one value that is changed by compare-and-swap. Any thread may use a crew.
--
-- A run is a job that can be cancelled. Its word:
--
-- @
--   Pending -> Running -> Done        by the thread that runs it
--   Pending -> Cancelled              it does not begin
--   Running -> Cancelled              'StreamCancelled' is thrown to its thread, which is not used again
-- @
module Weft.Http2.Crew
  ( -- * Crews
    Crew,
    newCrew,
    endCrew,
    awaitFewer,

    -- * The duty
    Duty (..),
    onDuty,

    -- * Jobs
    Job (..),
    addJobs,

    -- * Runs
    Run,
    newRun,
    cancelRun,
    isCancelled,
    answeredRun,
    StreamCancelled (..),
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isJust)
import Weft.Duration (Duration)
import Weft.Sys (WordArray, casWord, myCapability, newWordArray, readWord, writeWord)
import Weft.Sys.Label
import Weft.Timer (within)

-- | Thrown to the thread of a stream that was reset or whose connection has ended.
data StreamCancelled = StreamCancelled
  deriving (Show)

instance Exception StreamCancelled where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- Runs -------------------------------------------------------------------------------

-- | The state, and whether the stream's response has ended; the thread, written by that thread before it runs.
data Run = Run !WordArray !(IORef (Maybe ThreadId))

statePending, stateRunning, stateCancelled, stateDone :: Int
statePending = 0
stateRunning = 1
stateCancelled = 2
stateDone = 3

-- | A run that has not begun.
newRun :: IO Run
newRun = Run <$> newWordArray 2 <*> newIORef Nothing

-- | The response has ended. Clients may close the connection, or reset the stream, as soon as they have the end of the
-- response; so a run that is cancelled after that is given a second to return from the application.
answeredRun :: Run -> IO ()
answeredRun (Run cells _) = writeWord cells 1 1

-- | Cancel a run. Does not wait: an application that masks exceptions must not delay the connection.
cancelRun :: Run -> IO ()
cancelRun (Run cells thread) = do
  found <- casWord cells 0 statePending stateCancelled
  when (found == stateRunning) . void . forkIO $ do
    answered <- readWord cells 1
    when (answered /= 0) (threadDelay 1000000)
    running <- casWord cells 0 stateRunning stateCancelled
    when (running == stateRunning) (readIORef thread >>= mapM_ (`throwTo` StreamCancelled))

-- | Whether it was cancelled.
isCancelled :: Run -> IO Bool
isCancelled (Run cells _) = (== stateCancelled) <$> readWord cells 0

-- Crews ------------------------------------------------------------------------------

-- | What to do, masked, given the function that unmasks exceptions; and whether it counts for 'awaitFewer'.
data Job = Job
  { jobRun :: !Run,
    jobCounts :: !Bool,
    jobAct :: (IO () -> IO ()) -> IO ()
  }

-- | To receive once. It adds the jobs that come of it, and returns what remains of the duty, or 'Nothing' if it is over.
-- Masked.
newtype Duty = Duty (IO (Maybe Duty))

-- | Where the duty is.
data DutyState
  = -- | It has not begun, or is over.
    NoDuty
  | -- | A thread receives.
    DutyHeld
  | DutyLeft !Duty

-- | The threads of a connection, and the connection's capability.
data Crew = Crew !Int !(IORef State)

data State = State
  { -- | The jobs that are pending: the first ones, and the others with the last one first.
    stateFront :: [Job],
    stateBack :: [Job],
    -- | The threads that rest, in the order in which they are woken, and their number.
    stateResting :: [Worker],
    stateRests :: !Int,
    stateComing :: !Coming,
    stateDuty :: !DutyState,
    -- | All threads, and how many of them are at home.
    stateWorkers :: !(IntMap.IntMap Worker),
    stateHomes :: !Int,
    stateNext :: !Int,
    -- | The jobs that count, pending or running; and who waits until they are few.
    stateCounted :: !Int,
    stateWaiter :: !(Maybe (MVar ())),
    -- | Filled when the last thread has gone; there are no more jobs.
    stateEnd :: !(Maybe (MVar ()))
  }

-- | Whether a thread is coming, and whether it is at home.
data Coming = NobodyComes | HomeComes | OtherComes
  deriving (Eq)

-- | The run that a thread runs is written by the thread, and read by 'endCrew'.
data Worker = Worker
  { workerNumber :: !Int,
    -- | It stays on the connection's capability.
    workerHome :: !Bool,
    workerWake :: !(MVar ()),
    workerRun :: !(IORef (Maybe Run))
  }

-- | A crew without threads, for a connection of this capability.
newCrew :: IO Crew
newCrew = Crew <$> myCapability <*> newIORef (State [] [] [] 0 NobodyComes NoDuty IntMap.empty 0 0 0 Nothing Nothing)

-- | How many threads rest at most.
mostResting :: Int
mostResting = 16

-- | Who is to be woken; a new thread has a number, and may be one at home.
data Next = Nobody | Wake !Worker | Fork !Int !Bool

-- | So many threads stay on the connection's capability, and only these receive: one works while the other one may have
-- to receive. Forked anywhere, they would be second threads that are ready, which the run-time system gives to other
-- capabilities, with all that they touch. Further threads are there only if requests are concurrent; those may go where
-- there is room, so that a connection that many users share, as a proxy's, is not limited to one core.
mostAtHome :: Int
mostAtHome = 2

change :: Crew -> (State -> (State, a)) -> IO a
change (Crew _ ref) = atomicModifyIORef' ref

-- | Whether a job is pending.
hasJobs :: State -> Bool
hasJobs s = not (null (stateFront s) && null (stateBack s))

-- | Somebody has to come, if nobody does and there are jobs.
calling :: State -> (State, Next)
calling s
  | stateComing s /= NobodyComes || not (hasJobs s) = (s, Nobody)
  | w : rest <- stateResting s = (s {stateResting = rest, stateRests = stateRests s - 1, stateComing = comes (workerHome w)}, Wake w)
  | otherwise = forking s

-- | A new thread is to come.
forking :: State -> (State, Next)
forking s = (s {stateComing = comes home, stateNext = stateNext s + 1, stateHomes = if home then stateHomes s + 1 else stateHomes s}, Fork (stateNext s) home)
  where
    home = stateHomes s < mostAtHome

comes :: Bool -> Coming
comes home = if home then HomeComes else OtherComes

-- | Add jobs. They run in their order, as far as they do not wait. After 'endCrew' they are dropped.
addJobs :: Crew -> [Job] -> IO ()
addJobs _ [] = pure ()
addJobs crew jobs = mask_ (change crew add >>= call crew)
  where
    add s
      | isJust (stateEnd s) = (s, Nobody)
      | otherwise = calling s {stateBack = foldl (flip (:)) (stateBack s) jobs, stateCounted = stateCounted s + length (filter jobCounts jobs)}

call :: Crew -> Next -> IO ()
call crew@(Crew home _) next = case next of
  Nobody -> pure ()
  Wake w -> void (tryPutMVar (workerWake w) ())
  Fork n atHome -> do
    wake <- newEmptyMVar
    running <- newIORef Nothing
    entered <- change crew $ \s ->
      let !w = Worker n atHome wake running
       in if isJust (stateEnd s) then (s, Nothing) else (s {stateWorkers = IntMap.insert n w (stateWorkers s)}, Just w)
    forM_ entered $ \w -> do
      t <- (if atHome then forkOnWithUnmask home else forkIOWithUnmask) (\unmask -> work crew w True unmask)
      setLabel t streamLabel

-- | The label of the threads.
streamLabel :: Label
streamLabel = threadLabel "weft http/2 stream"

-- | Begin the duty, in a new thread. Once, before any job.
onDuty :: Crew -> Duty -> IO ()
onDuty crew duty = mask_ (change crew begin >>= call crew)
  where
    begin s
      | isJust (stateEnd s) = (s, Nobody)
      | otherwise = forking s {stateDuty = DutyLeft duty}

-- | What a thread finds as it looks.
data Found = Do !Job !Next | Receive !Duty !Next | Rest | Leave

work :: Crew -> Worker -> Bool -> (IO () -> IO ()) -> IO ()
work crew w arrives unmask = do
  found <- change crew (look w arrives)
  case found of
    Do job next -> do
      call crew next
      again <- perform crew w job unmask
      if again then work crew w False unmask else change crew (gone w) >>= leave
    Receive duty next -> do
      call crew next
      receive duty
      work crew w False unmask
    Rest -> rest >> work crew w True unmask
    Leave -> change crew (gone w) >>= leave
  where
    -- An exception that comes here is for a request that has long ended.
    rest = takeMVar (workerWake w) `catch` \e -> const rest (e :: SomeException)
    leave = mapM_ (`tryPutMVar` ())
    -- Until the duty is over, or was left.
    receive (Duty act) = do
      remains <- act
      left <- change crew (leaving remains)
      unless left (mapM_ receive remains)

-- | By the thread that has received: there are jobs for it, and another one that may receive is coming, so it leaves what
-- remains of the duty. Or the duty is over.
leaving :: Maybe Duty -> State -> (State, Bool)
leaving remains s = case remains of
  Just duty
    | isJust (stateEnd s) -> over
    | stateComing s == HomeComes && hasJobs s -> (s {stateDuty = DutyLeft duty}, True)
    | otherwise -> (s, False)
  Nothing -> over
  where
    over = (s {stateDuty = NoDuty}, True)

-- | A thread that arrives takes the duty first, so that requests that wait do not delay what comes; who has run a job
-- takes the next one first.
look :: Worker -> Bool -> State -> (State, Found)
look w arrives s0 = case stateDuty s of
  DutyLeft duty | workerHome w && (arrives || not (hasJobs s)) -> let (s', next) = calling s {stateDuty = DutyHeld} in (s', Receive duty next)
  _ -> case stateFront s of
    job : rest -> let (s', next) = calling s {stateFront = rest} in (s', Do job next)
    []
      | hasJobs s -> look w False s {stateFront = reverse (stateBack s), stateBack = []}
      | isJust (stateEnd s) || (stateRests s >= mostResting && not (workerHome w)) -> (s, Leave)
      | otherwise -> (s {stateResting = if workerHome w then w : stateResting s else stateResting s <> [w], stateRests = stateRests s + 1}, Rest)
  where
    s = if arrives then s0 {stateComing = NobodyComes} else s0

-- | The thread goes. Returns who waits for the last one.
gone :: Worker -> State -> (State, Maybe (MVar ()))
gone w s = (s {stateWorkers = workers, stateHomes = if workerHome w then stateHomes s - 1 else stateHomes s}, if IntMap.null workers then stateEnd s else Nothing)
  where
    workers = IntMap.delete (workerNumber w) (stateWorkers s)

-- | Run a job. Returns whether the thread can be used again.
perform :: Crew -> Worker -> Job -> (IO () -> IO ()) -> IO Bool
perform crew w (Job run@(Run cells thread) counts act) unmask = do
  self <- myThreadId
  writeIORef thread (Just self)
  writeIORef (workerRun w) (Just run)
  found <- casWord cells 0 statePending stateRunning
  -- 'endCrew' sets the end before it reads the run.
  ended <- let Crew _ ref = crew in isJust . stateEnd <$> readIORef ref
  when (found == statePending && not ended) (act unmask `catch` \e -> const (pure ()) (e :: SomeException))
  last' <- casWord cells 0 stateRunning stateDone
  writeIORef (workerRun w) Nothing
  when counts (change crew fewer >>= mapM_ (`tryPutMVar` ()))
  pure (found /= statePending || last' == stateRunning)
  where
    fewer s = (s {stateCounted = stateCounted s - 1, stateWaiter = Nothing}, stateWaiter s)

-- | Wait until there are fewer jobs that count than the number, or the crew has ended, for that time. 'False': there are
-- not. By one thread.
awaitFewer :: Crew -> Int -> Duration -> IO Bool
awaitFewer crew most limit = do
  few <- fewEnough Nothing
  if few then pure True else isJust <$> within limit wait
  where
    fewEnough waiter = change crew (\s -> if stateCounted s < most || isJust (stateEnd s) then (s, True) else (s {stateWaiter = waiter}, False))
    wait = do
      waiter <- newEmptyMVar
      few <- fewEnough (Just waiter)
      unless few (takeMVar waiter >> wait)

-- | End all threads: pending jobs do not begin, runs are cancelled, a duty that is left is dropped. Waits until all have
-- ended; so the connection has to be closed before, for the thread that receives.
endCrew :: Crew -> IO ()
endCrew crew = do
  over <- newEmptyMVar
  (workers, resting, waiter) <- change crew $ \s ->
    ( s {stateFront = [], stateBack = [], stateResting = [], stateRests = 0, stateEnd = Just over, stateWaiter = Nothing, stateDuty = dropped (stateDuty s)},
      (IntMap.elems (stateWorkers s), stateResting s, stateWaiter s)
    )
  mapM_ (\w -> tryPutMVar (workerWake w) ()) resting
  mapM_ (`tryPutMVar` ()) waiter
  forM_ workers (readIORef . workerRun >=> mapM_ cancelRun)
  unless (null workers) (readMVar over)
  where
    dropped duty = case duty of
      DutyLeft _ -> NoDuty
      _ -> duty
