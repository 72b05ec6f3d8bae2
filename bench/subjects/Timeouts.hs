-- |
-- Description : Timeouts that do not fire
--
-- A given number of threads, each of which runs a short action with a limit of ten seconds a given number of times.
-- The action reads a reference, and the results are added up, so the compiler cannot drop it, and a call that returns
-- no result is noticed. One call runs before, as Weft's manager starts when it is first needed.
module Main (main) where

import Clock (timeout)
import Control.Concurrent (forkIO, runInUnboundThread)
import Control.Monad (replicateM_, unless)
import Countdown
import Data.IORef
import Measure
import System.Exit (die)
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case map readMaybe given of
    [Just threads, Just each] | threads > 0 && each > 0 -> runInUnboundThread (timeouts threads each)
    _ -> usage "THREADS EACH"

timeouts :: Int -> Int -> IO ()
timeouts threads each = do
  one <- newIORef 1
  failed <- newIORef False
  started <- limited 1 (readIORef one)
  finished <- newCountdown threads
  let thread = do
        answered <- limited each (readIORef one)
        unless (answered == each) (writeIORef failed True)
        arrive finished
  spent <- spending (replicateM_ threads (forkIO thread) >> await finished)
  wrong <- readIORef failed
  if wrong || started /= 1
    then die "a timeout fired"
    else say (perOperation (threads * each) spent)
  hear

-- | The sum of the results of this many runs of the action within the limit.
limited :: Int -> IO Int -> IO Int
limited count action = go count 0
  where
    go left total
      | left == 0 = pure total
      | otherwise = do
        result <- timeout 10000000 action
        go (left - 1) $! maybe total (total +) result
    go :: Int -> Int -> IO Int
{-# NOINLINE limited #-}
