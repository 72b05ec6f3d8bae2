{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Clients behind proxies
--
-- Trusted proxies, and the client that X-Forwarded-For names.
module Weft.Tools.Serve.Forwarded
  ( trusted,
    throughProxy,
    forwarded,
    isUnnamed,
    clientNetwork,
    clientSite,
    Addresses,
    newAddresses,
  )
where

import Control.Exception (bracket)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit, isHexDigit)
import Data.IORef
import Data.IP (IP (..), IPRange (..), addr, fromIPv6b, fromSockAddr, isMatchedTo, makeAddrRange, toIPv4, toSockAddr)
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust)
import qualified Data.Vault.Lazy as Vault
import Network.HTTP.Types (tooManyRequests429)
import Network.Wai
import System.IO.Unsafe (unsafePerformIO)
import Text.Read (readMaybe)
import Weft.Socket (SockAddr (..))
import Weft.Tools.Serve.Respond (plainText)
import Weft.Tools.Serve.Values (Network (..))

-- | True if the address belongs to one of the networks.
trusted :: [Network] -> SockAddr -> Bool
trusted nets peer = case peer of
  SockAddrUnix _ -> NetworkUnix `elem` nets
  _ -> maybe False (believed nets . fst) (fromSockAddr peer)

believed :: [Network] -> IP -> Bool
believed proxies ip = or [isIn range (plain ip) | NetworkRange range <- proxies]
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
throughProxy :: [Network] -> Request -> Bool
throughProxy proxies request =
  any ((`elem` ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Proto", "X-Forwarded-Host", "Via"]) . fst) (requestHeaders request)
    || trusted proxies (remoteHost request)

-- | For each 'clientNetwork' behind trusted proxies, the number of requests in progress. Changed atomically.
newtype Addresses = Addresses (IORef (Map.Map (Maybe IP) Int))

-- | No requests.
newAddresses :: IO Addresses
newAddresses = Addresses <$> newIORef Map.empty

-- | A request from a trusted proxy counts as its client's ('nearestKnown'). A client with too many requests at once
-- gets 429; if the number is not positive there is no limit. With a true argument, proxies name clients in a header of
-- the PROXY protocol too, and the address of a request without X-Forwarded-For is the one that it has named.
forwarded :: [Network] -> Bool -> Int -> Addresses -> Middleware
forwarded [] _ _ _ app = app
forwarded proxies announced most (Addresses counts) app = \request respond ->
  if not (trusted proxies (remoteHost request))
    then app request respond
    else do
      let (client, named) = nearestKnown proxies announced request
          key = clientNetwork client
          known = request {remoteHost = client}
          run = app (if named then known else known {vault = Vault.insert unnamedKey () (vault request)}) respond
      if most <= 0
        then run
        else bracket (change 1 key) (const (change (-1) key)) $ \n ->
          if n > most then respond (plainText tooManyRequests429 [("Retry-After", "1")]) else run
  where
    change d key = atomicModifyIORef' counts $ \m ->
      let n = Map.findWithDefault 0 key m + d in (if n == 0 then Map.delete key m else Map.insert key n m, n :: Int)

-- | Whether a proxy has passed the request on without naming its client: the address that it counts for is a proxy's.
isUnnamed :: Request -> Bool
isUnnamed = isJust . Vault.lookup unnamedKey . vault

unnamedKey :: Vault.Key ()
unnamedKey = unsafePerformIO Vault.newKey
{-# NOINLINE unnamedKey #-}

-- | The address for which a request of a trusted proxy counts, and whether that is the client's. Each proxy appends the
-- address that it sees to X-Forwarded-For, so the field is read from its end, as long as the proxies are trusted: a
-- client can forge what is before. Where the next member is missing or is no address (@unknown@, an obfuscated
-- identifier, garbage), the client is not known, and the request counts for the last proxy that is. A client may have
-- caused that: by @Connection: X-Forwarded-For@ at a proxy that removes what this field names, for example.
nearestKnown :: [Network] -> Bool -> Request -> (SockAddr, Bool)
nearestKnown proxies announced request = case reverse (concatMap (members . snd) (filter ((== "X-Forwarded-For") . fst) (requestHeaders request))) of
  [] -> (remoteHost request, announced)
  member : rest | Just ip <- address member, (known, named) <- go ip rest -> (toSockAddr (known, 0), named)
  _ -> (remoteHost request, False)
  where
    go ip entries = case entries of
      member : rest | believed proxies ip -> maybe (ip, False) (`go` rest) (address member)
      _ -> (ip, True)

-- | The address or, for IPv6, the first 64 bits of it, since a client can use every address with these bits. 'Nothing'
-- for Unix sockets.
clientNetwork :: SockAddr -> Maybe IP
clientNetwork = fmap (within 64 . plain . fst) . fromSockAddr

-- | Of a 'clientNetwork', the address or, for IPv6, the first 48 bits: what a site gets as a rule (RFC 6177, 2), so
-- that one client may have all networks in it.
clientSite :: Maybe IP -> Maybe IP
clientSite = fmap (within 48)

-- | An IPv4 address, or that many bits of an IPv6 address.
within :: Int -> IP -> IP
within bits ip = case ip of
  IPv4 _ -> ip
  IPv6 a -> IPv6 (addr (makeAddrRange a bits))

-- | The members of a field that is a list, without those that are empty (RFC 9110, 5.6.1.2).
members :: B.ByteString -> [B.ByteString]
members = filter (not . B.null) . map (B.dropWhileEnd blank . B.dropWhile blank) . B.split ','
  where
    blank c = c == ' ' || c == '\t'

-- | An address with or without a port, of IPv6 with or without brackets.
address :: B.ByteString -> Maybe IP
address text
  | B.length text > 60 = Nothing
  | Just inside <- B.stripPrefix "[" text, (before, after) <- B.break (== ']') inside, Just port <- B.stripPrefix "]" after, isPort port = read' before
  | B.count ':' text == 1, (before, port) <- B.break (== ':') text, isPort port = read' before
  | otherwise = read' text
  where
    isPort rest = B.null rest || B.head rest == ':' && B.all isDigit (B.drop 1 rest)
    -- The library's parser skips blanks and parentheses.
    read' t = if B.all (\c -> isHexDigit c || c == '.' || c == ':') t then plain <$> readMaybe (B.unpack t) else Nothing
