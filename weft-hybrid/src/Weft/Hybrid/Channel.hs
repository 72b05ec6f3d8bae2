{-# LANGUAGE LambdaCase #-}

-- |
-- Channels for hybrid threads: each value is read once, in the order of writing. Waiting
-- threads are served first come, first served. One compare-and-swap an operation. Threads of all loops may
-- use them.
--
-- @since 0.1.0
module Weft.Hybrid.Channel
  ( -- * Without bounds
    Channel,
    newChannel,
    writeChannel,
    readChannel,
    tryReadChannel,

    -- * With a bound
    BoundedChannel,
    newBoundedChannel,
    writeBounded,
    readBounded,
  )
where

import Control.Monad.Catch (mask_)
import qualified Data.IntMap.Strict as IntMap
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Semaphore
import Weft.Hybrid.Trace
import Weft.Sys (Ref, newRef)

-- | A queue of values.
newtype Channel a = Channel (Ref (Content a))

instance Eq (Channel a) where
  Channel a == Channel b = a == b

-- | Changed by compare-and-swap, by threads of any loop.
data Content a
  = -- | The number for the next thread that waits; the values, as a list from the front and a list from the back, which
    -- are not both empty.
    Values !Int [a] [a]
  | -- | The number for the next thread that waits, and the threads that wait. (The number is odd if the channel is
    -- registered: 'numberedFrom'. Numbers are not used twice, because a thread that is about to be taken out by its
    -- number must not be confused with another.)
    Readers !Int !(IntMap.IntMap (Reader a))

data Reader a = Reader !Waiter (a -> Trace)

-- | An empty channel.
newChannel :: Hybrid (Channel a)
newChannel = nonBlocking (Channel <$> newRef (Readers 0 IntMap.empty))

operate :: Channel a -> (Loop -> (b -> Trace) -> Content a -> Step (Content a)) -> Hybrid b
operate (Channel ref) step = call $ \l ctx k -> transact (queueOf ref) l ctx (step l k)
{-# INLINE operate #-}

queueOf :: Ref (Content a) -> WaitQueue (Content a)
queueOf ref =
  WaitQueue
    { queueState = ref,
      queueRemove = const remove,
      queueWaiters = \case
        Values {} -> []
        Readers _ rs -> [(n, w) | (n, Reader w _) <- IntMap.toList rs],
      queueRegistered = \case
        Values next _ _ -> odd next
        Readers next _ -> odd next,
      queueSetRegistered = \b content -> case content of
        Values next front back -> Values (numberedFrom b next) front back
        Readers next rs -> Readers (numberedFrom b next) rs
    }
  where
    remove n (Readers next rs) | IntMap.member n rs = Just (Readers next (IntMap.delete n rs), pure ())
    remove _ _ = Nothing
{-# INLINE queueOf #-}

-- | Write a value. Never waits.
writeChannel :: Channel a -> a -> Hybrid ()
writeChannel ch a = operate ch $ \l k content -> case content of
  Values next front back -> Go (Values next front (a : back)) (pure (k ()))
  Readers next rs -> case IntMap.minView rs of
    Nothing -> Go (Values next [a] []) (pure (k ()))
    Just (Reader w k', rs') -> Go (Readers next rs') (resume (onLoop l) w (\() -> k' a) >> pure (k ()))

-- | Take the oldest value out; wait until there is one.
readChannel :: Channel a -> Hybrid a
readChannel ch = operate ch $ \_ k content -> case content of
  Values next front back -> popped k next front back
  Readers next rs -> Wait next (\w -> Readers (next + 2) (IntMap.insert next (Reader w k) rs))

-- | Take the oldest value out; 'Nothing' if there is none. Does not wait.
tryReadChannel :: Channel a -> Hybrid (Maybe a)
tryReadChannel ch = operate ch $ \_ k content -> case content of
  Values next front back -> popped (k . Just) next front back
  Readers _ _ -> Go content (pure (k Nothing))

popped :: (a -> Trace) -> Int -> [a] -> [a] -> Step (Content a)
popped k next front back = case front of
  [a] | null back -> Go (Readers next IntMap.empty) (pure (k a))
  a : front' -> Go (Values next front' back) (pure (k a))
  [] -> popped k next (reverse back) []

-- | A channel that holds a limited number of values.
data BoundedChannel a = BoundedChannel !Semaphore !(Channel a)

-- | An empty channel for this many values, at least one.
newBoundedChannel :: Int -> Hybrid (BoundedChannel a)
newBoundedChannel n = BoundedChannel <$> newSemaphore (max 1 n) <*> newChannel

-- | Write a value; wait until there is room.
writeBounded :: BoundedChannel a -> a -> Hybrid ()
writeBounded (BoundedChannel room ch) a = mask_ (acquire room 1 >> writeChannel ch a)

-- | Take the oldest value out; wait until there is one.
readBounded :: BoundedChannel a -> Hybrid a
readBounded (BoundedChannel room ch) = mask_ (readChannel ch <* release room 1)
