-- |
-- Description : The command line of @weft serve@, and its help
module Weft.Tools.Serve.Arguments
  ( Arguments (..),
    arguments,
    helpText,
    flagOf,
    notes,
  )
where

import qualified Data.Map.Strict as Map
import Data.Maybe (catMaybes)
import Options.Applicative
import Weft.Tools.Serve.Settings

-- | What the command line says.
data Arguments = Arguments
  { -- | The configuration file.
    argumentConfig :: Maybe FilePath,
    -- | Only see whether it could serve.
    argumentCheck :: Bool,
    -- | Goes before what is in it.
    argumentGiven :: Given
  }

-- | One flag for each row of the table. They are left out of the library's own help, as 'helpText' has them by group; where a shell
-- asks for completions they are there.
arguments :: Bool -> Parser Arguments
arguments completing =
  Arguments
    <$> optional (strOption (long "config" <> metavar "FILE" <> action "file" <> unlisted))
    <*> switch (long "check" <> unlisted)
    <*> (Map.fromList . catMaybes <$> traverse flag'' table)
  where
    flag'' row = fmap (fmap ((,) (settingName row))) (values row)
    values row = case settingShape row of
      Argument name -> optional ((: []) <$> strArgument (metavar name <> action "directory"))
      Switch -> optional (flag' ["true"] (named row))
      One _ -> optional ((: []) <$> option (checked row) (named row <> paths row))
      OneOf _ known -> optional ((: []) <$> option (checked row) (named row <> completeWith known))
      Many _ -> (\vs -> if null vs then Nothing else Just vs) <$> many (option (checked row) (named row))
    named row = long (settingName row) <> help (settingHelp row) <> unlisted
    unlisted :: Mod f a
    unlisted = if completing then hidden else internal
    -- What a shell offers for the value.
    paths row = if settingShape row == One "FILE" then action "file" else mempty
    checked row = eitherReader (\text -> text <$ settingApply row [text] defaults)

-- | The flags by group, and what else there is to know, in lines of 80 columns.
helpText :: [[String]]
helpText = map section [minBound ..] <> map (wrapped 80 0) notes
  where
    section group = (groupTitle group <> ":") : concat [row (flagOf r) (settingHelp r) | r <- table, settingGroup r == group, flagOf r /= ""]
    row name text = case wrapped (80 - column) 0 text of
      first : rest
        | length name + 4 > column -> ("  " <> name) : map indented (first : rest)
        | otherwise -> take column ("  " <> name <> repeat ' ') <> first : map indented rest
      [] -> ["  " <> name]
    indented = (replicate column ' ' <>)
    column = 30

-- | A setting's flag with the name of its value; nothing for the argument without a flag.
flagOf :: Setting -> String
flagOf r = case settingShape r of
  Argument _ -> ""
  Switch -> "--" <> settingName r
  One name -> "--" <> settingName r <> " " <> name
  OneOf name _ -> "--" <> settingName r <> " " <> name
  Many name -> "--" <> settingName r <> " " <> name <> " ..."

-- | What else there is to know, a paragraph each.
notes :: [String]
notes =
  [ "--version prints the version.",
    "--check sees whether the settings, the folders, the certificates and the other files are right, says what is wrong and where, and exits with 0 or 2.",
    "--config FILE reads the same settings from a file in YAML, whose keys are the flags' names, without the dashes, and 'folder'; "
      <> "those that can be repeated may be lists. What the command line says goes before it. There, 'hosts' maps names of hosts, or '*.' and one, to settings of their own "
      <> "(folder, certificate, key, and what is under 'What is served'), which go before all others; a name that there is not gets what the "
      <> "whole file says, or 421 if that has no folder.",
    "SIGHUP reads the file again, with its folders, hosts and passwords, opens the log again and loads the certificates again; a file that is wrong changes nothing. "
      <> "What it cannot change without a new start it says.",
    "SIGTERM and Ctrl-C end it: it takes no new connections, finishes requests under way, for --drain seconds at most, then exits with 0; "
      <> "a second signal ends it at once.",
    "Under systemd it takes the sockets that it is given (LISTEN_FDS), and says when it is ready (NOTIFY_SOCKET).",
    "Exits with 1 when it cannot serve (no such folder, the port is in use), with 2 when arguments or the file are wrong."
  ]

-- | Words in lines of so many columns, all but the first indented.
wrapped :: Int -> Int -> String -> [String]
wrapped width indent = go [] . words
  where
    go line ws = case ws of
      [] -> [unwords (reverse line) | not (null line)]
      w : rest
        | not (null line) && length (unwords (w : line)) > width - indent -> unwords (reverse line) : go [w] rest
        | otherwise -> go (w : line) rest
