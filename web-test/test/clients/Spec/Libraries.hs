-- |
-- Packages of others on "Weft.Http": those that "Libraries" lists.
module Spec.Libraries
  ( tests,
  )
where

import Implementation (implementation)
import Libraries
import Test.Tasty
import Weft.Test.Skip (skip, testCase)

tests :: TestTree
tests = testGroup "libraries" [testGroup group [testCase name (run group name) | name <- names] | (group, names) <- libraryTests]
  where
    run group name = case implementation of
      Nothing -> skip "the packages of the group [frameworks] in scripts/debian-packages are not installed"
      Just found -> maybe (ioError (userError "there is no such test")) id (lookup (group, name) found)
