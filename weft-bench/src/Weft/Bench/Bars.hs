{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Bar charts with labels, as SVG
--
-- Pure. A chart that is narrow enough for a telephone: each line has a bar with its name before it and its value after
-- it, and a whisker from the smallest to the largest round. The bars of a group share a scale that begins at zero, so
-- that they can be compared. Each group has its own scale.
module Weft.Bench.Bars
  ( Group (..),
    Bar (..),
    renderBars,
    renderPanels,
  )
where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Palette
import Weft.Bench.Stats (Summary (..))
import Weft.Bench.Svg (label, number, rule, tag)
import Weft.Bench.Units (withUnit)
import Weft.Tools.Markup (escape)

-- | A title and bars with a common scale.
data Group = Group !Text ![Bar]

-- | A subject and its rounds.
data Bar = Bar !Text !Summary

-- | A chart of a metric. The first text describes it for readers who cannot see it.
renderBars :: Text -> Text -> [Group] -> Text
renderBars title metric groups = document "" title (map ((,) metric) groups)

-- | A complete document with the given width in pixels, in which each group has its own metric.
renderPanels :: Int -> Text -> [(Text, Group)] -> Text
renderPanels width = document (" width=\"" <> T.pack (show width) <> "\"")

document :: Text -> Text -> [(Text, Group)] -> Text
document attributes title groups =
  "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\"" <> attributes <> " viewBox=\"0 0 400 " <> number height
    <> "\" font-family=\"system-ui, Helvetica, Arial, sans-serif\" font-size=\"13\">"
    <> "<title>"
    <> escape title
    <> "</title>"
    <> chartStyle
    <> T.concat (zipWith (\top (metric, group) -> renderGroup metric top group) offsets groups)
    <> "</svg>"
  where
    offsets = scanl (+) 4 (map (groupHeight . snd) groups)
    height = 4 + sum (map (groupHeight . snd) groups)

groupHeight :: Group -> Double
groupHeight (Group title bars) = (if T.null title then 0 else 22) + line * fromIntegral (length bars) + 8

line, left, right :: Double
line = 22
left = 96
right = 310

renderGroup :: Text -> Double -> Group -> Text
renderGroup metric top (Group title bars) =
  T.concat (heading : zipWith bar [begin, begin + line ..] bars)
  where
    begin = top + (if T.null title then 0 else 22)
    heading = if T.null title then "" else label [("x", "0"), ("y", number (top + 14)), ("class", "faint")] title
    largest = maximum (1e-12 : [summaryMax s | Bar _ s <- bars])
    across v = left + (right - left) * v / largest
    bar y (Bar name s) =
      T.concat
        [ label [("x", number (left - 6)), ("y", number (y + 14)), ("text-anchor", "end")] name,
          tag "rect" [("x", number left), ("y", number (y + 3)), ("width", number (max 1 (across (summaryMedian s) - left))), ("height", "15"), ("fill", subjectColour name)] "",
          if summaryMax s > summaryMin s then rule (across (summaryMin s), y + 10.5) (across (summaryMax s), y + 10.5) "axis" else "",
          label [("x", number (across (summaryMax s) + 5)), ("y", number (y + 14))] (withUnit metric (summaryMedian s))
        ]
