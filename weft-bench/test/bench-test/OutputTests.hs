{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Tests of JSON, tables and charts
module OutputTests (json, tables, charts) where

import Data.Aeson (Value, decode)
import Data.ByteString.Builder (toLazyByteString)
import qualified Data.Text as T
import Sample
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (Positive (..), testProperty)
import Weft.Bench.Bounds
import Weft.Bench.Json
import Weft.Bench.Options (defaultPlan)
import Weft.Bench.Plot (chartOf)
import Weft.Bench.Runner
import Weft.Bench.Stats
import Weft.Bench.Svg
import Weft.Bench.Table
import Weft.Bench.Types
import Weft.Tools.Numbers (columns, renderNumber)

outcome :: Outcome
outcome =
  Outcome
    { outcomeRuns = sample,
      outcomeBounds = map (judge (const True) sample) [atMost "a < b" ratio 0.5, atMost "go" (on "go" [] "x") 1],
      outcomeMissing = [Missing "go" "no go-pong"],
      outcomeFailures = [Failure "ghc" sixtyFour "it \"ended\""]
    }

fakeBenchmark :: Benchmark
fakeBenchmark = Benchmark "pong" "a title" (const []) [] [] [] (const []) ["cpu_us_per_op", "p99_us"] id

json :: TestTree
json =
  testGroup
    "json"
    [ testCase "a figure too close to its limit is there, without a verdict" $ do
        let close = toLazyByteString (outcomeJson (Machine 2 "6.1.0" "9.0.2" "0.1.0" Nothing Nothing Nothing) (Settings defaultPlan [] Nothing False []) fakeBenchmark outcome {outcomeBounds = [judge (const True) sample (atMost "a < b" ratio 1.15)]})
            text = T.pack (show close)
        mapM_ (\part -> assertBool (T.unpack (part <> " in " <> text)) (T.replace "\"" "\\\"" part `T.isInfixOf` text)) ["\"figure\":1.2,", "\"holds\":null", "\"reason\":\"too close to call\""],
      testCase "has the form that all benchmarks share" $ decode rendered @?= (decode expected :: Maybe Value),
      testCase "is an array for several" $
        fmap length (decode (toLazyByteString (arrayJson [one, one])) :: Maybe [Value]) @?= Just 2
    ]
  where
    rendered = toLazyByteString one
    one = outcomeJson (Machine 2 "6.1.0" "9.0.2" "0.1.0" Nothing Nothing Nothing) (Settings defaultPlan ["-A4m"] Nothing False []) fakeBenchmark outcome
    expected =
      "{\"bench\": \"pong\", \"machine\": {\"cores\": 2, \"kernel\": \"6.1.0\", \"ghc\": \"9.0.2\", \"weft\": \"0.1.0\"},\
      \\"settings\": {\"rounds\": 5, \"duration_s\": 3, \"warmup_s\": 1, \"quick\": false, \"rts\": [\"-A4m\"]},\
      \\"runs\": [\
      \{\"subject\": \"weft\", \"params\": {\"connections\": 64, \"capabilities\": 1}, \"metrics\": {\"cpu_us_per_op\": 9},\
      \\"min\": {\"cpu_us_per_op\": 6}, \"max\": {\"cpu_us_per_op\": 12},\
      \\"rounds\": [{\"cpu_us_per_op\": 6}, {\"cpu_us_per_op\": 12}, {\"cpu_us_per_op\": 9}]},\
      \{\"subject\": \"c-epoll\", \"params\": {\"connections\": 64, \"capabilities\": 1},\
      \\"settings\": \"for each core a thread with a loop and a listener (SO_REUSEPORT)\", \"metrics\": {\"cpu_us_per_op\": 6},\
      \\"min\": {\"cpu_us_per_op\": 5}, \"max\": {\"cpu_us_per_op\": 12},\
      \\"rounds\": [{\"cpu_us_per_op\": 5}, {\"cpu_us_per_op\": 12}, {\"cpu_us_per_op\": 6}]},\
      \{\"subject\": \"weft\", \"params\": {\"connections\": 400, \"capabilities\": 1}, \"metrics\": {\"cpu_us_per_op\": 8},\
      \\"min\": {\"cpu_us_per_op\": 8}, \"max\": {\"cpu_us_per_op\": 8},\
      \\"rounds\": [{\"cpu_us_per_op\": 8}, {\"cpu_us_per_op\": 8}, {\"cpu_us_per_op\": 8}]}],\
      \\"bounds\": [\
      \{\"name\": \"a < b\", \"figure\": 1.2, \"limit\": 0.5, \"holds\": false, \"min\": 1, \"max\": 1.5},\
      \{\"name\": \"go\", \"figure\": null, \"limit\": 1, \"holds\": null, \"reason\": \"needs go\"}],\
      \\"missing\": [{\"subject\": \"go\", \"why\": \"no go-pong\"}],\
      \\"failed\": [{\"subject\": \"ghc\", \"params\": \"connections=64 capabilities=1\", \"message\": \"it \\\"ended\\\"\"}]}"

tables :: TestTree
tables =
  testGroup
    "table"
    [ testCase "numbers" $
        map renderNumber [0, 0.0012, 0.5, 1.234, 12.34, 1234.5, 1 / 0] @?= ["0", "0.0012", "0.50", "1.23", "12.3", "1234", "-"],
      testCase "columns line up" $ columns [["a", "bb", "c"], ["aaa", "b", "c"]] @?= ["a    bb  c", "aaa  b   c"],
      testCase "runs, bounds, missing peers and failures are printed" $ do
        let text = renderOutcome defaultPlan fakeBenchmark outcome
            says part = assertBool (T.unpack (part <> " in\n" <> text)) (part `T.isInfixOf` text)
        mapM_ says ["pong: a title (5 rounds", "connections=64 capabilities=1", "9.00 (6.00..12.0)", "MISSED"]
        mapM_ says ["NOT MEASURED, needs go", "missing: go: no go-pong", "failed: ghc connections=64 capabilities=1: it \"ended\"", "\nc-epoll: for each core a thread"],
      testCase "the verdicts of several benchmarks" $ do
        let text = renderVerdicts [(fakeBenchmark, outcome), (fakeBenchmark {benchName = "other"}, Outcome [] [] [] [Failure s [] "no root" | s <- ["weft", "ghc"]])]
            says part = assertBool (T.unpack (part <> " in\n" <> text)) (part `T.isInfixOf` T.unwords (T.words text))
        mapM_ says ["benchmark bound figure limit verdict", "pong a < b 1.20 (1.00..1.50) 0.50 MISSED", "pong go - 1.00 NOT MEASURED, needs go"]
        mapM_ says ["2 bounds, 1 missed, 1 not measured", "without a bound of its own: other", "pong: missing: go: no go-pong", "pong: failed: ghc connections=64"]
        mapM_ says ["other: nothing was measured", "other: failed 2 times (weft, ghc): no root"]
    ]

charts :: TestTree
charts =
  testGroup
    "chart"
    [ testCase "round marks" $ map ticks [0, 1, 7.2, 100, 0.09] @?= [[0, 1], fifths 0.2, [0, 2, 4, 6, 8], fifths 20, fifths 0.02],
      testProperty "marks begin at zero and end above the largest value" $ \(Positive v) ->
        let marks = ticks v in head' marks == Just 0 && last marks >= v * 0.999 && length marks <= 7,
      testCase "marks of a logarithmic axis" $ do
        decades 0.05 46 @?= [0.01, 0.1, 1, 10, 100]
        decades 1 100 @?= [1, 10, 100]
        decades 10 10 @?= [10, 100],
      testCase "few parameters make bars" $ case chartAxis (chartOf "t" "cpu_us_per_op" sample) of
        Groups names -> names @?= ["connections 64", "connections 400"]
        Line _ _ -> assertFailure "lines",
      testCase "three numbers make lines" $ do
        let chart = chartOf "t" "x" [run s [("threads", Count n)] "x" [1] | s <- ["a", "b"], n <- [100, 10, 1], (s, n) /= ("b", 10)]
        case chartAxis chart of
          Line name places -> (name, places) @?= ("threads", [1, 10, 100])
          Groups _ -> assertFailure "groups"
        map (map (fmap summaryMedian) . seriesValues) (chartSeries chart) @?= [[Just 1, Just 1, Just 1], [Just 1, Nothing, Just 1]],
      testCase "many groups have names in smaller letters" $ do
        let sizes n = [read (T.unpack (T.takeWhile (/= '"') part)) :: Double | part <- drop 1 (T.splitOn "font-size=\"" (renderChart (chartOf "t" "cpu_us_per_op" [run "weft" [("mode", Word "throughput"), ("number", Count k), ("other", Count (k `mod` 2))] "cpu_us_per_op" [1234567] | k <- [1 .. n]])))]
        minimum (sizes 2) @?= 11
        assertBool "smaller" (minimum (sizes 20) < 10 && minimum (sizes 40) < 8 && minimum (sizes 200) >= 6),
      testCase "text is escaped" $
        assertBool "title" ("a &lt; b &amp; c" `T.isInfixOf` renderChart (Chart "a < b & c" "" (Groups []) []))
    ]
  where
    fifths step = map (* step) [0 .. 5]
    head' list = case list of
      first : _ -> Just first
      [] -> Nothing
