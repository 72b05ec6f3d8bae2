-- |
-- Loops, one a capability (2007, section 4.4): each runs threads for a turn, looks
-- for events and due timers, and sleeps when nothing is ready. Loops of a scheduler
-- share their work.
--
-- __Sharing.__ A loop's queue is its own, without locks or atomic instructions. A loop that finds
-- nothing to do says so before it sleeps; one that has run a full turn and has more
-- looks for such a loop and hands it half of what is ready (the victim deals, as in Acar,
-- Chargueraud and Rainey, 2013). Short bursts stay where they are; a thread behind a long step waits for
-- the end of that step.
--
-- __Sleeping.__ As "Weft.Core.Wake": announce, look at the inbox, block.
--
-- @since 0.1.0
module Weft.Hybrid.Scheduler
  ( -- * Schedulers
    Scheduler,
    Settings (..),
    defaultSettings,
    startScheduler,
    stopScheduler,
    currentScheduler,
    loopCount,

    -- * Handing it threads
    submit,
    placeIn,
  )
where

import Control.Exception (SomeException, catch, displayException)
import Control.Monad (forM, forM_, unless, void, when)
import System.IO (hPutStrLn, stderr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Backend.Choice (newDefaultBackend)
import Weft.Core.Manager
import Weft.Duration (Duration, seconds)
import Weft.Hybrid.Blocked (beginWorld, endWorld)
import Weft.Hybrid.DescriptorTable (deliver)
import Weft.Hybrid.Interpreter
import Weft.Hybrid.Park
import Weft.Hybrid.Policy
import Weft.Hybrid.Ready
import Weft.Hybrid.Shutdown
import Weft.Hybrid.Trace
import Weft.Hybrid.Watchdog
import Weft.Sys
import Weft.TimerQueue (newQueue)

-- | How a scheduler is to be.
data Settings = Settings
  { -- | How many loops; 'Nothing' is one for each capability there is at the start.
    settingsLoops :: Maybe Int,
    settingsPolicy :: Policy,
    -- | Told of a thread that died of an exception (but for being killed), with its
    -- label. Must not block.
    settingsOnException :: Maybe String -> SomeException -> IO (),
    -- | Told the label of a thread that nothing can wake any more. Must not block.
    settingsOnDeadlock :: String -> IO (),
    -- | Told when a loop has been in one step for a second: of a thread with that label, and for how long. Its
    -- other threads, timers and descriptors wait for the end of that. Must not block.
    settingsOnStall :: Maybe String -> Duration -> IO (),
    -- | How long the threads may take to end when the scheduler is stopped.
    settingsGrace :: Duration
  }

-- | A loop for each capability, round robin; reports go to standard error; five seconds
-- for the end.
defaultSettings :: Settings
defaultSettings =
  Settings
    { settingsLoops = Nothing,
      settingsPolicy = roundRobin,
      settingsOnException = \label e ->
        hPutStrLn stderr ("weft-hybrid: " <> maybe "a thread" show label <> " died: " <> displayException e),
      settingsOnDeadlock = \label ->
        hPutStrLn stderr ("weft-hybrid: " <> show label <> " is deadlocked"),
      settingsOnStall = \label d ->
        hPutStrLn stderr ("weft-hybrid: " <> maybe "a thread" show label <> " has held its loop for " <> show d <> ": split the step by yield, or use blocking"),
      settingsGrace = seconds 5
    }

-- | Start a scheduler.
startScheduler :: Settings -> IO Scheduler
startScheduler settings = mask_ $ do
  count <- maybe getNumCapabilities (pure . max 1) (settingsLoops settings)
  loops <- newRef =<< newBoxedArray 0 (error "Weft.Hybrid.Scheduler: no loops")
  scheduler <-
    Scheduler loops
      <$> newAtomicWords (count + 1)
      <*> newAtomicWords 2
      <*> newAtomicWords 3
      <*> newAtomicWords 1
      <*> pure (settingsGrace settings)
      <*> newEmptyMVar
      <*> pure (settingsOnException settings)
      <*> pure (settingsOnDeadlock settings)
      <*> pure (settingsOnStall settings)
      <*> newAtomicWords 1
      <*> newEmptyMVar
      <*> forkGeneration
      <*> newNumber
  made <- forM [0 .. count - 1] (newLoop settings scheduler)
  case made of
    [] -> pure ()
    first : _ -> do
      slots <- newBoxedArray count first
      forM_ (zip [0 ..] made) (uncurry (writeBoxedArray slots))
      writeRef loops slots
  writeWord (schedulerStop scheduler) cellRunning count
  beginWorld scheduler
  forM_ made $ \l ->
    forkPinned (loopIndex l) ("weft hybrid loop " <> show (loopIndex l)) $ \unmask ->
      unmask (runLoop l) `catch` \e -> do
        hPutStrLn stderr ("weft-hybrid: loop " <> show (loopIndex l) <> " failed: " <> show (e :: SomeException))
        endLoop l
  _ <- forkPinned 0 "weft hybrid watchdog" (\unmask -> unmask (watchLoops scheduler))
  pure scheduler

newLoop :: Settings -> Scheduler -> Int -> IO Loop
newLoop settings scheduler i = do
  backend <- newDefaultBackend
  registry <- registryFor
  timers <- newQueue
  manager <- newManager (-1) registry timers (const id) backend
  ready <- newReady (settingsPolicy settings)
  inbox <- newRef NoMail
  ctx <- newRef Plain
  pace <- newAtomicWords 24
  let l = Loop i manager ready inbox ctx pace (Owner l) (Moving l) scheduler
  pure l

cellStop, cellRunning :: Int
cellStop = 0
cellRunning = 1

-- | Kill all threads, wait until they have ended, end the loops and give back their kernel objects.
-- Returns when that is done: after 'settingsGrace' and a turn at the latest, and then threads that
-- have not ended are dropped where they are. See "Weft.Hybrid.Shutdown" for who is told. Not to be called by one of them.
stopScheduler :: Scheduler -> IO ()
stopScheduler scheduler = do
  writeWord (schedulerStop scheduler) cellStop 1
  slots <- readRef (schedulerLoops scheduler)
  forM_ [0 .. sizeBoxedArray slots - 1] $ \i -> readBoxedArray slots i >>= wakeManager . loopManager
  readMVar (schedulerEnded scheduler)

-- | How many loops it has.
loopCount :: Scheduler -> IO Int
loopCount scheduler = sizeBoxedArray <$> readRef (schedulerLoops scheduler)

-- | The program's scheduler, with 'defaultSettings', started when it is first needed.
currentScheduler :: IO Scheduler
currentScheduler = do
  program@(Program made box) <- readRef theScheduler
  generation <- forkGeneration
  if made == generation
    then modifyMVar box $ \found -> do
      scheduler <- maybe (startScheduler defaultSettings) pure found
      pure (Just scheduler, scheduler)
    else do
      -- Another thread of the parent may have had the box when it forked.
      new <- Program generation <$> newMVar Nothing
      _ <- casRef theScheduler program new
      currentScheduler

-- | The scheduler of a process image ('forkGeneration').
data Program = Program !Int !(MVar (Maybe Scheduler))

-- | Replaced in a forked child, by compare-and-swap.
theScheduler :: Ref Program
theScheduler = unsafePerformIO (Program <$> forkGeneration <*> newMVar Nothing >>= newRef)
{-# NOINLINE theScheduler #-}

-- | Have a thread run, on the loop of the caller's capability at first.
submit :: Scheduler -> Context -> Task -> IO ()
submit scheduler ctx task = do
  place <- placeIn scheduler
  place ctx task

-- Loops -----------------------------------------------------------------------------

runLoop :: Loop -> IO ()
runLoop l = do
  _ <- initialize (loopManager l)
  setExternalHandler (loopManager l) (deliver l)
  go
  where
    go = do
      stop <- peekWord (schedulerStop (loopScheduler l)) cellStop
      if stop /= 0 then endThreads l (takeInbox l) >> endLoop l else once >> go
    once = do
      takeInbox l
      full <- runTurn l
      _ <- poll (loopManager l)
      if full
        then share l >> yield
        else do
          n <- sizeReady (loopReady l)
          if n > 0 then yield else idle l

-- | Nothing was ready: let GHC threads run, look again, sleep.
idle :: Loop -> IO ()
idle l = do
  yield
  found <- poll (loopManager l)
  n <- sizeReady (loopReady l)
  unless (found || n > 0) $ do
    setIdle 1
    void (addWord (schedulerIdle scheduler) 0 1)
    sleepUnless (loopManager l) busy
    mine <- casWord (schedulerIdle scheduler) cell 1 0
    when (mine == 1) (void (addWord (schedulerIdle scheduler) 0 (-1)))
    rouseWatchdog scheduler
  where
    scheduler = loopScheduler l
    cell = loopIndex l + 1
    setIdle = writeWord (schedulerIdle scheduler) cell
    busy = do
      inbox <- readRef (loopInbox l)
      stop <- readWord (schedulerStop scheduler) cellStop
      pure $ case inbox of
        Mail {} -> True
        NoMail -> stop /= 0

takeInbox :: Loop -> IO ()
takeInbox l = do
  inbox <- readRef (loopInbox l)
  case inbox of
    NoMail -> pure ()
    Mail {} -> do
      news <- swapRef (loopInbox l) NoMail
      mapM_ (uncurry (pushReady (loopReady l))) (oldestFirst news [])
  where
    oldestFirst NoMail acc = acc
    oldestFirst (Mail ctx task rest) acc = oldestFirst rest ((ctx, task) : acc)

-- | After a full turn: half of what is ready to a loop that has nothing.
share :: Loop -> IO ()
share l = do
  idlers <- peekWord (schedulerIdle scheduler) 0
  when (idlers > 0) $ do
    n <- sizeReady (loopReady l)
    when (n > 1) $ do
      slots <- readRef (schedulerLoops scheduler)
      taker <- firstIdle slots 0
      mapM_ (\other -> deal (n `div` 2) other) taker
  where
    scheduler = loopScheduler l
    firstIdle slots i
      | i >= sizeBoxedArray slots = pure Nothing
      | otherwise = do
        found <- casWord (schedulerIdle scheduler) (i + 1) 1 0
        if found == 1
          then do
            void (addWord (schedulerIdle scheduler) 0 (-1))
            Just <$> readBoxedArray slots i
          else firstIdle slots (i + 1)
    deal :: Int -> Loop -> IO ()
    deal 0 _ = pure ()
    deal n other = do
      task <- popReady (loopReady l)
      case loopReady l of
        RoundRobin _ -> toLoop other Plain task
        Custom _ -> case task () of
          Enter ctx k -> toLoop other ctx k
          _ -> toLoop other Plain task
      deal (n - 1) other

-- | The loop's last act.
endLoop :: Loop -> IO ()
endLoop l = do
  requestStop (loopManager l)
  void (step (loopManager l))
  left <- addWord (schedulerStop (loopScheduler l)) cellRunning (-1)
  when (left == 1) (endWorld (loopScheduler l) >> endWatchdog (loopScheduler l) >> void (tryPutMVar (schedulerEnded (loopScheduler l)) ()))
