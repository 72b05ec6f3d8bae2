-- |
-- Description : The program @weft@
--
-- The subcommands are in the modules @Weft.Tools.*@. Wrong arguments give exit status 2, for every subcommand. Arguments,
-- names of files and output are in UTF-8 in any locale, and bytes that are none stay as they are.
module Main (main) where

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
import Weft.Tools.Bench (benchCommand, benchSubcommands)
import Weft.Tools.Cbench (cbenchCommand)
import Weft.Tools.Controller (controllerCommand)
import Weft.Tools.Doctor (doctorCommand)
import Weft.Tools.Get (getCommand)
import Weft.Tools.Manual (Documented (..), manual, programVersion)
import Weft.Tools.Serve (serveCommand)
import Weft.Tools.StandardError (reportLine)
import Weft.Tools.Tcp (tcpCommand, tcpSubcommands)
import Weft.Tools.Top (topCommand)
import Weft.Tools.Trace (traceCommand, traceSubcommands)

-- | A subcommand is a 'Mod' of 'CommandFields': its name, its arguments, and the action that they make.
commands :: Bool -> [Mod CommandFields (IO ())]
commands completing =
  [ serveCommand completing,
    controllerCommand,
    cbenchCommand,
    doctorCommand,
    topCommand,
    traceCommand,
    benchCommand,
    getCommand,
    tcpCommand,
    manualCommand
  ]

main :: IO ()
main = do
  unicode <- mkTextEncoding "UTF-8//ROUNDTRIP"
  setFileSystemEncoding unicode
  setLocaleEncoding unicode
  mapM_ (`hSetEncoding` unicode) [stdin, stdout, stderr]
  completing <- any ("--bash-completion-" `isPrefixOf`) <$> getArgs
  flushed (join (customExecParser preferences (program completing)))

-- | Run a command and flush its output, which GHC's run-time system does at the end of a program without a word if it
-- fails. An output that cannot be written gives exit status 1, and a message unless its reader has gone. So does an
-- error that the command has not handled.
flushed :: IO () -> IO ()
flushed act = do
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
      unless (isResourceVanishedError e && ioeGetHandle e == Just stdout) (reportLine (unwords ("weft" : name) <> ": " <> said e))
      exitWith (ExitFailure 1)
    -- Without the name of a handle or of a function, which says nothing to a user.
    said e = maybe "" (<> ": ") (ioe_filename e) <> ioe_description e

-- | Without backtracking, errors are reported with the usage of the subcommand, and not with that of the program.
preferences :: ParserPrefs
preferences = prefs (showHelpOnEmpty <> noBacktrack)

-- | The parser. The argument is true if a completion script of a shell (@--bash-completion-script@) asks for
-- completions.
program :: Bool -> ParserInfo (IO ())
program completing =
  info
    (hsubparser (mconcat (commands completing)) <**> infoOption programVersion (long "version" <> help "Print the version") <**> helper)
    (fullDesc <> progDesc "A web server for static files, an OpenFlow controller, diagnosis and benchmarks, on the I/O manager Weft" <> footer "weft COMMAND --help describes a command, weft man all of them." <> failureCode 2)

-- | @weft man@ prints the manual page.
manualCommand :: Mod CommandFields (IO ())
manualCommand = command "man" (info (pure (putStr (manual (map documented ["controller", "cbench", "doctor", "bench", "get", "tcp", "top", "trace"])))) (progDesc "Print the manual page, for man(1)" <> footer "Example: weft man | man -l -"))
  where
    documented name = Documented name (helpOf [name]) [(below, helpOf [name, below]) | (below, _) <- subcommandsOf name]
    subcommandsOf name = case name of
      "bench" -> concatMap snd benchSubcommands
      "tcp" -> tcpSubcommands
      "trace" -> traceSubcommands
      _ -> []
    helpOf path = case execParserPure preferences (program False) (path <> ["--help"]) of
      Failure failure -> fst (renderFailure failure "weft")
      _ -> ""
