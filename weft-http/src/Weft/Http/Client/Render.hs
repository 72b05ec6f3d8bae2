{-# LANGUAGE OverloadedStrings #-}

-- |
-- The head of a request as bytes. Pure. Whatever would let a part of a request be taken for something else is refused.
module Weft.Http.Client.Render
  ( Rendered (..),
    renderRequest,
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
import Weft.Http.Parser.Bytes (isFieldByte, isName, isWord, trimBlanks)
import Weft.Http.Parser.Head (connectionFlags, expectsContinue, flagClose, isSet)
import Weft.Http.Render (putBytes, putCrlf)

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
renderRequest (Request method url fields body)
  | not (isName method) = Left "the method is not a token"
  | method == "CONNECT" = Left "CONNECT is not supported"
  | B.null target || C.head target /= '/' && not (target == "*" && method == "OPTIONS") = Left "the target does not begin with a slash"
  | not (B.all (\c -> c > 32 && c < 127 && c /= 35) target) = Left "the target has a byte that has to be encoded"
  | otherwise = do
    Said size bits <- examine 0 0 fields
    host <- if hasBit saysHost bits then Right B.empty else hostLine (hostField url)
    let strings = [method, " ", target, " HTTP/1.1\r\n", host]
        framing = framingLine method body
    Right
      Rendered
        { renderedHead = written (sum (map B.length strings) + size + B.length framing + 2) strings fields framing,
          renderedIsHead = method == "HEAD",
          renderedExpects = hasBit saysExpect bits && hasBody,
          renderedCloses = hasBit saysClose bits,
          renderedSwitches = case body of
            EmptyBody | hasBit saysUpgrade bits -> switches fields
            _ -> []
        }
  where
    target = urlPath url
    hostLine host
      | B.all (\c -> c > 32 && c < 127) host = Right (B.concat ["Host: ", host, "\r\n"])
      | otherwise = Left "the host has a byte that is not allowed"
    hasBody = case body of
      EmptyBody -> False
      BytesBody bytes -> not (B.null bytes)
      StreamBody (Just 0) _ -> False
      StreamBody _ _ -> True

-- | The line that says how long the body is. RFC 9110, 8.6: a length of zero is said where a body is usual.
framingLine :: Method -> RequestBody -> ByteString
framingLine method body = case body of
  EmptyBody
    | method `elem` ["POST", "PUT", "PATCH"] -> len 0
    | otherwise -> B.empty
  BytesBody bytes -> len (B.length bytes)
  StreamBody (Just n) _ -> len n
  StreamBody Nothing _ -> "Transfer-Encoding: chunked\r\n"
  where
    len :: Int -> ByteString
    len n = B.concat ["Content-Length: ", C.pack (show n), "\r\n"]

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
    | not (B.all isFieldByte value) -> Left ("the value of " <> C.unpack (CI.original name) <> " has a byte that is not allowed")
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
        p2 <- putBytes p1 ": "
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
