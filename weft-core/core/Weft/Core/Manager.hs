-- |
-- The event manager: a back end, a registry, timers and a sleep protocol, run by
-- one thread. A program's dispatchers are managers, one a capability, that share
-- a registry; an event-driven program makes managers of its own.
--
-- States, in one word that anybody may read:
--
-- @
--   Idle      made, nobody runs it           -> Running ('initialize'), Finished ('shutdown')
--   Running   'step' or 'loop' may be called -> Stopping ('shutdown')
--   Stopping  the runner is to clean up      -> Finished (the runner, in 'step')
--   Finished  nothing is left
-- @
--
-- Exceptions thrown at the runner: a turn is uninterruptible. An event that the kernel has handed over is reported nowhere else again
-- (a one-shot or edge-triggered one is used up), and a callback that was taken out of the table must run; so from the kernel's answer
-- to the last callback no exception may arrive. They arrive between turns: 'loop' then stops the manager in order, and whoever calls
-- 'step' has lost nothing and may go on. Nothing in a turn blocks for long but the kernel, where GHC interrupts nobody, and callbacks,
-- which must not; those of users are made interruptible again by who registers them ("Weft.Event"), and an exception that ends one is
-- kept until the turn is over ('guarded').
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
    requestStop,
    shutdown,
    discard,

    -- * Within a larger loop
    -- $within
    poll,
    sleepUnless,
    setExternalHandler,
    orphanTimers,

    -- * Timers
    addTimer,
    addPlainTimer,
    addOwnTimer,
    addFresh,
    dropFresh,
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
import Weft.Core.Wake
import Weft.Sys

-- | An event manager.
data Manager = Manager
  { -- | Where events come from.
    managerBackend :: !Backend,
    -- | Who is told about which descriptor.
    managerRegistry :: !(Registry Manager),
    managerTimers :: !Timers,
    -- | For its timers: the way back.
    managerTimerOwner :: TimerOwner,
    managerWake :: !Wake,
    -- | When the earliest timer for which the runner was woken is due, in ns, or 0:
    -- until then it will not sleep past that instant, even if the timer is gone. A
    -- thread that sets and cancels timers over and over so wakes it once in their
    -- length, not each time. Written by wakers, cleared by the runner.
    managerHint :: !AtomicWords,
    -- | What it did, for "Weft.Metrics".
    managerCounters :: !Counters,
    -- | How long after their events threads run.
    managerLatency :: {-# UNPACK #-} !Latency,
    -- | How long after they were due timers are fired. Written by the runner.
    managerLateness :: !Histogram,
    -- | What the runner does now, for the watchdog. Written by the runner.
    managerHeartbeat :: !Heartbeat,
    -- | Where it writes down what it does.
    managerEventLog :: !EventLog,
    -- | Which of a program's dispatchers it is, from zero; -1 for one that the
    -- program made itself.
    managerIndex :: !Int,
    -- | The state above, in word 0, moved by compare-and-swap; in 'wordSignalling'
    -- how many threads are about to signal, which the runner lets pass before it
    -- closes the back end; in 'wordTurn' whether the runner is in a turn, written by
    -- the runner.
    managerState :: !AtomicWords,
    -- | The process that made it; in a forked child it must not be used.
    managerGeneration :: !Int,
    -- | Who runs it. Written by 'initialize'.
    managerRunner :: !(Ref (Maybe ThreadId)),
    -- | Who is told of events with an external handler's token. Written before there are any.
    managerExternalHandler :: !(Ref (Token -> Events -> IO ())),
    -- | Full when it is finished.
    managerFinished :: !(MVar ())
  }

stateIdle, stateRunning, stateStopping, stateFinished :: Int
stateIdle = 0
stateRunning = 1
stateStopping = 2
stateFinished = 3

wordSignalling, wordTurn :: Int
wordSignalling = 1
wordTurn = 2

-- | A manager over a back end and a queue for timers, which it owns from now on. The
-- function is told of plain timers that were not due when it was stopped.
newManager :: Int -> Registry Manager -> Queue -> (Instant -> IO () -> IO ()) -> Backend -> IO Manager
newManager index registry queue resettle backend = do
  reserve registry (backendDescriptors backend)
  timers <- newTimers queue
  wake <- newWake
  hint <- newAtomicWords 1
  counters <- newCounters
  latency <- newLatency
  lateness <- newHistogram
  heartbeat <- newHeartbeat index
  eventLog <- openEventLog
  state <- newAtomicWords 3
  generation <- forkGeneration
  runner <- newRef Nothing
  external <- newRef (\_ _ -> pure ())
  finished <- newEmptyMVar
  let owner = TimerOwner (onCancelled m) resettle
      m = Manager backend registry timers owner wake hint counters latency lateness heartbeat eventLog index state generation runner external finished
  pure m
  where
    onCancelled m = do
      countShared (managerCounters m) TimersCancelled
      full <- noteCancelled (managerTimers m)
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

-- | The same manager?
sameManager :: Manager -> Manager -> Bool
sameManager a b = managerRunner a == managerRunner b
{-# INLINE sameManager #-}

-- | May it be given work: made by this process and not about to stop?
isAlive :: Manager -> IO Bool
isAlive m = do
  state <- readWord (managerState m) 0
  generation <- forkGeneration
  pure (state <= stateRunning && generation == managerGeneration m)
{-# INLINE isAlive #-}

-- Running ------------------------------------------------------------------------

-- | The calling thread is going to run it. 'False': somebody runs it already, or it
-- was stopped.
initialize :: Manager -> IO Bool
initialize m = mask_ $ do
  found <- casWord (managerState m) 0 stateIdle stateRunning
  when (found == stateIdle) (writeRef (managerRunner m) . Just =<< myThreadId)
  pure (found == stateIdle)

-- | One turn (2013, 3.3): apply changes of timers, fire those that are due, look
-- for events without blocking; if there was nothing, let other threads run and
-- look again; and only then block until an event, a due timer or a wake-up.
-- 'False': the manager was told to stop, and has. Asynchronous exceptions arrive before
-- it or after it.
step :: Manager -> IO Bool
step m = uninterruptibleMask_ $ do
  state <- readWord (managerState m) 0
  if state /= stateRunning
    then False <$ finish m
    else do
      pokeWord (managerState m) wordTurn 1
      turn `onException` over
      over
      pure True
  where
    over = beat (managerHeartbeat m) Outside >> pokeWord (managerState m) wordTurn 0
    turn = do
      watched <- isWatched (managerHeartbeat m)
      when watched (beat (managerHeartbeat m) InTurn)
      busy <- look m
      unless busy $ do
        when watched (beat (managerHeartbeat m) Yielded)
        yield
        again <- look m
        unless again (sleep m watched)

-- | Turns without end, letting other threads run after each that found something. Returns when the manager has stopped. Should an
-- exception end the loop, which one from another thread does between turns, the manager is stopped. Exceptions are let in between
-- turns also where the caller has masked them, unless uninterruptibly: masking from before 'initialize' on leaves no moment in which
-- one ends the runner and leaves the manager running.
loop :: Manager -> IO ()
loop m = mask_ $ do
  pokeWord (managerState m) wordTurn 1
  interruptible turns `onException` uninterruptibleMask_ (requestStop m >> finish m)
  where
    turns = do
      going <- uninterruptibleMask_ turn
      when going turns
    turn = do
      state <- readWord (managerState m) 0
      if state /= stateRunning
        then False <$ finish m
        else do
          watched <- isWatched (managerHeartbeat m)
          when watched (beat (managerHeartbeat m) InTurn)
          busy <- look m
          when watched (beat (managerHeartbeat m) Yielded)
          yield
          unless busy $ do
            again <- look m
            if again then yield else sleep m watched
          pure True

-- $within
-- For a thread that runs a manager as a part of its own loop, after 'initialize'.
-- Once the manager was told to stop, one call of 'step' ends it.

-- | A turn that never blocks: due timers and ready descriptors. Was there anything?
poll :: Manager -> IO Bool
poll = look

-- | Block until an event, a due timer or a wake-up, unless the action finds that
-- there is something to do. It is run after the manager has announced that it
-- sleeps, so whoever publishes work first and then calls 'wakeManager' is not
-- missed.
sleepUnless :: Manager -> IO Bool -> IO ()
sleepUnless m = sleepWith m False
{-# INLINE sleepUnless #-}

-- | From now on events of descriptors that were armed in the manager's back end
-- with an external handler's token go to the function, on the runner's thread. It must neither
-- block nor throw.
setExternalHandler :: Manager -> (Token -> Events -> IO ()) -> IO ()
setExternalHandler = writeRef . managerExternalHandler

-- | Timers and events, without blocking. Was there anything?
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

-- | Block, unless something was pushed meanwhile. The order matters: announce,
-- look at the inbox, block ("Weft.Core.Wake").
sleep :: Manager -> Bool -> IO ()
sleep m !watched = sleepWith m watched (pure False)
{-# INLINE sleep #-}

-- | With whether the runner is watched: then it blocks for no longer than the watchdog's bound.
sleepWith :: Manager -> Bool -> IO Bool -> IO ()
sleepWith m !watched busy = do
  due <- min <$> nextDue (managerTimers m) <*> hinted m
  ok <- announce (managerWake m) due
  when ok $ do
    -- This read comes first: it is sequentially consistent, and a plain read, as those of the inbox and of 'busy' are,
    -- may on ARM be done before an earlier compare-and-swap is seen by others, but not before an earlier
    -- atomic read, which itself is not done before that.
    state <- readWord (managerState m) 0
    news <- hasNews (managerTimers m)
    other <- busy
    unless (news || other || state /= stateRunning) $ do
      wait <- if watched then waitUntil due >>= restWatched (managerHeartbeat m) else waitUntil due
      count (managerCounters m) Sleeps
      mark (managerEventLog m) Sleeping
      n <- backendPoll (managerBackend m) wait (handle m) `onException` awaken (managerWake m)
      when watched (beat (managerHeartbeat m) InTurn)
      mark (managerEventLog m) (Woken n)
      countBy (managerCounters m) Dispatched n
      unless (n == 0) (endBatch (managerLatency m))
    awaken (managerWake m)
{-# NOINLINE sleepWith #-}

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

-- | Make the runner take a turn: interrupts a 'step' that blocks. Free unless it
-- does.
wakeManager :: Manager -> IO ()
wakeManager m = signalIf m =<< notify (managerWake m)

signalIf :: Manager -> Bool -> IO ()
signalIf m True = mask_ $ do
  countShared (managerCounters m) WakeupsSent
  mark (managerEventLog m) (Signalled (managerIndex m))
  _ <- addWord (managerState m) wordSignalling 1
  state <- readWord (managerState m) 0
  unless (state == stateFinished) (backendWake (managerBackend m))
  void (addWord (managerState m) wordSignalling (-1))
signalIf m False = countShared (managerCounters m) WakeupsSaved

-- | Tell the runner to stop, without waiting for it. A manager that nobody runs
-- is finished at once.
requestStop :: Manager -> IO ()
requestStop m = do
  found <- casWord (managerState m) 0 stateRunning stateStopping
  if found == stateRunning
    then wakeManager m
    else when (found == stateIdle) $ do
      found' <- casWord (managerState m) 0 stateIdle stateStopping
      if found' == stateIdle then finish m else requestStop m

-- | Stop it: its kernel objects are given back, callbacks that are still
-- registered are called with 'evtClose', its timers never fire. Returns when that
-- is done, or at once when called from a callback. Any number of times. A manager
-- whose runner is dead is cleaned up by the caller.
shutdown :: Manager -> IO ()
shutdown m = do
  requestStop m
  runner <- readRef (managerRunner m)
  mine <- maybe (pure False) sameThread runner
  inTurn <- peekWord (managerState m) wordTurn
  orphan <- maybe (pure False) hasEnded runner
  when (orphan || (mine && inTurn == 0)) (finish m)
  unless (mine && inTurn /= 0) (readMVar (managerFinished m))

-- | The runner's last act. Waiters on tracked descriptors try again and find another manager.
finish :: Manager -> IO ()
finish m = uninterruptibleMask_ $ do
  found <- casWord (managerState m) 0 stateStopping stateFinished
  when (found == stateStopping) $ do
    orphans <- abandon (managerRegistry m) m
    wakeReadiness (managerRegistry m)
    forM_ orphans $ \reg -> guarded (registrationCallback reg (evtClose <> evtOrphaned))
    takeAll (managerTimers m) >>= mapM_ (fireTimer Orphaned)
    letSignallersPass
    unreserve (managerRegistry m) (backendDescriptors (managerBackend m))
    backendClose (managerBackend m)
    dropHeartbeat (managerHeartbeat m)
    void (tryPutMVar (managerFinished m) ())
  where
    letSignallersPass = do
      signalling <- readWord (managerState m) wordSignalling
      unless (signalling == 0) (yield >> letSignallersPass)

-- | In a forked child: give back the descriptors of a manager of the parent,
-- without touching what is shared with it.
discard :: Manager -> IO ()
discard m = do
  old <- swapWord (managerState m) 0 stateFinished
  unless (old == stateFinished) (backendClose (managerBackend m))

-- Timers ---------------------------------------------------------------------------

-- | How many timers are pending, from any thread.
managerPending :: Manager -> IO Int
managerPending = pendingTimers . managerTimers

-- | Run an action on the manager's thread at an instant, or as soon as possible
-- after it, never before; or when the manager is stopped, with 'Orphaned'. The
-- action must not block. One compare-and-swap, and a
-- signal only when the runner would sleep past the instant. 'cancelTimer' takes it
-- back.
addTimer :: Manager -> Instant -> Action -> IO Timer
addTimer m due act = newTimer (managerTimerOwner m) due act >>= set m

-- | The same for an action that does not care about the manager: should that be
-- stopped, the timer's owner has it set again elsewhere, or forgets it.
addPlainTimer :: Manager -> Instant -> IO () -> IO Timer
addPlainTimer m due act = newPlainTimer (managerTimerOwner m) due act >>= set m

set :: Manager -> Timer -> IO Timer
set m t = do
  full <- setTimer (managerTimers m) t
  countShared (managerCounters m) TimersSet
  t <$ settled m full (timerDue t)
{-# INLINE set #-}

-- | 'addPlainTimer' for the manager's own runner: straight into the queue, without
-- atomic instructions.
addOwnTimer :: Manager -> Instant -> IO () -> IO Timer
addOwnTimer m due act = do
  t <- newPlainTimer (managerTimerOwner m) due act
  t <$ enterTimer (managerTimers m) t
{-# INLINE addOwnTimer #-}

-- | For the runner: have all pending timers told, or resettled by their owner, as at the manager's
-- end, and go on. O(timers).
orphanTimers :: Manager -> IO ()
orphanTimers = orphanAll . managerTimers

-- | 'addTimer' for a timer that will most likely be dropped soon by the same thread.
addFresh :: Manager -> Instant -> Action -> IO Fresh
addFresh m due act = do
  (t, full) <- setFresh (managerTimers m) =<< newTimer (managerTimerOwner m) due act
  countShared (managerCounters m) TimersSet
  t <$ settled m full due

-- | Cancel one of those; 'False' when it had fired or was cancelled before.
dropFresh :: Manager -> Fresh -> IO Bool
dropFresh m t = do
  (cancelled, full) <- cancelFresh (managerTimers m) t
  when cancelled (countShared (managerCounters m) TimersCancelled)
  when full (wakeManager m)
  pure cancelled

-- | After a timer was pushed. The runner of a manager that stops empties the inbox
-- once after it has said so; who pushes later finds that out here and has the
-- timer's action told.
settled :: Manager -> Bool -> Instant -> IO ()
settled m full due = do
  state <- readWord (managerState m) 0
  if state <= stateRunning
    then prod m full due
    else takeInbox (managerTimers m) >>= mapM_ (fireTimer Orphaned)
{-# INLINE settled #-}

prod :: Manager -> Bool -> Instant -> IO ()
prod m True _ = wakeManager m
prod m False due = do
  needed <- notifyBefore (managerWake m) due
  when needed $ do
    let Instant t = due
    writeWord (managerHint m) 0 (max 1 (fromIntegral t))
  signalIf m needed
{-# INLINE prod #-}
