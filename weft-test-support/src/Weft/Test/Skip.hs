-- |
-- Tests that cannot run where they are: a kernel without io_uring, a program that is not installed, a user
-- without the right to do something.
--
-- Such a test passes, for tasty, and its result begins with @SKIPPED: @ and the reason. @scripts/test@ counts
-- these results apart from the tests that passed, and prints the reasons.
module Weft.Test.Skip
  ( skip,
    skipUnless,
    testCase,
    skipAll,
    needProgram,
  )
where

import Control.Exception (Exception (..), throwIO, try)
import Control.Monad (unless)
import Data.Maybe (isJust)
import System.Directory (findExecutable)
import Test.Tasty (TestName, TestTree, testGroup)
import Test.Tasty.HUnit (Assertion, testCaseInfo)
import Test.Tasty.Runners (TreeFold (..), foldTestTree, trivialFold)

-- | Thrown by 'skip', caught by 'testCase'.
newtype Skipped = Skipped String

instance Show Skipped where
  show (Skipped why) = "this test cannot run (" <> why <> "), and was not made by Weft.Test.Skip.testCase"

instance Exception Skipped

-- | End the test here: it cannot run, for this reason. The test has to be made by this module's 'testCase'.
skip :: String -> IO a
skip = throwIO . Skipped

-- | Skip the test, for this reason, unless the condition holds.
skipUnless :: String -> Bool -> Assertion
skipUnless why condition = unless condition (skip why)

-- | Skip the test unless a program of this name is on the path.
needProgram :: FilePath -> Assertion
needProgram name = findExecutable name >>= skipUnless (name <> " is not installed") . isJust

-- | HUnit's, for tests that may 'skip'.
testCase :: TestName -> Assertion -> TestTree
testCase name act = testCaseInfo name $ either report (const "") <$> try act
  where
    report (Skipped why) = "SKIPPED: " <> why

-- | A group of the given name, in which every test of the tree is skipped for this reason. The tree's resources
-- are not made.
skipAll :: TestName -> String -> TestTree -> TestTree
skipAll name why tree = testGroup name [testCase test (skip why) | test <- names]
  where
    names = foldTestTree trivialFold {foldSingle = \_ test _ -> [test]} mempty tree
