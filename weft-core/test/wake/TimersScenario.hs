-- |
-- Timers that are set and cancelled while the owner takes them in and fires them
-- ("Weft.Core.Timers").
module TimersScenario
  ( timersTests,
  )
where

import Control.Monad
import Data.IORef
import Search
import Simulation
import Test.Tasty
import Weft.Core.Time (Instant (..))
import Weft.Core.Timer (Queue (..), Timer, TimerOwner (..), adoptTimer, cancelTimer, fireTimer, newTimer)
import Weft.Core.Timers

-- | A queue in a list, to keep the number of scheduling points small.
listQueue :: IO Queue
listQueue = do
  ref <- newIORef []
  pure
    Queue
      { queueInsert = \t -> modifyIORef' ref (t :),
        queueExpire = \_ each -> do
          ts <- readIORef ref
          writeIORef ref []
          mapM_ each ts,
        queueNext = pure (Instant 0),
        queueSweep = \keep -> readIORef ref >>= filterM keep >>= writeIORef ref,
        queueSize = length <$> readIORef ref
      }

-- | Each setter sets a timer and cancels it, or leaves it. The owner takes in and
-- fires twice. Then all must have fired or been cancelled, and not both; what is
-- left when everybody has ended comes out at the end.
scenario :: (Timer -> IO Bool) -> [Bool] -> IO Scenario
scenario cancelling setters = do
  ts <- newTimers =<< listQueue
  fired <- newIORef (replicate (length setters) (0 :: Int))
  cancelled <- newIORef (replicate (length setters) (0 :: Int))
  let bump ref n = modifyIORef' ref (\xs -> take n xs <> [xs !! n + 1] <> drop (n + 1) xs)
      setter (n, cancels) = do
        t <- newTimer owned (Instant 0) (bump fired n)
        _ <- setTimer ts t
        when cancels $ do
          won <- cancelling t
          when won (bump cancelled n)
      owned = TimerOwner (void . dropCancelled ts) (\_ -> pure ())
      owner = do
        applyNews ts
        void (expireTimers ts (Instant 1) (const (pure ())))
      check stuck = do
        takeAll ts >>= mapM_ fireTimer
        f <- readIORef fired
        c <- readIORef cancelled
        pure $ case () of
          _
            | not (null stuck) -> Just "a thread is stuck"
            | any (/= 1) (zipWith (+) f c) -> Just ("fired " <> show f <> ", cancelled " <> show c)
            | otherwise -> Nothing
  pure (Scenario (owner : map setter (zip [0 ..] setters)) check)

-- | A timer of a stopped manager gets another owner, while it is cancelled. It must not fire afterwards.
moved :: IO Scenario
moved = do
  fired <- newIORef (0 :: Int)
  cancelled <- newIORef False
  let owned = TimerOwner (\_ -> pure ()) (\_ -> pure ())
      action = modifyIORef' fired (+ 1)
  t <- newTimer owned (Instant 0) action
  pure . Scenario [void (adoptTimer owned t), cancelTimer t >>= writeIORef cancelled] $ \stuck -> do
    void (fireTimer t)
    n <- readIORef fired
    won <- readIORef cancelled
    pure $ case () of
      _
        | not (null stuck) -> Just "a thread is stuck"
        | n /= 0 || not won -> Just ("fired " <> show n <> ", cancelled " <> show won)
        | otherwise -> Nothing

timersTests :: IO TestTree
timersTests = do
  more <- large (holds "one is cancelled, one is left" 1000 (scenario cancelTimer [True, False]))
  pure . testGroup "setting, cancelling and firing timers" $
    [ holdsWithin 3 "two are set" (scenario cancelTimer [False, False]),
      holdsWithin 3 "one is cancelled, one is left, few interruptions" (scenario cancelTimer [True, False]),
      holdsWithin 2 "two are cancelled" (scenario cancelTimer [True, True]),
      holds "one is cancelled" 100 (scenario cancelTimer [True]),
      holds "one is moved and cancelled" 3 moved,
      holdsOnArm 2 "two are set, on ARM" (scenario cancelTimer [False, False]),
      holdsOnArm 2 "one is cancelled, one is left, on ARM" (scenario cancelTimer [True, False]),
      isFound "broken on purpose: a cancel always counts" $
        scenario (\t -> True <$ cancelTimer t) [True]
    ]
      <> more
