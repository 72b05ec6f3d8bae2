{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Clients behind proxies
--
-- Trusted proxies, and the client that X-Forwarded-For names.
module Weft.Tools.Serve.Forwarded
  ( trusted,
    throughProxy,
    forwarded,
    Addresses,
    newAddresses,
  )
where

import Control.Exception (bracket)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.IORef
import Data.IP (IP (..), IPRange (..), fromIPv6b, fromSockAddr, isMatchedTo, toIPv4, toSockAddr)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import Network.HTTP.Types (tooManyRequests429)
import Network.Wai
import Text.Read (readMaybe)
import Weft.Socket (SockAddr (..))
import Weft.Tools.Serve.Respond (plainText)
import Weft.Tools.Serve.Values (Proxy (..))

-- | Is an address one of these proxies'?
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

-- | IPv4 as an IPv6 socket sees it is IPv4 (RFC 4291, 2.5.5.2).
plain :: IP -> IP
plain ip = case ip of
  IPv6 a | (prefix, rest) <- splitAt 12 (fromIPv6b a), prefix == replicate 10 0 <> [0xff, 0xff] -> IPv4 (toIPv4 rest)
  _ -> ip

-- | Did a request come by way of a proxy, for all one can tell: from an address that is trusted as one, or with a field that
-- proxies add?
throughProxy :: [Proxy] -> Request -> Bool
throughProxy proxies request =
  any ((`elem` ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Proto", "X-Forwarded-Host", "Via"]) . fst) (requestHeaders request)
    || trusted proxies (remoteHost request)

-- | How many requests of each client there are that came by trusted proxies. Changed atomically.
newtype Addresses = Addresses (IORef (Map.Map IP Int))

-- | Without any.
newAddresses :: IO Addresses
newAddresses = Addresses <$> newIORef Map.empty

-- | The client of a request from a trusted proxy is the last address in X-Forwarded-For that is not a trusted proxy itself, since
-- a client can forge the addresses before it. A client with too many requests at once gets 429; if the number is not positive
-- there is no limit.
forwarded :: [Proxy] -> Int -> Addresses -> Middleware
forwarded [] _ _ app = app
forwarded proxies most (Addresses counts) app = \request respond ->
  if trusted proxies (remoteHost request)
    then case client request of
      Nothing -> app request respond
      Just ip
        | most <= 0 -> app (of' request ip) respond
        | otherwise -> bracket (change 1 ip) (const (change (-1) ip)) $ \n ->
          if n > most then respond (plainText tooManyRequests429 [("Retry-After", "1")]) else app (of' request ip) respond
    else app request respond
  where
    of' request ip = request {remoteHost = toSockAddr (ip, 0)}
    client request = go Nothing (reverse (concatMap (B.split ',' . snd) (filter ((== "X-Forwarded-For") . fst) (requestHeaders request))))
    -- From the nearest on, as far as it is believed.
    go found entries = case entries of
      entry : rest | Just ip <- address entry -> if believed proxies ip && isJust (nextOf rest) then go (Just ip) rest else Just ip
      _ -> found
    nextOf rest = case rest of
      entry : _ -> address entry
      [] -> Nothing
    change d ip = atomicModifyIORef' counts $ \m ->
      let n = Map.findWithDefault 0 ip m + d in (if n == 0 then Map.delete ip m else Map.insert ip n m, n :: Int)

-- | An address with or without a port, of IPv6 with or without brackets.
address :: B.ByteString -> Maybe IP
address entry
  | B.length text > 60 = Nothing
  | "[" `B.isPrefixOf` text = read' (B.takeWhile (/= ']') (B.drop 1 text))
  | B.count ':' text == 1, (before, port) <- B.break (== ':') text, B.all isDigit (B.drop 1 port) = read' before
  | otherwise = read' text
  where
    text = B.dropWhileEnd (== ' ') (B.dropWhile (== ' ') entry)
    read' t = plain <$> readMaybe (B.unpack t)
