-- |
-- What @embedded.c@ calls: waits, and threads that still wait when the run-time system ends.
module Embedded (work) where

import Control.Concurrent
import Control.Monad
import System.Timeout

foreign export ccall "embedded_work" work :: IO ()

work :: IO ()
work = do
  -- On each capability, since a dispatcher starts where a thread waits.
  n <- getNumCapabilities
  forM_ [0 .. n - 1] $ \cap -> do
    waited <- newEmptyMVar
    _ <- forkOn cap (threadDelay 1000 >> putMVar waited () >> forever (threadDelay 100000000))
    takeMVar waited
  timeout 1000 (threadDelay 100000000) >>= print
