{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Saved results
--
-- Reads the output of @weft-bench ... --json@, one result or several, back into runs. Reports, comparisons and tables
-- are generated from such files alone. Missing parts are left out; if a file is not a result, the error has its name.
module Weft.Bench.Saved
  ( Saved (..),
    SavedBound (..),
    SavedFailure (..),
    readAll,
    decodeSaved,
    rejudged,
    savedMetric,
    machineText,
    versionNumbers,
    rtsText,
    spreadOf,
  )
where

import Data.Aeson
import Data.Aeson.Key (toText)
import qualified Data.Aeson.KeyMap as KM
import Data.Aeson.Types (Parser, parseEither)
import qualified Data.ByteString.Lazy as L
import Data.Foldable (toList)
import Data.List (nub, sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe, isJust)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bounds (Judged (..), holds, judge)
import Weft.Bench.Stats
import Weft.Bench.Types
import Weft.WholeFile (readWholeFile)

-- | One benchmark's result.
data Saved = Saved
  { savedBench :: !Text,
    -- | Properties of the machine by name.
    savedMachine :: ![(Text, Text)],
    savedSettings :: ![(Text, Text)],
    savedRuns :: ![Run],
    -- | For each subject with settings of its own, these.
    savedSubjects :: ![(Text, Text)],
    savedBounds :: ![SavedBound],
    -- | Peers that could not run, and measurements that failed.
    savedMissing :: ![Text],
    savedFailed :: ![Text],
    savedFailures :: ![SavedFailure],
    -- | The whole result as it was read.
    savedRaw :: !Value
  }

-- | A bound and its verdict; 'Nothing' if there is no verdict.
data SavedBound = SavedBound
  { savedBoundName :: !Text,
    savedFigure :: !(Maybe Double),
    savedLimit :: !Double,
    savedHolds :: !(Maybe Bool),
    -- | Why there is no verdict.
    savedReason :: !Text
  }

-- | A measurement that failed: its subject, its parameters (@name=value@), and why.
data SavedFailure = SavedFailure
  { savedFailureSubject :: !Text,
    savedFailureParams :: ![Text],
    savedFailureMessage :: !Text
  }

-- | The results of a file of up to 256 MiB.
readKept :: FilePath -> IO (Either Text [Saved])
readKept file = either (Left . ((T.pack file <> ": ") <>)) Right . decodeSaved . L.fromStrict <$> readWholeFile resultLimit file
  where
    resultLimit = 268435456

-- | The results of several files, or an error for the first file without results.
readAll :: [FilePath] -> IO (Either Text [Saved])
readAll files = fmap concat . sequence <$> mapM readKept files

-- | The results in a document.
decodeSaved :: L.ByteString -> Either Text [Saved]
decodeSaved document = either (Left . ("not a result of weft-bench: " <>) . T.pack) Right $ do
  value <- eitherDecode document
  case value of
    Array several -> mapM (parseEither kept) (toList several)
    one -> pure <$> parseEither kept one

kept :: Value -> Parser Saved
kept value = flip (withObject "a result of weft-bench") value $ \o ->
  Saved
    <$> o .: "bench"
    <*> (facts <$> o .:? "machine" .!= KM.empty)
    <*> (facts <$> o .:? "settings" .!= KM.empty)
    <*> (runs o >>= mapM run)
    <*> (nub . concat <$> (runs o >>= mapM subjectSettings))
    <*> (o .:? "bounds" .!= [] >>= mapM bound)
    <*> (map missing <$> o .:? "missing" .!= [])
    <*> (map failed <$> o .:? "failed" .!= [])
    <*> (map failure <$> o .:? "failed" .!= [])
    <*> pure value

runs :: Object -> Parser [Object]
runs o = o .: "runs"

run :: Object -> Parser Run
run o = do
  params <- o .: "params"
  metrics <- o .: "metrics"
  rounds <- o .:? "rounds" .!= [metrics]
  Run <$> o .: "subject"
    <*> pure [(toText name, parameter v) | (name, v) <- KM.toList params]
    <*> pure (M.fromList (zip [0 ..] (map numbers rounds)))
  where
    parameter v = case v of
      Number n | fromIntegral whole == n -> Count whole where whole = truncate n
      other -> Word (plain other)
    numbers :: Object -> Metrics
    numbers m = M.fromList [(toText name, realToFrac n) | (name, Number n) <- KM.toList m]

subjectSettings :: Object -> Parser [(Text, Text)]
subjectSettings o = do
  subject <- o .: "subject"
  settings <- o .:? "settings"
  pure [(subject, s) | Just s <- [settings]]

bound :: Object -> Parser SavedBound
bound o = SavedBound <$> o .: "name" <*> o .:? "figure" <*> o .: "limit" <*> o .:? "holds" <*> o .:? "reason" .!= "not measured"

facts :: Object -> [(Text, Text)]
facts o = [(toText name, plain v) | (name, v) <- sortOn fst (KM.toList o), v /= Null]

plain :: Value -> Text
plain v = case v of
  String s -> s
  Number n | fromIntegral whole == n -> T.pack (show whole) where whole = truncate n :: Integer
  Number n -> T.pack (show (realToFrac n :: Double))
  Bool b -> if b then "yes" else "no"
  Array several -> T.unwords (map plain (toList several))
  Object o -> T.intercalate ", " [name <> " " <> text | (name, text) <- facts o]
  Null -> ""

-- | A missing peer: its name, or an object with the reason.
missing :: Value -> Text
missing v = case v of
  Object o | Just (String subject) <- KM.lookup "subject" o -> subject <> maybe "" ((": " <>) . plain) (KM.lookup "why" o)
  other -> plain other

failed :: Object -> Text
failed o = T.unwords [plain v | name <- ["subject", "params", "message"], Just v <- [KM.lookup name o]]

failure :: Object -> SavedFailure
failure o = SavedFailure (word "subject") (T.words (word "params")) (word "message")
  where
    word name = maybe "" plain (KM.lookup name o)

-- | The result with verdicts on these bounds, in place of those that it was saved with. As when it was measured, runs
-- that have failed count for nothing. A bound that has no figure is left out unless the result was asked for it, and so
-- has it already.
rejudged :: [Bound] -> Saved -> Saved
rejudged bounds result = result {savedBounds = filter wanted (map (saved . judge (const True) whole) bounds)}
  where
    wanted b = isJust (savedFigure b) || savedBoundName b `elem` map savedBoundName (savedBounds result)
    saved judged = SavedBound (boundName (judgedBound judged)) (summaryMedian <$> judgedFigure judged) (boundLimit (judgedBound judged)) (holds judged) (judgedReason judged)
    whole = [r | r <- savedRuns result, not (any (concerns r) (savedFailures result))]
    concerns r f = savedFailureSubject f == runSubject r && all (`elem` [name <> "=" <> paramText value | (name, value) <- runParams r]) (savedFailureParams f)

-- | A metric of the subject's run with exactly these parameters.
savedMetric :: Saved -> Text -> Params -> Text -> Maybe Summary
savedMetric result subject params metric = summarize (M.elems (figureRounds (savedRuns result) (Metric subject params metric)))

-- | The machine in a line.
machineText :: Saved -> Text
machineText result = T.intercalate ", " [spoken name value | (name, value) <- savedMachine result]
  where
    spoken name value = case name of
      "cores" -> value <> " cores"
      "kernel" -> "Linux " <> value
      "ghc" -> "GHC " <> value
      "weft" -> "Weft " <> value
      "date" -> value
      "cpu" -> value
      _ -> name <> " " <> value

-- | Version numbers are compared numerically: 9.10 comes after 9.6.
versionNumbers :: Text -> [Int]
versionNumbers version = [n | part <- T.splitOn "." version, (n, "") <- reads (T.unpack part)]

-- | Half the distance from the smallest to the largest round, in per cent of the median.
spreadOf :: Summary -> Int
spreadOf s
  | summaryMedian s == 0 = 0
  | otherwise = fromMaybe 0 (safe (50 * (summaryMax s - summaryMin s) / abs (summaryMedian s)))
  where
    safe x = if isNaN x || isInfinite x then Nothing else Just (round x)

-- | The run-time options of the benchmark's Haskell subjects; 'Nothing' in a result that does not have them.
rtsText :: Saved -> Maybe Text
rtsText result = case lookup "rts" (savedSettings result) of
  Nothing -> Nothing
  Just more -> Just (T.unwords ("+RTS -T -N" : [more | not (T.null more)]))
