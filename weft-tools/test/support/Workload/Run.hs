{-# LANGUAGE BangPatterns #-}

-- |
-- A run of the workload: its plan, what is known of it, and its workers, which do one thing over and over and report what is wrong.
--
-- Limits count the time in which the process could run ("Workload.OwnTime"). An operation that exceeds one is a fault, and is told with
-- its seed and its connection. One that took longer by the clock on the wall only, as the machine was busy, is counted apart.
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
    planCycle :: Bool,
    -- | How many cores to use on average; zero: as many as there are.
    planCores :: Double,
    -- | The limit of an operation, in seconds of the process's own time.
    planLimit :: Double,
    -- | The echo server forgets some connections: the limit has to find them.
    planStall :: Bool
  }

-- | What runs.
data Parts = Parts {withEcho, withWeb, withDisk, withTimers, withHybrid, withPipes, withForks :: Bool}

-- | What is known of the run.
data Run = Run
  { runPlan :: Plan,
    runFaults :: IORef [String],
    -- | Operations done, by part, and those that failed where that was to be expected.
    runDone :: MVar (Map.Map String (Int, Int)),
    -- | Those that took long because the machine was busy.
    runBusy :: IORef Int,
    -- | What each worker does.
    runCurrent :: MVar (Map.Map String Operation),
    -- | Round trips by length: powers of two of microseconds.
    runTrips :: IORef [Int],
    -- | Microseconds that a worker pauses between operations. Written by the watchdog.
    runPause :: IORef Int,
    runConnections :: Connections
  }

-- | Nothing has been done yet.
newRun :: Plan -> IO Run
newRun plan =
  Run plan <$> newIORef [] <*> newMVar Map.empty <*> newIORef 0 <*> newMVar Map.empty <*> newIORef (replicate 32 0)
    <*> newIORef (if planCores plan > 0 then 5000 else 0)
    <*> newConnections

say :: String -> IO ()
say s = putStrLn s >> hFlush stdout

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

-- Operations ------------------------------------------------------------------------------

-- | One operation of a worker.
data Operation = Operation
  { -- | The worker, the round, the number, and the random numbers' state: what the operation does is determined by that.
    operationName :: String,
    operationThread :: ThreadId,
    -- | When it began, by the clock and by the process's own time.
    operationBegan, operationOwn :: Double,
    -- | What it is doing.
    operationNote :: IORef String,
    -- | The number of its port, and the server's.
    operationPorts :: IORef (Maybe (Int, Int)),
    -- | Has its delay been told?
    operationTold :: IORef Bool
  }

-- | What the operation is doing now.
note :: Operation -> String -> IO ()
note = writeIORef . operationNote

-- | Its connection is from that port to that one.
operationOn :: Operation -> Int -> Int -> IO ()
operationOn o from to = writeIORef (operationPorts o) (Just (from, to))

-- | A busy machine is no excuse for an operation that failed sooner: it is less than any limit of the web server's (the least is ten
-- seconds, for a head).
shortestLimit :: Run -> Double
shortestLimit run = min 9 (planLimit (runPlan run))

-- | The limit that is given to operations themselves, by the clock on the wall: it is not to be reached, but where errors are injected.
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

-- | An operation is ended, as it exceeded its limit.
data Overdue = Overdue deriving (Show)

instance Exception Overdue where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | Do something over and over until the time comes. The action returns what is wrong.
worker :: Run -> Double -> Int -> String -> Int -> (Operation -> Dice -> IO (Maybe String)) -> IO ()
worker run end r part i act = do
  d <- dice (planSeed (runPlan run) * 1000 + r * 7919 + i + sum (map fromEnum part) * 31)
  go d (0 :: Int) (0 :: Int)
  where
    name = part <> " " <> show i
    -- Evaluated: millions of them would be a chain of additions else, which looks like a leak of what is tested.
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
    -- Did it exceed a limit by the clock, but not in its own time?
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

-- | Each second: ends operations that exceed their limit, and tells of them; ends the process if one does not end by that. Sees to
-- it that the process uses as much of the processors as the plan says.
watchdog :: Run -> IO ()
watchdog run = getMonotonicTime >>= \t -> processorTime >>= go t
  where
    go before used = do
      threadDelay 1000000
      now <- getMonotonicTime
      used' <- processorTime
      let cores = planCores (runPlan run)
          wanted = cores * (now - before)
      when (cores > 0) $
        modifyIORef' (runPause run) (\p -> max 200 (min 100000 (round (fromIntegral p * max 0.8 (min 1.25 ((used' - used) / wanted)) :: Double))))
      own <- ownTime
      current <- Map.elems <$> readMVar (runCurrent run)
      forM_ current $ \o -> do
        told <- readIORef (operationTold o)
        let took = own - operationOwn o
            limit = (if planErrors (runPlan run) then 2 else 1) * planLimit (runPlan run)
        when (took >= limit && not told) $ do
          writeIORef (operationTold o) True
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
