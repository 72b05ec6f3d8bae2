-- |
-- Many threads that race, are cancelled and killed, and time out within time limits.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.Async
import Control.Exception
import Control.Monad
import Data.IORef
import System.IO
import System.Timeout

main :: IO ()
main = do
  hSetBuffering stdout LineBuffering
  -- A hundred thousand in delays at once.
  count <- newIORef (0 :: Int)
  replicateConcurrently_' 100000 (threadDelay 50000 >> atomicModifyIORef' count (\n -> (n + 1, ())))
  readIORef count >>= say "delays"
  winners <- forConcurrently [1 .. 300 :: Int] $ \i ->
    either id id <$> race (threadDelay (if even i then 500 else 2000000) >> pure 'l') (threadDelay (if even i then 2000000 else 500) >> pure 'r')
  say "races" (length (filter (== 'l') winners), length (filter (== 'r') winners))
  cancelled <- forM [1 .. 2000 :: Int] (const (async (threadDelay 100000000)))
  mapM_ cancel cancelled
  ends <- mapM waitCatch cancelled
  say "cancelled" (length [() | Left e <- ends, Just AsyncCancelled <- [fromException e]])
  nested <- forConcurrently [1 .. 500 :: Int] $ \i -> timeout 3000000 (timeout (100 * (1 + i `mod` 7)) (timeout 2000000 (threadDelay 2000000)))
  say "nested" (length (filter (== Just Nothing) nested))
  -- Threads killed as they block, whatever moment that is.
  killed <- newIORef (0 :: Int)
  ts <- forM [1 .. 300 :: Int] $ \i -> do
    v <- newEmptyMVar
    t <- mask_ (forkIOWithUnmask (\unmask -> unmask (forever (threadDelay (50 + i `mod` 500))) `catch` counting killed >> putMVar v ()))
    pure (t, v)
  threadDelay 2000
  mapM_ (killThread . fst) ts
  mapM_ (takeMVar . snd) ts
  readIORef killed >>= say "killed"
  where
    say what x = putStrLn (what <> ": " <> show x)
    counting :: IORef Int -> AsyncException -> IO ()
    counting ref _ = atomicModifyIORef' ref (\n -> (n + 1, ()))
    replicateConcurrently_' n act = do
      vs <- replicateM n (newEmptyMVar >>= \v -> v <$ forkIO (act >> putMVar v ()))
      mapM_ takeMVar vs
