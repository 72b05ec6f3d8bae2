-- |
-- Planted bugs: the suite @wake@ is built from copies of the core with one bug each, and has to
-- find it. A mutant that survives is a gap in the search. The suite @lockstep-sim@ also has to find mutants that need no particular schedule.
-- Needs ghc; run by @make verify@ (@WEFT_MUTANTS=1@), in the folder of the package.
module Main (main) where

import Control.Exception (finally)
import Control.Monad (forM_, when)
import Data.List (intercalate, isInfixOf, isPrefixOf, stripPrefix)
import System.Directory
import System.Environment (lookupEnv, setEnv)
import System.Exit (ExitCode (..))
import System.FilePath (replaceExtension, takeDirectory, takeFileName, (</>))
import System.Posix.Process (getProcessID)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  wanted <- lookupEnv "WEFT_MUTANTS"
  ghc <- findExecutable "ghc"
  -- Few departures from the ordinary find all of these.
  setEnv "WEFT_SIM_PREEMPTIONS" "3"
  setEnv "WEFT_SIM_RANDOM" "60"
  setEnv "WEFT_LOCKSTEP" "20000"
  tmp <- getTemporaryDirectory
  place <- (\n -> tmp </> ("weft-mutants-" <> show n)) <$> getProcessID
  (`finally` removePathForcibly place) . defaultMain . localOption (mkTimeout 600000000) $ case (wanted, ghc) of
    (Nothing, _) -> skipAll "planted bugs" "takes minutes: WEFT_MUTANTS=1, or make verify" (tests place)
    (_, Nothing) -> skipAll "planted bugs" "there is no ghc" (tests place)
    _ -> tests place
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
            map (test loops place) loopMutants
        ]
    test suite place m = testCase (mutantName m) (caught suite place (Just m) >>= (@?= Caught))

-- | A suite.
data Suite = Suite
  { -- | The folder of its main module, and others before and behind those of the copies.
    suiteFolder :: FilePath,
    suiteBefore :: [FilePath],
    suiteBehind :: [FilePath],
    -- | Its message when it has found a fault.
    suiteFound :: String,
    -- | The modules that are copied, each in its folder.
    suiteModules :: [(FilePath, FilePath)],
    -- | The tests that are run for a mutant.
    suiteTests :: Maybe Mutant -> String
  }

wake, lockstep, loops :: Suite
wake = Suite ("test" </> "wake") ["sim"] ["test" </> "support"] "by the schedule" coreModules (maybe "!/io_uring/ && !/ARM/" testsOf)
  where
    -- Mutants that are found only with a ring, or with a weak memory.
    testsOf m
      | "Backend/Uring" `isPrefixOf` mutantModule m = "/io_uring/ && !/ARM/"
      | "on ARM" `isPrefixOf` mutantName m = "/ARM/"
      | otherwise = "!/io_uring/ && !/ARM/"
lockstep = Suite ("test" </> "lockstep-sim") ["sim"] ["test" </> "support"] "by WEFT_LOCKSTEP_SEED" coreModules (const "!/io_uring/")
loops = Suite (hybrid </> "test" </> "loops") [hybrid </> "sim", "sim"] ["test" </> "support", ".." </> "weft" </> "src"] "by the schedule" (coreModules <> loopModules) (const "/parking/ || /epoll/")
  where
    hybrid = ".." </> "weft-hybrid"
    loopModules = [(hybrid </> "src", "Weft" </> "Hybrid" </> m) | m <- ["Blocked.hs", "Descriptor.hs", "DescriptorTable.hs", "Interpreter.hs", "Monad.hs", "MVar.hs", "Park.hs", "Policy.hs", "Ready.hs", "Scheduler.hs", "Shutdown.hs", "Thread.hs", "Timer.hs", "Trace.hs", "Watchdog.hs"]]

coreModules :: [(FilePath, FilePath)]
coreModules =
  [("core", "Weft" </> "Core" </> m) | m <- core]
    <> [("src-linux", "Weft" </> m) | m <- ["Backend" </> "Epoll.hs", "Backend" </> "Uring.hs", "Backend" </> "UringEntry.hs", "FFI" </> "RingEntries.hs", "FFI" </> "RingUnavailable.hs"]]
    <> [("src", "Weft" </> m) | m <- ["Backend" </> "Poll.hs", "FFI" </> "Errno.hs"]]
    -- GHC does not know the suffix.
    <> [("sim", "Weft" </> "FFI" </> m) | m <- ["Epoll.hsc", "Poll.hsc", "Uring.hsc"]]
  where
    core =
      ["Backend.hs", "Counters.hs", "Descriptor.hs", "EventLog.hs", "Events.hs", "Heartbeat.hs", "Manager.hs", "Readiness.hs", "Registry.hs"]
        <> ["Time.hs", "Timer.hs", "Timers.hs", "UseCount.hs", "Wake.hs", "Timer" </> "Search.hs"]

-- | Something wrong: what it is, the module, and a piece of its text with what takes its place.
data Mutant = Mutant
  { mutantName :: String,
    mutantModule :: FilePath,
    mutantBefore :: String,
    _mutantAfter :: String
  }

data Verdict = Passed | Caught
  deriving (Eq, Show)

-- | Build and run a suite. Whatever does not build, or runs without a failure of one of its searches, is neither
-- caught nor passed, and fails here. All are built in one folder, so that only what differs is compiled again.
caught :: Suite -> FilePath -> Maybe Mutant -> IO Verdict
caught suite parent mutant = do
  let place = parent </> takeFileName (suiteFolder suite)
      found = suiteFound suite
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
  let program = place </> "suite"
  (built, _, why) <-
    readProcessWithExitCode
      "ghc"
      ["-v0", "-w", "-O1", "-XHaskell2010", "-XBangPatterns", "-i" <> intercalate ":" ([suiteFolder suite] <> suiteBefore suite <> [place </> "core"] <> suiteBehind suite), "-outputdir", place </> "o", "-o", program, suiteFolder suite </> "Main.hs"]
      ""
  built == ExitSuccess @? ("it does not build: " <> why)
  -- The first failure ends it.
  (_, out, _) <- readProcessWithExitCode "sh" ["-c", "timeout 400 \"$0\" --color never -p \"$1\" | grep -m 1 -e '" <> found <> "' -e ' tests passed' -e ' tests failed'", program, suiteTests suite mutant] ""
  case out of
    _
      | found `isInfixOf` out -> pure Caught
      | " tests passed" `isInfixOf` out -> pure Passed
      | otherwise -> assertFailure ("it ended with " <> show out)

-- | Nothing unless the piece is there, once.
replaced :: Mutant -> String -> Maybe String
replaced (Mutant _ _ before instead) = go
  where
    go [] = Nothing
    go s | Just rest <- stripPrefix before s = if before `isInfixOf` rest then Nothing else Just (instead <> rest)
    go (c : cs)
      | "--" `isPrefixOf` (c : cs) = let (comment, rest) = break (== '\n') (c : cs) in (comment <>) <$> go rest
      | otherwise = (c :) <$> go cs

-- | Those that a program of commands finds, one after the other.
sequential :: [String]
sequential =
  [ "enters after it was shut",
    "a timer fires although it was cancelled",
    "a cancel that came late counts",
    "the timers of a manager that stops are forgotten",
    "waiters of a manager that stops are not woken",
    "callbacks of a manager that stops are not told",
    "a manager that has stopped counts as alive",
    "timers fire early",
    "a closed descriptor stays in the table",
    "callbacks are not told of a close",
    "a one-shot callback stays",
    "the callbacks that are left are not armed",
    "unregistering leaves it there",
    "an event puts the other token",
    "a first registration is only modified",
    "nothing is resumed"
  ]

mutants :: [Mutant]
mutants =
  [ Mutant "announces by a plain write, over a notification" "Core/Wake.hs" "found <- casWord w 0 asAwake (asAsleep t)\n" "found <- readWord w 0\n  writeWord w 0 (asAsleep t)\n",
    Mutant "sleeps although it was notified" "Core/Wake.hs" "else False <$ writeWord w 0 asAwake" "else True <$ writeWord w 0 (asAsleep t)",
    Mutant "a notification does not say that the owner slept" "Core/Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "False <$ swapWord w 0 asNotified",
    Mutant "a notification signals to an owner that runs" "Core/Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "True <$ swapWord w 0 asNotified",
    Mutant "a notification reads, then writes" "Core/Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "(readWord w 0 >>= \\s -> (s > asNotified) <$ writeWord w 0 asNotified)",
    Mutant "the owner stays asleep after it woke" "Core/Wake.hs" "awaken (Wake w) = writeWord w 0 asAwake" "awaken (Wake _) = pure ()",
    Mutant "a timer that is due earlier does not wake" "Core/Wake.hs" "s <= asNotified || s <= asAsleep due = pure False" "s <= asNotified || s > asAsleep due = pure False",
    Mutant "two timers both signal" "Core/Wake.hs" "if found == s then pure True else go found" "pure True",
    Mutant "the last user does not close" "Core/UseCount.hs" "if old .&. flagShut /= 0 then claim l else pure False" "pure (old .&. flagShut < 0)",
    Mutant "every user closes" "Core/UseCount.hs" "if old .&. flagShut /= 0 then claim l else pure False" "pure (old .&. flagShut /= 0)",
    Mutant "who shuts closes under its users" "Core/UseCount.hs" "ours l w && w .&. (flagReleased .|. usersMask) == 0" "ours l w && w .&. flagReleased == 0",
    Mutant "two close" "Core/UseCount.hs" "ours l w && w .&. (flagReleased .|. usersMask) == 0" "ours l w && w .&. usersMask == 0",
    Mutant "enters after it was shut" "Core/UseCount.hs" "not (ours l w) || w .&. (flagShut .|. flags) /= 0 = pure False" "not (ours l w) || w .&. flags /= 0 = pure False",
    Mutant "enters by a plain write" "Core/UseCount.hs" "found <- casWord ws i w (w + oneUser)\n        if found == w then pure True else go found" "writeWord ws i (w + oneUser)\n        pure True",
    Mutant "close wakes nobody" "Core/Readiness.hs" "when (outcome /= WasShut) (wakeAll rd)" "when (outcome == WasShut) (wakeAll rd)",
    Mutant "a timer fires although it was cancelled" "Core/Timer.hs" "defuseTimer (Timer _ ref) = won <$> swapRef ref Spent" "defuseTimer (Timer _ ref) = won <$> readRef ref",
    Mutant "a cancel that came late counts" "Core/Timer.hs" "    won Spent = False\n    won _ = True" "    won Spent = True\n    won _ = True",
    Mutant "firing reads, then writes" "Core/Timer.hs" "fireTimer why (Timer due ref) = do\n  state <- swapRef ref Spent\n" "fireTimer why (Timer due ref) = do\n  state <- readRef ref\n  writeRef ref Spent\n",
    Mutant "setting a timer loses others" "Core/Timers.hs" "done <- casRef (timersInbox ts) below node\n" "done <- True <$ writeRef (timersInbox ts) node\n",
    Mutant "taking the inbox reads, then writes" "Core/Timers.hs" "(`listed` []) <$> swapRef (timersInbox ts) Empty" "(readRef (timersInbox ts) >>= \\i -> listed i [] <$ writeRef (timersInbox ts) Empty)",
    Mutant "sleeps without looking at the inbox" "Core/Manager.hs" "if news || other ||" "if other ||",
    Mutant "a signal is not sent" "Core/Manager.hs" "unless (state == stateFinished) (backendWake" "when (state == stateFinished) (backendWake",
    Mutant "the back end is closed under a thread that signals" "Core/Manager.hs" "    letSignallersPass\n    unreserve" "    unreserve",
    Mutant "the timers of a manager that stops are forgotten" "Core/Manager.hs" "    takeAll (managerTimers m) >>= mapM_ (fireTimer Orphaned)\n" "",
    Mutant "a timer that is set while the manager stops is forgotten" "Core/Manager.hs" "    else takeInbox (managerTimers m) >>= mapM_ (fireTimer Orphaned)" "    else pure ()",
    Mutant "waiters of a manager that stops are not woken" "Core/Manager.hs" "    wakeReadiness (managerRegistry m)\n" "",
    Mutant "a turn can be interrupted" "Core/Manager.hs" "next <- uninterruptibleMask_ (turn before)" "next <- turn before",
    Mutant "timers fire early" "Core/Manager.hs" "expireTimers ts t (" "expireTimers ts never (",
    Mutant "callbacks of a manager that stops are not told" "Core/Manager.hs" "forM_ orphans" "forM_ (take 0 orphans)",
    Mutant "an exception ends the runner and leaves the manager" "Core/Manager.hs" "interruptible (turns Looked) `onException` uninterruptibleMask_ (requestStop m >> finish m)" "interruptible (turns Looked)",
    Mutant "an exception arrives before the runner's handler is there" "Core/Manager.hs" "loop m = mask_ $ do\n" "loop m = interruptible $ do\n",
    Mutant "a manager that has stopped counts as alive" "Core/Manager.hs" "pure (state <= stateRunning &&" "pure (state <= stateFinished &&",
    Mutant "an event with an old generation is delivered" "Core/Registry.hs" "Attached rd _ | readinessGeneration rd == tokenGeneration tok -> do" "Attached rd _ -> do",
    Mutant "a closed descriptor stays in the table" "Core/Registry.hs" "          disown rd\n          setSlot r fd Vacant\n" "          disown rd\n",
    Mutant "a number that is being closed is not marked" "Core/Registry.hs" "marked = IntMap.insert (fromIntegral fd) (Closing over) table" "marked = IntMap.delete (fromIntegral fd) table",
    Mutant "callbacks are not told of a close" "Core/Registry.hs" "forM_ told" "forM_ (take 0 told)",
    Mutant "a one-shot callback stays" "Core/Registry.hs" "kept = filter ((== MultiShot) . registrationLifetime) due <> others" "kept = due <> others",
    Mutant "the callbacks that are left are not armed" "Core/Registry.hs" "(shared || needsArming due kept)" "shared",
    Mutant "unregistering leaves it there" "Core/Registry.hs" "settle r table fd e kept (any" "settle r table fd e (entryRegistrations e) (any",
    Mutant "an unregistered descriptor stays armed" "Core/Registry.hs" "when (alive && not shared) (forget r" "when (alive && shared) (forget r",
    Mutant "arms a descriptor before it is in the table" "Core/Registry.hs" "          setSlot r fd (Attached rd m)\n          void (backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents)\n            `onException` setSlot r fd Vacant\n" "          void (backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents)\n          setSlot r fd (Attached rd m)\n",
    Mutant "attaches to a manager that has stopped" "Core/Registry.hs" "Nothing | not alive -> pure Nothing" "Nothing | False -> pure Nothing",
    Mutant "an event puts the other token" "Core/Readiness.hs" "when (evs `overlaps` evtRead) (void" "when (evs `overlaps` evtWrite) (void",
    Mutant "a close by number wakes nobody" "Core/Readiness.hs" "disown rd = UseCount.disown (useCount rd) >> wakeAll rd" "disown rd = UseCount.disown (useCount rd)",
    Mutant "a token is kept although there is more" "Core/Descriptor.hs" "Done a -> Completed a <$ passOn" "Done a -> pure (Completed a)",
    Mutant "a waiter whose time is over is not told by another" "Core/Descriptor.hs" "          others <- anyExpired rd dir\n          when others passOn\n" "",
    Mutant "the first waiter that finds it closed tells nobody" "Core/Descriptor.hs" "    else do\n      wakeAll rd\n      pure closed" "    else pure closed",
    Mutant "the last user does not give the number back" "Core/Descriptor.hs" "when lastOut (giveBack d id)" "when False (giveBack d id)",
    Mutant "one-shot is not asked for" "Backend/Epoll.hs" "Once -> epollOneShot" "Once -> 0",
    Mutant "a first registration is only modified" "Backend/Epoll.hs" "then judge =<< other ep (fdNumber fd) bits (tokenWord tok)" "then judge r",
    Mutant "nothing is resumed" "Backend/Poll.hs" "again e = e {entryArmed = entryArmed e <> (evs `common` entryAsked e), entryListed = True}" "again e = e",
    Mutant "a poll that blocks is not told of a registration" "Backend/Poll.hs" "backendDeferred = True" "backendDeferred = False",
    Mutant "on ARM, the inbox is looked at before the announcement is seen" "Core/Manager.hs" "    state <- readWord (managerState m) 0\n    news <- hasNews (managerTimers m)\n    other <- busy\n" "    news <- hasNews (managerTimers m)\n    other <- busy\n    state <- readWord (managerState m) 0\n",
    Mutant "a closed descriptor's request goes on" "Backend/Uring.hs" "  when (isLive e) $ do\n    done <- flush" "  when (isLive e && entrySequence e == 0) $ do\n    done <- flush",
    Mutant "a closed descriptor's request is cancelled before the kernel has it" "Backend/Uring.hs" "    done <- flush ring 10\n    r <- cancelNow" "    let done = True\n    r <- cancelNow",
    Mutant "a completion of an earlier request is reported" "Backend/Uring.hs" "if not (isLive e) || userData fd (entrySequence e) /= from" "if not (isLive e)",
    Mutant "a wake does not end a wait" "Backend/Uring.hs" "m <$ writeRef (ringWoken ring) True" "pure m",
    Mutant "the wake-up descriptor is watched once" "Backend/Uring.hs" "(Entry wakeToken 0 evtRead Edge Vacant) Standing" "(Entry wakeToken 0 evtRead Once Vacant) Single",
    Mutant "a full queue loses a request" "Backend/Uring.hs" "when (r' < 0) (later ring request)" "when False (later ring request)",
    Mutant "what waits for the next poll stays behind" "Backend/Uring.hs" "mapM_ (queue ring) (reverse requests)" "mapM_ (queue ring) (take 0 requests)",
    Mutant "a request that its thread's end cancelled is not made again" "Backend/UringEntry.hs" "| result == resultCancelled = (mempty, Now (usual trigger))" "| result == resultCancelled = (mempty, Stay)",
    Mutant "a standing request that has ended is not made again" "Backend/UringEntry.hs" "Edge -> if more then Stay else Next Standing" "Edge -> Stay",
    Mutant "a level-triggered request is not made again" "Backend/UringEntry.hs" "Level -> Next Single" "Level -> Drop Resting",
    Mutant "io_uring registers for a poll that is not told" "Backend/Uring.hs" "backendDeferred = True" "backendDeferred = False"
  ]

-- | Those of hybrid threads.
loopMutants :: [Mutant]
loopMutants =
  [ Mutant "on ARM, who sends an exception looks for the thread too early" "Hybrid/Park.hs" "    interrupt ctx withdraw = do\n      inOrder t\n" "    interrupt ctx withdraw = do\n",
    Mutant "on ARM, who parks looks at its state too early" "Hybrid/Park.hs" "        else do\n          inOrder t\n" "        else do\n",
    Mutant "who parks does not look whether an exception came" "Hybrid/Park.hs" "              back <- withdraw\n              if back then again else pure Parked" "              pure Parked",
    Mutant "an interrupted thread stays in its place" "Hybrid/Park.hs" "      withdrawn <- withdraw\n" "      let withdrawn = True\n",
    Mutant "a thread in the inbox does not wake its loop" "Hybrid/Park.hs" "NoMail -> wakeManager (loopManager l)" "NoMail -> pure ()",
    Mutant "a loop sleeps without looking at its inbox" "Hybrid/Scheduler.hs" "        Mail {} -> True\n        NoMail -> stop /= 0" "        Mail {} -> stop /= 0\n        NoMail -> stop /= 0",
    Mutant "taking the inbox reads, then writes" "Hybrid/Scheduler.hs" "      news <- swapRef (loopInbox l) NoMail\n" "      news <- readRef (loopInbox l)\n      writeRef (loopInbox l) NoMail\n",
    Mutant "a thread of one MVar is handed out twice" "Hybrid/Park.hs" "Just (!s', after) -> casRef (queueState q) s s' >>= \\ok -> if ok then True <$ after else go" "Just (!s', after) -> writeRef (queueState q) s' >> (True <$ after)",
    Mutant "a close wakes no reader" "Hybrid/Descriptor.hs" "forM_ (loopOf owner) $ \\l -> wakeQueue (toLoop l) d Reading >> wakeQueue (toLoop l) d Writing" "forM_ (take 0 [owner]) $ \\_ -> pure ()",
    Mutant "a reader does not look whether it was closed" "Hybrid/Descriptor.hs" "  unless open (wakeQueue (onLoop l) d dir)" "  unless (open || True) (wakeQueue (onLoop l) d dir)",
    Mutant "the end does not look for those who wait" "Hybrid/Shutdown.hs" "      complete <- tellBlocked l\n      n <- sizeReady" "      let complete = True\n      n <- sizeReady"
  ]
