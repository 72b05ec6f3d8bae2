-- |
-- Warp's time manager as it is from 0.2.2 on: with a span of zero it does nothing.
module Weft.Warp.TimeManager
  ( inertManager,
  )
where

import System.TimeManager (Manager, initialize)

-- | A time manager that watches nothing.
inertManager :: IO Manager
inertManager = initialize 0
