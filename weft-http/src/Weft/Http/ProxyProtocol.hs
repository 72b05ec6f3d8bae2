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

import Data.Bits (shiftL, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B
import Data.Char (isDigit)
import Data.Word (Word16, Word32)
import Weft.Http.Parser.Bytes (hexDigit)
import Weft.Http.Settings (ProxyProtocol (..))
import Weft.Socket

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
ipv4 text = case mapM part (C.split '.' text) of
  Just [a, b, c, d] -> Just (tupleToHostAddress (a, b, c, d))
  _ -> Nothing
  where
    part digits = case C.readInt digits of
      Just (n, "") | C.all isDigit digits, n <= 255 -> Just (fromIntegral n)
      _ -> Nothing

-- | The last two groups may be written as an IPv4 address (RFC 4291, 2.2), as inet_ntop(3) writes IPv4-mapped
-- addresses.
ipv6 :: ByteString -> Maybe HostAddress6
ipv6 text = case B.breakSubstring "::" text of
  (whole, "") -> final (C.split ':' whole) >>= address
  (before, rest) -> do
    a <- if B.null before then Just [] else mapM group (C.split ':' before)
    b <- if B.length rest == 2 then Just [] else final (C.split ':' (B.drop 2 rest))
    if length a + length b < 8 then address (a <> replicate (8 - length a - length b) 0 <> b) else Nothing
  where
    final parts = case parts of
      [part] | Just v4 <- ipv4 part -> let (a, b, c, d) = hostAddressToTuple v4 in Just [pair a b, pair c d]
      [part] -> (: []) <$> group part
      part : rest -> (:) <$> group part <*> final rest
      [] -> Nothing
    pair high low = fromIntegral high * 256 + fromIntegral low
    group digits
      | B.null digits || B.length digits > 4 || B.any ((< 0) . hexDigit) digits = Nothing
      | otherwise = Just (B.foldl' (\n c -> n * 16 + fromIntegral (hexDigit c)) 0 digits :: Word16)
    address groups = case groups of
      [a, b, c, d, e, f, g, h] -> Just (tupleToHostAddress6 (a, b, c, d, e, f, g, h))
      _ -> Nothing

-- | Version 2: sixteen bytes, addresses, and extensions, which are skipped.
version2 :: ByteString -> Found
version2 bytes
  | B.length bytes < 16 = Partial
  | at 12 .&. 0xf0 /= 0x20 || at 12 .&. 0x0f > 1 || size > maxSize = Malformed
  | B.length bytes < 16 + size = Partial
  -- LOCAL: a connection of the proxy itself, for example a health check.
  | at 12 == 0x20 = Announced Nothing (16 + size)
  | otherwise = case at 13 of
    0x11 | size >= 12 -> Announced (Just (SockAddrInet (port 24) (tupleToHostAddress (byte 16, byte 17, byte 18, byte 19)))) (16 + size)
    0x21 | size >= 36 -> Announced (Just (SockAddrInet6 (port 48) 0 (word32 16, word32 20, word32 24, word32 28) 0)) (16 + size)
    family
      | family `elem` [0x11, 0x21] -> Malformed
      | otherwise -> Announced Nothing (16 + size)
  where
    at = B.unsafeIndex bytes
    byte = B.unsafeIndex bytes
    size = word16 14
    word16 :: Int -> Int
    word16 i = (fromIntegral (at i) `shiftL` 8) .|. fromIntegral (at (i + 1))
    port i = fromIntegral (word16 i)
    word32 :: Int -> Word32
    word32 i = (fromIntegral (word16 i) `shiftL` 16) .|. fromIntegral (word16 (i + 2))
    maxSize = 4096
