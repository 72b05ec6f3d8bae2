-- |
-- The loops of hybrid threads under many interleavings: production source of the scheduler, the interpreter, parking,
-- MVars, timers and descriptors on the simulated machine of @weft-core\/sim@. The ready queue's arrays and weak
-- references, which are primitive operations, are replaced by modules with the same names (@sim@).
module Main (main) where

import LoopScenario (loopTests)
import ParkScenario (parkTests)
import ScopeScenario (scopeTests)
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  -- One simulation at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain (testGroup "hybrid-loops" [parkTests, loopTests, scopeTests])
