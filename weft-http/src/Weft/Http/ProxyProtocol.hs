{-# LANGUAGE OverloadedStrings #-}

-- |
-- The PROXY protocol, versions 1 and 2: a header at the beginning of a connection, by which a proxy passes on the
-- address of its client (HAProxy's proxy-protocol.txt). The parser is pure, total and incremental.
-- "Weft.Http.Proxy.Header" writes such headers.
--
-- @since 0.1.0
module Weft.Http.ProxyProtocol
  ( readProxyHeader,
    signature,
  )
where

import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B
import Data.Char (isDigit)
import Weft.Http.Settings (ProxyProtocol (..))
import Weft.Socket
import Weft.Socket.Address (hostBytes)
import Weft.Wire.Peek (word16At, word32At)

-- | The result of parsing the beginning of a connection.
data Found
  = -- | More bytes are needed to decide.
    Partial
  | -- | There is no such header.
    Absent
  | -- | The header is malformed.
    Malformed
  | -- | A header: the client's address, if the header has one, and the offset of what follows.
    Announced !(Maybe SockAddr) !Int
  deriving (Eq, Show)

-- | Read the header at the beginning of a connection, using an action that receives. Returns the client's address, if
-- given, and the bytes received after the header; 'Nothing' if a required header is missing or the header is malformed.
readProxyHeader :: ProxyProtocol -> IO ByteString -> IO (Maybe (Maybe SockAddr, ByteString))
readProxyHeader ProxyProtocolNone _ = pure (Just (Nothing, B.empty))
readProxyHeader mode receive = go B.empty
  where
    go have = case parseProxyHeader have of
      Partial -> do
        more <- receive
        if B.null more
          then pure (if mode == ProxyProtocolOptional then Just (Nothing, have) else Nothing)
          else go (have <> more)
      Absent -> pure (if mode == ProxyProtocolOptional then Just (Nothing, have) else Nothing)
      Malformed -> pure Nothing
      Announced peer n -> pure (Just (peer, B.drop n have))

-- | Parse the header at the beginning of a string.
parseProxyHeader :: ByteString -> Found
parseProxyHeader bytes
  | B.take 6 bytes == "PROXY " = version1 bytes
  | B.take 12 bytes == signature = version2 bytes
  | bytes `B.isPrefixOf` "PROXY " || bytes `B.isPrefixOf` signature = Partial
  | otherwise = Absent

-- | What a header of version 2 begins with.
signature :: ByteString
signature = "\r\n\r\n\0\r\nQUIT\n"

-- | Version 1: a line of at most 107 bytes.
version1 :: ByteString -> Found
version1 bytes = case B.breakSubstring "\r\n" (B.take 107 bytes) of
  (line, end)
    | B.null end -> if B.length bytes >= 107 then Malformed else Partial
    | otherwise -> case C.split ' ' line of
      "PROXY" : "UNKNOWN" : _ -> Announced Nothing (B.length line + 2)
      ["PROXY", "TCP4", from, to, port, port'] | Just a <- ipv4 from, Just _ <- ipv4 to, Just p <- portOf port, Just _ <- portOf port' -> Announced (Just (SockAddrInet p a)) (B.length line + 2)
      ["PROXY", "TCP6", from, to, port, port'] | Just a <- ipv6 from, Just _ <- ipv6 to, Just p <- portOf port, Just _ <- portOf port' -> Announced (Just (SockAddrInet6 p 0 a 0)) (B.length line + 2)
      _ -> Malformed

portOf :: ByteString -> Maybe PortNumber
portOf digits = case C.readInt digits of
  Just (n, "") | C.all isDigit digits, n <= 65535 -> Just (fromIntegral n)
  _ -> Nothing

ipv4 :: ByteString -> Maybe HostAddress
ipv4 text = (\b -> tupleToHostAddress (B.unsafeIndex b 0, B.unsafeIndex b 1, B.unsafeIndex b 2, B.unsafeIndex b 3)) <$> hostBytes AF_INET text

ipv6 :: ByteString -> Maybe HostAddress6
ipv6 text = (\b -> (word32At b 0, word32At b 4, word32At b 8, word32At b 12)) <$> hostBytes AF_INET6 text

-- | Version 2: sixteen bytes, addresses, and extensions, which are skipped.
version2 :: ByteString -> Found
version2 bytes
  | B.length bytes < 16 = Partial
  | at 12 .&. 0xf0 /= 0x20 || at 12 .&. 0x0f > 1 || size > maxSize = Malformed
  | B.length bytes < 16 + size = Partial
  -- LOCAL: a connection of the proxy itself, for example a health check.
  | at 12 == 0x20 = Announced Nothing (16 + size)
  | otherwise = case at 13 of
    0x11 | size >= 12 -> Announced (Just (SockAddrInet (fromIntegral (word16At bytes 24)) (tupleToHostAddress (at 16, at 17, at 18, at 19)))) (16 + size)
    0x21 | size >= 36 -> Announced (Just (SockAddrInet6 (fromIntegral (word16At bytes 48)) 0 (word32At bytes 16, word32At bytes 20, word32At bytes 24, word32At bytes 28) 0)) (16 + size)
    family
      | family `elem` [0x11, 0x21] -> Malformed
      | otherwise -> Announced Nothing (16 + size)
  where
    at = B.unsafeIndex bytes
    size = fromIntegral (word16At bytes 14)
    maxSize = 4096
