-- |
-- Description : A deadline that is pushed later all the time
--
-- One thread with one idle timer of thirty seconds, which it resets, or pauses and resumes, a given number of times.
module Main (main) where

import Clock (IdleTimer, newIdleTimer, pauseAndResume, reset)
import Control.Concurrent (runInUnboundThread)
import Data.IORef
import Measure
import System.Exit (die)
import Text.Read (readMaybe)

main :: IO ()
main = do
  given <- arguments
  case given of
    ["reset", number] | Just count <- positive number -> runInUnboundThread (pushing reset count)
    ["pause+resume", number]
      | Just count <- positive number ->
        maybe (die "timers cannot be paused here") (runInUnboundThread . (`pushing` count)) pauseAndResume
    _ -> usage "reset|pause+resume COUNT"
  where
    positive text = case readMaybe text of
      Just count | count > 0 -> Just count
      _ -> Nothing

pushing :: (IdleTimer -> IO ()) -> Int -> IO ()
pushing push count = do
  fired <- newIORef False
  deadline <- newIdleTimer 30000000 (writeIORef fired True)
  spent <- spending (times count (push deadline))
  early <- readIORef fired
  if early then die "the deadline came" else say (perOperation count spent)
  hear
{-# INLINE pushing #-}

times :: Int -> IO () -> IO ()
times count action = go count
  where
    go :: Int -> IO ()
    go 0 = pure ()
    go left = action >> go (left - 1)
{-# INLINE times #-}
