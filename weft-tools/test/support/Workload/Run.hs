{-# LANGUAGE BangPatterns #-}

-- |
-- A run of the workload: its plan, what is known of it, and its workers, which do one thing over and over and report what is wrong.
module Workload.Run
  ( -- * Plans
    Plan (..),
    Parts (..),

    -- * Runs
    Run (..),
    newRun,
    say,
    blame,
    retrying,
    trip,

    -- * Workers
    worker,
    watchdog,

    -- * Random numbers
    Dice,
    dice,
    roll,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Bits (shiftR, xor, (.&.))
import Data.IORef
import Data.List (intercalate)
import Data.Maybe (isJust)
import GHC.Clock (getMonotonicTime)
import System.Exit (ExitCode (..))
import System.IO (hFlush, stdout)
import System.Posix.Process (exitImmediately)

-- | How long, in how many rounds, from which seed, with what.
data Plan = Plan
  { planSeconds :: Double,
    planRounds :: Int,
    planSeed :: Int,
    planParts :: Parts,
    -- | How many processes of peers there are, which are killed and replaced.
    planPeers :: Int,
    -- | Are errors of system calls to be expected, so that operations may fail? Results that are wrong, and operations that never
    -- end, are faults all the same.
    planErrors :: Bool,
    -- | Change the number of capabilities all the time.
    planCycle :: Bool
  }

-- | What runs.
data Parts = Parts {withEcho, withWeb, withDisk, withTimers, withHybrid, withPipes, withForks :: Bool}

-- | What is known of the run.
data Run = Run
  { runPlan :: Plan,
    runFaults :: IORef [String],
    -- | Operations done, by part, and those that failed where that was to be expected.
    runDone :: MVar [(String, (Int, Int))],
    -- | When each worker last finished an operation.
    runBeats :: MVar [(String, Double)],
    -- | Round trips by length: powers of two of microseconds.
    runTrips :: IORef [Int],
    runOpen :: MVar Int
  }

-- | Nothing has been done yet.
newRun :: Plan -> IO Run
newRun plan = Run plan <$> newIORef [] <*> newMVar [] <*> newMVar [] <*> newIORef (replicate 32 0) <*> newMVar 0

say :: String -> IO ()
say = putStrLn

-- | Errors at the start are tried again, where they are to be expected.
retrying :: Run -> IO a -> IO a
retrying run act
  | planErrors (runPlan run) = go (100 :: Int)
  | otherwise = act
  where
    go 0 = act
    go n = act `catch` \e -> const (threadDelay 10000 >> go (n - 1)) (e :: IOException)

-- | A round trip of the echo took so many seconds.
trip :: Run -> Double -> IO ()
trip run s = atomicModifyIORef' (runTrips run) (\ts -> let ts' = bump ts in sum ts' `seq` (ts', ()))
  where
    bucket = min 31 (length (takeWhile (< s * 1e6) (iterate (* 2) 1)))
    bump ts = [if i == bucket then n + 1 else n | (i, n) <- zip [0 ..] ts]

-- | Do something over and over until the time comes. The action returns what is wrong.
worker :: Run -> Double -> String -> Int -> (Dice -> IO (Maybe String)) -> IO ()
worker run end part i act = do
  d <- dice (planSeed (runPlan run) * 1000 + i + sum (map fromEnum part) * 31)
  go d (0 :: Int) (0 :: Int)
  where
    name = part <> " " <> show i
    -- Evaluated: millions of them would be a chain of additions else, which looks like a leak of what is tested.
    go d !ok !failed = do
      t <- getMonotonicTime
      modifyMVar_ (runBeats run) (pure . ((name, t) :) . filter ((/= name) . fst))
      if t >= end
        then do
          modifyMVar_ (runBeats run) (pure . filter ((/= name) . fst))
          modifyMVar_ (runDone run) (evaluate . add ok failed)
        else do
          r <- try (act d)
          case r of
            Right Nothing -> go d (ok + 1) failed
            Right (Just why) -> blame run (name <> ": " <> why) >> go d ok failed
            Left e
              | Just (SomeAsyncException _) <- fromException e -> throwIO e
              | planErrors (runPlan run),
                isJust (fromException e :: Maybe IOException) -> do
                threadDelay 1000
                go d ok (failed + 1)
              | otherwise -> blame run (name <> ": " <> show e) >> threadDelay 10000 >> go d ok failed
    add ok failed done =
      let (!a, !b) = maybe (ok, failed) (\(x, y) -> (x + ok, y + failed)) (lookup part done)
       in (part, (a, b)) : filter ((/= part) . fst) done

blame :: Run -> String -> IO ()
blame run why = do
  n <- atomicModifyIORef' (runFaults run) (\fs -> (if length fs < 50 then why : fs else fs, length fs))
  when (n < 50) (say ("fault: " <> why))

-- | A worker that has not finished an operation for a minute of this process's own time stands still. (A process that is
-- stopped has no time meanwhile.)
watchdog :: Run -> IO ()
watchdog run = do
  stale <- newIORef []
  forever $ do
    threadDelay 1000000
    beats <- readMVar (runBeats run)
    old <- readIORef stale
    let new = [(b, maybe (0 :: Int) (+ 1) (lookup b old)) | b <- beats]
        stuck = [name | ((name, _), n) <- new, n >= 60]
    writeIORef stale new
    unless (null stuck) $ do
      say ("FAULT: no operation was finished for a minute: " <> intercalate ", " stuck)
      hFlush stdout
      exitImmediately (ExitFailure 2)

-- Random numbers -------------------------------------------------------------------------

type Dice = IORef Int

dice :: Int -> IO Dice
dice seed = newIORef (seed * 2862933555777941757 + 3037000493)

roll :: Dice -> Int -> IO Int
roll d n = do
  x <- readIORef d
  let x' = x * 6364136223846793005 + 1442695040888963407
  writeIORef d x'
  pure (((x' `shiftR` 33) `xor` (x' `shiftR` 17)) .&. 0x3fffffff `mod` n)
