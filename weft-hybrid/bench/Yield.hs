-- |
-- Description : Switches, forks and the memory of threads that only yield
module Main (main) where

import Control.Concurrent (forkIO, newEmptyMVar, putMVar, runInUnboundThread, takeMVar)
import qualified Control.Concurrent as GHC
import Control.Monad (replicateM_, when)
import Data.IORef
import GHC.Clock (getMonotonicTimeNSec)
import GHC.Stats
import System.Environment (getArgs)
import System.Mem (performMajorGC)
import Weft.Hybrid.Monad
import Weft.Hybrid.Scheduler
import Weft.Hybrid.Trace

main :: IO ()
main = runInUnboundThread $ do
  args <- getArgs
  case args of
    ["yield", n, m] -> yields (read n) (read m)
    ["yield-ghc", n, m] -> yieldsGhc (read n) (read m)
    ["fork", n] -> forks (read n)
    ["fork-ghc", n] -> forksGhc (read n)
    ["live", n] -> live False (read n)
    ["live-own", n] -> live True (read n)
    _ -> fail "usage: yield N M | yield-ghc N M | fork N | fork-ghc N | live N | live-own N"

-- | Run a thread to its end.
run' :: Hybrid () -> IO ()
run' body = do
  done <- newEmptyMVar
  s <- currentScheduler
  submit s Plain (taskOf (body >> nonBlocking (putMVar done ())))
  takeMVar done

timed :: String -> Int -> IO () -> IO ()
timed what n act = do
  a <- getMonotonicTimeNSec
  act
  b <- getMonotonicTimeNSec
  putStrLn (what <> ": " <> show (fromIntegral (b - a) / fromIntegral n :: Double) <> " ns")

-- | So many threads, so many yields each.
yields :: Int -> Int -> IO ()
yields n m = do
  arrived <- countdown n
  run' (pure ())
  let go :: Int -> Hybrid ()
      go 0 = nonBlocking (fst arrived)
      go i = yield >> go (i - 1)
  timed "yield" (n * m) (run' (replicateM_ n (fork (go m))) >> snd arrived)

yieldsGhc :: Int -> Int -> IO ()
yieldsGhc n m = do
  arrived <- countdown n
  let go :: Int -> IO ()
      go 0 = fst arrived
      go i = GHC.yield >> go (i - 1)
  timed "yield-ghc" (n * m) (replicateM_ n (forkIO (go m)) >> snd arrived)

forks :: Int -> IO ()
forks n = do
  arrived <- countdown n
  run' (pure ())
  timed "fork" n (run' (replicateM_ n (fork (nonBlocking (fst arrived)))) >> snd arrived)

forksGhc :: Int -> IO ()
forksGhc n = do
  arrived <- countdown n
  timed "fork-ghc" n (replicateM_ n (forkIO (fst arrived)) >> snd arrived)

-- | One has arrived; wait for all. For one capability.
countdown :: Int -> IO (IO (), IO ())
countdown n = do
  done <- newEmptyMVar
  left <- newIORef n
  let arrive = do
        k <- atomicModifyIORef' left (\x -> (x - 1, x - 1))
        when (k == 0) (putMVar done ())
  pure (arrive, takeMVar done)

-- | Threads that yield for ever, with a number each that changes, or without: bytes live after
-- all have had two turns at least.
live :: Bool -> Int -> IO ()
live numbered n = do
  run' (pure ())
  before <- liveBytes
  rounds <- newIORef (0 :: Int)
  let counted = yield >> nonBlocking (modifyIORef' rounds (+ 1)) >> counted
      same = yield >> same
      own :: Int -> Hybrid ()
      own i = if i < 0 then ret else yield >> own (i + 1)
  timed "fork" n (many n (if numbered then own 0 else same))
  run' (fork counted)
  let await = readIORef rounds >>= \r -> when (r < 2) (GHC.threadDelay 10000 >> await)
  await
  after <- liveBytes
  putStrLn ("live bytes a thread: " <> show ((after - before) / fromIntegral n))

-- | Start so many threads, by a tree of threads that start others: one alone would have its turn
-- once in a round of all.
many :: Int -> Hybrid () -> IO ()
many n act = do
  arrived <- countdown ((n + 255) `div` 256)
  let go :: Int -> Hybrid ()
      go k
        | k <= 256 = replicateM_ k (fork act) >> nonBlocking (fst arrived)
        | otherwise = let half = 256 * (((k `div` 2) + 255) `div` 256) in fork (go half) >> go (k - half)
  run' (go n) >> snd arrived

liveBytes :: IO Double
liveBytes = do
  performMajorGC
  fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats
