-- |
-- Packages of others on "Weft.Http" and "Weft.Http.Client.Manager": those that "Libraries" lists.
module Spec.Libraries
  ( tests,
  )
where

import ClientImplementation (clientImplementation)
import Implementation (implementation)
import Libraries
import Test.Tasty
import Weft.Test.Skip (skip, testCase)

tests :: TestTree
tests =
  testGroup
    "libraries"
    [ testGroup group [testCase name (run found group name) | name <- names]
      | (listed, found) <- [(libraryTests, implementation), (clientTests, clientImplementation)],
        (group, names) <- listed
    ]
  where
    run found group name = case found of
      Nothing -> skip "the packages of the group [frameworks] in scripts/debian-packages are not installed"
      Just acts -> maybe (ioError (userError "there is no such test")) id (lookup (group, name) acts)
