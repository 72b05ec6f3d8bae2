-- |
-- The simulated machine's transactions: they are undone when they throw or retry, and the exception reaches the thread.
module StmScenario
  ( stmTests,
  )
where

import Control.Concurrent.STM
import Control.Exception
import Data.IORef
import Kernel
import Search
import Simulation (Scenario (..))
import Test.Tasty

-- | One thread's transaction writes and ends as given, while another one adds to the same variable.
ending :: (TVar Int -> STM ()) -> ([Either ArithException ()], Int) -> IO Scenario
ending transaction expected = do
  bootKernel noFaults
  var <- newTVarIO 0
  outcomes <- newIORef []
  let one = (try (atomically (transaction var)) :: IO (Either ArithException ())) >>= \r -> modifyIORef' outcomes (r :)
      other = atomically (readTVar var >>= \n -> writeTVar var (n + 1))
  pure . Scenario [one, other] $ \stuck -> do
    found <- (,) <$> readIORef outcomes <*> readTVarIO var
    pure $ if null stuck && found == expected then Nothing else Just (show (stuck, found))

stmTests :: TestTree
stmTests =
  testGroup
    "transactions"
    [ holds "one that throws is undone" 3 (ending (\v -> writeTVar v 10 >> throwSTM Overflow) ([Left Overflow], 1)),
      holds "so is one that throws in the first of two alternatives" 3 (ending (\v -> writeTVar v 10 >> (writeTVar v 20 >> throwSTM Overflow) `orElse` pure ()) ([Left Overflow], 1)),
      holds "an exception of pure code" 3 (ending (\v -> writeTVar v 10 >> (throw Underflow `seq` pure ())) ([Left Underflow], 1)),
      holds "an alternative that retries is undone" 3 (ending (\v -> (writeTVar v 10 >> retry) `orElse` pure ()) ([Right ()], 1)),
      holds "one that retries waits" 3 (ending (\v -> readTVar v >>= check . (== 1) >> writeTVar v 5) ([Right ()], 5))
    ]
