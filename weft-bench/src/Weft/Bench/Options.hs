{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Arguments of @weft-bench@
--
-- The parser is built from the registry's names, so that a wrong name is reported as a bad argument.
module Weft.Bench.Options
  ( Target (..),
    Options (..),
    noOptions,
    optionsParser,
    furtherOptions,
    plan,
    planOf,
    defaultPlan,
  )
where

import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Options.Applicative
import Text.Read (readMaybe)
import Weft.Backend (backendNames)
import Weft.Bench.Select (Wanted, readWanted)
import Weft.Bench.Types
import Weft.Tools.Numbers

-- | What to run.
data Target = List | All | One Text
  deriving (Eq, Show)

data Options = Options
  { optionTarget :: !Target,
    optionJson :: !(Maybe FilePath),
    optionPlot :: !(Maybe FilePath),
    optionReport :: !(Maybe FilePath),
    optionRounds :: !(Maybe Int),
    optionDuration :: !(Maybe Double),
    optionQuick :: !Bool,
    optionCheck :: !Bool,
    -- | The chosen subjects; an empty list means all.
    optionOnly :: ![Text],
    optionBackend :: !(Maybe Text),
    -- | Replaces the default run-time system options.
    optionRts :: !(Maybe [String]),
    -- | The chosen cases; an empty list means all.
    optionCases :: ![Wanted],
    -- | The time limit for the whole command; 'Nothing' means no limit.
    optionMinutes :: !(Maybe Double),
    -- | Whether to measure figures for documents.
    optionFigures :: !Bool
  }
  deriving (Eq, Show)

-- | Default options for a target.
noOptions :: Target -> Options
noOptions target = Options target Nothing Nothing Nothing Nothing Nothing False False [] Nothing Nothing [] Nothing False

-- | The parser of all arguments, given the names of benchmarks and subjects.
optionsParser :: [Text] -> [Text] -> Parser Options
optionsParser benchmarks subjects = furtherOptions subjects <*> argument (eitherReader target) (metavar "NAME" <> help ("A benchmark: " ++ listing benchmarks ++ "; or list, or all"))
  where
    target word
      | word == "list" = Right List
      | word == "all" = Right All
      | T.pack word `elem` benchmarks = Right (One (T.pack word))
      | otherwise = Left ("no benchmark is called " ++ word ++ "; there are " ++ listing benchmarks)

-- | The parser of all arguments except the target, given the subjects' names.
furtherOptions :: [Text] -> Parser (Target -> Options)
furtherOptions subjects =
  (\json plot page rounds time brief check chosen backend rts parts limit target -> Options target json plot page rounds time brief check chosen backend rts parts limit False)
    <$> optional (strOption (long "json" <> metavar "FILE" <> help "Write the result as JSON"))
    <*> optional (strOption (long "plot" <> metavar "FILE" <> help "Write a chart of the main metric as SVG"))
    <*> optional (strOption (long "report" <> metavar "FILE" <> help "Write the result as an HTML page, as weft-bench report does"))
    <*> optional (option positive (long "rounds" <> metavar "N" <> help roundsHelp))
    <*> optional
      (option (noMoreThan longestTime positive) (long "duration" <> metavar "SECONDS" <> help "Measured time of a load (3; with --quick 0.7)"))
    <*> switch (long "quick" <> help "Short rounds of what the bounds need: all benchmarks in ten minutes, for their verdicts and not for their figures")
    <*> switch (long "check" <> help "Exit with status 3 when a bound is missed (one round alone misses none) or could not be measured")
    <*> option
      (eitherReader only)
      (long "only" <> metavar "SUBJECT,..." <> value [] <> help ("Measure only these: " ++ listing subjects))
    <*> optional (option (eitherReader known) (long "backend" <> metavar "NAME" <> help ("Back end of the subjects that run on Weft: " ++ listing backends)))
    <*> optional (words <$> strOption (long "rts" <> metavar "OPTIONS" <> help rtsHelp))
    <*> many (option (eitherReader (either (Left . T.unpack) Right . readWanted . T.pack)) (long "case" <> metavar "NAME=VALUE" <> help caseHelp))
    <*> optional (option positive (long "minutes" <> metavar "N" <> help minutesHelp))
  where
    backends = map T.pack backendNames
    known name
      | T.pack name `elem` backends = Right (T.pack name)
      | otherwise = Left ("no back end is called " ++ name ++ "; there are " ++ listing backends)
    only list = case filter (`notElem` subjects) wanted of
      [] -> Right wanted
      unknown : _ -> Left ("no subject is called " ++ T.unpack unknown ++ "; there are " ++ listing subjects)
      where
        wanted = T.splitOn "," (T.pack list)
    roundsHelp = "Rounds to run, exactly (5, and up to 10 more of what a bound needs that is within the noise; with --quick 1, and up to 8 more)"
    rtsHelp = "Options of GHC's run-time system for the Haskell subjects, such as -A16m"

    caseHelp = "Only the cases with this parameter, such as connections=64, as the table shows them; once for each parameter, several times for several values of one"
    minutesHelp = "Begin no round that would not end in time, and nothing at all after that time (for all with --quick: 9)"

listing :: [Text] -> String
listing = T.unpack . T.intercalate ", "

-- | The durations and repetitions that the options ask for.
plan :: Options -> Plan
plan options =
  chosen
    { planRounds = fromMaybe (planRounds chosen) (optionRounds options),
      planMoreRounds = maybe (planMoreRounds chosen) (const 0) (optionRounds options),
      planDuration = fromMaybe (planDuration chosen) (optionDuration options)
    }
  where
    chosen
      | optionQuick options = quick
      | optionFigures options = documents
      | otherwise = defaultPlan

-- | The plan of a saved result, given its settings, as far as bounds depend on it.
planOf :: [(Text, Text)] -> Plan
planOf settings = chosen {planDuration = fromMaybe (planDuration chosen) (readMaybe . T.unpack =<< lookup "duration_s" settings)}
  where
    chosen = if lookup "quick" settings == Just "yes" then quick else documents

-- | The default: five rounds of three seconds.
defaultPlan :: Plan
defaultPlan =
  Plan
    { planRounds = 5,
      planMoreRounds = 10,
      planWarmup = 1,
      planDuration = 3,
      planTrace = 1,
      planNeededOnly = False,
      planIdle = 16000,
      planQuiet = 1000,
      planSettle = 2,
      planWindow = 10,
      planTrips = 20000,
      planTripsBefore = 2000,
      planDelays = [10000, 100000, 1000000, 10000000],
      planDelaysBound = 1000000,
      planTimeouts = 1000000,
      planPushes = 10000000,
      planPending = 1000000,
      planDelaysTimed = 1000000,
      planStarts = 40,
      planFileMiB = 1024,
      planReads = 400000,
      planHybrid = 10000000,
      planSwitches = 10000000,
      planIdleTcp = 1000000,
      planUploadMiB = 100
    }

-- | The plan for figures in documents: the sizes of 'defaultPlan', with fewer and shorter rounds.
documents :: Plan
documents =
  defaultPlan
    { planRounds = 3,
      planMoreRounds = 0,
      planWarmup = 0.5,
      planDuration = 2,
      planDelaysTimed = 200000,
      planStarts = 20,
      planReads = 200000
    }

-- | The plan of @--quick@: all benchmarks in less than ten minutes on two cores, and only what bounds need. The sizes
-- are chosen such that the effect that a bound limits is larger than the cost of starting a program.
quick :: Plan
quick =
  Plan
    { planRounds = 1,
      planMoreRounds = 8,
      planWarmup = 0.2,
      planDuration = 0.7,
      planTrace = 0.3,
      planNeededOnly = True,
      planIdle = 4000,
      planQuiet = 100,
      planSettle = 1,
      planWindow = 2,
      planTrips = 2000,
      planTripsBefore = 200,
      planDelays = [1000, 10000, 100000],
      planDelaysBound = 100000,
      planTimeouts = 200000,
      planPushes = 1000000,
      planPending = 1000000,
      planDelaysTimed = 20000,
      planStarts = 10,
      planFileMiB = 64,
      planReads = 60000,
      planHybrid = 1000000,
      planSwitches = 5000000,
      planIdleTcp = 100000,
      planUploadMiB = 20
    }
