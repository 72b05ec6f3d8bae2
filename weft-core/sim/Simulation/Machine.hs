-- |
-- What the simulated machine calls ("Weft.Sys" of this directory, "Kernel"), in the thread that runs: scheduling points,
-- blocking, answers of the surroundings, exceptions between threads. Outside of a simulation these do nothing.
module Simulation.Machine
  ( -- * Objects
    newObject,
    newObjects,

    -- * Scheduling points
    point,
    touch,
    giveWay,
    blockUntil,
    blockOn,
    blockInKernel,
    choose,
    note,
    virtualTime,

    -- * Threads and exceptions
    currentThread,
    threadEnded,
    throwTo',
    throwSoon,
    postpone,
    withMasking,
    getMasking,
    catching,

    -- * For the scheduler
    isInterrupted,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.Bits
import Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Data.List (find)
import Data.Maybe (isNothing)
import Simulation.World

-- Objects --------------------------------------------------------------------------------

-- | A new object's number: the same in every run that came to this place the same way.
newObject :: IO Object
newObject = newObjects 1

-- | That number of objects. Returns the first one's number; each next one's is larger by 64.
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

-- Scheduling points -----------------------------------------------------------------------

-- | A scheduling point: the scheduler chooses who goes on.
point :: IO ()
point = touch Anything "goes on"

-- | To be called before an operation that never blocks, with what it does and its name for the story.
touch :: Access -> String -> IO ()
touch = stopAt Runs (pure True) maxBound

-- | A scheduling point at which the ordinary choice is another thread (@yield@).
giveWay :: IO ()
giveWay = stopAt Yields (pure True) maxBound Anything "yields"

-- | Stop until the condition holds and the scheduler chooses this thread; nothing
-- happens between that and what the caller does next.
blockUntil :: IO Bool -> IO ()
blockUntil ready = blockOn ready Anything "waits"

-- | 'blockUntil', with what the operation does and its name. Interruptible while the condition does not hold.
blockOn :: IO Bool -> Access -> String -> IO ()
blockOn ready = stopAt Blocks ready maxBound

-- | 'blockOn' for a system call: it is not interruptible, and ends at that virtual instant if not before.
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
    -- An operation on an object that no other thread uses is no scheduling point.
    visible w a = case objectOf access of
      Nothing -> pure True
      Just x
        | x == kernelObject || IntSet.member x (worldShared w) -> pure True
        | otherwise -> do
          let mark = bit (2 * agentNumber a + case access of Reads _ -> 0; _ -> 1)
          modifyIORef' (worldUsed w) (IntMap.insertWith (.|.) x mark)
          open <- (== AllIn) <$> readIORef (agentMasking a)
          pure (open && IntSet.member (victim (agentNumber a)) (worldShared w))

-- | Whether an exception is pending that the thread takes where it has stopped.
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

-- | Which of that number of answers the surroundings give, counted from zero; zero is the ordinary one.
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

-- | The number of the thread that runs, or -1 outside of a simulation.
currentThread :: IO Int
currentThread = (\r -> case r of Inside _ a -> agentNumber a; _ -> -1) <$> readIORef current

agentOf :: Int -> IO (Maybe (World, Agent))
agentOf n = do
  running <- readIORef current
  case running of
    Inside w _ -> fmap ((,) w) . find ((== n) . agentNumber) <$> readIORef (worldAgents w)
    _ -> pure Nothing

-- | Whether the thread has ended.
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

-- | Throw at another thread without waiting until the exception is taken.
throwSoon :: Int -> SomeException -> IO ()
throwSoon n e = do
  touch Anything ("throws at thread " <> show n)
  target <- agentOf n
  forM_ target $ \(w, a) -> do
    modifyIORef' (worldUsed w) (IntMap.insert (victim n) 15)
    ended <- isNothing <$> readIORef (agentWaits a)
    unless ended (modifyIORef' (agentPending a) (<> [e]))

-- | Make the exception pending in the running thread: it is raised when it is next unmasked.
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

-- | Run an action in that masking state. Afterwards the old state is restored; if it is unmasked, a pending exception is
-- raised.
withMasking :: Masking -> IO a -> IO a
withMasking m act = do
  before <- getMasking
  setMasking m
  a <- act
  a <$ setMasking before

-- | @catch@ as the run-time system has it: the handler runs masked.
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
