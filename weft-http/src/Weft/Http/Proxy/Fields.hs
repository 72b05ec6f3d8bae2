{-# LANGUAGE OverloadedStrings #-}

-- |
-- The fields of a proxy's requests and responses: which are passed on, and which the proxy sets. Pure.
module Weft.Http.Proxy.Fields
  ( -- * Requests
    forwardedFields,
    askedUpgrades,
    askedTrailers,

    -- * Responses
    endToEnd,
    switchedFields,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Network.HTTP.Types
import Network.HTTP.Types.Header
import qualified Network.Wai as Wai
import Weft.Http.Client.Render (members, switches)
import Weft.Socket.Address (hostText)

-- Requests ---------------------------------------------------------------------------

-- | The fields of a request for the server: those of the client that do not concern its connection, and those that the
-- proxy sets. With protocols to which the server may switch, it is asked for these.
forwardedFields :: Wai.Request -> [ByteString] -> [Header]
forwardedFields request upgrades =
  -- The host comes first (RFC 9110, 7.2). HTTP/2 has it in a field of its own.
  maybe id (\host -> ((hHost, host) :)) (Wai.requestHeaderHost request) (foldr kept new fields)
  where
    fields = Wai.requestHeaders request
    named = membersOfConnection fields
    kept field@(name, _) others
      | isDropped named name || isReplaced name = others
      | otherwise = field : others
    new =
      maybe id (\address -> (("X-Forwarded-For", address) :)) (hostText (Wai.remoteHost request))
        . maybe id (\host -> (("X-Forwarded-Host", host) :)) (Wai.requestHeaderHost request)
        $ (if Wai.isSecure request then forwardedHttps else forwardedHttp) : via : upgradeFields upgrades
    via = case Wai.httpVersion request of
      HttpVersion 1 1 -> via11
      HttpVersion 1 minor -> (hVia, "1." <> C.pack (show minor) <> " weft")
      HttpVersion major _ -> (hVia, C.pack (show major) <> " weft")

-- | Fields that most requests have.
forwardedHttps, forwardedHttp, via11 :: Header
forwardedHttps = ("X-Forwarded-Proto", "https")
forwardedHttp = ("X-Forwarded-Proto", "http")
via11 = (hVia, "1.1 weft")

-- | Whether the proxy says that itself, or the client may not say it.
isReplaced :: HeaderName -> Bool
isReplaced name = case B.length folded of
  4 -> folded == "host"
  5 -> folded == "proxy"
  6 -> folded == "expect"
  9 -> folded == "forwarded"
  14 -> folded == "content-length" || folded == "http2-settings"
  15 -> folded == "x-forwarded-for"
  16 -> folded == "x-forwarded-host"
  17 -> folded == "x-forwarded-proto"
  _ -> False
  where
    folded = CI.foldedCase name

-- | The protocols to which the client asks to switch (RFC 9110, 7.8), if that can be passed on: by a request of
-- HTTP\/1.1 without a body, and to protocols that are not HTTP or TLS, which the two ends would go on to speak without
-- the proxy.
-- In HTTP\/2 such fields are malformed (RFC 9113, 8.2.2): there they are the server's, for a WebSocket (RFC 8441).
askedUpgrades :: Wai.Request -> [ByteString]
askedUpgrades request
  | Wai.httpVersion request `elem` [http11, http20], noBody, not (any isHttp asked) = asked
  | otherwise = []
  where
    asked = switches (Wai.requestHeaders request)
    noBody = case Wai.requestBodyLength request of
      Wai.KnownLength 0 -> True
      _ -> False
    isHttp protocol = C.takeWhile (/= '/') protocol `elem` ["h2c", "h2", "h3", "http", "tls"]

-- | That the client takes trailers (RFC 9110, 10.1.4), which servers of gRPC want to hear, if it says so. For a server
-- of HTTP\/2: over HTTP\/1.1, it concerns one connection.
askedTrailers :: Wai.Request -> [Header]
askedTrailers request = [(hTE, "trailers") | "trailers" `elem` members hTE (Wai.requestHeaders request)]

upgradeFields :: [ByteString] -> [Header]
upgradeFields [] = []
upgradeFields upgrades = [(hConnection, "upgrade"), (hUpgrade, B.intercalate ", " upgrades)]

-- Responses --------------------------------------------------------------------------

-- | The fields that do not concern one connection only (RFC 9110, 7.6.1).
endToEnd :: [Header] -> [Header]
endToEnd fields = filter (not . isDropped (membersOfConnection fields) . fst) fields

-- | What the fields @Connection@ name, in lower case. Nothing if they name @Keep-Alive@ only, which is dropped anyway.
membersOfConnection :: [Header] -> [ByteString]
membersOfConnection fields
  | all usual fields = []
  | otherwise = members hConnection fields
  where
    usual (name, value) = name /= hConnection || value == "keep-alive"

-- | Whether a field concerns one connection: always, or since @Connection@ names it.
isDropped :: [ByteString] -> HeaderName -> Bool
isDropped named name = isHopByHop name || (not (null named) && CI.foldedCase name `elem` named)

isHopByHop :: HeaderName -> Bool
isHopByHop name = case B.length folded of
  2 -> folded == "te"
  7 -> folded == "trailer" || folded == "upgrade"
  10 -> folded == "connection" || folded == "keep-alive"
  16 -> folded == "proxy-connection"
  17 -> folded == "transfer-encoding"
  18 -> folded == "proxy-authenticate"
  19 -> folded == "proxy-authorization"
  25 -> folded == "proxy-authentication-info"
  _ -> False
  where
    folded = CI.foldedCase name

-- | The fields of a response by which the server has switched to another protocol.
switchedFields :: [Header] -> [Header]
switchedFields fields = endToEnd fields <> [(hConnection, "upgrade")] <> filter ((== hUpgrade) . fst) fields
