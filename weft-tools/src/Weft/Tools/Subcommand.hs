-- |
-- Description : Subcommands
--
-- Subcommands whose names can be listed, for the manual page: a 'Mod' of optparse-applicative cannot be asked for them.
module Weft.Tools.Subcommand
  ( Subcommand,
    subcommand,
    subcommands,
  )
where

import Data.List (intercalate)
import Options.Applicative

-- | Its name, and the parser of its arguments, which makes its action.
type Subcommand = (String, ParserInfo (IO ()))

-- | A subcommand of a name.
subcommand :: String -> ParserInfo (IO ()) -> Subcommand
subcommand = (,)

-- | For 'hsubparser'. The usage has their names.
subcommands :: [Subcommand] -> Mod CommandFields (IO ())
subcommands list = foldMap (uncurry command) list <> metavar (intercalate " | " (map fst list))
