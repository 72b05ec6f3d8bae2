-- | Forked children after collections, with nothing of Weft in it. The parent has a thread that delays for ever. Each
-- child collects, waits in every way that base has, and ends. Prints how each ended.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.STM (atomically, check, readTVar)
import Control.Monad
import GHC.Conc (registerDelay)
import System.Exit (ExitCode (..))
import System.IO
import System.Mem (performMajorGC)
import System.Posix.IO (closeFd, createPipe, fdWrite)
import System.Posix.Process
import System.Timeout (timeout)

main :: IO ()
main = do
  hSetBuffering stdout LineBuffering
  _ <- forkIO (forever (threadDelay 1000000))
  forM_ [1 .. 10 :: Int] $ \i -> do
    performMajorGC
    child <- forkProcess $ do
      performMajorGC
      when (even i) waits
      threadDelay 1000
      exitImmediately ExitSuccess
    status <- getProcessStatus True False child
    putStrLn ("child " <> show i <> ": " <> show status)

waits :: IO ()
waits = do
  (r, w) <- createPipe
  arrived <- newEmptyMVar
  _ <- forkIO (threadWaitRead r >> putMVar arrived ())
  passed <- timeout 2000 (takeMVar arrived)
  performMajorGC
  _ <- fdWrite w "x"
  takeMVar arrived
  due <- registerDelay 1000
  atomically (readTVar due >>= check)
  mapM_ closeFd [r, w]
  unless (passed == Nothing) (exitImmediately (ExitFailure 3))
