-- | Planted bugs. A suite of the simulator is built from a copy of the sources with one bug in it, and the suite must
-- fail. A bug that is not found is a gap in the search.
--
-- Bugs of the core are for the suite @wake@; those that need no particular schedule are for @lockstep-sim@ too. Bugs
-- of hybrid loops are for @hybrid-loops@, those of the web server, of its client, of pools of threads, of the crews of
-- HTTP\/2 and of idle timers for @server-sim@, those of the pure core of HTTP\/2 for @http2-core@, which is no
-- simulation. The tests need ghc; @make verify@ runs them (@WEFT_MUTANTS=1@), in the folder of the package.
module Main (main) where

import Control.Exception (finally)
import Control.Monad (forM_, when)
import Data.List (intercalate, isInfixOf, isPrefixOf, isSuffixOf, nub, stripPrefix)
import Data.Maybe (fromMaybe, isNothing, mapMaybe)
import System.Directory
import System.Environment (lookupEnv, setEnv)
import System.Exit (ExitCode (..))
import System.FilePath (replaceExtension, takeDirectory, takeFileName, (</>))
import System.Posix.Process (getProcessID)
import System.Process (readProcessWithExitCode)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  wanted <- lookupEnv "WEFT_MUTANTS"
  ghc <- findExecutable "ghc"
  -- Few preemptions are enough to find all of these.
  setEnv "WEFT_SIM_PREEMPTIONS" "3"
  setEnv "WEFT_LOCKSTEP" "20000"
  tmp <- getTemporaryDirectory
  place <- (\n -> tmp </> ("weft-mutants-" <> show n)) <$> getProcessID
  (`finally` removePathForcibly place) . defaultMain . localOption (mkTimeout 1200000000) . testGroup "planted bugs" $
    [ fitting "wake" wake mutants,
      fitting "hybrid-loops" loops loopMutants,
      fitting "server-sim" server serverMutants,
      fitting "http2-core" http2Core http2Mutants,
      (if isNothing ghc then skipAll "complete" "there is no ghc" else id) . testGroup "complete" $
        [complete place suite | suite <- [wake, lockstep, loops, server, http2Core]],
      case (wanted, ghc) of
        (Nothing, _) -> skipAll "mutants" "takes minutes: WEFT_MUTANTS=1, or make verify" (tests place)
        (_, Nothing) -> skipAll "mutants" "there is no ghc" (tests place)
        _ -> tests place
    ]
  where
    tests place =
      testGroup
        "mutants"
        [ testGroup "wake" (testCase "unchanged, the core passes" (caught wake place Nothing >>= (@?= Passed)) : map (test wake place) mutants),
          testGroup "lockstep-sim" $
            testCase "unchanged, the core passes" (caught lockstep place Nothing >>= (@?= Passed)) :
            map (test lockstep place) (filter ((`elem` sequential) . mutantName) mutants),
          testGroup "hybrid-loops" $
            testCase "unchanged, the loops pass" (caught loops place Nothing >>= (@?= Passed)) :
            map (test loops place) loopMutants,
          testGroup "server-sim" $
            testCase "unchanged, the server passes" (caught server place Nothing >>= (@?= Passed)) :
            map (test server place) serverMutants,
          testGroup "http2-core" $
            testCase "unchanged, the core passes" (caught http2Core place Nothing >>= (@?= Passed)) :
            map (test http2Core place) http2Mutants
        ]
    test suite place m = testCase (mutantName m) (caught suite place (Just m) >>= (@?= Caught))

-- | A suite.
data Suite = Suite
  { -- | The folder of its main module.
    suiteFolder :: FilePath,
    -- | Folders that GHC searches before and after that of the copies.
    suiteBefore :: [FilePath],
    suiteBehind :: [FilePath],
    -- | The number of random schedules of each scenario, with a bug or without.
    suiteRandom :: Maybe Mutant -> Int,
    -- | A part of the message with which the suite reports a fault.
    suiteFound :: String,
    -- | The modules that are copied, each in its folder.
    suiteModules :: [(FilePath, FilePath)],
    -- | The tests that are run for a mutant.
    suiteTests :: Maybe Mutant -> String
  }

wake, lockstep, loops, server, http2Core :: Suite
wake = Suite ("test" </> "wake") ["sim"] ["test" </> "support"] (const 60) "by the schedule" coreModules (maybe "!/io_uring/ && !/ARM/" testsOf)
  where
    -- Some bugs show only with io_uring, or with a weak memory model.
    testsOf m
      | "Backend/Uring" `isPrefixOf` mutantModule m || "with io_uring" `isSuffixOf` mutantName m = "/io_uring/ && !/ARM/"
      | "on ARM" `isPrefixOf` mutantName m = "/ARM/"
      -- Searching all scenarios takes minutes.
      | "Core/Boundary" `isPrefixOf` mutantModule m || "refused" `isInfixOf` mutantName m = "(/callbacks that throw/ || /handlers throw/ || /callbacks run/ || /armed again/) && !/io_uring/ && !/ARM/"
      | otherwise = "!/io_uring/ && !/ARM/"
lockstep = Suite ("test" </> "lockstep-sim") ["sim"] ["test" </> "support"] (const 60) "by WEFT_LOCKSTEP_SEED" coreModules (const "!/io_uring/")
loops = Suite (simulated </> "test" </> "hybrid-loops") [simulated </> "hybrid", "sim"] ["test" </> "support", ".." </> "weft" </> "src", hybrid </> "src", "src"] (more 60) "by the schedule" (coreModules <> loopModules) (maybe "/parking/ || /epoll/" (among loopPlants))
  where
    loopModules = [(hybrid </> "src", "Weft" </> "Hybrid" </> m) | m <- ["Blocked.hs", "Descriptor.hs", "DescriptorTable.hs", "Interpreter.hs", "Monad.hs", "MVar.hs", "Park.hs", "Policy.hs", "Ready.hs", "Scheduler.hs", "Scope.hs", "Scope" </> "Threads.hs", "Shutdown.hs", "Thread.hs", "Timer.hs", "Trace.hs", "Watchdog.hs"]]
server = Suite (simulated </> "test" </> "server-sim") [simulated </> "http", simulated </> "hybrid", "sim"] behind (more 600) "by the schedule" (coreModules <> serverModules) testsOf
  where
    behind = ["test" </> "support", ".." </> "weft" </> "src", ".." </> "weft" </> "pure", http </> "src", http </> "protocol", "core", "src", "src-linux"]
    testsOf = maybe (intercalate " || " (nub (map fst serverPlants))) (among serverPlants)
    serverModules =
      [(http </> "src", "Weft" </> "Http" </> m) | m <- ["Admission.hs", "Body.hs", "Client.hs", "Client" </> "Exchange.hs", "Engine.hs", "Linger.hs", "Table.hs", "Timeouts.hs", "Types.hs", "Writer.hs"]]
        <> [(http </> "src", "Weft" </> "Http2" </> "Crew.hs")]
        <> [("src", "Weft" </> m) | m <- ["Blocking" </> "Pool.hs", "Runtime" </> "IdleTimer.hs"]]
        <> [(".." </> "weft" </> "src", "Weft" </> m) | m <- ["Scope" </> "Threads.hs", "Socket" </> "Basic.hs", "Socket" </> "Serve.hs"]]
http2Core = Suite (http </> "test" </> "http2-core") [] [http </> "protocol", "core", "src", "src-linux", ".." </> "weft" </> "src"] (const 0) "Failed!" [(http </> "protocol", "Weft" </> "Http2" </> "Core" </> m) | m <- ["Receive.hs", "Send.hs", "Stream.hs"]] (const "/time on the way/")

-- | A bug that one scenario has to find is searched longer: some need two threads that stand still.
more :: Int -> Maybe Mutant -> Int
more n = maybe n (const (10 * n))

-- | The tests for a bug.
among :: [(String, Mutant)] -> Mutant -> String
among plants m = fromMaybe "/epoll/" (lookup (mutantName m) [(mutantName p, tests) | (tests, p) <- plants])

hybrid, http, simulated :: FilePath
hybrid = ".." </> "weft-hybrid"
http = ".." </> "weft-http"
simulated = ".." </> "sim-test"

coreModules :: [(FilePath, FilePath)]
coreModules =
  [("core", "Weft" </> "Core" </> m) | m <- core]
    <> [("src-linux", "Weft" </> m) | m <- ["Backend" </> "Epoll.hs", "Backend" </> "Uring.hs", "Backend" </> "UringEntry.hs", "FFI" </> "RingEntries.hs", "FFI" </> "RingUnavailable.hs"]]
    <> [("src", "Weft" </> m) | m <- ["Backend" </> "Poll.hs", "FFI" </> "Errno.hs"]]
    -- GHC does not know the suffix hsc; these are copied with the suffix hs.
    <> [("sim", "Weft" </> "FFI" </> m) | m <- ["Epoll.hsc", "Poll.hsc", "Uring.hsc"]]
  where
    core =
      ["Backend.hs", "Boundary.hs", "Counters.hs", "Descriptor.hs", "EventLog.hs", "Events.hs", "Heartbeat.hs", "Manager.hs", "Manager" </> "Lifecycle.hs", "Manager" </> "Timers.hs", "Manager" </> "Turn.hs", "Readiness.hs", "Registry.hs", "Registry" </> "Table.hs"]
        <> ["Time.hs", "Timer.hs", "Timers.hs", "UseCount.hs", "Wake.hs", "Yield.hs"]

-- | A planted bug: a statement of what is wrong, the module, and a piece of its text with the replacement.
data Mutant = Mutant
  { mutantName :: String,
    mutantModule :: FilePath,
    mutantBefore :: String,
    _mutantAfter :: String
  }

data Verdict = Passed | Caught
  deriving (Eq, Show)

-- | Build and run a suite. A mutant that does not compile, or a run that ends in another way (a crash, a time-out),
-- is neither 'Caught' nor 'Passed': the test fails. All mutants are built in one folder, so that GHC compiles only
-- what differs.
caught :: Suite -> FilePath -> Maybe Mutant -> IO Verdict
caught suite parent mutant = do
  place <- planted suite parent mutant
  let program = place </> "suite"
      found = suiteFound suite
      -- Seconds. Without a bug every scenario runs to its end, which takes some minutes on an idle machine.
      limit = maybe "1500" (const "400") mutant
  (built, _, why) <-
    readProcessWithExitCode
      "ghc"
      (options suite place <> ["-O1", "-o", program])
      ""
  built == ExitSuccess @? ("it does not build: " <> why)
  -- The run ends at its first failure.
  (_, out, _) <- readProcessWithExitCode "sh" ["-c", "WEFT_SIM_RANDOM=\"$2\" timeout \"$3\" \"$0\" --color never -p \"$1\" | grep -m 1 -e '" <> found <> "' -e ' tests passed' -e ' tests failed'", program, suiteTests suite mutant, show (suiteRandom suite mutant), limit] ""
  case out of
    _
      | found `isInfixOf` out -> pure Caught
      | " tests passed" `isInfixOf` out -> pure Passed
      | otherwise -> assertFailure ("it ended with " <> show out)

-- | Copy a suite's modules into its folder, with the bug; those that are there already stay. Returns the folder.
planted :: Suite -> FilePath -> Maybe Mutant -> IO FilePath
planted suite parent mutant = do
  let place = parent </> takeFileName (suiteFolder suite)
  forM_ (suiteModules suite) $ \(from, name) -> do
    source <- readFile (from </> name)
    changed <- case mutant of
      Just m | ("Weft" </> mutantModule m) == name -> maybe (assertFailure ("not in the source any more: " <> mutantBefore m)) pure (replaced m source)
      _ -> pure source
    let to = place </> "core" </> replaceExtension name "hs"
    createDirectoryIfMissing True (takeDirectory to)
    there <- doesFileExist to
    old <- if there then readFile to else pure ""
    when (length old /= length changed || old /= changed) (writeFile to changed)
  pure place

-- | GHC's options for a suite whose copies are in that folder, with its main module.
options :: Suite -> FilePath -> [String]
options suite place =
  ["-v0", "-w", "-XHaskell2010", "-XBangPatterns", "-i" <> intercalate ":" ([suiteFolder suite] <> suiteBefore suite <> [place </> "core"] <> suiteBehind suite <> ["test" </> "mutants" </> "plain"]), "-outputdir", place </> "o", suiteFolder suite </> "Main.hs"]

-- | A cheap test that runs always: GHC finds each module that a suite imports.
complete :: FilePath -> Suite -> TestTree
complete parent suite = testCase (takeFileName (suiteFolder suite) <> ": every module is found") $ do
  place <- planted suite parent Nothing
  (found, _, why) <- readProcessWithExitCode "ghc" (options suite place <> ["-M", "-dep-suffix", "", "-dep-makefile", place </> "dependencies"]) ""
  found == ExitSuccess @? why

-- | A cheap test that runs always: each piece that a planted bug replaces is in the source once.
fitting :: String -> Suite -> [Mutant] -> TestTree
fitting name suite bugs = testCase ("every bug of " <> name <> " can be planted") $ do
  missing <- concat <$> mapM check bugs
  missing @?= []
  where
    check bug = do
      sources <- mapM (\(from, file) -> readFile (from </> file)) [m | m@(_, file) <- suiteModules suite, file == "Weft" </> mutantModule bug]
      pure [mutantName bug | length (mapMaybe (replaced bug) sources) /= 1]

-- | The text with the piece replaced. 'Nothing' unless the piece occurs exactly once outside comments.
replaced :: Mutant -> String -> Maybe String
replaced (Mutant _ _ before instead) = go
  where
    go [] = Nothing
    go s | Just rest <- stripPrefix before s = if before `isInfixOf` rest then Nothing else Just (instead <> rest)
    go (c : cs)
      | "--" `isPrefixOf` (c : cs) = let (comment, rest) = break (== '\n') (c : cs) in (comment <>) <$> go rest
      | otherwise = (c :) <$> go cs

-- | The bugs that a sequential program of commands finds, without other threads.
sequential :: [String]
sequential =
  [ "an operation starts after the descriptor was closed",
    "a timer fires although it was cancelled",
    "a cancellation after the timer fired reports success",
    "a stopping manager drops its timers",
    "a stopping manager does not wake the waiting threads",
    "a stopping manager does not run its callbacks with evtClose",
    "a stopped manager counts as alive",
    "timers fire early",
    "a closed descriptor stays in the table",
    "close does not run the callbacks with evtClose",
    "a one-shot callback stays registered",
    "the remaining callbacks are not armed again",
    "unregistering leaves the callback in the table",
    "an event puts the token of the other direction",
    "a first registration is modified and not added",
    "the poll back end does not resume registrations"
  ]

mutants :: [Mutant]
mutants =
  [ Mutant "the sleep is announced by a plain write, which overwrites a notification" "Core/Wake.hs" "found <- casWord w 0 asAwake (asAsleep t)\n" "found <- readWord w 0\n  writeWord w 0 (asAsleep t)\n",
    Mutant "the owner sleeps although it was notified" "Core/Wake.hs" "else False <$ writeWord w 0 asAwake" "else True <$ writeWord w 0 (asAsleep t)",
    Mutant "notifying a sleeping owner sends no signal" "Core/Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "False <$ swapWord w 0 asNotified",
    Mutant "notifying a running owner sends a signal" "Core/Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "True <$ swapWord w 0 asNotified",
    Mutant "a notification is a read and a write, not one swap" "Core/Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "(readWord w 0 >>= \\s -> (s > asNotified) <$ writeWord w 0 asNotified)",
    Mutant "the state stays asleep after the owner wakes up" "Core/Wake.hs" "retract (Wake w) = writeWord w 0 asAwake" "retract (Wake _) = pure ()",
    Mutant "a timer that is due earlier does not wake the owner" "Core/Wake.hs" "s <= asNotified || s <= asAsleep due = pure False" "s <= asNotified || s > asAsleep due = pure False",
    Mutant "two timers that are set at once both send a signal" "Core/Wake.hs" "if found == s then pure True else go found" "pure True",
    Mutant "the last user of a closed descriptor does not release it" "Core/UseCount.hs" "if old .&. flagShut /= 0 then claim l else pure False" "pure (old .&. flagShut < 0)",
    Mutant "every user of a closed descriptor releases it" "Core/UseCount.hs" "if old .&. flagShut /= 0 then claim l else pure False" "pure (old .&. flagShut /= 0)",
    Mutant "closing releases the descriptor while others use it" "Core/UseCount.hs" "ours l w && w .&. (flagReleased .|. usersMask) == 0" "ours l w && w .&. flagReleased == 0",
    Mutant "the descriptor is released twice" "Core/UseCount.hs" "ours l w && w .&. (flagReleased .|. usersMask) == 0" "ours l w && w .&. usersMask == 0",
    Mutant "an operation starts after the descriptor was closed" "Core/UseCount.hs" "not (ours l w) || w .&. (flagShut .|. flags) /= 0 = pure False" "not (ours l w) || w .&. flags /= 0 = pure False",
    Mutant "the use count is increased by a plain write" "Core/UseCount.hs" "found <- casWord ws i w (w + oneUser)\n        if found == w then pure True else go found" "writeWord ws i (w + oneUser)\n        pure True",
    Mutant "close wakes no waiter" "Core/Readiness.hs" "when (outcome /= WasShut) (wakeAll rd)" "when (outcome == WasShut) (wakeAll rd)",
    Mutant "a timer fires although it was cancelled" "Core/Timer.hs" "defuseTimer (Timer _ ref) spent cancelled = do\n  state <- swapRef ref Spent\n" "defuseTimer (Timer _ ref) spent cancelled = do\n  state <- readRef ref\n",
    Mutant "a cancellation after the timer fired reports success" "Core/Timer.hs" "defuseTimer t (pure False) (" "defuseTimer t (pure True) (",
    Mutant "a cancelled timer takes those below it out of the inbox" "Core/Timers.hs" "casRef (timersInbox ts) inbox below" "casRef (timersInbox ts) inbox Empty",
    Mutant "firing is a read and a write, not one swap" "Core/Timer.hs" "fireTimer (Timer _ ref) = do\n  state <- swapRef ref Spent\n" "fireTimer (Timer _ ref) = do\n  state <- readRef ref\n  writeRef ref Spent\n",
    Mutant "moving a timer to another manager is a plain write" "Core/Timer.hs" "done <- casRef ref old new" "done <- True <$ writeRef ref new",
    Mutant "setting a timer is a plain write, which loses other timers" "Core/Timers.hs" "done <- casRef (timersInbox ts) below node\n" "done <- True <$ writeRef (timersInbox ts) node\n",
    Mutant "the inbox is emptied by a read and a write, not one swap" "Core/Timers.hs" "(`listed` []) <$> swapRef (timersInbox ts) Empty" "(readRef (timersInbox ts) >>= \\i -> listed i [] <$ writeRef (timersInbox ts) Empty)",
    Mutant "the runner sleeps without checking the inbox" "Core/Manager/Turn.hs" "if news || state /= stateRunning" "if state /= stateRunning",
    Mutant "a due signal is not sent" "Core/Manager/Lifecycle.hs" "outcome <- attempt act" "outcome <- attempt (pure ())",
    Mutant "a wake-up can be interrupted before its signal" "Core/Manager/Lifecycle.hs" "wakeManager m = mask_ (signalIf" "wakeManager m = (signalIf",
    Mutant "telling the manager to stop can be interrupted before its signal" "Core/Manager/Lifecycle.hs" "requestStop m = mask_ $ do\n" "requestStop m = do\n",
    Mutant "shutdown waits for a turn that nobody takes" "Core/Manager/Lifecycle.hs" "    when (inTurn == 0) (finish m)\n" "    when (inTurn == 0 && mine) (finish m)\n",
    Mutant "the state is not read again when a turn has ended" "Core/Manager/Turn.hs" "      writeWord (managerState m) wordTurn 0\n      isRunning m" "      writeWord (managerState m) wordTurn 0\n      pure True",
    Mutant "setting a timer can be interrupted before its signal" "Core/Manager/Timers.hs" "set m t = mask_ $ do" "set m t = do",
    Mutant "the back end is closed while a thread sends a signal" "Core/Manager/Lifecycle.hs" "when (before == StillUsed) (takeMVar (managerUnused m))" "pure ()",
    Mutant "the last thread that sends a signal does not wake the one that closes the back end" "Core/Manager/Lifecycle.hs" "when final (putMVar (managerUnused m) ())" "when final (pure ())",
    Mutant "a stopping manager drops its timers" "Core/Manager/Lifecycle.hs" "    takeAll (managerTimers m) >>= mapM_ orphanTimer\n" "",
    Mutant "a timer that is set while the manager stops is dropped" "Core/Manager/Timers.hs" "    else takeInbox (managerTimers m) >>= mapM_ orphanTimer" "    else pure ()",
    Mutant "a stopping manager does not wake the waiting threads" "Core/Manager/Lifecycle.hs" "    wakeReadiness (managerRegistry m)\n" "",
    Mutant "a turn of the loop can be interrupted" "Core/Manager/Turn.hs" "ended <- uninterruptibleMask_ (turn m before)" "ended <- turn m before",
    Mutant "timers fire early" "Core/Manager/Turn.hs" "expireTimers ts t (" "expireTimers ts never (",
    Mutant "a stopping manager does not run its callbacks with evtClose" "Core/Manager/Lifecycle.hs" "forM_ orphans" "forM_ (take 0 orphans)",
    Mutant "an exception ends the runner, but not the manager" "Core/Manager/Turn.hs" "interruptible (turns Looked) `onException` uninterruptibleMask_ (requestStop m >> finish m)" "interruptible (turns Looked)",
    Mutant "an exception can arrive before the runner installs its handler" "Core/Manager/Turn.hs" "loop m = mask_ $ do\n" "loop m = interruptible $ do\n",
    Mutant "a stopped manager counts as alive" "Core/Manager/Lifecycle.hs" "pure (state <= stateRunning &&" "pure (state <= stateFinished &&",
    Mutant "an event with an old generation is delivered" "Core/Registry.hs" "Attached rd _ | readinessGeneration rd == tokenGeneration tok -> do" "Attached rd _ -> do",
    Mutant "a closed descriptor stays in the table" "Core/Registry.hs" "      markClosedElsewhere rd\n      setSlot r fd Vacant\n" "      markClosedElsewhere rd\n",
    Mutant "a descriptor number that is being closed is not marked" "Core/Registry.hs" "(IntMap.insert (fromIntegral fd) (Closing over) table)" "(IntMap.delete (fromIntegral fd) table)",
    Mutant "close does not run the callbacks with evtClose" "Core/Registry.hs" "      forM_ told (`runWith` evtClose)\n      outcome" "      forM_ (take 0 told) (`runWith` evtClose)\n      outcome",
    Mutant "a one-shot callback stays registered" "Core/Registry.hs" "kept = filter (not . oneShot) due <> others" "kept = due <> others",
    Mutant "a callback that waited for another stays registered as it begins" "Core/Registry.hs" "(\\table' -> (table', True)) <$> store r fd e {entryDue = due} table" "pure (table, True)",
    Mutant "a callback that waits for another cannot be unregistered" "Core/Registry.hs" "      table' <- store r fd e {entryDue = due} table\n      pure (table', (True, []))\n" "      pure (if null due then table else table, (True, []))\n",
    Mutant "the remaining callbacks are not armed again" "Core/Registry.hs" "(if shared then not (all oneShot due) else needsArming due kept)" "shared",
    Mutant "unregistering leaves the callback in the table" "Core/Registry.hs" "reconcile r table fd e kept (any" "reconcile r table fd e (entryRegistrations e) (any",
    Mutant "an unregistered descriptor stays armed" "Core/Registry.hs" "when (alive && not shared) (void (forget r" "when (alive && shared) (void (forget r",
    Mutant "a descriptor is armed before it is in the table" "Core/Registry.hs" "          setSlot r fd (Attached rd m)\n          void (backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents)\n            `onException` setSlot r fd Vacant\n" "          void (backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents)\n          setSlot r fd (Attached rd m)\n",
    Mutant "a descriptor attaches to a stopped manager" "Core/Registry.hs" "Nothing | not alive -> pure ManagerStopped" "Nothing | False -> pure ManagerStopped",
    Mutant "an event puts the token of the other direction" "Core/Readiness.hs" "when (evs `overlaps` evtRead) (void" "when (evs `overlaps` evtWrite) (void",
    Mutant "closing by number wakes no waiter" "Core/Readiness.hs" "markClosedElsewhere rd = (useCount rd >>= UseCount.markClosedElsewhere) >> wakeAll rd" "markClosedElsewhere rd = useCount rd >>= UseCount.markClosedElsewhere",
    Mutant "an operation that leaves the descriptor ready does not put the token back" "Core/Descriptor.hs" "Done a -> Completed a <$ passOn" "Done a -> pure (Completed a)",
    Mutant "a waiter that takes the token does not pass it on to expired waiters" "Core/Descriptor.hs" "          others <- anyExpired rd dir\n          when others passOn\n" "",
    Mutant "the first waiter that finds the descriptor closed does not wake the others" "Core/Descriptor.hs" "    else do\n      wakeAll rd\n      pure closed" "    else pure closed",
    Mutant "the last user does not return the descriptor number" "Core/Descriptor.hs" "when lastOut (giveBack d id)" "when False (giveBack d id)",
    Mutant "a one-shot registration is made without EPOLLONESHOT" "Backend/Epoll.hs" "Once -> epollOneShot" "Once -> 0",
    Mutant "a first registration is modified and not added" "Backend/Epoll.hs" "then judge =<< other ep (fdNumber fd) bits (tokenWord tok)" "then judge r",
    Mutant "the poll back end does not resume registrations" "Backend/Poll.hs" "again e = e {entryArmed = entryArmed e <> (evs `common` entryAsked e), entryListed = True}" "again e = e",
    Mutant "a registration does not interrupt a blocking poll" "Backend/Poll.hs" "backendDeferred = True" "backendDeferred = False",
    Mutant "on ARM, the inbox is read before the announced sleep is visible" "Core/Manager/Turn.hs" "      state <- readState m\n      news <- hasNews (managerTimers m)\n" "      news <- hasNews (managerTimers m)\n      state <- readState m\n",
    Mutant "the request of a closed descriptor is not cancelled" "Backend/Uring.hs" "  outcome <- if isLive e then" "  outcome <- if isLive e && entrySequence e == 0 then",
    Mutant "a closed descriptor's request is cancelled before it was submitted" "Backend/Uring.hs" "  done <- flush ring 10\n  r <- cancelNow" "  let done = True\n  r <- cancelNow",
    Mutant "a close does not wait for a request that has not ended" "Backend/Uring.hs" "pure (when (outcome == Unfinished) (awaitEnd ring request))" "pure (when (outcome == Unfinished) (pure ()))",
    Mutant "a close waits once for a request that has not ended" "Backend/Uring.hs" "  unless over (pauseUring >> awaitEnd ring request)" "  unless over (pure ())",
    Mutant "a close of a callback's descriptor does not wait for requests with io_uring" "Core/Registry.hs" "sequence_ ofCallbacks >> ofTracked)" "ofTracked)",
    Mutant "a close of a tracked descriptor does not wait for requests with io_uring" "Core/Registry.hs" "sequence_ ofCallbacks >> ofTracked)" "sequence_ ofCallbacks)",
    Mutant "the handler for uncaught exceptions runs on the thread of the callback" "Core/Boundary.hs" "reportUncaught e = mask_ $ do" "reportUncaught e = if True then handleUncaught e else mask_ $ do",
    Mutant "an exception of the handler for uncaught exceptions ends the reporter" "Core/Boundary.hs" "report e = void (tryAll (unmask (handleUncaught e)))" "report e = unmask (handleUncaught e)",
    Mutant "the reporter ends by a read and a write, not one swap" "Core/Boundary.hs" "found <- updateRef theReports taken\n" "found <- readRef theReports\n  writeRef theReports (taken found)\n",
    Mutant "an undefined exception of a callback ends the turn" "Core/Boundary.hs" "tryAll (pure $! isForThread e)" "Right <$> (pure $! isForThread e)",
    Mutant "a stack overflow of a callback ends the loop" "Core/Boundary.hs" "(_, Just StackOverflow) -> False" "(_, Just StackOverflow) -> True",
    Mutant "an exception for the manager's thread is reported as one of its callbacks" "Core/Boundary.hs" "Right True -> postpone e" "Right True -> reportUncaught e",
    Mutant "a descriptor that is refused when it is armed again ends the manager" "Core/Registry.hs" "armed <- tryAll (armEntry" "armed <- Right <$> (armEntry",
    Mutant "callbacks of a refused descriptor are not told" "Core/Registry.hs" "(filter (not . hasHeard first) refused)" "(filter (hasHeard first) refused)",
    Mutant "unregistering does not tell the callbacks of a refused descriptor" "Core/Registry.hs" "found <$ mapM_ (`runWith` unwatched) refused" "pure found",
    Mutant "the completion of an earlier request is reported" "Backend/Uring.hs" "if not (isLive e) || userData fd (entrySequence e) /= from" "if not (isLive e)",
    Mutant "a wake-up does not end a wait" "Backend/Uring.hs" "m <$ writeRef (ringWoken ring) True" "pure m",
    Mutant "the wake-up descriptor is polled once only" "Backend/Uring.hs" "(Entry wakeToken 0 evtRead Edge Vacant) Standing" "(Entry wakeToken 0 evtRead Once Vacant) Single",
    Mutant "a request is lost if the submission queue is full" "Backend/Uring.hs" "when (r' < 0) (later ring request)" "when False (later ring request)",
    Mutant "requests that were put off are not submitted by the next poll" "Backend/Uring.hs" "mapM_ (queue ring) present" "mapM_ (queue ring) (take 0 present)",
    Mutant "a request that was cancelled with its thread is not submitted again" "Backend/UringEntry.hs" "| result == resultCancelled = (mempty, Now (usual trigger))" "| result == resultCancelled = (mempty, Stay)",
    Mutant "a multishot request that has ended is not submitted again" "Backend/UringEntry.hs" "Edge -> if more then Stay else Next Standing" "Edge -> Stay",
    Mutant "a level-triggered request is not submitted again" "Backend/UringEntry.hs" "Level -> Next Single" "Level -> Drop Resting",
    Mutant "an io_uring registration does not interrupt a blocking poll" "Backend/Uring.hs" "backendDeferred = True" "backendDeferred = False"
  ]

-- | Bugs of hybrid threads, each with the tests that are to find it: searching all scenarios takes minutes.
loopPlants :: [(String, Mutant)]
loopPlants =
  [ ("/parking/", Mutant "on ARM, a throwing thread reads the target's state too early" "Hybrid/Park.hs" "    interrupt ctx withdraw = do\n      inOrder t\n" "    interrupt ctx withdraw = do\n"),
    ("/parking/", Mutant "on ARM, a parking thread reads its own state too early" "Hybrid/Park.hs" "        else do\n          inOrder t\n" "        else do\n"),
    ("/parking/", Mutant "a parking thread does not check for a pending exception" "Hybrid/Park.hs" "              back <- withdraw\n              if back then again else pure Parked" "              pure Parked"),
    ("/parking/", Mutant "a parking thread's number counts before the thread is in the queue" "Hybrid/Park.hs" "            let !s' = next w\n            ok <- swap s s'\n" "            let !s' = next w\n            writeWord ticket 0 n\n            ok <- swap s s'\n"),
    ("/parking/", Mutant "an interrupted thread stays in its wait queue" "Hybrid/Park.hs" "      withdrawn <- withdraw\n" "      let withdrawn = True\n"),
    ("/epoll/ && /two threads for a loop/", Mutant "a thread in the inbox does not wake its loop" "Hybrid/Park.hs" "NoMail -> wakeManager (loopManager l)" "NoMail -> pure ()"),
    ("/epoll/ && /inbox is emptied/", Mutant "the inbox is emptied by a read and a write, not one swap" "Hybrid/Scheduler.hs" "      news <- swapRef (loopInbox l) NoMail\n" "      news <- readRef (loopInbox l)\n      writeRef (loopInbox l) NoMail\n"),
    ("/parking/", Mutant "a wait queue's state is written without a compare-and-swap, so a thread resumes twice" "Hybrid/Park.hs" "Just (!s', after) -> casRef (queueState q) s s' >>= \\ok -> if ok then True <$ after else go" "Just (!s', after) -> writeRef (queueState q) s' >> (True <$ after)"),
    ("/epoll/ && /closed under them/", Mutant "close wakes no waiting hybrid thread" "Hybrid/Descriptor.hs" "mapM_ wake [Reading, Writing]" "mapM_ wake (take 0 [Reading, Writing])"),
    ("/epoll/ && /pipe that is closed/", Mutant "a thread that starts to wait does not check whether the descriptor is closed" "Hybrid/Descriptor.hs" "  unless open (wakeHere l d dir)" "  unless (open || True) (wakeHere l d dir)"),
    ("/a scope/ && /forks another one/", Mutant "a hybrid thread is started in a scope that has been told to end" "Hybrid/Scope/Threads.hs" "  if endTold (stateEnd before)\n    then pure Nothing" "  if endTold (stateEnd before) && False\n    then pure Nothing"),
    ("/a scope/ && /two threads fail/", Mutant "the interruption by a failed hybrid thread is not taken back" "Hybrid/Scope.hs" "(retract owner (\\e -> isOwn state e || isDeadlock e))" "(retract owner isDeadlock)"),
    ("/a scope/ && /two threads fail/", Mutant "the exception of a second hybrid thread is lost" "Hybrid/Scope.hs" "        _ -> settle e >> throwM e\n" "        _ -> settle e\n"),
    ("/a scope/ && /daemon is told/", Mutant "the end of a scope's last hybrid thread wakes nobody" "Hybrid/Scope/Threads.hs" "when (reached (f before) waiter) (raiseFlag flag)" "when (reached before waiter) (raiseFlag flag)"),
    ("/epoll/ && /stopped/", Mutant "shutdown does not look for blocked threads" "Hybrid/Shutdown.hs" "      complete <- notifyBlocked l\n      n <- sizeReady" "      let complete = True\n      n <- sizeReady")
  ]

loopMutants :: [Mutant]
loopMutants = map snd loopPlants

-- | Bugs of the web server, of the client, of pools of threads and of idle timers, each with the tests that are to find
-- it.
serverPlants :: [(String, Mutant)]
serverPlants =
  [ ("/epoll/ && /a request in segments/", Mutant "a connection that has ended is still counted" "Scope/Threads.hs" "aliveThreads (Threads ref) = stateAlive <$> readRef ref" "aliveThreads (Threads ref) = stateNext <$> readRef ref"),
    ("/epoll/ && /room for one connection/", Mutant "the end of a connection wakes nobody that waits for there to be fewer" "Scope/Threads.hs" "  mapM_ (`tryPutMVar` ()) (endOnEnd (stateEnd before))\n" "  before `seq` pure ()\n"),
    ("/a scope/ && /forks another one/", Mutant "a thread that is named after its scope was told to end is not told" "Scope/Threads.hs" "        Doomed -> tell ThreadKilled t\n" "        Doomed -> pure ()\n"),
    ("/epoll/ && /a request in progress/", Mutant "a busy connection counts as idle" "Http/Table.hs" "      found' <- casWord cells cellPhase phaseFresh phaseBusy\n" "      found' <- casWord cells cellPhase phaseFresh phaseFresh\n"),
    ("/epoll/ && /a refused request/", Mutant "a refused connection is closed with unread data" "Http/Engine.hs" "noDeadline message)\n    linger client\n" "noDeadline message)\n"),
    ("/epoll/ && /goes on sending after the last response/", Mutant "a client that goes on sending after the last response is read without an end" "Http/Linger.hs" "lingerTime = seconds 30\n" "lingerTime = seconds 300000\n"),
    ("/epoll/ && /a body in two segments/", Mutant "bytes of a body are given twice" "Http/Body.hs" "else have <$ writeIORef (bodyHave body) B.empty\n" "else pure have\n"),
    ("/epoll/ && (/a shutdown while requests arrive/ || /is evicted/)", Mutant "a request that was received as its connection is told to end is dropped" "Http/Engine.hs" "  when told $ do\n    lastOne client\n" "  when told (throwIO EndIdle)\n  when told $ do\n    lastOne client\n"),
    ("/epoll/ && /requests of connections that are told to end/", Mutant "an evicted connection that continues is not limited" "Http/Admission.hs" "room = most <= 0 || count" "room = count > 0 || count"),
    ("/epoll/ && /a shutdown that gives up/", Mutant "ending an idle connection can be interrupted" "Http/Table.hs" "endThread thread cells = uninterruptibleMask_ $ do\n" "endThread thread cells = do\n"),
    ("/epoll/ && /a response after a shutdown has begun/", Mutant "a response after a shutdown has begun is not the last one" "Http/Types.hs" "if draining then pure True else" "if draining && False then pure True else"),
    ("/epoll/ && /a streamed response/", Mutant "the connection goes on before the end of a streamed response is sent" "Http/Writer.hs" "  bytes <- held w *> seal w True\n  sendStrings w [bytes]\n  checkLength w\n" "  _ <- held w *> seal w True\n  checkLength w\n"),
    ("/epoll/ && /an application that takes longer than/", Mutant "the time limit of a head is not stopped when the head is complete" "Http/Timeouts.hs" "headCame = pause . clientIdleTimer" "headCame _ = pure ()"),
    ("/epoll/ && /a client that stays idle/", Mutant "the time limit for the next request is not set" "Http/Engine.hs" "= awaitNext client >> setPhase" "= setPhase"),
    ("/epoll/ && /established when a drain begins/", Mutant "a drain closes its listening socket before it has accepted what waits" "Socket/Serve.hs" "  _ <- within (patience <> seconds 1) (mapM_ (readMVar . listenerEnded) listeners)\n" "  patience `seq` pure ()\n"),
    ("/epoll/ && /established when a drain begins/", Mutant "a drain does not refuse clients that connect while it accepts those that wait" "Socket/Serve.hs" "if listenerOwn l then refuseNew (listenerSocket l) else" "if listenerOwn l && False then refuseNew (listenerSocket l) else"),
    ("/epoll/ && /established when a drain begins/", Mutant "an acceptor can be interrupted after it has accepted a connection" "Socket/Serve.hs" "(accept socket' >>= startConnection settings" "(unmask (accept socket') >>= startConnection settings"),
    ("/epoll/ && /time for some connections only/", Mutant "a drain that has refused connections reports success" "Socket/Serve.hs" "case e of Unfinished -> False; _ -> True" "case e of Unfinished -> True; _ -> True"),
    ("/epoll/ && /room for one connection/", Mutant "a drain does not wait until there is room for a connection" "Socket/Serve.hs" "maybe (pure maxBound) (\\d -> (drainLimit d `until`) <$> now) drain" "maybe (pure maxBound) (\\d -> (drainHandshakes d `until`) <$> now) drain"),
    ("/epoll/ && /clean up when their server is stopped/", Mutant "the end of a server does not wait for its handlers" "Socket/Serve.hs" "    awaitAll patience (serverOnOverdue settings) threads\n" "    unless (patience == patience) (awaitAll patience (serverOnOverdue settings) threads)\n"),
    ("/epoll/ && /the kernel holds an answer/", Mutant "a connection that is idle when a drain begins is closed before its last answer was taken" "Http/Engine.hs" "then B.empty <$ lingerUnlessTaken client\n" "then pure B.empty\n"),
    ("/epoll/ && /an answer is under way/", Mutant "a connection is closed at once after its last answer" "Http/Engine.hs" "  | otherwise = linger client\n" "  | otherwise = farewell\n"),
    ("/epoll/ && /an application that throws/", Mutant "an answer without a length that an exception breaks off ends like a complete one" "Http/Engine.hs" "          then breakOff state >> report late e\n" "          then report late e\n"),
    ("/epoll/ && (/an application that is killed/ || /a server that is stopped/)", Mutant "an answer without a length that is killed ends like a complete one" "Http/Engine.hs" "= responseState client >>= breakOff >> throwIO e\n" "= throwIO e\n"),
    ("/epoll/ && /a POST is not sent again/", Mutant "a request that may not be repeated is sent again" "Http/Client.hs" "| again, repeatable, reached == Asked ->" "| again, repeatable || again, reached == Asked ->"),
    ("/epoll/ && /a new connection ends/", Mutant "a request is sent again after a new connection has ended" "Http/Client.hs" "again <- (> 0) <$> exchangesDone c" "again <- (>= 0) <$> exchangesDone c"),
    ("/epoll/ && /idle connections long ago/", Mutant "a kept connection is used although it has ended" "Http/Client.hs" "fmap (== Quiet) . idleUntil (Instant 0)" "fmap (`elem` [Quiet, Ended]) . idleUntil (Instant 0)"),
    ("/epoll/ && /after two requests/", Mutant "a connection is kept although the server will end it" "Http/Client/Exchange.hs" "B.null rest && headPersists h && not" "B.null rest && not"),
    ("/epoll/ && /answers that are not read/", Mutant "a connection is kept although the body was not read" "Http/Client/Exchange.hs" "kept <- if over && B.null rest" "kept <- if B.null rest"),
    ("/sockets without memory/", Mutant "a pair of sockets stays open if the second one cannot be made" "Socket/Basic.hs" "second <- mkStreamSocket False b `onException` (close first >> cClose b)" "second <- mkStreamSocket False b"),
    ("/a pool of threads/", Mutant "a call inside a call waits for another thread" "Blocking/Pool.hs" "if nested then act else" "if nested && False then act else"),
    ("/a pool of threads/", Mutant "a thread of a pool ends although a call waits" "Blocking/Pool.hs" "stateRunning st <= stateLimit st ->" "stateRunning st < stateLimit st ->"),
    ("/a pool of threads/", Mutant "the result of a call that ends as its caller is killed is lost" "Blocking/Pool.hs" "        when came (tryTakeMVar box" "        when (came && False) (tryTakeMVar box"),
    ("/a pool of threads/", Mutant "the result of a call whose caller was killed is lost" "Blocking/Pool.hs" "when gone (either" "when (gone && False) (either"),
    ("/a crew/", Mutant "a thread leaves the duty although nobody comes who may take it" "Http2/Crew.hs" "| stateComing s == HomeComes && hasJobs s ->" "| hasJobs s ->"),
    ("/a crew/", Mutant "a thread that arrives takes a job and not the duty" "Http2/Crew.hs" "workerHome w && (arrives || not (hasJobs s))" "workerHome w && not (hasJobs s)"),
    ("/idle timers/ && /is reset/", Mutant "an idle timer expires although it was reset" "Runtime/IdleTimer.hs" "        Due | Instant (fromIntegral at) <= t -> do\n" "        Due -> do\n"),
    ("/idle timers/ && /is reset/", Mutant "an idle timer that is stopped as it expires still expires" "Runtime/IdleTimer.hs" "        found <- casWord ws wordState stateRunning stateExpired\n" "        found <- readWord ws wordState\n        pokeWord ws wordState stateExpired\n")
  ]

serverMutants :: [Mutant]
serverMutants = map snd serverPlants

-- | Bugs of the drain of an HTTP\/2 connection.
http2Mutants :: [Mutant]
http2Mutants =
  [ Mutant "a request behind the last GOAWAY is begun" "Http2/Core/Receive.hs" "_ | coreDrain core == Draining -> passing" "_ | False -> passing",
    Mutant "a drain ends while a stream is answered" "Http2/Core/Stream.hs" "coreDrain core == Draining && IntMap.null (coreStreams core)" "coreDrain core == Draining",
    Mutant "the last GOAWAY of a drain names no stream" "Http2/Core/Receive.hs" "queue (SendGoAway accepted NoError)" "queue (SendGoAway (min 0 accepted) NoError)"
  ]
