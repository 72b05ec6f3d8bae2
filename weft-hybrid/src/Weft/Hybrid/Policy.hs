-- |
-- Who runs next: scheduling policies. A policy is a queue of ready threads for each
-- loop; replacing it replaces the scheduler's decisions, not the scheduler.
--
-- 'Queue' says what a policy has to provide. Its operations are called by the loop's
-- thread only, must not block, and must in the end hand out every thread that was put in. What is put in is
-- kept as 'inContext' makes it: a thread that is dealt to another loop is found its place there by its
-- context.
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

import Control.Monad (replicateM)
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace
import Weft.Sys

-- | How a loop makes its queue.
newtype Policy = Policy
  { -- | Make a loop's queue of ready threads.
    newReady :: IO Ready
  }

-- | A policy of one's own.
policy :: IO Queue -> Policy
policy = Policy . fmap Custom

-- | One after the other, for the length of a turn each at most.
roundRobin :: Policy
roundRobin = Policy (RoundRobin <$> newFifo)

-- | By priority, from 0, the first, to so many less one; others count as the nearest
-- of these. A thread runs when no thread before it is ready, but one in sixteen is
-- taken from the last class that has any, so that none waits for ever. O(classes).
priorities :: Int -> Policy
priorities classes = policy $ do
  queues <- newBoxedArray count =<< newFifo
  fifos <- replicateM count newFifo
  mapM_ (uncurry (writeBoxedArray queues)) (zip [0 ..] fifos)
  taken <- newAtomicWords 1
  let forwards = [0 .. count - 1]
      first [] = pure (\() -> Idle)
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

-- | Something that there is only so much of: descriptors, memory, requests under way.
data Resource = Resource
  { -- | How much is in use. Asked for at every choice, so it must be cheap.
    resourceInUse :: IO Int,
    -- | From where on it is scarce.
    resourceLimit :: Int
  }

-- | Resource-aware scheduling (2007, section 5.2; Capriccio): threads of priority 1 and
-- more are about to take more of the resource (they accept connections, say), those of
-- priority 0 use what they have and give it back. While the resource is scarce the
-- former run only when none of the latter is ready.
resourceAware :: Resource -> Policy
resourceAware resource = policy $ do
  takers <- newFifo
  others <- newFifo
  turns <- newAtomicWords 1
  let takersFirst = do
        used <- resourceInUse resource
        bumpWord turns 0 1
        n <- peekWord turns 0
        pure (used < resourceLimit resource && even n)
      orElse a b = do
        n <- sizeFifo a
        if n > 0 then popFifo a else popFifo b
  pure
    Queue
      { queuePush = \ctx task ->
          pushFifo (if contextPriority ctx > 0 then takers else others) (inContext ctx task),
        queuePop = do
          taking <- takersFirst
          if taking then takers `orElse` others else others `orElse` takers,
        queueSize = (+) <$> sizeFifo takers <*> sizeFifo others
      }
