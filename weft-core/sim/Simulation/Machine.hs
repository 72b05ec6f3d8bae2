{-# LANGUAGE PackageImports #-}

-- |
-- What the simulated machine ("Weft.Sys" of this directory, "Kernel") calls in the running thread: scheduling points,
-- blocking, choices of the environment, exceptions between threads. Outside of a simulation these do nothing.
module Simulation.Machine
  ( -- * Objects
    newObject,
    newObjects,
    Global,
    newGlobal,
    ofThisRun,

    -- * Scheduling points
    point,
    touch,
    giveWay,
    blockUntil,
    blockOn,
    blockInKernel,
    sleepUntil,
    choose,
    note,
    virtualTime,
    patientClock,

    -- * Threads and exceptions
    spawn,
    runNumber,
    currentThread,
    throwTo',
    throwSoon,
    postpone,
    withMasking,
    getMasking,
    catching,

    -- * For the scheduler
    start,
    isInterrupted,
  )
where

import "base" Control.Concurrent (forkIO)
import "base" Control.Concurrent.MVar
import "base" Control.Exception
import Control.Monad
import Data.Bits
import "base" Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Data.List (find, foldl')
import Data.Maybe (isNothing)
import Simulation.Memory (barrier)
import Simulation.World
import System.IO.Unsafe (unsafePerformIO)

-- Objects --------------------------------------------------------------------------------

-- | A new object's number: equal in all runs that reach this call in the same way.
newObject :: IO Object
newObject = newObjects 1

-- | The given number of new objects. Returns the first one's number; each further number is larger by 64.
newObjects :: Int -> IO Object
newObjects count = do
  running <- readIORef current
  case running of
    SettingUp w -> bump (worldSetUp w) 0
    Inside _ a -> bump (agentMade a) (agentNumber a + 1)
    MakingGlobal first made -> (first +) <$> bump made 0
    _ -> bump madeOutside 0
  where
    bump ref who = do
      n <- readIORef ref
      writeIORef ref (n + count)
      pure (64 * (n + 1) + who)

-- | The number of objects created outside of any run. Their numbers are far from those of a run.
madeOutside :: IORef Int
madeOutside = unsafePerformIO (newIORef 0x1000000000)
{-# NOINLINE madeOutside #-}

-- | A value that is global to a process, but new in each run: its name, the last run that used it with the value there,
-- and the action that creates it.
data Global a = Global String (IORef (Int, Maybe a)) (IO a)

newGlobal :: String -> IO a -> IO (Global a)
newGlobal name make = (\cache -> Global name cache make) <$> newIORef (-1, Nothing)

instance Eq (Global a) where
  Global _ a _ == Global _ b _ = a == b

-- | The value of this run. Its first use creates it, without any step. The numbers of its objects depend only on its
-- name, so a run does not depend on earlier runs in the process, nor on which thread uses the value first.
ofThisRun :: Global a -> IO a
ofThisRun (Global name cache make) = do
  run <- runNumber
  found <- readIORef cache
  case found of
    (that, Just a) | that == run -> pure a
    _ -> do
      before <- readIORef current
      made <- newIORef 0
      writeIORef current (MakingGlobal first made)
      a <- make `finally` writeIORef current before
      a <$ writeIORef cache (run, Just a)
  where
    first = 0x2000000000 + shiftL (foldl' (\h c -> (h * 31 + fromEnum c) .&. 0xfffff) 7 name) 16

-- Scheduling points -----------------------------------------------------------------------

-- | A scheduling point: the scheduler chooses the thread that continues.
point :: IO ()
point = touch Anything "goes on"

-- | To be called before an operation that never blocks, with its access and its name for the trace.
touch :: Access -> String -> IO ()
touch = stopAt Runs (pure True) maxBound

-- | A scheduling point at which the ordinary choice is another thread (@yield@).
giveWay :: IO ()
giveWay = stopAt Yields (pure True) maxBound Anything "yields"

-- | Stop until the condition holds and the scheduler chooses this thread. No step
-- happens between that and what the caller does next.
blockUntil :: IO Bool -> IO ()
blockUntil ready = blockOn ready Anything "waits"

-- | 'blockUntil' with the operation's access and name. Interruptible while the condition does not hold.
blockOn :: IO Bool -> Access -> String -> IO ()
blockOn ready = stopAt Blocks ready maxBound

-- | 'blockOn' for a system call: it is not interruptible, and ends at the given virtual instant at the latest.
blockInKernel :: IO Bool -> Int64 -> Access -> String -> IO ()
blockInKernel = stopAt BlocksInKernel

-- | Block until that virtual instant. Interruptible.
sleepUntil :: Int64 -> IO ()
sleepUntil end = do
  t <- virtualTime
  when (t < end) (stopAt Blocks (pure False) end Anything ("sleeps until " <> show end))

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
    -- An operation on an object that no other thread uses is not a scheduling point. A thread that goes on with such
    -- operations for ever would not end the run, so that after many of them in a row all are.
    visible w a = case objectOf access of
      Nothing -> seenAgain a
      Just x
        | x == kernelObject || IntSet.member x (worldShared w) -> seenAgain a
        | otherwise -> do
          let mark = bit (2 * agentNumber a + case access of Reads _ -> 0; _ -> 1)
          modifyIORef' (worldUsed w) (IntMap.insertWith (.|.) x mark)
          open <- (== AllIn) <$> readIORef (agentMasking a)
          unseen <- readIORef (agentUnseen a)
          writeIORef (agentUnseen a) $! unseen + 1
          pure (unseen >= mostUnseen || open && IntSet.member (victim (agentNumber a)) (worldShared w))
    seenAgain a = True <$ writeIORef (agentUnseen a) 0
    mostUnseen = 100000 :: Int

-- | Whether an exception is pending that interrupts the thread where it has stopped.
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
    (_, e) : rest -> do
      writeIORef (agentPending a) rest
      note "takes the exception"
      running <- readIORef current
      case running of
        Inside w _ -> modifyIORef' (worldMemory w) (barrier (agentNumber a))
        _ -> pure ()
      throwIO e

-- | Choose one of the given number of possible outcomes, counted from zero; zero is the ordinary one.
choose :: Int -> IO Int
choose n = do
  running <- readIORef current
  case running of
    Inside w _ | n > 1 -> do
      answer <- newEmptyMVar
      putMVar (worldBack w) (Which n answer)
      takeMVar answer
    _ -> pure 0

-- | Add a line to the trace.
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

-- | To be called at the beginning of a scenario: the clock advances only if no thread can continue. Otherwise it may
-- advance at any step, as if all threads were slow.
patientClock :: IO ()
patientClock =
  readIORef current >>= \r -> case r of
    SettingUp w -> writeIORef (worldPatient w) True
    _ -> pure ()

-- Threads and exceptions --------------------------------------------------------------

-- | Start a thread, which inherits the caller's masking state and its view of the memory. Returns its number.
spawn :: IO () -> IO Int
spawn body = do
  touch Anything "starts a thread"
  running <- readIORef current
  case running of
    Inside w parent -> do
      agents <- readIORef (worldAgents w)
      agent <- start w (length agents) body
      readIORef (agentMasking parent) >>= writeIORef (agentMasking agent)
      modifyIORef' (worldMemory w) (barrier (agentNumber agent))
      writeIORef (worldAgents w) (agents <> [agent])
      agentNumber agent <$ note ("which is thread " <> show (agentNumber agent))
    _ -> throwIO (userError "Simulation: a thread is started outside of a run")

-- | Create a thread with that number. It waits until it is first chosen.
start :: World -> Int -> IO () -> IO Agent
start w number body = do
  -- 'worldUsed' has two bits for each thread.
  when (number > 30) (throwIO (userError "Simulation: a scenario has at most 31 threads"))
  agent <-
    Agent number <$> newEmptyMVar
      <*> newIORef (Just begins)
      <*> newIORef AllIn
      <*> newIORef []
      <*> newIORef 0
      <*> newIORef 0
  _ <- mask_ . forkIO $ do
    takeMVar (agentGo agent)
    over <- readIORef current
    case over of
      Over -> pure ()
      _ -> try (received agent >> body) >>= either failed pure
    writeIORef (agentWaits agent) Nothing
    putMVar (worldBack w) Stopped
  pure agent
  where
    begins = Stop (pure True) maxBound Anything "begins" Runs
    -- An exception may arrive before the body has installed a handler.
    received agent = isInterrupted agent begins >>= \interrupted -> when interrupted (raisePending agent)
    failed :: SomeException -> IO ()
    failed e
      | Just RunIsOver <- fromException e = pure ()
      | Just (SomeAsyncException _) <- fromException e = pure ()
      | otherwise = writeIORef (worldFailure w) (Just ("thread " <> show number <> " died: " <> show e))

-- | A number that identifies the run in this process, from the beginning of the scenario to its check.
runNumber :: IO Int
runNumber = readIORef runsMade

-- | The number of the running thread, or -1 outside of a simulation.
currentThread :: IO Int
currentThread = (\r -> case r of Inside _ a -> agentNumber a; _ -> -1) <$> readIORef current

agentOf :: Int -> IO (Maybe (World, Agent))
agentOf n = do
  running <- readIORef current
  case running of
    Inside w _ -> fmap ((,) w) . find ((== n) . agentNumber) <$> readIORef (worldAgents w)
    _ -> pure Nothing

-- | Like the run-time system's @throwTo@. Thrown at the calling thread, the exception is raised at once in each masking
-- state. Otherwise the thread waits until the target has received the exception or has ended. It can be interrupted
-- meanwhile, and the target then does not receive the exception.
throwTo' :: Int -> SomeException -> IO ()
throwTo' n e = do
  self <- currentThread
  if n == self
    then touch Anything "throws at itself" >> throwIO e
    else throwAt n e >>= mapM_ wait
  where
    wait (target, number) =
      blockOn
        ((||) <$> (notElem number . map fst <$> readIORef (agentPending target)) <*> hasEnded target)
        Anything
        "waits until the exception is taken"
        `onException` modifyIORef' (agentPending target) (filter ((/= number) . fst))

-- | Throw an exception to another thread without waiting until it is received.
throwSoon :: Int -> SomeException -> IO ()
throwSoon n e = void (throwAt n e)

-- | A step that makes an exception pending in a thread. Returns the thread and the number of the exception, unless the
-- thread has ended.
throwAt :: Int -> SomeException -> IO (Maybe (Agent, Int))
throwAt n e = do
  touch Anything ("throws at thread " <> show n)
  found <- agentOf n
  case found of
    Nothing -> pure Nothing
    Just (w, target) -> do
      modifyIORef' (worldUsed w) (IntMap.insert (victim n) 15)
      over <- hasEnded target
      if over then pure Nothing else Just . (,) target <$> pend w target e

hasEnded :: Agent -> IO Bool
hasEnded a = isNothing <$> readIORef (agentWaits a)

-- | Make an exception pending. Returns its number.
pend :: World -> Agent -> SomeException -> IO Int
pend w target e = do
  number <- readIORef (worldThrown w)
  writeIORef (worldThrown w) $! number + 1
  number <$ modifyIORef' (agentPending target) ((number, e) :)

-- | Make an exception pending in the running thread: it is raised when exceptions are next unmasked.
postpone :: SomeException -> IO ()
postpone e = currentThread >>= agentOf >>= mapM_ (\(w, a) -> pend w a e)

getMasking :: IO Masking
getMasking = currentThread >>= agentOf >>= maybe (pure AllIn) (readIORef . agentMasking . snd)

setMasking :: Masking -> IO ()
setMasking m = do
  found <- currentThread >>= agentOf
  forM_ found $ \(_, a) -> do
    writeIORef (agentMasking a) m
    when (m == AllIn) (raisePending a)

-- | Run an action in the given masking state, and restore the old state afterwards. If that state is unmasked, a
-- pending exception is raised then. An exception may also arrive after the thread's last operation and before it masks
-- exceptions; so if others throw at this thread, that is a scheduling point.
withMasking :: Masking -> IO a -> IO a
withMasking m act = do
  before <- getMasking
  when (before == AllIn && m /= AllIn) $ do
    number <- currentThread
    touch (Reads (victim number)) "masks exceptions"
  setMasking m
  a <- act
  a <$ setMasking before

-- | Like the run-time system's @catch@: the handler runs masked. The exception may be undefined.
catching :: IO a -> (SomeException -> IO a) -> IO a
catching act handler = do
  before <- getMasking
  act `catch` \e -> do
    over <- try (evaluate (fromException e))
    case over :: Either SomeException (Maybe RunIsOver) of
      Right (Just RunIsOver) -> throwIO e
      _ -> do
        found <- currentThread >>= agentOf
        forM_ found (\(_, a) -> writeIORef (agentMasking a) (max WhereItBlocks before))
        r <- handler e
        r <$ setMasking before
