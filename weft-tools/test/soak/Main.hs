-- |
-- The soak: a workload of everything at once, under faults ("Workload"), on each back end. As a test suite it takes a
-- minute, or as many seconds as @WEFT_SOAK_SECONDS@ says; @scripts/soak@ runs it for minutes and hours. The workload
-- runs in processes of this program, which are stopped and continued from time to time. Their output goes to the
-- standard error immediately.
module Main (main) where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Exception (bracket, evaluate)
import Control.Monad
import Data.Char (toLower)
import Data.List (isInfixOf)
import Data.Maybe (fromMaybe)
import System.Environment
import System.Exit (ExitCode (..))
import System.IO
import System.Posix.Signals (sigCONT, sigSTOP, signalProcess)
import qualified System.Process as P
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit (assertBool, assertEqual, assertFailure, (@?=))
import Text.Read (readMaybe)
import Weft.Backend (backendNames, whyUnavailable)
import Weft.Test.Main (defaultMain)
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
      together <- maybe False (/= "") <$> lookupEnv "WEFT_SOAK_TOGETHER"
      let each = if together then total else total / fromIntegral (length names) :: Double
          jobs = if together then length names else 1
      setEnv "TASTY_NUM_THREADS" (show jobs)
      tests <- mapM (soakOn each seed) names
      defaultMain (testGroup "soak" (testGroup "its verdict" verdicts : tests))

-- | A soak on that back end for the given number of seconds. The result of the test comes from its report.
soakOn :: Double -> Int -> String -> IO TestTree
soakOn seconds seed name = do
  why <- whyUnavailable name
  pure . testGroup name . (: []) $ case why of
    Just reason -> Skip.testCase "everything at once" (skip reason)
    Nothing -> Skip.testCase "everything at once" (soak name seconds seed)

-- | Tests of the soak itself, with a limit of three seconds for an operation.
verdicts :: [TestTree]
verdicts =
  [ Skip.testCase "a connection that the server forgets is a fault, reported with the seed and both sides" $ do
      (code, said) <- judged ["stall", "noweb", "nodisk", "notimers", "nohybrid", "nopipes", "noforks"] (const (pure ()))
      code @?= ExitFailure 1
      forM_ ["it has not ended: echo ", "seed 42", "client: receives", "server: has forgotten it; its thread: ThreadBlocked", "kernel: ", "ESTABLISHED"] $ \part ->
        assertBool ("it does not say " <> show part <> ": " <> said) (part `isInfixOf` said),
    Skip.testCase "operations that take long because the process is stopped are not faults, and are counted separately" $ do
      (code, said) <- judged ["noforks"] $ \pid -> do
        threadDelay 2000000
        signalProcess sigSTOP pid
        threadDelay 6000000
        signalProcess sigCONT pid
      assertBool said ("machine too busy: it took long" `isInfixOf` said)
      assertBool said ("operations are not judged" `isInfixOf` said)
      assertEqual said (ExitSuccess, False) (code, "FAULT" `isInfixOf` said)
  ]
  where
    judged flags meanwhile = do
      self <- getExecutablePath
      P.withCreateProcess ((P.proc self (arguments 2 6 1 42 0 ("short" : flags))) {P.std_out = P.CreatePipe}) $ \_ out _ process -> do
        pid <- P.getPid process
        bracket (forkIO (mapM_ meanwhile pid)) killThread . const $ do
          said <- maybe (pure "") (\h -> hGetContents h >>= \s -> s <$ evaluate (length s)) out
          code <- P.waitForProcess process
          pure (code, said)

soak :: String -> Double -> Int -> IO ()
soak name seconds seed = do
  self <- getExecutablePath
  environment <- getEnvironment
  P.withCreateProcess (command self environment) $ \_ out _ process -> do
    pid <- P.getPid process
    found <- bracket (forkIO (mapM_ stopping pid)) killThread . const $ maybe (pure []) report out
    code <- P.waitForProcess process
    unless (code == ExitSuccess) (assertFailure (unlines (("it ended with " <> show code) : found)))
  where
    -- A round takes between three seconds and a minute.
    rounds = max 3 (max (floor (seconds / 60)) (min 10 (floor (seconds / 3)))) :: Int
    command self environment =
      (P.proc self (arguments 2 seconds rounds seed 2 ["half"]))
        { P.std_out = P.CreatePipe,
          P.env = Just (("WEFT_BACKEND", name) : filter ((/= "WEFT_BACKEND") . fst) environment)
        }
    -- The failures in its report.
    report h = do
      done <- hIsEOF h
      if done
        then pure []
        else do
          l <- hGetLine h
          hPutStrLn stderr (name <> ": " <> l)
          if "fault" `isInfixOf` map toLower l then (l :) <$> report h else report h
    -- Stop the process for a moment from time to time.
    stopping pid = forever $ do
      threadDelay (round (max 2 (seconds / 12) * 1e6))
      signalProcess sigSTOP pid
      threadDelay 700000
      signalProcess sigCONT pid
