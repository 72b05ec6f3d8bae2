{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What can be set of @weft serve@
--
-- One table, from which come the flags, the help and the keys of a configuration file. A new setting is a field, a
-- default and a row.
module Weft.Tools.Serve.Settings
  ( -- * Settings
    Settings (..),
    Audience (..),
    defaults,

    -- * The table
    Setting (..),
    Shape (..),
    Group (..),
    groupTitle,
    table,
    settingNamed,

    -- * Values by name
    Given,
    settingsFrom,
    restartNeeded,
  )
where

import Control.Monad (foldM)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.CaseInsensitive as CI
import Data.Char (isAlphaNum, isControl)
import Data.List (find, intercalate)
import qualified Data.Map.Strict as Map
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Network.HTTP.Types (Header)
import Weft.AccessLog (LogFormat (..))
import Weft.Backend (backendNames)
import Weft.Duration (Duration, seconds)
import Weft.Warp (Limits (..), defaultLimits)

-- | All that can be set.
data Settings = Settings
  { folder :: Maybe FilePath,
    host :: String,
    port :: Int,
    cores :: Maybe Int,
    backend :: Maybe String,
    certificate :: Maybe FilePath,
    key :: Maybe FilePath,
    index :: [ByteString],
    listing :: Bool,
    headers :: [Header],
    cacheBytes :: Int,
    trust :: Duration,
    limits :: Limits,
    -- | In whole seconds, as Warp has it.
    timeout :: Int,
    drain :: Duration,
    logTo :: Maybe FilePath,
    logAs :: LogFormat,
    metrics :: Audience,
    healthz :: Bool
  }

-- | Who may see a page.
data Audience = Nobody | Loopback | Everybody
  deriving (Eq, Show, Enum, Bounded)

-- | Those of the help.
defaults :: Settings
defaults =
  Settings
    { folder = Nothing,
      host = "127.0.0.1",
      port = 8080,
      cores = Nothing,
      backend = Nothing,
      certificate = Nothing,
      key = Nothing,
      index = ["index.html", "index.htm"],
      listing = False,
      headers = [],
      cacheBytes = 64000000,
      trust = seconds 1,
      limits = defaultLimits,
      timeout = 30,
      drain = seconds 10,
      logTo = Nothing,
      logAs = Combined,
      metrics = Loopback,
      healthz = True
    }

-- The table ------------------------------------------------------------------------------

-- | One row.
data Setting = Setting
  { settingGroup :: Group,
    -- | The flag without its dashes; the key in a file.
    settingName :: String,
    settingShape :: Shape,
    -- | What it does, and its default.
    settingHelp :: String,
    -- | Does a reload change it?
    settingReloads :: Bool,
    -- | Set it, or say what is wanted instead. One text, or as many as were given.
    settingApply :: [String] -> Settings -> Either String Settings
  }

-- | How it is given, with the name that its value has in the help.
data Shape
  = -- | The argument without a flag.
    Argument String
  | Switch
  | One String
  | -- | Any number of times.
    Many String
  deriving (Eq)

data Group = Where | What | Protection | Observation
  deriving (Eq, Enum, Bounded)

groupTitle :: Group -> String
groupTitle group = case group of
  Where -> "Where and on what"
  What -> "What is served"
  Protection -> "Limits on clients"
  Observation -> "Logs and figures"

-- | All settings, in the order of the help.
table :: [Setting]
table =
  [ fixed Where "folder" (Argument "DIR") "The folder to serve" $
      one filled (\v s -> s {folder = Just v}),
    fixed Where "host" (One "HOST") "Address to listen on; '*' is every address of this machine, for all who can reach it (127.0.0.1)" $
      one filled (\v s -> s {host = v}),
    fixed Where "port" (One "PORT") "Port; 0 lets the system choose (8080)" $
      one (range 0 65535) (\v s -> s {port = v}),
    fixed Where "certificate" (One "FILE") "Speak HTTPS and HTTP/2 with this certificate, followed by those that lead to an authority (PEM)" $
      one filled (\v s -> s {certificate = Just v}),
    fixed Where "key" (One "FILE") "The certificate's private key (PEM)" $
      one filled (\v s -> s {key = Just v}),
    fixed Where "cores" (One "N") "Cores to use (all)" $
      one (range 1 256) (\v s -> s {cores = Just v}),
    fixed Where "backend" (One "NAME") ("Event mechanism: " <> unwords backendNames <> " (the first that works)") $
      one (among [(n, n) | n <- backendNames]) (\v s -> s {backend = Just v}),
    live What "index" (Many "NAME") "File that stands for its folder, the first of these that exists (index.html, index.htm)" $
      several (fmap utf8 . fileName) (\v s -> s {index = v}),
    live What "listing" Switch "Show what is in a folder that has none of those" $
      switch (\v s -> s {listing = v}),
    live What "header" (Many "FIELD") "Field to add to every answer with a file, as 'Name: value'" $
      several headerField (\v s -> s {headers = v}),
    live What "cache" (One "MB") "Memory for the contents of small files (64)" $
      one (range 0 1000000) (\v s -> s {cacheBytes = 1000000 * v}),
    live What "trust" (One "SECONDS") "How long they are used before they are compared with the disk (1)" $
      one (time 0) (\v s -> s {trust = v}),
    fixed Protection "head-timeout" (One "SECONDS") "Time for a request's head, or a TLS handshake, from its first byte to its last (10)" $
      limit (time 0.001) (\v l -> l {limitHeadTime = v}),
    fixed Protection "timeout" (One "SECONDS") "Time for each 2 KiB of a body and each 128 KiB of an answer (30)" $
      one (range 1 86400) (\v s -> s {timeout = v}),
    fixed Protection "keep-alive" (One "SECONDS") "How long a connection may wait for its next request (60)" $
      limit (time 0.001) (\v l -> l {limitIdle = v}),
    fixed Protection "keep-alive-requests" (One "N") "Requests on one connection of HTTP/1; 0 is no limit, here and below (10000)" $
      limit (range 0 maxBound) (\v l -> l {limitRequests = v}),
    fixed Protection "connections" (One "N") "Connections in all; then the longest idle ones are closed (10000)" $
      limit (range 0 maxBound) (\v l -> l {limitConnections = v}),
    fixed Protection "connections-per-address" (One "N") "Connections of one address (0)" $
      limit (range 0 maxBound) (\v l -> l {limitPerAddress = v}),
    fixed Protection "max-target" (One "BYTES") "First line of a request (8192)" $
      limit (range 64 1000000) (\v l -> l {limitTarget = v}),
    fixed Protection "max-head" (One "BYTES") "Head of a request (32768)" $
      limit (range 256 1000000) (\v l -> l {limitHead = v}),
    fixed Protection "max-fields" (One "N") "Fields of it (100)" $
      limit (range 1 10000) (\v l -> l {limitFields = v}),
    live Protection "drain" (One "SECONDS") "Time for requests under way when the server is to end (10)" $
      one (time 0) (\v s -> s {drain = v}),
    fixed Observation "log" (One "FILE") "Write a line for each request to the end of this file; '-' is the standard output (none)" $
      one filled (\v s -> s {logTo = Just v}),
    fixed Observation "log-format" (One "FORMAT") "combined, as of Apache and nginx, or json, an object a line (combined)" $
      one (among [("combined", Combined), ("json", Json)]) (\v s -> s {logAs = v}),
    live Observation "metrics" (One "WHO") "Who may see /metrics, for Prometheus: nobody, loopback (this machine, and what a proxy on it passes on) or everybody (loopback)" $
      one (among [("nobody", Nobody), ("loopback", Loopback), ("everybody", Everybody)]) (\v s -> s {metrics = v}),
    live Observation "no-healthz" Switch "Do not answer /healthz, which says ok, or 503 when the server is to end" $
      switch (\v s -> s {healthz = not v})
  ]
  where
    fixed group name shape text = Setting group name shape text False
    live group name shape text = Setting group name shape text True

-- | By its name.
settingNamed :: String -> Maybe Setting
settingNamed name = find ((== name) . settingName) table

-- Ways to apply --------------------------------------------------------------------------

type Reader a = String -> Either String a

one :: Reader a -> (a -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
one reader set values settings = case values of
  [text] -> (`set` settings) <$> reader text
  _ -> Left "one value is wanted, not a list"

several :: Reader a -> ([a] -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
several reader set values settings = (`set` settings) <$> mapM reader values

switch :: (Bool -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
switch = one (among [("true", True), ("false", False)])

limit :: Reader a -> (a -> Limits -> Limits) -> [String] -> Settings -> Either String Settings
limit reader set = one reader (\v s -> s {limits = set v (limits s)})

-- Ways to read ---------------------------------------------------------------------------

range :: Int -> Int -> Reader Int
range lo hi text = case reads text of
  [(n, "")] | n >= toInteger lo, n <= toInteger hi -> Right (fromInteger n)
  _ -> Left ("a number from " <> show lo <> (if hi == maxBound then " on" else " to " <> show hi) <> " is wanted, not " <> show text)

-- | Seconds, not fewer than so many.
time :: Double -> Reader Duration
time least text = case reads text of
  [(s, "")] | s >= least, s <= 1e9 -> Right (seconds s)
  _ -> Left ("a number of seconds from " <> (if least == 0 then "0" else show least) <> " on is wanted, not " <> show text)

among :: [(String, a)] -> Reader a
among known text = case lookup text known of
  Just a -> Right a
  Nothing -> Left ("one of " <> intercalate ", " (map fst known) <> " is wanted, not " <> show text)

filled :: Reader String
filled text = if null text then Left "it is empty" else Right text

fileName :: Reader String
fileName text
  | null text || '/' `elem` text || any isControl text = Left ("the name of a file is wanted, not " <> show text)
  | otherwise = Right text

-- | RFC 9110, 5.1 and 5.5: a token, and what may stand in a line.
headerField :: Reader Header
headerField text = case break (== ':') text of
  (name, ':' : value)
    | not (null name), all tokenChar name, not (any isControl value), not (reserved name) -> Right (CI.mk (B.pack name), utf8 (trim value))
    | reserved name -> Left (name <> " is the server's own to say")
  _ -> Left ("'Name: value' is wanted, not " <> show text)
  where
    tokenChar c = c < '\128' && (isAlphaNum c || c `elem` ("!#$%&'*+-.^_`|~" :: String))
    trim = dropWhile (== ' ') . reverse . dropWhile (== ' ') . reverse
    reserved name = CI.mk name `elem` ["Content-Length", "Transfer-Encoding", "Connection", "Content-Range", "Date"]

utf8 :: String -> ByteString
utf8 = T.encodeUtf8 . T.pack

-- Values by name -------------------------------------------------------------------------

-- | What was given, by name: one text, or several in their order.
type Given = Map.Map String [String]

-- | The settings, or what is wrong with which of the values.
settingsFrom :: Given -> Either (String, String) Settings
settingsFrom given = foldM apply defaults table
  where
    apply settings row = case Map.lookup (settingName row) given of
      Nothing -> Right settings
      Just values -> either (Left . (,) (settingName row)) Right (settingApply row values settings)

-- | The names of what is different and cannot be changed without a new start.
restartNeeded :: Given -> Given -> [String]
restartNeeded old new = [n | row <- table, let n = settingName row, not (settingReloads row), Map.lookup n old /= Map.lookup n new]
