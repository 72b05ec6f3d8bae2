{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft-bench run@
--
-- Compares a user's program that is linked with @weft-relink@ with itself under @WEFT_DISABLE@: the same executable on
-- Weft and on GHC's own I/O manager, in interleaved rounds. Exit status: 0 if it ran, 1 if it failed, 2 for a program
-- that cannot be measured this way.
module Weft.Bench.Relinked
  ( runCommand,

    -- * The verdict
    verdict,
  )
where

import Control.Exception (try)
import Control.Monad (forM_, when)
import qualified Data.ByteString as B
import qualified Data.Map.Strict as M
import Data.Maybe (mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import qualified Data.Text.IO as T
import GHC.IO.Exception (IOException (ioe_description))
import Options.Applicative hiding (columns)
import System.Directory (doesFileExist, makeAbsolute)
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (takeFileName, (</>))
import System.IO (hFlush, stdout)
import Weft.Bench.Bounds (on)
import Weft.Bench.Change
import Weft.Bench.Child (locate)
import Weft.Bench.Json
import Weft.Bench.Options
import Weft.Bench.Runner
import Weft.Bench.Setup
import Weft.Bench.Stats
import Weft.Bench.Table (renderOutcome)
import Weft.Bench.Trace (parseCounts, traceTool)
import Weft.Bench.Types
import Weft.Bench.Usage
import Weft.Tools.Binary (ServedBy (..), servedBy)
import Weft.Tools.Numbers (longestTime, noMoreThan, positive, renderNumber)
import Weft.Tools.Output
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Subcommand (Subcommand, subcommand)
import Weft.Tools.Surroundings (findProgram)
import Weft.WholeFile (programLimit, readWholeFile)

data Arguments = Arguments
  { argRounds :: !Int,
    argTimeout :: !Double,
    argJson :: !(Maybe FilePath),
    argProgram :: !FilePath,
    argArguments :: ![String]
  }

-- | The subcommand of @weft-bench@.
runCommand :: Subcommand
runCommand =
  subcommand "run" $
    info
      (measureProgram <$> parser)
      ( noIntersperse
          <> progDesc "Measure a program that was linked with weft-relink, on Weft and on GHC's own I/O manager"
          <> footer
            "Example: weft-bench run --rounds 9 -- ./my-program --size 100 +RTS -N2. The program must end by itself. It runs \
            \as it is and with WEFT_DISABLE=1, in turns; its output is thrown away. System calls are counted by \
            \strace, if that is there, in a run of their own. Ctrl-C ends the program too. Exit status: 0 it ran, 1 it failed, \
            \2 it cannot be measured."
      )
  where
    parser =
      Arguments
        <$> option positive (long "rounds" <> metavar "N" <> value 7 <> showDefault <> help "Number of rounds, with two runs each; with fewer than five there is no verdict")
        <*> option (noMoreThan longestTime positive) (long "timeout" <> metavar "SECONDS" <> value 300 <> showDefault <> help "Time limit of a run")
        <*> optional (strOption (long "json" <> metavar "FILE" <> help "Write the result as JSON"))
        <*> strArgument (metavar "PROGRAM" <> help "A program that was linked with weft-relink and -threaded")
        <*> many (strArgument (metavar "ARGS..." <> help "Its arguments, +RTS options too"))

measureProgram :: Arguments -> IO ()
measureProgram arguments = do
  path <- find (argProgram arguments) >>= maybe (refuse (T.pack (argProgram arguments) <> ": no such program")) pure
  served <- try (readWholeFile programLimit path) >>= either (\e -> refuse (T.pack path <> ": " <> T.pack (ioe_description e))) (pure . servedBy)
  case served of
    ByRelink _ -> pure ()
    ByRelinkUnthreaded _ ->
      refuse (T.pack path <> " was linked without -threaded, so GHC's own I/O manager serves it in any case. Add ghc-options: -threaded (doc/adopting.md)")
    _ ->
      refuse $
        T.pack path
          <> " was not linked with weft-relink, so there is nothing to compare. Add weft-relink to the build-depends of the \
             \executable and build it again; `weft doctor --binary PROGRAM` says whether it took effect (doc/adopting.md)"
  checkOutputs "weft-bench run" (maybe [] pure (argJson arguments))
  machine <- machineFacts
  failed <- withEnv options $ \env -> do
    outcome <- runBenchmark env (const True) (benchmark arguments path)
    T.putStrLn (renderOutcome (envPlan env) (benchmark arguments path) outcome)
    let broken = outcomeFailures outcome
    when (null broken) $ T.putStr (verdict (outcomeRuns outcome))
    hFlush stdout
    forM_ (argJson arguments) $ \file ->
      writeOut file (outcomeJson machine (Settings (envPlan env) [] Nothing False [("program", Word (commandLine arguments path))]) (benchmark arguments path) outcome)
    pure (not (null broken) || null (outcomeRuns outcome))
  when failed $ exitWith (ExitFailure 1)
  where
    options = (noOptions All) {optionRounds = Just (argRounds arguments)}
    find name = do
      here <- doesFileExist name
      if here then Just <$> makeAbsolute name else findProgram name
    refuse message = reportText ("weft-bench run: " <> message) >> exitWith (ExitFailure 2)

onWeft, onGhc :: Text
onWeft = "weft-relink"
onGhc = "ghc"

benchmark :: Arguments -> FilePath -> Benchmark
benchmark arguments path =
  Benchmark
    { benchName = "run",
      benchTitle = commandLine arguments path <> ", on Weft and with WEFT_DISABLE",
      benchCases = const [oneCase subject disable | (subject, disable) <- [(onWeft, False), (onGhc, True)]],
      benchTools = [],
      benchRts = [],
      benchIgnores = ["--rts"],
      benchBounds = const [],
      benchColumns = map fst measures,
      benchPlotted = id
    }
  where
    oneCase name disable =
      Case
        { caseSubject = Subject name path GhcProgram,
          caseParams = [],
          caseGroup = [],
          caseMeasure = \env -> timed env name disable,
          caseCounts = [Counting traceTool "system_calls" (\env -> traced env disable)]
        }
    timed env name disable = do
      usage <- finish env disable path (argArguments arguments)
      let most = [("max_rss_mb", usagePeak usage / 1e6) | usagePeak usage > 0]
      when (null most) $ reportText (name <> ": the program ended before its memory could be read")
      pure [([], M.fromList ([("wall_s", usageWall usage), ("cpu_s", usageCpu usage)] <> most))]
    traced env disable = do
      strace <- locate env traceTool >>= maybe (failWith "missing: strace") pure
      let output = envScratch env </> "run.counts"
      _ <- finish env disable strace (["-c", "-f", "-o", output, path] <> argArguments arguments)
      counts <- parseCounts <$> T.readFile output
      pure [([], M.singleton "system_calls" (fromIntegral (sum counts)))]
    finish env disable program words' = do
      inherited <- getEnvironment
      let environment = [("WEFT_DISABLE", "1") | disable] <> filter ((/= "WEFT_DISABLE") . fst) inherited
          errors = envScratch env </> "run.err"
      (ended, usage) <- runMeasured (argTimeout arguments) environment errors program words'
      case ended of
        Exited 0 -> pure usage
        Exited code -> failWith . (("ended with status " <> T.pack (show code)) <>) =<< said errors
        Signalled number -> failWith . (("was killed by signal " <> T.pack (show number)) <>) =<< said errors
        OutOfTime -> failWith ("did not end within " <> T.pack (show (argTimeout arguments)) <> " s (--timeout)")
    said errors = do
      text <- T.decodeUtf8With T.lenientDecode <$> B.readFile errors
      -- The reason is in the first line, as of GHC's run-time system, which prints all its options after it, or in the
      -- last ones.
      pure $ case filter (not . (":" `T.isSuffixOf`)) (filter (not . T.null) (map T.strip (T.lines text))) of
        [] -> ""
        begin : more
          | length more > 2 -> ": " <> T.unwords (begin : "..." : drop (length more - 2) more)
          | otherwise -> ": " <> T.unwords (begin : more)

-- | The program, without its folder, and its arguments.
commandLine :: Arguments -> FilePath -> Text
commandLine arguments path = T.unwords (map T.pack (takeFileName path : argArguments arguments))

-- | The metrics, and their names in sentences.
measures :: [(Text, Text)]
measures = [("wall_s", "wall-clock time"), ("cpu_s", "CPU time"), ("max_rss_mb", "peak memory"), ("system_calls", "system calls")]

-- | A difference of less time than this has no influence on the verdict: that much may differ between two starts of a
-- program, and a ratio of such times says nothing about waiting. A program that runs for less has no verdict.
leastSeconds :: Double
leastSeconds = 0.02

-- | What the rounds say of a metric: the change, whether the difference is large enough to matter, and the ratios of
-- the rounds.
data Compared = Compared !Change !Bool !Summary

-- | Compare a metric. System calls are counted in a single run: their ratio is given as it is, and no verdict needs it.
compared :: [Run] -> Text -> Maybe Compared
compared runs metric = do
  ratios <- summarize [a / b | (a, b) <- rounds, not (isNaN (a / b))]
  change <- if metric == "system_calls" then Just (exactly (summaryMedian ratios)) else changeOf rounds
  apart <- median [abs (a - b) | (a, b) <- rounds]
  -- So little time says nothing, however often it is measured.
  let matters = metric `notElem` ["wall_s", "cpu_s"] || apart >= leastSeconds
  pure (Compared (if matters then change else Same) matters ratios)
  where
    rounds = M.elems (M.intersectionWith (,) (of' onWeft) (of' onGhc))
    of' subject = figureRounds runs (on subject [] metric)
    exactly ratio
      | ratio < 0.98 = Less ratio
      | ratio > 1.02 = More ratio
      | otherwise = Same

-- | The result in words. Wall-clock and CPU time decide: one of them has changed, and the other one does not
-- contradict.
verdict :: [Run] -> Text
verdict runs = T.unlines (("verdict: " <> summary) : [name <> ": " <> sentence metric found <> (if metric == "system_calls" then ", counted once" else "") | (metric, name, found) <- all'])
  where
    all' = [(metric, name, found) | (metric, name) <- measures, Just found <- [compared runs metric]]
    timing = [found | (metric, _, found) <- all', metric `elem` ["wall_s", "cpu_s"]]
    summary
      | null timing = "nothing could be compared"
      | any less timing && any more timing = "Weft saves one kind of time and costs another; see below"
      | any less timing, all ((<= 1.02) . middle) timing = "this program is better off on Weft"
      | any more timing, all ((>= 0.98) . middle) timing = "this program is better off on GHC's own manager"
      | any less timing || any more timing = "none: one kind of time has changed, and the other one seems to go the other way; see below"
      | briefly = "this program runs too briefly for one: less than 20 ms"
      | any tooFew timing = "too few rounds to say: --rounds " <> T.pack (show fewestRounds) <> " is the least, and more show smaller differences"
      | otherwise = "no difference in wall-clock or CPU time that stands out of the noise"
    briefly = not (null walls) && all (< leastSeconds) walls
    walls = [wall | r <- runs, Just wall <- [median (mapMaybe (M.lookup "wall_s") (M.elems (runRounds r)))]]
    less (Compared change _ _) = case change of Less _ -> True; _ -> False
    more (Compared change _ _) = case change of More _ -> True; _ -> False
    tooFew (Compared change _ _) = change == TooFew
    middle (Compared _ matters ratios) = if matters then summaryMedian ratios else 1
    sentence metric (Compared change _ ratios) = case change of
      Less r -> renderNumber r <> " of that on GHC's manager" <> times (1 / r) " times less"
      More r -> renderNumber r <> " of that on GHC's manager" <> times r " times more"
      Same -> "no difference that stands out of the noise" <> least metric <> ": " <> range ratios
      TooFew -> "too few rounds to say: " <> range ratios
    least metric = if metric `elem` ["wall_s", "cpu_s"] then ", 2 % or 20 ms" else ", 2 %"
    times r what = if r >= 1.5 then " (" <> renderNumber r <> what <> ")" else ""
    range s
      | summaryMin s == summaryMax s = renderNumber (summaryMedian s) <> " of that on GHC's manager"
      | otherwise = renderNumber (summaryMedian s) <> " of that on GHC's manager (" <> renderNumber (summaryMin s) <> ".." <> renderNumber (summaryMax s) <> ")"
