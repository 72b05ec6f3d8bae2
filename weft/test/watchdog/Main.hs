-- |
-- "Weft.Watchdog". This program runs itself as one that holds a capability until that has been reported, and reads its
-- standard error: nothing here depends on how long something takes.
module Main (main) where

import Control.Concurrent hiding (threadDelay, threadWaitRead)
import Control.Exception (IOException, try)
import Control.Monad
import Data.Int (Int64)
import Data.List (isInfixOf, isPrefixOf, sort)
import GHC.Clock (getMonotonicTimeNSec)
import Spin
import System.Environment
import System.Exit (ExitCode (..))
import System.IO
import System.Info (arch, os)
import System.Posix.IO (createPipe, fdWrite)
import System.Posix.Process (ProcessStatus (Exited), forkProcess, getProcessStatus)
import System.Process hiding (createPipe)
import qualified System.Timeout as G
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.Core.Manager (newManager, newManagerRegistry)
import qualified Weft.Event as E
import Weft.Metrics
import Weft.Test.Main (defaultMain)
import Weft.Thread (threadDelay, threadWaitRead)
import Weft.Timer
import Weft.TimerQueue (newQueue)
import Weft.Watchdog

main :: IO ()
main = do
  arguments <- getArgs
  case arguments of
    ["hold", how] -> hold how
    _ -> defaultMain (testGroup "watchdog" tests)

tests :: [TestTree]
tests =
  [ testCase (what <> ", -N" <> show n) $ reports n how expected
    | n <- [1, 2 :: Int],
      (what, how, expected) <-
        [ ("the action of a timer that never allocates", "timer", ["held", "by the action of a timer", busy]),
          ("a callback that never allocates", "callback", ["an event manager", "by a callback of descriptor", busy]),
          ("a thread that never allocates", "thread", ["held", "by other threads", busy]),
          ("a local function, whose code has no symbol", "local", ["by the action of a timer", busy <> before, localName]),
          ("a foreign call that blocks", "foreign", ["by the action of a timer", "no OS thread of the program is busy"]),
          ("a bound that the program sets", "set", ["by the action of a timer"]),
          ("in a forked child", "fork", ["by the action of a timer"]),
          ("after many managers whose back end was refused", "refused", ["by the action of a timer"])
        ]
  ]
    <> [ testCase "on the second capability" $ reports 2 "second" ["capability 1 has been held", "by other threads"],
         testCase "on a capability on which nothing has waited" $ reports 2 "unwaited" ["capability 1 has been held", "by other threads"],
         testCase "before any wait, with a bound that the program sets" $ reports 2 "set, unwaited" ["capability 1 has been held", "by other threads"],
         testCase "a hold is reported from its beginning on, although the dispatcher sleeps" (countsAll "asleep"),
         testCase "each of several holds back to back is reported" (countsAll "several"),
         testCase "without a bound nothing is reported" $ do
           (code, out, err) <- run Nothing 1 "quiet"
           (code, out, err) @?= (ExitSuccess, "0\n", ""),
         testCase "the time without a bound does not count" $ do
           (code, out, _) <- run Nothing 1 "again"
           (code, out) @?= (ExitSuccess, "True\n"),
         testCase "bounds at the limits, and without a digit before the point" . forM_ ["1e6", ".5", "0.001"] $ \bound -> do
           (code, out, err) <- run (Just bound) 1 "threads"
           (code, out) @?= (ExitSuccess, "0\n")
           assertBool err (not ("weft watchdog: off" `isInfixOf` err)),
         testCase "with a bound that is none there is one warning, and no watchdog" . forM_ ["soon", "0.0001", "-1", "1000001"] $ \bound -> do
           (code, out, err) <- run (Just bound) 2 "threads"
           (code, out) @?= (ExitSuccess, "0\n")
           length (lines err) @?= 1
           mapM_ (\part -> assertBool err (part `isInfixOf` err)) ["WEFT_WATCHDOG is " <> show bound, "a number of seconds from 0.001 to 1000000"]
       ]
  where
    located = (os, arch) `elem` [("linux", "x86_64"), ("linux", "aarch64")]
    busy = if located then "is busy in " else ""
    before = if located then "code before " else ""
    -- From GHC 9.4 on the symbol begins with the package.
    localName = if located then "Spin_" else ""

-- | The program's reports have these texts in them, and it says that the capability is free again; and how often that
-- happened.
reports :: Int -> String -> [String] -> Assertion
reports n how expected = do
  own <- getExecutablePath
  environment <- filter ((/= "WEFT_WATCHDOG") . fst) <$> getEnvironment
  let variables = [("WEFT_WATCHDOG", "0.1") | not ("set" `isPrefixOf` how)]
      child = (proc own ["hold", how, "+RTS", "-N" <> show n]) {std_in = CreatePipe, std_out = CreatePipe, std_err = CreatePipe, env = Just (variables <> environment)}
  said <- withCreateProcess child $ \input output errors _ -> case (input, output, errors) of
    (Just i, Just o, Just e) -> do
      heard <- newMVar []
      -- Until all is said: on a busy machine the program may be kept from running before it holds anything, and that
      -- is reported, too.
      let listen = do
            line <- hGetLine e
            said <- modifyMVar heard (\before -> let now = before <> [line] in pure (now, unlines now))
            unless (all (`isInfixOf` said) (": capability" : freed : expected) || all (`isInfixOf` said) (": an event manager" : freed : expected)) listen
      complete <- G.timeout 60000000 listen
      said <- unlines <$> readMVar heard
      when (complete == Nothing) (assertFailure (show expected <> " are not all in\n" <> said))
      hClose i
      counted <- limited (hGetLine o)
      assertBool counted (read counted >= (1 :: Int))
      pure said
    _ -> assertFailure "no pipes"
  when ("is busy in " `elem` expected) $
    assertBool ("no name in\n" <> said) (any (`isInfixOf` said) ["spinUntil", "weft_watchdog_stalls", "getMonotonicNSec", "clock_gettime", "vdso", "libc"])
  where
    freed = "is free again, after"

-- | Each hold lasts until it has been reported, and longer. The program prints how long they lasted, in nanoseconds;
-- for each of them there is a report that it is over, with a time that is too short by a quarter of the bound at most.
countsAll :: String -> Assertion
countsAll how = do
  (code, out, err) <- run (Just "0.4") 1 how
  code @?= ExitSuccess
  let held = map (\ns -> fromIntegral (ns :: Int64) / 1e9) (concatMap read (take 1 (lines out)))
      said = [shown | line <- lines err, "is free again, after" `isInfixOf` line, shown <- take 1 (drop 1 (reverse (words line)))]
      claim = "lasted " <> show held <> ", and there was said\n" <> err
  assertBool claim (not (null held))
  assertBool claim (matched (reverse (sort held)) (reverse (sort (map read said))))
  where
    matched lasted shown = length shown >= length lasted && and (zipWith (\l s -> s >= l - 0.1) lasted (shown :: [Double]))

limited :: IO a -> IO a
limited act = G.timeout 60000000 act >>= maybe (assertFailure "nothing came for a minute") pure

run :: Maybe String -> Int -> String -> IO (ExitCode, String, String)
run bound n how = do
  own <- getExecutablePath
  environment <- filter ((/= "WEFT_WATCHDOG") . fst) <$> getEnvironment
  let child = (proc own ["hold", how, "+RTS", "-N" <> show n]) {env = Just ([("WEFT_WATCHDOG", b) | Just b <- [bound]] <> environment)}
  limited (readCreateProcessWithExitCode child "")

-- | The program that is watched: holds a capability until that has been reported, waits for the end of its input, and
-- prints how often it happened.
hold :: String -> IO ()
hold how = do
  hSetBuffering stdout LineBuffering
  case how of
    "timer" -> timer spinUntilReported
    -- Again and again: on a busy machine a thread that blocks may be seen while it waits for a core, and counts as
    -- busy then.
    "foreign" -> void (forkIO (forever (timer blockUntilReported)))
    -- Again and again, as above.
    "local" -> void (forkIO (forever (timer spinLocally)))
    "refused" -> do
      registry <- newManagerRegistry
      replicateM_ 1000 $ do
        queue <- newQueue
        made <- try (newManager 0 registry queue (const (pure ())) (ioError (userError "refused")))
        either (const (pure ()) :: IOException -> IO ()) (const (error "it was made")) made
      timer spinUntilReported
    "set" -> setWatchdog (Just (milliseconds 100)) >> timer spinUntilReported
    -- It is off, for ten seconds, while the action that it has reported is still running.
    "again" -> do
      setWatchdog (Just (milliseconds 100)) >> timer (spinUntilReported >> setWatchdog Nothing)
      threadDelay 10000000
      setWatchdog (Just (milliseconds 100)) >> timer spinUntilReported
      -- Until the watchdog has looked again.
      threadDelay 1000000
      longest <- watchdogLongest <$> watchdogMetrics
      print (longest < seconds 10)
    "callback" -> do
      m <- E.new
      (r, w) <- createPipe
      _ <- E.registerFd m (\_ _ -> spinUntilReported) r E.evtRead E.OneShot
      _ <- forkIO (E.loop m)
      void (fdWrite w "x")
    "unwaited" -> holdUnwaited (threadDelay 1000)
    "set, unwaited" -> holdUnwaited (setWatchdog (Just (milliseconds 100)))
    "thread" -> void . forkOn 0 $ threadDelay 1000 >> spinUntilReported
    "second" -> void . forkOn 1 $ threadDelay 1000 >> spinUntilReported
    "asleep" -> wakeDispatcher >> heldFor 1 >>= said
    "several" -> wakeDispatcher >> heldFor 4 >>= said
    "fork" -> do
      timer (pure ())
      child <- forkProcess (timer spinUntilReported >> finished)
      status <- getProcessStatus True False child
      unless (status == Just (Exited ExitSuccess)) (error ("the child: " <> show status))
    "threads" -> do
      done <- forM [1 .. 100 :: Int] $ \_ -> do
        waited <- newEmptyMVar
        waited <$ forkIO (threadDelay 1000 >> putMVar waited ())
      mapM_ takeMVar done
    "quiet" -> do
      fired <- newEmptyMVar
      _ <- schedule (milliseconds 1) (mapM_ (const (pure ())) [1 .. 1000 :: Int] >> putMVar fired ())
      takeMVar fired
    _ -> error how
  unless (how `elem` ["fork", "again"]) finished
  where
    -- After the delay the dispatcher has nothing to do and goes back to sleep, before anything is held.
    wakeDispatcher = threadDelay 1000 >> replicateM_ 100 yield
    -- The last report comes when the watchdog has looked again.
    said held = threadDelay 2000000 >> print held
    heldFor n = replicateM n $ do
      from <- getMonotonicTimeNSec
      spinUntilReported
      to <- getMonotonicTimeNSec
      -- The dispatcher runs, and sleeps again.
      replicateM_ 100 yield
      threadDelay 200000
      replicateM_ 100 yield
      pure (fromIntegral (to - from) :: Int64)
    -- Hold capability 1, on which no thread has waited, once there is a dispatcher on it.
    holdUnwaited begin = do
      held <- newEmptyMVar
      _ <- forkOn 0 (begin >> dispatchers (500 :: Int) >> forkOn 1 (putMVar held () >> spinUntilReported) >> pure ())
      takeMVar held
    dispatchers tries = do
      there <- length . metricsCapabilities <$> readMetrics
      when (there < 2 && tries > 0) (threadDelay 10000 >> dispatchers (tries - 1))
    timer act = do
      fired <- newEmptyMVar
      _ <- schedule (milliseconds 1) (act >> putMVar fired ())
      takeMVar fired
    -- Dispatchers run meanwhile.
    finished = do
      threadWaitRead 0
      n <- watchdogStalls <$> watchdogMetrics
      figures <- readMetrics
      bound <- watchdogBound
      let longest = maximum (mempty : map (fst . metricsLongestCallback) (metricsCapabilities figures))
      when (how `elem` ["timer", "foreign", "set"] && maybe True (longest <) bound) (error ("the longest callback: " <> show longest))
      print (fromIntegral n :: Int64)
