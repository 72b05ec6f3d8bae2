{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Tests of @weft-bench@ and @weft top@ with made-up runs
module Main (main) where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, try)
import Control.Monad (when)
import Data.Aeson (eitherDecode)
import Data.Either (fromLeft)
import Data.IORef (atomicModifyIORef', newIORef, readIORef)
import Data.List (isInfixOf, nub)
import qualified Data.Map.Strict as M
import qualified Data.Set as S
import Data.Text (Text)
import qualified Data.Text as T
import FigureTests
import GHC.Clock (getMonotonicTime)
import HttpTests (client)
import Options.Applicative hiding (Failure)
import qualified Options.Applicative as O
import OutputTests
import QueueTests (descriptors, queues)
import ResultTests
import System.Directory
import System.FilePath (takeDirectory, (</>))
import System.Posix.Temp (mkdtemp)
import System.Process (CmdSpec (..), CreateProcess (cmdspec), readCreateProcess)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import TimerTests (timers)
import Weft.Bench (registry, subjectNames)
import Weft.Bench.Bounds (Judged (..), Verdict (..), atMost, on)
import Weft.Bench.Child (Program (..), processOf)
import Weft.Bench.Folders (folderWith)
import Weft.Bench.Load (LoadResult (..))
import Weft.Bench.Options
import Weft.Bench.Paper
import Weft.Bench.Progress (duration, partLine, progressLine)
import Weft.Bench.Readme (Row (..), overviewRows, rows, summaryRows)
import Weft.Bench.Runner (Failure (failureMessage), Measurement (measuredEnv, measuredRounds), Missing (..), Outcome (..), collect, firstRounds, furtherRound, inDoubt, matches, outcomeOf, plannedCases, rotate, roundOrder, runBenchmark)
import Weft.Bench.Select
import Weft.Bench.Server (Report (..))
import Weft.Bench.Stats (figureMetrics, figureSubjects)
import Weft.Bench.Trace (parseCounts)
import Weft.Bench.Types
import Weft.Test.Main (defaultMain)
import Weft.Tools.Binary (linkedOptions)
import Weft.Tools.Cgroup
import Weft.Tools.Doctor.Finding
import Weft.Tools.Doctor.Machine (areaFinding)
import Weft.Tools.Proc (field, releaseNumbers)
import Weft.Tools.Serve.Cores (coresWithin)
import Weft.Tools.Top.Readings (Screen (..), parseReading, screenOf)

main :: IO ()
main =
  defaultMain $
    testGroup
      "bench"
      [ statistics,
        figures,
        judging,
        order,
        selecting,
        schedules,
        arguments,
        readings,
        json,
        tables,
        charts,
        timers,
        results,
        latencies,
        verdicts,
        h2load,
        theRegistry,
        papers,
        tops,
        quotas,
        programs,
        folders,
        linked,
        client,
        queues,
        descriptors
      ]

-- ---------------------------------------------------------------------------------------------------------------
-- Programs that are run

programs :: TestTree
programs = testCase "a program gets its environment and its cores" $ do
  let program = Program "/bin/sh" ["-c", "printf %s \"$WEFT_TEST_WORD\""] [("WEFT_TEST_WORD", "word")] []
  said <- processOf program >>= (`readCreateProcess` "")
  said @?= "word"
  pinned <- processOf program {programCores = [0, 2]}
  cmdspec pinned @?= RawCommand "taskset" (["-c", "0,2", "/bin/sh"] <> programArguments program)

folders :: TestTree
folders = testCase "a folder that could not be filled is made again" $
  bracket (getTemporaryDirectory >>= mkdtemp . (</> "bench-test-")) removePathForcibly $ \scratch -> do
    let env = Env [] scratch 1 Nothing Nothing defaultPlan Nothing
        made fill = either (const Nothing) Just <$> (try (folderWith env "files" fill) :: IO (Either IOException FilePath))
    made (\folder -> writeFile (folder </> "file") "" >> ioError (userError "the disk is full")) >>= (@?= Nothing)
    listDirectory scratch >>= (@?= [])
    made (const (pure ())) >>= (@?= Just (scratch </> "files"))

linked :: TestTree
linked =
  testGroup
    "options that a program was linked with"
    [ testCase (show bytes) (linkedOptions bytes @?= expected)
      | (bytes, expected) <-
          [ ("\DEL\0-N2 -A64m -T\0more", ["-N2", "-A64m", "-T"]),
            ("-A4m", ["-A4m"]),
            ("\0use +RTS -A4m\0-Area\0-A\0x-A4m\0", []),
            ("\0-A1m\0-A2m\0", []),
            ("\0-A1m\0-A1m\0-N\0", ["-A1m"])
          ]
    ]

-- ---------------------------------------------------------------------------------------------------------------
-- The figures of the papers

papers :: TestTree
papers =
  testGroup
    "figures of the papers"
    [ testCase "all of them exist" $
        map figureName paperFigures
          @?= ["2010-" <> T.pack (show n) | n <- [1 .. 8 :: Int]] <> ["2007-memory", "2007-17", "2007-18", "2007-19"] <> ["mio-" <> T.pack (show n) | n <- [5, 13, 14, 15, 16, 17, 18 :: Int]],
      testCase "each is measured or says why not, on one core and on many" $
        sequence_
          [ case figureBench f cores of
              Left why -> assertBool "a reason" (figureName f == "mio-15" && not (T.null why))
              Right b -> do
                let cases = benchCases b defaultPlan
                    keys = [(subjectName (caseSubject c), caseParams c, caseGroup c) | c <- cases]
                assertBool (show (figureName f)) (not (null cases) && not (null (benchColumns b)))
                length keys @?= length (nub keys)
                benchName b @?= figureName f
            | f <- paperFigures,
              cores <- [1, 2, 24]
          ],
      testCase "cores are along the axis where they are in the paper" $
        [[n | Right b <- [figureBench f cores], n <- nub [n | c <- benchCases b defaultPlan, Just (Count n) <- [lookup "capabilities" (caseParams c)]]] | cores <- [1, 2, 12], Just f <- [figureNamed "mio-5"]]
          @?= [[1], [1, 2], [1, 2, 4, 8, 12]]
    ]

-- ---------------------------------------------------------------------------------------------------------------
-- weft top

tops :: TestTree
tops =
  testGroup
    "the screen of weft top"
    [ testCase "latencies of all capabilities, and the slowest callbacks first" $ do
        let page n = parseReading (T.unlines (["weft_wake_latency_seconds_bucket{capability=\"" <> c <> "\",le=\"" <> le <> "\"} " <> T.pack (show (n * v)) | c <- ["0", "1"], (le, v) <- [("1.024e-6", 10), ("2.048e-6", 10), ("4.096e-6", 20 :: Int), ("+Inf", 20)]] <> others))
            others =
              [ "weft_longest_callback_seconds{capability=\"0\",of=\"timers\"} 2.0e-3",
                "weft_longest_callback_seconds{capability=\"1\",of=\"descriptor 7\"} 1.5",
                "weft_watchdog_stalls_total 3",
                "weft_watchdog_longest_seconds 1.5"
              ]
            Screen shown = screenOf "title" 1 (page 1) (page 3)
        assertBool (show shown) ("woken threads run after p50 <= 1.02 us   woken threads run after p99 <= 4.10 us" `elem` shown)
        assertBool (show shown) ("held for too long: 3 times, at most for 1.50 s" `elem` shown)
        [T.unwords (T.words l) | l <- shown, "slowest callback" `T.isInfixOf` l]
          @?= ["slowest callback, capability 1 descriptor 7 1.50 s", "slowest callback, capability 0 timers 2.00 ms"],
      testCase "a metric that the page lacks has no line" $ do
        let Screen shown = screenOf "title" 1 (parseReading "weft_waits_total{capability=\"0\"} 1") (parseReading "weft_waits_total{capability=\"0\"} 2\nweft_watchdog_stalls_total 0\n")
        [l | l <- shown, any (`T.isInfixOf` l) ["late", "slowest", "held"]] @?= []
    ]

-- ---------------------------------------------------------------------------------------------------------------
-- The cores of a container

quotas :: TestTree
quotas =
  testGroup
    "quotas of control groups, and caches"
    [ testCase "an allocation area is neither small nor beyond a core's share of the cache, and 4 MiB is always good" $
        [mark | share <- [Nothing, Just 2, Just 16], area <- [1, 4, 16, 64], let Finding mark _ _ = areaFinding ((* 1048576) <$> share) (area * 1048576)]
          @?= [Advice, Fine, Fine, Fine, Advice, Fine, Advice, Advice, Advice, Fine, Fine, Advice],
      testCase "cores within a quota" $
        [coresWithin 8 NotKnown, coresWithin 8 NoQuota, coresWithin 8 (Processors 2.5), coresWithin 8 (Processors 0.1), coresWithin 2 (Processors 8)]
          @?= [8, 8, 3, 1, 2],
      testGroup
        "read from made-up files"
        [ testCase name . bracket (getTemporaryDirectory >>= mkdtemp . (</> "weft-quotas-")) removePathForcibly $ \folder -> do
            sequence_ [createDirectoryIfMissing True (takeDirectory (folder </> path)) >> writeFile (folder </> path) (content <> "\n") | (path, content) <- files]
            quota <- cpuQuota (folder </> "cgroup") (folder </> "process")
            quota @?= expected
          | (name, files, expected) <-
              [ ("no control groups", [], NotKnown),
                ("version 2: the smallest on the way to the root", [process "0::/a/b", ("cgroup/cgroup.controllers", "cpu"), ("cgroup/a/cpu.max", "50000 100000"), ("cgroup/a/b/cpu.max", "200000 100000")], Processors 0.5),
                ("version 2: no limit", [process "0::/a", ("cgroup/cgroup.controllers", "cpu"), ("cgroup/a/cpu.max", "max 100000")], NoQuota),
                ("version 2: the root", [process "0::/", ("cgroup/cgroup.controllers", "cpu")], NoQuota),
                ("version 2: names from outside of the container", [process "0::/x/y", ("cgroup/cgroup.controllers", "cpu"), ("cgroup/cpu.max", "250000 100000")], Processors 2.5),
                ("version 2: not mounted", [process "0::/a"], NotKnown),
                ("version 1: the process's group", process "2:cpuset:/c\n1:cpu:/a:b\n0::/" : version1 "cpu/a:b" "50000" <> version1 "cpu" "-1", Processors 0.5),
                ("version 1: a group above", process "3:cpu,cpuacct:/a/b" : version1 "cpu,cpuacct/a" "150000" <> version1 "cpu,cpuacct/a/b" "-1", Processors 1.5),
                ("version 1: another name of the folder", process "3:cpuacct,cpu:/a" : version1 "cpu/a" "50000", Processors 0.5),
                ("version 1: no limit", process "1:cpu:/a" : version1 "cpu/a" "-1", NoQuota),
                ("version 1: names from outside of the container", process "1:cpu:/x/y" : version1 "cpu" "50000", Processors 0.5),
                ("version 1: not mounted", [process "1:cpu:/a", ("cgroup/cgroup.controllers", "")], NotKnown)
              ]
        ]
    ]
  where
    process content = ("process/cgroup", content)
    version1 group quota = [("cgroup/" <> group <> "/cpu.cfs_quota_us", quota), ("cgroup/" <> group <> "/cpu.cfs_period_us", "100000")]

-- ---------------------------------------------------------------------------------------------------------------
-- Rounds

order :: TestTree
order =
  testGroup
    "rounds"
    [ testCase "rotation" $ map (`rotate` "abc") [0, 1, 2, 3] @?= ["abc", "bca", "cab", "abc"],
      testCase "groups stay together and turn inside" $
        map caseLabel (roundOrder 1 [fake g s | g <- [1, 2], s <- ["a", "b", "c"]])
          @?= [(1, "b"), (1, "c"), (1, "a"), (2, "b"), (2, "c"), (2, "a")],
      testCase "every case runs once in every round" $
        map (length . (`roundOrder` [fake g s | g <- [1, 2, 3], s <- ["a", "b"]])) [0 .. 4] @?= replicate 5 6,
      testCase "what is measured once joins the first round" $ do
        let measured = [(0, "a", ([], M.singleton "x" 1)), (1, "a", ([], M.singleton "x" 2)), (0, "a", ([], M.singleton "y" 3))]
        collect [("a", [])] measured
          @?= [Run "a" [] (M.fromList [(0, M.fromList [("x", 1), ("y", 3)]), (1, M.singleton "x" 2)])],
      testCase "without the tool that counts, the rest is measured" $ do
        let measuring = (fake 1 "a") {caseSubject = Subject "a" "true" CProgram, caseMeasure = const (pure [([], M.singleton "x" 1)]), caseCounts = [Counting tool "y" (const (pure [([], M.singleton "y" 2)])) | tool <- ["true", "no-such-tool"]]}
            benchmark = Benchmark "b" "" (const [measuring {caseParams = []}]) [] [] [] (const [atMost "bound" (on "a" [] "z") 1]) ["x"] id
            env = Env [] "/nonexistent" 1 Nothing Nothing defaultPlan {planRounds = 2, planMoreRounds = 0} Nothing
        outcome <- runBenchmark env (const True) benchmark
        [runRounds r | r <- outcomeRuns outcome] @?= [M.fromList [(0, M.fromList [("x", 1), ("y", 2)]), (1, M.singleton "x" 1)]]
        [(missingName m, "not counted: y" `T.isInfixOf` missingWhy m) | m <- outcomeMissing outcome] @?= [("no-such-tool", True)],
      testCase "a progress line" $ do
        progressLine 4 2 10 "pong" @?= "[##########..........] 3/4  pong  10 s left"
        progressLine 4 0 0 "pong" @?= "[....................] 1/4  pong",
      testCase "a line for each benchmark of all" $
        (partLine 1 19 "pong" 0 (Just 540), partLine 3 19 "idle" 75 (Just 300), partLine 1 2 "x" 0 Nothing) @?= ("== 1/19  pong, about 9 min 0 s left", "== 3/19  idle, after 1 min 15 s, about 5 min 0 s left", "== 1/2  x"),
      testCase "durations" $ map duration [0.2, 59, 61, 3600] @?= ["1 s", "59 s", "1 min 1 s", "60 min"]
    ]
  where
    caseLabel c = (head' [n | (_, Count n) <- caseGroup c], subjectName (caseSubject c))
    head' = sum . take 1

fake :: Int -> Text -> Case
fake group name =
  Case
    { caseSubject = Subject name "" CProgram,
      caseParams = [("group", Count group)],
      caseGroup = [("group", Count group)],
      caseMeasure = const (pure []),
      caseCounts = []
    }

-- ---------------------------------------------------------------------------------------------------------------
-- Parts of a benchmark

-- | Cases of groups 1 and 2 with the subjects a and b, a count, and bounds on each group and on both.
twoGroups :: Benchmark
twoGroups = Benchmark "b" "" (const [(fake g s) {caseCounts = [Counting "true" "calls" (const (pure []))]} | g <- [1, 2], s <- ["a", "b"]]) [] [] [] (const bounds) ["x"] id
  where
    at g s = on s [("group", Count g)]
    bounds =
      [ atMost "one" (at 1 "a" "x" `Over` at 1 "b" "x") 1,
        atMost "two" (at 2 "a" "x" `Over` at 2 "b" "x") 1,
        atMost "both" (at 1 "a" "x" `Over` at 2 "a" "x") 1,
        atMost "calls" (at 1 "a" "calls") 1
      ]

selecting :: TestTree
selecting =
  testGroup
    "parts of a benchmark"
    [ testCase "cases with a parameter, and the bounds that need no others" $
        case withCases [("group", "1")] defaultPlan twoGroups of
          Right part -> (map caseParams (benchCases part defaultPlan), map boundName (benchBounds part defaultPlan)) @?= (replicate 2 [("group", Count 1)], ["one", "calls"])
          Left why -> assertFailure (T.unpack why),
      testCase "a bound is left out if only cases with further parameters are chosen" $ do
        let larger = (fake 1 "a") {caseParams = [("group", Count 1), ("size", Count 2)]}
            both = twoGroups {benchCases = const [fake 1 "a", larger], benchBounds = const [atMost name (on "a" given "x") 1 | (name, given) <- [("plain", [("group", Count 1)]), ("larger", caseParams larger)]]}
        fmap (map boundName . (`benchBounds` defaultPlan)) (either (const Nothing) Just (withCases [("size", "2")] defaultPlan both)) @?= Just ["larger"],
      testCase "several values of a parameter add up" $
        fmap (map boundName . (`benchBounds` defaultPlan)) (either (const Nothing) Just (withCases [("group", "1"), ("group", "2")] defaultPlan twoGroups)) @?= Just ["one", "two", "both", "calls"],
      testCase "an unknown parameter or value is refused, and the error lists the known ones" $ do
        fromLeft "" (withCases [("group", "3")] defaultPlan twoGroups) @?= "b has no case with group=3; its parameters: group=1|2"
        fromLeft "" (withCases [("size", "1")] defaultPlan twoGroups) @?= "b has no case with size=1; its parameters: group=1|2",
      testCase "figures of one metric need no counts" $ do
        let part = withFigures [([("group", Count 1)], "x")] twoGroups
        map (map countingMetric . caseCounts) (benchCases part defaultPlan) @?= [[], []]
        map boundName (benchBounds part defaultPlan) @?= ["one"],
      testCase "figures that are counted need their cases and counts" $ do
        let part = withFigures [([("group", Count 2)], "calls"), ([("group", Count 1), ("other", Count 5)], "x")] twoGroups
        map (map countingMetric . caseCounts) (benchCases part defaultPlan) @?= [[], [], ["calls"], ["calls"]]
        map boundName (benchBounds part defaultPlan) @?= ["one", "two", "both"],
      testCase "the rows of the summary and of the picture are rows of the table" $
        filter (`notElem` [what | Row what _ _ _ <- rows]) (summaryRows <> overviewRows) @?= [],
      testGroup
        "every figure of the documents belongs to cases of a benchmark"
        [ testCase (T.unpack what) $
            let of' = [withFigures [(params, metric)] b | b <- registry, benchName b == bench]
             in assertBool "cases" (not (all (null . (`benchCases` defaultPlan)) of'))
          | Row what bench params metric <- rows
        ]
    ]

-- ---------------------------------------------------------------------------------------------------------------
-- Time limits

schedules :: TestTree
schedules =
  testGroup
    "time limits"
    [ testCase "a round that would not end in time is not begun" $ do
        begun <- newIORef (0 :: Int)
        -- The second round takes two of the three seconds. The first one takes no time, so a busy machine has room.
        let measure = do
              n <- atomicModifyIORef' begun (\n -> (n + 1, n))
              when (n > 0) (threadDelay 2000000)
              pure measured
        now <- getMonotonicTime
        outcome <- runBenchmark (env (Schedule (now + 3) (now + 60))) (const True) (taking measure)
        map (M.size . runRounds) (outcomeRuns outcome) @?= [2]
        outcomeFailures outcome @?= [],
      testCase "after the end nothing is begun, and the failure says so" $ do
        now <- getMonotonicTime
        outcome <- runBenchmark (env (Schedule (now - 1) (now - 1))) (const True) slow
        map runRounds (outcomeRuns outcome) @?= []
        map failureMessage (outcomeFailures outcome) @?= ["there was no time left for it (--minutes)"]
        map judgedVerdict (outcomeBounds outcome) @?= [NotMeasured],
      testCase "a case is not judged if one of its rounds failed, and the failure says why" $ do
        begun <- newIORef (0 :: Int)
        let measure = do
              n <- atomicModifyIORef' begun (\n -> (n + 1, n))
              if n == 1 then failWith "it ended" else pure measured
        outcome <- runBenchmark (env (Schedule 0 0)) {envSchedule = Nothing} (const True) (taking measure)
        map judgedVerdict (outcomeBounds outcome) @?= [NotMeasured]
        map failureMessage (outcomeFailures outcome) @?= ["it ended"],
      testCase "further rounds go to the benchmark with the fewest, of these to the shortest, and to none that is settled" $ do
        asked <- newIORef []
        let first name x pause = firstRounds (env (Schedule 0 0)) {envSchedule = Nothing, envPlan = defaultPlan {planRounds = 1, planMoreRounds = 2}} (const True) . taking $ do
              atomicModifyIORef' asked (\names -> (name : names, ()))
              threadDelay pause
              pure [([("group", Count 1)], M.singleton "x" x)]
        begun <- sequence [first "slow" 2.1 300000, first "clear" 0.9 0, first "fast" 1.9 0]
        map (length . inDoubt) begun @?= [1, 0, 1]
        ended <- M.elems <$> allFurther (M.fromList (zip [1 :: Int ..] begun))
        names <- readIORef asked
        reverse names @?= (["slow", "clear", "fast"] <> ["fast", "slow", "fast", "slow" :: String])
        map measuredRounds ended @?= [3, 1, 3]
        map (map (M.size . runRounds) . outcomeRuns . outcomeOf) ended @?= [[3], [1], [3]],
      testCase "further rounds that would not end in time are not begun" $ do
        now <- getMonotonicTime
        first <- firstRounds (env (Schedule now (now + 60))) {envPlan = defaultPlan {planRounds = 1}} (const True) (taking (pure [([("group", Count 1)], M.singleton "x" 2.01)]))
        ended <- furtherRound (const (assertFailure "announced")) (M.singleton () first)
        (fmap (map measuredRounds . M.elems) ended, length (inDoubt first)) @?= (Nothing, 1),
      testCase "a further round that has begun is finished, although it takes longer than expected" $ do
        begun <- newIORef (0 :: Int)
        now <- getMonotonicTime
        let measure = do
              n <- atomicModifyIORef' begun (\n -> (n + 1, n))
              when (n == 2) (threadDelay 5000000)
              pure measured
            both = (taking measure) {benchCases = \p -> [c {caseSubject = Subject name "true" CProgram} | name <- ["a", "b"], c <- benchCases (taking measure) p]}
        first <- firstRounds (env (Schedule (now + 4) (now + 4))) {envPlan = defaultPlan {planRounds = 1}} (const True) both {benchBounds = const [atMost "bound" (on "a" [("group", Count 1)] "x" `Over` on "b" [("group", Count 1)] "x") 1]}
        ended <- maybe [] M.elems <$> furtherRound (const (pure ())) (M.singleton () first)
        map (outcomeFailures . outcomeOf) ended @?= [[]]
        map (map (M.size . runRounds) . outcomeRuns . outcomeOf) ended @?= [[2, 2]],
      testCase "rounds of the plan for which there was no time come later, of all cases" $ do
        now <- getMonotonicTime
        first <- firstRounds (env (Schedule (now - 1) (now + 60))) {envPlan = defaultPlan {planRounds = 3, planMoreRounds = 0}} (const True) (taking (pure [([("group", Count 1)], M.singleton "x" 1)]))
        (measuredRounds first, length (inDoubt first)) @?= (1, 1)
        ended <- allFurther (M.singleton () first {measuredEnv = (env (Schedule (now + 60) (now + 60))) {envPlan = defaultPlan {planRounds = 3, planMoreRounds = 0}}})
        map measuredRounds (M.elems ended) @?= [3],
      testCase "without a limit all rounds are run" $ do
        outcome <- runBenchmark (env (Schedule 0 0)) {envSchedule = Nothing} (const True) slow
        map (M.size . runRounds) (outcomeRuns outcome) @?= [5]
    ]
  where
    env = Env [] "/nonexistent" 1 Nothing Nothing defaultPlan {planMoreRounds = 0} . Just
    allFurther begun = furtherRound (const (pure ())) begun >>= maybe (pure begun) allFurther
    slow = taking (threadDelay 100000 >> pure measured)
    measured = [([("group", Count 1)], M.singleton "x" 1)]
    taking measure = Benchmark "b" "" (const [(fake 1 "a") {caseSubject = Subject "a" "true" CProgram, caseMeasure = const measure}]) [] [] [] (const [atMost "bound" (on "a" [("group", Count 1)] "x") 2]) ["x"] id

-- ---------------------------------------------------------------------------------------------------------------
-- Arguments

arguments :: TestTree
arguments =
  testGroup
    "arguments"
    [ testCase "a name alone" $ fmap optionTarget (parse ["pong"]) @?= Right (One "pong"),
      testCase "list and all" $ map (fmap optionTarget . parse . pure) ["list", "all"] @?= [Right List, Right All],
      testCase "all options" $ do
        let given = ["idle", "--json", "a.json", "--plot", "a.svg", "--report", "a.html", "--rounds", "3", "--duration", "0.5", "--quick", "--check"]
        parse (given ++ ["--only", "weft,ghc", "--backend", "poll", "--rts", "-A16m -n4m"])
          @?= Right (Options (One "idle") (Just "a.json") (Just "a.svg") (Just "a.html") (Just 3) (Just 0.5) True True ["weft", "ghc"] (Just "poll") (Just ["-A16m", "-n4m"]) [] Nothing False),
      testCase "cases and minutes" $ do
        fmap optionCases (parse ["pong", "--case", "connections=64", "--case", "placement=a=b"]) @?= Right [("connections", "64"), ("placement", "a=b")]
        fmap optionMinutes (parse ["all", "--minutes", "2.5"]) @?= Right (Just 2.5),
      testCase "a case without a value" $ mapM_ (\text -> refused ["pong", "--case", text] "not NAME=VALUE") ["connections", "=64", "connections="],
      testCase "an unknown benchmark is named" $ refused ["pnog"] "pnog",
      testCase "an unknown subject is named" $ refused ["pong", "--only", "weft,nodejs"] "nodejs",
      testCase "an unknown back end is named, and the known ones" $ mapM_ (refused ["pong", "--backend", "zz"]) ["no back end is called zz; there are ", "poll"],
      testCase "zero rounds" $ refused ["pong", "--rounds", "0"] "above zero",
      testCase "a duration that is not a number" $ refused ["pong", "--duration", "long"] "long",
      testCase "durations that no clock can hold" $ mapM_ (\(text, why) -> refused ["pong", "--duration", text] why) [("Infinity", "above zero"), ("1e400", "above zero"), ("NaN", "above zero"), ("1e10", "more than")],
      testCase "no arguments" $ refused [] "NAME",
      testCase "explicit figures win over --quick" $
        fmap (\o -> (planRounds (plan o), planDuration (plan o))) (parse ["pong", "--quick", "--rounds", "7"]) @?= Right (7, 0.7)
    ]
  where
    refused given word = case parse given of
      Left message -> assertBool message (word `isInfixOf` message)
      Right options -> assertFailure (show options)

parse :: [String] -> Either String Options
parse given = case execParserPure defaultPrefs (info parser mempty) given of
  Success options -> Right options
  O.Failure failure -> Left (fst (renderFailure failure "weft"))
  CompletionInvoked _ -> Left "completion"
  where
    parser = optionsParser (map benchName registry) subjectNames

-- ---------------------------------------------------------------------------------------------------------------
-- What other programs print

readings :: TestTree
readings =
  testGroup
    "readings"
    [ testCase "a field of /proc" $ do
        field "VmRSS" "Name:\tx\nVmHWM:\t  10 kB\nVmRSS:\t    4096 kB\n" @?= Just 4096
        field "Rss" "5581 [rollup]\nRss:                1532 kB\nPss: 1 kB\n" @?= Just 1532
        field "VmSwap" "VmRSS: 1 kB\n" @?= Nothing,
      testCase "a kernel's release" $
        map releaseNumbers ["6.1.0-13-amd64\n", "6.18.44", "5.4+x"] @?= ["6.1.0", "6.18.44", "5.4"],
      testCase "strace's table" $
        parseCounts straceTable @?= M.fromList [("epoll_wait", 4), ("recvfrom", 4113), ("sendto", 4049)],
      testCase "the load's result" $
        eitherDecode
          "{\"requests\": 10, \"total_requests\": 12, \"bytes\": 4096, \"wall_s\": 0.5, \"cpu_s\": 0.25, \
          \\"p50_us\": 1, \"p95_us\": 2, \"p99_us\": 3, \"max_us\": 4.5}"
          @?= Right (LoadResult 10 12 4096 0.5 0.25 (M.fromList [("p50_us", 1), ("p95_us", 2), ("p99_us", 3), ("max_us", 4.5)])),
      testCase "a report" $
        eitherDecode "{\"allocated_bytes\": 100, \"live_bytes\": 50, \"collections_before\": 1, \"collections\": 2, \"counters\": {}}"
          @?= Right (Report 100 50 1 2)
    ]

straceTable :: Text
straceTable =
  T.unlines
    [ "% time     seconds  usecs/call     calls    errors syscall",
      "------ ----------- ----------- --------- --------- ----------------",
      " 51.20    0.050000          12      4113        64 recvfrom",
      " 48.70    0.047000          11      4049           sendto",
      "  0.10    0.000100          25         4           epoll_wait",
      "------ ----------- ----------- --------- --------- ----------------",
      "100.00    0.097100          11      8166        64 total"
    ]

-- ---------------------------------------------------------------------------------------------------------------
-- The registry

theRegistry :: TestTree
theRegistry =
  testGroup
    "registry"
    [ testCase "names are distinct" $ length (M.fromList [(benchName b, ()) | b <- registry]) @?= length registry,
      testGroup
        "no two cases measure the same"
        [ testCase (T.unpack (benchName b)) $
            [name | (name, times) <- M.toList (M.fromListWith (+) (map key (benchCases b defaultPlan))), times > (1 :: Int)] @?= []
          | b <- registry
        ],
      testGroup
        "with --quick the subjects that bounds need are left"
        [ testCase (T.unpack (benchName b)) $ do
            let planned = plannedCases briefly b
                wanted = nub [subject | bound <- benchBounds b briefly, subject <- S.toList (figureSubjects (boundFigure bound))]
            if null wanted
              then length planned @?= length (benchCases b briefly)
              else [s | s <- nub (map (subjectName . caseSubject) (benchCases b briefly)), s `elem` map (subjectName . caseSubject) planned] @?= [s | s <- nub (map (subjectName . caseSubject) (benchCases b briefly)), s `elem` wanted]
          | b <- registry
        ],
      testGroup
        "bounds refer to cases that are measured"
        [ testCase (T.unpack (benchName b) ++ ": " ++ T.unpack (boundName bound)) $
            mapM_ (\(subject, given, _) -> assertBool (show (subject, given)) (any (\c -> matches c subject given) (benchCases b defaultPlan))) (figureMetrics (boundFigure bound))
          | b <- registry,
            bound <- benchBounds b defaultPlan
        ]
    ]
  where
    briefly = either error plan (parse ["pong", "--quick"])
    key c = ((subjectName (caseSubject c), caseParams c), 1)
