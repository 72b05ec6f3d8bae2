-- |
-- Timers of a process that is stopped (SIGSTOP, SIGCONT), or whose date
-- is changed, on 1, 2 and 4 capabilities at once: each fires once, none early. The program runs itself again as the
-- process with the timers. Only that process sees the changed date, by
-- @libfaketime@, if it is installed.
module Main (main) where

import Control.Concurrent hiding (threadDelay)
import qualified Control.Concurrent as G
import Control.Concurrent.STM (atomically, check, readTVar)
import Control.Exception (SomeException, bracket, evaluate, throwIO, try)
import Control.Monad
import Data.IORef
import Data.Maybe (catMaybes, isJust, isNothing)
import Data.Time.Clock.POSIX (getPOSIXTime)
import Data.Word (Word64)
import GHC.Clock (getMonotonicTimeNSec)
import System.Directory (findExecutable, getTemporaryDirectory, removeFile)
import System.Environment (getArgs, getEnvironment, getExecutablePath, setEnv)
import System.Exit (ExitCode (..), exitFailure)
import System.FilePath ((</>))
import System.IO
import System.Posix.Process (getProcessID)
import System.Posix.Signals (sigCONT, sigSTOP, signalProcess)
import System.Process
import qualified System.Timeout as G
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit hiding (testCase)
import Weft.Backend (backendNames, whyUnavailable)
import qualified Weft.Event as E
import Weft.IdleTimer (newIdleTimer)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skip, skipAll, testCase)
import Weft.Thread
import Weft.Timer (microseconds, schedule)

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    ["worker"] -> worker
    _ -> do
      backends <- configurations (const True) backendNames
      groups <- forM backends $ \name -> maybe id (skipAll name) <$> whyUnavailable name
      preload <- fakeTime
      -- Busy neighbours would only make timers late.
      setEnv "TASTY_NUM_THREADS" "1"
      available <- filterM (fmap isNothing . whyUnavailable) backends
      defaultMain . testGroup "clocks" $ zipWith ($) groups (map (underBackend preload) backends) <> [tenSeconds available]

-- | The tests on one back end; with the variables that make programs load @libfaketime@, where it is installed.
underBackend :: Maybe [(String, String)] -> String -> TestTree
underBackend preload backend =
  testGroup backend $
    [ observed "left alone" 0 $ \n -> run n [] (\_ -> pure ()),
      observed "stopped and continued" 0 $ \n -> run n [] stopping
    ]
      <> [ observed ("the date changes by " <> show offset <> " s") offset $ \n -> withDateFile n $ \file -> do
             set <- maybe (skip "libfaketime is not installed") pure preload
             let variables = set <> [("FAKETIME_TIMESTAMP_FILE", file), ("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]
             run n variables (\_ -> G.threadDelay 150000 >> writeFile file (signed offset <> "\n"))
           | offset <- [86400, -86400]
         ]
  where
    observed name offset act = testCase name (together (map act capabilities) >>= mapM_ (jumpedBy offset))
    run n variables = observe (("WEFT_BACKEND", backend) : variables) n
    signed n = (if n < 0 then id else ('+' :)) (show n)

-- | Processes with each back end are stopped for ten seconds.
tenSeconds :: [String] -> TestTree
tenSeconds backends = testCase "stopped for ten seconds" $ do
  said <- together [observe [("WEFT_BACKEND", backend)] n (stoppedFor 10000) | backend <- backends, n <- capabilities]
  mapM_ (jumpedBy 0) said

-- | The numbers of capabilities with which each process runs.
capabilities :: [Int]
capabilities = [1, 2, 4]

-- | Run actions at the same time. Throws what one of them throws.
together :: [IO a] -> IO [a]
together acts = do
  boxes <- forM acts $ \act -> do
    box <- newEmptyMVar
    box <$ forkIO (try act >>= putMVar box)
  forM boxes (takeMVar >=> either (throwIO :: SomeException -> IO a) pure)

-- | Stop the process a few times, once for longer than many of its timers take.
stopping :: Pid -> IO ()
stopping pid = forM_ [20, 400, 1, 90, 60] $ \ms -> G.threadDelay 50000 >> stoppedFor ms pid

-- | Stop the process for this many milliseconds.
stoppedFor :: Int -> Pid -> IO ()
stoppedFor ms pid = do
  signalProcess sigSTOP pid
  G.threadDelay (1000 * ms)
  signalProcess sigCONT pid

-- | Run the worker on that many capabilities, do something to it, and return what it says. It does not end before that
-- has been done: then its input is closed.
observe :: [(String, String)] -> Int -> (Pid -> IO ()) -> IO (ExitCode, String)
observe variables n act = do
  program <- getExecutablePath
  inherited <- filter ((`notElem` map fst variables) . fst) <$> getEnvironment
  let process = (proc program ["worker", "+RTS", "-N" <> show n]) {std_in = CreatePipe, std_out = CreatePipe, env = Just (variables <> inherited)}
  withCreateProcess process $ \input out _ handle -> case (input, out) of
    (Just i, Just h) -> within "the worker" $ do
      ready <- hGetLine h
      ready @?= "ready"
      getPid handle >>= mapM_ act
      hClose i
      said <- hGetContents h
      code <- length said `seq` waitForProcess handle
      pure (code, said)
    _ -> assertFailure "no pipes"
  where
    within what = G.timeout 90000000 >=> maybe (assertFailure (what <> " is still running")) pure

-- | The worker found nothing wrong, and its date moved by this many seconds.
jumpedBy :: Int -> (ExitCode, String) -> Assertion
jumpedBy wanted (code, said) = case (code, map words (lines said)) of
  (ExitSuccess, [["jumped", n]]) | abs (read n - wanted) <= 2 -> pure ()
  _ -> assertFailure (show code <> ":\n" <> said)

-- | Variables that make programs load @libfaketime@, from what @faketime@ sets.
fakeTime :: IO (Maybe [(String, String)])
fakeTime = do
  found <- findExecutable "faketime"
  if isNothing found
    then pure Nothing
    else do
      said <- readProcess "faketime" ["-f", "+0", "env"] ""
      pure (Just [("LD_PRELOAD", drop (length name) l) | l <- lines said, take (length name) l == name])
  where
    name = "LD_PRELOAD="

withDateFile :: Int -> (FilePath -> IO a) -> IO a
withDateFile n = bracket make removeFile
  where
    make = do
      folder <- getTemporaryDirectory
      pid <- getProcessID
      let file = folder </> ("weft-clocks-" <> show pid <> "-" <> show n)
      file <$ writeFile file "+0\n"

-- The worker -----------------------------------------------------------------------------

-- | A timer of some kind: what it is, when it is due, when it fired.
data Timer = Timer String Word64 (IORef [Word64])

-- | Sets timers of every kind, prints @ready@, waits for them and for the end of its input, and prints by how many
-- seconds the date moved; fails with what was wrong.
worker :: IO ()
worker = do
  hSetBuffering stdout LineBuffering
  m <- E.new
  _ <- forkIO (E.loop m)
  dateBefore <- offset
  timers <- forM [(us, kind) | us <- [1000, 26000 .. 1001000], kind <- kinds m] $ \(us, (name, set)) -> do
    fired <- newIORef []
    t <- getMonotonicTimeNSec
    set us (getMonotonicTimeNSec >>= \now -> atomicModifyIORef' fired (\ts -> (now : ts, ())))
    pure (Timer (name <> " " <> show us <> " us") (t + 1000 * fromIntegral us) fired)
  putStrLn "ready"
  all' <- G.timeout 40000000 (waitFor timers)
  getContents >>= void . evaluate . length
  -- For those that would fire twice.
  G.threadDelay 300000
  wrong <- catMaybes <$> mapM judge timers
  mapM_ putStrLn (take 20 wrong)
  dateAfter <- offset
  putStrLn ("jumped " <> show (round (dateAfter - dateBefore) :: Int))
  unless (isJust all' && null wrong) exitFailure
  where
    offset = (-) <$> (realToFrac <$> getPOSIXTime) <*> ((/ (1e9 :: Double)) . fromIntegral <$> getMonotonicTimeNSec)
    waitFor timers = do
      left <- filterM (\(Timer _ _ fired) -> null <$> readIORef fired) timers
      unless (null left) (G.threadDelay 5000 >> waitFor timers)
    judge (Timer name due fired) = do
      ts <- readIORef fired
      pure $ case ts of
        [t]
          | t >= due -> Nothing
          | otherwise -> Just (name <> ": " <> show (due - t) <> " ns early")
        _ -> Just (name <> ": fired " <> show (length ts) <> " times")

-- | Ways of running an action after a number of microseconds.
kinds :: E.EventManager -> [(String, Int -> IO () -> IO ())]
kinds m =
  [ ("threadDelay", \us act -> void (forkIO (threadDelay us >> act))),
    ( "registerDelay",
      \us act -> do
        passed <- registerDelay us
        void (forkIO (atomically (readTVar passed >>= check) >> act))
    ),
    ("timeout", \us act -> void (forkIO (newEmptyMVar >>= \never -> timeout us (takeMVar never :: IO ()) >>= maybe act pure))),
    ("schedule", \us act -> void (schedule (spanOf us) act)),
    ("newIdleTimer", \us act -> void (newIdleTimer (spanOf us) act)),
    ("registerTimeout", \us act -> void (E.registerTimeout m (spanOf us) act))
  ]
  where
    spanOf = microseconds
