{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Tests of the timers' benchmarks
module TimerTests (timers) where

import Data.Aeson (eitherDecode)
import qualified Data.Map.Strict as M
import Data.Maybe (mapMaybe)
import qualified Data.Text as T
import Sample
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Bench.Delay
import Weft.Bench.Options (defaultPlan)
import Weft.Bench.Plot (chartOf)
import Weft.Bench.Stats
import Weft.Bench.Svg
import Weft.Bench.Timing
import Weft.Bench.Types

timers :: TestTree
timers =
  testGroup
    "timers"
    [ testCase "a program's figures" $ do
        eitherDecode "{\"wall_s\": 1.5, \"early\": 0, \"cpu_s\": 2.8e-2}"
          @?= Right (SubjectMetrics (M.fromList [("wall_s", 1.5), ("early", 0), ("cpu_s", 0.028)]))
        either (const True) (const False) (eitherDecode "{\"wall_s\": \"long\"}" :: Either String SubjectMetrics) @? "words",
      testCase "ghc is spared ten million threads" $ do
        threadsOf "ghc" @?= [10000, 100000, 1000000, 1000000]
        threadsOf "weft" @?= [10000, 100000, 1000000, 10000000, 1000000]
        threadsOf "go" @?= threadsOf "weft",
      testCase "the paper's figure" $ do
        let chart = chartOf "t" "wall_s" (paperFigure measured)
        case chartAxis chart of
          Line name places -> (name, places) @?= ("threads", [10, 100, 1000])
          Groups _ -> assertFailure "groups"
        [(seriesName s, map (fmap summaryMedian) (seriesValues s)) | s <- chartSeries chart]
          @?= [("weft", map Just [10, 100, 1000]), ("ghc", [Just 30, Just 300, Nothing])]
    ]
  where
    threadsOf name = mapMaybe (threads . trialParams) (trialsOf name)
    trialsOf name = [t | t <- delayTrials defaultPlan, subjectName (trialSubject t) == T.pack name]
    threads params = case lookup "threads" params of
      Just (Count n) -> Just n
      _ -> Nothing
    at name n capabilities =
      run name [("threads", Count n), ("capabilities", Count capabilities)] "wall_s" . pure
    measured =
      [at "weft" n 2 (fromIntegral n) | n <- [10, 100, 1000]]
        ++ [at "ghc" 10 2 30, at "ghc" 100 2 300]
        ++ [at "weft" 100 1 7, at "ghc" 100 1 7]
