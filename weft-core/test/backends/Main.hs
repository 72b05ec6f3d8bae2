-- |
-- The suite @backends@: the laws of "Weft.Core.Backend", run on every back end of
-- this build. The tests of one that the kernel refuses are skipped.
module Main (main) where

import Laws
import System.Environment (setEnv)
import Test.Tasty
import Weft.Backend.Choice
import Weft.Test.Configurations (configurations)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  -- The laws look at the numbers of descriptors: one at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  groups <- configurations (const True) backendNames >>= traverse group
  defaultMain (localOption (mkTimeout limit) (testGroup "back ends" groups))
  where
    limit = 120000000

group :: String -> IO TestTree
group name = do
  reason <- whyUnavailable name
  pure (maybe id (skipAll name) reason (laws name (newBackend name)))
