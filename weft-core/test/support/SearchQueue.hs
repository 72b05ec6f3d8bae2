-- |
-- Timers in a priority search queue (O'Sullivan and Tibell 2010, section 7.2): the simple
-- implementation, exact to the nanosecond, O(log n) to set. The wheel is tested
-- against it, and the simulated machines use it.
module SearchQueue
  ( newSearchQueue,
  )
where

import qualified Data.IntPSQ as PSQ
import Data.List (sortOn)
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer
import Weft.Sys

-- | Keys are given in the order of insertion, so timers of one instant come out in
-- that order.
data SearchState = SearchState !Int !(PSQ.IntPSQ Instant Timer)

-- | An empty queue.
newSearchQueue :: IO Queue
newSearchQueue = do
  ref <- newRef (SearchState 0 PSQ.empty)
  pure
    Queue
      { queueInsert = insert ref,
        queueExpire = expire ref,
        queueNext = next ref,
        queueSweep = sweep ref,
        queueSize = size ref
      }

insert :: Ref SearchState -> Timer -> IO ()
insert ref t = do
  SearchState key q <- readRef ref
  writeRef ref $! SearchState (key + 1) (PSQ.insert key (timerDue t) t q)

expire :: Ref SearchState -> Instant -> (Timer -> IO ()) -> IO ()
expire ref instant each = do
  SearchState key q <- readRef ref
  case PSQ.findMin q of
    Just (_, due, _) | due <= instant -> do
      let (out, q') = PSQ.atMostView instant q
      writeRef ref $! SearchState key q'
      mapM_ (\(_, _, t) -> each t) (sortOn (\(_, when, _) -> when) out)
    _ -> pure ()

next :: Ref SearchState -> IO Instant
next ref = do
  SearchState _ q <- readRef ref
  pure (maybe never (\(_, due, _) -> due) (PSQ.findMin q))

sweep :: Ref SearchState -> (Timer -> IO Bool) -> IO ()
sweep ref keep = do
  SearchState key q <- readRef ref
  kept <- mapM (\(k, due, t) -> (\yes -> [(k, due, t) | yes]) <$> keep t) (PSQ.toList q)
  writeRef ref $! SearchState key (PSQ.fromList (concat kept))

size :: Ref SearchState -> IO Int
size ref = (\(SearchState _ q) -> PSQ.size q) <$> readRef ref
