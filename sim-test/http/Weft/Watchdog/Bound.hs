-- |
-- The simulated machine has no watchdog for capabilities.
module Weft.Watchdog.Bound
  ( boundFromEnvironment,
  )
where

boundFromEnvironment :: IO ()
boundFromEnvironment = pure ()
