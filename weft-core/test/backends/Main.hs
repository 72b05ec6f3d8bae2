-- |
-- The suite @backends@: the laws of "Weft.Core.Backend", run on every back end of
-- this build. The tests of one that the kernel refuses are skipped.
module Main (main) where

import Control.Exception (bracket_)
import Laws
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Weft.Backend.Choice
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  -- The laws look at the numbers of descriptors: one at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  groups <- configurations (const True) backendNames >>= traverse (\name -> group name (laws name (newBackend name)))
  -- Submission queue full, completions that overflow.
  tiny <- configurations (const False) [2] >>= traverse (\n -> group "io_uring" (lawsOfOverflow ("io_uring, rings of " <> show n) (sized n (newBackend "io_uring"))))
  defaultMain (localOption (mkTimeout limit) (testGroup "back ends" (groups <> tiny)))
  where
    limit = 120000000

group :: String -> TestTree -> IO TestTree
group name tests = do
  reason <- whyUnavailable name
  pure (maybe id (skipAll name) reason tests)

-- | Run an action in which new rings have the given number of entries.
sized :: Int -> IO a -> IO a
sized n = bracket_ (preferRingEntries (Just (fromIntegral n))) (preferRingEntries Nothing)
