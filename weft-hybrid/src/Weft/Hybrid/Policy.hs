-- |
-- Scheduling policies: which of the ready threads runs next. A policy makes a queue of ready threads for each
-- loop.
--
-- 'Queue' has the operations of such a queue. Only the loop's thread calls them. They must not block, and must
-- return every thread that was put in after finitely many calls. Keep threads as 'inContext' makes them: when a
-- thread is given to another loop, its context (its priority) decides its place there.
--
-- @since 0.1.0
module Weft.Hybrid.Policy
  ( Policy,
    policy,
    newReady,
    Queue (..),
    inContext,

    -- * Policies
    roundRobin,
    priorities,
    resourceAware,
    Resource (..),
  )
where

import Control.Monad (replicateM, when)
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys

-- | A scheduling policy.
newtype Policy = Policy
  { -- | Make a loop's queue of ready threads.
    newReady :: IO Ready
  }

-- | A policy from an action that makes a queue. It runs once for each loop.
policy :: IO Queue -> Policy
policy = Policy . fmap Custom

-- | First come, first served. A thread runs until it waits, yields, or the turn ends.
roundRobin :: Policy
roundRobin = Policy (RoundRobin <$> newFifo)

-- | By priority, with this number of classes. Class 0 is the most urgent; a priority outside the range counts as the
-- nearest class. A thread runs if no thread of a more urgent class is ready. One choice in sixteen is from the least
-- urgent class that has a ready thread, so that no thread starves. O(classes).
priorities :: Int -> Policy
priorities classes = policy $ do
  queues <- newBoxedArray count =<< newFifo
  fifos <- replicateM count newFifo
  mapM_ (uncurry (writeBoxedArray queues)) (zip [0 ..] fifos)
  taken <- newWordArray 1
  let forwards = [0 .. count - 1]
      first [] = (\() -> Idle) <$ mapM_ tidyFifo fifos
      first (i : is) = do
        q <- readBoxedArray queues i
        n <- sizeFifo q
        if n > 0 then popFifo q else first is
  pure
    Queue
      { queuePush = \ctx task -> do
          q <- readBoxedArray queues (max 0 (min (count - 1) (contextPriority ctx)))
          pushFifo q (inContext ctx task),
        queuePop = do
          bumpWord taken 0 1
          n <- peekWord taken 0
          first (if n `mod` 16 == 0 then reverse forwards else forwards),
        queueSize = sum <$> mapM (\i -> readBoxedArray queues i >>= sizeFifo) forwards
      }
  where
    count = max 1 classes

-- | A limited resource, such as descriptors, memory, or running requests.
data Resource = Resource
  { -- | How much is in use now. Called at every choice, so it must be cheap.
    resourceInUse :: IO Int,
    -- | The amount in use from which on the resource is scarce.
    resourceLimit :: Int
  }

-- | Resource-aware scheduling (Li and Zdancewic 2007, section 5.2; Capriccio). Threads of priority 1 and
-- more are those that acquire the resource (they accept connections, for example); threads of
-- priority 0 use it and release it. While the resource is scarce, the
-- former run only if none of the latter is ready.
resourceAware :: Resource -> Policy
resourceAware resource = policy $ do
  takers <- newFifo
  others <- newFifo
  turns <- newWordArray 1
  let takersFirst = do
        used <- resourceInUse resource
        bumpWord turns 0 1
        n <- peekWord turns 0
        pure (used < resourceLimit resource && even n)
      orElse a b = do
        n <- sizeFifo a
        if n > 0
          then popFifo a
          else do
            m <- sizeFifo b
            when (m == 0) (mapM_ tidyFifo [a, b])
            popFifo b
  pure
    Queue
      { queuePush = \ctx task ->
          pushFifo (if contextPriority ctx > 0 then takers else others) (inContext ctx task),
        queuePop = do
          taking <- takersFirst
          if taking then takers `orElse` others else others `orElse` takers,
        queueSize = (+) <$> sizeFifo takers <*> sizeFifo others
      }
