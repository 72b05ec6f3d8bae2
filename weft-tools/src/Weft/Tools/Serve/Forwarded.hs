{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Clients behind proxies
--
-- Trusted proxies, and the client that X-Forwarded-For names.
module Weft.Tools.Serve.Forwarded
  ( trusted,
    throughProxy,
    forwarded,
    clientNetwork,
    Addresses,
    newAddresses,
  )
where

import Control.Exception (bracket)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.IORef
import Data.IP (IP (..), IPRange (..), addr, fromIPv6b, fromSockAddr, isMatchedTo, makeAddrRange, toIPv4, toSockAddr)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Network.HTTP.Types (tooManyRequests429)
import Network.Wai
import Text.Read (readMaybe)
import Weft.Socket (SockAddr (..))
import Weft.Tools.Serve.Respond (plainText)
import Weft.Tools.Serve.Values (Proxy (..))

-- | True if the address belongs to one of the proxies.
trusted :: [Proxy] -> SockAddr -> Bool
trusted proxies peer = case peer of
  SockAddrUnix _ -> ProxyUnix `elem` proxies
  _ -> maybe False (believed proxies . fst) (fromSockAddr peer)

believed :: [Proxy] -> IP -> Bool
believed proxies ip = or [isIn range (plain ip) | ProxyRange range <- proxies]
  where
    isIn (IPv4Range r) (IPv4 a) = isMatchedTo a r
    isIn (IPv6Range r) (IPv6 a) = isMatchedTo a r
    isIn _ _ = False

-- | IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2) become IPv4 addresses.
plain :: IP -> IP
plain ip = case ip of
  IPv6 a | (prefix, rest) <- splitAt 12 (fromIPv6b a), prefix == replicate 10 0 <> [0xff, 0xff] -> IPv4 (toIPv4 rest)
  _ -> ip

-- | True if a request came through a proxy, as far as can be seen: it is from a trusted proxy's address, or it has a
-- field that proxies add.
throughProxy :: [Proxy] -> Request -> Bool
throughProxy proxies request =
  any ((`elem` ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Proto", "X-Forwarded-Host", "Via"]) . fst) (requestHeaders request)
    || trusted proxies (remoteHost request)

-- | For each 'network' of clients behind trusted proxies, the number of requests in progress. Changed atomically.
newtype Addresses = Addresses (IORef (Map.Map IP Int))

-- | No requests.
newAddresses :: IO Addresses
newAddresses = Addresses <$> newIORef Map.empty

-- | The client of a request from a trusted proxy is the last address in X-Forwarded-For that is not a trusted proxy
-- itself, since a client can forge the addresses before it. A client with too many requests at once gets 429; if the
-- number is not positive there is no limit.
forwarded :: [Proxy] -> Int -> Addresses -> Middleware
forwarded [] _ _ app = app
forwarded proxies most (Addresses counts) app = \request respond ->
  if trusted proxies (remoteHost request)
    then case client request of
      Nothing -> app request respond
      Just ip
        | most <= 0 -> app (of' request ip) respond
        | otherwise -> bracket (change 1 (network ip)) (const (change (-1) (network ip))) $ \n ->
          if n > most then respond (plainText tooManyRequests429 [("Retry-After", "1")]) else app (of' request ip) respond
    else app request respond
  where
    of' request ip = request {remoteHost = toSockAddr (ip, 0)}
    client request = go Nothing (reverse (concatMap (members . snd) (filter ((== "X-Forwarded-For") . fst) (requestHeaders request))))
    -- From the nearest proxy on, as long as the proxies are trusted.
    go found entries = case entries of
      entry : rest | Just ip <- address entry -> if believed proxies ip && isJust (nextOf rest) then go (Just ip) rest else Just ip
      _ -> found
    nextOf rest = case rest of
      entry : _ -> address entry
      [] -> Nothing
    change d key = atomicModifyIORef' counts $ \m ->
      let n = Map.findWithDefault 0 key m + d in (if n == 0 then Map.delete key m else Map.insert key n m, n :: Int)

-- | The 'network' of a client; 'Nothing' for clients over Unix sockets.
clientNetwork :: SockAddr -> Maybe IP
clientNetwork = fmap (network . plain . fst) . fromSockAddr

-- | An IPv4 address, or the first 64 bits of an IPv6 address, since a client can use every address with these bits.
network :: IP -> IP
network ip = case ip of
  IPv4 _ -> ip
  IPv6 a -> IPv6 (addr (makeAddrRange a 64))

-- | The members of a field that is a list, without those that are empty (RFC 9110, 5.6.1.2).
members :: B.ByteString -> [B.ByteString]
members = filter (not . B.null) . map (B.dropWhileEnd blank . B.dropWhile blank) . B.split ','
  where
    blank c = c == ' ' || c == '\t'

-- | An address with or without a port, of IPv6 with or without brackets.
address :: B.ByteString -> Maybe IP
address text
  | B.length text > 60 = Nothing
  | "[" `B.isPrefixOf` text = read' (B.takeWhile (/= ']') (B.drop 1 text))
  | B.count ':' text == 1, (before, port) <- B.break (== ':') text, B.all isDigit (B.drop 1 port) = read' before
  | otherwise = read' text
  where
    read' t = plain <$> readMaybe (B.unpack t)
