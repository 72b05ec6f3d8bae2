{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A small HTTP/1.1 client
--
-- For the load generator and for reading a metrics page: one request at a time on a connection that is kept, over TCP or a Unix
-- socket, on Weft's sockets. It follows the framing of RFC 9112 section 6 (length, chunks, end of the connection) and no
-- redirections. A connection is used by one thread. Errors: 'IOError' of the sockets, and 'HttpError'.
module Weft.Tools.Http
  ( -- * Where
    Target (..),
    parseTarget,

    -- * Connections
    Connection,
    connectTo,
    disconnect,

    -- * Requests
    Response (..),
    Body (..),
    getRequest,
    exchange,
    HttpError (..),
  )
where

import Control.Exception (Exception, onException, throwIO)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit, toLower)
import Data.IORef
import Data.List (isPrefixOf, stripPrefix)
import Data.Maybe (listToMaybe)
import Numeric (readHex)
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)

-- | A server and a path.
data Target = Target
  { targetHost :: !String,
    targetPort :: !String,
    -- | The path of a Unix socket, which is then used in the place of host and port.
    targetUnix :: !(Maybe FilePath),
    targetPath :: !String
  }
  deriving (Eq, Show)

-- | @http:\/\/HOST[:PORT][\/PATH]@, the same without its scheme, or @unix:FILE[:\/PATH]@.
parseTarget :: String -> Either String Target
parseTarget text
  | Just rest <- stripPrefix "unix:" text =
    let (file, path) = break (== ':') rest
     in if null file then Left "unix: needs the path of a socket" else Right (Target "localhost" "" (Just file) (orRoot (drop 1 path)))
  | "https:" `isPrefixOf` text = Left "https is not spoken here; measure the server's http port"
  | Just rest <- stripPrefix "http://" text = authority rest
  | ':' `elem` takeWhile (/= '/') text = authority text
  | otherwise = Left ("not a URL such as http://127.0.0.1:8080/: " ++ text)
  where
    authority rest = case break (== '/') rest of
      ('[' : address, path)
        | (host, ']' : port) <- break (== ']') address -> with host (drop 1 port) path
      (name, path) -> let (host, port) = break (== ':') name in with host (drop 1 port) path
    with host port path
      | null host = Left "the URL names no host"
      | not (all isDigit port) = Left ("not a port: " ++ port)
      | otherwise = Right (Target host (if null port then "80" else port) Nothing (orRoot (takeWhile (/= '#') path)))
    orRoot path = if null path then "/" else path

-- | A socket, and what was received and not yet used.
data Connection = Connection !Socket !(IORef ByteString)

-- | Connect, until the instant at the latest.
connectTo :: Instant -> Target -> IO Connection
connectTo due target = case targetUnix target of
  Just file -> opened AF_UNIX (SockAddrUnix file)
  Nothing -> do
    addresses <- getAddrInfo (Just defaultHints {addrSocketType = Stream}) (Just (targetHost target)) (Just (targetPort target))
    case listToMaybe addresses of
      Nothing -> throwIO (userError ("no address for " ++ targetHost target))
      Just address -> opened (addrFamily address) (addrAddress address)
  where
    opened family address = do
      s <- socket family Stream defaultProtocol
      (connect (withDeadline due s) address >> when (family /= AF_UNIX) (setSocketOption s NoDelay 1)) `onException` close s
      Connection s <$> newIORef B.empty

-- | Close it.
disconnect :: Connection -> IO ()
disconnect (Connection s _) = close s

-- | A response.
data Response = Response
  { responseStatus :: !Int,
    -- | Bytes of its body, as sent, without those of the chunks' framing.
    responseBytes :: !Int,
    -- | The body, where it was asked for.
    responseBody :: !ByteString,
    -- | May the connection be used again?
    responseKept :: !Bool
  }

-- | Is a body wanted, or only its length?
data Body = Keep | Measure
  deriving (Eq)

-- | The peer does not speak HTTP, or left in the middle of a response.
data HttpError = Malformed | EndedEarly
  deriving (Eq, Show)

instance Exception HttpError

-- | A request for a target, with these fields besides @Host@.
getRequest :: Target -> [ByteString] -> ByteString
getRequest target fields =
  B.concat (["GET ", B.pack (targetPath target), " HTTP/1.1\r\nHost: ", host, "\r\n"] ++ concatMap (\f -> [f, "\r\n"]) fields ++ ["\r\n"])
  where
    host = B.pack (targetHost target <> (if targetPort target `elem` ["80", ""] then "" else ':' : targetPort target))

-- | Send a request and receive its response, until the instant at the latest.
exchange :: Instant -> Connection -> Body -> ByteString -> IO Response
exchange due (Connection plain rest) keep request = do
  sendAll s request
  final
  where
    s = withDeadline due plain
    final = do
      fields <- receiveHead s rest
      (version, status) <- statusLine (B.takeWhile (/= '\r') fields)
      if status < 200 then final else bodyOf version status fields
    bodyOf version status fields = do
      let field name = fieldOf name fields
          chunked = maybe False (B.isInfixOf "chunked" . lower) (field "transfer-encoding")
          closes = maybe (version == "HTTP/1.0") ((== "close") . lower) (field "connection")
      (pieces, framed) <- case () of
        _
          | status == 204 || status == 304 -> pure ([], True)
          | chunked -> flip (,) True <$> receiveChunks s rest keep
          | Just size <- field "content-length" -> case B.readInt size of
            Just (n, "") | n >= 0 -> flip (,) True <$> receiveExactly s rest keep n
            _ -> throwIO Malformed
          | otherwise -> flip (,) False <$> receiveAll s rest keep
      pure (Response status (sum (map fst pieces)) (B.concat (map snd pieces)) (framed && not closes))

statusLine :: ByteString -> IO (ByteString, Int)
statusLine line = case B.words line of
  version : code : _ | "HTTP/1." `B.isPrefixOf` version, Just (status, "") <- B.readInt code -> pure (version, status)
  _ -> throwIO Malformed

-- | A field of a head, by its name in lower case.
fieldOf :: ByteString -> ByteString -> Maybe ByteString
fieldOf name fields =
  listToMaybe
    [ B.dropWhile (== ' ') (B.takeWhile (/= '\r') (B.drop 1 text))
      | line <- drop 1 (B.lines fields),
        let (key, text) = B.break (== ':') line,
        lower key == name
    ]

lower :: ByteString -> ByteString
lower = B.map toLower

-- ---------------------------------------------------------------------------------------------------------------
-- Receiving. What was received beyond the part that is asked for stays in the reference.

-- | A part of a body: its length and, if it is kept, its bytes.
type Piece = (Int, ByteString)

piece :: Body -> ByteString -> Piece
piece keep bytes = (B.length bytes, if keep == Keep then bytes else B.empty)

more :: Socket -> IO ByteString
more s = do
  bytes <- recv s 65536
  if B.null bytes then throwIO EndedEarly else pure bytes

receiveHead :: Socket -> IORef ByteString -> IO ByteString
receiveHead s rest = readIORef rest >>= go
  where
    go seen = case B.breakSubstring "\r\n\r\n" seen of
      (found, after)
        | not (B.null after) -> writeIORef rest (B.drop 4 after) >> pure found
        | B.length seen > 65536 -> throwIO Malformed
        | otherwise -> more s >>= go . (seen <>)

receiveLine :: Socket -> IORef ByteString -> IO ByteString
receiveLine s rest = readIORef rest >>= go
  where
    go seen = case B.breakSubstring "\r\n" seen of
      (line, after)
        | not (B.null after) -> writeIORef rest (B.drop 2 after) >> pure line
        | B.length seen > 65536 -> throwIO Malformed
        | otherwise -> more s >>= go . (seen <>)

receiveExactly :: Socket -> IORef ByteString -> Body -> Int -> IO [Piece]
receiveExactly s rest keep size = readIORef rest >>= go size
  where
    go left bytes
      | left <= B.length bytes = do
        let (mine, others) = B.splitAt left bytes
        writeIORef rest others
        pure [piece keep mine]
      | otherwise = (piece keep bytes :) <$> (more s >>= go (left - B.length bytes))

receiveChunks :: Socket -> IORef ByteString -> Body -> IO [Piece]
receiveChunks s rest keep = do
  line <- receiveLine s rest
  case readHex (B.unpack (B.takeWhile (`notElem` ("; " :: String)) line)) of
    [(0, "")] -> [] <$ trailers
    [(size, "")] -> do
      mine <- receiveExactly s rest keep size
      end <- receiveLine s rest
      if B.null end then (mine <>) <$> receiveChunks s rest keep else throwIO Malformed
    _ -> throwIO Malformed
  where
    trailers = do
      line <- receiveLine s rest
      if B.null line then pure () else trailers

receiveAll :: Socket -> IORef ByteString -> Body -> IO [Piece]
receiveAll s rest keep = do
  begun <- readIORef rest
  writeIORef rest B.empty
  (piece keep begun :) <$> go
  where
    go = do
      bytes <- recv s 65536
      if B.null bytes then pure [] else (piece keep bytes :) <$> go
