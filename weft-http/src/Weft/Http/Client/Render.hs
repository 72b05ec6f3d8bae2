{-# LANGUAGE OverloadedStrings #-}

-- |
-- The head of a request as bytes. Pure. Whatever would let a part of a request be taken for something else is refused.
module Weft.Http.Client.Render
  ( Rendered (..),
    renderRequest,
    Listed (..),
    listRequest,
    isIdempotent,
    switches,
    members,
  )
where

import Control.Monad (foldM, void)
import Data.Bits ((.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (unsafeCreate)
import qualified Data.CaseInsensitive as CI
import Network.HTTP.Types (Method)
import Network.HTTP.Types.Header
import Weft.Http.Client.Types
import Weft.Http.Client.Url
import Weft.Http.Parser.Bytes (isFieldValue, isName, isWord, trimBlanks)
import Weft.Http.Parser.Head (connectionFlags, expectsContinue, flagClose, isSet)
import Weft.Http.Render (putBytes, putColon, putCrlf)

-- | A request's head.
data Rendered = Rendered
  { renderedHead :: !ByteString,
    -- | Whether the request is HEAD.
    renderedIsHead :: !Bool,
    -- | Whether the body is held back until the server asks for it.
    renderedExpects :: !Bool,
    -- | Whether the request says that it is the connection's last.
    renderedCloses :: !Bool,
    -- | The protocols to one of which the server may switch, in lower case.
    renderedSwitches :: ![ByteString]
  }

-- | The head, or why the request cannot be sent.
renderRequest :: Request -> Either String Rendered
renderRequest request@(Request method url fields body) = do
  Said size bits <- checked request
  host <- if hasBit saysHost bits then Right B.empty else (\host -> B.concat ["Host: ", host, "\r\n"]) <$> hostOf url
  let strings = [method, " ", urlPath url, " HTTP/1.1\r\n", host]
      framing = framingLine method body
  Right
    Rendered
      { renderedHead = written (sum (map B.length strings) + size + B.length framing + 2) strings fields framing,
        renderedIsHead = method == "HEAD",
        renderedExpects = hasBit saysExpect bits && hasBody body,
        renderedCloses = hasBit saysClose bits,
        renderedSwitches = case body of
          EmptyBody | hasBit saysUpgrade bits -> switches fields
          _ -> []
      }

-- | A request's head as the fields of HTTP\/2.
data Listed = Listed
  { -- | Pseudo-fields first, names in lower case.
    listedFields :: ![(ByteString, ByteString)],
    listedIsHead :: !Bool,
    -- | Whether the body is held back until the server asks for it.
    listedExpects :: !Bool
  }

-- | The fields, or why the request cannot be sent. Those that concern a connection of HTTP\/1 are left out: RFC 9113,
-- 8.2.2.
listRequest :: Request -> Either String Listed
listRequest request@(Request method url fields body) = do
  Said _ bits <- checked request
  host <- case [value | (name, value) <- fields, name == hHost] of
    value : _ -> Right value
    [] -> hostOf url
  let pseudo = [(":method", method), (":scheme", if urlSecure url then "https" else "http"), (":authority", host), (":path", urlPath url)]
      sized = maybe id (\n -> (("content-length", C.pack (show n)) :)) (announcedLength method body)
      named = members hConnection fields
      passed (name, value) = case B.length folded of
        2 | isWord "te" folded -> [(folded, "trailers") | "trailers" `elem` members "te" [(name, value)]]
        _
          | folded `elem` ["host", "connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings"] || folded `elem` named -> []
          | otherwise -> [(folded, trimBlanks value)]
        where
          folded = CI.foldedCase name
  Right (Listed (pseudo <> sized (concatMap passed fields)) (method == "HEAD") (hasBit saysExpect bits && hasBody body))

-- | What the fields say, if the request can be sent.
checked :: Request -> Either String Said
checked (Request method url fields _)
  | not (isName method) = Left "the method is not a token"
  | method == "CONNECT" = Left "CONNECT is not supported"
  | B.null target || C.head target /= '/' && not (target == "*" && method == "OPTIONS") = Left "the target does not begin with a slash"
  | not (B.all (\c -> c > 32 && c < 127 && c /= 35) target) = Left "the target has a byte that has to be encoded"
  | otherwise = examine 0 0 fields
  where
    target = urlPath url

-- | The value of the field @Host@.
hostOf :: Url -> Either String ByteString
hostOf url
  | B.all (\c -> c > 32 && c < 127) host = Right host
  | otherwise = Left "the host has a byte that is not allowed"
  where
    host = hostField url

hasBody :: RequestBody -> Bool
hasBody body = case body of
  EmptyBody -> False
  BytesBody bytes -> not (B.null bytes)
  StreamBody (Just 0) _ -> False
  StreamBody _ _ -> True
  TrailedBody {} -> True

-- | The line that says how long the body is.
framingLine :: Method -> RequestBody -> ByteString
framingLine method body = case announcedLength method body of
  Just n -> B.concat ["Content-Length: ", C.pack (show n), "\r\n"]
  Nothing -> case body of
    EmptyBody -> B.empty
    _ -> "Transfer-Encoding: chunked\r\n"

-- | The length that is announced. RFC 9110, 8.6: a length of zero is said where a body is usual.
announcedLength :: Method -> RequestBody -> Maybe Int
announcedLength method body = case body of
  EmptyBody
    | method `elem` ["POST", "PUT", "PATCH"] -> Just 0
    | otherwise -> Nothing
  BytesBody bytes -> Just (B.length bytes)
  StreamBody size _ -> size
  TrailedBody size _ _ -> size

-- | The bytes of the fields' lines, and a set of the bits below.
data Said = Said !Int !Int

-- | There is a @Host@; an @Expect@ of 100-continue; a @Connection@ with @close@; an @Upgrade@.
saysHost, saysExpect, saysClose, saysUpgrade :: Int
saysHost = 1
saysExpect = 2
saysClose = 4
saysUpgrade = 8

hasBit :: Int -> Int -> Bool
hasBit bit bits = bits .&. bit /= 0

-- | Look at each field once: what is to be written, and whether it may be.
examine :: Int -> Int -> [Header] -> Either String Said
examine !size !bits fields = case fields of
  [] -> Right (Said size bits)
  (name, value) : others
    | not (isName (CI.original name)) -> Left ("a field's name is not a token: " <> show (CI.original name))
    | not (isFieldValue value) -> Left ("the value of " <> C.unpack (CI.original name) <> " has a byte that is not allowed")
    | otherwise -> case B.length folded of
      4 | isWord "host" folded -> if hasBit saysHost bits then Left "several Host fields" else next saysHost
      6 | isWord "expect" folded -> next (if expectsContinue value then saysExpect else 0)
      7 | isWord "upgrade" folded -> next saysUpgrade
      10 | isWord "connection" folded -> next (if isSet flagClose (connectionFlags value) then saysClose else 0)
      14 | isWord "content-length" folded -> framed
      17 | isWord "transfer-encoding" folded -> framed
      _ -> next 0
    where
      folded = CI.foldedCase name
      next bit = examine (size + B.length folded + B.length value + 4) (bits .|. bit) others
      framed = Left "the framing of the body is the client's: no Content-Length and no Transfer-Encoding"

-- | Strings, the lines of fields, a string and an empty line, of so many bytes together, in memory of their own.
written :: Int -> [ByteString] -> [Header] -> ByteString -> ByteString
written size strings fields framing = B.unsafeCreate size $ \p -> foldM putBytes p strings >>= lines' fields
  where
    lines' rest !p = case rest of
      [] -> putBytes p framing >>= void . putCrlf
      (name, value) : others -> do
        p1 <- putBytes p (CI.original name)
        p2 <- putColon p1
        p3 <- putBytes p2 value
        putCrlf p3 >>= lines' others
{-# NOINLINE written #-}

-- | The protocols of the fields @Upgrade@ in lower case, if @Connection@ names that field (RFC 9110, 7.8).
switches :: [Header] -> [ByteString]
switches fields
  | all ((/= hUpgrade) . fst) fields = []
  | "upgrade" `elem` members hConnection fields = filter (not . B.null) (members hUpgrade fields)
  | otherwise = []

-- | The members of the fields of a name, which are lists of tokens, in lower case.
members :: HeaderName -> [Header] -> [ByteString]
members wanted fields = [CI.foldCase (trimBlanks member) | (name, value) <- fields, name == wanted, member <- C.split ',' value]

-- | Whether a repetition of such a request does nothing more than the request (RFC 9110, 9.2.2).
isIdempotent :: Method -> Bool
isIdempotent = (`elem` ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"])
