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

-- | The command line.
data Arguments = Arguments
  { -- | The configuration file.
    argumentConfig :: Maybe FilePath,
    -- | Only check the settings; do not serve.
    argumentCheck :: Bool,
    -- | Overrides the configuration file.
    argumentGiven :: Given
  }

-- | One flag for each row of the table. The library's own help does not list them, since 'helpText' lists them by
-- group. If the argument is true, a shell asks for completions, and they are listed.
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
      One _ -> single row
      Optional _ -> single row
      OneOf _ known -> optional ((: []) <$> option (checked row) (named row <> completeWith known))
      Many _ -> (\vs -> if null vs then Nothing else Just vs) <$> many (option (checked row) (named row))
    single row = optional ((: []) <$> option (checked row) (named row <> paths row))
    named row = long (settingName row) <> help (settingHelp row) <> unlisted
    unlisted :: Mod f a
    unlisted = if completing then hidden else internal
    -- A shell completes the value to the path of a file.
    paths row = if settingShape row `elem` [One "FILE", Optional "FILE"] then action "file" else mempty
    checked row = eitherReader (\text -> text <$ settingApply row [text] defaults)

-- | The flags by group, then the notes, in lines of 80 columns.
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
  Optional name -> "--" <> settingName r <> " " <> name
  OneOf name _ -> "--" <> settingName r <> " " <> name
  Many name -> "--" <> settingName r <> " " <> name <> " ..."

-- | The paragraphs after the flags.
notes :: [String]
notes =
  [ "--version prints the version.",
    "--check checks the values of the settings; if these are right, whether they fit together; and if they do, the folders, certificates, passwords, error pages and the log. Of each of the three it reports every error. It creates no file, and exits with 0 or 2.",
    "--config FILE reads settings from a YAML file. Its keys are 'folder' and the names of the flags, without the dashes; a flag that can be repeated may have a list. "
      <> "The command line overrides the file. The key 'hosts' maps host names, or '*.' and a host name, to settings of their own "
      <> "(folder, certificate, key, and those under 'What is served'), which override all others: 'none' turns off the fallback or basic-auth of the whole file. "
      <> "A request for another host gets the settings of the whole file, or 421 if these have no folder. A host without a folder only redirects, or passes requests on. "
      <> "A certificate of one host makes the whole server speak HTTPS. A client gets the first certificate that is for the name that it asks for, that of the whole file before those of hosts, or else the first; "
      <> "at the start and with --check, the server names hosts whose own certificate no client gets.",
    "PATH= in front of a value says for which paths it is; without it, the value is for all other paths. Each * in it stands for any characters, slashes too, and '/admin/*' is /admin and what is below it. "
      <> "Paths are compared decoded, with one slash for several, for files and for --proxy alike. The first path that matches counts; for 'deny', every one.",
    "Symbolic links below the folder are followed as long as they lead to something below it and their targets are relative. "
      <> "Others, also absolute ones to a file of the folder, get the status 403 and are not in listings.",
    "SIGHUP reads the file again, with its folders, hosts and passwords, reopens the log and reloads the certificates. If the file has an error, the settings stay as they were. "
      <> "A certificate that cannot be loaded is named and stays as it was; the others are replaced. The server reports settings that need a restart.",
    "SIGTERM and Ctrl-C shut the server down: it accepts no new connections, finishes requests in progress for at most --drain seconds, and exits with 0. "
      <> "A second signal ends it at once.",
    "Under systemd the server uses the sockets that it is given (LISTEN_FDS) and reports when it is ready (NOTIFY_SOCKET).",
    "Exit status: 1 if it cannot serve (no such folder, port in use), 2 if arguments or the file are wrong."
  ]

-- | Wrap words into lines of this many columns, all but the first line indented.
wrapped :: Int -> Int -> String -> [String]
wrapped width indent = go [] . words
  where
    go line ws = case ws of
      [] -> [unwords (reverse line) | not (null line)]
      w : rest
        | not (null line) && length (unwords (w : line)) > width - indent -> unwords (reverse line) : go [w] rest
        | otherwise -> go (w : line) rest
