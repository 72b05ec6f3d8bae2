-- |
-- Handles: standard input, processes, pipes, with time limits. Is given "one\ntwo\n" and then
-- nothing for a while, on its standard input.
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Either (fromRight)
import System.IO
import System.Process
import System.Timeout

main :: IO ()
main = do
  hSetBuffering stdout LineBuffering
  getLine >>= say "line"
  hWaitForInput stdin 5000 >>= say "hWaitForInput"
  getLine >>= say "line"
  hWaitForInput stdin 30 >>= say "hWaitForInput of nothing"
  timeout 30000 getLine >>= say "getLine of nothing"
  -- Lines with pauses from a process, the last of which it prints when it is told to.
  (Just told, Just out, _, p) <- createProcess (shell "for i in 1 2 3; do echo $i; sleep 0.05; done; read line; echo 4") {std_in = CreatePipe, std_out = CreatePipe}
  replicateM 3 (hGetLine out) >>= say "three"
  timeout 20000 (hGetLine out) >>= say "too early"
  hPutStrLn told "go on" >> hClose told
  hGetLine out >>= say "four"
  r <- try (hGetLine out) :: IO (Either IOException String)
  say "end" (fromRight "end of file" r)
  waitForProcess p >>= say "status"
  -- A filter that is fed and read at the same time, with more than a pipe holds.
  (Just i, Just o, _, q) <- createProcess (proc "cat" []) {std_in = CreatePipe, std_out = CreatePipe}
  _ <- forkIO (forM_ [1 .. 40000 :: Int] (hPrint i) >> hClose i)
  text <- hGetContents o
  say "fed and read" (sum (map read (lines text) :: [Int]))
  _ <- waitForProcess q
  -- A reader that is interrupted by the closing of its handle's other end, and one that is killed.
  (a, b) <- createPipe
  v <- newEmptyMVar
  _ <- forkIO (try (hGetLine a) >>= putMVar v . either (\e -> const "end of file" (e :: IOException)) id)
  threadDelay 20000
  hClose b
  takeMVar v >>= say "closed"
  (c, _d) <- createPipe
  w <- newEmptyMVar
  t <- forkIO ((hGetLine c >>= putMVar w) `catch` \e -> putMVar w (show (e :: AsyncException)))
  threadDelay 20000
  killThread t
  takeMVar w >>= say "killed"
  hClose _d
  where
    say what x = putStrLn (what <> ": " <> show x)
