-- |
-- Description : Whether two subjects differ, or chance explains it
--
-- Pure. The rules by which @weft-bench run@ and @weft-bench compare@ tell a difference from noise. They assume nothing
-- of how the noise is distributed.
module Weft.Bench.Change
  ( Change (..),
    changeOf,
    fewestRounds,

    -- * Chance
    signChance,
    separationChance,
  )
where

import Weft.Bench.Stats

-- | The change between two subjects: the median of the ratios.
data Change
  = Less !Double
  | More !Double
  | -- | No difference that stands out of the noise.
    Same
  | -- | Chance explains any difference between so few rounds.
    TooFew
  deriving (Eq, Show)

-- | The change from the second value of each round to the first one. There is one if the median of the ratios differs
-- from 1 by more than 2 %, and chance alone would have this result in at most 2.5 % of all cases: two metrics that are
-- looked at together (wall-clock and CPU time) then have a false one in at most 5 %. 'Nothing' without a round.
changeOf :: [(Double, Double)] -> Maybe Change
changeOf rounds = verdict <$> median ratios
  where
    verdict middle
      | count < fewestRounds = TooFew
      | abs (middle - 1) <= 0.02 = Same
      | min (signChance count (exceptions middle)) apart > level = Same
      | middle < 1 = Less middle
      | otherwise = More middle
    ratios = [ratio | (a, b) <- rounds, let ratio = a / b, not (isNaN ratio)]
    count = length ratios
    exceptions middle = length (filter (if middle < 1 then (>= 1) else (<= 1)) ratios)
    apart
      | separate (map fst rounds) (map snd rounds) = separationChance count count
      | otherwise = 1
    separate as bs = maximum as < minimum bs || maximum bs < minimum as

-- | The largest chance of a change that is none.
level :: Double
level = 0.025

-- | With fewer rounds there is no verdict: even if all those of one subject lie on one side of all those of the other,
-- chance explains it too often.
fewestRounds :: Int
fewestRounds = 5

-- | The chance that at most so many of @n@ ratios lie on the other side of 1 than the rest, if either side is equally
-- likely (sign test of both sides).
signChance :: Int -> Int -> Double
signChance n exceptions = min 1 (2 * fromIntegral (sum (map (choose n) [0 .. exceptions])) / 2 ^^ n)

-- | The chance that all values of one group lie on one side of all those of the other, if both are from one
-- distribution. The arguments are the sizes of the groups.
separationChance :: Int -> Int -> Double
separationChance a b = min 1 (2 / fromIntegral (choose (a + b) a))

choose :: Int -> Int -> Integer
choose n k = product [fromIntegral (n - k + 1) .. fromIntegral n] `div` product [1 .. fromIntegral k]
