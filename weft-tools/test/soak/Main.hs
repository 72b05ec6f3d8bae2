-- |
-- The soak: everything at once, under faults ("Workload"), on each back end. As a test suite it takes a minute, or as many seconds as
-- @WEFT_SOAK_SECONDS@ says; @scripts/soak@ runs it for minutes and hours. The work is done by processes that run this
-- program again, which are stopped and continued meanwhile.
module Main (main) where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Exception (bracket)
import Control.Monad
import Data.Maybe (fromMaybe)
import System.Environment
import System.Exit (ExitCode (..))
import System.IO
import System.Posix.Signals (sigCONT, sigSTOP, signalProcess)
import qualified System.Process as P
import Test.Tasty
import Test.Tasty.HUnit (assertFailure, testCaseSteps)
import Text.Read (readMaybe)
import Weft.Backend (backendNames, whyUnavailable)
import Weft.Test.Skip (skip)
import qualified Weft.Test.Skip as Skip
import Workload

main :: IO ()
main = do
  args <- getArgs
  case asProgram args of
    Just program -> program
    Nothing -> do
      total <- maybe 45 (fromMaybe 45 . readMaybe) <$> lookupEnv "WEFT_SOAK_SECONDS"
      seed <- maybe 1 (fromMaybe 1 . readMaybe) <$> lookupEnv "WEFT_SOAK_SEED"
      only <- lookupEnv "WEFT_BACKEND"
      let names = maybe backendNames (: []) only
          each = total / fromIntegral (length names) :: Double
      tests <- mapM (soakOn each seed) names
      defaultMain (testGroup "soak" tests)

-- | On that back end, for so many seconds. Its report is the test's.
soakOn :: Double -> Int -> String -> IO TestTree
soakOn seconds seed name = do
  why <- whyUnavailable name
  pure . testGroup name . (: []) $ case why of
    Just reason -> Skip.testCase "everything at once" (skip reason)
    Nothing -> testCaseSteps "everything at once" (soak name seconds seed)

soak :: String -> Double -> Int -> (String -> IO ()) -> IO ()
soak name seconds seed step = do
  self <- getExecutablePath
  environment <- getEnvironment
  P.withCreateProcess (command self environment) $ \_ out _ process -> do
    pid <- P.getPid process
    bracket (forkIO (mapM_ stopping pid)) killThread . const $ mapM_ report out
    code <- P.waitForProcess process
    unless (code == ExitSuccess) (assertFailure ("it ended with " <> show code))
  where
    -- A round is three seconds at least, and a minute at most.
    rounds = max 3 (max (floor (seconds / 60)) (min 10 (floor (seconds / 3)))) :: Int
    command self environment =
      (P.proc self (arguments seconds rounds seed 2 []))
        { P.std_out = P.CreatePipe,
          P.env = Just (("WEFT_BACKEND", name) : filter ((/= "WEFT_BACKEND") . fst) environment)
        }
    report h = do
      done <- hIsEOF h
      unless done (hGetLine h >>= step >> report h)
    -- Stopped for a while, now and then.
    stopping pid = forever $ do
      threadDelay (round (max 2 (seconds / 12) * 1e6))
      signalProcess sigSTOP pid
      threadDelay 700000
      signalProcess sigCONT pid
