-- |
-- Description : Many threads that wait a millisecond each
--
-- The program of the 2010 paper, section 9.2: it forks a given number of threads, each of which calls
-- @threadDelay 1000@, and waits for all of them. One delay runs before, so that the manager has been started: GHC's
-- starts with the program, Weft's when it is first needed.
module Main (main) where

import Clock (threadDelay)
import Control.Concurrent (forkIO, runInUnboundThread)
import Control.Monad (replicateM_)
import Countdown
import Measure
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case map readMaybe given of
    [Just threads] | threads > 0 -> runInUnboundThread (delays threads)
    _ -> usage "THREADS"

delays :: Int -> IO ()
delays threads = do
  threadDelay 1
  finished <- newCountdown threads
  spent <- spending $ do
    replicateM_ threads (forkIO (threadDelay 1000 >> arrive finished))
    await finished
  say (perOperation threads spent)
  hear
