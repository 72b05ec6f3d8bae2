-- |
-- Tests that run the program @weft-bench@: what it refuses, pages and comparisons of kept results, loads on servers,
-- programs that are relinked; and the gates, which run it or programs that it measures. The program is
-- @WEFT_BENCH_PROGRAM@, or else @bin\/weft-bench@ of the repository; @weft@ and the subjects lie beside it.
module Main (main) where

import qualified Benches
import qualified Cbench
import Control.Exception (bracket)
import Control.Monad (unless)
import qualified Cores
import qualified Data.ByteString.Char8 as B
import Data.Maybe (fromMaybe)
import qualified Gate
import qualified Loads
import qualified Runs
import System.Directory (doesFileExist, getTemporaryDirectory, makeAbsolute, removePathForcibly)
import System.Environment (lookupEnv)
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import Test.Tasty (testGroup)
import qualified Urls
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  given <- lookupEnv "WEFT_BENCH_PROGRAM"
  program <- makeAbsolute (fromMaybe "../bin/weft-bench" given)
  there <- doesFileExist program
  unless there (ioError (userError ("no program at " <> program <> ": scripts/build bench makes it")))
  bracket site removePathForcibly $ \folder ->
    defaultMain (testGroup "weft-bench" [Benches.tests program folder, Loads.tests program folder, Urls.tests program folder, Runs.tests program folder, Gate.tests program, Cores.tests program, Cbench.tests program])

-- | A folder to serve.
site :: IO FilePath
site = do
  temporary <- getTemporaryDirectory
  folder <- mkdtemp (temporary </> "weft-bench-test-")
  B.writeFile (folder </> "index.html") (B.pack "<p>the first page</p>")
  pure folder
