-- | @weft doctor@ for processes in unusual states and environments, and for chains of certificates.
module Doctor (tests) where

import Control.Monad
import Program
import System.Directory (doesFileExist)
import System.FilePath (takeDirectory, (</>))
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (skipUnless, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program _ =
  testGroup
    "doctor, processes and certificates"
    [ testCase "WEFT_DISABLE counts unless it is empty or 0" . forM_ [("", served), ("0", served), ("1", "but WEFT_DISABLE is set")] $ \(value, part) -> do
        let waiting = takeDirectory program </> "relink" </> "handles-relinked"
        there <- doesFileExist waiting
        skipUnless "the relinked programs are not built" there
        out <- examined program [] [("WEFT_DISABLE", value)] (proc waiting [])
        contains out part
    ]
  where
    served = "waits and delays are served by Weft"

-- | What the command says, with these variables of its own, about a process that waits for its standard input.
examined :: FilePath -> [(String, String)] -> [(String, String)] -> CreateProcess -> IO String
examined program own variables how = started variables how {std_in = CreatePipe} $ \p -> do
  pid <- getPid (process p) >>= maybe (assertFailure "no process") pure
  snd <$> outcome program own ["doctor", show pid]
