-- |
-- A program without any code of Weft that uses delays and time limits, and prints their results.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import GHC.Clock (getMonotonicTimeNSec)
import System.Timeout

main :: IO ()
main = do
  -- Never early.
  forM_ [0, 1, 999, 1000, 20000] $ \us -> do
    t0 <- getMonotonicTimeNSec
    threadDelay us
    t1 <- getMonotonicTimeNSec
    say ("threadDelay " <> show us) (t1 - t0 >= 1000 * fromIntegral us)
  forM_ [minBound, -1, 0] $ \us -> threadDelay us >> say ("threadDelay " <> show us) "returned"
  r <- timeout 20000 (threadDelay maxBound)
  say "threadDelay maxBound, for 20 ms" r
  -- In order of time.
  order <- newMVar []
  done <- forM [9, 8 .. 1 :: Int] $ \i -> do
    v <- newEmptyMVar
    _ <- forkIO (threadDelay (100000 * i) >> modifyMVar_ order (pure . (i :)) >> putMVar v ())
    pure v
  mapM_ takeMVar done
  readMVar order >>= say "order" . reverse
  -- registerDelay
  distant <- registerDelay 60000000
  atomically (readTVar distant) >>= say "registerDelay, at once"
  passed <- registerDelay 30000
  atomically (readTVar passed >>= check)
  say "registerDelay, afterwards" True
  forM_ [0, -5] $ \us -> registerDelay us >>= \v -> atomically (readTVar v >>= check) >> say ("registerDelay " <> show us) True
  either' <- registerDelay 5000000
  sooner <- registerDelay 10000
  first <- atomically ((readTVar either' >>= check >> pure "late") `orElse` (readTVar sooner >>= check >> pure "soon"))
  say "orElse" first
  -- timeout
  timeout (-1) (pure 'a') >>= say "timeout -1"
  timeout 0 (pure 'b') >>= say "timeout 0"
  timeout 5000000 (pure 'c') >>= say "timeout in time"
  timeout 10000 (threadDelay 5000000) >>= say "timeout too late"
  timeout 5000000 (timeout 10000 (threadDelay 5000000)) >>= say "inner"
  timeout 10000 (timeout 5000000 (threadDelay 5000000)) >>= say "outer"
  timeout 10000 (threadDelay 5000000 `catch` \e -> throwIO (e :: SomeException)) >>= say "passed on"
  timeout 10000 (handle (\e -> pure (show (e :: SomeAsyncException))) ("no" <$ threadDelay 5000000)) >>= say "caught by type"
  timeout 10000 (handle (\e -> pure (show (e :: Timeout))) ("no" <$ threadDelay 5000000)) >>= say "caught as Timeout"
  timeout 5000000 ("ended" <$ mask_ (threadDelay 100 >> getMaskingState)) >>= say "masked"
  t <- try (timeout 5000000 (throwIO (userError "mine"))) :: IO (Either IOException (Maybe ()))
  say "an exception of the action's" t
  -- No stray exception after a timeout has returned.
  strays <- newMVar (0 :: Int)
  vs <- forM [1 .. 200 :: Int] $ \i -> do
    v <- newEmptyMVar
    _ <- forkIO . (`finally` putMVar v ()) . handle (\e -> const (modifyMVar_ strays (pure . (+ 1))) (e :: SomeException)) $ do
      _ <- timeout 500 (threadDelay (450 + i `mod` 100))
      threadDelay 2000
    pure v
  mapM_ takeMVar vs
  readMVar strays >>= say "strays"
  where
    say what x = putStrLn (what <> ": " <> show x)
