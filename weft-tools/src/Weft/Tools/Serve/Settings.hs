{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The settings of @weft serve@
--
-- Flags, help and the keys of the configuration file are made from one table. A new setting is a field, a
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

import Data.ByteString (ByteString)
import Data.Either (lefts, partitionEithers, rights)
import Data.Function (on)
import Data.List (find, foldl', intercalate, tails)
import qualified Data.Map.Strict as Map
import Data.Word (Word64)
import Network.HTTP.Types (Header, Method)
import System.Posix.Types (FileMode)
import Weft.AccessLog (LogFormat (..))
import Weft.Backend (backendNames)
import Weft.Duration (Duration, seconds)
import Weft.Http (Limits (..), ProxyProtocol (..), defaultLimits)
import Weft.Http.Proxy (ProxyHeader (..))
import Weft.Static (StaticSettings (..), defaultStaticSettings)
import Weft.Tools.Serve.Rules
import Weft.Tools.Serve.Stack (StackChoice, stackFrom)
import Weft.Tools.Serve.Values
import Weft.Transport (ProtocolVersion (..))

-- | All settings.
data Settings = Settings
  { folder :: Maybe FilePath,
    host :: String,
    port :: Int,
    -- | Instead of host and port.
    listens :: [Listen],
    httpsRedirect :: [Listen],
    -- | The permissions of Unix sockets.
    socketMode :: FileMode,
    proxyProtocol :: ProxyProtocol,
    trustedProxies :: [Network],
    http2 :: Bool,
    -- | HTTP\/2 without TLS, from clients that begin with its preface.
    h2c :: Bool,
    cores :: Maybe Int,
    backend :: Maybe String,
    -- | A TCP/IP stack instead of the kernel's.
    stack :: Maybe StackChoice,
    certificate :: Maybe FilePath,
    key :: Maybe FilePath,
    -- | The file of the authorities that clients' certificates have to be of.
    clientCa :: Maybe FilePath,
    -- | Whether a client may have none.
    clientCaOptional :: Bool,
    tlsMin :: ProtocolVersion,
    index :: [ByteString],
    listing :: Bool,
    cleanUrls :: Bool,
    headers :: [Rule Header],
    -- | Media types by suffix.
    types :: [(ByteString, ByteString)],
    -- | Media types by path, which come first.
    pathTypes :: [Rule ByteString],
    -- | By status, the path of the page.
    errorPages :: [(Int, ByteString)],
    fallback :: Maybe ByteString,
    redirects :: [Redirect],
    proxies :: [ProxyRule],
    -- | The target by which the servers of proxies are checked; how often; after how many failures they are passed
    -- over, and after how many successes asked again.
    proxyCheckPath :: Maybe ByteString,
    proxyCheckEvery :: Duration,
    proxyCheckFailures :: Int,
    proxyCheckPasses :: Int,
    -- | How long they may be silent when the client has ended its direction.
    proxySilence :: Duration,
    -- | The header of the PROXY protocol that they get.
    proxySend :: Maybe ProxyHeader,
    compress :: Bool,
    -- | Media types, as 'staticCompressTypes' has them.
    compressTypes :: [ByteString],
    corsOrigins :: [ByteString],
    -- | Who may ask for which paths.
    allowed :: [Rule [Network]],
    denied :: [Rule [Network]],
    methods :: [Rule [Method]],
    rates :: [Rule Rate],
    -- | The most bytes of a request's body.
    maxBodies :: [Rule Word64],
    basicAuth :: Maybe FilePath,
    cacheBytes :: Int,
    keptFiles :: Int,
    trust :: Duration,
    limits :: Limits,
    -- | In whole seconds, as Warp has it.
    timeout :: Int,
    drain :: Duration,
    logTo :: Maybe FilePath,
    logAs :: LogFormat,
    metrics :: Audience,
    -- | Addresses with \/metrics and \/healthz only.
    metricsListen :: [Listen],
    watchdog :: Maybe Duration,
    healthz :: Bool
  }

-- | The clients that may read a page.
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
      socketMode = 0o666,
      proxyProtocol = ProxyProtocolNone,
      trustedProxies = [],
      http2 = True,
      h2c = False,
      cores = Nothing,
      backend = Nothing,
      stack = Nothing,
      certificate = Nothing,
      key = Nothing,
      clientCa = Nothing,
      clientCaOptional = False,
      tlsMin = TlsVersion12,
      index = ["index.html", "index.htm"],
      listing = False,
      cleanUrls = False,
      headers = [],
      types = [],
      pathTypes = [],
      errorPages = [],
      fallback = Nothing,
      redirects = [],
      proxies = [],
      proxyCheckPath = Nothing,
      proxyCheckEvery = seconds 5,
      proxyCheckFailures = 3,
      proxyCheckPasses = 2,
      proxySilence = seconds 1,
      proxySend = Nothing,
      compress = False,
      compressTypes = staticCompressTypes defaultStaticSettings,
      corsOrigins = [],
      allowed = [],
      denied = [],
      methods = [],
      rates = [],
      maxBodies = [],
      basicAuth = Nothing,
      cacheBytes = 64000000,
      keptFiles = 1000,
      trust = seconds 1,
      limits = defaultLimits,
      timeout = 30,
      drain = seconds 10,
      logTo = Nothing,
      logAs = Combined,
      metrics = Nobody,
      metricsListen = [],
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
    -- | The help text, with the default in parentheses.
    settingHelp :: String,
    -- | Whether a reload can change it.
    settingReloads :: Bool,
    -- | Apply the values to the settings, or say what was expected instead.
    settingApply :: [String] -> Settings -> Either String Settings
  }

-- | How a setting is written on the command line, with the name of its value in the help.
data Shape
  = -- | An argument without a flag.
    Argument String
  | Switch
  | One String
  | -- | One value, or @none@.
    Optional String
  | -- | One of these words.
    OneOf String [String]
  | -- | A flag that may be repeated.
    Many String
  deriving (Eq)

data Group = Where | What | Protection | Observation
  deriving (Eq, Enum, Bounded)

groupTitle :: Group -> String
groupTitle group = case group of
  Where -> "Listening"
  What -> "What is served"
  Protection -> "Limits on clients"
  Observation -> "Logs and metrics"

-- | All settings, in the order of the help.
table :: [Setting]
table =
  [ live Where "folder" (Argument "DIR") "The folder to serve. Files and folders whose names begin with a dot are neither served nor listed, except /.well-known" $
      one filled (\v s -> s {folder = Just v}),
    fixed Where "host" (One "HOST") "Address to listen on; '*' means every address of this machine, open to the network (127.0.0.1)" $
      one filled (\v s -> s {host = v}),
    fixed Where "port" (One "PORT") "Port to listen on; with 0 the system chooses one (8080)" $
      one (range 0 65535) (\v s -> s {port = v}),
    fixed Where "stack" (One "tun:NAME,ADDRESS") "Use weft's own TCP/IP stack instead of the kernel's, with this address on this TUN device (none)" $
      one stackFrom (\v s -> s {stack = Just v}),
    fixed Where "listen" (Many "ADDRESS") "Address to listen on, instead of --host and --port, which cannot be given as well: 192.0.2.1:80, [2001:db8::1]:80, :80 for every address, unix:/run/weft.sock. [::]:80 means every IPv4 address too, unless an IPv4 address with this port is given as well, as 0.0.0.0:80" $
      distinct " cannot both be listened on" overlap listenAddress (\v s -> s {listens = v}),
    fixed Where "https-redirect" (Many "ADDRESS") "Also listen here without TLS, and redirect all requests to HTTPS, except those below /.well-known/acme-challenge/. Requests for a host that is not known get 421" $
      distinct " cannot both be listened on" overlap listenAddress (\v s -> s {httpsRedirect = v}),
    fixed Where "socket-mode" (One "MODE") "Permissions of Unix sockets, in octal: users who may write to a socket and enter its folder may connect to it. With 660 these are the user and the group of the server. Sockets of systemd keep theirs (666)" $
      one fileMode (\v s -> s {socketMode = v}),
    fixed Where "proxy-protocol" (OneOf "WHETHER" (map fst announcements)) "Whether connections begin with a header of the PROXY protocol, version 1 or 2: none, optional or required (none). Only those of --trusted-proxy, which has to be given too, may; with required, others are refused. A connection whose header names no client (UNKNOWN, LOCAL) is the proxy's own" $
      one (among announcements) (\v s -> s {proxyProtocol = v}),
    fixed Where "trusted-proxy" (Many "CIDR") "Addresses of proxies whose X-Forwarded-For fields or PROXY protocol headers are trusted: 10.0.0.0/8, ::1, unix for whoever connects to a Unix socket. A request whose last member of X-Forwarded-For is no address, or that has none, counts as the proxy's own. Forwarded (RFC 7239) is not read" $
      several networkAddress (\v s -> s {trustedProxies = v}),
    fixed Where "no-http2" Switch "Do not offer HTTP/2" $
      switch (\v s -> s {http2 = not v}),
    fixed Where "h2c" Switch "Without a certificate, speak HTTP/2 too, with clients that begin with it (prior knowledge): clients of gRPC, and proxies in front. Others get HTTP/1.1" $
      switch (\v s -> s {h2c = v}),
    live Where "certificate" (One "FILE") "Serve HTTPS and HTTP/2 with this certificate chain, the server's own certificate first (PEM)" $
      one filled (\v s -> s {certificate = Just v}),
    live Where "key" (One "FILE") "The certificate's private key (PEM)" $
      one filled (\v s -> s {key = Just v}),
    fixed Where "client-ca" (One "FILE") "Only clients with a certificate of one of these authorities (PEM) are served over HTTPS, whichever host they ask for; others fail in the handshake. A reload reads the file again, for new connections" $
      one filled (\v s -> s {clientCa = Just v}),
    fixed Where "client-ca-optional" Switch "With --client-ca, serve clients without a certificate too, but none with a wrong one" $
      switch (\v s -> s {clientCaOptional = v}),
    fixed Where "tls-min" (OneOf "VERSION" ["1.2", "1.3"]) "The oldest version of TLS that is spoken: 1.2 or 1.3 (1.2)" $
      one (among [("1.2", TlsVersion12), ("1.3", TlsVersion13)]) (\v s -> s {tlsMin = v}),
    fixed Where "cores" (One "N") "Cores to use (all that the process may use, up to the quota of its control group)" $
      one (range 1 256) (\v s -> s {cores = Just v}),
    fixed Where "backend" (OneOf "NAME" backendNames) ("Event mechanism: " <> unwords backendNames <> " (the first that works)") $
      one (among [(n, n) | n <- backendNames]) (\v s -> s {backend = Just v}),
    live What "index" (Many "NAME") "Name of the file to serve for a folder; with several names, the first that exists (index.html, index.htm)" $
      several (fmap utf8 . fileName) (\v s -> s {index = v}),
    live What "listing" Switch "Show a listing of a folder without an index file" $
      switch (\v s -> s {listing = v}),
    live What "clean-urls" Switch "Serve about.html for /about, where there is no file about; not for a path with a suffix of a known type, as /about.css" $
      switch (\v s -> s {cleanUrls = v}),
    live What "header" (Many "[PATH=]FIELD") "Field to add to every response of the site, as 'Name: value', or to those for some paths, as '/assets/*=Cache-Control: max-age=31536000, immutable'; to those with status 2xx and 304 only if it is about the file: Content-Type, Content-Language, Content-Disposition, Expires, and Cache-Control, CDN-Cache-Control and Surrogate-Control without no-store and no-cache. Of each name the fields of the first path that matches are added, or else those without a path. Content-Type, Cache-Control, Server and Access-Control-Allow-Origin replace the server's own; fields that describe a file or the connection are refused" $
      distinct never (\(Rule p (a, _)) (Rule q (b, _)) -> a == b && p /= q && hidden (Rule p ()) (Rule q ())) (ruled headerField) (\v s -> s {headers = inOrder v}),
    live What "type" (Many "SUFFIX=TYPE") "Media type (Content-Type) of files whose names end so, as map=application/json, or whose paths match, as '/feeds/*=application/atom+xml'; others have the type that their suffix is known for. A text has the charset utf-8, unless one is given, as in '/old/*.html=text/html; charset=iso-8859-1'" $
      distinct ": the second one never counts" sameType typeRule (\v s -> s {types = rights v, pathTypes = inOrder (lefts v)}),
    live What "error-page" (Many "STATUS=PATH") "Page to send with this status, 400 or higher, as 404=/404.html. Requests that are refused before a host is chosen get the built-in text: 400, 414, 417, 431, 501 and 505 for what is not valid HTTP or above a limit, 421 for a host that is not known, 429" $
      distinct " are for the same status" ((==) `on` fst) errorPage (\v s -> s {errorPages = v}),
    live What "fallback" (Optional "PATH") "File to send, with status 200, for every path that does not exist, except below /.well-known/acme-challenge/; single-page applications use /index.html (none)" $
      oneOrNone sitePath (\v s -> s {fallback = v}),
    live What "redirect" (Many "RULE") "Redirect a path: '/old=/new' or '/old=/new STATUS' (302). '/old/*=/new/*' redirects all paths with this prefix. A * may only be the last character of the path and of the target (%2A is one of a name). The target may be a URL. Paths are compared as those of files are: decoded, and with one slash for several" $
      distinct " are for the same path" ((==) `on` \r -> (redirectFrom r, redirectPrefix r)) redirectRule (\v s -> s {redirects = v}),
    live What "proxy" (Many "RULE") "Pass requests whose path begins so on to servers, over kept connections: '/api/=http://127.0.0.1:3000'; several servers are separated by commas, and may be https://HOST or unix:FILE, which speak HTTP/1.1, or h2c://HOST:PORT, which speaks HTTP/2 without TLS, as servers of gRPC do, or h2://HOST, with TLS. The path and Host stay as they are, and are compared as they were sent; the longest prefix counts. The server with the fewest requests gets the next one; one that fails three times in a row is passed over for ten seconds. X-Forwarded-For, -Host and -Proto are set, and those of clients dropped. WebSockets and other upgrades are passed on" $
      distinct " are for the same path" ((==) `on` proxyPrefix) proxyRule (\v s -> s {proxies = v}),
    live What "proxy-check" (Optional "PATH") "Ask each server of --proxy for this path, as /health, all the time: one that does not answer with a status of 2xx or 3xx is passed over, as long as there are others (none)" $
      oneOrNone requestTarget (\v s -> s {proxyCheckPath = v}),
    live What "proxy-check-interval" (One "SECONDS") "The time from one --proxy-check to the next, within which the server has to answer; 0.1 or more (5)" $
      one (time 0.1) (\v s -> s {proxyCheckEvery = v}),
    live What "proxy-check-failures" (One "N") "A server is passed over when so many checks in a row have failed (3)" $
      one (range 1 1000) (\v s -> s {proxyCheckFailures = v}),
    live What "proxy-check-passes" (One "N") "It is asked again when so many checks in a row have passed (2)" $
      one (range 1 1000) (\v s -> s {proxyCheckPasses = v}),
    live What "proxy-half-closed" (One "SECONDS") "How long a server of --proxy may be silent when its client has ended its direction (HTTP/1), which has gone then, or only has no further request; 0 gives the request up at once, as nginx does (1)" $
      one (time 0) (\v s -> s {proxySilence = v}),
    live What "proxy-send" (OneOf "VERSION" (map fst proxyHeaders)) "Begin connections to the servers of --proxy with a header of the PROXY protocol that names the client: none, v1 (text) or v2 (binary). Each request then has a connection of its own; not with servers of TLS or HTTP/2 (none)" $
      one (among proxyHeaders) (\v s -> s {proxySend = v}),
    live What "compress" Switch "Compress files of 1 KiB to 1 MiB by brotli, zstd or gzip, as the client prefers (in this order of what it prefers equally), if there is no compressed file beside them that it accepts. The first request for a file has it compressed in the background, with an eighth of a core at most, and gets the file as it is. One half of the memory for contents (--cache) is for the results: files above an eighth of the whole are not compressed, and with --cache 0 none is" $
      switch (\v s -> s {compress = v}),
    live What "compress-type" (Many "TYPE") "Media type of files to compress: text/css, text/* for all that begin so, *+json for all that end so (texts, and what else is known to become smaller)" $
      several typePattern (\v s -> s {compressTypes = v}),
    live What "cors-origin" (Many "ORIGIN") "Allow pages of this origin to read responses, as https://example.org; '*' means every origin" $
      several corsOrigin (\v s -> s {corsOrigins = v}),
    live What "allow" (Many "[PATH=]NETWORKS") "Only clients of these networks may ask for these paths, others get 403: '/admin/*=10.0.0.0/8,::1'; without a path, for all others. all is everyone, unix whoever connects to a Unix socket. Behind --trusted-proxy it is the client that counts, and one that the proxy does not name is in no network (all)" $
      ruledBy never (\a b -> rulePattern a /= rulePattern b && hidden a b) networks (\v s -> s {allowed = merged v}),
    live What "deny" (Many "[PATH=]NETWORKS") "Clients of these networks may not ask for these paths, whatever else allows it, and get 403; nor may clients that a --trusted-proxy does not name (none)" $
      several (ruled networks) (\v s -> s {denied = merged v}),
    live What "methods" (Many "[PATH=]METHODS") "Methods for these paths, as '/api/*=GET,POST'; others get 405. GET allows HEAD too. Preflight requests (--cors-origin) need not be given (all)" $
      ruledBy never (\a b -> rulePattern a /= rulePattern b && hidden a b) methodNames (\v s -> s {methods = merged v}),
    live What "rate" (Many "[PATH=]RATE") "How often each client may ask for these paths together, as '/login=10/m' or '/api/*=20/s burst 100': so many in a second (s), minute (m) or hour (h), and so many at once (as many as in that time). A further request gets 429. A client is an IPv4 address or an IPv6 network of 64 bits (no limit)" $
      ruledBy never hidden rateOf (\v s -> s {rates = inOrder v}),
    live What "max-body" (Many "[PATH=]BYTES") "The most bytes of a request's body for these paths, as '/upload/*=100M' or 64k; a longer one gets 413 (no limit: files have no use for bodies, and servers behind --proxy their own)" $
      ruledBy never hidden byteCount (\v s -> s {maxBodies = inOrder v}),
    live What "basic-auth" (Optional "FILE") "Require a name and a password from this file, which htpasswd -B creates (bcrypt), except for files below /.well-known/acme-challenge/, redirects (--redirect), preflight requests (--cors-origin), /healthz, and /metrics for those who may read it (--metrics, --metrics-listen). One password is checked at a time, for each client in turn: an IPv4 address, or an IPv6 network of 48 bits and in it each of 64 bits. One with 8 that wait gets 429. If 1000 of all wait, the client with the most gives a place to one with less, or else the next gets 503. What was accepted is not checked again. A wrong password takes as long as the highest cost in the file, whatever the name (none)" $
      oneOrNone filled (\v s -> s {basicAuth = v}),
    live What "cache" (One "MB") "Memory for the contents of small files (64)" $
      one (range 0 1000000) (\v s -> s {cacheBytes = 1000000 * v}),
    live What "kept-files" (One "N") "Files above 256 KiB that stay open between requests, until nobody has asked for them in ten seconds; at most a thirty-second of the descriptors (ulimit -n) is for them. 0: each request opens its file (1000)" $
      one (range 0 1000000) (\v s -> s {keptFiles = v}),
    live What "trust" (One "SECONDS") "How long cached contents are used before they are compared with the disk (1)" $
      one (time 0) (\v s -> s {trust = v}),
    fixed Protection "head-timeout" (One "SECONDS") "Time for a request's head, from its first byte to its last, for a connection's first one from the beginning of the connection, and before that for the PROXY header and the TLS handshake together (10)" $
      limit (time 0.001) (\v l -> l {limitHeadTime = v}),
    fixed Protection "timeout" (One "SECONDS") "Time for each 2 KiB of a request's body and each 128 KiB of a response (30)" $
      one (range 1 86400) (\v s -> s {timeout = v}),
    fixed Protection "keep-alive" (One "SECONDS") "How long a connection may wait for its next request (60)" $
      limit (time 0.001) (\v l -> l {limitIdle = v}),
    fixed Protection "keep-alive-requests" (One "N") "Requests on one HTTP/1 connection; 0 means no limit, here and for the next two (10000)" $
      limit (range 0 maxBound) (\v l -> l {limitRequests = v}),
    fixed Protection "connections" (One "N") "Connections in total; above this, idle connections are closed, the ones nearest to their time limit first (10000)" $
      limit (range 0 maxBound) (\v l -> l {limitConnections = v}),
    fixed Protection "connections-per-address" (One "N") "Connections from one IPv4 address or one IPv6 network of 64 bits; behind --trusted-proxy, requests in progress for one client, and for the proxy itself those whose client it does not name (0)" $
      limit (range 0 maxBound) (\v l -> l {limitPerAddress = v}),
    fixed Protection "max-target" (One "BYTES") "Size of a request's first line (8192)" $
      limit (range 64 1000000) (\v l -> l {limitTarget = v}),
    fixed Protection "max-head" (One "BYTES") "Size of a request's head (32768)" $
      limit (range 256 1000000) (\v l -> l {limitHead = v}),
    fixed Protection "max-fields" (One "N") "Number of a request's header fields (100)" $
      limit (range 1 10000) (\v l -> l {limitFields = v}),
    fixed Protection "send-buffer" (One "BYTES") "What the kernel keeps for a client that does not read its response, and the most that is sent in one round trip; 0 means that the kernel chooses, up to the last number of the sysctl net.ipv4.tcp_wmem (0). With --stack it is what the stack keeps, 1 MiB for 0" $
      limit (range 0 1000000000) (\v l -> l {limitSendBuffer = v}),
    live Protection "drain" (One "SECONDS") "Time for requests in progress when the server shuts down (10)" $
      one (time 0) (\v s -> s {drain = v}),
    fixed Observation "log" (One "FILE") "Append a line for each request to this file; '-' means standard output. Each core has a buffer, so lines, also those of one client, can be out of order by a tenth of a second (none)" $
      one filled (\v s -> s {logTo = Just v}),
    fixed Observation "log-format" (OneOf "FORMAT" (map fst formats)) "Format of the log: combined, as Apache and nginx write it, or json, one object a line, which has the host too. Both have the name of basic authentication that the client has sent, also if it was refused (combined)" $
      one (among formats) (\v s -> s {logAs = v}),
    fixed Observation "metrics-listen" (Many "ADDRESS") "Listen here for /metrics, the page for Prometheus, and /healthz only, without TLS and for whoever can connect: 127.0.0.1:9090, unix:/run/weft-metrics.sock" $
      distinct " cannot both be listened on" overlap listenAddress (\v s -> s {metricsListen = v}),
    live Observation "metrics" (OneOf "WHO" (map fst audiences)) "Who may read /metrics at the addresses of the site: nobody, loopback (this machine, not over a Unix socket), proxied (this machine and whoever comes through a proxy on it) or everybody. A proxy on this machine that adds none of Forwarded, X-Forwarded-For and Via, as nginx does by default, looks like this machine: with loopback its clients can read the page. --metrics-listen is for addresses that no proxy passes on (nobody)" $
      one (among audiences) (\v s -> s {metrics = v}),
    fixed Observation "watchdog" (One "SECONDS") "Report on standard error what occupies a core for longer than this, 0.001 or more (none)" $
      one (time 0.001) (\v s -> s {watchdog = Just v}),
    live Observation "no-healthz" Switch "Do not serve /healthz, which answers ok, or 503 while the server shuts down" $
      switch (\v s -> s {healthz = not v})
  ]
  where
    fixed group name shape text = Setting group name shape text False
    live group name shape text = Setting group name shape text True
    formats = [("combined", Combined), ("json", Json)]
    proxyHeaders = [("none", Nothing), ("v1", Just ProxyVersion1), ("v2", Just ProxyVersion2)]
    announcements = [("none", ProxyProtocolNone), ("optional", ProxyProtocolOptional), ("required", ProxyProtocolRequired)]
    -- A rule, and one behind it.
    ruledBy wrong conflict reader = distinct wrong conflict (ruled reader)
    never = ": the second one never counts, as the first one is for all its paths"
    sameType a b = case (a, b) of
      (Left x, Left y) -> hidden x y
      (Right (x, _), Right (y, _)) -> x == y
      _ -> False
    audiences = [("nobody", Nobody), ("loopback", Loopback), ("proxied", Proxied), ("everybody", Everybody)]

-- | Whether a virtual host may override this setting.
ofHost :: Setting -> Bool
ofHost row = settingGroup row == What || settingName row `elem` ["folder", "certificate", "key"]

-- | Look up a setting by its name.
settingNamed :: String -> Maybe Setting
settingNamed name = find ((== name) . settingName) table

-- Ways to apply --------------------------------------------------------------------------

one :: Reader a -> (a -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
one reader set values settings = case values of
  [text] -> (`set` settings) <$> reader text
  _ -> Left "expected one value, not a list"

oneOrNone :: Reader a -> (Maybe a -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
oneOrNone reader = one (\text -> if text == "none" then Right Nothing else Just <$> reader text)

several :: Reader a -> ([a] -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
several = distinct "" (\_ _ -> False)

-- | Several values, of which no two may be in conflict; the text says what is wrong with two that are.
distinct :: String -> (a -> a -> Bool) -> Reader a -> ([a] -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
distinct wrong conflict reader set texts settings = case partitionEithers (map reader texts) of
  ([], values)
    | (a, b) : _ <- [(a, b) | (a, x) : rest <- tails (zip texts values), (b, y) <- rest, conflict x y] -> Left (show a <> " and " <> show b <> wrong)
    | otherwise -> Right (set values settings)
  (faults, _) -> Left (intercalate "; " faults)

switch :: (Bool -> Settings -> Settings) -> [String] -> Settings -> Either String Settings
switch = one (among [("true", True), ("false", False)])

limit :: Reader a -> (a -> Limits -> Limits) -> [String] -> Settings -> Either String Settings
limit reader set = one reader (\v s -> s {limits = set v (limits s)})

-- Values by name -------------------------------------------------------------------------

-- | The given values, by the setting's name, in the order in which they were given.
type Given = Map.Map String [String]

-- | The settings, or for each wrong value its name and what was expected.
settingsFrom :: Given -> Either [(String, String)] Settings
settingsFrom given = case foldl' apply ([], defaults) table of
  ([], settings) -> Right settings
  (faults, _) -> Left (reverse faults)
  where
    apply (faults, settings) row = case settingApply row <$> Map.lookup name given <*> Just settings of
      Nothing -> (faults, settings)
      Just (Left why) -> ((name, why) : faults, settings)
      Just (Right applied) -> (faults, applied)
      where
        name = settingName row

-- | The names of the settings that differ and need a restart.
restartNeeded :: Given -> Given -> [String]
restartNeeded old new = [n | row <- table, let n = settingName row, not (settingReloads row), Map.lookup n old /= Map.lookup n new]
