{-# LANGUAGE OverloadedStrings #-}

-- |
-- Headers of the PROXY protocol that a proxy sends to its servers (HAProxy's proxy-protocol.txt). Pure.
module Weft.Http.Proxy.Header
  ( ProxyHeader (..),
    proxyHeaderFor,
  )
where

import Data.Bits (shiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Word (Word16, Word8)
import Weft.Http.ProxyProtocol (signature)
import Weft.Socket (SockAddr (..), hostAddress6ToTuple, hostAddressToTuple)
import Weft.Socket.Address (hostText, ip6Text)

-- | The version of a header that is sent.
data ProxyHeader
  = -- | A line of text.
    ProxyVersion1
  | -- | Binary.
    ProxyVersion2
  deriving (Eq, Show)

-- | The header for a connection that is made for a client, or by the proxy itself (a health check). The address that
-- the client has connected to, which applications do not know, is given as @0.0.0.0@ or @::@ with port 0. A client over
-- a Unix socket has no address that the header could have.
proxyHeaderFor :: ProxyHeader -> Maybe SockAddr -> ByteString
proxyHeaderFor version client = case (version, client) of
  (ProxyVersion1, Just address@(SockAddrInet p _)) | Just host <- hostText address -> line "TCP4" host "0.0.0.0" p
  (ProxyVersion1, Just (SockAddrInet6 p _ host _)) -> line "TCP6" (ip6Text host) "::" p
  (ProxyVersion1, _) -> "PROXY UNKNOWN\r\n"
  (ProxyVersion2, Nothing) -> binary 0x20 0 []
  (ProxyVersion2, Just (SockAddrInet p host))
    | (a, b, c, d) <- hostAddressToTuple host -> binary 0x21 0x11 ([a, b, c, d] <> replicate 4 0 <> two (fromIntegral p) <> [0, 0])
  (ProxyVersion2, Just (SockAddrInet6 p _ host _))
    | (a, b, c, d, e, f, g, h) <- hostAddress6ToTuple host -> binary 0x21 0x21 (concatMap two [a, b, c, d, e, f, g, h] <> replicate 16 0 <> two (fromIntegral p) <> [0, 0])
  (ProxyVersion2, Just _) -> binary 0x21 0 []
  where
    line family from to port = B.concat ["PROXY ", family, " ", from, " ", to, " ", C.pack (show port), " 0\r\n"]
    binary command family addresses = signature <> B.pack ([command, family] <> two (fromIntegral (length addresses)) <> addresses)
    two :: Word16 -> [Word8]
    two n = [fromIntegral (n `shiftR` 8), fromIntegral n]
