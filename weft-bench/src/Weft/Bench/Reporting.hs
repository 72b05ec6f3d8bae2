{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft-bench report@, @compare@ and @readme@
--
-- Subcommands that work on saved results. Exit status: 0; 2 for files that are not results, and for results that have
-- no run in common; 3 with @--check@ if something became worse.
module Weft.Bench.Reporting
  ( reportingCommands,
    writeReport,
  )
where

import Control.Exception (try)
import Control.Monad (filterM, forM, forM_, unless, when)
import Data.ByteString.Builder (Builder, toLazyByteString)
import Data.List (find, isPrefixOf, isSuffixOf, nub, sort)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.IO as T
import GHC.IO.Exception (IOException (ioe_description, ioe_filename))
import Options.Applicative
import System.Directory (doesDirectoryExist, doesFileExist, listDirectory)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (makeRelative, takeDirectory, (</>))
import Weft.Bench.Compare
import Weft.Bench.Options (planOf)
import Weft.Bench.Readme
import Weft.Bench.Report
import Weft.Bench.Saved
import Weft.Bench.Types (Benchmark (..))
import Weft.Bench.Url (urlLoad)
import Weft.Tools.Output (sameFile, writeText)
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Subcommand (Subcommand, subcommand)
import Weft.WholeFile (readTextFile)

-- | The three subcommands of @weft-bench@, given the list of benchmarks.
reportingCommands :: [Benchmark] -> [Subcommand]
reportingCommands registry = [reportCommand (registry <> [urlLoad]), compareCommand, readmeCommand registry]

reportCommand :: [Benchmark] -> Subcommand
reportCommand registry =
  subcommand "report" $
    info
      (report <$> strOption (long "output" <> short 'o' <> metavar "FILE" <> value "weft-report.html" <> showDefault <> help "The page; - is standard output") <*> files)
      ( progDesc "Make a self-contained HTML page from saved results"
          <> footer "Example: weft-bench pong --json pong.json && weft-bench report pong.json -o report.html. The page needs no other file, no script and no network."
      )
  where
    files = some (strArgument (metavar "FILE.json..." <> help "What weft-bench --json wrote"))
    report output names = do
      overwritten <- if output == "-" then pure [] else filterM (sameFile output) names
      forM_ overwritten $ \name -> refuse (T.pack name <> " would be overwritten: name another file with -o")
      results <- loaded names
      let page = renderReport (described registry) (inOrder registry results)
      if output == "-" then T.putStr page else writing output page >> T.putStrLn (T.pack output)

-- | Write the page of results that were just measured, given the benchmarks and their results as JSON.
writeReport :: [Benchmark] -> FilePath -> [Builder] -> IO ()
writeReport benchmarks file results =
  either refuse (writing file . renderReport (described benchmarks) . concat) (mapM (decodeSaved . toLazyByteString) results)

described :: [Benchmark] -> Text -> Maybe Described
described benchmarks name = case filter ((== name) . benchName) benchmarks of
  b : _ -> Just (Described (benchTitle b) (benchColumns b))
  [] -> Nothing

-- | Sort results in the order of the registry, unknown ones last.
inOrder :: [Benchmark] -> [Saved] -> [Saved]
inOrder registry results =
  [r | b <- registry, r <- results, savedBench r == benchName b] <> [r | r <- results, savedBench r `notElem` map benchName registry]

compareCommand :: Subcommand
compareCommand =
  subcommand "compare" $
    info
      (comparing <$> switch (long "check" <> help "Exit with status 3 when something became worse: a figure, a bound that is missed now, or a run that is missing") <*> file "BEFORE.json" <*> file "AFTER.json")
      ( progDesc "Compare two saved results, and list what changed beyond noise"
          <> footer
            "Example: weft-bench compare before.json after.json. A figure has changed when all rounds of one result lie on one side of all rounds of \
            \the other and the medians differ by more than 3 %; with three rounds, from 10 % on, and with fewer, from 25 % on. Settings that differ are listed; if the measured times differ, totals are not \
            \compared. Exit status 2: no run is in both results."
      )
  where
    file name = strArgument (metavar name)
    comparing check a b = do
      before <- loaded [a]
      after <- loaded [b]
      T.putStr (renderComparison before after)
      unless (comparable before after) $ do
        reportText "weft-bench: nothing could be compared: no run of a subject with equal parameters is in both results"
        exitWith (ExitFailure 2)
      when (check && becameWorse before after) $ exitWith (ExitFailure 3)

readmeCommand :: [Benchmark] -> Subcommand
readmeCommand registry =
  subcommand "readme" $
    info
      ( readme
          <$> switch (long "check" <> help "Write nothing; exit with status 3 when something would change")
          <*> strOption (long "figures" <> metavar "DIR" <> value "doc/figures" <> showDefault <> help "Where the results are, and the charts go")
          <*> (some (strArgument (metavar "DOCUMENT..." <> help "Documents with the markers (README.md and doc/measurements.md)")) <|> pure ["README.md", "doc/measurements.md"])
      )
      ( progDesc "Write the tables and charts of documents from saved results, judged by the bounds of this program"
          <> footer
            "Example: weft-bench figures && weft-bench readme. The table goes between the lines <!-- figures: begin --> and \
            \<!-- figures: end -->, a short one between <!-- summary: begin --> and <!-- summary: end -->, the charts beside the results. A document with the whole table also \
            \compares with the results of other compilers, in the folders ghc-VERSION beside the results."
      )
  where
    readme check directory documents = do
      results <- keptIn directory
      when (null results) $ refuse (T.pack directory <> " has no results")
      folders <- filterM (doesDirectoryExist . (directory </>)) . filter ("ghc-" `isPrefixOf`) =<< orRefuse (listDirectory directory)
      others <- concat <$> mapM (keptIn . (directory </>)) (sort folders)
      texts <- forM documents $ \document -> do
        text <- orRefuse (reading document)
        let folder = T.pack (makeRelative (takeDirectory document) directory)
            section extent = figuresSection extent folder results <> (if extent == AllRows then compilersSection results others else "")
            places = [new | extent <- [minBound ..], Just new <- [insertBetween extent (section extent) text]]
        case places of
          [new] -> pure (document, new)
          _ -> refuse (T.pack document <> " has no lines <!-- figures: begin --> and <!-- figures: end -->, nor those of a summary")
      changed <- filterM differs (texts <> [(directory </> name, chart) | (name, chart) <- readmeCharts results])
      forM_ changed $ \(file, text) -> do
        unless check (writing file text)
        T.putStrLn (T.pack file)
      when (check && not (null changed)) $ exitWith (ExitFailure 3)
    -- The results of a folder, in the order of the registry.
    keptIn folder = do
      names <- sort . filter (".json" `isSuffixOf`) <$> orRefuse (listDirectory folder)
      each <- mapM (\name -> (,) name <$> loaded [folder </> name]) names
      forM_ (doubles each) $ \(bench, files) -> refuse (bench <> " is in several files of " <> T.pack folder <> ": " <> T.intercalate ", " (map T.pack files))
      pure (map today (inOrder registry (concatMap snd each)))
    -- Bounds may have changed since.
    today result = maybe result (\b -> rejudged (benchBounds b (planOf (savedSettings result))) result) (find ((== savedBench result) . benchName) registry)
    doubles each = [(bench, files) | bench <- nub (map savedBench (concatMap snd each)), let files = [file | (file, kepts) <- each, k <- kepts, savedBench k == bench], length files > 1]
    differs (file, text) = do
      there <- doesFileExist file
      if there then (/= text) <$> orRefuse (reading file) else pure True

loaded :: [FilePath] -> IO [Saved]
loaded names = orRefuse (readAll names) >>= either refuse pure

orRefuse :: IO a -> IO a
orRefuse work = try work >>= either (\e -> refuse (T.pack (maybe "" (<> ": ") (ioe_filename e) <> ioe_description e))) pure

refuse :: Text -> IO a
refuse message = reportText ("weft-bench: " <> message) >> exitWith (ExitFailure 2)

reading :: FilePath -> IO Text
reading file = readTextFile file >>= either (const (ioError (userError (file <> " is not UTF-8")))) pure . T.decodeUtf8'

-- | The earlier file stays until the new one is whole.
writing :: FilePath -> Text -> IO ()
writing file = orRefuse . writeText file
