-- |
-- Description : Many timers that are pending
--
-- Sets this many timers for a minute from now, says how much memory each takes, and waits. On a line of input it
-- cancels them all and says what they leave behind. What it does while it waits is measured from outside: a program
-- that watched itself would have to wake up for it.
--
-- The callback of all timers is one and the same, so it takes nothing; the array that holds the timers is there
-- before the heap is first looked at.
module Main (main) where

import Clock (Timer, cancel, schedule, threadDelay)
import Control.Concurrent (runInUnboundThread)
import Control.Monad (forM_)
import GHC.IOArray (IOArray, newIOArray, readIOArray, writeIOArray)
import Measure
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case map readMaybe given of
    [Just count] | count > 0 -> runInUnboundThread (pending count)
    _ -> usage "TIMERS"

pending :: Int -> IO ()
pending count = do
  -- This one also starts the manager.
  first <- schedule minute (pure ())
  cancel first
  timers <- newIOArray (0, count - 1) first
  settle
  before <- liveBytes
  spent <- spending $ forM_ [0 .. count - 1] $ \i -> schedule minute (pure ()) >>= writeIOArray timers i
  settle
  full <- liveBytes
  say
    [ ("live_bytes_per_timer", (full - before) / each),
      ("set_ns_per_op", 1e9 * spentWall spent / each)
    ]
  hear
  cancelled <- spending $ forM_ [0 .. count - 1] (cancelAt timers)
  forM_ [0 .. count - 1] $ \i -> writeIOArray timers i first
  settle
  after <- liveBytes
  say
    [ ("left_bytes_per_timer", (after - before) / each),
      ("cancel_ns_per_op", 1e9 * spentWall cancelled / each)
    ]
  hear
  keep timers
  where
    each = fromIntegral count
    minute = 60000000

-- | Time for the manager to take in what it was told.
settle :: IO ()
settle = threadDelay 200000

-- | The array is alive until here.
keep :: IOArray Int Timer -> IO ()
keep timers = cancelAt timers 0
{-# NOINLINE keep #-}

cancelAt :: IOArray Int Timer -> Int -> IO ()
cancelAt timers i = readIOArray timers i >>= cancel
