{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Before the first round
--
-- Finds the programs, raises the limit on open files for child processes, creates a temporary scratch directory, and
-- turns SIGTERM, SIGHUP and SIGQUIT into an exception so that the subjects are terminated in these cases too.
module Weft.Bench.Setup
  ( endAsByInterrupt,
    withEnv,
    machineFacts,
    raiseOpenFiles,
  )
where

import Control.Concurrent (myThreadId, throwTo)
import Control.Exception (AsyncException (UserInterrupt), IOException, bracket, try, uninterruptibleMask_)
import Control.Monad (forM_, void)
import Data.Text (Text)
import qualified Data.Text as T
import Data.Time (defaultTimeLocale, formatTime, getCurrentTime)
import Data.Version (showVersion)
import GHC.Conc (getNumProcessors)
import Paths_weft_bench (version)
import System.Directory (getCurrentDirectory, removePathForcibly)
import System.Environment (getExecutablePath, lookupEnv)
import System.Exit (ExitCode (ExitSuccess))
import System.FilePath (takeDirectory, (</>))
import System.Info (fullCompilerVersion)
import System.Posix.Resource
import System.Posix.Signals (Handler (Catch, Ignore), installHandler, sigHUP, sigINT, sigQUIT, sigTERM)
import System.Process (readProcessWithExitCode)
import Weft.Bench.Json (Machine (..))
import Weft.Bench.Options
import Weft.Bench.Types
import Weft.Tools.Proc (kernelVersion, processorModel)
import Weft.Tools.Surroundings (temporaryFolder)

-- | Let SIGINT, SIGTERM, SIGHUP and SIGQUIT interrupt the calling thread, the main one, however often they come: GHC's
-- own handler of SIGINT is gone after the first, and the second would end this process before the programs that it
-- measures. Those that are ignored stay so, as by nohup(1).
endAsByInterrupt :: IO ()
endAsByInterrupt = do
  main <- myThreadId
  forM_ [sigINT, sigTERM, sigHUP, sigQUIT] $ \signal -> do
    before <- installHandler signal (Catch (throwTo main UserInterrupt)) Nothing
    case before of
      Ignore -> void (installHandler signal Ignore Nothing)
      _ -> pure ()

-- | Provide everything that measurements need while an action runs.
withEnv :: Options -> (Env -> IO a) -> IO a
withEnv options action = do
  endAsByInterrupt
  raiseOpenFiles
  search <- searchPath
  cores <- getNumProcessors
  bracket (temporaryFolder "weft-bench-") (uninterruptibleMask_ . removePathForcibly) $ \scratch ->
    action
      Env
        { envSearch = search,
          envScratch = scratch,
          envCores = cores,
          envRts = optionRts options,
          envBackend = optionBackend options,
          envPlan = plan options,
          envSchedule = Nothing
        }

-- | Where to look for subjects and peers: below WEFT_BENCH_DIR if that is set; otherwise beside this executable, in the
-- bin directory beside its own, or in the bin directory of the working directory.
searchPath :: IO [FilePath]
searchPath = do
  chosen <- lookupEnv "WEFT_BENCH_DIR"
  own <- takeDirectory <$> getExecutablePath
  here <- getCurrentDirectory
  let roots = maybe [own, takeDirectory own </> "bin", here </> "bin"] pure chosen
  pure (concat [[root </> "subjects", root </> "peers", root] | root <- roots])

-- | Children inherit the limit, so programs that do not raise it themselves can hold as many connections as the
-- system allows.
raiseOpenFiles :: IO ()
raiseOpenFiles = do
  limits <- getResourceLimit ResourceOpenFiles
  setResourceLimit ResourceOpenFiles limits {softLimit = hardLimit limits}

machineFacts :: IO Machine
machineFacts = do
  cores <- getNumProcessors
  kernel <- kernelVersion
  cpu <- processorModel
  date <- T.pack . formatTime defaultTimeLocale "%F" <$> getCurrentTime
  Machine cores kernel (T.pack (showVersion fullCompilerVersion)) (T.pack (showVersion version)) cpu (Just date) <$> commit

-- | The commit that WEFT_BENCH_COMMIT names, or else that of the working tree whose @bin@ directory contains this
-- program; 'Nothing' elsewhere.
commit :: IO (Maybe Text)
commit = lookupEnv "WEFT_BENCH_COMMIT" >>= maybe workingTree (\named -> if null named then workingTree else pure (Just (T.pack named)))

-- | The commit of the working tree around this program.
workingTree :: IO (Maybe Text)
workingTree = do
  own <- takeDirectory <$> getExecutablePath
  described <- try (readProcessWithExitCode "git" ["-C", own, "describe", "--always", "--dirty", "--abbrev=10"] "")
  pure $ case described of
    Right (ExitSuccess, out, _) | not (null out) -> Just (T.strip (T.pack out))
    Right _ -> Nothing
    Left e -> const Nothing (e :: IOException)
