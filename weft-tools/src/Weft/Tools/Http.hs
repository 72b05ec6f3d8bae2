{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A small HTTP/1.1 client
--
-- For the load generator, for reading a metrics page and for @weft get@. It sends one request at a time on a
-- persistent connection: over TCP or a Unix socket, with TLS or without, or over any other connection of
-- "Weft.Transport". It implements the framing of RFC 9112, section 6 (length, chunks, end of the connection), and
-- does not follow redirects. A connection is used by one thread. Deadlines hold while bytes come, too. Errors: 'IOError'
-- of the connections, and 'HttpError'.
module Weft.Tools.Http
  ( -- * Targets
    Target (..),
    parseTarget,
    parseUrl,
    hostAndPort,
    socketPathFits,

    -- * Connections
    Connection,
    connectTo,
    overTransport,
    disconnect,

    -- * Requests
    Response (..),
    Body (..),
    getRequest,
    asksToClose,
    exchange,
    largestKept,
    HttpError (..),

    -- * Between requests
    Idle (..),
    idleUntil,
  )
where

import Control.Exception (Exception, IOException, catch, throwIO, toException, try)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit, toLower)
import Data.IORef
import Data.List (isInfixOf, nub, stripPrefix)
import Data.Maybe (fromMaybe, listToMaybe)
import Foreign.C.Error (Errno (..), eCONNRESET, ePIPE)
import GHC.IO.Exception (IOErrorType (TimeExpired), IOException (IOError, ioe_errno))
import Numeric (readHex)
import Weft.Duration (nanoseconds)
import Weft.Socket (AddrInfo (..), SockAddr (..), SocketType (Stream), defaultHints, getAddrInfo)
import Weft.Tls (TlsClientSettings, tlsConnect)
import Weft.Transport (Instant, connClose, connReceive, connSendBytes, deadlineIn, isTimeout, socketTransport, transportConnect)
import qualified Weft.Transport as Transport

-- | A server and a path.
data Target = Target
  { targetHost :: !String,
    targetPort :: !String,
    -- | The path of a Unix socket, used instead of host and port.
    targetUnix :: !(Maybe FilePath),
    targetPath :: !String,
    -- | True for https.
    targetSecure :: !Bool
  }
  deriving (Eq, Show)

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
parseTarget :: String -> Either String Target
parseTarget text
  | Just rest <- stripPrefix "unix:" text =
    case break (== ':') rest of
      ([], _) -> Left "unix: needs the path of a socket"
      (file, _) | not (socketPathFits file) -> Left ("the path of a socket has at most 107 bytes (unix(7)), not " ++ file)
      (_, ':' : path@(c : _)) | c /= '/' -> Left ("unix:FILE:/PATH needs a path that begins with /, not " ++ path)
      (file, path) -> (\p -> Target "localhost" "" (Just file) p False) <$> pathOf (drop 1 path)
  | otherwise = parseUrl text

-- | @http:\/\/HOST[:PORT][\/PATH]@, the same without its scheme, or @https:\/\/HOST[:PORT][\/PATH]@.
parseUrl :: String -> Either String Target
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
      ('[' : address, path)
        | (host, ']' : port) <- break (== ']') address -> with secure host (drop 1 port) path
      (name, path) -> let (host, port) = break (== ':') name in with secure host (drop 1 port) path
    with secure host port path
      | null host = Left "the URL names no host"
      | not (null port), not (isPort port) = Left ("not a port from 1 to 65535: " ++ port)
      | otherwise = (\p -> Target host (if null port then portOf secure else port) Nothing p secure) <$> pathOf path
    isPort port = all isDigit port && length port <= 5 && read port >= (1 :: Int) && read port <= (65535 :: Int)

-- | The host of a target and its port; an IPv6 address is in brackets.
hostAndPort :: Target -> String
hostAndPort target = bracketed target <> ":" <> targetPort target

bracketed :: Target -> String
bracketed target = if ':' `elem` targetHost target then "[" <> targetHost target <> "]" else targetHost target

-- | The path of a request, without a fragment.
pathOf :: String -> Either String String
pathOf path
  | any (\c -> c <= ' ' || c > '~') path = Left "a URL has printable ASCII characters only; others are written as %XX"
  | take 1 path == "/" = Right (takeWhile (/= '#') path)
  | otherwise = Right ('/' : takeWhile (/= '#') path)

-- | The default port.
portOf :: Bool -> String
portOf secure = if secure then "443" else "80"

-- | A connection, and received bytes that have not been used yet.
data Connection = Connection !Transport.Connection !(IORef ByteString)

-- | Connect over the kernel's sockets, before the given instant, to the first address of the host that accepts a
-- connection. For @https@ the settings have the trusted authorities and the time limit of the handshake.
connectTo :: TlsClientSettings -> Instant -> Target -> IO Connection
connectTo tls due target = case targetUnix target of
  Just file -> opened (SockAddrUnix file) >>= overTransport
  Nothing -> do
    addresses <- getAddrInfo (Just defaultHints {addrSocketType = Stream}) (Just (targetHost target)) (Just (targetPort target))
    below <- firstOf (map addrAddress addresses)
    overTransport =<< if targetSecure target then tlsConnect tls (targetHost target) below else pure below
  where
    opened = transportConnect socketTransport due
    firstOf addresses = case addresses of
      [] -> throwIO (userError ("no address for " ++ targetHost target))
      [last'] -> opened last'
      address : others -> opened address `catch` \e -> if isTimeout e then throwIO e else firstOf others

-- | Use a connection for HTTP. 'disconnect' closes it.
overTransport :: Transport.Connection -> IO Connection
overTransport c = Connection c <$> newIORef B.empty

-- | Close it.
disconnect :: Connection -> IO ()
disconnect (Connection c _) = connClose c

-- | A response.
data Response = Response
  { responseStatus :: !Int,
    -- | The number of the body's bytes, without the framing of chunks.
    responseBytes :: !Int,
    -- | The body, if it was asked for.
    responseBody :: !ByteString,
    -- | True if the connection can be used for another request.
    responseKept :: !Bool,
    -- | True if bytes followed that belong to no request. They are no response (RFC 9112, section 6.3), and the
    -- connection is not kept.
    responseSurplus :: !Bool
  }

-- | What to do with a body: return it, up to 'largestKept', return only its length, or pass on each piece as it arrives.
data Body = Keep | Measure | HandTo !(ByteString -> IO ())

-- | What a response can lack.
data HttpError
  = -- | The peer does not speak HTTP.
    Malformed
  | -- | The connection ended before the end of the response.
    EndedEarly
  | -- | The body was to be kept, and is larger than 'largestKept'.
    TooLarge
  | -- | The connection ended, possibly by that error, before the first byte of a response. On a connection that had
    -- been idle, the peer has usually closed it at the same time; the request may be sent again on another one if it is
    -- idempotent (RFC 9110, 9.2.2).
    NoResponse !(Maybe IOException)
  deriving (Eq, Show)

instance Exception HttpError

-- | A request for a target, with these fields, and with @Host@ if it is not among them.
getRequest :: Target -> [ByteString] -> ByteString
getRequest target fields =
  B.concat (["GET ", B.pack (targetPath target), " HTTP/1.1\r\n"] ++ concatMap (\f -> [f, "\r\n"]) (["Host: " <> host | not (any isHost fields)] ++ fields) ++ ["\r\n"])
  where
    isHost f = B.map toLower (B.takeWhile (/= ':') f) == "host"
    host = B.pack (bracketed target <> (if targetPort target `elem` [portOf (targetSecure target), ""] then "" else ':' : targetPort target))

-- | Whether the fields of a request say that the connection ends with its response.
asksToClose :: [ByteString] -> Bool
asksToClose fields = maybe False closing (fieldOf "connection" (B.unlines ("" : fields)))

-- | The size of the largest body that is returned: 16 MiB.
largestKept :: Int
largestKept = 16777216

-- | Send a request and receive its response, before the given instant.
exchange :: Instant -> Connection -> Body -> ByteString -> IO Response
exchange due (Connection below rest) keep request = do
  unlessReset (connSendBytes below due request)
  unlessReset (receive s) >>= \bytes -> if B.null bytes then throwIO (NoResponse Nothing) else writeIORef rest bytes
  final
  where
    s = Source below due
    unlessReset act = act `catch` \e -> throwIO (if isReset e then toException (NoResponse (Just e)) else toException e)
    final = do
      fields <- receiveHead s rest
      (version, status) <- statusLine (B.takeWhile (`notElem` ("\r\n" :: String)) fields)
      if status < 200 then final else bodyOf version status fields
    bodyOf version status fields = do
      let field name = fieldOf name fields
          chunked = maybe False (B.isInfixOf "chunked" . lower) (field "transfer-encoding")
          closes = maybe (version == "HTTP/1.0") closing (field "connection")
      (Taken size pieces, framed) <- case () of
        _
          | status == 204 || status == 304 -> pure (nothing, True)
          | chunked -> flip (,) True <$> receiveChunks s rest keep nothing
          -- Repetitions of one length are allowed (RFC 9110, section 8.6).
          | lengths@(_ : _) <- nub (concatMap (map trim . B.split ',') (fieldsOf "content-length" fields)) -> case map B.readInt lengths of
            [Just (n, "")] | n >= 0 -> flip (,) True <$> receiveExactly s rest keep n nothing
            _ -> throwIO Malformed
          | otherwise -> flip (,) False <$> receiveAll s rest keep nothing
      more' <- readIORef rest
      pure (Response status size (B.concat (reverse pieces)) (framed && not closes && B.null more') (unasked more' == Surplus))

-- | What has become of a connection without a request.
data Idle
  = -- | Nothing has come.
    Quiet
  | -- | The peer has ended it, possibly after a response of status 408, by which servers give up idle connections
    -- (RFC 9110, section 15.5.9).
    Ended
  | -- | Bytes have come that belong to no request.
    Surplus
  deriving (Eq, Show)

-- | Watch a connection on which no request is under way until the instant, or until something comes. Unless it is
-- 'Quiet', the connection cannot be used for another request.
idleUntil :: Instant -> Connection -> IO Idle
idleUntil due (Connection below _) =
  try (connReceive below due 4096) >>= \found -> case found of
    Right bytes -> pure (if B.null bytes then Ended else unasked bytes)
    Left e
      | isTimeout e -> pure Quiet
      | isReset e -> pure Ended
      | otherwise -> throwIO e

-- | What bytes that belong to no request say of the connection.
unasked :: ByteString -> Idle
unasked bytes
  | B.null bytes = Quiet
  | "HTTP/1." `B.isPrefixOf` bytes, " 408" `B.isPrefixOf` B.drop 8 bytes = Ended
  | otherwise = Surplus

isReset :: IOException -> Bool
isReset e = fmap Errno (ioe_errno e) `elem` [Just eCONNRESET, Just ePIPE]

statusLine :: ByteString -> IO (ByteString, Int)
statusLine line = case B.words line of
  version : code : _ | "HTTP/1." `B.isPrefixOf` version, Just (status, "") <- B.readInt code -> pure (version, status)
  _ -> throwIO Malformed

-- | The first field of a head with that name, which is in lower case.
fieldOf :: ByteString -> ByteString -> Maybe ByteString
fieldOf name = listToMaybe . fieldsOf name

-- | All fields of a head with that name.
fieldsOf :: ByteString -> ByteString -> [ByteString]
fieldsOf name fields =
  [ trim (B.takeWhile (/= '\r') (B.drop 1 text))
    | line <- drop 1 (B.lines fields),
      let (key, text) = B.break (== ':') line,
      lower key == name
  ]

-- | Without the blanks around it.
trim :: ByteString -> ByteString
trim = B.dropWhileEnd blank . B.dropWhile blank
  where
    blank c = c == ' ' || c == '\t'

lower :: ByteString -> ByteString
lower = B.map toLower

-- | Whether @close@ is among the options of a field @Connection@ (RFC 9110, section 7.6.1).
closing :: ByteString -> Bool
closing = elem "close" . map (B.filter (`notElem` (" \t" :: String))) . B.split ',' . lower

-- ---------------------------------------------------------------------------------------------------------------
-- Receiving. Bytes that were received beyond the requested part stay in the reference.

-- | What was received of a body: the number of its bytes and, if they are kept, its pieces, the last one first.
data Taken = Taken !Int ![ByteString]

nothing :: Taken
nothing = Taken 0 []

-- | Add a piece.
taking :: Body -> ByteString -> Taken -> IO Taken
taking keep bytes (Taken size pieces) = case keep of
  Keep
    | size' > largestKept -> throwIO TooLarge
    | otherwise -> pure (Taken size' (bytes : pieces))
  Measure -> pure (Taken size' [])
  HandTo act -> Taken size' [] <$ act bytes
  where
    size' = size + B.length bytes

-- | A connection and a deadline.
data Source = Source !Transport.Connection !Instant

-- | Receive what is there, or wait. A receive that need not wait takes no notice of its deadline, so that a peer that
-- sends without a pause could go on for ever.
receive :: Source -> IO ByteString
receive (Source c due) = do
  at <- deadlineIn (nanoseconds 0)
  when (at >= due) $ ioError (IOError Nothing TimeExpired "Weft.Tools.Http" "the deadline has passed" Nothing Nothing)
  connReceive c due 32768

more :: Source -> IO ByteString
more s = do
  bytes <- receive s
  if B.null bytes then throwIO EndedEarly else pure bytes

-- | A head, without the empty line behind it; a line, without its end. Lines may end with a single LF (RFC 9112, section
-- 2.2).
receiveHead, receiveLine :: Source -> IORef ByteString -> IO ByteString
receiveHead = receiveUntil $ \seen -> case splitAfter "\n\r\n" seen of
  Just (fields, after) | not ("\n\n" `B.isInfixOf` fields || "\n" `B.isSuffixOf` fields) -> Just (fields, after)
  _ -> splitAfter "\n\n" seen
receiveLine s rest = (\line -> fromMaybe line (B.stripSuffix "\r" line)) <$> receiveUntil (splitAfter "\n") s rest

-- | What is before a delimiter, and what is behind it.
splitAfter :: ByteString -> ByteString -> Maybe (ByteString, ByteString)
splitAfter delimiter seen = case B.breakSubstring delimiter seen of
  (before, after)
    | B.null after -> Nothing
    | otherwise -> Just (before, B.drop (B.length delimiter) after)

-- | The first part of what comes; the second one stays. 'Malformed' if it cannot be split within 64 KiB.
receiveUntil :: (ByteString -> Maybe (ByteString, ByteString)) -> Source -> IORef ByteString -> IO ByteString
receiveUntil split s rest = readIORef rest >>= go
  where
    go seen = case split seen of
      Just (found, after) -> writeIORef rest after >> pure found
      Nothing
        | B.length seen > 65536 -> throwIO Malformed
        | otherwise -> more s >>= go . (seen <>)

receiveExactly :: Source -> IORef ByteString -> Body -> Int -> Taken -> IO Taken
receiveExactly s rest keep size before = readIORef rest >>= go size before
  where
    go left taken bytes
      | left <= B.length bytes = do
        let (mine, others) = B.splitAt left bytes
        writeIORef rest others
        taking keep mine taken
      | otherwise = do
        taken' <- taking keep bytes taken
        more s >>= go (left - B.length bytes) taken'

receiveChunks :: Source -> IORef ByteString -> Body -> Taken -> IO Taken
receiveChunks s rest keep taken = do
  digits <- B.takeWhile (`notElem` ("; " :: String)) <$> receiveLine s rest
  case readHex (B.unpack digits) of
    -- More digits may not fit into a word, and would be read as another size.
    _ | B.length digits > 15 -> throwIO Malformed
    [(0, "")] -> taken <$ trailers
    [(size, "")] -> do
      taken' <- receiveExactly s rest keep size taken
      end <- receiveLine s rest
      if B.null end then receiveChunks s rest keep taken' else throwIO Malformed
    _ -> throwIO Malformed
  where
    trailers = do
      line <- receiveLine s rest
      if B.null line then pure () else trailers

receiveAll :: Source -> IORef ByteString -> Body -> Taken -> IO Taken
receiveAll s rest keep before = do
  begun <- readIORef rest
  writeIORef rest B.empty
  taking keep begun before >>= go
  where
    go taken = do
      bytes <- receive s
      if B.null bytes then pure taken else taking keep bytes taken >>= go
