-- |
-- Description : What the programs @weft@ and @weft-bench@ have in common
--
-- Arguments, names of files and output are in UTF-8 in any locale, and bytes that are none stay as they are. Wrong
-- arguments give exit status 2, for every subcommand. Standard descriptors that are closed at the start are opened on
-- @/dev/null@. A program says for which of its arguments options of GHC's run-time system are those of another program,
-- which it starts: it defines @weft_passes_options_on@ (@cbits/options.c@).
module Weft.Tools.Program
  ( runProgram,
    programPreferences,
  )
where

import Control.Exception (throwIO, try)
import Control.Monad (join, unless)
import Data.List (isPrefixOf)
import GHC.IO.Encoding (mkTextEncoding, setFileSystemEncoding, setLocaleEncoding)
import GHC.IO.Exception (IOException (ioe_description, ioe_filename))
import Options.Applicative
import System.Environment (getArgs)
import System.Exit (ExitCode (..), exitWith)
import System.IO (hFlush, hSetEncoding, stderr, stdin, stdout)
import System.IO.Error (ioeGetHandle, isResourceVanishedError)
import Weft.Tools.StandardError (reportLine)

-- | Run a program of this name. Its parser is given true if a completion script of a shell (@--bash-completion-script@)
-- asks for completions.
runProgram :: String -> (Bool -> ParserInfo (IO ())) -> IO ()
runProgram program parser = do
  openStandardDescriptors
  unicode <- mkTextEncoding "UTF-8//ROUNDTRIP"
  setFileSystemEncoding unicode
  setLocaleEncoding unicode
  mapM_ (`hSetEncoding` unicode) [stdin, stdout, stderr]
  completing <- any ("--bash-completion-" `isPrefixOf`) <$> getArgs
  flushed program (join (customExecParser programPreferences (parser completing)))

-- | Run a command and flush its output, which GHC's run-time system does at the end of a program without a word if it
-- fails. An output that cannot be written gives exit status 1, and a message unless its reader has gone. So does an
-- error that the command has not handled.
flushed :: String -> IO () -> IO ()
flushed program act = do
  ended <- try (try act)
  written <- try (hFlush stdout)
  case (written, ended) of
    (Left e, _) -> failing e
    (_, Left e) -> failing e
    (Right (), Right (Left code)) -> throwIO (code :: ExitCode)
    (Right (), Right (Right ())) -> pure ()
  where
    failing e = do
      name <- takeWhile (not . ("-" `isPrefixOf`)) . take 1 <$> getArgs
      unless (isResourceVanishedError e && ioeGetHandle e == Just stdout) (reportLine (unwords (program : name) <> ": " <> said e))
      exitWith (ExitFailure 1)
    -- Without the name of a handle or of a function, which says nothing to a user.
    said e = maybe "" (<> ": ") (ioe_filename e) <> ioe_description e

-- | Without backtracking, errors are reported with the usage of the subcommand, and not with that of the program.
programPreferences :: ParserPrefs
programPreferences = prefs (showHelpOnEmpty <> noBacktrack)

-- It has run before the run-time system began; the call links it.
foreign import ccall unsafe "weft_open_standard_descriptors" openStandardDescriptors :: IO ()
