-- |
-- "Weft.Hybrid.Scope" on two loops, while its threads return, fail and are killed: none outlives its scope, no exception
-- is lost, nothing of the scope reaches its owner later, nobody waits for ever.
module ScopeScenario
  ( scopeTests,
  )
where

import Control.Exception (ArithException (Overflow), AsyncException (ThreadKilled), SomeException, throwIO, toException)
import Control.Monad
import Control.Monad.Catch (catch, finally, mask, try)
import Data.IORef
import LoopScenario
import Search
import Simulation (Scenario (..))
import Test.Tasty
import qualified Weft.Hybrid.MVar as H
import Weft.Hybrid.Monad (Hybrid, nonBlocking, yield)
import qualified Weft.Hybrid.Park as Park
import Weft.Hybrid.Scheduler (placeIn)
import Weft.Hybrid.Scope
import Weft.Hybrid.Thread
import Weft.Sys hiding (finally, yield)

-- | An owner forks threads on both loops, of which some work, some wait for ever, some fail and some fork others that
-- wait for ever, and ends by itself or waits for ever; so does a scope in one of its threads. A GHC thread may kill the
-- owner meanwhile.
data Plan = Plan
  { planWorkers :: Int,
    planDaemons :: Int,
    planFailing :: Int,
    planForking :: Int,
    planInner :: Bool,
    planOwnerWaits :: Bool,
    planKilled :: Bool
  }

-- | What a scenario's threads count and wait for.
data Counts = Counts
  { -- | Threads between their first step and their end.
    countRunning :: IORef Int,
    -- | Exceptions that threads have thrown.
    countThrown :: IORef Int,
    countForever :: H.MVar ()
  }

newCounts :: IO Counts
newCounts = Counts <$> newIORef 0 <*> newIORef 0 <*> H.newEmptyMVarIO

counted :: Counts -> Hybrid a -> Hybrid a
counted counts act = mask (\restore -> count 1 >> restore act `finally` (yield >> count (-1)))
  where
    count d = nonBlocking (modifyIORef' (countRunning counts) (+ d))

-- | Counts and throws in one step.
failing :: Counts -> Hybrid ()
failing counts = counted counts (nonBlocking (modifyIORef' (countThrown counts) (+ 1) >> throwIO Overflow))

waiting :: Counts -> Hybrid ()
waiting counts = counted counts (H.takeMVar (countForever counts))

-- | The scope of a scenario names no threads: how long they take is the schedule's affair.
patient :: ScopeSettings
patient = defaultScopeSettings {scopePatience = maxBound}

-- | Run an action in a thread on the first loop, in which the scope is ended as it says, and, if wanted, kill that
-- thread. The check gets what the action threw (empty: nothing), if it was recorded before a kill; how the thread ended;
-- and the exceptions that the scheduler was told of.
owning :: Bool -> Hybrid () -> ((Maybe String, String) -> [String] -> IO (Maybe String)) -> Setting -> IO Scenario
owning kill act check setting = do
  result <- newIORef Nothing
  end <- newIORef ""
  owner <- newEmptyMVar
  let own s = do
        done <- newEmptyMVar
        onLoopOf s 0 $ do
          t <- forkThread $ do
            when kill (myThread >>= nonBlocking . putMVar owner)
            r <- try act
            nonBlocking (writeIORef result (Just (either shown (const "") r)))
            -- What comes late would come here.
            yield
            yield
          r <- waitCatch t
          nonBlocking (writeIORef end (either shown (const "") r))
          telling done
        takeMVar done
      killer s = do
        t <- takeMVar owner
        place <- placeIn s
        Park.throwTo place t (toException ThreadKilled)
  loopsReporting setting 2 (own : [killer | kill]) $ \died -> do
    found <- (,) <$> readIORef result <*> readIORef end
    check found died
  where
    shown :: SomeException -> String
    shown = show

ending :: Plan -> Setting -> IO Scenario
ending plan setting = do
  counts <- newCounts
  left <- newIORef 0
  let inner = withScopeUsing patient $ \scope -> void (forkDaemon scope (waiting counts)) >> yield
      body scope = do
        forM_ [1 .. planWorkers plan] (\i -> forkOn i scope (counted counts (if planInner plan then inner else yield)))
        forM_ [1 .. planDaemons plan] (\i -> forkUsing daemon {childPlace = On i} scope (waiting counts))
        forM_ [1 .. planFailing plan] (\i -> forkOn i scope (failing counts))
        forM_ [1 .. planForking plan] (\i -> forkUsing daemon {childPlace = On i} scope (counted counts (void (forkDaemon scope (waiting counts)) `catch` \ScopeEnded -> pure ())))
        if planOwnerWaits plan then H.takeMVar (countForever counts) else yield
      act = withScopeUsing patient body `finally` nonBlocking (readIORef (countRunning counts) >>= writeIORef left)
  owning (planKilled plan) act (judge counts left) setting
  where
    failed = show Overflow
    killed' = show ThreadKilled
    judge counts left (result, end) died = do
      n <- readIORef left
      threw <- readIORef (countThrown counts)
      let legal =
            [failed | planFailing plan > 0]
              <> [killed' | planKilled plan]
              <> ["" | planFailing plan == 0, not (planOwnerWaits plan)]
          thrown = if result == Just failed then 1 else 0
      pure $
        holdsThat
          [ (n == 0, show n <> " threads have outlived the scope"),
            (maybe (planKilled plan) (`elem` legal) result, "the scope ended with " <> show result),
            (end `elem` ("" : [killed' | planKilled plan]), "its owner got " <> end),
            -- Without a result the owner was killed before its scope, or as it recorded that.
            (result == Nothing || threw == thrown + length died, show threw <> " exceptions were thrown; the scope's: " <> show result <> ", reported: " <> show died)
          ]

-- | A thread fails while the owner gives up its threads at once: the owner gets that exception from the scope, or the
-- scheduler reports it, and nothing reaches the owner later.
givenUp :: Setting -> IO Scenario
givenUp setting = do
  counts <- newCounts
  let hasty = defaultScopeSettings {scopePatience = mempty, scopeOnOverdue = const (pure Leave)}
      act = withScopeUsing hasty (\scope -> forkUsing daemon {childPlace = On 1} scope (failing counts) >> yield)
  owning False act (judge counts) setting
  where
    judge counts (result, end) died = do
      threw <- readIORef (countThrown counts)
      let thrown = if result == Just (show Overflow) then 1 else 0
      pure $
        holdsThat
          [ (result `elem` map Just ["", show Overflow], "the scope ended with " <> show result),
            (end == "", "its owner got " <> end),
            (threw == thrown + length died, show threw <> " exceptions were thrown; the scope's: " <> show result <> ", reported: " <> show died)
          ]

-- | The owner cancels threads on both loops, in the given order, while one of its threads cancels them in the opposite
-- order. They have ended when their cancellation has, and each was told to.
cancelling :: Bool -> [Int] -> Setting -> IO Scenario
cancelling kill order setting = do
  counts <- newCounts
  answers <- newIORef []
  left <- newIORef 0
  let act = flip finally (nonBlocking (readIORef (countRunning counts) >>= writeIORef left)) . withScopeUsing patient $ \scope -> do
        ts <- forM (map fst (zip [0 ..] order)) (\i -> forkOn i scope (waiting counts))
        _ <- forkUsing daemon {childPlace = On 1} scope (forM_ (reverse order) (cancelTask . (ts !!)))
        forM_ order (cancelTask . (ts !!))
        forM_ ts (awaitCatch >=> \r -> nonBlocking (modifyIORef answers (either show show r :)))
  owning kill act (judge left answers) setting
  where
    judge left answers (result, end) died = do
      n <- readIORef (left :: IORef Int)
      said <- readIORef answers
      pure $
        holdsThat
          [ (n == 0, show n <> " threads have outlived the scope"),
            (kill || result == Just "", "the scope ended with " <> show result),
            (end `elem` ("" : [show ThreadKilled | kill]), "its owner got " <> end),
            (all (== show ScopeEnded) said && (kill || length said == length order), "the threads ended with " <> show said),
            (null died, "reported: " <> show died)
          ]

scopeTests :: TestTree
scopeTests =
  testGroup
    "a scope of hybrid threads"
    [ holdsAtRandom "two threads that return" (ending (Plan 2 0 0 0 False False False) onEpoll),
      holdsAtRandom "a daemon is told to end" (ending (Plan 1 1 0 0 False False False) onEpoll),
      holdsWithin 1 "a thread fails while the owner waits" (ending (Plan 0 1 1 0 False True False) onEpoll),
      holdsAtRandom "two threads fail while the owner leaves" (ending (Plan 0 0 2 0 False False False) onEpoll),
      holdsAtRandom "the owner is killed" (ending (Plan 1 1 0 0 False True True) onEpoll),
      holdsWithin 1 "the owner is killed while a thread fails" (ending (Plan 0 1 1 0 False True True) onEpoll),
      holdsWithin 1 "a thread forks another one while the scope ends" (ending (Plan 0 0 0 1 False False False) onEpoll),
      holdsWithin 1 "a thread fails while it is given up" (givenUp onEpoll),
      holdsAtRandom "everything at once, and a scope in a scope" (ending (Plan 2 2 2 1 True False True) onEpoll),
      holdsOnArmAtRandom "everything at once, on ARM" (ending (Plan 2 2 2 1 True False True) onEpoll),
      holdsOnArmAtRandom "the owner is killed while a thread fails, on ARM" (ending (Plan 0 1 1 0 False True True) onEpoll),
      testGroup "cancelling" [holdsAtRandom ("in the order " <> show order <> (if kill then ", and the owner is killed" else "")) (cancelling kill order onEpoll) | (kill, order) <- map ((,) False) orders <> map ((,) True) (take 2 orders)],
      holdsAtRandom "a thread is cancelled from both loops" (cancelling False [0] onEpoll)
    ]
  where
    orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
