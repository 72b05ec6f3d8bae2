{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Tests of reports, comparisons, the README's table, latencies and verdicts
module ResultTests (results, latencies, verdicts, h2load) where

import Control.Exception (evaluate)
import Control.Monad (forM_)
import Data.ByteString.Builder (toLazyByteString)
import Data.List (sort)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import Sample
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Test.Tasty.QuickCheck (NonEmptyList (..), NonNegative (..), Positive (..), property, testProperty, (===))
import Weft.Bench.Bounds
import Weft.Bench.Change (Change (..), changeOf)
import Weft.Bench.Compare
import Weft.Bench.H2load (Summary (..), parseSummary)
import Weft.Bench.Json
import Weft.Bench.Latency
import Weft.Bench.Options (defaultPlan)
import Weft.Bench.Peers (settingsOf)
import Weft.Bench.Readme
import Weft.Bench.Relinked (verdict)
import Weft.Bench.Report
import Weft.Bench.Runner (Missing (..), Outcome (..))
import Weft.Bench.Saved
import Weft.Bench.Stats (percentile, summaryMedian)
import Weft.Bench.Types
import Weft.Bench.Units (withUnit)
import Weft.Bench.Url (tallyMetrics)
import Weft.Bench.UrlLoad.Tally (Tally (..), unsent)
import Weft.Test.Browser (inBrowser)
import Weft.Test.Skip (testCase)

-- | A result that was written and read again.
kept :: [Run] -> Saved
kept = savedBy "9.0.2"

-- | As 'kept', for programs that the given compiler built.
savedBy :: Text -> [Run] -> Saved
savedBy ghc runs = case decodeSaved (toLazyByteString document) of
  Right [one] -> one
  other -> error ("not one result: " ++ either T.unpack (show . length) other)
  where
    document = outcomeJson (Machine 2 "6.1.0" ghc "0.1.0" (Just "A & B") (Just "2026-11-22") (Just "abc")) (Settings defaultPlan ["-A16m"] Nothing False []) bench outcome
    outcome = Outcome runs (map (judge (const True) runs) [atMost "a < b" ratio 0.5]) [Missing "go" "no go-pong"] []
    bench = Benchmark "pong" "a title" (const []) [] [] [] (const []) ["cpu_us_per_op"] id

results :: TestTree
results =
  testGroup
    "kept results"
    [ testCase "are read as they were written" $ do
        let one = kept sample
        (savedBench one, map runSubject (savedRuns one)) @?= ("pong", ["weft", "c-epoll", "weft"])
        map runRounds (savedRuns one) @?= map runRounds sample
        (savedHolds <$> savedBounds one, savedMissing one) @?= ([Just False], ["go: no go-pong"])
        fmap summaryMedian (savedMetric one "weft" sixtyFour "cpu_us_per_op") @?= Just 9,
      testCase "other files are refused" $
        forM_ ["", "{}", "[1]", "{\"bench\": 3}", "# A text"] $ \document ->
          either (\why -> assertBool (T.unpack why) ("not a result of weft-bench: " `T.isPrefixOf` why)) (const (assertFailure (show document))) (decodeSaved document),
      testCase "are judged by other bounds than they were saved with, without the runs that have failed" $ do
        let bound = atMost "a < 2 b" (on "weft" sixtyFour "cpu_us_per_op" `Over` on "c-epoll" sixtyFour "cpu_us_per_op")
            measured = (kept [run "weft" sixtyFour "cpu_us_per_op" [10, 10, 10], run "c-epoll" sixtyFour "cpu_us_per_op" [5, 5, 5]]) {savedBounds = [SavedBound "old" Nothing 1 (Just True) ""]}
            judgedBy limits r = [(savedBoundName b, savedFigure b, savedLimit b, savedHolds b) | b <- savedBounds (rejudged (map bound limits) r)]
            broken params = measured {savedFailures = [SavedFailure "weft" params "it crashed"]}
        judgedBy [3, 1] measured @?= [("a < 2 b", Just 2, 3, Just True), ("a < 2 b", Just 2, 1, Just False)]
        judgedBy [] measured @?= []
        judgedBy [3] (broken ["connections=64"]) @?= []
        judgedBy [3] (rejudged [bound 1] measured) {savedRuns = []} @?= [("a < 2 b", Nothing, 3, Nothing)]
        judgedBy [3] (broken ["connections=400"]) @?= judgedBy [3] measured,
      testCase "a comparison of two compilers says so, and gives changes in tenths of a per cent" $ do
        let text = renderComparison [savedBy "9.6.6" [run "weft" sixtyFour "cpu_us_per_op" (replicate 4 10)]] [savedBy "9.10.3" [run "weft" sixtyFour "cpu_us_per_op" (replicate 4 9)]]
        forM_ ["not the same machine, kernel or compiler: 2 cores, A & B, GHC 9.6.6, Linux 6.1.0; 2 cores, A & B, GHC 9.10.3, Linux 6.1.0", "10.0 -> 9.00  -10.0 %"] $ \part ->
          assertBool (T.unpack text) (part `T.isInfixOf` text),
      testCase "a comparison has the runs that are in one result only, failures and bounds; what is worse" $ do
        let judged holds' = (kept sample) {savedBounds = [SavedBound "a < b" (Just 1) 1.15 holds' ""]}
            without = (judged (Just True)) {savedRuns = take 1 (savedRuns (kept sample)), savedFailed = ["weft: it crashed"]}
            text = renderComparison [judged (Just True)] [without]
        forM_ ["only in the first result: pong " <> runSubject (last sample), "failed in the second result: pong: weft: it crashed"] $ \part ->
          assertBool (T.unpack (part <> " in " <> text)) (part `T.isInfixOf` text)
        map (becameWorse [judged (Just True)] . pure) [judged (Just True), judged Nothing, judged (Just False), without] @?= [False, False, True, True]
        becameWorse [judged Nothing] [judged (Just False)] @?= True
        becameWorse [without] [judged (Just True)] @?= False,
      testCase "a comparison has the settings that differ, and none that are equal" $ do
        let set more = (kept sample) {savedSettings = [("rounds", "1"), ("timeout_s", "10"), ("url", "http://a/")] <> more}
            text = renderComparison [set [("duration_s", "1"), ("backend", "poll")]] [set [("duration_s", "2")]]
        assertBool (T.unpack text) ("not the same settings of pong: duration_s 1 and 2, backend poll and none\n" `T.isInfixOf` text)
        assertBool (T.unpack text) (not ("not the same settings" `T.isInfixOf` renderComparison [kept sample] [kept sample])),
      testCase "totals are not compared if the measured times differ, and the comparison names them" $ do
        let set time = [(kept [Run "server" [] (M.singleton 0 (M.fromList [(name, 100 * fromIntegral time) | name <- totals <> ["p99_us"]]))]) {savedSettings = [("duration_s", T.pack (show (time :: Int)))]}]
            totals = ["answered", "cpu_s", "errors", "errors_refused", "late", "lost_count", "opened", "received_mb", "unsent", "wall_s"]
            changed a b = map differenceMetric (differences a b)
            with settings = map (\k -> k {savedSettings = settings})
        changed (set 1) (set 2) @?= ["p99_us"]
        changed (set 2) (set 1) @?= ["p99_us"]
        -- A short round also has another size of what is not a load.
        changed (with [("quick", "no")] (set 1)) (with [("quick", "yes")] (set 2)) @?= ["p99_us"]
        changed (with [] (set 1)) (with [] (set 2)) @?= sort ("p99_us" : totals)
        let text = renderComparison (set 1) (set 2)
        assertBool (T.unpack text) (("not compared, since the measured times differ: " <> T.intercalate ", " totals <> "\n") `T.isInfixOf` text),
      testCase "a report of two machines says which is which, and why a bound has no verdict" $ do
        let elsewhere = (kept sample) {savedMachine = [("cores", "64"), ("ghc", "9.0.2")], savedBounds = [SavedBound "a < b" Nothing 1.15 Nothing "not asked for: c-epoll"]}
            page = renderReport (const Nothing) [kept sample, elsewhere]
        forM_ ["pong on 64 cores", "commit abc", "<p>Measured on: 64 cores, GHC 9.0.2 (pong)</p>", "? not measured: not asked for: c-epoll"] $ \part -> assertBool (T.unpack (part <> " in " <> page)) (part `T.isInfixOf` page),
      testCase "a report has bounds, figures, machine and JSON, escaped" $ do
        let page = renderReport (const (Just (Described "a title" ["cpu_us_per_op"]))) [kept sample]
        forM_ ["\10007 missed", "a &lt; b", "A &amp; B", "Mio 2013, figure 5", "<svg", "commit abc", "missing: go: no go-pong", "9.00 \181s"] $ \part ->
          assertBool (T.unpack part) (part `T.isInfixOf` page)
        assertBool "the name of a benchmark" (not ("<u>" `T.isInfixOf` fst (T.breakOn "<main>" (renderReport (const Nothing) [(kept sample) {savedBench = "\"><u>"}]))))
        assertBool "nothing is loaded from elsewhere" (not (any (`T.isInfixOf` page) ["src=", "href=\"http", "<script"])),
      testCase "a report of a paper's figure has its title, the paper's result, and how this measurement differs; its own metric is first" $ do
        let delayed metric = Run "weft" [("threads", Count 1000)] (M.singleton 0 (M.fromList (map (\name -> (name, 5)) metric)))
            page = renderReport (const Nothing) [(kept [delayed ["alloc_bytes_per_op", "wall_s"]]) {savedBench = "2010-5"}]
        forM_ ["<p>2010, figure 5 (final: 3, top): threadDelay on GHC's own manager</p>", "2010, figure 5 (final: 3, top):</b> Quadratic in the number of threads.", "Here: GHC's manager of today has a priority search queue"] $ \part ->
          assertBool (T.unpack (part <> " in " <> page)) (part `T.isInfixOf` page)
        assertBool "its metric is first" ("wall" `T.isInfixOf` T.take 200 (snd (T.breakOn "<figcaption>" page))),
      testCase "a report says before the first figure what it is and how to read it, and links what it has" $ do
        let page = renderReport (const Nothing) [kept sample]
            before = fst (T.breakOn "<td" page)
        forM_ ["Weft is an I/O manager", "How to read this", "A <b>bound</b> is", "A bar is the median", "<a href=\"#bounds\">"] $ \part ->
          assertBool (T.unpack part) (part `T.isInfixOf` before)
        assertBool "what it has not" (not ("href=\"#compilers\"" `T.isInfixOf` page || "href=\"#bounds\"" `T.isInfixOf` renderReport (const Nothing) [(kept sample) {savedBounds = []}])),
      testCase "a report of two compilers has them side by side, 9.10 after 9.6" $ do
        let slower = [run "weft" sixtyFour "cpu_us_per_op" [18], run "c-epoll" sixtyFour "cpu_us_per_op" [6]]
            page = renderReport (const (Just (Described "a title" ["cpu_us_per_op"]))) [savedBy "9.10.3" slower, savedBy "9.6.6" sample]
        forM_ ["<th class=\"n\">GHC 9.6.6</th><th class=\"n\">GHC 9.10.3</th>", "<td class=\"n\">9.00 \181s</td><td class=\"n\">18.0 \181s <small>2.00\215</small></td>", "<p>1 benchmarks.", "<a href=\"#compilers\">", "pong on GHC 9.10.3</b>: a &lt; b"] $ \part ->
          assertBool (T.unpack part) (part `T.isInfixOf` page)
        -- What only one of them measured is not compared.
        T.count "connections 400" (fst (T.breakOn "</section>" (snd (T.breakOn "id=\"compilers\"" page)))) @?= 0
        assertBool "one compiler needs no comparison" (not ("id=\"compilers\"" `T.isInfixOf` renderReport (const Nothing) [kept sample])),
      testCase "the document has a table of compilers: Weft and GHC's manager with each, and the bounds of the later ones" $ do
        let at name figure = run name sixtyFour "cpu_us_per_op" [figure, figure, figure]
            older = savedBy "9.6.6" [at "weft" 10, at "ghc" 20, at "c-epoll" 5]
            newer = savedBy "9.10.3" [at "weft" 5, at "ghc" 20, at "c-epoll" 5]
            text = compilersSection [older] [newer]
        forM_
          [ "| what | Weft, GHC 9.6.6 | Weft, GHC 9.10.3 | GHC's manager, GHC 9.6.6 | GHC's manager, GHC 9.10.3 |",
            "| pong, 64 connections, 1 core: CPU a request | 10.0 \181s | 5.00 \181s (0.50) | 20.0 \181s | 20.0 \181s |\n",
            "commit abc, 2 cores, A & B, 2026-11-22, GHC 9.10.3",
            "With GHC 9.10.3: of 1 bounds of these benchmarks 1 missed (pong)"
          ]
          $ \part -> assertBool (T.unpack (part <> " in " <> text)) (part `T.isInfixOf` text)
        assertBool "other programs have no compiler" (not ("c-epoll" `T.isInfixOf` text))
        T.count "\n| " text @?= 2
        -- Nothing to compare: no other compiler, another benchmark, other figures.
        [compilersSection [older] others | others <- [[], [savedBy "9.6.6" []], [newer {savedBench = "http"}], [savedBy "9.10.3" [run "weft" fourHundred "x" [1]]]]] @?= replicate 4 "",
      testCase "a thousand of a unit is one of the next" $
        [withUnit metric v | (metric, v) <- [("p99_us", 85428), ("p99_us", 3e6), ("p50_us", 12.5), ("ns_per_op", 2854), ("max_rss_mb", 9700), ("wall_s", 52), ("rss_bytes_per_idle", 3539), ("ops_per_s", 52959), ("mb_per_s", 480)]]
          @?= ["85.4 ms", "3.00 s", "12.5 \181s", "2.85 \181s", "9.70 GB", "52.0 s", "3,539 bytes", "52,959/s", "480 MB/s"],
      testCase "what several peers have in common is said once" $ do
        let failing = (kept sample) {savedFailures = [SavedFailure subject [] "no root" | subject <- ["kernel", "smoltcp", "kernel"]]}
            text = figuresSection AllRows "doc" [failing]
        assertBool (T.unpack text) ("Missing: go (pong): no go-pong; kernel, smoltcp (pong): no root." `T.isInfixOf` text),
      testCase "bounds without a verdict have marks of their own" $ do
        let judgedAs holds' figure = (kept sample) {savedBounds = [SavedBound "a < b" figure 1.15 holds' "too close to call"]}
            text holds' figure = figuresSection AllRows "doc" [judgedAs holds' figure]
        assertBool "close" ("\8776 pong: a < b: 1.20, limit 1.15" `T.isInfixOf` text Nothing (Just 1.2))
        assertBool "unmeasured" ("? pong: a < b: -, limit 1.15" `T.isInfixOf` text Nothing Nothing)
        assertBool "held" ("All 1 bounds of these benchmarks hold." `T.isInfixOf` text (Just True) (Just 1.1)),
      testCase "changes beyond noise, and no others" $ do
        let with values = [kept [run "weft" sixtyFour "cpu_us_per_op" values]]
            change a b = [(differenceBefore d, differenceAfter d, worsened d) | d <- differences (with a) (with b)]
        change [10, 11, 12] [13, 14, 15] @?= [(11, 14, True)]
        change [10, 11, 12] [5, 6, 7] @?= [(11, 6, False)]
        change [10, 11, 12] [11, 13, 14] @?= []
        change [100, 100.5, 101] [101.5, 102, 102.5] @?= []
        -- Two rounds lie apart by chance in a third of all cases, three in a tenth.
        change [100, 100.5] [105, 106] @?= []
        change [100, 101, 102] [106, 107, 108] @?= []
        change [100, 101, 102, 102] [106, 107, 108, 108] @?= [(101.5, 107.5, True)]
        change [10] [12] @?= []
        change [10] [14] @?= [(10, 14, True)],
      testCase "the run-time options of Haskell subjects are in the report and beside the whole table" $ do
        let page = renderReport (const Nothing) [kept sample]
            text = figuresSection AllRows "doc" [kept sample]
        assertBool (T.unpack page) ("Haskell subjects run with <code>+RTS -T -N -A16m</code>" `T.isInfixOf` page)
        assertBool (T.unpack text) ("Haskell subjects run with `+RTS -T -N -A16m`, -N with the number of capabilities: pong." `T.isInfixOf` text),
      testCase "the settings of subjects are in the report and beside the whole table, and are no parameters" $ do
        let page = renderReport (const Nothing) [kept sample]
            text = figuresSection AllRows "doc" [kept sample]
            threads = "for each core a thread with a loop and a listener (SO_REUSEPORT)"
        savedSubjects (kept sample) @?= [("c-epoll", threads)]
        map (lookup "settings" . runParams) (savedRuns (kept sample)) @?= [Nothing, Nothing, Nothing]
        assertBool (T.unpack page) (("<b>c-epoll</b>: " <> threads) `T.isInfixOf` page)
        assertBool (T.unpack text) (("Settings: c-epoll (pong): " <> threads <> ".") `T.isInfixOf` T.unwords (T.lines text)),
      testCase "a benchmark that refuses --rts has no such options in its result" $ do
        let machine = Machine 2 "6.1.0" "9.0.2" "0.1.0" Nothing Nothing Nothing
            refusing = Benchmark "rude" "a title" (const []) [] [] ["--rts"] (const []) [] id
            document = toLazyByteString (outcomeJson machine (Settings defaultPlan [] Nothing False []) refusing (Outcome [] [] [] []))
        either (const Nothing) (Just . map rtsText) (decodeSaved document) @?= Just [Nothing],
      testCase "options that a program is linked with are among its settings" $ do
        description <- T.readFile "../bench/weft-bench-subjects.cabal"
        let linked = [T.takeWhile (`notElem` ("\"\n" :: String)) rest | (_, rest) <- T.breakOnAll mark description]
            mark = "-with-rtsopts="
            known = [text | (bench, subject) <- [("hybrid-idle", "weft-hybrid"), ("tcp", "weft"), ("http", "weft"), ("web", "weft"), ("sdn", "weft")], Just text <- [settingsOf bench subject]]
        map (T.drop (T.length mark)) linked @?= [T.drop (T.length "+RTS ") text | text <- known, "+RTS " `T.isPrefixOf` text],
      testCase "of rates, more is better" $ do
        let with metric values = [kept [run "weft" sixtyFour metric values]]
        -- The last two are those of weft-bench url.
        [map worsened (differences (with metric [10, 11]) (with metric [20, 21])) | metric <- ["ops_per_s", "answered", "received_mb"]] @?= replicate 3 [False],
      testCase "the README's section goes between its markers, and only there" $ do
        insertBetween AllRows "new\n" "a\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nb\n" @?= Just "a\n<!-- figures: begin -->\nnew\n<!-- figures: end -->\nb\n"
        insertBetween AllRows "new\n" "<!-- figures: end --> <!-- figures: begin -->" @?= Nothing
        insertBetween AllRows "new\n" "no markers" @?= Nothing,
      testCase "the README's table has figures and marks missed bounds" $ do
        let text = figuresSection AllRows "doc" [kept sample]
        forM_ ["| pong, 64 connections, 1 core: CPU a request | 9.00 \181s", "c-epoll 6.00 \181s", "**Missed:**", "\10007 pong: a < b: 1.20, limit 0.50", "Missing: go (pong): no go-pong.", "](doc/pong.svg)"] $ \part ->
          assertBool (T.unpack (part <> " in " <> text)) (part `T.isInfixOf` text)
        map fst (readmeCharts [kept sample]) @?= ["overview.svg", "pong.svg"]
        assertBool "the picture has both" (and [part `T.isInfixOf` svg | ("overview.svg", svg) <- readmeCharts [kept sample], part <- ["c-epoll", "9.00 \181s", "pong, 64 connections, 1 core"]])
        assertBool (T.unpack text) ("No result is kept of: http, idle, " `T.isInfixOf` text)
        let summary = figuresSection SummaryRows "doc" [kept sample]
        forM_ ["Settings: ", "Haskell subjects", "](doc/"] $ \part -> assertBool (T.unpack (part <> " in " <> summary)) (not (part `T.isInfixOf` summary))
        assertBool (T.unpack summary) ("Of 1 bounds of these benchmarks 1 missed (pong)" `T.isInfixOf` summary),
      browserCase
    ]

-- | In a browser, on a desktop and on a telephone: nothing is wider than the window.
browserCase :: TestTree
browserCase = testCase "a browser shows the report" . forM_ [1280, 390] $ \width -> do
  let report = renderReport (const Nothing) [kept (sample <> [run "a subject of a long name" fourHundred "cpu_us_per_op" [3, 1234567]])]
  seen <- inBrowser width (T.unpack report) "const e = d.documentElement; return [e.scrollWidth, e.clientWidth, d.querySelectorAll('svg').length].join(' ')"
  case map read seen :: [Int] of
    [content, window, charts] -> do
      assertBool ("content of " <> show content <> " in a window of " <> show window) (content <= window)
      assertBool "charts" (charts >= 1)
    _ -> assertFailure (unwords seen)

latencies :: TestTree
latencies =
  testGroup
    "latencies"
    [ testProperty "a class ends less than 1 % above each of its samples" $ \(Positive n) scale ->
        let ns = n * 10 ^ (abs scale `mod` 14 :: Int) :: Int
            top = upperEnd (classOf ns)
         in property (top >= ns && fromIntegral (top - ns) <= (0.008 * fromIntegral ns :: Double) && classOf (top + 1) == classOf ns + 1),
      testProperty "percentiles are those of the samples to 1 %" $ \(NonEmpty list) ->
        let ns = map ((* 1000) . getPositive) list :: [Int]
            found = percentileOf 90 (recordMany ns none)
            exact = percentile 90 ns
         in case (found, exact) of
              (Just a, Just b) -> property (a >= b && fromIntegral (a - b) <= (0.008 * fromIntegral b :: Double))
              _ -> property False,
      testProperty "parts add up to the whole" $ \a b ->
        let of' = (`recordMany` none) . map abs in of' a <> of' b === of' (a <> b :: [Int]),
      testCase "no samples, no percentile" $ percentileOf 50 none @?= Nothing,
      testCase "p99.9 of a thousand samples is not the largest" $
        [percentileOf 99.9 (recordMany (largest' : replicate below 100) none) | (largest', below) <- [(5000, 999), (5000, 998)]] @?= [Just 100, Just 5000],
      testProperty "unsent requests have the latencies of a count one by one" $ \(Positive rate) (NonNegative sent) (Positive window) (NonNegative warm) ->
        let perSecond = fromIntegral (rate :: Int) * 37.3 :: Double
            due k = begun + round (fromIntegral (k :: Int) * 1e9 / perSecond)
            (begun, from, end) = (1000, begun + warm * 1000000, from + window * 1000000)
            waits = [end - due k | k <- takeWhile ((< end) . due) [sent ..], due k >= from] :: [Int]
            found = unsent perSecond begun from end sent
         in (tallyUnsent found, tallyLatencies found) === (length waits, recordMany waits none),
      testCase "a billion unsent requests are counted at once" $ do
        counted <- timeout 20000000 (evaluate (unsent 1e7 0 0 100000000000 0))
        [(tallyUnsent found, samples (tallyLatencies found), largest (tallyLatencies found)) | Just found <- [counted]]
          @?= [(1000000000, 1000000000, 100000000000)],
      testCase "figures of a load" $ do
        let tally = Tally (recordMany [1000, 2000, 3000] none) none 2 1 0 1 0 500 2 (M.fromList [("status 503", 4)]) (M.fromList [("timed out", 3)])
        [M.lookup name (tallyMetrics 2 tally) | name <- ["answered", "ops_per_s", "late", "unsent", "errors", "errors_status_503", "warmup_errors", "max_us"]] @?= map Just [2, 1, 1, 1, 4, 4, 3, 3]
    ]

verdicts :: TestTree
verdicts =
  testGroup
    "verdict of bench run"
    [ testCase "less, the same, more; too few" $ do
        let against = changeOf . map (\r -> (8 * r, 8))
        map against [[0.1, 0.2, 0.3, 0.4, 0.5], [0.9, 1.0, 1.1, 1.0, 1.0], [2, 3, 4, 5, 6], [0.1, 0.1, 0.1, 0.1], []] @?= [Just (Less 0.3), Just Same, Just (More 4), Just TooFew, Nothing]
        -- Five rounds that agree in their direction only are no change, seven are one. With more there may be
        -- exceptions.
        let drifting n = changeOf . zipWith (\base r -> (base * r, base)) (take n (iterate (* 2) 1))
        map (\n -> drifting n (replicate n 1.1)) [5, 6, 7] @?= [Just Same, Just Same, Just (More 1.1)]
        map (\n -> drifting n (0.9 : replicate (n - 1) 1.1)) [9, 10] @?= [Just Same, Just (More 1.1)]
        against (replicate 20 1.015) @?= Just Same,
      testCase "of subjects that are equal, at most one in twenty has a verdict" $
        forM_ [(n, noise) | n <- [1 .. 15], noise <- [0.01, 0.1, 0.5]] $ \(n, noise) -> do
          let found = length (filter firm (take samplesOfNoise (equalSubjects n noise)))
          -- Five per cent, and four standard deviations more.
          assertBool (show (n, noise, found)) (fromIntegral found <= (if n < 5 then 0 else 0.0725 * fromIntegral samplesOfNoise :: Double)),
      testCase "a difference that is larger than the noise has one" $
        forM_ [5, 7, 9, 15] $ \n -> do
          let better = [[r {runRounds = M.map (M.map (* 0.7)) (runRounds r)} | r <- take 1 both] <> drop 1 both | both <- equalSubjects n 0.05]
          length (filter (says "better off on Weft") (take 100 better)) @?= 100,
      testCase "two results of equal subjects have changed figures as seldom" $
        forM_ [1 .. 10] $ \n -> do
          let both = [(take 1 rs, [r {runSubject = "weft-relink"} | r <- drop 1 rs]) | rs <- equalSubjects n 0.03]
              found = length (concat [differences [kept a] [kept b] | (a, b) <- take 300 both])
          -- Of two figures each.
          assertBool (show (n, found)) (found <= 60),
      testCase "in words" $ do
        let runs a b = [run "weft-relink" [] "wall_s" (replicate 5 a), run "ghc" [] "wall_s" (replicate 5 b)]
            has part text = assertBool (T.unpack text) (part `T.isInfixOf` text) :: Assertion
        has "better off on Weft" (verdict (runs 1 10))
        has "(10.0 times less)" (verdict (runs 1 10))
        has "better off on GHC's own manager" (verdict (runs 10 1))
        has "verdict: no difference in wall-clock or CPU time that stands out of the noise\n" (verdict (runs 1 1))
        -- Ratios of a few milliseconds are no verdict.
        has "verdict: this program runs too briefly for one" (verdict (runs 0.015 0.01))
        has "no difference" (verdict (runs 0.025 0.01))
        has "better off on GHC's own manager" (verdict (runs 0.045 0.02))
        has "nothing could be compared" (verdict ([] :: [Run]) :: Text),
      testCase "one round is never one, and shows its ratio; system calls are counted once" $ do
        let text = verdict [run "weft-relink" [] "wall_s" [1], run "ghc" [] "wall_s" [2], run "weft-relink" [] "system_calls" [10], run "ghc" [] "system_calls" [40]]
        assertBool (T.unpack text) ("verdict: too few rounds to say" `T.isInfixOf` text && "wall-clock time: too few rounds to say: 0.50 of that on GHC's manager\n" `T.isInfixOf` text)
        let calls = verdict [Run name [] (M.singleton 0 (M.singleton "system_calls" n)) | (name, n) <- [("weft-relink", 10), ("ghc", 40)]]
        assertBool (T.unpack calls) ("system calls: 0.25 of that on GHC's manager (4.00 times less), counted once" `T.isInfixOf` calls),
      testCase "a change that the other kind of time contradicts is no verdict" $ do
        let both walls cpus = [Run name [] (M.fromList (zip [0 ..] [M.fromList [("wall_s", w), ("cpu_s", c)] | (w, c) <- zip ws cs])) | (name, ws, cs) <- [("weft-relink", walls, cpus), ("ghc", replicate 5 2, replicate 5 2)]]
            worse = [3, 3, 3, 1.5, 1.6]
        assertBool "clear" (says "better off on Weft" (both (replicate 5 1) (replicate 5 2)))
        assertBool (T.unpack (verdict (both (replicate 5 1) worse))) (says "verdict: none: one kind of time" (both (replicate 5 1) worse))
        assertBool "both" (says "saves one kind of time and costs another" (both (replicate 5 1) (replicate 5 4)))
    ]
  where
    says part = (part `T.isInfixOf`) . verdict
    firm runs = any (`says` runs) ["better off", "saves one kind of time", "none: "]
    samplesOfNoise = 1500

-- | Endless pairs of runs with wall-clock and CPU times from one distribution: that many rounds, with noise of a
-- relative size. The noise of the two kinds of time is independent, which makes a false verdict most likely.
equalSubjects :: Int -> Double -> [[Run]]
equalSubjects n noise = go (iterate next 1)
  where
    go numbers = let (mine, others) = splitAt (4 * n) (drop 1 numbers) in pairOf (map value mine) : go others
    pairOf values = [Run name [] (M.fromList (zip [0 ..] [M.fromList [("wall_s", w), ("cpu_s", c)] | (w, c) <- pairsOf part])) | (name, part) <- zip ["weft-relink", "ghc"] (halves values)]
    halves values = let (a, b) = splitAt (2 * n) values in [a, b]
    pairsOf values = case values of
      w : c : rest -> (w, c) : pairsOf rest
      _ -> []
    -- Skewed, as times are: most are close to the least one.
    value s = 10 * exp (noise * negate (log ((fromIntegral (s `div` 65536) + 1) / 281474976710656)))
    next :: Integer -> Integer
    next s = (s * 6364136223846793005 + 1442695040888963407) `mod` 18446744073709551616

-- | Summaries that h2load 1.52 has printed.
h2load :: TestTree
h2load =
  testGroup
    "h2load"
    [ testCase "whole answers and the time are read" $ do
        parseSummary (summary "finished in 707.20ms, 63354.00 req/s, 69.48MB/s" "31677 done, 31677 succeeded, 0 failed, 0 errored, 0 timeout" "31677 2xx, 0 3xx, 0 4xx, 0 5xx")
          @?= Right (Summary 0.7072 31677)
        -- At the end of a timed load some answers have begun that are not whole.
        parseSummary (summary "finished in 1.00s, 98.00 req/s, 98.70MB/s" "98 done, 98 succeeded, 0 failed, 0 errored, 0 timeout" "122 2xx, 0 3xx, 0 4xx, 0 5xx")
          @?= Right (Summary 1 98),
      testCase "a load with errors, or without an answer, has no figure" $
        forM_
          [ ("98 done, 97 succeeded, 1 failed, 0 errored, 0 timeout", "98 2xx, 0 3xx, 0 4xx, 0 5xx"),
            ("98 done, 98 succeeded, 0 failed, 1 errored, 0 timeout", "98 2xx, 0 3xx, 0 4xx, 0 5xx"),
            ("98 done, 98 succeeded, 0 failed, 0 errored, 0 timeout", "97 2xx, 0 3xx, 1 4xx, 0 5xx"),
            ("0 done, 0 succeeded, 0 failed, 0 errored, 0 timeout", "0 2xx, 0 3xx, 0 4xx, 0 5xx")
          ]
          $ \(requests, codes) -> parseSummary (summary "finished in 1.00s, 98.00 req/s, 98.70MB/s" requests codes) @?= Left ("h2load: 98 total, 98 started, " <> requests <> "; " <> codes),
      testCase "an output without a summary is named" $
        parseSummary ["starting benchmark...", "Could not connect to host"] @?= Left "h2load printed no summary: Could not connect to host; starting benchmark..."
    ]
  where
    summary :: Text -> Text -> Text -> [Text]
    summary finished requests codes = ["Application protocol: h2", "", finished, "requests: 98 total, 98 started, " <> requests, "status codes: " <> codes]
