-- |
-- A replacement without effect, since the simulated machine measures nothing ("Weft.Core.Latency").
module Weft.Core.Histogram
  ( Histogram,
    newHistogram,
    observe,
  )
where

import Weft.Core.Time (Duration)

-- | A histogram without contents.
data Histogram = Histogram

newHistogram :: Applicative m => m Histogram
newHistogram = pure Histogram

observe :: Applicative m => Histogram -> Duration -> m ()
observe Histogram _ = pure ()
