-- |
-- The client of the web servers among the examples.
module Curl (curl) where

import System.Exit (ExitCode (..))
import System.Process (readProcessWithExitCode)
import Test.Tasty.HUnit (assertFailure)
import Weft.Test.Skip (needProgram)

-- | Run curl and return its output. Fails if curl fails, and skips the test where there is no curl.
curl :: [String] -> IO String
curl arguments = do
  needProgram "curl"
  (code, out, err) <- readProcessWithExitCode "curl" (["-sS", "--noproxy", "*", "--max-time", "60"] <> arguments) ""
  case code of
    ExitSuccess -> pure out
    ExitFailure n -> assertFailure ("curl ended with " <> show n <> ": " <> err)
