-- |
-- The core's protocols under every interleaving of their threads: production
-- source on the simulated machine of @sim/@. The protocols that are broken on
-- purpose must be found out.
module Main (main) where

import FileRingScenario (fileRingTests)
import ManagerScenario (managerTests)
import ReadinessScenario (channelTests)
import SearchScenario (searchTests)
import Test.Tasty hiding (defaultMain)
import TimersScenario (timersTests)
import WakeScenario (wakeTests)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  wake <- wakeTests
  channel <- channelTests
  timers <- timersTests
  manager <- managerTests
  fileRing <- fileRingTests
  defaultMain (testGroup "interleavings" [searchTests, wake, channel, timers, manager, fileRing])
