-- | The turns of a manager, for the thread that runs it ("Weft.Core.Manager"). No function here may be called by
-- another thread. They throw nothing: callbacks and timers are called through "Weft.Core.Boundary".
module Weft.Core.Manager.Turn
  ( step,
    loop,

    -- * Within a larger loop
    -- $within
    poll,
    block,
    setExternalHandler,
  )
where

import Control.Monad (unless, void, when)
import Weft.Core.Backend
import Weft.Core.Counters
import Weft.Core.EventLog
import Weft.Core.Events
import Weft.Core.Heartbeat
import Weft.Core.Histogram
import Weft.Core.Latency
import Weft.Core.Manager.Lifecycle
import Weft.Core.Registry
import Weft.Core.Time (Instant (..), never)
import qualified Weft.Core.Time as Time
import Weft.Core.Timers
import Weft.Core.Wake
import Weft.Core.Yield (yieldToWoken)
import Weft.Sys

-- | One turn ('turn'). 'False' if the manager has stopped. Asynchronous exceptions arrive only before or after a turn.
-- That a turn runs is written before the state is read, and 'shutdown' does the opposite: at least one sees the other's
-- write.
step :: Manager -> IO Bool
step m = uninterruptibleMask_ $ do
  _ <- swapWord (managerState m) wordTurn 1
  ended <- turn m Looked `onException` over
  if ended == Stopped then pure False else over
  where
    over = do
      beat (managerHeartbeat m) Outside
      writeWord (managerState m) wordTurn 0
      isRunning m

-- | Run turns until the manager has stopped. An exception from another thread ends the loop and stops the manager. It
-- arrives between turns, also if the caller has masked exceptions (unless uninterruptibly). A caller that masks them
-- before 'initialize' thus always stops the manager.
loop :: Manager -> IO ()
loop m = mask_ $ do
  _ <- swapWord (managerState m) wordTurn 1
  interruptible (turns Looked) `onException` uninterruptibleMask_ (requestStop m >> finish m)
  where
    turns before = do
      ended <- uninterruptibleMask_ (turn m before)
      if ended == Stopped then pure () else turns ended

-- | How a turn ended: with a poll that did not block, a sleep that events ended (dispatched), or the stop.
data Ended = Looked | WokenUp | Stopped
  deriving (Eq)

-- | One turn (Voellmy and others 2013, 3.3), after one that ended so: apply changes of timers, fire those that are due,
-- look for events without blocking, and let other threads run; if there was none, look again, and only then block until
-- an event, a due timer or a wake-up.
turn :: Manager -> Ended -> IO Ended
turn m before = do
  running <- isRunning m
  if not running
    then pure Stopped
    else do
      watched <- isWatched (managerHeartbeat m)
      when watched (beat (managerHeartbeat m) InTurn)
      -- The kernel has just reported all events: the woken threads run before the next poll.
      busy <- if before == WokenUp then runTimers m else look m
      when watched (beat (managerHeartbeat m) Yielded)
      if before == WokenUp then yieldToWoken (managerChains m) else yield
      if busy
        then pure Looked
        else do
          again <- look m
          if again then Looked <$ yield else (\n -> if n > 0 then WokenUp else Looked) <$> sleep m watched

-- $within
-- For a thread that runs a manager in its own loop, after 'initialize'. Once it was told to stop, a 'step' ends it.

-- | A turn that never blocks: timers that are due and descriptors that are ready. 'True' if there were any.
poll :: Manager -> IO Bool
poll = look

-- | Block until an event, a due timer or a wake-up. It does not block if 'wakeManager' was called after the last call
-- ended: work that is published before that is not missed, as long as the caller looks for it between two calls.
block :: Manager -> IO ()
block m = void (sleep m False)

-- | Set the handler of events of descriptors that were armed in the back end with an external token ('externalToken').
-- It runs on the runner's thread, and must neither block nor throw.
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
      state <- readState m
      news <- hasNews (managerTimers m)
      found <-
        if news || state /= stateRunning
          then pure 0
          else do
            wait <- if watched then waitUntil due >>= restWatched (managerHeartbeat m) else waitUntil due
            count (managerCounters m) Sleeps
            mark (managerEventLog m) Sleeping
            n <- backendPoll (managerBackend m) wait (handle m) `onException` retract (managerWake m)
            when watched (beat (managerHeartbeat m) InTurn)
            mark (managerEventLog m) (Woken n)
            countBy (managerCounters m) Dispatched n
            unless (n == 0) (endBatch (managerLatency m))
            pure n
      found <$ retract (managerWake m)
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
