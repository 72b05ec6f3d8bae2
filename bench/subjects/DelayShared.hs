-- |
-- Description : Many threads that wait a millisecond each, as users write it
--
-- The program of @Delay@ without its tuning: the loop that forks runs in @main@, a bound thread, and the threads
-- count themselves in a variable that all of them share. Both can be chosen separately, to measure the cost of each.
module Main (main) where

import Clock (threadDelay)
import Control.Concurrent (forkIO, modifyMVar_, newEmptyMVar, newMVar, putMVar, runInUnboundThread, takeMVar)
import Control.Monad (replicateM_, when)
import Countdown
import Data.IORef
import Measure
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case given of
    [thread, counter, number]
      | Just run <- lookup thread threads,
        Just new <- lookup counter counters,
        Just n <- readMaybe number,
        n > 0 ->
        run (delays (new n) n)
    _ -> usage "bound|unbound word|ioref|mvar THREADS"
  where
    threads = [("bound", id), ("unbound", runInUnboundThread)]
    counters = [("word", byWord), ("ioref", byIORef), ("mvar", byMVar)]

-- | The action of a thread at its end, and the action that waits for all threads.
data Counter = Counter !(IO ()) !(IO ())

-- | Count by one atomic instruction of the processor.
byWord :: Int -> IO Counter
byWord n = do
  c <- newCountdown n
  pure (Counter (arrive c) (await c))

byIORef :: Int -> IO Counter
byIORef n = do
  left <- newIORef n
  done <- newEmptyMVar
  let one = do
        now <- atomicModifyIORef' left (\k -> (k - 1, k - 1))
        when (now == 0) (putMVar done ())
  pure (Counter one (takeMVar done))

byMVar :: Int -> IO Counter
byMVar n = do
  left <- newMVar n
  done <- newEmptyMVar
  let one = modifyMVar_ left $ \k -> do
        when (k == 1) (putMVar done ())
        pure $! k - 1
  pure (Counter one (takeMVar done))

delays :: IO Counter -> Int -> IO ()
delays new n = do
  threadDelay 1
  Counter one wait <- new
  spent <- spending (replicateM_ n (forkIO (threadDelay 1000 >> one)) >> wait)
  say (perOperation n spent)
  hear
