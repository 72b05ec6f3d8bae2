-- | The event manager: a back end, a registry, timers and a sleep protocol, run by one thread. A program's dispatchers
-- are managers, one a capability, that share a registry; an event-driven program makes managers of its own.
--
-- States, in one word that anybody may read:
--
-- @
--   Idle      no thread runs it yet          -> Running ('initialize'), Stopping ('requestStop', which then cleans up)
--   Running   'step' or 'loop' may be called -> Stopping ('requestStop')
--   Stopping  is to be cleaned up            -> Finished (the runner; 'shutdown', if the runner is in no turn)
--   Finished  nothing is left
-- @
--
-- The runner is the thread that runs the manager. Exceptions thrown at it arrive between turns: 'loop' then stops the
-- manager, and a caller of 'step' has lost nothing and may go on. A turn is uninterruptible, because the kernel reports
-- a one-shot or edge-triggered event only once, and a callback that was taken out of the registry must run. Only the
-- kernel, where GHC interrupts no thread, and callbacks, which must not block, may take long. "Weft.Event" makes
-- callbacks of users interruptible again; no exception that ends one ends the turn ("Weft.Core.Boundary").
module Weft.Core.Manager
  ( Manager,
    newManager,
    registryFor,
    managerBackend,
    managerRegistry,
    managerCounters,
    managerLatency,
    managerLateness,
    managerPending,
    managerHeartbeat,
    managerEventLog,
    managerIndex,
    isAlive,
    sameManager,

    -- * Running
    initialize,
    step,
    loop,
    wakeManager,
    unlessFinished,
    requestStop,
    shutdown,
    discard,

    -- * Within a larger loop
    -- $within
    poll,
    block,
    setExternalHandler,
    orphanTimers,

    -- * Timers
    addTimer,
    addOptionalTimer,
    addOwnTimer,
    moveTimer,
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
import Weft.Core.Time (Instant (..), never)
import qualified Weft.Core.Time as Time
import Weft.Core.Timer
import Weft.Core.Timers
import Weft.Core.UseCount (Shut (StillUsed), UseCount (..), acquire, release, shut)
import Weft.Core.Wake
import Weft.Core.Yield
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
    managerHint :: !AtomicWords,
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
    -- | Word 0: the state above, changed by compare-and-swap. 'wordTurn': whether the runner is in a turn, or in 'loop'.
    managerState :: !AtomicWords,
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

stateIdle, stateRunning, stateStopping, stateFinished, wordTurn :: Int
stateIdle = 0
stateRunning = 1
stateStopping = 2
stateFinished = 3
wordTurn = 1

-- | A manager over a timer queue and a back end, which it owns from now on; the last argument makes it ('reserving'). The
-- function gets each timer that is pending when the manager is stopped; the back end's descriptors are closed then.
newManager :: Int -> Registry Manager -> Queue -> (Timer -> IO ()) -> IO Backend -> IO Manager
newManager index registry queue orphaned makeBackend = do
  -- First, since the kernel may refuse it: nothing has to be released then.
  backend <- reserving registry backendDescriptors makeBackend
  timers <- newTimers queue
  wake <- newWake
  hint <- newOwnWords 1
  counters <- newCounters
  latency <- newLatency
  lateness <- newHistogram
  heartbeat <- newHeartbeat index
  eventLog <- openEventLog
  state <- newOwnWords 2
  users <- (\ws -> UseCount ws 0 0) <$> newOwnWords 1
  unused <- newEmptyMVar
  generation <- forkGeneration
  runner <- newRef Nothing
  finisher <- newRef Nothing
  external <- newRef (\_ _ -> pure ())
  finished <- newEmptyMVar
  let owner = TimerOwner (onCancelled m) orphaned
      m = Manager backend registry timers owner wake hint counters latency lateness heartbeat eventLog index state users unused generation runner finisher external finished
  pure m
  where
    onCancelled m t = do
      countShared (managerCounters m) TimersCancelled
      full <- dropCancelled (managerTimers m) t
      when full (wakeManager m)

-- | A registry for managers.
registryFor :: IO (Registry Manager)
registryFor =
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
  state <- readWord (managerState m) 0
  generation <- forkGeneration
  pure (state <= stateRunning && generation == managerGeneration m)
{-# INLINE isAlive #-}

-- Running ------------------------------------------------------------------------

-- | Declare that the calling thread is going to run it. 'False' if a thread runs it already, or it was stopped.
initialize :: Manager -> IO Bool
initialize m = mask_ $ do
  found <- casWord (managerState m) 0 stateIdle stateRunning
  when (found == stateIdle) (writeRef (managerRunner m) . Just =<< myThreadId)
  pure (found == stateIdle)

-- | One turn (Voellmy and others 2013, 3.3): apply changes of timers, fire those that are due, look for events without
-- blocking; if there was none, let other threads run, look again, and only then block until an event, a due timer or a
-- wake-up. 'False' if the manager has stopped. Asynchronous exceptions arrive only before or after a turn. The turn is
-- written before the state is read, and 'shutdown' does the opposite: at least one sees the other's write.
step :: Manager -> IO Bool
step m = uninterruptibleMask_ $ do
  _ <- swapWord (managerState m) wordTurn 1
  running <- isRunning m
  if running then (turn `onException` over) >> over else pure False
  where
    over = do
      beat (managerHeartbeat m) Outside
      writeWord (managerState m) wordTurn 0
      isRunning m
    turn = do
      watched <- isWatched (managerHeartbeat m)
      when watched (beat (managerHeartbeat m) InTurn)
      busy <- look m
      unless busy $ do
        when watched (beat (managerHeartbeat m) Yielded)
        yield
        again <- look m
        unless again (void (sleep m watched))

-- | Whether it was not told to stop. Otherwise it is finished now.
isRunning :: Manager -> IO Bool
isRunning m = do
  state <- readWord (managerState m) 0
  (state == stateRunning) <$ unless (state == stateRunning) (finish m)

-- | Run turns until the manager has stopped. After a turn that found something, other threads run. An exception from
-- another thread ends the loop and stops the manager. It arrives between turns, also if the caller has masked
-- exceptions (unless uninterruptibly). A caller that masks them before 'initialize' thus always stops the manager.
loop :: Manager -> IO ()
loop m = mask_ $ do
  _ <- swapWord (managerState m) wordTurn 1
  chains <- newChains
  interruptible (turns chains Looked) `onException` uninterruptibleMask_ (requestStop m >> finish m)
  where
    turns chains before = do
      next <- uninterruptibleMask_ (turn chains before)
      if next == Stopped then pure () else turns chains next
    turn chains before = do
      running <- isRunning m
      if not running
        then pure Stopped
        else do
          watched <- isWatched (managerHeartbeat m)
          when watched (beat (managerHeartbeat m) InTurn)
          -- The kernel has just reported all events: the woken threads run before the next poll.
          busy <- if before == WokenUp then runTimers m else look m
          when watched (beat (managerHeartbeat m) Yielded)
          if before == WokenUp then yieldToWoken chains else yield
          if busy
            then pure Looked
            else do
              again <- look m
              if again then Looked <$ yield else (\n -> if n > 0 then WokenUp else Looked) <$> sleep m watched

-- | How a turn of 'loop' ended: with a poll that did not block, a sleep that events ended (dispatched), or the stop.
data Ended = Looked | WokenUp | Stopped
  deriving (Eq)

-- $within
-- For a thread that runs a manager in its own loop, after 'initialize'. Once it was told to stop, a 'step' ends it.

-- | A turn that never blocks: timers that are due and descriptors that are ready. 'True' if there were any.
poll :: Manager -> IO Bool
poll = look

-- | Block until an event, a due timer or a wake-up. It does not block if 'wakeManager' was called after the last call
-- ended: work that is published before that is not missed, as long as the caller looks for it between two calls.
block :: Manager -> IO ()
block m = void (sleep m False)

-- | Set the handler of events of descriptors that were armed in the back end with an external token ('externalToken'). It
-- runs on the runner's thread, and must neither block nor throw.
setExternalHandler :: Manager -> (Token -> Events -> IO ()) -> IO ()
setExternalHandler = writeRef . managerExternalHandler

-- | Timers and events, without blocking. 'True' if there were any.
look :: Manager -> IO Bool
look m = do
  fired <- runTimers m
  n <- backendPoll (managerBackend m) NoWait (handle m)
  if n == 0
    then count (managerCounters m) PollsEmpty
    else do
      count (managerCounters m) PollsFull
      countBy (managerCounters m) Dispatched n
      endBatch (managerLatency m)
      mark (managerEventLog m) (Handed n)
  pure $! n /= 0 || fired

-- | Block, unless a timer was set or a wake-up was requested meanwhile. The order matters: announce, check the inbox,
-- block ("Weft.Core.Wake"). Returns the number of events that ended it; they have been delivered. The 'Bool' says
-- whether there is a watchdog: then it blocks no longer than the watchdog's bound.
sleep :: Manager -> Bool -> IO Int
sleep m !watched = do
  due <- min <$> nextDue (managerTimers m) <*> hinted m
  ok <- announce (managerWake m) due
  if not ok
    then pure 0
    else do
      -- First: on ARM a plain read, such as that of the inbox, may be done before other cores see an earlier
      -- compare-and-swap, but not before an earlier atomic read; and that is not done before they see it.
      state <- readWord (managerState m) 0
      news <- hasNews (managerTimers m)
      found <-
        if news || state /= stateRunning
          then pure 0
          else do
            wait <- if watched then waitUntil due >>= restWatched (managerHeartbeat m) else waitUntil due
            count (managerCounters m) Sleeps
            mark (managerEventLog m) Sleeping
            n <- backendPoll (managerBackend m) wait (handle m) `onException` awaken (managerWake m)
            when watched (beat (managerHeartbeat m) InTurn)
            mark (managerEventLog m) (Woken n)
            countBy (managerCounters m) Dispatched n
            unless (n == 0) (endBatch (managerLatency m))
            pure n
      found <$ awaken (managerWake m)
{-# NOINLINE sleep #-}

waitUntil :: Instant -> IO Wait
waitUntil due
  | due == never = pure Forever
  | otherwise = WaitFor . Time.until due <$> now

handle :: Manager -> Token -> Events -> IO ()
handle m tok evs = do
  stamp <- stampEvent (managerLatency m)
  if isReadinessToken tok
    then deliverTo (managerRegistry m) stamp tok evs
    else
      if isExternalToken tok
        then readRef (managerExternalHandler m) >>= \external -> external tok evs
        else
          during (managerHeartbeat m) (InCallback (tokenFd tok)) $
            dispatch (managerRegistry m) (tokenFd tok) (Just (tokenGeneration tok)) evs
{-# INLINE handle #-}

runTimers :: Manager -> IO Bool
runTimers m = do
  applyNews ts
  next <- nextDue ts
  if next == never
    then pure False
    else do
      t <- now
      if next > t
        then pure False
        else do
          fired <- during (managerHeartbeat m) InTimers $ expireTimers ts t (\due -> observe (managerLateness m) (Time.until t due))
          countBy (managerCounters m) TimersFired fired
          when (fired > 0) (mark (managerEventLog m) (Fired fired))
          pure (fired > 0)
  where
    ts = managerTimers m

-- | 'managerHint', cleared when it has passed.
hinted :: Manager -> IO Instant
hinted m = do
  hint <- readWord (managerHint m) 0
  if hint == 0
    then pure never
    else do
      t <- now
      if Instant (fromIntegral hint) > t
        then pure (Instant (fromIntegral hint))
        else never <$ casWord (managerHint m) 0 hint 0

-- | Make the runner take a turn: a 'step' that blocks returns. Costs a system call only if it blocks.
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

-- | Tell the runner to stop, without waiting for it. A manager that no thread runs is finished at once. Masked: only the
-- thread that changes the state wakes the runner, or finishes the manager.
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
-- called from a callback. May be repeated. If the runner is in no turn, the caller does it, as there may be no more turns.
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
    -- Not by yielding until it is unused: beside a thread that yields again and again, GHC may leave a bound thread that
    -- has become runnable, as a user may be, without a capability until the next collection.
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

-- Timers ---------------------------------------------------------------------------

-- | The number of pending timers. Any thread may call this.
managerPending :: Manager -> IO Int
managerPending = pendingTimers . managerTimers

-- | Run an action on the runner at an instant, or as soon as possible after it, never before. The action must not block.
-- Costs one compare-and-swap, and a signal only if the runner would sleep past the instant. 'cancelTimer' cancels it. If
-- the manager is stopped before, the function of 'newManager' gets the timer.
addTimer :: Manager -> Instant -> IO () -> IO Timer
addTimer m due act = newTimer (managerTimerOwner m) due act >>= set m

-- | 'addTimer' for a timer that may not be needed any more when the manager is stopped: the action is run then too, and
-- returns whether another manager is to have the timer.
addOptionalTimer :: Manager -> Instant -> (Expiry -> IO Bool) -> IO Timer
addOptionalTimer m due act = newOptionalTimer (managerTimerOwner m) due act >>= set m

-- | Take over a pending timer of a manager that was stopped. No effect if it was cancelled.
moveTimer :: Manager -> Timer -> IO ()
moveTimer m t = mask_ (adoptTimer (managerTimerOwner m) t >>= \pending -> when pending (void (set m t)))

set :: Manager -> Timer -> IO Timer
set m t = mask_ $ do
  full <- setTimer (managerTimers m) t
  countShared (managerCounters m) TimersSet
  t <$ settled m full (timerDue t)
{-# INLINE set #-}

-- | 'addTimer' for the runner only: it puts the timer directly into the queue, without atomic instructions.
addOwnTimer :: Manager -> Instant -> IO () -> IO Timer
addOwnTimer m due act = newTimer (managerTimerOwner m) due act >>= \t -> t <$ enterTimer (managerTimers m) t
{-# INLINE addOwnTimer #-}

-- | For the runner: do with all pending timers what happens when the manager is stopped. O(timers).
orphanTimers :: Manager -> IO ()
orphanTimers = orphanAll . managerTimers

-- | To be called after a timer was pushed, masked from there on. The runner of a stopping manager empties the inbox
-- after it has changed the state. A thread that pushes later sees the state, and does the runner's work ('orphanTimer').
settled :: Manager -> Bool -> Instant -> IO ()
settled m full due = do
  state <- readWord (managerState m) 0
  if state <= stateRunning
    then prod m full due
    else takeInbox (managerTimers m) >>= mapM_ orphanTimer
{-# INLINE settled #-}

prod :: Manager -> Bool -> Instant -> IO ()
prod m True _ = wakeManager m
prod m False due@(Instant t) = do
  needed <- notifyBefore (managerWake m) due
  when needed (writeWord (managerHint m) 0 (max 1 (fromIntegral t)))
  signalIf m needed
{-# INLINE prod #-}
