-- |
-- The virtual clock has no ticks.
module Weft.FFI.Clock
  ( coarseNow,
  )
where

import Data.Int (Int64)
import Simulation (virtualTime)

coarseNow :: IO Int64
coarseNow = virtualTime
