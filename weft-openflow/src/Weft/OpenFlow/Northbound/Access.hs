{-# LANGUAGE OverloadedStrings #-}

-- |
-- Who may use the northbound interface. Pure, except for reading the token's file.
module Weft.OpenFlow.Northbound.Access
  ( Access (..),
    localClients,
    bearerToken,
    readToken,
    Purpose (..),
    Refusal (..),
    refusal,
  )
where

import Data.Bits (xor, (.|.))
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.CaseInsensitive (mk)
import Data.Char (isAlphaNum, isAscii, isDigit)
import Data.List (foldl')
import Data.Maybe (isJust)
import Network.HTTP.Types (hAuthorization)
import Network.Wai
import Weft.Socket.Address (isLoopback)
import Weft.WholeFile (readTextFile)

-- | Who may read, and who may add and delete flows. A client that sends the token may do both:
-- @Authorization: Bearer TOKEN@ (RFC 6750, 2.1). A client on this host may read without it, and if there is no token,
-- also change flows. It must connect by a loopback address or a Unix socket, and the request's host must be @localhost@
-- or a loopback address, so that a page of another site has no access through its own host name (DNS rebinding). All
-- clients of a proxy on this host count as local, if it passes such a host. Others may do nothing, unless reading is
-- open to all.
data Access = Access
  { -- | The token. Without one, clients on other hosts cannot change flows.
    accessToken :: !(Maybe B.ByteString),
    -- | Whether any client may read, and a page of any site through the browser of one that can connect.
    accessOpenReads :: !Bool
  }

-- | Access for clients on this host only.
localClients :: Access
localClients = Access Nothing False

-- | Access with this token; clients on this host may read without it.
bearerToken :: B.ByteString -> Access
bearerToken token = Access (Just token) False

-- | Read a token from the first line of a file. 'Left': why it is not valid. Throws if the file cannot be read.
readToken :: FilePath -> IO (Either String B.ByteString)
readToken file = token . BC.takeWhile (\x -> x /= '\r' && x /= '\n') <$> readTextFile file
  where
    token s
      | B.length s < 16 = Left (file <> ": a token has at least 16 characters (openssl rand -hex 32 makes one)")
      | not (BC.all ok s) = Left (file <> ": a token has letters, digits and - . _ ~ + / = only")
      | otherwise = Right s
    ok x = isAscii x && isAlphaNum x || x `BC.elem` "-._~+/="

-- | What a request does.
data Purpose = Reads | Changes
  deriving (Eq)

-- | Why a request is refused.
data Refusal
  = -- | It has to have the token.
    NeedsToken
  | -- | It comes from another host, and there is no token.
    OtherHost
  | -- | It comes from this host, but is for another host name, and there is no token.
    OtherName

-- | Why a request for this purpose is refused; 'Nothing': it is not.
refusal :: Access -> Purpose -> Request -> Maybe Refusal
refusal access purpose request
  | hasToken || purpose == Reads && accessOpenReads access = Nothing
  | isJust (accessToken access) = if purpose == Reads && local && localName then Nothing else Just NeedsToken
  | not local = Just OtherHost
  | not localName = Just OtherName
  | otherwise = Nothing
  where
    local = isLoopback (remoteHost request)
    localName = maybe True isLocalName (requestHeaderHost request)
    hasToken = case (accessToken access, lookup hAuthorization (requestHeaders request)) of
      (Just token, Just given) | (scheme, rest) <- BC.break (== ' ') given -> mk scheme == "Bearer" && sameBytes token (BC.dropWhile (== ' ') rest)
      _ -> False

-- | Whether a Host field names this host, with or without a port.
isLocalName :: B.ByteString -> Bool
isLocalName name = mk (hostOf name) `elem` ["localhost", "127.0.0.1", "[::1]"]
  where
    hostOf s = case BC.elemIndexEnd ':' s of
      Just i | BC.all isDigit (B.drop (i + 1) s) -> B.take i s
      _ -> s

-- | Compare in a time that does not depend on the position of a difference.
sameBytes :: B.ByteString -> B.ByteString -> Bool
sameBytes a b = B.length a == B.length b && foldl' (.|.) 0 (B.zipWith xor a b) == 0
