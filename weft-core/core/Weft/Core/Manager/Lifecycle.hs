{-# LANGUAGE RecordWildCards #-}

-- | A manager's state and its lifecycle: made, run, told to stop, finished. "Weft.Core.Manager" says what a manager is.
--
-- States, in one word that anybody may read:
--
-- @
--   Idle      no thread runs it yet          -> Running ('initialize'), Stopping ('requestStop', which then cleans up)
--   Running   @step@ or @loop@ may be called -> Stopping ('requestStop')
--   Stopping  is to be cleaned up            -> Finished (the runner; 'shutdown', if the runner is in no turn)
--   Finished  nothing is left
-- @
--
-- Any thread may call what this module exports, except 'isRunning'.
module Weft.Core.Manager.Lifecycle
  ( Manager (..),
    newManager,
    newManagerRegistry,
    sameManager,
    isAlive,

    -- * Its words
    readState,
    stateRunning,
    wordTurn,

    -- * The runner
    initialize,
    isRunning,
    finish,

    -- * Any thread
    wakeManager,
    signalIf,
    unlessFinished,
    requestStop,
    shutdown,
    discard,
  )
where

import Control.Monad (forM_, unless, void, when)
import Weft.Core.Backend
import Weft.Core.Counters
import Weft.Core.EventLog
import Weft.Core.Events
import Weft.Core.Heartbeat
import Weft.Core.Histogram
import Weft.Core.Latency
import Weft.Core.Registry
import Weft.Core.Timer
import Weft.Core.Timers
import Weft.Core.UseCount (Shut (StillUsed), UseCount (..), acquire, release, shut)
import Weft.Core.Wake
import Weft.Core.Yield (Chains, newChains)
import Weft.Sys

-- | An event manager.
data Manager = Manager
  { -- | Where events come from.
    managerBackend :: !Backend,
    -- | The callbacks and tracked descriptors that get the events.
    managerRegistry :: !(Registry Manager),
    managerTimers :: !Timers,
    -- | The manager as its timers see it.
    managerTimerOwner :: TimerOwner,
    managerWake :: !Wake,
    -- | The due time, in ns, of the earliest timer for which the runner was woken, or 0. The runner does not sleep past
    -- it, even if the timer was cancelled. So a thread that sets and cancels timers over and over wakes the runner once
    -- in the timers' length, not each time. Written by wakers, cleared by the runner.
    managerHint :: !WordArray,
    -- | How the runner gives way to the threads that it wakes.
    managerChains :: !Chains,
    -- | The manager's counters, for "Weft.Metrics".
    managerCounters :: !Counters,
    -- | The times between events and the threads that they wake.
    managerLatency :: {-# UNPACK #-} !Latency,
    -- | How late timers are fired. Written by the runner.
    managerLateness :: !Histogram,
    -- | What the runner is doing, for the watchdog. Written by the runner.
    managerHeartbeat :: !Heartbeat,
    -- | Where it writes markers.
    managerEventLog :: !EventLog,
    -- | Which of a program's dispatchers it is, from zero; -1 for one that the program made itself.
    managerIndex :: !Int,
    -- | Word 0: the state above, changed by compare-and-swap. 'wordTurn': whether the runner is in a turn, or in
    -- @loop@.
    managerState :: !WordArray,
    -- | The threads that use the back end. The last one fills the variable if 'finish' waits for it.
    managerUse :: !UseCount,
    managerUnused :: !(MVar ()),
    -- | The process image that made it ('forkGeneration'); a forked child must not use it.
    managerGeneration :: !Int,
    -- | The thread that runs it, written by 'initialize'; and the thread that is in 'finish', written by that thread.
    managerRunner, managerFinisher :: !(Ref (Maybe ThreadId)),
    -- | The handler of events with an external token. Written before there are any such events.
    managerExternalHandler :: !(Ref (Token -> Events -> IO ())),
    -- | Full when it is finished.
    managerFinished :: !(MVar ())
  }

-- | The states of word 0, and the number of the other word ('managerState').
stateIdle, stateRunning, stateStopping, stateFinished, wordTurn :: Int
stateIdle = 0
stateRunning = 1
stateStopping = 2
stateFinished = 3
wordTurn = 1

-- | A manager over a timer queue and a back end, which it owns from now on; the last argument makes it ('reserving').
-- The function gets each timer that is pending when the manager is stopped; the back end's descriptors are closed then.
newManager :: Int -> Registry Manager -> Queue -> (Timer -> IO ()) -> IO Backend -> IO Manager
newManager managerIndex managerRegistry queue orphaned makeBackend = do
  -- First, since the kernel may refuse it: nothing has to be released then.
  managerBackend <- reserving managerRegistry backendDescriptors makeBackend
  managerTimers <- newTimers queue
  managerWake <- newWake
  managerHint <- newOwnWords 1
  managerChains <- newChains
  managerCounters <- newCounters
  managerLatency <- newLatency
  managerLateness <- newHistogram
  managerHeartbeat <- newHeartbeat managerIndex
  managerEventLog <- openEventLog
  managerState <- newOwnWords 2
  managerUse <- (\ws -> UseCount ws 0 0) <$> newOwnWords 1
  managerUnused <- newEmptyMVar
  managerGeneration <- forkGeneration
  managerRunner <- newRef Nothing
  managerFinisher <- newRef Nothing
  managerExternalHandler <- newRef (\_ _ -> pure ())
  managerFinished <- newEmptyMVar
  let m = Manager {managerTimerOwner = TimerOwner (onCancelled m) orphaned, ..}
  pure m
  where
    onCancelled m t = do
      countShared (managerCounters m) TimersCancelled
      full <- dropCancelled (managerTimers m) t
      when full (wakeManager m)

-- | A registry for managers.
newManagerRegistry :: IO (Registry Manager)
newManagerRegistry =
  newRegistry
    ManagerOps
      { opsBackend = managerBackend,
        opsAlive = isAlive,
        opsSame = sameManager,
        opsWake = wakeManager,
        opsCount = \m -> countSharedBy (managerCounters m) Descriptors
      }

-- | Whether they are the same manager.
sameManager :: Manager -> Manager -> Bool
sameManager a b = managerRunner a == managerRunner b
{-# INLINE sameManager #-}

-- | Whether it may be given work: this process image made it, and it is not being stopped.
isAlive :: Manager -> IO Bool
isAlive m = do
  state <- readState m
  generation <- forkGeneration
  pure (state <= stateRunning && generation == managerGeneration m)
{-# INLINE isAlive #-}

-- | Its state, as one of the numbers above.
readState :: Manager -> IO Int
readState m = readWord (managerState m) 0
{-# INLINE readState #-}

-- | Declare that the calling thread is going to run it. 'False' if a thread runs it already, or it was stopped.
initialize :: Manager -> IO Bool
initialize m = mask_ $ do
  found <- casWord (managerState m) 0 stateIdle stateRunning
  when (found == stateIdle) (writeRef (managerRunner m) . Just =<< myThreadId)
  pure (found == stateIdle)

-- | Whether it was not told to stop. Otherwise it is finished now.
isRunning :: Manager -> IO Bool
isRunning m = do
  state <- readState m
  (state == stateRunning) <$ unless (state == stateRunning) (finish m)

-- | Make the runner take a turn: a @step@ that blocks returns. Costs a system call only if it blocks.
wakeManager :: Manager -> IO ()
wakeManager m = mask_ (signalIf m =<< notify (managerWake m))

-- | Signal, if 'notify' returned 'True'. Exceptions are masked from the call of 'notify' on, because after it no
-- other thread sends this signal. Throws if the program has closed the back end's descriptor.
signalIf :: Manager -> Bool -> IO ()
signalIf m True = do
  countShared (managerCounters m) WakeupsSent
  mark (managerEventLog m) (Signalled (managerIndex m))
  unlessFinished m (backendWake (managerBackend m))
signalIf m False = countShared (managerCounters m) WakeupsSaved

-- | Use the back end, from any thread, masked, unless it is closed; it is not closed meanwhile.
unlessFinished :: Manager -> IO () -> IO ()
unlessFinished m act = do
  open <- acquire (managerUse m)
  when open $ do
    outcome <- attempt act
    release (managerUse m) >>= \final -> when final (putMVar (managerUnused m) ())
    outcome

-- | Tell the runner to stop, without waiting for it. A manager that no thread runs is finished at once. Masked: only
-- the thread that changes the state wakes the runner, or finishes the manager.
requestStop :: Manager -> IO ()
requestStop m = mask_ $ do
  found <- casWord (managerState m) 0 stateRunning stateStopping
  if found == stateRunning
    then wakeManager m
    else when (found == stateIdle) $ do
      found' <- casWord (managerState m) 0 stateIdle stateStopping
      if found' == stateIdle then finish m else requestStop m

-- | Stop it: its kernel objects are released, callbacks that are still registered are called with 'evtClose' and
-- 'evtOrphaned', and its pending timers go to the function of 'newManager'. Returns when that is done, or at once when
-- called from a callback. May be repeated. If the runner is in no turn, the caller does it, as there may be no more
-- turns.
shutdown :: Manager -> IO ()
shutdown m = do
  requestStop m
  runner <- readRef (managerRunner m)
  mine <- maybe (pure False) sameThread runner
  finishing <- readRef (managerFinisher m) >>= maybe (pure False) sameThread
  inTurn <- readWord (managerState m) wordTurn
  unless (finishing || (mine && inTurn /= 0)) $ do
    when (inTurn == 0) (finish m)
    readMVar (managerFinished m)

-- | Release everything. Threads that wait for tracked descriptors try again and find another manager. The kernel
-- objects are released first: there may be no other free descriptors for the manager that takes over.
finish :: Manager -> IO ()
finish m = uninterruptibleMask_ $ do
  found <- casWord (managerState m) 0 stateStopping stateFinished
  when (found == stateStopping) $ do
    myThreadId >>= writeRef (managerFinisher m) . Just
    orphans <- takeRegistrations (managerRegistry m) m
    -- Not by yielding until it is unused: beside a thread that yields again and again, GHC may leave a bound thread
    -- that has become runnable, as a user may be, without a capability until the next collection.
    shut (managerUse m) >>= \before -> when (before == StillUsed) (takeMVar (managerUnused m))
    releasing (managerRegistry m) (backendDescriptors (managerBackend m)) (backendClose (managerBackend m))
    dropHeartbeat (managerHeartbeat m)
    wakeReadiness (managerRegistry m)
    forM_ orphans (`runWith` unwatched)
    takeAll (managerTimers m) >>= mapM_ orphanTimer
    writeRef (managerFinisher m) Nothing
    void (tryPutMVar (managerFinished m) ())

-- | In a forked child: close the descriptors of a manager of the parent, without changing the kernel objects.
discard :: Manager -> IO ()
discard m = do
  old <- swapWord (managerState m) 0 stateFinished
  unless (old == stateFinished) (backendClose (managerBackend m))
