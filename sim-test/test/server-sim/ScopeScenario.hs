-- |
-- "Weft.Scope" while its threads return, fail and are killed: none outlives its scope, no exception is lost, nobody
-- waits for ever.
module ScopeScenario
  ( scopeTests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (replicateM_, void)
import Data.IORef
import Kernel
import Search
import Simulation (Scenario (..))
import Test.Tasty
import Weft.Scope

-- | An owner forks threads, of which some work, some wait for ever, some fail and some fork others that wait for ever,
-- and ends by itself or waits for ever; so does a scope in one of its threads. Another thread may kill the owner
-- meanwhile.
data Plan = Plan
  { planWorkers :: Int,
    planDaemons :: Int,
    planFailing :: Int,
    planForking :: Int,
    planInner :: Bool,
    planOwnerWaits :: Bool,
    planKilled :: Bool
  }

ending :: Plan -> IO Scenario
ending plan = do
  bootKernel noFaults
  running <- newIORef (0 :: Int)
  left <- newIORef 0
  result <- newIORef Nothing
  forever' <- newEmptyMVar :: IO (MVar ())
  owner <- newEmptyMVar
  let count d = atomicModifyIORef' running (\n -> (n + d, ()))
      counted act = mask (\restore -> count 1 >> restore act `finally` (yield >> count (-1)))
      settings = defaultScopeSettings {scopePatience = maxBound}
      inner = withScopeUsing settings $ \scope -> void (forkDaemon scope (counted (takeMVar forever'))) >> yield
      body scope = do
        replicateM_ (planWorkers plan) (fork scope (counted (if planInner plan then inner else yield)))
        replicateM_ (planDaemons plan) (forkDaemon scope (counted (takeMVar forever')))
        replicateM_ (planFailing plan) (fork scope (counted (throwIO Overflow) :: IO ()))
        replicateM_ (planForking plan) (forkDaemon scope (counted (void (forkDaemon scope (counted (takeMVar forever'))) `catch` \ScopeEnded -> pure ())))
        if planOwnerWaits plan then takeMVar forever' else yield
      own = do
        myThreadId >>= putMVar owner
        r <- try (withScopeUsing settings body) :: IO (Either SomeException ())
        readIORef running >>= writeIORef left
        writeIORef result (Just (either show (const "") r))
  pure . Scenario (own `catch` late : [takeMVar owner >>= killThread | planKilled plan]) $ \stuck -> do
    n <- readIORef left
    found <- readIORef result
    let failed = show Overflow
        legal =
          [failed | planFailing plan > 0]
            <> [show ThreadKilled | planKilled plan]
            <> ["" | planFailing plan == 0, not (planOwnerWaits plan)]
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | n /= 0 -> Just (show n <> " threads have outlived the scope")
        | Just r <- found, r `notElem` legal -> Just ("the scope ended with " <> show r)
        -- Killed before or after the scope.
        | Nothing <- found, not (planKilled plan) -> Just "no result"
        | otherwise -> Nothing
  where
    late :: SomeException -> IO ()
    late _ = pure ()

scopeTests :: TestTree
scopeTests =
  testGroup
    "a scope"
    [ holdsWithin 2 "two threads that return" (ending (Plan 2 0 0 0 False False False)),
      holdsWithin 2 "a daemon is told to end" (ending (Plan 1 1 0 0 False False False)),
      holdsWithin 2 "a thread fails while the owner waits" (ending (Plan 0 1 1 0 False True False)),
      holdsWithin 2 "two threads fail while the owner leaves" (ending (Plan 0 0 2 0 False False False)),
      holdsWithin 2 "the owner is killed" (ending (Plan 1 1 0 0 False True True)),
      holdsWithin 1 "the owner is killed while a thread fails" (ending (Plan 0 1 1 0 False True True)),
      holdsWithin 3 "a thread forks another one while the scope ends" (ending (Plan 0 0 0 1 False False False)),
      holdsAtRandom "everything at once, and a scope in a scope" (ending (Plan 2 2 2 1 True False True))
    ]
