-- |
-- The threads of a connection: they run jobs, in the order in which the jobs come, and are kept for further jobs.
--
-- Jobs may wait for a long time, and nobody can see that a thread waits. So whenever a thread takes a job and leaves
-- others, another thread is on its way to take the next one. A job that does not wait is followed by the next one on
-- the same thread, and the other thread finds nothing. So a burst of jobs that do not wait costs two changes of
-- threads, whatever their number; and a job that waits delays none.
--
-- Invariant: if a job is pending, a thread is coming. The moves of a thread:
--
-- @
--   Coming    woken or forked, has not looked for a job yet      -> Working, Resting, gone (as it looks)
--   Working   runs a job                                         -> Working, Resting, gone (as it looks for the next)
--                                                                -> gone (its run was cancelled)
--   Resting   waits to be woken                                  -> Coming (by whoever adds a job, or takes one and
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

-- | The threads of a connection, and the capability of the thread that receives.
data Crew = Crew !Int !(IORef State)

data State = State
  { -- | The jobs that are pending: the first ones, and the others with the last one first.
    stateFront :: [Job],
    stateBack :: [Job],
    -- | The threads that rest, in the order in which they are woken, and their number.
    stateResting :: [Worker],
    stateRests :: !Int,
    -- | A thread is coming.
    stateComing :: !Bool,
    -- | All threads.
    stateWorkers :: !(IntMap.IntMap Worker),
    stateNext :: !Int,
    -- | The jobs that count, pending or running; and who waits until they are few.
    stateCounted :: !Int,
    stateWaiter :: !(Maybe (MVar ())),
    -- | Filled when the last thread has gone; there are no more jobs.
    stateEnd :: !(Maybe (MVar ()))
  }

-- | The run that a thread runs is written by the thread, and read by 'endCrew'.
data Worker = Worker
  { workerNumber :: !Int,
    -- | It stays on the connection's capability.
    workerHome :: !Bool,
    workerWake :: !(MVar ()),
    workerRun :: !(IORef (Maybe Run))
  }

-- | A crew without threads, for the connection that this thread receives from.
newCrew :: IO Crew
newCrew = Crew <$> myCapability <*> newIORef (State [] [] [] 0 False IntMap.empty 0 0 Nothing Nothing)

-- | How many threads rest at most.
mostResting :: Int
mostResting = 16

-- | Who is to be woken.
data Next = Nobody | Wake !Worker | Fork !Int

-- | So many threads stay on the connection's capability: for a request and for who sends. Forked anywhere, they would
-- be second threads that are ready, which the run-time system gives to other capabilities, with all that they touch.
-- Further threads are there only if requests are concurrent; those may go where there is room, so that a connection
-- that many users share, as a proxy's, is not limited to one core.
mostAtHome :: Int
mostAtHome = 2

change :: Crew -> (State -> (State, a)) -> IO a
change (Crew _ ref) = atomicModifyIORef' ref

-- | Somebody has to come, if nobody does and there are jobs.
calling :: State -> (State, Next)
calling s
  | stateComing s || (null (stateFront s) && null (stateBack s)) = (s, Nobody)
  | w : rest <- stateResting s = (s {stateResting = rest, stateRests = stateRests s - 1, stateComing = True}, Wake w)
  | otherwise = (s {stateComing = True, stateNext = stateNext s + 1}, Fork (stateNext s))

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
  Fork n -> do
    wake <- newEmptyMVar
    running <- newIORef Nothing
    entered <- change crew $ \s ->
      let !w = Worker n (IntMap.size (stateWorkers s) < mostAtHome) wake running
       in if isJust (stateEnd s) then (s, Nothing) else (s {stateWorkers = IntMap.insert n w (stateWorkers s)}, Just w)
    forM_ entered $ \w -> do
      t <- (if workerHome w then forkOnWithUnmask home else forkIOWithUnmask) (\unmask -> work crew w True unmask)
      setLabel t streamLabel

-- | The label of the threads.
streamLabel :: Label
streamLabel = threadLabel "weft http/2 stream"

-- | What a thread finds as it looks for a job.
data Found = Do !Job !Next | Rest | Leave

work :: Crew -> Worker -> Bool -> (IO () -> IO ()) -> IO ()
work crew w arrives unmask = do
  found <- change crew (look w arrives)
  case found of
    Do job next -> do
      call crew next
      again <- perform crew w job unmask
      if again then work crew w False unmask else change crew (gone w) >>= leave
    Rest -> rest >> work crew w True unmask
    Leave -> change crew (gone w) >>= leave
  where
    -- An exception that comes here is for a request that has long ended.
    rest = takeMVar (workerWake w) `catch` \e -> const rest (e :: SomeException)
    leave = mapM_ (`tryPutMVar` ())

look :: Worker -> Bool -> State -> (State, Found)
look w arrives s0 = case stateFront s of
  job : rest -> let (s', next) = calling s {stateFront = rest} in (s', Do job next)
  []
    | not (null (stateBack s)) -> look w False s {stateFront = reverse (stateBack s), stateBack = []}
    | isJust (stateEnd s) || stateRests s >= mostResting -> (s, Leave)
    | otherwise -> (s {stateResting = if workerHome w then w : stateResting s else stateResting s <> [w], stateRests = stateRests s + 1}, Rest)
  where
    s = if arrives then s0 {stateComing = False} else s0

-- | The thread goes. Returns who waits for the last one.
gone :: Worker -> State -> (State, Maybe (MVar ()))
gone w s = (s {stateWorkers = workers}, if IntMap.null workers then stateEnd s else Nothing)
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

-- | Wait until there are fewer jobs that count than the number, for that time. 'False': there are not. By one thread.
awaitFewer :: Crew -> Int -> Duration -> IO Bool
awaitFewer crew most limit = do
  few <- fewEnough Nothing
  if few then pure True else isJust <$> within limit wait
  where
    fewEnough waiter = change crew (\s -> if stateCounted s < most then (s, True) else (s {stateWaiter = waiter}, False))
    wait = do
      waiter <- newEmptyMVar
      few <- fewEnough (Just waiter)
      unless few (takeMVar waiter >> wait)

-- | End all threads: pending jobs do not begin, runs are cancelled. Waits until all have ended.
endCrew :: Crew -> IO ()
endCrew crew = do
  over <- newEmptyMVar
  (workers, resting) <- change crew $ \s ->
    ( s {stateFront = [], stateBack = [], stateResting = [], stateRests = 0, stateEnd = Just over},
      (IntMap.elems (stateWorkers s), stateResting s)
    )
  mapM_ (\w -> tryPutMVar (workerWake w) ()) resting
  forM_ workers (readIORef . workerRun >=> mapM_ cancelRun)
  unless (null workers) (readMVar over)
