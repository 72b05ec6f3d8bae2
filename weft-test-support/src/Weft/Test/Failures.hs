-- |
-- A reporter beside tasty's own: when a suite has ended it writes the tests that failed to the file that
-- @WEFT_TEST_FAILURES@ names, so that @scripts/test@ can run each of them again. It writes nothing else anywhere, and
-- nothing at all without the variable.
--
-- A test begins with its name in the first column, with the names of the groups around it and dots between, as a
-- pattern of tasty has it in @$0@. What the test said follows, each line indented by two blanks.
module Weft.Test.Failures
  ( failures,
  )
where

import Control.Concurrent.STM (readTVarIO)
import Data.Foldable (toList)
import System.Environment (lookupEnv)
import System.IO (IOMode (WriteMode), hPutStr, hSetEncoding, utf8, withFile)
import Test.Tasty (TestName)
import Test.Tasty.Ingredients (Ingredient (..))
import Test.Tasty.Runners (Result (..), Status (..), resultSuccessful, testsNames)

-- | The reporter, for @composeReporters@.
failures :: Ingredient
failures = TestReporter [] $ \options tree -> Just $ \statuses -> pure $ \_ -> do
  file <- lookupEnv "WEFT_TEST_FAILURES"
  ended <- mapM readTVarIO (toList statuses)
  mapM_ (`write` concat [entry name result | (name, Done result) <- zip (testsNames options tree) ended, not (resultSuccessful result)]) file
  -- Whether the run succeeded is for the other reporter to say.
  pure True
  where
    write file text = withFile file WriteMode $ \h -> hSetEncoding h utf8 >> hPutStr h text

entry :: TestName -> Result -> String
entry name result = unlines (name : map ("  " <>) (lines said))
  where
    said = if null (resultDescription result) then resultShortDescription result else resultDescription result
