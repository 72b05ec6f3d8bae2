-- |
-- The core's protocols under every interleaving of their threads: production
-- source on the simulated machine of @sim/@. The protocols that are broken on
-- purpose must be found out.
module Main (main) where

import FileRingScenario (fileRingTests)
import ManagerScenario (managerTests)
import ReadinessScenario (channelTests)
import SearchScenario (searchTests)
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import ThrowScenario (throwTests)
import TimersScenario (timersTests)
import WakeScenario (wakeTests)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  -- One simulation at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  wake <- wakeTests
  channel <- channelTests
  timers <- timersTests
  manager <- managerTests
  fileRing <- fileRingTests
  defaultMain (testGroup "interleavings" [searchTests, throwTests, wake, channel, timers, manager, fileRing])
