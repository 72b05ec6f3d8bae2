{-# LANGUAGE OverloadedStrings #-}

-- |
-- Converts decoded fields to a request: RFC 9113, section 8, and RFC 8441. Pure.
--
-- @since 0.1.0
module Weft.Http2.Request
  ( Head (..),
    readHead,
    readTrailers,
    contentLength,
    listSize,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import qualified Data.CaseInsensitive.Unsafe as CI (unsafeMk)
import Data.List (partition)
import Data.Maybe (isJust)
import Network.HTTP.Types (RequestHeaders)
import Weft.Http.Parser.Bytes (decimal, isToken)
import Weft.Http.Parser.Host (validHost)

-- | The head of a request.
data Head = Head
  { headMethod :: !ByteString,
    headScheme :: !ByteString,
    headTarget :: !ByteString,
    headFields :: !RequestHeaders,
    headLength :: !(Maybe Int),
    -- | The protocol for which an extended CONNECT asks (RFC 8441, 4), as it was sent.
    headProtocol :: !(Maybe ByteString)
  }
  deriving (Eq, Show)

-- | The head, or what is wrong with it; in that case the stream is to be reset (section 8.1.1).
readHead :: [(ByteString, ByteString)] -> Either String Head
readHead fields = do
  let (pseudo, regular) = span (B.isPrefixOf ":" . fst) fields
  mapM_ checkRegular regular
  let one name = case [value | (n, value) <- pseudo, n == name] of
        [value] -> Right value
        [] -> Left ("no " <> B8.unpack name)
        _ -> Left ("two " <> B8.unpack name)
      optional name = case [value | (n, value) <- pseudo, n == name] of
        [] -> Right Nothing
        [value] -> Right (Just value)
        _ -> Left ("two " <> B8.unpack name)
  method <- one ":method"
  -- A plain CONNECT is for proxies (RFC 9113, 8.5). The extended one has all of the others' pseudo-fields.
  let extended = method == "CONNECT"
  check (all ((\name -> name `elem` [":method", ":scheme", ":path", ":authority"] || (extended && name == ":protocol")) . fst) pseudo) "an unknown pseudo-field"
  protocol <- if extended then Just <$> one ":protocol" else Right Nothing
  check (all isProtocol protocol) "the protocol"
  check (not (B.null method) && B.all isToken method) "the method"
  scheme <- one ":scheme"
  check (isScheme scheme) "the scheme"
  target <- one ":path"
  check ("/" `B.isPrefixOf` target || (target == "*" && method == "OPTIONS")) "the path"
  -- A fragment is not allowed: RFC 9113, 8.3.1.
  check (B.all (\c -> c > 0x20 && c /= 0x23 && c /= 0x7f) target) "the path"
  authority <- optional ":authority"
  let hosts = [value | ("host", value) <- regular]
  host <- case (authority, hosts) of
    (Just a, []) -> Right a
    (Just a, [h]) | a == h -> Right a
    (Nothing, [h]) -> Right h
    (Nothing, []) -> Left "no authority"
    _ -> Left "an authority and another host"
  check (validHost host) "the authority"
  size <- contentLength [value | ("content-length", value) <- regular]
  -- CONNECT has no content (RFC 9110, 9.3.6), and what follows has no length.
  check (not extended || null size) "a content length of CONNECT"
  let (crumbs, rest) = partition ((== "cookie") . fst) (filter ((/= "host") . fst) regular)
      -- Section 8.2.3.
      cookies = [("cookie", B.intercalate "; " (map snd crumbs)) | not (null crumbs)]
  -- The names were checked: they are in lower case.
  pure (Head method scheme target [(CI.unsafeMk name, value) | (name, value) <- ("host", host) : rest <> cookies] size protocol)

-- | Check the fields after a body; they are not used.
readTrailers :: [(ByteString, ByteString)] -> Either String ()
readTrailers = mapM_ checkRegular

checkRegular :: (ByteString, ByteString) -> Either String ()
checkRegular (name, value) = do
  check (not (B.null name) && B.all (\c -> isToken c && not (c >= 0x41 && c <= 0x5a)) name) ("the field name " <> show name)
  -- Section 8.2.1.
  check (B.all (\c -> c /= 0 && c /= 10 && c /= 13) value) ("the value of " <> B8.unpack name)
  check (B.null value || (not (isBlank (B.head value)) && not (isBlank (B.last value)))) ("blanks around the value of " <> B8.unpack name)
  -- Section 8.2.2.
  check (name `notElem` ["connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"]) (B8.unpack name <> " in HTTP/2")
  check (name /= "te" || value == "trailers") "te"
  where
    isBlank c = c == 0x20 || c == 9

-- | The length that the values of the field @content-length@ declare, if there is one. As in HTTP/1.1, several are
-- refused, equal or not (RFC 9110, 8.6).
contentLength :: [ByteString] -> Either String (Maybe Int)
contentLength values = case values of
  [] -> Right Nothing
  [v] | n <- decimal v, n >= 0 -> Right (Just n)
  _ -> Left "the content length"

-- | The size of a list of fields as limits define it: section 6.5.2.
listSize :: [(ByteString, ByteString)] -> Int
listSize fields = sum [B.length name + B.length value + 32 | (name, value) <- fields]

-- | A token, perhaps with a version behind a slash: RFC 9110, 7.8.
isProtocol :: ByteString -> Bool
isProtocol protocol = case B.split 0x2f protocol of
  [name] -> token name
  [name, version] -> token name && token version
  _ -> False
  where
    token name = not (B.null name) && B.all isToken name

-- | RFC 3986, 3.1.
isScheme :: ByteString -> Bool
isScheme scheme = case B.uncons scheme of
  Nothing -> False
  Just (c, rest) -> letter c && B.all (\x -> letter x || (x >= 0x30 && x <= 0x39) || isJust (B.elemIndex x "+-.")) rest
  where
    letter c = (c >= 0x61 && c <= 0x7a) || (c >= 0x41 && c <= 0x5a)

check :: Bool -> String -> Either String ()
check ok what = if ok then Right () else Left what
