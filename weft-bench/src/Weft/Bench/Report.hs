{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A report as one page
--
-- Pure: generates from saved results a self-contained HTML page without scripts. For every benchmark it shows what was
-- measured and where, the bounds with a mark and a word, the same programs with different compilers side by side, a
-- chart for each main metric, the papers' figures, a table of all figures, and the JSON. Readable on a telephone, in
-- dark mode, and without colours.
module Weft.Bench.Report
  ( Described (..),
    renderReport,
  )
where

import Control.Applicative ((<|>))
import Data.Aeson (encode)
import qualified Data.ByteString.Lazy as L
import Data.List (intersect, nub)
import qualified Data.Map.Strict as M
import Data.Maybe (catMaybes, fromMaybe, isJust, listToMaybe, mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Text.Read (readMaybe)
import Weft.Bench.Bars
import Weft.Bench.Paper
import Weft.Bench.Papers
import Weft.Bench.Plot (varying)
import Weft.Bench.Saved
import Weft.Bench.Stats
import Weft.Bench.Svg (tag)
import Weft.Bench.Types
import Weft.Bench.Units
import Weft.Tools.Markup (escape)
import Weft.Tools.Numbers (renderNumber)

-- | The description of a benchmark: its title and its metrics, the most important first.
data Described = Described
  { describedTitle :: !Text,
    describedColumns :: ![Text]
  }

-- | The page, given a function that describes a benchmark by name.
renderReport :: (Text -> Maybe Described) -> [Saved] -> Text
renderReport known results =
  T.concat
    [ "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
      "<link rel=\"icon\" href=\"data:,\"><title>Weft: measurements</title>",
      "<style>" <> styleSheet <> "</style></head><body>\n<header><h1>Weft: measurements</h1>",
      el "p" "Weft is an I/O manager for Haskell programs. Here programs on Weft were measured beside the same programs on GHC's own I/O manager, and beside programs in other languages.",
      el "p" (escape (summary results)),
      T.concat (map (el "p") machines),
      legend,
      "<nav>" <> T.concat ["<a href=\"#" <> place <> "\">" <> name <> "</a> " | (place, name, text) <- [("bounds", "Bounds", bounds), ("compilers", "Compilers", compared)], not (T.null text)] <> T.concat ["<a href=\"#" <> escape (anchor i r) <> "\">" <> escape (titleOf r) <> "</a> " | (i, r) <- numbered] <> "</nav></header>\n<main>",
      bounds,
      compared,
      T.concat [section (anchor i r) (titleOf r) known r | (i, r) <- numbered],
      "</main></body></html>\n"
    ]
  where
    numbered = zip [0 :: Int ..] results
    bounds = overview titleOf results
    compared = compilers known results
    -- Includes the address of a server or the user's program, and the compiler if a benchmark was run with several, or
    -- else the machine.
    titleOf r
      | length (versionsOf (savedBench r) results) > 1 = named r <> maybe "" (" on GHC " <>) (lookup "ghc" (savedMachine r))
      | length (nub ([machineText o | o <- results, savedBench o == savedBench r])) > 1 = named r <> " on " <> machineText r
      | otherwise = named r
    named r = savedBench r <> maybe "" (": " <>) (listToMaybe (mapMaybe (`lookup` savedSettings r) ["url", "program"]))
    anchor i r = savedBench r <> "-" <> T.pack (show i)
    -- With the benchmarks of each, if there are several.
    machines = case nub (map machineText results) of
      [only] -> [escape ("Measured on: " <> only)]
      several -> [escape ("Measured on: " <> text <> " (" <> T.intercalate ", " (nub [savedBench r | r <- results, machineText r == text]) <> ")") | text <- several]

summary :: [Saved] -> Text
summary results =
  T.concat
    [ number (length (nub (map savedBench results))) <> " benchmarks. ",
      "Bounds: " <> number (length [() | Just True <- verdicts]) <> " hold, ",
      number (length [() | Just False <- verdicts]) <> " missed, ",
      number (length [() | (Nothing, True) <- judged]) <> " too close to call, ",
      number (length [() | (Nothing, False) <- judged]) <> " not measured."
    ]
  where
    judged = [(savedHolds b, isJust (savedFigure b)) | r <- results, b <- savedBounds r]
    verdicts = map fst judged

number :: Int -> Text
number = T.pack . show

el :: Text -> Text -> Text
el name inside = "<" <> name <> ">" <> inside <> "</" <> name <> ">"

-- ---------------------------------------------------------------------------------------------------------------
-- Sections

-- | All bounds in one table.
overview :: (Saved -> Text) -> [Saved] -> Text
overview titleOf results
  | all (null . savedBounds) results = ""
  | otherwise =
    "<section id=\"bounds\"><h2>Bounds</h2><div class=\"wide\"><table><thead><tr><th>bound</th><th class=\"n\">figure</th><th class=\"n\">limit</th><th>verdict</th></tr></thead><tbody>"
      <> T.concat [boundRow (titleOf r) b | r <- results, b <- savedBounds r]
      <> "</tbody></table></div></section>\n"

boundRow :: Text -> SavedBound -> Text
boundRow title b =
  el "tr" . T.concat $
    [ el "td" ("<b>" <> escape title <> "</b>: " <> escape (savedBoundName b)),
      cell (maybe "-" renderNumber (savedFigure b)),
      cell ("\8804 " <> renderNumber (savedLimit b)),
      verdictCell b
    ]
  where
    cell text = "<td class=\"n\">" <> text <> "</td>"

verdictCell :: SavedBound -> Text
verdictCell b = case savedHolds b of
  Just True -> "<td class=\"good\">\10003 holds</td>"
  Just False -> "<td class=\"bad\">\10007 missed</td>"
  Nothing
    | isJust (savedFigure b) -> "<td class=\"unknown\">\8776 " <> escape (savedReason b) <> "</td>"
    | T.null (savedReason b) -> "<td class=\"unknown\">? not measured</td>"
    | otherwise -> "<td class=\"unknown\">? not measured: " <> escape (savedReason b) <> "</td>"

-- | For benchmarks that were run with several versions of GHC: the main metric of every subject, with a column for each
-- version and, after the first, the ratio to the first. Empty if there is only one version.
compilers :: (Text -> Maybe Described) -> [Saved] -> Text
compilers known results
  | null tables = ""
  | otherwise = "<section id=\"compilers\"><h2>Compilers</h2><p>The same programs built by different versions of GHC, each measured in a run of its own. Small figures: the ratio to the first version. Programs in other languages are the same in both, so their ratios show how far two runs differ anyway.</p>" <> T.concat tables <> "</section>\n"
  where
    tables = [compilerTable name metric several | name <- nub (map savedBench results), let several = versionsOf name results, length several > 1, Just metric <- [mainMetric name several]]
    mainMetric name several = case filter (`elem` common) (maybe common describedColumns (known name)) of
      metric : _ -> Just metric
      [] -> Nothing
      where
        common = foldr1 intersect [nub (concatMap (M.keys . metricSummaries) (savedRuns r)) | (_, (_, r)) <- several]

-- | The first result of a benchmark for each version of GHC, in order of the versions.
versionsOf :: Text -> [Saved] -> [([Int], (Text, Saved))]
versionsOf name results =
  M.toAscList (M.fromListWith (\_ first -> first) [(versionNumbers v, (v, r)) | r <- results, savedBench r == name, Just v <- [lookup "ghc" (savedMachine r)]])

compilerTable :: Text -> Text -> [([Int], (Text, Saved))] -> Text
compilerTable name metric several =
  "<h3>" <> escape name <> ": " <> escape (describe metric) <> "</h3><div class=\"wide\"><table><thead><tr><th>subject</th><th>parameters</th>"
    <> T.concat [tag "th" [("class", "n")] (escape ("GHC " <> v)) | (_, (v, _)) <- several]
    <> "</tr></thead><tbody>"
    <> T.concat [row key figures | key <- nub (concat keys), let figures = map (figureOf key . snd . snd) several, length (catMaybes figures) > 1]
    <> "</tbody></table></div>"
  where
    keys = [[(runSubject r, runParams r) | r <- savedRuns k] | (_, (_, k)) <- several]
    figureOf (subject, place) k =
      listToMaybe [summaryMedian s | r <- savedRuns k, runSubject r == subject, runParams r == place, Just s <- [M.lookup metric (metricSummaries r)]]
    row (subject, place) figures =
      el "tr" . T.concat $
        el "td" (escape subject) :
        el "td" (escape (T.intercalate ", " [k <> " " <> paramText v | (k, v) <- place])) :
        zipWith cell [0 :: Int ..] figures
      where
        cell i figure = "<td class=\"n\">" <> maybe "" (escape . withUnit metric) figure <> ratio i figure <> "</td>"
        ratio i figure = case (figures, figure) of
          (Just base : _, Just f) | i > 0, base > 0 -> " <small>" <> renderNumber (f / base) <> "\215</small>"
          _ -> ""

section :: Text -> Text -> (Text -> Maybe Described) -> Saved -> Text
section name title known result =
  T.concat
    [ "<section id=\"" <> escape name <> "\"><h2>" <> escape title <> "</h2>",
      maybe "" (el "p" . escape . describedTitle) described,
      maybe "" (paragraph "note" . runTime) (rtsText result),
      T.concat [paragraph "note" ("<b>" <> escape subject <> "</b>: " <> escape text) | (subject, text) <- savedSubjects result],
      T.concat [paragraph "paper-says" ("<b>" <> escape (paperPlace p) <> ":</b> " <> escape (paperFinding p)) | p <- papersOf (savedBench result)],
      T.concat [paragraph "paper-says" ("<b>" <> escape (figurePlace f) <> ":</b> " <> escape (figureFinding f)) | Just f <- [paperFigureOf result]],
      T.concat [paragraph "note" ("Here: " <> escape text) | Just f <- [paperFigureOf result], let text = figureNote f (coresOf result), not (T.null text)],
      "<div class=\"charts\">" <> T.concat (map (chart runs) (take 4 metrics)) <> "</div>",
      T.concat [paragraph "note" ("missing: " <> escape text) | text <- savedMissing result],
      T.concat [paragraph "note" ("failed: " <> escape text) | text <- savedFailed result],
      el "details" (el "summary" "All figures: median, smallest to largest round" <> figuresTable runs shown),
      el "details" (el "summary" "Settings and raw JSON" <> settings <> "<pre>" <> escape (T.decodeUtf8 (L.toStrict (encode (savedRaw result)))) <> "</pre>"),
      "</section>\n"
    ]
  where
    described = known (savedBench result) <|> (paperFigureOf result >>= describeFigure (coresOf result))
    runs = savedRuns result
    runTime options =
      "Haskell subjects run with " <> el "code" (escape options)
        <> ", -N with the number of capabilities, and what a program sets for itself."
    present = nub (concatMap (M.keys . metricSummaries) runs)
    preferred = maybe [] (filter (`elem` present) . describedColumns) described
    metrics = if null preferred then present else preferred
    shown = preferred <> filter (`notElem` preferred) present
    settings = el "p" (escape (T.intercalate ", " [k <> ": " <> v | (k, v) <- savedSettings result]))

-- | The figure of a paper whose measurement was repeated.
paperFigureOf :: Saved -> Maybe PaperFigure
paperFigureOf = figureNamed . savedBench

-- | Two, if the result does not say.
coresOf :: Saved -> Int
coresOf result = fromMaybe 2 (lookup "cores" (savedMachine result) >>= readMaybe . T.unpack)

describeFigure :: Int -> PaperFigure -> Maybe Described
describeFigure cores f = either (const Nothing) (\b -> Just (Described (benchTitle b) (benchColumns b))) (figureBench f cores)

paragraph :: Text -> Text -> Text
paragraph kind inside = "<p class=\"" <> kind <> "\">" <> inside <> "</p>"

chart :: [Run] -> Text -> Text
chart runs metric
  | null groups = ""
  | otherwise = "<figure><figcaption>" <> escape (describe metric) <> " <small>(" <> direction <> ")</small></figcaption>" <> renderBars title metric groups <> "</figure>"
  where
    title = describe metric <> " by subject"
    direction = if higherIsBetter metric then "more is better" else "less is better"
    measured = [r | r <- runs, M.member metric (metricSummaries r)]
    places = nub (map runParams measured)
    groups =
      [ Group (groupName places place) bars
        | place <- places,
          let bars = [Bar (runSubject r) s | r <- measured, runParams r == place, Just s <- [M.lookup metric (metricSummaries r)]],
          not (null bars)
      ]

groupName :: [Params] -> Params -> Text
groupName places place = T.intercalate ", " [name <> " " <> paramText v | (name, v) <- place, name `elem` names]
  where
    names = if length places == 1 then map fst place else varying places

figuresTable :: [Run] -> [Text] -> Text
figuresTable runs metrics =
  "<div class=\"wide\"><table><thead><tr><th>subject</th><th>parameters</th>"
    <> T.concat [el "th" (escape m) | m <- metrics]
    <> "</tr></thead><tbody>"
    <> T.concat
      [ el "tr" . T.concat $
          el "td" (escape (runSubject r)) :
          el "td" (escape (T.intercalate ", " [k <> " " <> paramText v | (k, v) <- runParams r])) :
            [maybe "<td></td>" figure (M.lookup m (metricSummaries r)) | m <- metrics]
        | r <- runs
      ]
    <> "</tbody></table></div>"
  where
    figure s = tag "td" [("class", "n")] (renderNumber (summaryMedian s) <> range s)
    range s
      | summaryMin s == summaryMax s = ""
      | otherwise = " <small>" <> renderNumber (summaryMin s) <> "\8211" <> renderNumber (summaryMax s) <> "</small>"

legend :: Text
legend =
  "<details open id=\"legend\"><summary>How to read this</summary><ul>"
    <> T.concat
      ( map
          (el "li")
          [ "A bar is the median of the rounds; the line on it goes from the smallest round to the largest. Bars under one heading have one scale, from zero.",
            "Subjects: <b>weft</b> is a program on Weft; <b>weft-relink</b> and <b>relinked</b> are unmodified programs linked with weft-relink; <b>ghc</b> is the \
            \same program on GHC's own I/O manager; <b>warp</b> is Warp on GHC's manager; <b>c-epoll</b>, <b>c-uring</b> and <b>c-threads</b> are written in C; <b>go</b>, \
            \<b>hyper</b>, <b>nginx</b> and <b>fio</b> are what their names say.",
            "Subjects take turns within each round.",
            "A <b>bound</b> is what is demanded of Weft: a figure, mostly a ratio to another subject, that must not exceed its limit. It <b>holds</b>, or it is \
            \<b>missed</b>; it is <b>too close to call</b> if the rounds differ by more than the figure is away from the limit, or if \
            \only one round was run and missed it.",
            "A <b>capability</b> is what GHC's run-time system needs to run Haskell code on a core: a program with two of them uses two cores.",
            "Figures of the papers come from other machines: compare ratios and shapes."
          ]
      )
    <> "</ul></details>\n"

styleSheet :: Text
styleSheet =
  ":root{color-scheme:light dark;--ink:#222;--faint:#595959;--paper:#fff;--line:#d9d9d9;--good:#00664a;--bad:#a63c00}\
  \@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--faint:#b3b3b3;--paper:#161616;--line:#444;--good:#35c79a;--bad:#ff9c66}}\
  \*{box-sizing:border-box}body{margin:0 auto;padding:16px;max-width:1080px;font:16px/1.5 system-ui,Helvetica,Arial,sans-serif;color:var(--ink);background:var(--paper);overflow-wrap:break-word}\
  \h1{font-size:1.6rem;margin:.2em 0}h2{font-size:1.25rem;margin:1.6em 0 .4em;border-top:1px solid var(--line);padding-top:.6em}\
  \p{margin:.4em 0}a{color:inherit}nav a{display:inline-block;padding:6px 6px 6px 0}small,.note,figcaption small{color:var(--faint)}\
  \.paper-says{border-left:4px solid var(--line);padding-left:10px}\
  \.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:16px}\
  \figure{margin:8px 0;min-width:0}figure svg{width:100%;max-width:520px;height:auto;display:block}figcaption{font-weight:600}\
  \.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}\
  \td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.good{color:var(--good);white-space:nowrap}.bad{color:var(--bad);font-weight:700;white-space:nowrap}.unknown{color:var(--faint);white-space:nowrap}\
  \details{margin:.5em 0}summary{cursor:pointer;padding:6px 0}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.75rem;max-height:24em;overflow:auto}\
  \th.n{text-align:right;white-space:nowrap}@media(max-width:560px){.good,.bad,.unknown{white-space:normal}td,th{padding-right:6px}}"
