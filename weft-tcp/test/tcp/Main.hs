-- |
-- The suite @tcp@: everything that needs no kernel.
module Main (main) where

import qualified Spec.Bounds
import qualified Spec.Ending
import qualified Spec.Hybrid
import qualified Spec.Neighbours
import qualified Spec.Oracle
import qualified Spec.Replay
import qualified Spec.Rfc
import qualified Spec.Simulated
import qualified Spec.Stacks
import qualified Spec.Throughput
import qualified Spec.Wire
import Test.Tasty

main :: IO ()
main = defaultMain (testGroup "tcp" [Spec.Wire.tests, Spec.Oracle.tests, Spec.Rfc.tests, Spec.Simulated.tests, Spec.Throughput.tests, Spec.Stacks.tests, Spec.Bounds.tests, Spec.Ending.tests, Spec.Neighbours.tests, Spec.Hybrid.tests, Spec.Replay.tests])
