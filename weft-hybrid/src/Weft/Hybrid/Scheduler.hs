{-# LANGUAGE RecordWildCards #-}

-- |
-- Loops, one for each capability (Li and Zdancewic 2007, section 4.4). A loop runs threads for a turn, handles
-- events and timers that are due, and sleeps when no thread is ready. The loops of a scheduler
-- share their work.
--
-- __Sharing.__ Only its loop uses a queue, so it needs no locks or atomic instructions. An idle loop marks itself as
-- idle before it sleeps. A loop that has run a full turn and has more threads ready
-- gives half of them to an idle loop (private deques with sender-initiated balancing: Acar,
-- Chargueraud and Rainey, 2013). Short bursts of work stay on their loop. A thread behind a long step waits until
-- that step ends, also if another loop is idle.
--
-- __Sleeping.__ Whoever puts a thread into an empty inbox, or tells the loops to stop, wakes the loop afterwards
-- ('wakeManager'). A loop looks at both in each turn, and it does not fall asleep if it was woken since it last slept
-- ("Weft.Core.Wake"). So it need not look again before it sleeps.
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
import Control.Monad (forM_, unless, void, when)
import Weft.Backend.Choice (newDefaultBackend)
import Weft.Core.Manager
import Weft.Core.Timer (fireTimer)
import Weft.Duration (Duration, seconds, toSeconds)
import Weft.Hybrid.Blocked (noteEnded, noteStarted)
import Weft.Hybrid.DescriptorTable (deliver)
import Weft.Hybrid.Interpreter
import Weft.Hybrid.Park
import Weft.Hybrid.Policy
import Weft.Hybrid.Ready
import Weft.Hybrid.Shutdown
import Weft.Hybrid.Trace
import Weft.Hybrid.Watchdog
import Weft.StandardError (reportLine)
import Weft.Sys
import Weft.TimerQueue (newQueue)

-- | Settings of a scheduler. Begin with 'defaultSettings'.
data Settings = Settings
  { -- | The number of loops; 'Nothing' is one for each capability at the start.
    settingsLoops :: Maybe Int,
    settingsPolicy :: Policy,
    -- | Called with the label and the exception of a thread that died of one ('Control.Exception.ThreadKilled'
    -- excepted). Must not block.
    settingsOnException :: Maybe String -> SomeException -> IO (),
    -- | Called with the label of a thread that is deadlocked: nothing can wake it any more. Must not block.
    settingsOnDeadlock :: String -> IO (),
    -- | Called when a loop has been in one step for a second, with the thread's label and the time. The loop's
    -- other threads, timers and descriptors wait for the end of the step. Must not block.
    settingsOnStall :: Maybe String -> Duration -> IO (),
    -- | How long the threads may take to end after 'stopScheduler' has killed them.
    settingsGrace :: Duration
  }

-- | A loop for each capability, 'roundRobin', reports on standard error, five seconds
-- for threads to end.
defaultSettings :: Settings
defaultSettings =
  Settings
    { settingsLoops = Nothing,
      settingsPolicy = roundRobin,
      settingsOnException = \label e ->
        reportLine ("weft-hybrid: " <> maybe "a thread" show label <> " died: " <> displayException e),
      settingsOnDeadlock = \label ->
        reportLine ("weft-hybrid: " <> show label <> " is deadlocked"),
      settingsOnStall = \label d ->
        reportLine ("weft-hybrid: " <> maybe "a thread" show label <> " has held its loop for " <> show (toSeconds d) <> " s: split the step by yield, or use blocking"),
      settingsGrace = seconds 5
    }

-- | Start a scheduler. Threads of several schedulers may wait for the same descriptor: each goes on in its own
-- scheduler. A thread that waits for an MVar or the like, or gets an exception, goes on in the scheduler of the thread
-- that resumes it.
startScheduler :: Settings -> IO Scheduler
startScheduler settings = mask_ $ do
  count <- maybe getNumCapabilities (pure . max 1) (settingsLoops settings)
  schedulerLoops <- newRef =<< newBoxedArray 0 (error "Weft.Hybrid.Scheduler: no loops")
  schedulerIdle <- newWordArray (count + 1)
  schedulerStop <- newWordArray 2
  schedulerEnding <- newWordArray 3
  schedulerOutside <- newWordArray 1
  schedulerEnded <- newEmptyMVar
  schedulerWatched <- newWordArray 1
  schedulerWake <- newEmptyMVar
  schedulerGeneration <- forkGeneration
  schedulerNumber <- newNumber
  let scheduler =
        Scheduler
          { schedulerGrace = settingsGrace settings,
            schedulerOnException = settingsOnException settings,
            schedulerOnDeadlock = settingsOnDeadlock settings,
            schedulerOnStall = settingsOnStall settings,
            ..
          }
  made <- newLoops settings scheduler [0 .. count - 1]
  case made of
    [] -> pure ()
    first : _ -> do
      slots <- newBoxedArray count first
      forM_ (zip [0 ..] made) (uncurry (writeBoxedArray slots))
      writeRef schedulerLoops slots
  writeWord schedulerStop wordRunning count
  noteStarted scheduler
  forM_ made $ \l ->
    forkPinned (loopIndex l) ("weft hybrid loop " <> show (loopIndex l)) $ \unmask ->
      unmask (runLoop l) `catch` \e -> do
        reportLine ("weft-hybrid: loop " <> show (loopIndex l) <> " failed: " <> show (e :: SomeException))
        endLoop l
  _ <- forkPinned 0 "weft hybrid watchdog" (\unmask -> unmask (watchLoops scheduler))
  pure scheduler

-- | If the kernel refuses one, the loops before it release their kernel objects.
newLoops :: Settings -> Scheduler -> [Int] -> IO [Loop]
newLoops _ _ [] = pure []
newLoops settings scheduler (i : rest) = do
  l <- newLoop settings scheduler i
  (l :) <$> newLoops settings scheduler rest `onException` requestStop (loopManager l)

newLoop :: Settings -> Scheduler -> Int -> IO Loop
newLoop settings loopScheduler loopIndex = do
  registry <- newManagerRegistry
  timers <- newQueue
  loopManager <- newManager (-1) registry timers (void . fireTimer) newDefaultBackend
  loopReady <- newReady (settingsPolicy settings)
  loopInbox <- newRef NoMail
  loopContext <- newRef Plain
  loopClock <- newStatistics 4
  let l = Loop {loopOwner = Owner l, loopMoving = Moving l, ..}
  pure l

wordStop, wordRunning :: Int
wordStop = 0
wordRunning = 1

-- | Kill all threads, wait until they have ended, end the loops and release their kernel objects.
-- Returns when that is done: after 'settingsGrace' and a turn at the latest. Threads that
-- have not ended then are dropped. Threads without handlers that wait for an MVar, a channel or the like are not killed
-- but dropped. Must not be called on a thread of a loop.
stopScheduler :: Scheduler -> IO ()
stopScheduler scheduler = do
  mask_ $ do
    writeWord (schedulerStop scheduler) wordStop 1
    slots <- readRef (schedulerLoops scheduler)
    forM_ [0 .. sizeBoxedArray slots - 1] $ \i -> readBoxedArray slots i >>= wakeManager . loopManager
  readMVar (schedulerEnded scheduler)

-- | The number of its loops.
loopCount :: Scheduler -> IO Int
loopCount scheduler = sizeBoxedArray <$> readRef (schedulerLoops scheduler)

-- | The program's scheduler, with 'defaultSettings'. It is started when it is first needed; a forked child has its own.
currentScheduler :: IO Scheduler
currentScheduler = do
  program@(Program made box) <- readRef theScheduler
  generation <- forkGeneration
  if made == generation
    then mask_ . modifyMVar box $ \found -> do
      scheduler <- maybe (startScheduler defaultSettings) pure found
      pure (Just scheduler, scheduler)
    else do
      -- A thread of the parent may have held the box when it forked.
      new <- Program generation <$> newMVar Nothing
      _ <- casRef theScheduler program new
      currentScheduler

-- | The scheduler of a process image ('forkGeneration').
data Program = Program !Int !(MVar (Maybe Scheduler))

-- | Replaced in a forked child, by compare-and-swap.
theScheduler :: Ref Program
theScheduler = globalRef "Weft.Hybrid.Scheduler.theScheduler" (Program <$> forkGeneration <*> newMVar Nothing)
{-# NOINLINE theScheduler #-}

-- | Put a thread into the queue of the loop of the caller's capability.
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
      stop <- peekWord (schedulerStop (loopScheduler l)) wordStop
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

-- | No thread was ready: let GHC threads run, poll once more, sleep.
idle :: Loop -> IO ()
idle l = do
  yield
  found <- poll (loopManager l)
  n <- sizeReady (loopReady l)
  unless (found || n > 0) $ do
    setIdle 1
    void (addWord (schedulerIdle scheduler) 0 1)
    block (loopManager l)
    mine <- casWord (schedulerIdle scheduler) word 1 0
    when (mine == 1) (void (addWord (schedulerIdle scheduler) 0 (-1)))
    wakeWatchdog scheduler
  where
    scheduler = loopScheduler l
    word = loopIndex l + 1
    setIdle = writeWord (schedulerIdle scheduler) word

-- | Take the threads out of the inbox. The first read is plain, and may miss a thread that is put in as 'block' ends.
-- That is found in the next turn: whoever puts it in then notifies the manager, and so ends the next 'block', or keeps
-- the loop from blocking ("Weft.Core.Wake").
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

-- | After a full turn: give half of the ready threads to an idle loop.
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

-- | Stop the loop's manager, and, if it is the last loop, finish the scheduler.
endLoop :: Loop -> IO ()
endLoop l = do
  requestStop (loopManager l)
  void (step (loopManager l))
  left <- addWord (schedulerStop (loopScheduler l)) wordRunning (-1)
  when (left == 1) (noteEnded (loopScheduler l) >> endWatchdog (loopScheduler l) >> void (tryPutMVar (schedulerEnded (loopScheduler l)) ()))
