-- |
-- Event flags: hybrid threads wait for one, and any thread raises it (a GHC thread, a callback, a thread of another
-- library). A library whose operations may have to wait raises a flag when trying again may succeed. No
-- GHC thread is needed in between.
--
-- > -- Try until there is a result.
-- > perform :: Flag -> IO (Maybe a) -> Hybrid a
-- > perform flag attempt = do
-- >   r <- nonBlocking (lowerFlag flag >> attempt)
-- >   maybe (awaitFlag flag >> perform flag attempt) pure r
--
-- A thread that changes the state that the attempt reads raises the flag afterwards. The flag is lowered
-- before the attempt, so a later change is not missed.
--
-- @
--   lowered    -> raised     'raiseFlag'
--              -> waiting    'awaitFlag': a thread waits
--   waiting    -> waiting    another thread waits; one is interrupted, or its time is over
--              -> lowered    the last one of those
--              -> raised     'raiseFlag', which resumes all of them, each on the loop where it waits
--   raised     -> lowered    'lowerFlag'; 'awaitFlag', which does not wait then
-- @
--
-- All moves are compare-and-swaps. Raising a flag resumes all threads that wait, and it stays raised: a thread
-- that has tried before and is about to wait tries again. Several threads may wait for one flag, if
-- each of them that leaves something for the others raises it again.
--
-- @since 0.1.0
module Weft.Hybrid.Flag
  ( Flag,
    newFlag,
    raiseFlag,
    lowerFlag,
    awaitFlag,
    awaitFlagUntil,
  )
where

import Control.Monad (forM_, unless, void, when)
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Manager (addOwnTimer)
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys (Ref, casRef, mask_, newRef, readRef)

-- | An event flag. A lowered flag that no thread waits for takes two words.
newtype Flag = Flag (Ref Contents)
  deriving (Eq)

-- | Threads wait only while it is lowered.
data Contents = Contents
  { isRaised :: !Bool,
    -- | Whether it is in the registry of "Weft.Hybrid.Blocked".
    isRegistered :: !Bool,
    threads :: !(IntMap.IntMap Waits)
  }

-- | A thread, its loop, its continuation, and what has to be done if it is interrupted.
data Waits = Waits !Loop !Waiter Task (IO ())

-- | A lowered flag.
newFlag :: IO Flag
newFlag = let !c = lowered in Flag <$> newRef c

lowered :: Contents
lowered = Contents False False IntMap.empty

-- | Raise the flag and resume the threads that wait for it. Any thread and any callback may call this; it does not
-- block. It is a full memory barrier, also if the flag was raised already.
raiseFlag :: Flag -> IO ()
raiseFlag (Flag ref) = mask_ go
  where
    go = do
      c <- readRef ref
      let !c' = if isRaised c then c else c {isRaised = True, threads = IntMap.empty}
      ok <- casRef ref c c'
      if ok then unless (isRaised c) (mapM_ wake (threads c)) else go
    wake (Waits l w task _) = resume (toLoop l) w task

-- | Lower the flag. No effect if it is lowered.
lowerFlag :: Flag -> IO ()
lowerFlag (Flag ref) = go
  where
    go = do
      c <- readRef ref
      when (isRaised c) $ do
        let !c' = c {isRaised = False}
        ok <- casRef ref c c'
        unless ok go

-- | Wait until the flag is raised. If it is raised already, lower it and do not wait.
awaitFlag :: Flag -> Hybrid ()
awaitFlag (Flag ref) = call $ \l ctx k -> do
  number <- newNumber
  transact (queueOf ref) l ctx $ \c ->
    if isRaised c
      then Go c {isRaised = False} (pure $! k ())
      else Wait number (\w -> c {threads = IntMap.insert number (Waits l w k (pure ())) (threads c)})

-- | 'awaitFlag' with a deadline. 'True' if the flag was raised in time.
awaitFlagUntil :: Instant -> Flag -> Hybrid Bool
awaitFlagUntil deadline flag
  | deadline == never = True <$ awaitFlag flag
  | otherwise = call $ \l ctx k -> awaitBefore deadline flag k l ctx

awaitBefore :: Instant -> Flag -> (Bool -> Trace) -> Loop -> Context -> IO Trace
awaitBefore deadline flag@(Flag ref) k l ctx = do
  before <- readRef ref
  if isRaised before
    then lowerFlag flag >> (pure $! k True)
    else do
      number <- newNumber
      -- Set before another thread can resume this one. It fires on this loop, so not before this step ends.
      timer <- addOwnTimer (loopManager l) deadline (expired number)
      let stop = void (cancelTimer timer)
      next <- transact (queueOf ref) l ctx $ \c ->
        if isRaised c
          then Go c {isRaised = False} (pure $! k True)
          else Wait number (\w -> c {threads = IntMap.insert number (Waits l w (resumed stop) stop) (threads c)})
      -- It does not wait if the flag was raised, or if an exception was on its way.
      case next of
        Parked -> pure next
        _ -> next <$ stop
  where
    resumed stop () = Call (\_ _ -> stop >> (pure $! k True))
    expired number = do
      found <- takeOut ref number
      forM_ found $ \(Waits _ w _ _) -> do
        early <- isEarly l deadline
        resume (onLoop l) w (if early then \() -> Call (awaitBefore deadline flag k) else \() -> k False)

-- | Take the thread with that number out, if it waits.
takeOut :: Ref Contents -> Int -> IO (Maybe Waits)
takeOut ref number = do
  c <- readRef ref
  case IntMap.lookup number (threads c) of
    Nothing -> pure Nothing
    found -> do
      let !c' = c {threads = IntMap.delete number (threads c)}
      ok <- casRef ref c c'
      if ok then pure found else takeOut ref number

queueOf :: Ref Contents -> WaitQueue Contents
queueOf ref =
  WaitQueue
    { queueState = ref,
      queueRemove = \_ number c ->
        (\(Waits _ _ _ interrupted) -> (c {threads = IntMap.delete number (threads c)}, interrupted))
          <$> IntMap.lookup number (threads c),
      queueWaiters = \c -> [(number, w) | (number, Waits _ w _ _) <- IntMap.toList (threads c)],
      queueRegistered = isRegistered,
      queueSetRegistered = \b c -> c {isRegistered = b}
    }
