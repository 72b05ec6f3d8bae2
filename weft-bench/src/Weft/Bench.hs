{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The program @weft-bench@
--
-- The registry of benchmarks, and the command that runs them. To add a benchmark, write a module that exports a
-- 'Benchmark' and add a line to 'registry'. Exit status: 0 if it ran, 1 if nothing could be measured, 2 for bad
-- arguments, 3 if a bound was missed with @--check@.
module Weft.Bench
  ( benchProgram,
    registry,
    subjectNames,
  )
where

import Control.Exception (onException)
import Control.Monad (forM_, when)
import Data.ByteString.Builder (Builder)
import Data.Either (partitionEithers)
import Data.Foldable (asum)
import Data.IORef (modifyIORef', newIORef, readIORef, writeIORef)
import Data.List (find, intersect, nub)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe, isJust, isNothing)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import Data.Version (showVersion)
import GHC.Clock (getMonotonicTime)
import Options.Applicative hiding (columns)
import Paths_weft_bench (version)
import System.Directory (createDirectoryIfMissing)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (replaceBaseName, takeBaseName, (</>))
import System.IO (hFlush, stdout)
import Weft.Bench.Bounds (missed)
import Weft.Bench.Cbench (cbenchCommand)
import Weft.Bench.Client (client)
import Weft.Bench.Deadline (deadline)
import Weft.Bench.Delay (delay)
import Weft.Bench.DelayShared (delayShared)
import Weft.Bench.Disk (disk)
import Weft.Bench.DiskWeb (diskWeb)
import Weft.Bench.Echo (echo)
import Weft.Bench.EventLog (eventLog)
import Weft.Bench.Http (http)
import Weft.Bench.Http2 (http2)
import Weft.Bench.Https (https)
import Weft.Bench.Hybrid (fifo, hybridIdle, hybridMemory, hybridSwitch)
import Weft.Bench.Idle (idle)
import Weft.Bench.Json
import Weft.Bench.Options
import Weft.Bench.Paper
import Weft.Bench.Plot (outcomePlot)
import Weft.Bench.Pong (pong)
import Weft.Bench.Progress (duration, furtherLine, partLine)
import Weft.Bench.Proxy (proxy)
import Weft.Bench.Quiet (quiet)
import Weft.Bench.Readme (shownOf)
import Weft.Bench.Relink (relink)
import Weft.Bench.Relinked (runCommand)
import Weft.Bench.Reporting (reportingCommands, writeReport)
import Weft.Bench.Rude (rude)
import Weft.Bench.Runner
import Weft.Bench.Sdn (sdn)
import Weft.Bench.Select (withCases, withFigures)
import Weft.Bench.Setup
import Weft.Bench.Static (static)
import Weft.Bench.Table (renderOutcome, renderVerdicts)
import Weft.Bench.Tcp (tcp)
import Weft.Bench.Timeout (timeout)
import Weft.Bench.Transfers (transfersCommand)
import Weft.Bench.Types
import Weft.Bench.Url (urlCommand)
import Weft.Bench.Web (web)
import Weft.Tools.Numbers (columns, positive)
import Weft.Tools.Output
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Subcommand

-- | All benchmarks, in the order of @weft-bench all@.
registry :: [Benchmark]
registry =
  [ pong,
    http,
    idle,
    echo,
    quiet,
    eventLog,
    delay,
    delayShared,
    timeout,
    deadline,
    relink,
    disk,
    client,
    proxy,
    static,
    https,
    http2,
    web,
    diskWeb,
    rude,
    hybridMemory,
    hybridSwitch,
    fifo,
    hybridIdle,
    sdn,
    tcp
  ]

-- | Every subject of any benchmark.
subjectNames :: [Text]
subjectNames = nub [subjectName (caseSubject c) | b <- registry, c <- benchCases b defaultPlan]

-- | Its subcommands, in groups with a title.
benchSubcommands :: [(String, [Subcommand])]
benchSubcommands =
  [ ("Your own programs:", [runCommand, urlCommand]),
    ("Many cores:", [transfersCommand]),
    ("OpenFlow controllers:", [cbenchCommand]),
    ("The papers:", [paperCommand]),
    ("Saved results:", figuresCommand : reportingCommands registry)
  ]

-- | The program's parser.
benchProgram :: ParserInfo (IO ())
benchProgram =
  info
    (arguments <**> infoOption ("weft-bench " <> showVersion version) (long "version" <> help "Print the version") <**> helper)
    ( fullDesc
        <> progDesc "Measure Weft beside GHC's own I/O manager and other peers, and your own programs with and without Weft"
        <> footer
          "Subjects take turns within every round and start afresh each time. A server with N capabilities is pinned \
          \to the first N cores, its clients to the others; where none are left (-N2 on two cores) both share all \
          \cores. CPU a request is the user and system time of the server's process over the requests answered in \
          \the measured time. Figures are medians of the rounds, ratios are taken within a round. System calls are \
          \counted in a run of their own. The programs are looked for in bin/subjects and bin/peers beside this \
          \program's directory, or below WEFT_BENCH_DIR. Exit status: 0 it ran, 1 nothing could be measured, 2 bad \
          \arguments, 3 a bound was missed (with --check)."
        <> failureCode 2
    )
  where
    arguments = asum [hsubparser (subcommands list <> commandGroup title) | (title, list) <- benchSubcommands] <|> run <$> optionsParser (map benchName registry) subjectNames

run :: Options -> IO ()
run options = case optionTarget options of
  List | options /= noOptions List -> refuse "list takes no options"
  List -> T.putStr . T.unlines $ columns [[benchName b, benchTitle b] | b <- registry]
  All -> measure options registry
  One name -> measure options (filter ((== name) . benchName) registry)

-- | @weft-bench paper@: a benchmark for each figure, or the reason why there is none.
paperCommand :: Subcommand
paperCommand =
  subcommand "paper" $
    info
      (paper <$> switch (long "list" <> help "List the figures") <*> optional (strArgument (metavar "FIGURE" <> help "As --list names it, such as 2010-3 or mio-5")) <*> (furtherOptions (nub (subjectNames <> figureSubjects)) <*> pure All))
      ( progDesc "Repeat the measurement of a figure of the papers, as far as this machine allows"
          <> footer
            "Example: weft-bench paper mio-5 --plot mio-5.svg. What was found on other machines, decades of compilers ago, is printed beside it: \
            \ratios and shapes can be compared, not figures. Exit status: 1 when the figure cannot be measured on this machine, which is said with \
            \the reason."
      )

-- | The subjects of all figures, on a machine with two cores.
figureSubjects :: [Text]
figureSubjects = nub [subjectName (caseSubject c) | f <- paperFigures, Right b <- [figureBench f 2], c <- benchCases b defaultPlan]

paper :: Bool -> Maybe Text -> Options -> IO ()
paper list name options = do
  cores <- machineCores <$> machineFacts
  case (list, name) of
    (True, _) -> T.putStr . T.unlines $ columns [[figureName f, figurePlace f, either (const "not on this machine: ") (const "") (figureBench f cores) <> figureTitle f] | f <- paperFigures]
    (False, Nothing) -> refuse "which figure? weft-bench paper --list names them"
    (False, Just wanted) -> case figureNamed wanted of
      Nothing -> refuse ("no figure is called " <> wanted <> "; weft-bench paper --list names them")
      Just f -> do
        T.putStr . T.unlines $ [figurePlace f <> ": " <> figureTitle f, "The paper: " <> figureFinding f] <> ["Here: " <> figureNote f cores | not (T.null (figureNote f cores))]
        case figureBench f cores of
          Left why -> reportText ("weft-bench: " <> wanted <> " cannot be measured here: " <> why) >> exitWith (ExitFailure 1)
          Right benchmark -> measure options {optionTarget = One wanted} [benchmark]

measure :: Options -> [Benchmark] -> IO ()
measure options asked = do
  forM_ asked $ \benchmark -> forM_ (given `intersect` benchIgnores benchmark) $ \ignored ->
    refuse (benchName benchmark <> " does not take " <> ignored)
  benchmarks <- case partitionEithers (map (withCases (optionCases options) (plan options)) asked) of
    (why : _, []) -> refuse why
    (_, found) -> pure found
  checkOutputs "weft-bench" . concat $ [maybe [] pure (optionJson options), maybe [] pure (optionReport options), [plotFile file b | Just file <- [optionPlot options], b <- benchmarks]]
  outcomes <- measureEach options benchmarks $ \_ _ _ -> pure ()
  forM_ (optionJson options) $ \file -> writeOut file $ case [json | (_, _, json) <- outcomes] of
    [only] | optionTarget options /= All -> only
    several -> arrayJson several
  forM_ (optionReport options) $ \file -> writeReport [b | (b, _, _) <- outcomes] file [json | (_, _, json) <- outcomes]
  forM_ (optionPlot options) $ \file -> forM_ outcomes $ \(benchmark, result, _) ->
    writeText (plotFile file benchmark) (outcomePlot benchmark result)
  when (all (\(_, result, _) -> null (outcomeRuns result)) outcomes) $ do
    reportText "weft-bench: nothing could be measured"
    exitWith (ExitFailure 1)
  when (optionCheck options && any (\(_, result, _) -> any missed (outcomeBounds result)) outcomes) $
    exitWith (ExitFailure 3)
  where
    -- Of all benchmarks, those with a load take the duration.
    given =
      ["--rts" | isJust (optionRts options)]
        ++ ["--backend" | isJust (optionBackend options)]
        ++ ["--duration" | isJust (optionDuration options), optionTarget options /= All]
    plotFile file benchmark
      | optionTarget options == All = replaceBaseName file (takeBaseName file ++ "-" ++ T.unpack (benchName benchmark))
      | otherwise = file

refuse :: Text -> IO a
refuse text = reportText ("weft-bench: " <> text) >> exitWith (ExitFailure 2)

-- | Run benchmarks one after another, and print each result as soon as it is final. The action also gets the result as
-- JSON: after the first rounds, and when it is final. If there is a limit, further rounds come last: what is left of
-- the time goes to the bounds in doubt of all benchmarks. If there are several benchmarks, a table of all bounds
-- follows. If an exception ends this, the results that were to get further rounds are printed, too.
measureEach :: Options -> [Benchmark] -> (Benchmark -> Outcome -> Builder -> IO ()) -> IO [(Benchmark, Outcome, Builder)]
measureEach options benchmarks done = do
  machine <- machineFacts
  begun <- getMonotonicTime
  open <- newIORef M.empty
  results <- newIORef M.empty
  let saved measured = do
        let benchmark = measuredBenchmark measured
            result = outcomeOf measured
            json = outcomeJson machine (settings (measuredEnv measured)) benchmark result
        (benchmark, result, json) <$ done benchmark result json
      printed measured = do
        T.putStrLn (renderOutcome (envPlan (measuredEnv measured)) (measuredBenchmark measured) (outcomeOf measured))
        hFlush stdout
      close (place, measured) = do
        printed measured
        modifyIORef' open (M.delete place)
        saved measured >>= modifyIORef' results . M.insert place
      closeSettled = readIORef open >>= mapM_ close . filter (null . inDoubt . snd) . M.toList
      announce next = when (several && isJust limit) $ do
        now <- getMonotonicTime
        reportText (furtherLine (benchName (measuredBenchmark next)) (subtract (now - begun) <$> limit))
      settle = do
        closeSettled
        readIORef open >>= furtherRound announce >>= \found -> case found of
          Just measured -> writeIORef open measured >> settle
          Nothing -> readIORef open >>= mapM_ close . M.toList
  withEnv options $ \plain -> flip onException (readIORef open >>= mapM_ printed) $ do
    forM_ (zip [1 ..] benchmarks) $ \(place, benchmark) -> do
      now <- getMonotonicTime
      let env = plain {envRts = envRts plain <|> Just (benchRts benchmark), envSchedule = scheduleOf begun place <$> limit}
      when several $
        reportText (partLine place (length benchmarks) (benchName benchmark) (now - begun) (timeLeft (now - begun) place))
      first <- firstRounds env selected benchmark
      modifyIORef' open (M.insert place first {measuredEnv = env {envSchedule = scheduleOf begun (length benchmarks) <$> limit}})
      if isNothing limit then settle else closeSettled
      readIORef open >>= mapM_ saved . M.lookup place
    settle
  outcomes <- M.elems <$> readIORef results
  ended <- getMonotonicTime
  when several $ do
    T.putStrLn ("all: " <> T.pack (show (length benchmarks)) <> " benchmarks in " <> duration (ended - begun) <> "\n")
    T.putStr (renderVerdicts [(b, o) | (b, o, _) <- outcomes])
  pure outcomes
  where
    several = optionTarget options == All
    selected name = null (optionOnly options) || name `elem` optionOnly options
    settings env = Settings (envPlan env) (fromMaybe [] (envRts env)) (envBackend env) (optionQuick options) []
    limit = (60 *) <$> (optionMinutes options <|> if several && optionQuick options then Just 9 else Nothing)
    -- A benchmark's share of the time is proportional to its cases. It may also use what earlier benchmarks have left
    -- over.
    weights = [fromIntegral (length cases + length (concatMap caseCounts cases)) | b <- benchmarks, let cases = plannedCases (plan options) b] :: [Double]
    share place = sum (take place weights) / max 1 (sum weights)
    scheduleOf begun place seconds = Schedule (begun + seconds * share place) (begun + seconds)
    -- With further rounds all of the time may be needed; without, what is left is estimated.
    timeLeft elapsed place
      | place <= 1 || (isJust limit && planMoreRounds (plan options) > 0) = subtract elapsed <$> limit
      | otherwise = Just (maybe id min (subtract elapsed <$> limit) (elapsed * (1 - share (place - 1)) / max 0.01 (share (place - 1))))

-- | @weft-bench figures@: measures what the documents show, and writes each benchmark's file as soon as the benchmark
-- has ended.
figuresCommand :: Subcommand
figuresCommand =
  subcommand "figures" $
    info
      ( figures
          <$> strOption (long "directory" <> metavar "DIR" <> value "doc/figures" <> showDefault <> help "Where the results are kept, as NAME.json")
          <*> option positive (long "minutes" <> metavar "N" <> value 24 <> showDefaultWith (show . (round :: Double -> Int)) <> help "Begin no round that would not end in time, and nothing at all after that time")
          <*> optional (option positive (long "rounds" <> metavar "N" <> help "Rounds of each benchmark, if there is time (3)"))
          <*> switch (long "quick" <> help "Short rounds: to see that everything runs, not for figures")
          <*> many (argument (eitherReader shown) (metavar "NAME..." <> help ("Only these benchmarks: " ++ T.unpack (T.intercalate ", " (map benchName documented)))))
      )
      ( progDesc "Measure what README.md and doc/measurements.md show, and save it for weft-bench readme"
          <> footer
            "Example: weft-bench figures && weft-bench readme. A result is written as soon as its benchmark has ended; that of a benchmark of which nothing could be \
            \measured stays as it was. Peers that are missing are named in the result, and in the documents. Only what the documents show is measured, \
            \and the bounds that follow from it."
      )
  where
    shown name = maybe (Left ("no document shows a figure of " ++ name)) Right (find ((== T.pack name) . benchName) documented)
    documented = [b | b <- registry, not (null (shownOf (benchName b)))]
    figures directory minutes rounds brief names = do
      createDirectoryIfMissing True directory
      let chosen = [withFigures (shownOf (benchName b)) b | b <- documented, null names || benchName b `elem` map benchName names]
          options = (noOptions All) {optionRounds = rounds, optionQuick = brief, optionMinutes = Just minutes, optionFigures = not brief}
      outcomes <- measureEach options chosen $ \benchmark result json -> do
        let file = directory </> T.unpack (benchName benchmark) ++ ".json"
        if null (outcomeRuns result)
          then reportText ("weft-bench: nothing of " <> benchName benchmark <> " could be measured: " <> T.pack file <> " stays as it was")
          else writeOut file json
      when (all (\(_, result, _) -> null (outcomeRuns result)) outcomes) $ exitWith (ExitFailure 1)
