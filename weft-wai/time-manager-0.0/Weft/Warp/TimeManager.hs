-- |
-- Warp's time manager as it was up to 0.0: a reaper, a thread that looks through a
-- list.
module Weft.Warp.TimeManager
  ( inertManager,
  )
where

import Control.Reaper (reaperAdd)
import System.TimeManager (Manager, initialize)

-- | A time manager that watches nothing: what is registered is forgotten. (Its thread
-- would be started by the first registration.)
inertManager :: IO Manager
inertManager = (\manager -> manager {reaperAdd = \_ -> pure ()}) <$> initialize 1000000
