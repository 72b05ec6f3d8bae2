-- |
-- The suite @tcp@: the tests of the stack that do not need the kernel's TCP or network devices.
module Main (main) where

import qualified Spec.Answers
import qualified Spec.Bounds
import qualified Spec.Coalesce
import qualified Spec.Devices
import qualified Spec.Ending
import qualified Spec.Hybrid
import qualified Spec.Interrupted
import qualified Spec.Links
import qualified Spec.Neighbours
import qualified Spec.Oracle
import qualified Spec.Replay
import qualified Spec.Reports
import qualified Spec.Rfc
import qualified Spec.Simulated
import qualified Spec.Stacks
import qualified Spec.Throughput
import qualified Spec.Wire
import Test.Tasty hiding (defaultMain)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = defaultMain (testGroup "tcp" [Spec.Wire.tests, Spec.Oracle.tests, Spec.Rfc.tests, Spec.Coalesce.tests, Spec.Simulated.tests, Spec.Throughput.tests, Spec.Stacks.tests, Spec.Bounds.tests, Spec.Answers.tests, Spec.Ending.tests, Spec.Neighbours.tests, Spec.Devices.tests, Spec.Links.tests, Spec.Hybrid.tests, Spec.Interrupted.tests, Spec.Replay.tests, Spec.Reports.tests])
