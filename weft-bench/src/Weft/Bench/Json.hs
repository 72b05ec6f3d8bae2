{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Results as JSON
--
-- Pure. The result format of all benchmarks: the machine; the runs, with the median, smallest and largest round of each
-- metric, and every round; and the bounds. Fields keep their order and every run is on a line of
-- its own, so that two result files can be compared by eye.
module Weft.Bench.Json
  ( Machine (..),
    Settings (..),
    outcomeJson,
    arrayJson,
  )
where

import Data.Aeson.Encoding (Encoding, Series, fromEncoding, list, null_, pair, pairs)
import qualified Data.Aeson.Encoding as E
import qualified Data.Aeson.Key as K
import Data.ByteString.Builder (Builder)
import Data.List (intersperse)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Numeric (showEFloat)
import Weft.Bench.Bounds
import Weft.Bench.Peers
import Weft.Bench.Runner
import Weft.Bench.Stats
import Weft.Bench.Types

-- | Properties of the machine on which figures depend.
data Machine = Machine
  { machineCores :: !Int,
    machineKernel :: !Text,
    machineGhc :: !Text,
    machineWeft :: !Text,
    -- | The processor model, and the date (UTC).
    machineCpu :: !(Maybe Text),
    machineDate :: !(Maybe Text),
    -- | The commit from which the measured programs were built, if known, with a mark if the working tree has changes.
    machineCommit :: !(Maybe Text)
  }
  deriving (Eq, Show)

-- | The settings of the command line.
data Settings = Settings
  { settingsPlan :: !Plan,
    settingsRts :: ![String],
    settingsBackend :: !(Maybe Text),
    settingsQuick :: !Bool,
    -- | Settings that only one command has.
    settingsOwn :: !Params
  }

-- | One benchmark's result.
outcomeJson :: Machine -> Settings -> Benchmark -> Outcome -> Builder
outcomeJson machine settings benchmark outcome =
  object
    [ ("bench", fromEncoding (E.text (benchName benchmark))),
      ("machine", fromEncoding (machineEncoding machine)),
      ("settings", fromEncoding (settingsEncoding settings benchmark)),
      ("runs", lined (map (runEncoding (benchName benchmark)) (outcomeRuns outcome))),
      ("bounds", lined (map boundEncoding (outcomeBounds outcome))),
      ("missing", lined (map missingEncoding (outcomeMissing outcome))),
      ("failed", lined (map failureEncoding (outcomeFailures outcome)))
    ]
  where
    object fields = "{\n" <> mconcat (intersperse ",\n" (map entry fields)) <> "\n}\n"
    entry (name, value) = "  " <> fromEncoding (E.text name) <> ": " <> value
    lined [] = "[]"
    lined values = "[\n    " <> mconcat (intersperse ",\n    " (map fromEncoding values)) <> "\n  ]"

-- | Several results as one array.
arrayJson :: [Builder] -> Builder
arrayJson results = "[\n" <> mconcat (intersperse ",\n" results) <> "]\n"

machineEncoding :: Machine -> Encoding
machineEncoding machine =
  pairs $
    pair "cores" (E.int (machineCores machine))
      <> textPair "kernel" (machineKernel machine)
      <> textPair "ghc" (machineGhc machine)
      <> textPair "weft" (machineWeft machine)
      <> maybe mempty (textPair "cpu") (machineCpu machine)
      <> maybe mempty (textPair "date") (machineDate machine)
      <> maybe mempty (textPair "commit") (machineCommit machine)

settingsEncoding :: Settings -> Benchmark -> Encoding
settingsEncoding settings benchmark =
  pairs $
    pair "rounds" (E.int (planRounds plan))
      <> pair "duration_s" (E.double (planDuration plan))
      <> pair "warmup_s" (E.double (planWarmup plan))
      <> pair "quick" (E.bool (settingsQuick settings))
      -- A benchmark that refuses them has no subject that gets them, or names them in the subject's settings.
      <> (if "--rts" `elem` benchIgnores benchmark then mempty else pair "rts" (list E.string (settingsRts settings)))
      <> maybe mempty (textPair "backend") (settingsBackend settings)
      <> foldMap parameter (settingsOwn settings)
  where
    plan = settingsPlan settings

runEncoding :: Text -> Run -> Encoding
runEncoding bench run =
  pairs $
    textPair "subject" (runSubject run)
      <> pair "params" (pairs (foldMap parameter (runParams run)))
      <> maybe mempty (textPair "settings") (settingsOf bench (runSubject run))
      <> pair "metrics" (each summaryMedian)
      <> pair "min" (each summaryMin)
      <> pair "max" (each summaryMax)
      <> pair "rounds" (list numbers (M.elems (runRounds run)))
  where
    summaries = metricSummaries run
    each part = numbers (M.map part summaries)
    numbers = pairs . M.foldMapWithKey (\name value -> pair (K.fromText name) (number value))

parameter :: (Text, ParamValue) -> Series
parameter (name, value) = case value of
  Count n -> pair (K.fromText name) (E.int n)
  Word w -> textPair name w

boundEncoding :: Judged -> Encoding
boundEncoding judged =
  pairs $
    textPair "name" (boundName (judgedBound judged))
      <> pair "figure" (maybe null_ (number . summaryMedian) figure)
      <> pair "limit" (E.double (boundLimit (judgedBound judged)))
      <> pair "holds" (maybe null_ E.bool (holds judged))
      <> maybe mempty range figure
      <> maybe (textPair "reason" (judgedReason judged)) (const mempty) (holds judged)
  where
    figure = judgedFigure judged
    range s = pair "min" (number (summaryMin s)) <> pair "max" (number (summaryMax s))

missingEncoding :: Missing -> Encoding
missingEncoding missing = pairs (textPair "subject" (missingName missing) <> textPair "why" (missingWhy missing))

failureEncoding :: Failure -> Encoding
failureEncoding failure =
  pairs $
    textPair "subject" (failureSubject failure)
      <> textPair "params" (T.unwords [name <> "=" <> paramText value | (name, value) <- failureParams failure])
      <> textPair "message" (failureMessage failure)

-- | A figure with six digits; the others would be noise.
number :: Double -> Encoding
number value
  | isNaN value || isInfinite value = null_
  | otherwise = E.double (read (showEFloat (Just 5) value ""))

textPair :: Text -> Text -> Series
textPair name value = pair (K.fromText name) (E.text value)
