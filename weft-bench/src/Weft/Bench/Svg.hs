{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Charts as SVG
--
-- Pure and self-contained: grouped bars, or lines over a number, with whiskers from the smallest to the largest
-- round, a value axis that begins at zero (or a logarithmic one for lines that span orders of magnitude), and a legend.
module Weft.Bench.Svg
  ( Chart (..),
    Series (..),
    Axis (..),
    renderChart,
    ticks,
    decades,

    -- * Elements
    tag,
    label,
    rule,
    number,
    value,
  )
where

import Data.Text (Text)
import qualified Data.Text as T
import Numeric (showFFloat)
import Weft.Bench.Palette (chartStyle)
import Weft.Bench.Stats (Summary (..))
import Weft.Tools.Markup (escape)

-- | A chart. Every series has at most one value for each place on the axis.
data Chart = Chart
  { chartTitle :: !Text,
    -- | The title of the value axis, with the unit.
    chartValue :: !Text,
    chartAxis :: !Axis,
    chartSeries :: ![Series]
  }

-- | Groups with names, or numbers on a line with its title (logarithmic if they span two orders
-- of magnitude).
data Axis = Groups [Text] | Line Text [Double]

-- | The values of one subject.
data Series = Series
  { seriesName :: !Text,
    -- | A CSS colour.
    seriesColour :: !Text,
    seriesValues :: ![Maybe Summary]
  }

-- | The chart as a document.
renderChart :: Chart -> Text
renderChart chart =
  T.unlines $
    [ "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " <> number width <> " " <> number height <> "\" "
        <> "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">",
      chartStyle,
      tag "rect" [("width", number width), ("height", number height), ("class", "paper")] "",
      label [("x", number left), ("y", "26"), ("font-size", "17"), ("font-weight", "bold")] (chartTitle chart),
      label [("x", number left), ("y", "48"), ("class", "faint")] (chartValue chart)
    ]
      ++ legend chart
      ++ valueAxis scale
      ++ drawing
      ++ ["</svg>"]
  where
    scale = case chartAxis chart of
      Line _ _ | spanned 100 lows -> logScale lows highs
      _ -> scaleTo (maximum (0 : highs))
    summaries = [s | series <- chartSeries chart, Just s <- seriesValues series]
    lows = map summaryMin summaries
    highs = map summaryMax summaries
    drawing = case chartAxis chart of
      Groups names -> bars scale names (chartSeries chart)
      Line name places -> curves scale name places (chartSeries chart)

-- ---------------------------------------------------------------------------------------------------------------
-- The sheet

width, height, left, right, top, bottom :: Double
width = 960
height = 500
left = 72
right = 936
top = 92
bottom = 424

legend :: Chart -> [Text]
legend chart = concat (zipWith3 entry (cycle [minBound ..]) places (chartSeries chart))
  where
    places = scanl (+) left [34 + 8 * fromIntegral (T.length (seriesName series)) | series <- chartSeries chart]
    entry form x (Series name colour _) =
      [ case chartAxis chart of
          Groups _ -> tag "rect" [("x", number x), ("y", "60"), ("width", "12"), ("height", "12"), ("fill", colour)] ""
          Line _ _ -> marked form (x + 6) 66 colour,
        label [("x", number (x + 18)), ("y", "71")] name
      ]

-- ---------------------------------------------------------------------------------------------------------------
-- Axes

-- | The tick values of the value axis, and the height of a value.
data Scale = Scale [Double] (Double -> Double)

scaleTo :: Double -> Scale
scaleTo largest = Scale marks (\v -> bottom - (bottom - top) * v / last marks)
  where
    marks = ticks largest

-- | A logarithmic scale for values above zero.
logScale :: [Double] -> [Double] -> Scale
logScale lows highs = Scale marks at
  where
    marks = decades (minimum lows) (maximum highs)
    (low, high) = (log (minimum marks), log (maximum marks))
    at v = bottom - (bottom - top) * (log v - low) / (high - low)

-- | Whether all values are above zero and the largest is at least this many times the smallest.
spanned :: Double -> [Double] -> Bool
spanned _ [] = False
spanned times values = minimum values > 0 && maximum values / minimum values >= times

-- | The powers of ten from just below the first number, which must be above zero, to just above the second.
decades :: Double -> Double -> [Double]
decades low high = [10 ^^ power | power <- [from .. max (from + 1) (ceiling (logBase 10 high - 1e-9))]]
  where
    from = floor (logBase 10 low + 1e-9) :: Int

-- | About five round tick values from zero up to the first one that is not below the largest value.
ticks :: Double -> [Double]
ticks largest
  | largest <= 0 || isNaN largest || isInfinite largest = [0, 1]
  | otherwise = takeUntil (>= largest * 0.9999) [step * fromIntegral i | i <- [0 :: Int ..]]
  where
    rough = largest / 5
    power = 10 ** fromIntegral (floor (logBase 10 rough) :: Int)
    step = power * minimum (10 : [m | m <- [1, 2, 2.5, 5], m * power >= rough])
    takeUntil enough list = let (before, from) = break enough list in before ++ take 1 from

valueAxis :: Scale -> [Text]
valueAxis (Scale marks at) = concatMap mark marks
  where
    mark v =
      [ rule (left, at v) (right, at v) (if at v >= bottom then "axis" else "grid"),
        label [("x", number (left - 8)), ("y", number (at v + 4)), ("text-anchor", "end")] (value v)
      ]

-- ---------------------------------------------------------------------------------------------------------------
-- Bars and curves

bars :: Scale -> [Text] -> [Series] -> [Text]
bars (Scale _ at) names series = concat (zipWith group [0 ..] names)
  where
    slot = (right - left) / fromIntegral (max 1 (length names))
    captionSize = fitting 13 slot (concatMap T.lines names)
    group :: Int -> Text -> [Text]
    group i name = captionOf captionSize (start + slot / 2) name ++ concat (zipWith (bar start (length present)) [0 ..] present)
      where
        start = left + slot * fromIntegral i
        present = [(seriesColour one, s) | one <- series, Just s <- take 1 (drop i (seriesValues one))]
    bar start many k (colour, s) =
      [ tag "rect" (zip ["x", "y", "width", "height"] (map number [x, y, w * 0.86, bottom - y]) ++ [("fill", colour)]) "",
        rule (mid, at (summaryMin s)) (mid, at (summaryMax s)) "axis",
        label
          [("x", number mid), ("y", number (at (summaryMax s) - 5)), ("text-anchor", "middle"), ("font-size", number (fitting 11 w [value (summaryMedian s)]))]
          (value (summaryMedian s))
      ]
      where
        w = min 60 (slot * 0.84 / fromIntegral many)
        x = start + (slot - w * fromIntegral many) / 2 + w * (fromIntegral (k :: Int) + 0.07)
        mid = x + w * 0.43
        y = at (summaryMedian s)

-- | The font size, at most the first argument, at which the longest of these lines fits into the width.
fitting :: Double -> Double -> [Text] -> Double
fitting most room texts = max 6 (min most (room / (0.6 * fromIntegral (maximum (1 : map T.length texts)))))

curves :: Scale -> Text -> [Double] -> [Series] -> [Text]
curves (Scale _ at) name places series =
  caption ((left + right) / 2) ("\n" <> name)
    ++ concat [caption (across place) (value place) | place <- places]
    ++ concat (zipWith curve (cycle [minBound ..]) series)
  where
    logarithmic = spanned 100 places
    measure = if logarithmic then log else id
    (low, high) = (measure (minimum places), measure (maximum places))
    across place = left + 30 + (right - left - 60) * (measure place - low) / max 1e-9 (high - low)
    curve form (Series _ colour values) = path : concatMap (dot form) points
      where
        points = [(across place, s) | (place, Just s) <- zip places values]
        through = T.unwords [number x <> "," <> number (at (summaryMedian s)) | (x, s) <- points]
        path = tag "polyline" [("points", through), ("fill", "none"), ("stroke", colour), ("stroke-width", "2.5")] ""
        dot mark (x, s) = [line (x, at (summaryMin s)) (x, at (summaryMax s)) colour, marked mark x (at (summaryMedian s)) colour]

-- | The shapes of the marks on lines, so that subjects can be distinguished without colour.
data Form = Disc | Square | Diamond | Triangle
  deriving (Enum, Bounded)

marked :: Form -> Double -> Double -> Text -> Text
marked form x y colour = case form of
  Disc -> tag "circle" [("cx", number x), ("cy", number y), ("r", "5"), ("fill", colour)] ""
  Square -> polygon [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)]
  Diamond -> polygon [(0, -6), (6, 0), (0, 6), (-6, 0)]
  Triangle -> polygon [(0, -6), (5.5, 4.5), (-5.5, 4.5)]
  where
    polygon corners = tag "polygon" [("points", T.unwords [number (x + a) <> "," <> number (y + b) | (a, b) <- corners]), ("fill", colour)] ""

-- | Lines of text below the horizontal axis.
caption :: Double -> Text -> [Text]
caption = captionOf 13

captionOf :: Double -> Double -> Text -> [Text]
captionOf size x text =
  [ label [("x", number x), ("y", number (bottom + y)), ("text-anchor", "middle"), ("font-size", number size)] part
    | (y, part) <- zip [20, 38 ..] (T.lines text),
      not (T.null part)
  ]

-- ---------------------------------------------------------------------------------------------------------------
-- Elements

tag :: Text -> [(Text, Text)] -> Text -> Text
tag name attributes inside
  | T.null inside = "<" <> opening <> "/>"
  | otherwise = "<" <> opening <> ">" <> inside <> "</" <> name <> ">"
  where
    opening = T.unwords (name : [key <> "=\"" <> escape v <> "\"" | (key, v) <- attributes])

label :: [(Text, Text)] -> Text -> Text
label attributes = tag "text" (attributes ++ [("class", "ink") | "class" `notElem` map fst attributes]) . escape

-- | A line with a class of the style sheet.
rule :: (Double, Double) -> (Double, Double) -> Text -> Text
rule (x1, y1) (x2, y2) name =
  tag "line" (zip ["x1", "y1", "x2", "y2"] (map number [x1, y1, x2, y2]) ++ [("class", name)]) ""

line :: (Double, Double) -> (Double, Double) -> Text -> Text
line (x1, y1) (x2, y2) colour =
  tag "line" (zip ["x1", "y1", "x2", "y2"] (map number [x1, y1, x2, y2]) ++ [("stroke", colour)]) ""

-- | A coordinate.
number :: Double -> Text
number x = T.pack (showFFloat (Just 1) x "")

-- | A value with as many decimals as its size requires, without trailing zeros.
value :: Double -> Text
value v
  | v == fromIntegral (round v :: Integer) = T.pack (show (round v :: Integer))
  | abs v >= 100 = T.pack (showFFloat (Just 0) v "")
  | abs v >= 10 = T.pack (showFFloat (Just 1) v "")
  | abs v >= 1 = trimmed (T.pack (showFFloat (Just 2) v ""))
  | otherwise = trimmed (T.pack (showFFloat (Just 4) v ""))
  where
    trimmed = T.dropWhileEnd (== '.') . T.dropWhileEnd (== '0')
