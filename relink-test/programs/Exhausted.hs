-- |
-- A program that waits for the first time when it has no descriptor left, as one does that waits until others close
-- theirs.
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import System.IO
import System.Timeout

main :: IO ()
main = do
  files <- fill
  hSetBuffering stdout LineBuffering
  threadDelay 1000
  putStrLn "a delay"
  timeout 10000 (threadDelay 60000000) >>= print
  capabilities <- getNumCapabilities
  others <- forM [0 .. capabilities - 1] $ \c -> do
    done <- newEmptyMVar
    _ <- forkOn c ((try (threadDelay 1000) :: IO (Either IOException ())) >>= putMVar done)
    pure done
  mapM takeMVar others >>= print . all (either (const False) (const True))
  mapM_ hClose files

-- | Open files until the kernel refuses.
fill :: IO [Handle]
fill = (try (openFile "/dev/null" ReadMode) :: IO (Either IOException Handle)) >>= either (const (pure [])) (\h -> (h :) <$> fill)
