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

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Network.HTTP.Types (Method)
import Network.HTTP.Types.Header
import Weft.Http.Client.Types
import Weft.Http.Client.Url
import Weft.Http.Parser.Bytes (isFieldByte, isName, trimBlanks)
import Weft.Http.Parser.Head (connectionFlags, expectsContinue, flagClose, hasFlag)

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
  | not (B.all (\c -> c > 32 && c < 127) host) = Left "the host has a byte that is not allowed"
  | (name, _) : _ <- filter (not . isName . CI.original . fst) fields = Left ("a field's name is not a token: " <> show (CI.original name))
  | (name, _) : _ <- filter (not . B.all isFieldByte . snd) fields = Left ("the value of " <> C.unpack (CI.original name) <> " has a byte that is not allowed")
  | any ((`elem` [hContentLength, hTransferEncoding]) . fst) fields = Left "the framing of the body is the client's: no Content-Length and no Transfer-Encoding"
  | length (filter ((== hHost) . fst) fields) > 1 = Left "several Host fields"
  | otherwise =
    Right
      Rendered
        { renderedHead = B.concat (method : " " : target : " HTTP/1.1\r\n" : concatMap field (hostFields <> fields <> framing) <> ["\r\n"]),
          renderedIsHead = method == "HEAD",
          renderedExpects = hasBody && any (\(name, value) -> name == hExpect && expectsContinue value) fields,
          renderedCloses = any (\(name, value) -> name == hConnection && hasFlag flagClose (connectionFlags value)) fields,
          renderedSwitches = case body of
            EmptyBody -> switches fields
            _ -> []
        }
  where
    target = urlPath url
    host = hostField url
    hostFields = [(hHost, host) | all ((/= hHost) . fst) fields]
    field (name, value) = [CI.original name, ": ", value, "\r\n"]
    -- RFC 9110, 8.6: a length of zero is said where a body is usual.
    framing = case body of
      EmptyBody -> [(hContentLength, "0") | method `elem` ["POST", "PUT", "PATCH"]]
      BytesBody bytes -> [(hContentLength, C.pack (show (B.length bytes)))]
      StreamBody (Just n) _ -> [(hContentLength, C.pack (show n))]
      StreamBody Nothing _ -> [(hTransferEncoding, "chunked")]
    hasBody = case body of
      EmptyBody -> False
      BytesBody bytes -> not (B.null bytes)
      StreamBody (Just 0) _ -> False
      StreamBody _ _ -> True

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
