-- |
-- Description : The program @weft@
--
-- One line for each subcommand. A bad argument ends with status 2, whatever the subcommand.
module Main (main) where

import Control.Monad (join)
import Data.List (isPrefixOf)
import Options.Applicative
import System.Environment (getArgs)
import Weft.Tools.Bench (benchCommand)
import Weft.Tools.Cbench (cbenchCommand)
import Weft.Tools.Controller (controllerCommand)
import Weft.Tools.Doctor (doctorCommand)
import Weft.Tools.Get (getCommand)
import Weft.Tools.Manual (manual, programVersion)
import Weft.Tools.Serve (serveCommand)
import Weft.Tools.Tcp (tcpCommand)
import Weft.Tools.Top (topCommand)
import Weft.Tools.Trace (traceCommand)

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
  completing <- any ("--bash-completion-" `isPrefixOf`) <$> getArgs
  join (customExecParser preferences (program completing))

preferences :: ParserPrefs
preferences = prefs showHelpOnEmpty

-- | The argument says whether a script printed by @--bash-completion-script@ (or that of another shell) asks for completions.
program :: Bool -> ParserInfo (IO ())
program completing =
  info
    (hsubparser (mconcat (commands completing)) <**> infoOption programVersion (long "version" <> help "Print the version") <**> helper)
    (fullDesc <> progDesc "A web server for static files, diagnosis and benchmarks, on the I/O manager Weft" <> failureCode 2)

-- | @weft man@ prints the manual page.
manualCommand :: Mod CommandFields (IO ())
manualCommand = command "man" (info (pure (putStr (manual [(name, helpOf name) | name <- ["controller", "cbench", "doctor", "bench", "get", "tcp", "top", "trace"]]))) (progDesc "Print the manual page, for man(1)"))
  where
    helpOf name = case execParserPure preferences (program False) [name, "--help"] of
      Failure failure -> fst (renderFailure failure "weft")
      _ -> ""
