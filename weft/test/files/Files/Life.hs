-- |
-- Rings that are started and stopped again and again; forked children; the choice of an engine.
module Files.Life
  ( tests,
  )
where

import Control.Concurrent (yield)
import Control.Monad (forM_, replicateM_, void, when)
import Harness
import System.Directory (listDirectory)
import System.Exit (ExitCode (..))
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.File
import Weft.Runtime (stopManagers)
import Weft.Test.Files

tests :: FileEngine -> TestTree
tests engine =
  testGroup
    "life"
    [ testCase "started and stopped, nothing is left" restarts,
      testCase "stopped by threads that are killed, nothing is left" interrupted,
      testCase "a forked child has files of its own" forked,
      testCase "the chosen engine is used" (chosen engine)
    ]

-- | Reads that wait for the disk, enough of them to need the rings.
readSome :: FilePath -> IO ()
readSome path = withFile reading {openDirect = True} path $ \file -> parallel 16 $ \i -> do
  got <- readAt file (fromIntegral (4096 * i)) 4096
  when (got /= marked (4096 * i) 4096) (assertFailure "wrong bytes")

restarts :: Assertion
restarts = withBytes 65536 $ \path -> do
  let once = readSome path >> stopRings >> stopManagers
  once
  descriptors <- openDescriptors
  threads <- osThreads
  forM_ [1 .. times 40] (const once)
  later <- settled descriptors openDescriptors
  assertBool (show (later - descriptors) <> " descriptors left") (later <= descriptors)
  threadsAfter <- settled (threads + 16) osThreads
  -- GHC's run-time system may have made some of its own.
  assertBool (show (threadsAfter - threads) <> " OS threads left") (threadsAfter <= threads + 16)
  where
    osThreads = length <$> listDirectory "/proc/self/task"

interrupted :: Assertion
interrupted = withBytes 65536 $ \path -> do
  let once i = do
        readSome path
        stopping <- start stopRings
        if even i then void (blocked stopping) else replicateM_ (i `mod` 7) yield
        stop stopping
        stopRings
        -- A capability's manager starts when a thread first waits there.
        stopManagers
  once 0
  descriptors <- openDescriptors
  forM_ [1 .. times 40] once
  later <- settled descriptors openDescriptors
  assertBool (show (later - descriptors) <> " descriptors left") (later <= descriptors)

forked :: Assertion
forked = withBytes 65536 $ \path -> do
  readSome path
  forM_ [1 .. times 3] $ \_ -> do
    child <- forkProcess $ do
      readSome path
      exitImmediately ExitSuccess
    status <- finishes "the child" (getProcessStatus True False child)
    status @?= Just (Exited ExitSuccess)
    readSome path

chosen :: FileEngine -> Assertion
chosen engine = withBytes 65536 $ \path -> do
  before <- requests
  forM_ [1 .. 4 :: Int] (const (readSome path))
  later <- requests
  (engine', refused) <- filesChoice
  case refused of
    Just why -> assertBool why (engine' == Threads && later == before)
    Nothing -> do
      engine' @?= engine
      case engine of
        Rings -> do
          later - before @>= 64
          -- The kernel has never seen these names. They are no reason for a thread of their own.
          forM_ [1 .. 50 :: Int] $ \i -> failure "open" (openFile reading (path <> "-" <> show i))
          opened <- requests
          opened - later @>= 50
        Threads -> later @?= before
        -- Up to 64 at once go past the rings, unless each ends before the next begins.
        Adaptive -> do
          submitted <- directly
          eventually "reads by io_submit" $ readSome path >> (> submitted) <$> directly
          eventually "reads by a ring" $ readMany path >> (> before) <$> requests
  where
    requests = sum . map ringRequests <$> readRingMetrics
    directly = sum . map directRequests <$> readDirectMetrics
    readMany path = withFile reading {openDirect = True} path $ \file -> parallel 256 $ \i -> void (readAt file (fromIntegral (4096 * (i `mod` 16))) 4096)
