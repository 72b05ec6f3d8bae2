-- |
-- Description : The program @weft@
--
-- The subcommands are in the modules @Weft.Tools.*@.
module Main (main) where

import Options.Applicative
import Weft.Tools.Controller (controllerCommand)
import Weft.Tools.Doctor (doctorCommand)
import Weft.Tools.Get (getCommand)
import Weft.Tools.Manual (Documented (..), manual, programVersion)
import Weft.Tools.Program (programPreferences, runProgram)
import Weft.Tools.Serve (serveCommand)
import Weft.Tools.Tcp (tcpCommand, tcpSubcommands)
import Weft.Tools.Top (topCommand)
import Weft.Tools.Trace (traceCommand, traceSubcommands)

-- | A subcommand is a 'Mod' of 'CommandFields': its name, its arguments, and the action that they make.
commands :: Bool -> [Mod CommandFields (IO ())]
commands completing =
  [ serveCommand completing,
    controllerCommand,
    doctorCommand,
    topCommand,
    traceCommand,
    getCommand,
    tcpCommand,
    manualCommand
  ]

main :: IO ()
main = runProgram "weft" program

-- | The parser. The argument is true if a completion script of a shell asks for completions.
program :: Bool -> ParserInfo (IO ())
program completing =
  info
    (hsubparser (mconcat (commands completing)) <**> infoOption programVersion (long "version" <> help "Print the version") <**> helper)
    (fullDesc <> progDesc "A web server for static files, an OpenFlow controller and diagnosis, on the I/O manager Weft" <> footer "weft COMMAND --help describes a command, weft man all of them. weft-bench measures." <> failureCode 2)

-- | @weft man@ prints the manual page.
manualCommand :: Mod CommandFields (IO ())
manualCommand = command "man" (info (pure (putStr (manual (map documented ["controller", "doctor", "get", "tcp", "top", "trace"])))) (progDesc "Print the manual page, for man(1)" <> footer "Example: weft man | man -l -"))
  where
    documented name = Documented name (helpOf [name]) [(below, helpOf [name, below]) | (below, _) <- subcommandsOf name]
    subcommandsOf name = case name of
      "tcp" -> tcpSubcommands
      "trace" -> traceSubcommands
      _ -> []
    helpOf path = case execParserPure programPreferences (program False) (path <> ["--help"]) of
      Failure failure -> fst (renderFailure failure "weft")
      _ -> ""
