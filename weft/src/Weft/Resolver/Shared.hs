-- |
-- Work that is shared: while an action for a key runs, others who want the same wait for its result instead of running
-- it again. Each of them may leave at any time; the last one to leave ends the action.
--
-- Nothing is kept: who comes after the end starts anew.
module Weft.Resolver.Shared
  ( Shared,
    newShared,
    share,
    inProgress,
  )
where

import Control.Concurrent (ThreadId, forkIOWithUnmask, killThread)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (void)
import qualified Data.Map.Strict as Map
import GHC.Conc (labelThread)
import Weft.Duration (Duration)
import Weft.Thread.Time (within)

-- | The flights by key. The lock is never held while a thread waits.
--
-- > no entry --the first one comes--> 1 waiter
-- > n waiters --another one comes--> n + 1 waiters
-- > n waiters --one leaves--> n - 1 waiters; the last one takes the entry out, and ends the thread
-- > n waiters --the action ends--> no entry; the thread itself takes it out
--
-- Only the one who takes a flight out ends it, so a thread that is killed has no waiters, and nobody can join it.
data Shared k a = Shared !(MVar (Map.Map k (Flight a))) !(MVar Int)

-- | An action that runs: its number, how many wait for it, its thread and its result.
data Flight a = Flight !Int !Int !ThreadId !(MVar (Either SomeException a))

-- | No work.
newShared :: IO (Shared k a)
newShared = Shared <$> newMVar Map.empty <*> newMVar 0

-- | How many actions run.
inProgress :: Shared k a -> IO Int
inProgress (Shared flights _) = Map.size <$> readMVar flights

-- | The result of the action, or of the one that runs for that key already; its exception is thrown. 'Nothing' if that
-- takes longer than the duration. Interruptible. When this returns or throws, the action has ended, or others wait for
-- it. The action runs in a thread of its own, and has to end soon when it is killed. O(log n), and a thread for
-- each action.
share :: Ord k => Shared k a -> String -> Duration -> k -> IO a -> IO (Maybe a)
share _ _ limit _ _ | limit <= mempty = pure Nothing
share (Shared flights numbers) label limit key act = mask_ $ do
  (number, box) <- modifyMVar flights $ \found -> case Map.lookup key found of
    Just (Flight number waiters thread box) ->
      pure (Map.insert key (Flight number (waiters + 1) thread box) found, (number, box))
    Nothing -> do
      number <- modifyMVar numbers (\n -> pure (n + 1, n))
      box <- newEmptyMVar
      thread <- forkIOWithUnmask $ \unmask -> do
        result <- try (unmask act)
        uninterruptibleMask_ (takeOut number >> putMVar box result)
      labelThread thread label
      pure (Map.insert key (Flight number 1 thread box) found, (number, box))
  result <- within limit (readMVar box) `onException` leave number
  case result of
    Nothing -> Nothing <$ leave number
    Just found -> either throwIO (pure . Just) found
  where
    takeOut number = modifyMVar_ flights (pure . Map.update (\f@(Flight n _ _ _) -> if n == number then Nothing else Just f) key)
    leave number = uninterruptibleMask_ $ do
      last' <- modifyMVar flights $ \found -> pure $ case Map.lookup key found of
        Just (Flight n waiters thread box)
          | n == number ->
            if waiters > 1
              then (Map.insert key (Flight n (waiters - 1) thread box) found, Nothing)
              else (Map.delete key found, Just (thread, box))
        _ -> (found, Nothing)
      case last' of
        Nothing -> pure ()
        Just (thread, box) -> killThread thread >> void (readMVar box)
