{-# LANGUAGE OverloadedStrings #-}

-- |
-- Metrics in Prometheus' text exposition format 0.0.4.
-- Pure.
module Weft.Prometheus.Text
  ( Family (..),
    Kind (..),
    Sample (..),
    Value (..),
    counter,
    gauge,
    exposition,
    expositionType,
  )
where

import Data.ByteString (ByteString)
import Data.ByteString.Builder
import qualified Data.ByteString.Char8 as C
import Data.List (intersperse)

-- | The samples of a metric.
data Family = Family
  { -- | The name by Prometheus' conventions: letters, digits and underscores, with the unit and, for a
    -- counter, @total@ at the end.
    familyName :: !ByteString,
    -- | Its description, in a sentence.
    familyHelp :: !ByteString,
    familyKind :: !Kind,
    familySamples :: ![Sample]
  }
  deriving (Eq, Show)

-- | The type of a metric, for its @TYPE@ line.
data Kind = Counter | Gauge | Histogram
  deriving (Eq, Show)

-- | One value of a metric.
data Sample = Sample
  { -- | The suffix that a histogram appends to the name.
    sampleSuffix :: !ByteString,
    sampleLabels :: ![(ByteString, ByteString)],
    sampleValue :: !Value
  }
  deriving (Eq, Show)

-- | The value of a sample.
data Value = Whole !Int | Real !Double
  deriving (Eq, Show)

-- | A counter without labels: a value that only increases.
counter :: ByteString -> ByteString -> Value -> Family
counter name text value = Family name text Counter [Sample "" [] value]

-- | A gauge without labels: a value that goes up and down.
gauge :: ByteString -> ByteString -> Value -> Family
gauge name text value = Family name text Gauge [Sample "" [] value]

-- | The metrics as text.
exposition :: [Family] -> Builder
exposition = foldMap family

-- | The media type of the text.
expositionType :: ByteString
expositionType = "text/plain; version=0.0.4; charset=utf-8"

family :: Family -> Builder
family (Family name text kind samples) =
  "# HELP " <> byteString name <> " " <> byteString (escape "\\\n" text) <> "\n"
    <> "# TYPE "
    <> byteString name
    <> (case kind of Counter -> " counter\n"; Gauge -> " gauge\n"; Histogram -> " histogram\n")
    <> foldMap sample samples
  where
    sample (Sample suffix labels number) =
      byteString name <> byteString suffix <> labelled labels <> " " <> shown number <> "\n"

labelled :: [(ByteString, ByteString)] -> Builder
labelled labels
  | null labels = mempty
  | otherwise = "{" <> mconcat (intersperse "," (map one labels)) <> "}"
  where
    one (name, text) = byteString name <> "=\"" <> byteString (escape "\\\n\"" text) <> "\""

shown :: Value -> Builder
shown number = case number of
  Whole n -> intDec n
  Real x
    | isNaN x -> "NaN"
    | isInfinite x -> if x > 0 then "+Inf" else "-Inf"
    | otherwise -> doubleDec x

-- | Put a backslash before each of the given bytes, and write a line end as @\\n@.
escape :: ByteString -> ByteString -> ByteString
escape special = C.concatMap one
  where
    one c
      | c `C.notElem` special = C.singleton c
      | c == '\n' = "\\n"
      | otherwise = C.pack ['\\', c]
