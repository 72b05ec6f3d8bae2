{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- The start of a test suite. A test that takes longer than @WEFT_TEST_STALL@ seconds (100) is named on stderr, with
-- what each Haskell thread of the process waits for. @scripts/test@ ends it later. This limit, and those of single
-- tests, are multiplied by 'patience'. The tests that failed are also written to a file, if one is asked for
-- ("Weft.Test.Failures").
--
-- The suites open up to 4,000 descriptors at a time, and many systems allow a process 1,024 unless it asks for more
-- (@ulimit -n@): the soft limit is raised, as far as the hard one allows.
module Weft.Test.Main
  ( defaultMain,
  )
where

import Control.Concurrent (rtsSupportsBoundThreads)
import Control.Exception (bracket)
import Control.Monad (when)
import Data.Maybe (fromMaybe)
import Data.Tagged (Tagged, retag)
import Foreign.C.String (CString, withCString)
import Foreign.C.Types (CInt (..))
import System.Environment (lookupEnv)
import System.Posix.Resource (Resource (ResourceOpenFiles), ResourceLimit (..), ResourceLimits (..), getResourceLimit, setResourceLimit)
import Test.Tasty (TestName, TestTree)
import qualified Test.Tasty as Tasty
import Test.Tasty.Ingredients (Ingredient, composeReporters)
import Test.Tasty.Ingredients.Basic (consoleTestReporter, listingTests)
import Test.Tasty.Options (OptionDescription)
import Test.Tasty.Providers (IsTest (..))
import Test.Tasty.Runners (TestTree (..))
import Text.Read (readMaybe)
import Weft.Test.Failures (failures)
import Weft.Test.Limits (patience)

-- | Run the tests, as tasty's function does.
defaultMain :: TestTree -> IO ()
defaultMain tree = do
  raiseOpenFiles
  limit <- lookupEnv "WEFT_TEST_STALL"
  let stall = round (patience * fromMaybe 100 (limit >>= readMaybe))
      limits = if patience == 1 then tree else patientTree tree
  -- The threads can be listed safely only by the threaded run-time system.
  Tasty.defaultMainWithIngredients ingredients (if rtsSupportsBoundThreads then watchedTree stall [] limits else limits)

-- | tasty's own, with the file of failed tests.
ingredients :: [Ingredient]
ingredients = [listingTests, composeReporters consoleTestReporter failures]

-- | Raise the soft limit on open files to 8,192, or to the hard limit if that is lower. No further: a program that
-- closes all descriptors before it runs another would take seconds where the hard limit is in the millions.
raiseOpenFiles :: IO ()
raiseOpenFiles = do
  limits <- getResourceLimit ResourceOpenFiles
  case (softLimit limits, hardLimit limits) of
    (ResourceLimit soft, ResourceLimit hard) -> raise limits soft (min wanted hard)
    (ResourceLimit soft, _) -> raise limits soft wanted
    _ -> pure ()
  where
    wanted = 8192
    raise limits soft most = when (soft < most) (setResourceLimit ResourceOpenFiles limits {softLimit = ResourceLimit most})

-- | A test with its name, and the number of seconds after which it is reported.
data Watched t = Watched TestName Int t

instance IsTest t => IsTest (Watched t) where
  run options (Watched name limit test) progress = bracket started c_ended (const (run options test progress))
    where
      started = withCString name (\n -> c_started n (fromIntegral limit))
  testOptions = retag (testOptions :: Tagged t [OptionDescription])

-- | Watch each test of a tree. The names of the groups around it come before its own, the innermost one first here.
watchedTree :: Int -> [TestName] -> TestTree -> TestTree
watchedTree limit groups tree = case tree of
  SingleTest name test -> SingleTest name (Watched (foldl (\inner outer -> outer <> ", " <> inner) name groups) limit test)
  TestGroup name trees -> TestGroup name (map (watchedTree limit (name : groups)) trees)
  PlusTestOptions change inner -> PlusTestOptions change (watchedTree limit groups inner)
  WithResource resource inner -> WithResource resource (watchedTree limit groups . inner)
  AskOptions inner -> AskOptions (watchedTree limit groups . inner)
  other -> other

-- | Multiply each test's time limit, wherever it is set.
patientTree :: TestTree -> TestTree
patientTree tree = case tree of
  TestGroup name trees -> TestGroup name (map patientTree trees)
  PlusTestOptions change inner -> PlusTestOptions change (patientTree inner)
  WithResource resource inner -> WithResource resource (patientTree . inner)
  AskOptions inner -> AskOptions (patientTree . inner)
  After kind before inner -> After kind before (patientTree inner)
  SingleTest _ _ -> Tasty.adjustOption longer tree
  where
    longer limit = case limit of
      Tasty.Timeout us _ -> Tasty.mkTimeout (round (patience * fromInteger us))
      Tasty.NoTimeout -> Tasty.NoTimeout

foreign import ccall unsafe "weft_test_started" c_started :: CString -> CInt -> IO CInt

foreign import ccall unsafe "weft_test_ended" c_ended :: CInt -> IO ()
