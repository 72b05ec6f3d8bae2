-- |
-- Counting semaphores and mutexes for hybrid threads (Li and Zdancewic 2007, section 4.7). Threads are served first
-- come, first served, even if a later thread asks for fewer units. One compare-and-swap an operation. Threads of all
-- loops may use them.
--
-- @since 0.1.0
module Weft.Hybrid.Semaphore
  ( -- * Semaphores
    Semaphore,
    newSemaphore,
    acquire,
    tryAcquire,
    release,
    withSemaphore,

    -- * Mutexes
    Mutex,
    newMutex,
    lock,
    tryLock,
    unlock,
    withMutex,
  )
where

import Control.Monad.Catch (bracket_)
import qualified Data.IntMap.Strict as IntMap
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Sys (Ref, newRef)

-- | A counting semaphore.
newtype Semaphore = Semaphore (Ref Units)
  deriving (Eq)

-- | The number of free units, the number for the next thread that waits (odd if the semaphore is registered:
-- 'numberedFrom'), and the threads that wait. Changed by
-- compare-and-swap, by threads of any loop. Invariant: the free units are not enough for the first thread that waits.
data Units = Units !Int !Int !(IntMap.IntMap Claim)

-- | A thread that waits, the number of units that it wants, and its continuation.
data Claim = Claim !Waiter !Int Task

-- | A semaphore with this many free units.
newSemaphore :: Int -> Hybrid Semaphore
newSemaphore n = nonBlocking (Semaphore <$> newRef (Units n 0 IntMap.empty))

operate :: Semaphore -> (Loop -> (b -> Trace) -> Units -> Step Units) -> Hybrid b
operate (Semaphore ref) step = call $ \l ctx k ->
  transact (queueOf ref) l ctx (step l k)
{-# INLINE operate #-}

queueOf :: Ref Units -> WaitQueue Units
queueOf ref =
  WaitQueue
    { queueState = ref,
      queueRemove = leave,
      queueWaiters = \(Units _ _ line) -> [(n, w) | (n, Claim w _ _) <- IntMap.toList line],
      queueRegistered = \(Units _ next _) -> odd next,
      queueSetRegistered = \b (Units free next line) -> Units free (numberedFrom b next) line
    }
  where
    -- The threads behind it may be served now.
    leave place n (Units free next line)
      | IntMap.member n line =
        let (units, served) = serve (Units free next (IntMap.delete n line))
         in Just (units, wakeUp place served)
      | otherwise = Nothing
{-# INLINE queueOf #-}

-- | Take this many units; wait until they are free.
acquire :: Semaphore -> Int -> Hybrid ()
acquire s n = operate s $ \_ k (Units free next line) ->
  if IntMap.null line && free >= n
    then Go (Units (free - n) next line) (pure (k ()))
    else Wait next (\w -> Units free (next + 2) (IntMap.insert next (Claim w n k) line))

-- | Take this many units if they are free and no thread waits. 'False' if not.
tryAcquire :: Semaphore -> Int -> Hybrid Bool
tryAcquire s n = operate s $ \_ k units@(Units free next line) ->
  if IntMap.null line && free >= n
    then Go (Units (free - n) next line) (pure (k True))
    else Go units (pure (k False))

-- | Give this many units back.
release :: Semaphore -> Int -> Hybrid ()
release s n = operate s $ \l k (Units free next line) ->
  let (units, served) = serve (Units (free + n) next line)
   in Go units (wakeUp (onLoop l) served >> pure (k ()))

wakeUp :: Place -> [Claim] -> IO ()
wakeUp place = mapM_ (\(Claim w _ task) -> resume place w task)

-- | The state after serving the threads that can be served now, and these threads, in order.
serve :: Units -> (Units, [Claim])
serve units@(Units free next line) = case IntMap.minView line of
  Just (c@(Claim _ n _), line') | n <= free -> (c :) <$> serve (Units (free - n) next line')
  _ -> (units, [])

-- | Hold this many units during an action.
withSemaphore :: Semaphore -> Int -> Hybrid a -> Hybrid a
withSemaphore s n = bracket_ (acquire s n) (release s n)

-- Mutexes -------------------------------------------------------------------------------

-- | A mutual exclusion lock.
newtype Mutex = Mutex Semaphore
  deriving (Eq)

-- | A new mutex, not locked.
newMutex :: Hybrid Mutex
newMutex = Mutex <$> newSemaphore 1

-- | Lock a mutex; wait until it is free. (@sys_mutex@)
lock :: Mutex -> Hybrid ()
lock (Mutex s) = acquire s 1

-- | Lock a mutex if it is free. 'False' if not.
tryLock :: Mutex -> Hybrid Bool
tryLock (Mutex s) = tryAcquire s 1

-- | Unlock a mutex. Only the thread that holds it may do so; this is not checked.
unlock :: Mutex -> Hybrid ()
unlock (Mutex s) = release s 1

-- | Hold a mutex during an action.
withMutex :: Mutex -> Hybrid a -> Hybrid a
withMutex m = bracket_ (lock m) (unlock m)
