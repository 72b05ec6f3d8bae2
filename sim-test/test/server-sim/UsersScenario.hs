-- |
-- Users of a resource ("Weft.Static.Users") that is closed while they come and go.
module UsersScenario
  ( usersTests,
  )
where

import Control.Concurrent (yield)
import Control.Exception
import Control.Monad (forM, void, when)
import Data.IORef
import Kernel
import Search
import Simulation (Scenario (..))
import Test.Tasty
import Weft.Static.Users

-- | Threads use a resource, each the given number of times, the first user's action may fail, and threads close it. It
-- is closed once, not while it is used, and not used after that.
closing :: Int -> Int -> Bool -> Int -> IO Scenario
closing closers users failing turns = do
  bootKernel noFaults
  times <- newIORef (0 :: Int)
  wrong <- newIORef []
  count <- newUsers (modifyIORef' times (+ 1))
  let isOpen what = readIORef times >>= \n -> when (n > 0) (modifyIORef' wrong (what :))
      use fails = using count (isOpen "at the beginning" >> yield >> isOpen "at the end" >> when fails (throwIO Overflow))
      user fails = mapM_ (const (void (try (use fails) :: IO (Either ArithException (Maybe ()))))) [1 .. turns]
  threads <- forM [1 .. users] (\i -> pure (user (failing && i == 1)))
  pure . Scenario (replicate closers (closeUnused count) <> threads) $ \stuck -> do
    n <- readIORef times
    used <- readIORef wrong
    late <- using count (pure ())
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | n /= 1 -> Just ("closed " <> show n <> " times")
        | not (null used) -> Just ("used after it was closed: " <> show used)
        | late /= Nothing -> Just "used after everything"
        | otherwise -> Nothing

usersTests :: TestTree
usersTests =
  testGroup
    "a resource that is closed when it is not used"
    [ holdsWithin 3 "one user" (closing 1 1 False 2),
      holdsWithin 2 "two users, one of which fails" (closing 1 2 True 1),
      holdsWithin 2 "two threads close it" (closing 2 1 False 1),
      holdsAtRandom "many users" (closing 2 4 True 3)
    ]
