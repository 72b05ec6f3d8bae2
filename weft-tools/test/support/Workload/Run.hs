{-# LANGUAGE BangPatterns #-}

-- |
-- A run of the workload: its plan, its state, and its workers, which repeat an operation and report failures.
--
-- Limits count the time in which the process could run ("Workload.OwnTime"). An operation that exceeds its limit is a
-- failure, reported with its seed and its connection. An operation that took longer only by the wall clock, since the
-- machine was busy, is counted separately.
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

    -- * Operations
    Operation,
    operationOn,
    note,
    patience,

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
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import GHC.Clock (getMonotonicTime)
import GHC.Conc (threadStatus)
import System.Exit (ExitCode (..))
import System.IO (hFlush, stdout)
import System.Posix.Process (exitImmediately)
import Weft.Duration (Duration, milliseconds)
import Workload.Connections
import Workload.OwnTime

-- | Duration, number of rounds, seed, and options.
data Plan = Plan
  { planSeconds :: Double,
    planRounds :: Int,
    planSeed :: Int,
    planParts :: Parts,
    -- | The number of peer processes, which are killed and replaced.
    planPeers :: Int,
    -- | Whether system calls are expected to fail, so that operations may fail. Wrong results and operations that never
    -- end are failures all the same.
    planErrors :: Bool,
    -- | Change the number of capabilities continually.
    planCycle :: Bool,
    -- | The number of cores to use on average; zero means all.
    planCores :: Double,
    -- | The limit of an operation, in seconds in which the process could run.
    planLimit :: Double,
    -- | The echo server forgets some connections; the limit has to detect that.
    planStall :: Bool
  }

-- | The parts that run.
data Parts = Parts {withEcho, withWeb, withDisk, withTimers, withHybrid, withPipes, withForks :: Bool}

-- | The state of a run.
data Run = Run
  { runPlan :: Plan,
    runFaults :: IORef [String],
    -- | By part, the number of operations completed, and of those that failed where failures are expected.
    runDone :: MVar (Map.Map String (Int, Int)),
    -- | The number of operations that took long because the machine was busy.
    runBusy :: IORef Int,
    -- | The current operation of each worker.
    runCurrent :: MVar (Map.Map String Operation),
    -- | Round trips by duration: the counts for powers of two of microseconds.
    runTrips :: IORef [Int],
    -- | How long a worker pauses between operations, in microseconds. Written by the watchdog.
    runPause :: IORef Int,
    runConnections :: Connections
  }

-- | A run at its beginning.
newRun :: Plan -> IO Run
newRun plan =
  Run plan <$> newIORef [] <*> newMVar Map.empty <*> newIORef 0 <*> newMVar Map.empty <*> newIORef (replicate 32 0)
    <*> newIORef (if planCores plan > 0 then 5000 else 0)
    <*> newConnections

say :: String -> IO ()
say s = putStrLn s >> hFlush stdout

-- | Retry after errors at the start, if errors are expected.
retrying :: Run -> IO a -> IO a
retrying run act
  | planErrors (runPlan run) = go (100 :: Int)
  | otherwise = act
  where
    go 0 = act
    go n = act `catch` \e -> const (threadDelay 10000 >> go (n - 1)) (e :: IOException)

-- | Record a round trip of the echo, in seconds.
trip :: Run -> Double -> IO ()
trip run s = atomicModifyIORef' (runTrips run) (\ts -> let ts' = bump ts in sum ts' `seq` (ts', ()))
  where
    bucket = min 31 (length (takeWhile (< s * 1e6) (iterate (* 2) 1)))
    bump ts = [if i == bucket then n + 1 else n | (i, n) <- zip [0 ..] ts]

-- Operations ------------------------------------------------------------------------------

-- | One operation of a worker.
data Operation = Operation
  { -- | The worker, the round, the number, and the state of the random generator, which together determine the
    -- operation.
    operationName :: String,
    operationThread :: ThreadId,
    -- | When it began, by the wall clock and by the process's own time.
    operationBegan, operationOwn :: Double,
    -- | What it is doing.
    operationNote :: IORef String,
    -- | The client's port and the server's.
    operationPorts :: IORef (Maybe (Int, Int)),
    -- | Whether its delay has been reported.
    operationReported :: IORef Bool
  }

-- | Record what the operation is doing now.
note :: Operation -> String -> IO ()
note = writeIORef . operationNote

-- | Record that the operation's connection goes from one port to the other.
operationOn :: Operation -> Int -> Int -> IO ()
operationOn o from to = writeIORef (operationPorts o) (Just (from, to))

-- | An operation that failed sooner than this did not fail because the machine was busy: no time limit of the web
-- server is shorter. The shortest is ten seconds, for a head.
shortestLimit :: Run -> Double
shortestLimit run = min 9 (planLimit (runPlan run))

-- | The wall-clock limit that is passed to the operations themselves. It should be reached only if errors are injected.
patience :: Run -> Duration
patience run = milliseconds (if planErrors (runPlan run) then 30000 else 600000)

describe :: Run -> Operation -> IO String
describe run o = do
  now <- getMonotonicTime
  own <- ownTime
  doing <- readIORef (operationNote o)
  ports <- readIORef (operationPorts o)
  status <- threadStatus (operationThread o)
  sides <- maybe (pure ["no connection"]) (uncurry (connectionState (runConnections run))) ports
  pure . intercalate "\n    " $
    ( operationName o <> ", seed " <> show (planSeed (runPlan run)) <> ": " <> show (round' (now - operationBegan o)) <> " s since it began, "
        <> show (round' (own - operationOwn o))
        <> " s of which the process could run"
    ) :
    ("client: " <> doing <> "; its thread: " <> show status) :
    sides
  where
    round' x = fromIntegral (round (x * 100) :: Int) / 100 :: Double

-- Workers ---------------------------------------------------------------------------------

-- | Ends an operation that has exceeded its limit.
data Overdue = Overdue deriving (Show)

instance Exception Overdue where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | Repeat an operation until the given time. The operation returns its failure, if any.
worker :: Run -> Double -> Int -> String -> Int -> (Operation -> Dice -> IO (Maybe String)) -> IO ()
worker run end r part i act = do
  d <- dice (planSeed (runPlan run) * 1000 + r * 7919 + i + sum (map fromEnum part) * 31)
  go d (0 :: Int) (0 :: Int)
  where
    name = part <> " " <> show i
    -- Evaluated strictly: otherwise millions of operations would build a chain of additions, which looks like a leak in
    -- Weft.
    go d !ok !failed = do
      t <- getMonotonicTime
      if t >= end
        then do
          modifyMVar_ (runCurrent run) (evaluate . Map.delete name)
          modifyMVar_ (runDone run) (evaluate . Map.insertWith (\(a, b) (x, y) -> let (!p, !q) = (a + x, b + y) in (p, q)) part (ok, failed))
        else do
          o <- begin d (ok + failed)
          result <- try (act o d)
          late <- afterLimit o
          case result of
            Right Nothing -> do
              when (late (planLimit (runPlan run))) (busy o "it took long")
              pausing d >> go d (ok + 1) failed
            Right (Just why) -> wrong o why >> pausing d >> go d ok failed
            Left e
              | Just Overdue <- fromException e -> go d ok failed
              | Just (SomeAsyncException _) <- fromException e -> throwIO e
              | planErrors (runPlan run),
                isJust (fromException e :: Maybe IOException) -> do
                threadDelay 1000
                go d ok (failed + 1)
              | late (shortestLimit run) -> busy o (show e) >> go d ok (failed + 1)
              | otherwise -> wrong o (show e) >> threadDelay 10000 >> go d ok failed
    begin d n = do
      state <- readIORef d
      o <-
        Operation (name <> ", round " <> show r <> ", operation " <> show n <> ", random numbers from " <> show state) <$> myThreadId <*> getMonotonicTime
          <*> ownTime
          <*> newIORef "begins"
          <*> newIORef Nothing
          <*> newIORef False
      modifyMVar_ (runCurrent run) (evaluate . Map.insert name o)
      pure o
    -- Whether the operation exceeded a limit by the wall clock, but not in its own time.
    afterLimit o = do
      now <- getMonotonicTime
      own <- ownTime
      pure (\limit -> now - operationBegan o >= limit && own - operationOwn o < limit)
    wrong o why = do
      state <- describe run o
      blame run (why <> ": " <> state)
    busy o why = do
      n <- atomicModifyIORef' (runBusy run) (\n -> (n + 1, n))
      state <- describe run o
      when (n < 5) (say ("machine too busy: " <> why <> ": " <> state))
    pausing d = do
      pause <- readIORef (runPause run)
      when (pause > 0) (roll d (2 * pause) >>= threadDelay)

blame :: Run -> String -> IO ()
blame run why = do
  n <- atomicModifyIORef' (runFaults run) (\fs -> (if length fs < 50 then why : fs else fs, length fs))
  when (n < 50) (say ("fault: " <> why))

-- | Each second: report and end operations that exceed their limit, and end the process if one of them does not stop.
-- The watchdog also adjusts the pauses so that the process uses as many cores as the plan says.
watchdog :: Run -> IO ()
watchdog run = getMonotonicTime >>= \t -> processorTime >>= go t
  where
    go before used = do
      threadDelay 1000000
      stillRuns
      now <- getMonotonicTime
      used' <- processorTime
      let cores = planCores (runPlan run)
          wanted = cores * (now - before)
      when (cores > 0) $
        modifyIORef' (runPause run) (\p -> max 200 (min 100000 (round (fromIntegral p * max 0.8 (min 1.25 ((used' - used) / wanted)) :: Double))))
      own <- ownTime
      current <- Map.elems <$> readMVar (runCurrent run)
      forM_ current $ \o -> do
        told <- readIORef (operationReported o)
        let took = own - operationOwn o
            limit = (if planErrors (runPlan run) then 2 else 1) * planLimit (runPlan run)
        when (took >= limit && not told) $ do
          writeIORef (operationReported o) True
          state <- describe run o
          blame run ("it has not ended: " <> state)
          void (forkIO (throwTo (operationThread o) Overdue))
        when (took >= limit + 30) $ do
          state <- describe run o
          say ("FAULT: it cannot be ended: " <> state)
          exitImmediately (ExitFailure 2)
      go now used'

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
