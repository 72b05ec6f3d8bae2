{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Metrics pages, and what happened between two of them
--
-- Pure: parses Prometheus' text format (version 0.0.4) and builds the screen of @weft top@ from two readings. Counters
-- with unknown names are shown too, by their rates, so that it works for any program with a metrics page.
module Weft.Tools.Top.Readings
  ( Reading,
    parseReading,
    Screen (..),
    screenOf,
  )
where

import Data.Char (isAlphaNum, isAscii, isControl, isDigit)
import Data.List (nub, sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe, mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Read as T
import Weft.Tools.Numbers (columns, renderNumber)

-- | Samples by name and labels.
type Reading = M.Map (Text, [(Text, Text)]) Double

-- | The samples of a page; lines that are not samples are ignored. Nothing in it is a control character.
parseReading :: Text -> Reading
parseReading = M.fromList . mapMaybe (sample . T.strip) . T.lines

sample :: Text -> Maybe ((Text, [(Text, Text)]), Double)
sample line
  | T.null line || "#" `T.isPrefixOf` line = Nothing
  | otherwise = do
    let (name, rest) = T.span (`notElem` ("{ \t" :: String)) line
    (labels, after) <- if "{" `T.isPrefixOf` rest then labelsOf (T.drop 1 rest) else Just ([], rest)
    number <- case T.words after of
      word : _ -> value word
      [] -> Nothing
    if isName name then Just ((name, labels), number) else Nothing
  where
    -- The names of metrics in this format; they are printed.
    isName name = T.all isNameCharacter name && maybe False (not . isDigit . fst) (T.uncons name)
    isNameCharacter c = isAscii c && isAlphaNum c || c `elem` ("_:" :: String)
    value word = case word of
      "+Inf" -> Just (1 / 0)
      "-Inf" -> Just (-1 / 0)
      "NaN" -> Just (0 / 0)
      _ -> either (const Nothing) (\(n, left) -> if T.null left then Just n else Nothing) (T.signed T.double word)

-- | Parse labels up to the closing brace, with the escapes @\\"@, @\\\\@ and @\\n@ in their values; returns the rest
-- too.
labelsOf :: Text -> Maybe ([(Text, Text)], Text)
labelsOf text = case T.uncons (T.dropWhile (`elem` (", " :: String)) text) of
  Just ('}', rest) -> Just ([], rest)
  Just _ -> do
    let (name, rest) = T.breakOn "=\"" (T.dropWhile (`elem` (", " :: String)) text)
    if T.null rest then Nothing else pure ()
    (content, after) <- quoted "" (T.drop 2 rest)
    (others, end) <- labelsOf after
    pure ((name, T.map visible content) : others, end)
  Nothing -> Nothing
  where
    -- Values are printed, and a page may come from anywhere.
    visible c = if isControl c then '\xFFFD' else c
    quoted before from = case T.break (`elem` ("\"\\" :: String)) from of
      (part, left) -> case T.unpack (T.take 2 left) of
        '"' : _ -> Just (before <> part, T.drop 1 left)
        ['\\', 'n'] -> quoted (before <> part <> "\n") (T.drop 2 left)
        ['\\', c] -> quoted (before <> part <> T.singleton c) (T.drop 2 left)
        _ -> Nothing

-- | The lines to show, each no wider than necessary.
newtype Screen = Screen {screenLines :: [Text]}

-- | The screen for a period of the given number of seconds, from the readings at its beginning and end.
screenOf :: Text -> Double -> Reading -> Reading -> Screen
screenOf title seconds before after =
  Screen . (title :) . (<> notOnWeft) . concat $
    [ processLine seconds before after,
      requestLines seconds before after,
      managerTable seconds before after,
      latencyLine before after,
      slowestLines after,
      collectorLine seconds before after,
      othersTable seconds before after
    ]
  where
    notOnWeft = ["no metrics of Weft on that page" | not (any (("weft_" `T.isPrefixOf`) . fst) (M.keys after))]

-- | A gauge, summed over all labels.
gauge :: Text -> Reading -> Maybe Double
gauge name reading = case [v | ((n, _), v) <- M.toList reading, n == name] of
  [] -> Nothing
  several -> Just (sum several)

-- | The summed rate of all counters with this name whose labels satisfy the predicate. A counter that has decreased was
-- reset.
rate :: ([(Text, Text)] -> Bool) -> Text -> Double -> Reading -> Reading -> Maybe Double
rate wanted name seconds before after = case [v - start k v | (k@(n, labels), v) <- M.toList after, n == name, wanted labels] of
  [] -> Nothing
  several -> Just (sum several / seconds)
  where
    start k v = let was = M.findWithDefault 0 k before in if was > v then 0 else was

everyLabel :: [(Text, Text)] -> Bool
everyLabel = const True

processLine :: Double -> Reading -> Reading -> [Text]
processLine seconds before after = [T.intercalate "   " parts | not (null parts)]
  where
    parts =
      concat
        [ ["CPU " <> percent v | Just v <- [rate everyLabel "process_cpu_seconds_total" seconds before after]],
          ["resident " <> bytes v | Just v <- [gauge "process_resident_memory_bytes" after]],
          ["descriptors " <> count v | Just v <- [gauge "process_open_fds" after]],
          ["threads of the OS " <> count v | Just v <- [gauge "process_threads" after]]
        ]

-- | A number of things.
count :: Double -> Text
count v
  | isNaN v || isInfinite v = "-"
  | otherwise = T.pack (show (round v :: Integer))

percent :: Double -> Text
percent v = renderNumber (100 * v) <> " %"

bytes :: Double -> Text
bytes v
  | v >= 1e9 = renderNumber (v / 1e9) <> " GB"
  | v >= 1e6 = renderNumber (v / 1e6) <> " MB"
  | otherwise = renderNumber (v / 1e3) <> " kB"

requestLines :: Double -> Reading -> Reading -> [Text]
requestLines seconds before after = [T.intercalate "   " parts | not (null parts)]
  where
    classes = nub [c | ((n, labels), _) <- M.toList after, n == "http_requests_total", Just c <- [lookup "status" labels]]
    parts =
      concat
        [ ["requests " <> renderNumber v <> "/s" | Just v <- [rate everyLabel "http_requests_total" seconds before after]],
          [c <> " " <> renderNumber v <> "/s" | c <- classes, Just v <- [rate (elem ("status", c)) "http_requests_total" seconds before after], v > 0],
          ["in flight " <> count v | Just v <- [gauge "http_requests_in_flight" after]],
          ["connections " <> count v | Just v <- [gauge "http_connections" after]],
          [quantileName q <> " " <> v | q <- [0.5, 0.99], Just v <- [quantile milliseconds q "http_request_duration_seconds" before after]],
          ["refused " <> renderNumber v <> "/s" | Just v <- [rate everyLabel "http_refused_total" seconds before after], v > 0]
        ]
    milliseconds v = renderNumber (1e3 * v) <> " ms"

-- | The name of a quantile, such as @p99@.
quantileName :: Double -> Text
quantileName share = "p" <> T.pack (show (round (100 * share) :: Int))

-- | What a histogram says about the value below which this share of the new samples lies: no more than the upper bound
-- of its bucket, or more than the last bound.
quantile :: (Double -> Text) -> Double -> Text -> Reading -> Reading -> Maybe Text
quantile render share name before after
  | total <= 0 = Nothing
  | otherwise = case break ((>= share * total) . snd) classes of
    (_, (upper, _) : _) | not (isInfinite upper) -> Just ("<= " <> render upper)
    (below@(_ : _), _ : _) -> Just ("> " <> render (fst (last below)))
    _ -> Nothing
  where
    classes = sortOn fst . M.toList $ M.fromListWith (+) [(upper, v - M.findWithDefault 0 k before) | (k@(n, labels), v) <- M.toList after, n == name <> "_bucket", Just upper <- [lookup "le" labels >>= bound]]
    total = maximum (0 : map snd classes)
    bound text = if text == "+Inf" then Just (1 / 0) else either (const Nothing) (Just . fst) (T.double text)

-- | The activity of the event managers, with a line for each capability if the page distinguishes them.
managerTable :: Double -> Reading -> Reading -> [Text]
managerTable seconds before after
  | null shown = []
  | otherwise = "" : columns (("capability" : map snd shown) : map line capabilities)
  where
    known =
      [ ("weft_waits_total", "waits/s"),
        ("weft_events_total", "events/s"),
        ("weft_polls_total", "polls/s"),
        ("weft_sleeps_total", "sleeps/s"),
        ("weft_wakeups_total", "wake-ups/s"),
        ("weft_timers_set_total", "timers set/s"),
        ("weft_timers_fired_total", "fired/s")
      ]
    shown = [k | k@(name, _) <- known, any ((== name) . fst) (M.keys after)]
    labelled = nub [c | ((name, labels), _) <- M.toList after, name `elem` map fst known, Just c <- [lookup "capability" labels]]
    capabilities = map Just (sortOn numeric labelled) <> [Nothing | length labelled /= 1]
    numeric c = either (const (0 :: Int)) fst (T.decimal c)
    line c = fromMaybe "all" c : [maybe "-" renderNumber (rate (allowed c) name seconds before after) | (name, _) <- shown]
    allowed c labels = maybe True (\wanted -> lookup "capability" labels == Just wanted) c

-- | The lateness of threads and timers in this period, over all capabilities.
latencyLine :: Reading -> Reading -> [Text]
latencyLine before after = ["" | not (null parts)] <> [T.intercalate "   " parts | not (null parts)]
  where
    parts =
      [ what <> " " <> quantileName q <> " " <> v
        | (what, name) <- [("woken threads run after", "weft_wake_latency_seconds"), ("timers fire late by", "weft_timer_lateness_seconds")],
          q <- [0.5, 0.99],
          Just v <- [quantile time q name before after]
      ]

-- | The slowest callbacks, slowest first, and the watchdog's reports, if there is a watchdog.
slowestLines :: Reading -> [Text]
slowestLines after
  | null slowest && null stalls = []
  | otherwise = "" : stalls <> columns [["slowest callback, capability " <> c, who, time v] | (v, c, who) <- slowest]
  where
    slowest = take 5 (sortOn (\(v, _, _) -> negate v) [(v, label "capability" labels, label "of" labels) | ((n, labels), v) <- M.toList after, n == "weft_longest_callback_seconds"])
    label name = fromMaybe "?" . lookup name
    stalls = ["held for too long: " <> count v <> " times" <> maybe "" (\l -> ", at most for " <> time l) (gauge "weft_watchdog_longest_seconds" after) | Just v <- [gauge "weft_watchdog_stalls_total" after], v > 0]

time :: Double -> Text
time v
  | v < 1e-3 = renderNumber (1e6 * v) <> " us"
  | v < 1 = renderNumber (1e3 * v) <> " ms"
  | otherwise = renderNumber v <> " s"

collectorLine :: Double -> Reading -> Reading -> [Text]
collectorLine seconds before after = [T.intercalate "   " parts | not (null parts)]
  where
    parts =
      concat
        [ ["", "collections " <> renderNumber v <> "/s"] <> stopped
          | Just v <- [rate everyLabel "ghc_gcs_total" seconds before after],
            let stopped = ["stood still " <> percent w | Just w <- [rate everyLabel "ghc_gc_wall_seconds_total" seconds before after]]
        ]
        <> ["allocates " <> bytes v <> "/s" | Just v <- [rate everyLabel "ghc_allocated_bytes_total" seconds before after]]
        <> ["live " <> bytes v | Just v <- [gauge "ghc_live_bytes" after]]

-- | Counters that increased and are not shown above, fastest first.
othersTable :: Double -> Reading -> Reading -> [Text]
othersTable seconds before after
  | null growing = []
  | otherwise = "" : columns [[name, renderNumber v <> "/s"] | (name, v) <- take 12 growing]
  where
    growing =
      sortOn
        (negate . snd)
        [ (name, v)
          | name <- nub (map fst (M.keys after)),
            "_total" `T.isSuffixOf` name,
            not (any (`T.isPrefixOf` name) ["weft_", "ghc_", "process_", "http_requests_total", "http_refused_total"]),
            Just v <- [rate everyLabel name seconds before after],
            v > 0
        ]
