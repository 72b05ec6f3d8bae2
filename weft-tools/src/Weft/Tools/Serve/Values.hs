{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Parsers of the settings' values
--
-- Pure: from a text to a value, or to an error message that says what was expected.
module Weft.Tools.Serve.Values
  ( Reader,

    -- * General values
    range,
    time,
    among,
    filled,
    fileName,
    fileMode,

    -- * Values of HTTP
    headerField,
    anyField,
    errorPage,
    mediaType,
    mediaTypeName,
    typePattern,
    sitePath,
    corsOrigin,
    Redirect (..),
    redirectRule,
    ProxyRule (..),
    proxyRule,
    requestTarget,

    -- * Addresses
    Listen (..),
    listenAddress,
    overlap,
    hostAndPort,
    Network (..),
    everyone,
    networkAddress,

    -- * Texts
    utf8,
    fromUtf8,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.CaseInsensitive as CI
import Data.Char (isAlphaNum, isControl, isDigit, isSpace)
import Data.Either (isRight)
import Data.IP (IP (..), IPRange (..), addrRangePair, fromIPv6b, makeAddrRange, toIPv4, toIPv6)
import Data.List (intercalate, isPrefixOf, stripPrefix)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Network.HTTP.Types (Header)
import Numeric (readOct)
import System.Posix.Types (FileMode)
import Text.Read (readMaybe)
import Weft.Duration (Duration, seconds)
import Weft.Http.Client (ClientProtocol (..), Url (..), parseUrl, parseUrlOrSocket, socketPathFits)

-- | The value of a text, or an error message.
type Reader a = String -> Either String a

-- General values -------------------------------------------------------------------------

range :: Int -> Int -> Reader Int
range lo hi text = case reads text of
  [(n, "")] | n >= toInteger lo, n <= toInteger hi -> Right (fromInteger n)
  _ -> Left ((if hi == maxBound then "expected a number of at least " <> show lo else "expected a number from " <> show lo <> " to " <> show hi) <> ", not " <> show text)

-- | Seconds, with a minimum.
time :: Double -> Reader Duration
time least text = case reads text of
  [(s, "")] | s >= least, s <= 1e9 -> Right (seconds s)
  _ -> Left ("expected a number of seconds, at least " <> (if least == 0 then "0" else show least) <> ", not " <> show text)

among :: [(String, a)] -> Reader a
among known text = case lookup text known of
  Just a -> Right a
  Nothing -> Left ("expected one of " <> intercalate ", " (map fst known) <> ", not " <> show text)

filled :: Reader String
filled text = if null text then Left "it is empty" else Right text

fileName :: Reader String
fileName text
  | null text || '/' `elem` text || any isControl text = Left ("expected the name of a file, not " <> show text)
  | otherwise = Right text

-- | Permissions, in octal.
fileMode :: Reader FileMode
fileMode text
  | length text `elem` [3, 4], [(mode, "")] <- readOct text, mode <= 0o777 = Right mode
  | otherwise = Left ("expected permissions in octal, as 660, not " <> show text)

-- | A field of responses.
headerField :: Reader Header
headerField text = do
  (name, value) <- anyField text
  if reserved name then Left (B.unpack (CI.original name) <> " is set by the server") else Right (name, value)
  where
    -- They depend on the request, the file or the connection.
    reserved = (`elem` ["Content-Length", "Content-Range", "Content-Encoding", "Accept-Ranges", "ETag", "Last-Modified", "Location", "WWW-Authenticate", "Transfer-Encoding", "Connection", "Date"])

-- | RFC 9110, 5.1 and 5.5: a token, and a field value.
anyField :: Reader Header
anyField text = case break (== ':') text of
  (name, ':' : value) | not (null name), all tokenChar name, not (any isControl value) -> Right (CI.mk (B.pack name), utf8 (trim value))
  _ -> Left ("expected 'Name: value', not " <> show text)
  where
    tokenChar c = c < '\128' && (isAlphaNum c || c `elem` ("!#$%&'*+-.^_`|~" :: String))
    trim = dropWhile (== ' ') . reverse . dropWhile (== ' ') . reverse

-- | @404=\/404.html@.
errorPage :: Reader (Int, ByteString)
errorPage text = case break (== '=') text of
  (digits, '=' : path) | length digits == 3, Just n <- readMaybe digits, n >= 400, n <= 599 -> (,) n <$> sitePath path
  _ -> Left ("expected a status from 400 to 599 and a path, as 404=/404.html, not " <> show text)

-- | @map=application\/json@: the suffix of a file's name, and its media type (RFC 9110, 8.3.1).
mediaType :: Reader (ByteString, ByteString)
mediaType text = case break (== '=') text of
  (suffix, '=' : value)
    | not (null suffix), not ("." `isPrefixOf` suffix), all (\c -> c /= '/' && not (isControl c || isSpace c)) suffix, Right name <- mediaTypeName value -> Right (utf8 suffix, name)
  _ -> Left ("expected the suffix of a name, without a dot in front, and a media type, as map=application/json, not " <> show text)

-- | A media type, which may have parameters.
mediaTypeName :: Reader ByteString
mediaTypeName text
  | named (takeWhile (/= ';') text), not (any isControl text) = Right (utf8 text)
  | otherwise = Left ("expected a media type, as application/json or 'text/plain; charset=iso-8859-1', not " <> show text)
  where
    named t = case break (== '/') (reverse (dropWhile (== ' ') (reverse t))) of
      (kind, '/' : rest) -> typeWord kind && typeWord rest
      _ -> False

-- | A part of a media type (RFC 6838, 4.2).
typeWord :: String -> Bool
typeWord t = not (null t) && all (\c -> c < '\128' && (isAlphaNum c || c `elem` ("!#$&-^_.+" :: String))) t

-- | A media type without parameters, or all that begin (@text\/*@) or end (@*+json@) in one way.
typePattern :: Reader ByteString
typePattern text = case break (== '/') text of
  (kind, '/' : rest) | typeWord kind, rest == "*" || typeWord rest -> Right (utf8 text)
  ('*' : '+' : suffix, "") | typeWord suffix -> Right (utf8 text)
  _ -> Left ("expected a media type, as text/css, text/* or *+json, not " <> show text)

-- | A path of the site, as in a request: without a query.
sitePath :: Reader ByteString
sitePath text
  | not ("/" `isPrefixOf` text) = Left ("expected a path that begins with /, not " <> show text)
  | any (\c -> isControl c || isSpace c) text = Left ("expected a path without blanks (a space is written as %20), not " <> show text)
  | any (`elem` ("?#" :: String)) text = Left ("expected a path without a query and a fragment, that is without ? and #, not " <> show text)
  | otherwise = Right (utf8 text)

-- | RFC 6454, 6.1, or @*@.
corsOrigin :: Reader ByteString
corsOrigin text
  | text == "*" || text == "null" = Right (utf8 text)
  | any (good . (`B.stripPrefix` given)) ["http://", "https://"] = Right given
  | otherwise = Left ("expected an origin without a path, as https://example.org, or *, not " <> show text)
  where
    given = utf8 text
    good = maybe False (\name -> not (B.null name) && B.all (\c -> isAlphaNum c || c `elem` (".:-[]" :: String)) name)

-- | A redirect from a path to a target.
data Redirect = Redirect
  { redirectFrom :: ByteString,
    -- | True if all paths with this prefix are redirected; the rest is appended to the target if 'redirectAppends'.
    redirectPrefix :: Bool,
    redirectTo :: ByteString,
    redirectAppends :: Bool,
    redirectStatus :: Int
  }
  deriving (Eq, Show)

-- | @\/old=\/new@, @\/old=\/new 301@, @\/old\/*=https:\/\/example.org\/*@.
redirectRule :: Reader Redirect
redirectRule text = case break (== '=') text of
  (from, '=' : rest) -> do
    (to, status) <- case words rest of
      [to] -> Right (to, 302)
      [to, code] | code `elem` ["301", "302", "303", "307", "308"] -> Right (to, read code)
      [_, code] -> Left ("expected the status 301, 302, 303, 307 or 308, not " <> show code)
      _ -> malformed
    let (path, prefix) = starred from
        (target, appends) = starred to
    old <- sitePath path
    when ('*' `elem` path) (Left ("expected a * only at the end of the path, for all paths that begin with what is before it, not " <> show from))
    when ('*' `elem` target) (Left ("expected a * only at the end of the target, for the rest of the path, not " <> show to))
    when (appends && not prefix) (Left ("the target " <> show to <> " ends with *, so the path has to, as in '/old/*=/new/*', and not " <> show from))
    if any (`isPrefixOf` target) ["/", "http://", "https://"] && not (any isControl target) && not ("//" `isPrefixOf` target) && (not appends || endsHost target)
      then Right (Redirect old prefix (utf8 target) appends status)
      else malformed
  _ -> malformed
  where
    malformed = Left ("expected '/old=/new' or '/old=/new STATUS', not " <> show text)
    -- What is appended to "https://a.example" would become a part of the host's name.
    endsHost target = take 1 target == "/" || '/' `elem` drop 3 (dropWhile (/= ':') target)
    starred t = case reverse t of
      '*' : before -> (reverse before, True)
      _ -> (t, False)

-- | Requests whose paths begin with this are passed on to these servers.
data ProxyRule = ProxyRule
  { proxyPrefix :: ByteString,
    -- | What each speaks, and its URL.
    proxyServers :: [(ClientProtocol, Url)]
  }
  deriving (Eq)

-- | @\/api\/=http:\/\/127.0.0.1:3000,unix:\/run\/app.sock@. HTTP\/2 is @h2c:\/\/HOST:PORT@ without TLS,
-- @h2:\/\/HOST[:PORT]@ with.
proxyRule :: Reader ProxyRule
proxyRule text = case break (== '=') text of
  (from, '=' : to)
    | take 1 from /= "/" || any (\c -> c <= ' ' || c > '~' || c `elem` ("?#%" :: String)) from -> Left ("expected a path that begins with /, as it is sent, not " <> show from)
    | otherwise -> ProxyRule (B.pack from) <$> mapM server (commas to)
  _ -> Left ("expected '/PATH/=URL[,URL ...]', not " <> show text)
  where
    server url = spoken url >>= \u -> if urlPath (snd u) == "/" then Right u else Left ("the path of a request stays as it is, so the URL of a server has none: " <> url)
    spoken url
      | Just rest <- stripPrefix "h2c://" url = (,) OnlyHttp2 <$> parseUrl ("http://" <> rest)
      | Just rest <- stripPrefix "h2://" url = (,) OnlyHttp2 <$> parseUrl ("https://" <> rest)
      | otherwise = (,) OnlyHttp1 <$> parseUrlOrSocket url
    commas t = case break (== ',') t of
      (one, ',' : rest) -> one : commas rest
      (one, _) -> [one]

-- | The target of a request, as it is sent.
requestTarget :: Reader ByteString
requestTarget text
  | take 1 text == "/", all (\c -> c > ' ' && c <= '~' && c /= '#') text = Right (B.pack text)
  | otherwise = Left ("expected a path that begins with /, as it is sent, not " <> show text)

-- Addresses ------------------------------------------------------------------------------

-- | An address to listen on.
data Listen
  = -- | A host, or 'Nothing' for every address, and a port.
    ListenTcp (Maybe String) Int
  | ListenUnix FilePath
  deriving (Eq, Show)

-- | @host:port@, @[v6]:port@, @:port@, @unix:\/path@.
listenAddress :: Reader Listen
listenAddress text = case text of
  'u' : 'n' : 'i' : 'x' : ':' : path
    | "/" `isPrefixOf` path, socketPathFits path -> Right (ListenUnix path)
    | otherwise -> Left ("expected the absolute path of a socket, at most 107 bytes long, after unix:, not " <> show path)
  '[' : rest | (name, ']' : ':' : port) <- break (== ']') rest, not (null name) -> ListenTcp (Just name) <$> portNumber port
  _ -> case break (== ':') text of
    (name, ':' : port) | ':' `notElem` port -> ListenTcp (if name `elem` ["", "*"] then Nothing else Just name) <$> portNumber port
    _ -> Left ("expected host:port, [v6]:port, :port or unix:/path, not " <> show text)
  where
    portNumber port
      | not (null port), all isDigit port = range 0 65535 port
      | otherwise = Left ("expected a port after the last colon of " <> show text)

-- | Whether the system refuses to listen on both. With port 0 it chooses another port for each. Names of hosts are
-- compared as such.
overlap :: Listen -> Listen -> Bool
overlap a b = case (a, b) of
  (ListenTcp x p, ListenTcp y q) -> p == q && p /= 0 && maybe True id (both <$> x <*> y)
  _ -> a == b
  where
    both x y = case (readMaybe x, readMaybe y) of
      (Just (IPv4 u), Just (IPv4 v)) -> u == v || toIPv4 [0, 0, 0, 0] `elem` [u, v]
      (Just (IPv6 u), Just (IPv6 v)) -> u == v || toIPv6 [0, 0, 0, 0, 0, 0, 0, 0] `elem` [u, v]
      _ -> x == y

-- | @port@, @host:port@, @[v6]:port@: the host, if it is given, and the port.
hostAndPort :: Reader (Maybe String, String)
hostAndPort text = case break (== ':') (reverse text) of
  (port, "") | isPort port -> Right (Nothing, reverse port)
  (port, _ : host) | isPort port, name@(_ : _) <- reverse (filter (`notElem` ("[]" :: String)) host) -> Right (Just name, reverse port)
  _ -> Left ("expected PORT or HOST:PORT, with a port from 0 to 65535, not " <> show text)
  where
    isPort port = all isDigit port && isRight (range 0 65535 (reverse port))

-- | Clients by their addresses.
data Network
  = NetworkRange IPRange
  | -- | Every client of a Unix socket.
    NetworkUnix
  deriving (Eq, Show)

-- | All clients.
everyone :: [Network]
everyone = [NetworkRange (IPv4Range (makeAddrRange (toIPv4 [0, 0, 0, 0]) 0)), NetworkRange (IPv6Range (makeAddrRange (toIPv6 [0, 0, 0, 0, 0, 0, 0, 0]) 0)), NetworkUnix]

-- | An address, a network, or @unix@. Clients of IPv4 have no IPv4-mapped addresses of IPv6 here.
networkAddress :: Reader Network
networkAddress text
  | text == "unix" = Right NetworkUnix
  | Just (IPv6Range r) <- readMaybe (if '/' `elem` text then text else text <> "/128"), (a, bits) <- addrRangePair r, bits >= 96, take 12 (fromIPv6b a) == replicate 10 0 <> [0xff, 0xff] = Left ("expected an IPv4 address or network instead of the IPv4-mapped " <> show text)
  | Just network <- readMaybe text = Right (NetworkRange network)
  | Just a <- readMaybe text = Right (NetworkRange (IPv4Range (makeAddrRange a 32)))
  | Just a <- readMaybe text = Right (NetworkRange (IPv6Range (makeAddrRange a 128)))
  | otherwise = Left ("expected an address, a network such as 10.0.0.0/8, or unix, not " <> show text)

-- Texts ----------------------------------------------------------------------------------

utf8 :: String -> ByteString
utf8 = T.encodeUtf8 . T.pack

-- | For messages: bytes that are not UTF-8 are replaced.
fromUtf8 :: ByteString -> String
fromUtf8 = T.unpack . T.decodeUtf8With T.lenientDecode
