{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Before the first round
--
-- Finds the programs, raises the limit of open files for all that is started, makes a scratch directory that is
-- removed again, and turns SIGTERM into an exception so that the subjects are ended on that way out too.
module Weft.Tools.Bench.Setup
  ( withEnv,
    machineFacts,
  )
where

import Control.Concurrent (myThreadId, throwTo)
import Control.Exception (AsyncException (UserInterrupt), bracket)
import qualified Data.Text as T
import Data.Version (showVersion)
import GHC.Conc (getNumProcessors)
import Paths_weft_tools (version)
import System.Directory (getCurrentDirectory, getTemporaryDirectory, removePathForcibly)
import System.Environment (getExecutablePath, lookupEnv)
import System.FilePath (takeDirectory, (</>))
import System.Info (fullCompilerVersion)
import System.Posix.Resource
import System.Posix.Signals (Handler (Catch), installHandler, sigTERM)
import System.Posix.Temp (mkdtemp)
import Weft.Tools.Bench.Json (Machine (..))
import Weft.Tools.Bench.Options
import Weft.Tools.Bench.Proc (kernelVersion)
import Weft.Tools.Bench.Types

-- | Everything that measurements need, for the length of an action.
withEnv :: Options -> (Env -> IO a) -> IO a
withEnv options action = do
  main <- myThreadId
  _ <- installHandler sigTERM (Catch (throwTo main UserInterrupt)) Nothing
  raiseOpenFiles
  search <- searchPath
  cores <- getNumProcessors
  temporary <- getTemporaryDirectory
  bracket (mkdtemp (temporary </> "weft-bench-")) removePathForcibly $ \scratch ->
    action
      Env
        { envSearch = search,
          envScratch = scratch,
          envCores = cores,
          envRts = optionRts options,
          envBackend = optionBackend options,
          envPlan = plan options
        }

-- | Where subjects and peers may be: below WEFT_BENCH_DIR if that is set, else beside this executable, in the bin
-- directory beside its own, or in the bin directory of the working directory.
searchPath :: IO [FilePath]
searchPath = do
  chosen <- lookupEnv "WEFT_BENCH_DIR"
  own <- takeDirectory <$> getExecutablePath
  here <- getCurrentDirectory
  let roots = maybe [own, takeDirectory own </> "bin", here </> "bin"] pure chosen
  pure (concat [[root </> "subjects", root </> "peers", root] | root <- roots])

-- | Children inherit the limit; programs that do not raise it themselves can then hold as many connections as the
-- system lets them.
raiseOpenFiles :: IO ()
raiseOpenFiles = do
  limits <- getResourceLimit ResourceOpenFiles
  setResourceLimit ResourceOpenFiles limits {softLimit = hardLimit limits}

machineFacts :: IO Machine
machineFacts = do
  cores <- getNumProcessors
  kernel <- kernelVersion
  pure (Machine cores kernel (T.pack (showVersion fullCompilerVersion)) (T.pack (showVersion version)))
