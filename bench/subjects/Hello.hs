-- |
-- Description : A program that does next to nothing
--
-- One delay, so that the I/O manager has to be there. What it takes from start to end is the cost of starting.
module Main (main) where

import Control.Concurrent (threadDelay)

main :: IO ()
main = threadDelay 1
