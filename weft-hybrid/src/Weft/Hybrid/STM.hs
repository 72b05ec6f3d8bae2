-- |
-- Transactions for hybrid threads (Li and Zdancewic 2007, section 4.7). A transaction that can commit does so at
-- once, on the loop. If it calls 'retry', its thread is parked: a GHC thread
-- runs the transaction then, and resumes the hybrid thread with the result. So a blocked
-- transaction takes a GHC thread's memory, about 1.5 KB. For many waiting threads use MVars
-- ("Weft.Hybrid.MVar").
--
-- If a thread is interrupted while it waits, its transaction has not committed and never will.
--
-- @since 0.1.0
module Weft.Hybrid.STM
  ( atomically,
    module Control.Concurrent.STM.TVar,
    STM,
    retry,
    orElse,
    check,
    throwSTM,
    catchSTM,
  )
where

import Control.Concurrent (forkIO)
import Control.Concurrent.STM (STM, catchSTM, check, orElse, retry, throwSTM)
import qualified Control.Concurrent.STM as GHC
import Control.Concurrent.STM.TVar
import Control.Exception (SomeException, throwIO, try)
import Weft.Hybrid.Monad
import Weft.Hybrid.Park
import Weft.Hybrid.Trace
import Weft.Hybrid.Weak (touchRef)
import Weft.Sys (newRef)

-- | Run a transaction; wait until it can commit. If none of its variables can
-- change any more, 'Control.Exception.BlockedIndefinitelyOnSTM' is raised.
atomically :: STM a -> Hybrid a
atomically stm = call $ \l ctx k -> do
  now <- GHC.atomically ((Just <$> stm) `orElse` pure Nothing)
  maybe (waitFor l ctx stm k) (\a -> pure $! k a) now

-- | The state of a wait. The transaction itself changes it to 'Committed', so STM decides whether that or the
-- interruption came first.
data Phase = Waits | GivenUp | Committed

waitFor :: Loop -> Context -> STM a -> (a -> Trace) -> IO Trace
waitFor l ctx stm k = do
  phase <- newTVarIO Waits
  -- Alive as long as something can resume or interrupt the thread.
  anchor <- newRef ()
  let withdraw = touchRef anchor >> GHC.atomically giveUp
      giveUp = do
        p <- readTVar phase
        case p of
          Waits -> True <$ writeTVar phase GivenUp
          GivenUp -> pure False
          Committed -> pure False
      transaction = do
        p <- readTVar phase
        case p of
          Waits -> Just <$> stm <* writeTVar phase Committed
          _ -> pure Nothing
      insert w = do
        registerWait anchor (ownedBy l w) withdraw
        True <$ forkIO (helper w >> touchRef anchor)
      helper w = do
        r <- try (GHC.atomically transaction)
        case r of
          Right Nothing -> pure ()
          Right (Just a) -> resume (toLoop l) w (\() -> k a)
          Left e -> do
            ours <- withdraw
            if ours then resume (toLoop l) w (\() -> Throw e) else throwIO (e :: SomeException)
  parkWith ctx withdraw insert (waitFor l ctx stm k)
