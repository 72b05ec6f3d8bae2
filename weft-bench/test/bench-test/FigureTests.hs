{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Tests of medians, percentiles, figures and bounds
module FigureTests (statistics, figures, judging) where

import Data.List (sort)
import qualified Data.Map.Strict as M
import Sample
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (Arbitrary (..), NonEmptyList (..), choose, property, testProperty, (===))
import Weft.Bench.Bounds
import Weft.Bench.Stats
import Weft.Bench.Types

-- ---------------------------------------------------------------------------------------------------------------
-- Statistics

statistics :: TestTree
statistics =
  testGroup
    "statistics"
    [ testCase "nearest rank" $ do
        percentile 50 [1 .. 100 :: Int] @?= Just 50
        percentile 99 [1 .. 100 :: Int] @?= Just 99
        percentile 99 [1 .. 1000 :: Int] @?= Just 990
        percentile 100 [3, 1, 2 :: Int] @?= Just 3
        percentile 0 [3, 1, 2 :: Int] @?= Just 1
        percentile 99 [7 :: Int] @?= Just 7
        percentile 50 ([] :: [Int]) @?= Nothing,
      testProperty "a percentile is a sample with enough samples below it" $
        \(NonEmpty samples) (Percent p) -> case percentile p (samples :: [Int]) of
          Nothing -> property False
          Just s ->
            let below = fromIntegral (length (filter (<= s) samples)) :: Double
             in property (s `elem` samples && below * 100 >= p * fromIntegral (length samples) * (1 - 1e-12)),
      testCase "median" $ do
        median [3, 1, 2] @?= Just 2
        median [4, 1, 2, 3] @?= Just 2.5
        median [] @?= Nothing,
      testProperty "a median is between the smallest and the largest" $ \(NonEmpty samples) ->
        fmap (\(Summary m low high) -> low <= m && m <= high) (summarize samples) === Just True,
      testProperty "order does not matter" $ \samples -> summarize samples === summarize (sort samples)
    ]

newtype Percent = Percent Double deriving (Show)

instance Arbitrary Percent where
  arbitrary = Percent <$> choose (0, 100)

-- ---------------------------------------------------------------------------------------------------------------
-- Figures and bounds

figures :: TestTree
figures =
  testGroup
    "figures"
    [ testCase "ratios are taken within a round" $
        M.elems (figureRounds sample ratio) @?= [1.2, 1, 1.5],
      testCase "the figure is the median of the rounds" $
        summarize (M.elems (figureRounds sample ratio)) @?= Just (Summary 1.2 1 1.5),
      testCase "a round that one side lacks is left out" $ do
        let lacking = map (\r -> if runSubject r == "c-epoll" then r {runRounds = M.delete 1 (runRounds r)} else r) sample
        M.toList (figureRounds lacking ratio) @?= [(0, 1.2), (2, 1.5)],
      testCase "difference and worst" $ do
        let (a, b) = (on "weft" sixtyFour "cpu_us_per_op", on "weft" fourHundred "cpu_us_per_op")
        M.elems (figureRounds sample (a `Minus` b)) @?= [-2, 4, 1]
        M.elems (figureRounds sample (Worst [a, b])) @?= [8, 12, 9],
      testCase "a run has exactly the parameters of the figure" $ do
        M.elems (figureRounds sample (on "weft" (reverse fourHundred) "cpu_us_per_op")) @?= [8, 8, 8]
        -- If the run itself failed, one with further parameters does not stand in for it.
        let other = run "weft" (("size_kib", Count 1) : sixtyFour) "cpu_us_per_op" [1]
        figureRounds [other] (on "weft" sixtyFour "cpu_us_per_op") @?= M.empty,
      testCase "zero over zero is not a figure" $
        figureRounds [run "a" [] "x" [0], run "b" [] "x" [0]] (on "a" [] "x" `Over` on "b" [] "x") @?= M.empty
    ]

judging :: TestTree
judging =
  testGroup
    "bounds"
    [ testCase "hold, are missed, or are too close to call" $ do
        verdictOf (atMost "" ratio 1.8) @?= Holds
        verdictOf (atMost "" ratio 0.7) @?= Missed
        -- The rounds are 1, 1.2 and 1.5: another three might have their median on the other side of these.
        map (verdictOf . atMost "" ratio) [0.8, 1, 1.2, 1.5, 1.7] @?= replicate 5 TooClose
        missed (judge (const True) sample (atMost "" ratio 1.2)) @?= False
        holds (judge (const True) sample (atMost "" ratio 1.2)) @?= Nothing,
      testCase "what repeats exactly is never too close" $ do
        let counted limit = judgedVerdict (judge (const True) [run "weft" [] "syscalls_per_op" [2.29]] (atMost "" (on "weft" [] "syscalls_per_op") limit))
        (counted 2.3, counted 2.28) @?= (Holds, Missed),
      testCase "five rounds that all agree are not too close, however near; three have to be a tenth away" $ do
        let judged rounds = judgedVerdict (judge (const True) [run "weft" [] "x" rounds] (atMost "" (on "weft" [] "x") 1))
        judged [1, 1, 1, 1, 1] @?= Holds
        [judged [x, x, x] | x <- [0.89, 0.92, 1, 1.08, 1.11]] @?= [Holds, TooClose, TooClose, TooClose, Missed],
      testCase "a percentile of times is clear with few rounds only by a factor of two" $ do
        let judged rounds = judgedVerdict (judge (const True) [run "weft" [] "p99_us" rounds] (atMost "" (on "weft" [] "p99_us") 200))
        map judged [[141, 150], [304, 290], [99, 80], [410, 500], [99, 450], [150, 150, 150, 150, 150]] @?= [TooClose, TooClose, Holds, Missed, TooClose, Holds],
      testProperty "a verdict is that of the median, or none" $ \(NonEmpty list) limit ->
        let judged = judge (const True) [run "weft" [] "x" list] (atMost "" (on "weft" [] "x") limit)
         in case judgedVerdict judged of
              TooClose -> property True
              verdict -> verdict === if maybe False (<= limit) (median list) then Holds else Missed,
      testCase "are not measured without a subject" $ do
        let judged = judge (const True) sample (atMost "" (ratio `Over` on "go" sixtyFour "cpu_us_per_op") 1)
        judgedVerdict judged @?= NotMeasured
        judgedReason judged @?= "needs go"
        missed judged @?= True
        holds judged @?= Nothing,
      testCase "are not measured without a count, and say which" $ do
        let judged = judge (const True) sample (atMost "" (on "weft" sixtyFour "syscalls_per_op") 1)
        (judgedVerdict judged, judgedReason judged) @?= (NotMeasured, "needs syscalls_per_op of weft"),
      testCase "do not count when a subject was not asked for" $ do
        let judged = judge (/= "c-epoll") sample (atMost "" ratio 1)
        judgedVerdict judged @?= NotAsked
        missed judged @?= False,
      testCase "what must never happen is judged by every round" $
        judgedVerdict (judge (const True) [run "weft" [] "wakeups" [0, 0, 1]] (never "" (on "weft" [] "wakeups"))) @?= Missed,
      testCase "a bound is settled when the middle half of the rounds lies on one side of it" $ do
        settled [run "weft" [] "x" [1, 2, 3, 9]] (atMost "" (on "weft" [] "x") 4) @?= True
        settled [run "weft" [] "x" [1, 2, 6, 9]] (atMost "" (on "weft" [] "x") 4) @?= False,
      testCase "a single round settles a bound only far from the limit" $
        [settled [run "weft" [] "x" [x]] (atMost "" (on "weft" [] "x") 4) | x <- [1, 2.9, 3.5, 4.5, 5.1]] @?= [True, True, False, False, False],
      testCase "a bound is missed by two rounds or more, and settled by three" $ do
        let bound = atMost "" (on "weft" [] "x") 1
            judged rounds = (judgedVerdict (judge (const True) [run "weft" [] "x" rounds] bound), settled [run "weft" [] "x" rounds] bound)
        map judged [[2.45], [2.45, 0.4], [2.45, 2], [2.45, 2, 2.2]] @?= [(TooClose, False), (TooClose, False), (Missed, False), (Missed, True)]
        map (\rounds -> judgedReason (judge (const True) [run "weft" [] "x" rounds] bound)) [[2.45], [2.45, 0.4]] @?= ["too close to call after one round", "too close to call"],
      testCase "a size in memory needs a fiftieth" $ do
        let judged rounds = judgedVerdict (judge (const True) [run "weft" [] "rss_bytes_per_idle" rounds] (atMost "" (on "weft" [] "rss_bytes_per_idle") 4000))
        map judged [[3571], [4100], [4100, 4110], [3950], [3950, 3970, 3960], [3950, 3951, 3952, 3951, 3950]] @?= [Holds, TooClose, Missed, TooClose, TooClose, Holds],
      testCase "a difference needs five rounds, or three far from the limit" $ do
        let verdict rounds = judgedVerdict (judge (const True) [run "a" [] "x" rounds, run "b" [] "x" (80 <$ rounds)] (atMost "" (on "a" [] "x" `Minus` on "b" [] "x") 3))
        map verdict [[75], [75, 76], [75, 76, 75], [82, 81, 82], [82, 81, 82, 81], [82, 81, 82, 81, 82]] @?= [TooClose, TooClose, Holds, TooClose, TooClose, Holds],
      testCase "three rounds close to the limit do not settle a bound, five that agree do" $ do
        let bound = atMost "" (on "weft" [] "x") 1
            judged rounds = (judgedVerdict (judge (const True) [run "weft" [] "x" rounds] bound), settled [run "weft" [] "x" rounds] bound)
        map judged [[0.95, 0.951, 0.952], [0.95, 0.951, 0.952, 0.95, 0.951], [0.99, 1.001, 0.98, 1.01, 1]] @?= [(TooClose, False), (Holds, True), (TooClose, True)]
        settled [run "weft" [] "wakeups" [1]] (never "" (on "weft" [] "wakeups")) @?= True,
      testCase "of zero hold for zero" $
        judgedVerdict (judge (const True) [run "weft" [] "wakeups" [0, 0]] (atMost "" (on "weft" [] "wakeups") 0)) @?= Holds
    ]
  where
    verdictOf = judgedVerdict . judge (const True) sample
