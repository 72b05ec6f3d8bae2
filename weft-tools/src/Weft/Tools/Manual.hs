-- |
-- Description : The manual page, @weft man@
--
-- The page weft(1) in the format of man(7), generated from the table of "Weft.Tools.Serve.Settings" and from the help
-- of the other subcommands.
module Weft.Tools.Manual
  ( manual,
    Documented (..),
    programVersion,
  )
where

import Data.Char (toUpper)
import Data.List (intercalate)
import Data.Version (showVersion)
import Paths_weft_tools (version)
import Weft.Tools.Serve.Arguments (flagOf, notes)
import Weft.Tools.Serve.Settings

-- | The program's name and version, as @--version@ prints them.
programVersion :: String
programVersion = "weft " <> showVersion version

-- | A subcommand: its name, its help text, and the names and help texts of its own subcommands.
data Documented = Documented String String [(String, String)]

-- | The page, given the subcommands other than @serve@.
manual :: [Documented] -> String
manual others =
  unlines . concat $
    [ [".TH WEFT 1 \"\" \"weft " <> showVersion version <> "\" \"User Commands\""],
      [".SH NAME", "weft \\- static web server, OpenFlow controller and diagnosis, on an I/O manager for Haskell"],
      [".SH SYNOPSIS"],
      synopsis [bold "weft serve", italic "DIR", "[" <> bold "--FLAG" <> " " <> italic "VALUE" <> " ...]"],
      concat [".br" : synopsis [bold ("weft " <> name), "[" <> italic "OPTIONS" <> "]"] | Documented name _ _ <- others],
      [".SH DESCRIPTION", bold "weft serve", escape "serves a folder over HTTP, or over HTTPS with HTTP/2."],
      [".PP", "The help texts of the other commands are below."],
      [".SH WEFT SERVE", escape "Defaults are in parentheses."],
      concatMap group [minBound ..],
      concat [[".PP", escape note] | note <- notes],
      concat [(".SH " <> map upper (title name)) : literal text <> concat [(".SS " <> title name <> " " <> below) : literal itsText | (below, itsText) <- parts] | Documented name text parts <- others],
      [".SH ENVIRONMENT"],
      described "WEFT_BACKEND" "The back end, if --backend does not name one: epoll, io_uring or poll.",
      described "WEFT_FILES" "How file requests that have to wait are carried out: auto, io_uring or threads.",
      described "LISTEN_PID, LISTEN_FDS" "Listening sockets from the service manager, as in sd_listen_fds(3).",
      described "NOTIFY_SOCKET" "Where readiness is reported, as in sd_notify(3).",
      [".SH FILES"],
      described "/etc/weft/weft.yaml" "The configuration file that weft.service names.",
      [".SH EXIT STATUS"],
      described "0" "Success, or a shutdown by SIGTERM or SIGINT.",
      described "1" "The server cannot serve: no such folder, the port is in use.",
      described "2" "Wrong arguments or an error in the configuration file.",
      [".SH SEE ALSO", "systemd.socket(5), systemd.service(5)"]
    ]
  where
    synopsis parts = [unwords parts]
    literal text = [".nf", intercalate "\n" (map escape (lines text)), ".fi"]
    title name = "weft " <> name
    upper = toUpper
    described name text = [".TP", bold name, escape text]
    group g =
      [".SS " <> groupTitle g]
        <> concat [described (if null (flagOf row) then "DIR" else flagOf row) (settingHelp row <> choices row) | row <- table, settingGroup row == g]
    choices row = case settingShape row of
      OneOf _ known -> ". One of " <> intercalate ", " known <> "."
      _ -> "."

bold, italic :: String -> String
bold text = "\\fB" <> escape text <> "\\fR"
italic text = "\\fI" <> escape text <> "\\fR"

-- | Literal text: without escapes and without requests at the beginning of a line (groff_man(7), groff(7)).
escape :: String -> String
escape text = case text of
  c : _ | c `elem` ".'" -> "\\&" <> concatMap char text
  _ -> concatMap char text
  where
    char c = case c of
      '\\' -> "\\e"
      '-' -> "\\-"
      _ -> [c]
