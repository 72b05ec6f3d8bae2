-- |
-- The part of URLs (RFC 9110, 4.2) that says where a request goes, and Unix sockets as servers. Pure.
module Weft.Http.Client.Url
  ( Url (..),
    parseUrl,
    parseUrlOrSocket,
    showUrl,
    hostAndPort,
    hostField,
    socketPathFits,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit, toLower)
import Data.List (isInfixOf, stripPrefix)

-- | A server and the target of a request.
data Url = Url
  { -- | A name or an address. An IPv6 address is without brackets, and may have a zone: @fe80::1%eth0@.
    urlHost :: !String,
    urlPort :: !String,
    -- | The path of a Unix socket, used instead of host and port.
    urlUnix :: !(Maybe FilePath),
    -- | Path and query, beginning with a slash, encoded.
    urlPath :: !ByteString,
    -- | True for @https@.
    urlSecure :: !Bool
  }
  deriving (Eq, Ord, Show)

-- | Whether an address can have the path of a Unix socket: unix(7) has 108 bytes for it, with the zero byte behind it.
socketPathFits :: FilePath -> Bool
socketPathFits path = sum (map width path) < 108
  where
    width c
      -- A byte that is not in UTF-8 is one of these in a path.
      | c < '\x80' || c >= '\xDC80' && c <= '\xDCFF' = 1 :: Int
      | c < '\x800' = 2
      | c < '\x10000' = 3
      | otherwise = 4

-- | Parse a URL as 'parseUrl' does, or @unix:FILE[:\/PATH]@.
parseUrlOrSocket :: String -> Either String Url
parseUrlOrSocket text
  | Just rest <- stripPrefix "unix:" text =
    case break (== ':') rest of
      ([], _) -> Left "unix: needs the path of a socket"
      (file, _) | not (socketPathFits file) -> Left ("the path of a socket has at most 107 bytes (unix(7)), not " ++ file)
      (_, ':' : path@(c : _)) | c /= '/' -> Left ("unix:FILE:/PATH needs a path that begins with /, not " ++ path)
      (file, path) -> (\p -> Url "localhost" "" (Just file) p False) <$> pathOf (drop 1 path)
  | otherwise = parseUrl text

-- | @http:\/\/HOST[:PORT][\/PATH]@, the same without its scheme, or @https:\/\/HOST[:PORT][\/PATH]@. A fragment is
-- dropped. 'Left' has the reason, for a user.
parseUrl :: String -> Either String Url
parseUrl text
  | Just rest <- scheme "https://" = authority True rest
  | Just rest <- scheme "http://" = authority False rest
  | not ("://" `isInfixOf` text), ':' `elem` takeWhile (/= '/') text = authority False text
  | otherwise = Left ("not a URL such as http://127.0.0.1:8080/: " ++ text)
  where
    -- In any case of letters (RFC 9110, section 4.2.3).
    scheme name = let (begin, rest) = splitAt (length name) text in if map toLower begin == name then Just rest else Nothing
    authority secure rest = case break (`elem` ("/?#" :: String)) rest of
      (name, _) | '@' `elem` name -> Left "a user name or password in a URL is not supported"
      ('[' : address, path) -> case break (== ']') address of
        (host, ']' : port)
          | ':' `notElem` host -> Left ("not an IPv6 address: [" ++ host ++ "]")
          | null port || take 1 port == ":" -> with secure (withZone host) (drop 1 port) path
        _ -> Left ("behind [ there have to be an IPv6 address and ], and then nothing or a colon and the port: [" ++ address)
      (name, path) -> let (host, port) = break (== ':') name in with secure host (drop 1 port) path
    -- RFC 6874, section 2. Others write the percent sign as it is.
    withZone host = case break (== '%') host of
      (address, '%' : '2' : '5' : zone@(_ : _)) -> address ++ "%" ++ zone
      _ -> host
    with secure host port path
      | null host = Left "the URL names no host"
      | any (\c -> c <= ' ' || c > '~') host = Left "a host's name has printable ASCII characters only"
      | not (null port), not (isPort port) = Left ("not a port from 1 to 65535: " ++ port)
      | otherwise = (\p -> Url host (if null port then portOf secure else port) Nothing p secure) <$> pathOf path
    isPort port = all isDigit port && length port <= 5 && read port >= (1 :: Int) && read port <= (65535 :: Int)

-- | The URL as text; that of a Unix socket as 'parseUrlOrSocket' takes it.
showUrl :: Url -> String
showUrl url = server <> B.unpack (urlPath url)
  where
    server = case urlUnix url of
      Just file -> "unix:" <> file <> ":"
      Nothing -> (if urlSecure url then "https://" else "http://") <> bracketed (concatMap encoded (urlHost url)) <> shownPort url
    encoded c = if c == '%' then "%25" else [c]

-- | The host and its port; an IPv6 address is in brackets.
hostAndPort :: Url -> String
hostAndPort url = bracketed (urlHost url) <> ":" <> urlPort url

-- | The value of the field @Host@: without the port if it is the scheme's (RFC 9110, 4.2.3), and without the zone of an
-- address, which means nothing to others (RFC 6874, 4).
hostField :: Url -> ByteString
hostField url = B.pack (bracketed address <> shownPort url)
  where
    address = if ':' `elem` urlHost url then takeWhile (/= '%') (urlHost url) else urlHost url

-- | The port, if it is not the scheme's.
shownPort :: Url -> String
shownPort url = if urlPort url `elem` [portOf (urlSecure url), ""] then "" else ':' : urlPort url

bracketed :: String -> String
bracketed host = if ':' `elem` host then "[" <> host <> "]" else host

-- | The path of a request, without a fragment.
pathOf :: String -> Either String ByteString
pathOf path
  | any (\c -> c <= ' ' || c > '~') path = Left "a URL has printable ASCII characters only; others are written as %XX"
  | take 1 path == "/" = Right (B.pack (takeWhile (/= '#') path))
  | otherwise = Right (B.pack ('/' : takeWhile (/= '#') path))

-- | The default port.
portOf :: Bool -> String
portOf secure = if secure then "443" else "80"
