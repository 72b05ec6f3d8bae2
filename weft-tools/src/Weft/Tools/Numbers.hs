-- |
-- Description : Numbers in arguments, and numbers and columns in tables
--
-- For all programs and subcommands: what they refuse, and how a table looks, is the same everywhere.
module Weft.Tools.Numbers
  ( -- * Arguments
    positive,
    notNegative,
    noMoreThan,
    longestTime,

    -- * Tables
    renderNumber,
    columns,
  )
where

import Data.List (transpose)
import Data.Text (Text)
import qualified Data.Text as T
import Numeric (showFFloat)
import Options.Applicative (ReadM, eitherReader, readerError)
import Text.Read (readMaybe)

-- Arguments ------------------------------------------------------------------------------

-- | A finite number above zero.
positive :: (Read a, Ord a, Num a) => ReadM a
positive = numberThat (> 0) "above zero"

-- | A finite number, zero or above.
notNegative :: (Read a, Ord a, Num a) => ReadM a
notNegative = numberThat (>= 0) "from zero on"

numberThat :: (Read a, Ord a, Num a) => (a -> Bool) -> String -> ReadM a
numberThat holds which = eitherReader $ \text -> case readMaybe text of
  -- Infinity is equal to its double.
  Just number | holds number && (number == 0 || number + number /= number) -> Right number
  _ -> Left ("not a number " ++ which ++ ": " ++ text)

-- | At most that number.
noMoreThan :: (Show a, Ord a) => a -> ReadM a -> ReadM a
noMoreThan most reader = do
  number <- reader
  if number <= most then pure number else readerError ("more than " ++ show most ++ ": " ++ show number)

-- | The longest time that can be measured, in seconds: eleven days. In nanoseconds it fits into a machine word.
longestTime :: Double
longestTime = 1e6

-- Tables ---------------------------------------------------------------------------------

-- | Three significant digits, but never fewer than the integral part has.
renderNumber :: Double -> Text
renderNumber x
  | isNaN x || isInfinite x = T.pack "-"
  | x == 0 = T.pack "0"
  | size >= 100 = T.pack (showFFloat (Just 0) x "")
  | size >= 10 = T.pack (showFFloat (Just 1) x "")
  | size >= 0.01 = T.pack (showFFloat (Just 2) x "")
  | otherwise = T.pack (showFFloat (Just 4) x "")
  where
    size = abs x

-- | Rows as aligned columns, separated by two spaces.
columns :: [[Text]] -> [Text]
columns rows = map (T.stripEnd . T.intercalate (T.pack "  ") . zipWith (`T.justifyLeft` ' ') widths) rows
  where
    widths = map (maximum . map T.length) (transpose rows)
