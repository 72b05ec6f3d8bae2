-- |
-- Description : The program @weft@
--
-- One line for each subcommand. A bad argument ends with status 2, whatever the subcommand.
module Main (main) where

import Control.Monad (join)
import Options.Applicative
import Weft.Tools.Bench (benchCommand)
import Weft.Tools.Doctor (doctorCommand)
import Weft.Tools.Serve (serveCommand)

-- | A subcommand is a 'Mod' of 'CommandFields': its name, its arguments, and the action that they make.
commands :: [Mod CommandFields (IO ())]
commands =
  [ serveCommand,
    doctorCommand,
    benchCommand
  ]

main :: IO ()
main = join (customExecParser (prefs showHelpOnEmpty) program)
  where
    program =
      info
        (hsubparser (mconcat commands) <**> helper)
        (fullDesc <> progDesc "Tools around Weft, an I/O manager for Haskell" <> failureCode 2)
