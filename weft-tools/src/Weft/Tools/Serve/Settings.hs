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
    ofHost,
    restartNeeded,
  )
where

import Control.Monad (foldM)
import Data.ByteString (ByteString)
import Data.List (find)
import qualified Data.Map.Strict as Map
import Network.HTTP.Types (Header)
import Weft.AccessLog (LogFormat (..))
import Weft.Backend (backendNames)
import Weft.Duration (Duration, seconds)
import Weft.Http (Limits (..), ProxyProtocol (..), defaultLimits)
import Weft.Tools.Serve.Stack (StackChoice, stackFrom)
import Weft.Tools.Serve.Values

-- | All that can be set.
data Settings = Settings
  { folder :: Maybe FilePath,
    host :: String,
    port :: Int,
    -- | In place of host and port.
    listens :: [Listen],
    httpsRedirect :: [Listen],
    proxyProtocol :: ProxyProtocol,
    trustedProxies :: [Proxy],
    http2 :: Bool,
    cores :: Maybe Int,
    backend :: Maybe String,
    -- | A TCP/IP stack in place of the kernel's.
    stack :: Maybe StackChoice,
    certificate :: Maybe FilePath,
    key :: Maybe FilePath,
    index :: [ByteString],
    listing :: Bool,
    headers :: [Header],
    -- | By status, the path of the page.
    errorPages :: [(Int, ByteString)],
    fallback :: Maybe ByteString,
    redirects :: [Redirect],
    compress :: Bool,
    corsOrigins :: [ByteString],
    basicAuth :: Maybe FilePath,
    cacheBytes :: Int,
    trust :: Duration,
    limits :: Limits,
    -- | In whole seconds, as Warp has it.
    timeout :: Int,
    drain :: Duration,
    logTo :: Maybe FilePath,
    logAs :: LogFormat,
    metrics :: Audience,
    watchdog :: Maybe Duration,
    healthz :: Bool
  }

-- | Who may see a page.
data Audience = Nobody | Loopback | Proxied | Everybody
  deriving (Eq, Show, Enum, Bounded)

-- | Those of the help.
defaults :: Settings
defaults =
  Settings
    { folder = Nothing,
      host = "127.0.0.1",
      port = 8080,
      listens = [],
      httpsRedirect = [],
      proxyProtocol = ProxyProtocolNone,
      trustedProxies = [],
      http2 = True,
      cores = Nothing,
      backend = Nothing,
      stack = Nothing,
      certificate = Nothing,
      key = Nothing,
      index = ["index.html", "index.htm"],
      listing = False,
      headers = [],
      errorPages = [],
      fallback = Nothing,
      redirects = [],
      compress = False,
      corsOrigins = [],
      basicAuth = Nothing,
      cacheBytes = 64000000,
      trust = seconds 1,
      limits = defaultLimits,
      timeout = 30,
      drain = seconds 10,
      logTo = Nothing,
      logAs = Combined,
      metrics = Loopback,
      watchdog = Nothing,
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
  | -- | One of these words.
    OneOf String [String]
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
  [ live Where "folder" (Argument "DIR") "The folder to serve" $
      one filled (\v s -> s {folder = Just v}),
    fixed Where "host" (One "HOST") "Address to listen on; '*' is every address of this machine, for all who can reach it (127.0.0.1)" $
      one filled (\v s -> s {host = v}),
    fixed Where "port" (One "PORT") "Port; 0 lets the system choose (8080)" $
      one (range 0 65535) (\v s -> s {port = v}),
    fixed Where "stack" (One "tun:NAME,ADDRESS") "Serve from a TCP/IP stack of weft's own at that address, on that TUN device, in place of the kernel's (none)" $
      one stackFrom (\v s -> s {stack = Just v}),
    fixed Where "listen" (Many "ADDRESS") "Address to listen on in place of --host and --port: 192.0.2.1:80, [2001:db8::1]:80, :80 for every address, unix:/run/weft.sock" $
      several listenAddress (\v s -> s {listens = v}),
    fixed Where "https-redirect" (Many "ADDRESS") "Listen here without TLS as well, only to send clients to HTTPS; /.well-known/acme-challenge/ is served" $
      several listenAddress (\v s -> s {httpsRedirect = v}),
    fixed Where "proxy-protocol" (OneOf "WHETHER" (map fst announcements)) "Connections begin with a header of the PROXY protocol, version 1 or 2: none, optional or required (none)" $
      one (among announcements) (\v s -> s {proxyProtocol = v}),
    fixed Where "trusted-proxy" (Many "CIDR") "Believe what these say of their clients, by X-Forwarded-For or the PROXY protocol: 10.0.0.0/8, ::1, unix" $
      several proxyAddress (\v s -> s {trustedProxies = v}),
    fixed Where "no-http2" Switch "Speak HTTP/1.1 only" $
      switch (\v s -> s {http2 = not v}),
    fixed Where "certificate" (One "FILE") "Speak HTTPS and HTTP/2 with this certificate chain, the server's own first (PEM)" $
      one filled (\v s -> s {certificate = Just v}),
    fixed Where "key" (One "FILE") "The certificate's private key (PEM)" $
      one filled (\v s -> s {key = Just v}),
    fixed Where "cores" (One "N") "Cores to use (all that the process may use, no more than its control group's quota)" $
      one (range 1 256) (\v s -> s {cores = Just v}),
    fixed Where "backend" (OneOf "NAME" backendNames) ("Event mechanism: " <> unwords backendNames <> " (the first that works)") $
      one (among [(n, n) | n <- backendNames]) (\v s -> s {backend = Just v}),
    live What "index" (Many "NAME") "File that stands for its folder, the first of these that exists (index.html, index.htm)" $
      several (fmap utf8 . fileName) (\v s -> s {index = v}),
    live What "listing" Switch "Show a listing of a folder that has none of those" $
      switch (\v s -> s {listing = v}),
    live What "header" (Many "FIELD") "Field to add to every answer of the site, as 'Name: value'" $
      several headerField (\v s -> s {headers = v}),
    live What "error-page" (Many "STATUS=PATH") "Page of the folder to show with a status from 400 on, as 404=/404.html" $
      several errorPage (\v s -> s {errorPages = v}),
    live What "fallback" (One "PATH") "File to show, with status 200, for every path that there is not: for single-page applications, /index.html" $
      one sitePath (\v s -> s {fallback = Just v}),
    live What "redirect" (Many "RULE") "'/old=/new' or '/old=/new STATUS' (302); '/old/*=/new/*' takes all that begins so. The target may be a URL" $
      several redirectRule (\v s -> s {redirects = v}),
    live What "compress" Switch "Compress texts from 1 KiB to 1 MiB that have no compressed file beside them (gzip)" $
      switch (\v s -> s {compress = v}),
    live What "cors-origin" (Many "ORIGIN") "Let pages of this origin read answers, as https://example.org; '*' is every one" $
      several corsOrigin (\v s -> s {corsOrigins = v}),
    live What "basic-auth" (One "FILE") "Ask for a name and a password of this file, which htpasswd -B makes (bcrypt)" $
      one filled (\v s -> s {basicAuth = Just v}),
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
    fixed Protection "max-fields" (One "N") "Header fields of a request (100)" $
      limit (range 1 10000) (\v l -> l {limitFields = v}),
    live Protection "drain" (One "SECONDS") "Time for requests under way when the server shuts down (10)" $
      one (time 0) (\v s -> s {drain = v}),
    fixed Observation "log" (One "FILE") "Write a line for each request to the end of this file; '-' is the standard output (none)" $
      one filled (\v s -> s {logTo = Just v}),
    fixed Observation "log-format" (OneOf "FORMAT" (map fst formats)) "combined, as of Apache and nginx, or json, an object a line (combined)" $
      one (among formats) (\v s -> s {logAs = v}),
    live Observation "metrics" (OneOf "WHO" (map fst audiences)) "Who may see /metrics, for Prometheus: nobody, loopback (this machine), proxied (and what a proxy on it passes on) or everybody (loopback)" $
      one (among audiences) (\v s -> s {metrics = v}),
    fixed Observation "watchdog" (One "SECONDS") "Report on the standard error what keeps a core from other work for longer than this, 0.001 or more (none)" $
      one (time 0.001) (\v s -> s {watchdog = Just v}),
    live Observation "no-healthz" Switch "Do not answer /healthz, which says ok, or 503 while the server shuts down" $
      switch (\v s -> s {healthz = not v})
  ]
  where
    fixed group name shape text = Setting group name shape text False
    live group name shape text = Setting group name shape text True
    formats = [("combined", Combined), ("json", Json)]
    announcements = [("none", ProxyProtocolNone), ("optional", ProxyProtocolOptional), ("required", ProxyProtocolRequired)]
    audiences = [("nobody", Nobody), ("loopback", Loopback), ("proxied", Proxied), ("everybody", Everybody)]

-- | May a virtual host have its own?
ofHost :: Setting -> Bool
ofHost row = settingGroup row == What || settingName row `elem` ["folder", "certificate", "key"]

-- | By its name.
settingNamed :: String -> Maybe Setting
settingNamed name = find ((== name) . settingName) table

-- Ways to apply --------------------------------------------------------------------------

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
