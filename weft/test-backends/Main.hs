-- |
-- The suite @backends@: the laws of "Weft.Core.Backend", run on every back end of
-- this build. One that the kernel refuses is a test of that name which passes and
-- gives the reason.
module Main (main) where

import Laws
import System.Environment (setEnv)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Backend

main :: IO ()
main = do
  -- The laws look at the numbers of descriptors: one at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  groups <- traverse group backendNames
  defaultMain (localOption (mkTimeout limit) (testGroup "back ends" groups))
  where
    limit = 120000000

group :: String -> IO TestTree
group name = maybe (laws name (newBackend name)) refused <$> whyUnavailable name
  where
    refused why = testCase (name <> " is not to be had: " <> why) (pure ())
