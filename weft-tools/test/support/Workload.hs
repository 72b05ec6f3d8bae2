-- |
-- A workload of everything at once in one process: echo, web, disk, timers, hybrid threads, pipes whose readers are
-- killed, and forks, while peers reset, half-close and disappear. Every result is checked. The workload runs in rounds.
-- After each round the load stops, and the resources that the process still holds are measured.
--
-- The suites run it in separate processes of their own program ('asProgram').
module Workload
  ( asProgram,
    arguments,
  )
where

import Control.Concurrent
import Control.Concurrent.Async (mapConcurrently_)
import Control.Monad
import Data.IORef
import Data.List (intercalate, isInfixOf)
import qualified Data.Map.Strict as Map
import GHC.Clock (getMonotonicTime)
import System.Directory
import System.Exit (ExitCode (..), exitWith)
import System.FilePath ((</>))
import System.IO (BufferMode (..), hFlush, hSetBuffering, stdout)
import System.Posix.Process (getProcessID)
import System.Posix.Signals (Handler (Catch), installHandler, sigALRM)
import qualified Weft.Http as Http
import Workload.Held
import Workload.Local
import Workload.Network
import Workload.OwnTime (startOwnTime)
import Workload.Run

-- | The program's action if its arguments say that it is one of these processes.
asProgram :: [String] -> Maybe (IO ())
asProgram ["run", time, rounds, seed, number, flags] = Just (workload plan)
  where
    has flag = (',' : flag <> ",") `isInfixOf` (',' : flags <> ",")
    parts = Parts (not (has "noecho")) (not (has "noweb")) (not (has "nodisk")) (not (has "notimers")) (not (has "nohybrid")) (not (has "nopipes")) (not (has "noforks"))
    plan = Plan (read time) (read rounds) (read seed) parts (read number) (has "errors") (has "cycle") (if has "half" then 0.5 else 0) (if has "short" then 3 else 30) (has "stall")
asProgram ["peer", echo, web, seed, pause] = Just (peer (read echo) (read web) (read seed) (read pause))
asProgram _ = Nothing

-- | The arguments with which a program runs the workload: capabilities, seconds, rounds, seed, number of processes
-- of peers; and flags: @errors@ (operations may fail), @cycle@ (capabilities are added and removed), @half@ (use half a
-- core on average), @short@ (the limit of an operation is three seconds), @stall@ (the echo server forgets
-- connections), @noforks@ and so on for each part.
arguments :: Int -> Double -> Int -> Int -> Int -> [String] -> [String]
arguments capabilities time rounds seed number flags = ["run", show time, show rounds, show seed, show number, intercalate "," flags, "+RTS", "-N" <> show capabilities, "-T", "-RTS"]

-- The run -------------------------------------------------------------------------------------

-- | Run a plan and report. Ends the program, with exit status 0 if there was no failure.
workload :: Plan -> IO ()
workload plan = do
  hSetBuffering stdout LineBuffering
  startOwnTime
  -- GHC 9.0's ticker opens its descriptor on a thread of its own, and ends the program if none is left.
  when (planErrors plan) (threadDelay 100000)
  _ <- installHandler sigALRM (Catch (pure ())) Nothing
  say ("seed " <> show (planSeed plan) <> ", " <> show (planSeconds plan) <> " s in " <> show (planRounds plan) <> " rounds")
  run <- newRun plan
  place <- (\t n -> t </> ("weft-soak-" <> show n)) <$> getTemporaryDirectory <*> getProcessID
  createDirectoryIfMissing True place
  (echoing, echoPort) <- retrying run (listening 256)
  (webbing, webPort) <- retrying run (listening 256)
  when (withEcho (planParts plan)) (void (forkIO (echoServer run echoing)))
  when (withWeb (planParts plan)) (void (forkIO (Http.runSettingsSocket Http.defaultSettings webbing (site run))))
  stopCycling <- if planCycle plan then cycling else pure (pure ())
  watch <- forkIO (watchdog run)
  samples <- forM [1 .. planRounds plan] $ \r -> do
    s <- sampled run (round' run r place echoPort webPort)
    busy <- readIORef (runBusy run)
    say ("round " <> show r <> ": " <> shown s <> "; operations not judged, as the machine was too busy: " <> show busy)
    pure s
  stopCycling
  killThread watch
  done <- readMVar (runDone run)
  forM_ (Map.toList done) (\(part, (ok, failed)) -> say (part <> ": " <> show ok <> " done, " <> show failed <> " failed as expected"))
  judgeGrowth run samples
  removePathForcibly place
  faults <- readIORef (runFaults run)
  mapM_ (say . ("FAULT: " <>)) (reverse faults)
  busy <- readIORef (runBusy run)
  when (busy > 0) (say ("machine too busy: " <> show busy <> " operations are not judged"))
  say (if null faults then "clean" else show (length faults) <> " faults")
  hFlush stdout
  exitWith (if null faults then ExitSuccess else ExitFailure 1)

-- | All parts for one round.
round' :: Run -> Int -> FilePath -> Int -> Int -> IO ()
round' run r place echoPort webPort = do
  end <- (+ planSeconds plan / fromIntegral (planRounds plan)) <$> getMonotonicTime
  mapConcurrently_ id $
    [worker run end r "echo" i (echoClient run echoPort) | withEcho parts, i <- [1 .. 8]]
      <> [worker run end r "web" i (webClient run webPort) | withWeb parts, i <- [1 .. 4]]
      <> [worker run end r "disk" i (diskUser place i) | withDisk parts, i <- [1 .. 3]]
      <> [worker run end r "timers" i timerUser | withTimers parts, i <- [1 .. 4]]
      <> [worker run end r "hybrid" i (hybridUser run echoPort (withEcho parts)) | withHybrid parts, i <- [1 .. 2]]
      <> [worker run end r "pipes" i (pipeUser run) | withPipes parts, i <- [1 .. 3]]
      <> [worker run end r "forks" 1 forker | withForks parts]
      <> [peers run end r echoPort webPort i | i <- [1 .. planPeers plan]]
  where
    plan = runPlan run
    parts = planParts plan
