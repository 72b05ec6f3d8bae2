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
module Weft.Hybrid.Scheduler
  ( -- * Schedulers
    Scheduler,
    Settings (..),
    defaultSettings,
    startScheduler,
    stopScheduler,
    currentScheduler,
    schedulerLoops,

    -- * Handing it threads
    submit,
    placeIn,
  )
where

import Control.Exception (SomeException, catch, displayException)
import Control.Monad (forM, forM_, unless, void, when)
import System.IO (hPutStrLn, stderr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Backend (newDefaultBackend)
import Weft.Core.Manager
import Weft.Duration (Duration, seconds)
import Weft.Hybrid.Ending
import Weft.Hybrid.Gate (deliver)
import Weft.Hybrid.Machine
import Weft.Hybrid.Park
import Weft.Hybrid.Policy
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys
import Weft.TimerQueue (newQueue)

-- | Loops that share their work.
type Scheduler = World

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
    -- | How long the threads may take to end when the scheduler is stopped.
    settingsGrace :: Duration
  }

-- | A loop for each capability, round robin; both reports go to standard error; five seconds
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
      settingsGrace = seconds 5
    }

-- | Start a scheduler.
startScheduler :: Settings -> IO Scheduler
startScheduler settings = mask_ $ do
  count <- maybe getNumCapabilities (pure . max 1) (settingsLoops settings)
  loops <- newRef =<< newSlots 0 (error "Weft.Hybrid.Scheduler: no loops")
  world <-
    World loops
      <$> newCells (count + 1)
      <*> newCells 2
      <*> newCells 3
      <*> newCells 1
      <*> pure (settingsGrace settings)
      <*> newEmptyMVar
      <*> pure (settingsOnException settings)
      <*> pure (settingsOnDeadlock settings)
      <*> forkGeneration
  made <- forM [0 .. count - 1] (newLoop settings world)
  case made of
    [] -> pure ()
    first : _ -> do
      slots <- newSlots count first
      forM_ (zip [0 ..] made) (uncurry (writeSlot slots))
      writeRef loops slots
  writeCell (worldStop world) cellRunning count
  forM_ made $ \l ->
    forkPinned (loopIndex l) ("weft hybrid loop " <> show (loopIndex l)) $ \unmask ->
      unmask (runLoop l) `catch` \e -> do
        hPutStrLn stderr ("weft-hybrid: loop " <> show (loopIndex l) <> " failed: " <> show (e :: SomeException))
        endLoop l
  pure world

newLoop :: Settings -> World -> Int -> IO Loop
newLoop settings world i = do
  backend <- newDefaultBackend
  registry <- registryFor
  timers <- newQueue
  manager <- newManager (-1) registry timers (const id) backend
  ready <- newReady (settingsPolicy settings)
  inbox <- newRef NoMail
  ctx <- newRef Plain
  pace <- newCells 24
  let l = Loop i manager ready inbox ctx pace (Owner l) (Moving l) world
  pure l

cellStop, cellRunning :: Int
cellStop = 0
cellRunning = 1

-- | Kill all threads, wait until they have ended, end the loops and give back their kernel objects.
-- Returns when that is done: after 'settingsGrace' and a turn at the latest, and then threads that
-- have not ended are dropped where they are. See "Weft.Hybrid.Ending" for who is told; a
-- thread that waits for another one, in an MVar say, ends if one of those resumes it, and is
-- dropped else. Not to be called by one of them.
stopScheduler :: Scheduler -> IO ()
stopScheduler world = do
  writeCell (worldStop world) cellStop 1
  slots <- readRef (worldLoops world)
  forM_ [0 .. sizeSlots slots - 1] $ \i -> readSlot slots i >>= wakeManager . loopManager
  readMVar (worldEnded world)

-- | How many loops it has.
schedulerLoops :: Scheduler -> IO Int
schedulerLoops world = sizeSlots <$> readRef (worldLoops world)

-- | The program's scheduler, with 'defaultSettings', started when it is first needed.
currentScheduler :: IO Scheduler
currentScheduler = modifyMVar theScheduler $ \found -> do
  generation <- forkGeneration
  case found of
    Just world | worldGeneration world == generation -> pure (found, world)
    _ -> do
      world <- startScheduler defaultSettings
      pure (Just world, world)

theScheduler :: MVar (Maybe Scheduler)
theScheduler = unsafePerformIO (newMVar Nothing)
{-# NOINLINE theScheduler #-}

-- | Have a thread run, on the loop of the caller's capability at first.
submit :: Scheduler -> Context -> Task -> IO ()
submit world ctx task = do
  place <- placeIn world
  place ctx task

-- | Where a GHC thread puts threads that are ready.
placeIn :: Scheduler -> IO Place
placeIn world = do
  slots <- readRef (worldLoops world)
  cap <- myCapability
  toLoop <$> readSlot slots (cap `mod` sizeSlots slots)

-- Loops -----------------------------------------------------------------------------

runLoop :: Loop -> IO ()
runLoop l = do
  _ <- initialize (loopManager l)
  setGuest (loopManager l) (deliver l)
  go
  where
    go = do
      stop <- peekCell (worldStop (loopWorld l)) cellStop
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
    void (addCell (worldIdle world) 0 1)
    sleepUnless (loopManager l) busy
    mine <- casCell (worldIdle world) cell 1 0
    when (mine == 1) (void (addCell (worldIdle world) 0 (-1)))
  where
    world = loopWorld l
    cell = loopIndex l + 1
    setIdle = writeCell (worldIdle world) cell
    busy = do
      inbox <- readRef (loopInbox l)
      stop <- readCell (worldStop world) cellStop
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
  idlers <- peekCell (worldIdle world) 0
  when (idlers > 0) $ do
    n <- sizeReady (loopReady l)
    when (n > 1) $ do
      slots <- readRef (worldLoops world)
      taker <- firstIdle slots 0
      mapM_ (\other -> deal (n `div` 2) other) taker
  where
    world = loopWorld l
    firstIdle slots i
      | i >= sizeSlots slots = pure Nothing
      | otherwise = do
        found <- casCell (worldIdle world) (i + 1) 1 0
        if found == 1
          then do
            void (addCell (worldIdle world) 0 (-1))
            Just <$> readSlot slots i
          else firstIdle slots (i + 1)
    deal :: Int -> Loop -> IO ()
    deal 0 _ = pure ()
    deal n other = do
      task <- popReady (loopReady l)
      toLoop other Plain task
      deal (n - 1) other

-- | The loop's last act.
endLoop :: Loop -> IO ()
endLoop l = do
  requestStop (loopManager l)
  void (step (loopManager l))
  left <- addCell (worldStop (loopWorld l)) cellRunning (-1)
  when (left == 1) (void (tryPutMVar (worldEnded (loopWorld l)) ()))
