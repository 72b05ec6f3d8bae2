{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The README's table and charts
--
-- Pure: generates from saved results the text between the markers @\<!-- figures: begin --\>@ and @\<!-- figures: end
-- --\>@ of a document, the shorter table between @\<!-- summary: begin --\>@ and @\<!-- summary: end --\>@, and the
-- charts. No figure is typed by hand. Missing measurements and missed bounds are marked.
module Weft.Bench.Readme
  ( Extent (..),
    insertBetween,
    figuresSection,
    compilersSection,
    readmeCharts,
    Row (..),
    rows,
    summaryRows,
    overviewRows,
    shownOf,
  )
where

import Data.List (find, nub, sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe, isJust, mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Weft.Bench.Bars
import Weft.Bench.Plot (chartOf)
import Weft.Bench.Saved
import Weft.Bench.Select (Shown)
import Weft.Bench.Stats
import Weft.Bench.Svg (renderChart)
import Weft.Bench.Types
import Weft.Bench.Units
import Weft.Tools.Numbers (renderNumber)

-- | The whole table, or a summary.
data Extent = AllRows | SummaryRows
  deriving (Eq, Show, Enum, Bounded)

-- | A row of the table: title, benchmark, parameters, metric.
data Row = Row !Text !Text !Params !Text

-- | The rows, in order.
rows :: [Row]
rows =
  [ Row "pong, 64 connections, 1 core: CPU a request" "pong" [("connections", Count 64), ("capabilities", Count 1)] "cpu_us_per_op",
    Row "pong, 400 connections, 1 core: CPU a request" "pong" [("connections", Count 400), ("capabilities", Count 1)] "cpu_us_per_op",
    Row "pong, 64 connections, 2 cores: CPU a request" "pong" [("connections", Count 64), ("capabilities", Count 2)] "cpu_us_per_op",
    Row "pong, 400 connections, 2 cores: CPU a request" "pong" [("connections", Count 400), ("capabilities", Count 2)] "cpu_us_per_op",
    Row "pong, 64 connections: bytes allocated a request" "pong" [("connections", Count 64), ("capabilities", Count 1)] "alloc_bytes_per_op",
    Row "pong, 64 connections: system calls a request" "pong" [("connections", Count 64), ("capabilities", Count 1)] "syscalls_per_op",
    Row "HTTP, a short answer, 64 connections, 1 core: CPU a request" "http" [("mode", Word "pong"), ("connections", Count 64), ("capabilities", Count 1)] "cpu_us_per_op",
    Row "HTTP, a browser's request, 64 connections, 1 core: CPU a request" "http" [("mode", Word "browser"), ("connections", Count 64), ("capabilities", Count 1)] "cpu_us_per_op",
    Row "HTTP, a browser's request, 64 connections, 2 cores: CPU a request" "http" [("mode", Word "browser"), ("connections", Count 64), ("capabilities", Count 2)] "cpu_us_per_op",
    Row "live memory an idle connection, of 16,000" "idle" [("idle", Count 16000)] "live_bytes_per_idle",
    Row "resident memory an idle connection, of 16,000" "idle" [("idle", Count 16000)] "rss_bytes_per_idle",
    Row "99th percentile of 64 connections beside 16,000 idle ones" "idle" [("idle", Count 16000)] "p99_us",
    Row "the same without idle ones" "idle" [("idle", Count 0)] "p99_us",
    Row "one client's round trip, median, 1 core" "echo" [("mode", Word "threaded"), ("cores", Count 1)] "p50_us",
    Row "the same on GHC's non-threaded run-time system" "echo" [("mode", Word "non-threaded"), ("cores", Count 1)] "p50_us",
    Row "a server of 1,000 idle connections, 10 s: wake-ups" "quiet" [] "wakeups",
    Row "the pong without GHC's event log, 64 connections, 1 core: CPU a request" "eventlog" [("mode", Word "absent")] "cpu_us_per_op",
    Row "the same with the event log, which is off" "eventlog" [("mode", Word "off")] "cpu_us_per_op",
    Row "the same with the event log on, as weft trace has it" "eventlog" [("mode", Word "on")] "cpu_us_per_op",
    Row "1,000,000 threads in `threadDelay 1000`, 2 cores" "delay" [("threads", Count 1000000), ("capabilities", Count 2)] "wall_s",
    Row "the same: peak memory" "delay" [("threads", Count 1000000), ("capabilities", Count 2)] "max_rss_mb",
    Row "1,000,000 such threads that count themselves in an `MVar`" "delay-shared" (counting "mvar" 1000000) "wall_s",
    Row "the same: peak memory" "delay-shared" (counting "mvar" 1000000) "max_rss_mb",
    Row "100,000 of them" "delay-shared" (counting "mvar" 100000) "wall_s",
    Row "1,000,000 such threads that count themselves by `atomicModifyIORef'`" "delay-shared" (counting "ioref" 1000000) "wall_s",
    Row "the same: peak memory" "delay-shared" (counting "ioref" 1000000) "max_rss_mb",
    Row "100,000 of them" "delay-shared" (counting "ioref" 100000) "wall_s",
    Row "a `timeout` that does not fire, 1,000 threads" "timeout" [("threads", Count 1000)] "ns_per_op",
    Row "pushing a deadline later" "deadline" [("task", Word "reset")] "ns_per_op",
    Row "memory of a pending timer" "deadline" [("task", Word "pending")] "live_bytes_per_timer",
    Row "lateness of delays of 100 us to 10 ms, 99th percentile" "deadline" [("task", Word "lateness")] "p99_us",
    Row "an unmodified program, relinked: 1,000,000 delays" "relink" [("workload", Word "delay")] "wall_s",
    Row "the same: peak memory" "relink" [("workload", Word "delay")] "max_rss_mb",
    Row "the same: a `timeout` that does not fire" "relink" [("workload", Word "timeout")] "ns_per_op",
    Row "the same: Warp, 64 connections, 2 cores: CPU a request" "relink" [("connections", Count 64), ("capabilities", Count 2)] "cpu_us_per_op",
    Row "random reads of 4 KiB, 64 in flight, 2 cores" "disk" [("in_flight", Count 64)] "ops_per_s",
    Row "the same: CPU a read" "disk" [("in_flight", Count 64)] "cpu_us_per_op",
    Row "random reads of 4 KiB, 1,024 in flight, 2 cores" "disk" [("in_flight", Count 1024)] "ops_per_s",
    Row "the same: CPU a read" "disk" [("in_flight", Count 1024)] "cpu_us_per_op",
    Row "a file of 1 KiB, 64 connections, 1 core: CPU a request" "static" [("size_kib", Count 1), ("connections", Count 64)] "cpu_us_per_op",
    Row "a file of 16 KiB, 64 connections, 1 core: CPU a request" "static" [("size_kib", Count 16), ("connections", Count 64)] "cpu_us_per_op",
    Row "a file of 1 KiB over TLS, connections kept, 1 core: CPU a request" "https" [("mode", Word "keep"), ("size_kib", Count 1), ("capabilities", Count 1)] "cpu_us_per_op",
    Row "the same, a full handshake for each: CPU a request" "https" [("mode", Word "handshake"), ("key", Word "p256")] "cpu_us_per_op",
    Row "the same, a resumed handshake for each: CPU a request" "https" [("mode", Word "resumed")] "cpu_us_per_op",
    Row "resident memory an idle connection over TLS, of 10,000" "https" [("mode", Word "idle"), ("idle", Count 10000)] "rss_bytes_per_idle",
    Row "a file of 1 KiB over HTTP/2, 16 connections of 32 streams, 1 core: CPU a request" "http2" [("mode", Word "get"), ("size_kib", Count 1)] "cpu_us_per_op",
    Row "the same, 16 KiB" "http2" [("mode", Word "get"), ("size_kib", Count 16)] "cpu_us_per_op",
    Row "an upload of 100 MiB over HTTP/2 and a round trip of 50 ms" "http2" [("mode", Word "post"), ("size_kib", Count 102400)] "wall_s",
    Row "99th percentile beside 8,000 slow and 200 rude clients a second" "rude" [("rude", Count 8000)] "p99_us",
    Row "the same without them" "rude" [("rude", Count 0)] "p99_us",
    Row "10,000,000 hybrid threads that loop on yield: live memory a thread" "hybrid-memory" [("threads", Count 10000000)] "live_bytes_per_thread",
    Row "a switch of hybrid threads, 10 of them" "hybrid-switch" [("workload", Word "yield"), ("threads", Count 10)] "ns_per_op",
    Row "the same, 1,000,000" "hybrid-switch" [("workload", Word "yield"), ("threads", Count 1000000)] "ns_per_op",
    Row "a hybrid thread's whole life" "hybrid-switch" [("workload", Word "fork")] "ns_per_op",
    Row "128 pairs in turns of 32 KiB through pipes, 2 cores" "fifo" [("idle", Count 0)] "gbit_per_s",
    Row "the same beside 9,000 idle readers" "fifo" [("idle", Count 9000)] "gbit_per_s",
    Row "resident memory an idle session, 16,000 hybrid threads with a socket each" "hybrid-idle" [("idle", Count 16000)] "rss_bytes_per_idle",
    Row "131,072 files of 16 KiB at random, cold page cache, 64 connections, 1 core" "disk-web" [("connections", Count 64)] "ops_per_s",
    Row "a learning switch of OpenFlow, 100 switches, 1 core: answers" "sdn" [("mode", Word "throughput"), ("switches", Count 100), ("in_flight", Count 512), ("capabilities", Count 1), ("load_cores", Word "own")] "ops_per_s",
    Row "the same at 500,000 packets a second: median latency" "sdn" [("rate", Count 500000), ("capabilities", Count 1), ("load_cores", Word "own")] "p50_us",
    Row "the same: CPU an answer" "sdn" [("rate", Count 500000), ("capabilities", Count 1), ("load_cores", Word "own")] "cpu_us_per_op",
    Row "TCP in the program, 1 core: sending" "tcp" [("mode", Word "bulk"), ("direction", Word "send")] "gbit_per_s",
    Row "the same: receiving" "tcp" [("mode", Word "bulk"), ("direction", Word "receive")] "gbit_per_s",
    Row "the same: requests and responses, 64 connections" "tcp" [("mode", Word "rr"), ("connections", Count 64)] "ops_per_s"
  ]
  where
    counting counter threads = [("main", Word "bound"), ("counter", Word counter), ("threads", Count threads)]

-- | The figures of a benchmark that the documents show.
shownOf :: Text -> [Shown]
shownOf bench = nub [(params, metric) | Row _ name params metric <- rows <> map snd charts, name == bench]

-- | The titles of the rows in a summary.
summaryRows :: [Text]
summaryRows =
  [ "pong, 64 connections, 1 core: CPU a request",
    "pong, 400 connections, 2 cores: CPU a request",
    "pong, 64 connections: bytes allocated a request",
    "HTTP, a browser's request, 64 connections, 1 core: CPU a request",
    "1,000,000 threads in `threadDelay 1000`, 2 cores",
    "an unmodified program, relinked: 1,000,000 delays",
    "random reads of 4 KiB, 1,024 in flight, 2 cores",
    "a file of 1 KiB, 64 connections, 1 core: CPU a request",
    "a learning switch of OpenFlow, 100 switches, 1 core: answers"
  ]

-- | The rows in the picture at the top of the README.
overviewRows :: [Text]
overviewRows =
  [ "pong, 64 connections, 1 core: CPU a request",
    "HTTP, a short answer, 64 connections, 1 core: CPU a request",
    "1,000,000 threads in `threadDelay 1000`, 2 cores",
    "a file of 1 KiB, 64 connections, 1 core: CPU a request"
  ]

-- | The charts: file name, title, benchmark, parameters and metric.
charts :: [(FilePath, Row)]
charts =
  [ ("pong.svg", Row "CPU time a request of a pong server (less is better)" "pong" [] "cpu_us_per_op"),
    ("delay.svg", Row "Threads in threadDelay 1000: wall-clock time (less is better)" "delay" [("capabilities", Count 2)] "wall_s"),
    ("relink.svg", Row "Unmodified programs as they are and relinked: CPU time a request (less is better)" "relink" [("capabilities", Count 2)] "cpu_us_per_op")
  ]

-- | Each chart for which there are results, as file name and document.
readmeCharts :: [Saved] -> [(FilePath, Text)]
readmeCharts results =
  [("overview.svg", renderPanels 560 "Weft beside others; shorter is better" panels) | not (null panels)]
    <> [ (file, renderChart (chartOf title metric (filter measured (savedRuns result))))
         | (file, Row title bench params metric) <- charts,
           result <- take 1 (filter ((== bench) . savedBench) results),
           -- A run whose clients share the server's cores is not comparable.
           let measured r = all (`elem` runParams r) params && lookup "placement" (runParams r) == Nothing && M.member metric (metricSummaries r),
           any measured (savedRuns result)
       ]
  where
    panels =
      [ (metric, Group (T.replace "`" "" what) [Bar name s | (name, s) <- sortOn ((`notElem` own) . fst) (M.toList first)])
        | what <- overviewRows,
          Row name' bench params metric <- rows,
          name' == what,
          first <- take 1 (mapMaybe (\r -> medians r bench params metric) results)
      ]

-- | The text between the markers: the rows, and in a summary what a reader needs who sees them alone; else also how the
-- subjects were set up, and the charts. The path of the charts' folder is relative to the document.
figuresSection :: Extent -> Text -> [Saved] -> Text
figuresSection extent folder results =
  T.unlines . concatMap wrapped . concat $
    [ ["Made by `weft-bench readme` from `doc/figures/*.json`: medians of the rounds, \177 half of their range; read the ratios, and measure your own.", ""],
      ["Measured on " <> text <> "." | text <- nub (map machineText (if whole then results else shownResults))],
      ["", "| what | Weft | GHC's manager | others | command |", "|---|---|---|---|---|"],
      mapMaybe (tableLine results) wanted,
      [""]
    ]
      <> [details | whole]
      <> [["No result is kept of: " <> T.intercalate ", " absent <> "." | not (null absent)], ["" | not (null absent)]]
      <> [missingLines results | whole]
      <> [missedLines extent results]
      <> [concat [["", "![" <> title <> "](" <> folder <> "/" <> T.pack file <> ")"] | (file, Row title _ _ _) <- charts, file `elem` map fst (readmeCharts results)] | whole]
  where
    whole = extent == AllRows
    details =
      concat
        [ [ "Haskell subjects run with `" <> options <> "`, -N with the number of capabilities: " <> T.intercalate ", " benches <> "."
            | (options, benches) <- optionsOf
          ],
          ["" | not (null optionsOf)],
          ["Settings: " <> T.intercalate "; " [subject <> " (" <> T.intercalate ", " benches <> "): " <> text | ((subject, text), benches) <- settings] <> "." | not (null settings)],
          ["" | not (null settings)]
        ]
    shownResults = [r | r <- results, savedBench r `elem` [bench | Row _ bench _ _ <- wanted]]
    optionsOf = [(options, [savedBench r | r <- shownResults, rtsText r == Just options]) | options <- nub (mapMaybe rtsText shownResults)]
    settings = [(s, [savedBench r | r <- shownResults, s `elem` savedSubjects r]) | s <- nub (concatMap savedSubjects shownResults)]
    wanted = [r | r@(Row what _ _ _) <- rows, whole || what `elem` summaryRows]
    absent = nub [bench | Row _ bench _ _ <- wanted, bench `notElem` map savedBench results]

-- | The same figures with other compilers: a table of the programs that a compiler builds, with columns for each of
-- them, and what became of the bounds. Arguments: the results of the document, and those of other compilers. Empty if
-- there are none of the latter, or only for other figures.
compilersSection :: [Saved] -> [Saved] -> Text
compilersSection results others
  | null table = ""
  | otherwise =
    T.unlines . concatMap wrapped . concat $
      [ ["", "## With other compilers", ""],
        ["The same programs built by newer versions of GHC, each measured in a run of its own (`make matrix BENCH=...`); in brackets the ratio to GHC " <> first <> "."],
        ["", line ("what" : [who <> ", GHC " <> v | who <- ["Weft", "GHC's manager"], v <- versions]), "|" <> T.replicate (1 + 2 * length versions) "---|"],
        table,
        [""],
        nub ["Measured on " <> machineText r <> "." | v <- drop 1 versions, r <- of' v],
        concat [["", "With GHC " <> v <> ": " <> T.toLower (T.take 1 said) <> T.drop 1 said] | v <- drop 1 versions, said <- take 1 (missedLines SummaryRows (of' v))]
      ]
  where
    several = results <> others
    benches = nub (map savedBench others)
    versions = map snd (M.toAscList (M.fromList [(versionNumbers v, v) | r <- several, savedBench r `elem` benches, Just v <- [lookup "ghc" (savedMachine r)]]))
    first = T.concat (take 1 versions)
    of' v = [r | r <- several, savedBench r `elem` benches, lookup "ghc" (savedMachine r) == Just v]
    table =
      [ line (what : concatMap cells [own, ghcOwn])
        | length versions > 1,
          Row what bench params metric <- rows,
          let found = [mapMaybe (\r -> medians r bench params metric) (of' v) | v <- versions]
              figure names list = case [(name, s) | m <- take 1 list, name <- names, Just s <- [M.lookup name m]] of
                (name, s) : _ -> Just (name, s)
                [] -> Nothing
              cells names =
                [ maybe "" (\(name, s) -> cellOf metric name s 1 <> ratio s (figure names (concat (take 1 found)))) (figure names list)
                  | list <- found
                ]
              ratio s base = case base of
                Just (_, b) | summaryMedian b > 0, summaryMedian b /= summaryMedian s -> " (" <> renderNumber (summaryMedian s / summaryMedian b) <> ")"
                _ -> "",
          length (filter (not . null) found) > 1
      ]
    line cells' = "| " <> T.intercalate " | " cells' <> " |"

-- | A line in lines of at most 118 characters, if it has blanks to break at. Rows of tables and pictures stay whole.
wrapped :: Text -> [Text]
wrapped line
  | T.null line || any (`T.isPrefixOf` line) ["|", "!"] = [line]
  | otherwise = case T.words line of
    first : more -> go first more
    [] -> [line]
  where
    indent = if "- " `T.isPrefixOf` line then "  " else ""
    go at [] = [at]
    go at (word : more)
      | T.length at + 1 + T.length word <= 118 = go (at <> " " <> word) more
      | otherwise = at : go (indent <> word) more

-- | From a result of that benchmark, the first run of each subject with these parameters.
medians :: Saved -> Text -> Params -> Text -> Maybe (M.Map Text Summary)
medians result bench params metric
  | savedBench result /= bench || M.null found = Nothing
  | otherwise = Just found
  where
    found = M.fromListWith (\_ old -> old) [(runSubject r, s) | r <- savedRuns result, all (`elem` runParams r) params, Just s <- [M.lookup metric (metricSummaries r)]]

-- | The subjects that run on Weft.
own :: [Text]
own = ["weft", "relinked", "weft-relink", "weft-hybrid", "weft-serve"]

-- | The subjects that run on GHC's own manager.
ghcOwn :: [Text]
ghcOwn = ["ghc", "warp"]

tableLine :: [Saved] -> Row -> Maybe Text
tableLine results (Row what bench params metric) = do
  result <- find ((== bench) . savedBench) results
  let first = fromMaybe M.empty (medians result bench params metric)
      ours = [cellOf metric name s (length [() | n <- own, M.member n first]) | name <- own, Just s <- [M.lookup name first]]
      ghcs = [cellOf metric name s 1 | name <- ghc, Just s <- [M.lookup name first]]
      others = [name <> " " <> cellOf metric name s 1 | (name, s) <- M.toList first, name `notElem` own, name `notElem` ghc]
  if M.null first
    then Just (line [what, "not measured", "", "", command bench])
    else Just (line [what, T.intercalate ", " ours, T.intercalate ", " (take 1 ghcs), T.intercalate ", " others, command bench])
  where
    ghc = ghcOwn
    line cells = "| " <> T.intercalate " | " cells <> " |"
    command name = "`weft-bench " <> name <> "`"

cellOf :: Text -> Text -> Summary -> Int -> Text
cellOf metric name s many = withUnit metric (summaryMedian s) <> spread <> (if many > 1 && name /= "weft" then " (" <> name <> ")" else "")
  where
    spread = if spreadOf s > 2 then " \177 " <> T.pack (show (spreadOf s)) <> " %" else ""

-- | The peers that could not run and the measurements that failed, with the reasons. Equal reasons of several subjects
-- or benchmarks are listed once.
missingLines :: [Saved] -> [Text]
missingLines results
  | null reasons = []
  | otherwise = ["Missing: " <> T.intercalate "; " [who <> " (" <> T.intercalate ", " (benches who why) <> "): " <> why | (who, why) <- reasons] <> ".", ""]
  where
    found = [(T.intercalate ", " (nub [s | (s, w') <- pairs r, w' == why]), why, savedBench r) | r <- results, why <- nub (map snd (pairs r))]
    pairs r = map reason (savedMissing r) <> [(savedFailureSubject f, savedFailureMessage f) | f <- savedFailures r]
    reason text = let (who, why) = T.breakOn ": " text in (who, T.drop 2 why)
    reasons = nub [(who, why) | (who, why, _) <- found]
    benches who why = nub [bench | (who', why', bench) <- found, who' == who, why' == why]

missedLines :: Extent -> [Saved] -> [Text]
missedLines extent results
  | null judged = []
  | null doubtful = ["All " <> number judged <> " bounds of these benchmarks hold."]
  | extent == SummaryRows = ["Of " <> number judged <> " bounds of these benchmarks " <> T.intercalate ", " [number list <> " " <> word <> " (" <> T.intercalate ", " (nub (map (savedBench . fst) list)) <> ")" | (_, word, list) <- kinds, not (null list)] <> "; the others hold."]
  | otherwise = number (filter holding judged) <> " of " <> number judged <> " bounds hold." : concat [["", "**" <> T.toUpper (T.take 1 word) <> T.drop 1 word <> ":**", ""] <> map (item mark) list | (mark, word, list) <- kinds, not (null list)]
  where
    judged = [(r, b) | r <- results, b <- savedBounds r]
    holding (_, b) = savedHolds b == Just True
    doubtful = filter (not . holding) judged
    kinds =
      [ ("\10007", "missed", [x | x@(_, b) <- doubtful, savedHolds b == Just False]),
        ("\8776", "too close to call", filter close doubtful),
        ("?", "not measured", [x | x@(_, b) <- doubtful, savedHolds b == Nothing, not (close x)])
      ]
    close (_, b) = savedHolds b == Nothing && isJust (savedFigure b)
    item :: Text -> (Saved, SavedBound) -> Text
    item mark (r, b) = "- " <> mark <> " " <> savedBench r <> ": " <> savedBoundName b <> ": " <> maybe "-" renderNumber (savedFigure b) <> ", limit " <> renderNumber (savedLimit b)
    number = T.pack . show . length

-- | Replace the text between the markers of a document; 'Nothing' unless both are present and in order.
insertBetween :: Extent -> Text -> Text -> Maybe Text
insertBetween extent section document = case T.breakOn begin document of
  (before, rest) | not (T.null rest) -> case T.breakOn end rest of
    (_, after) | not (T.null after) -> Just (before <> begin <> "\n" <> section <> after)
    _ -> Nothing
  _ -> Nothing
  where
    word = if extent == AllRows then "figures" else "summary"
    begin = "<!-- " <> word <> ": begin -->"
    end = "<!-- " <> word <> ": end -->"
