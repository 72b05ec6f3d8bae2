-- |
-- Description : The command line of @weft serve@, and its help
module Weft.Tools.Serve.Arguments
  ( Arguments (..),
    arguments,
    helpText,
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
    -- | Goes before what is in it.
    argumentGiven :: Given
  }

-- | One flag for each row of the table. They are left out of the library's own help: 'helpText' has them by group.
arguments :: Parser Arguments
arguments =
  Arguments
    <$> optional (strOption (long "config" <> metavar "FILE" <> internal))
    <*> (Map.fromList . catMaybes <$> traverse flag'' table)
  where
    flag'' row = fmap (fmap ((,) (settingName row))) (values row)
    values row = case settingShape row of
      Argument name -> optional ((: []) <$> strArgument (metavar name))
      Switch -> optional (flag' ["true"] (named row))
      One _ -> optional ((: []) <$> option (checked row) (named row))
      Many _ -> (\vs -> if null vs then Nothing else Just vs) <$> many (option (checked row) (named row))
    named row = long (settingName row) <> internal
    checked row = eitherReader (\text -> text <$ settingApply row [text] defaults)

-- | The flags by group, and what else there is to know, in lines of 80 columns.
helpText :: [[String]]
helpText = map section [minBound ..] <> map (wrapped 80 0) notes
  where
    section group = (groupTitle group <> ":") : concat [row (flagOf r) (settingHelp r) | r <- table, settingGroup r == group, flagOf r /= ""]
    flagOf r = case settingShape r of
      Argument _ -> ""
      Switch -> "--" <> settingName r
      One name -> "--" <> settingName r <> " " <> name
      Many name -> "--" <> settingName r <> " " <> name <> " ..."
    row name text = case wrapped (80 - column) 0 text of
      first : rest
        | length name + 4 > column -> ("  " <> name) : map indented (first : rest)
        | otherwise -> take column ("  " <> name <> repeat ' ') <> first : map indented rest
      [] -> ["  " <> name]
    indented = (replicate column ' ' <>)
    column = 30
    notes =
      [ "--config FILE reads the same settings from a file in YAML, whose keys are the flags' names, without the dashes, and 'folder'; "
          <> "those that can be repeated may be lists. What the command line says goes before it.",
        "SIGHUP reads the file again, opens the log again and loads the certificate again; a file that is wrong changes nothing. "
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
