-- |
-- Measurements have no effect on the simulated machine ("Weft.Core.Latency").
module Weft.Core.Histogram
  ( Histogram,
    newHistogram,
    observe,
  )
where

import Weft.Core.Time (Duration)

-- | Nothing.
data Histogram = Histogram

newHistogram :: Applicative m => m Histogram
newHistogram = pure Histogram

observe :: Applicative m => Histogram -> Duration -> m ()
observe Histogram _ = pure ()
