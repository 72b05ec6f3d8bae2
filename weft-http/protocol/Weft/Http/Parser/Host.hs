{-# LANGUAGE MagicHash #-}

-- |
-- The @Host@ field and the authority of a target: @uri-host [":" port]@ (RFC 9112, 3.2; RFC 3986,
-- 3.2.2). Pure.
module Weft.Http.Parser.Host
  ( validHost,
    validAuthority,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import GHC.Exts (Ptr (Ptr))
import Weft.Http.Parser.Bytes

-- | Whether a string is a host with an optional port. An empty host is invalid: an @http@ URI has a host (RFC
-- 9110, 4.2.1). RFC 3986 allows a comma in a name, but it is refused here, since it may result from a
-- proxy that joined two fields. A colon alone is refused too.
validHost :: ByteString -> Bool
validHost bytes
  | B.null bytes = False
  | B.unsafeHead bytes == 91 = literal
  | otherwise = named 0
  where
    end = B.length bytes
    named from
      | i >= end = True
      | c == 58 = i > 0 && portFrom bytes (i + 1)
      | c == 37 = i + 2 < end && hex (i + 1) && hex (i + 2) && named (i + 3)
      | otherwise = False
      where
        !i = skipName bytes from
        c = byteAt bytes i
    hex i = hexDigit (byteAt bytes i) >= 0
    literal = case B.elemIndex 93 bytes of
      Nothing -> False
      Just close -> (validIPv6 inside || validFuture inside) && behind (B.unsafeDrop (close + 1) bytes)
        where
          inside = slice bytes 1 close
    behind rest = B.null rest || (B.unsafeHead rest == 58 && portFrom rest 1)

-- | The offset of the first byte that is not allowed in a registered name, or the end.
skipName :: ByteString -> Int -> Int
skipName bytes = go
  where
    end = B.length bytes
    go i
      | i < end && isNameByte (byteAt bytes i) = go (i + 1)
      | otherwise = i
{-# NOINLINE skipName #-}

-- | Whether a string is a valid target of CONNECT: a host and a port, neither empty (RFC 9112, 3.2.3).
validAuthority :: ByteString -> Bool
validAuthority bytes = validHost bytes && not (B.null digits) && B.all isDigit digits && hasColon
  where
    (before, digits) = C.breakEnd (== ':') bytes
    hasColon = not (B.null before)

-- | Whether a port, possibly empty, extends from an offset to the end.
portFrom :: ByteString -> Int -> Bool
portFrom bytes from = B.length bytes - from <= 5 && go from 0
  where
    go :: Int -> Int -> Bool
    go i n
      | i >= B.length bytes = n <= 65535
      | isDigit (byteAt bytes i) = go (i + 1) (n * 10 + fromIntegral (byteAt bytes i) - 48)
      | otherwise = False

-- | Whether a byte may be part of a registered name: unreserved and sub-delims except the comma.
isNameByte :: Word8 -> Bool
isNameByte = inClass nameTable
{-# INLINE isNameByte #-}

nameTable :: Ptr Word8
nameTable =
  Ptr
    "0000000000000000000000000000000001001011111101101111111111010100\
    \0111111111111111111111111110000101111111111111111111111111100010\
    \0000000000000000000000000000000000000000000000000000000000000000\
    \0000000000000000000000000000000000000000000000000000000000000000"#

-- | RFC 3986, 3.2.2. A zone is not allowed, since it is meaningless on another machine.
validIPv6 :: ByteString -> Bool
validIPv6 bytes = case B.breakSubstring (C.pack "::") bytes of
  (whole, rest) | B.null rest -> groups True whole == Just 8
  (before, rest) -> case (side False before, side True (B.drop 2 rest)) of
    (Just a, Just b) -> a + b <= 7
    _ -> False
  where
    side isFinal part = if B.null part then Just 0 else groups isFinal part

-- | The number of 16-bit groups, which are separated by colons. The last two may be
-- written as an IPv4 address.
groups :: Bool -> ByteString -> Maybe Int
groups isFinal part = go (C.split ':' part)
  where
    go [group] | isFinal, validIPv4 group = Just 2
    go [group] = if isGroup group then Just 1 else Nothing
    go (group : rest) | isGroup group = (+ 1) <$> go rest
    go _ = Nothing
    isGroup group = not (B.null group) && B.length group <= 4 && B.all ((>= 0) . hexDigit) group

validIPv4 :: ByteString -> Bool
validIPv4 bytes = case C.split '.' bytes of
  parts@[_, _, _, _] -> all part parts
  _ -> False
  where
    part digits = not (B.null digits) && B.length digits <= 3 && B.all isDigit digits && noZero digits && value digits <= 255
    noZero digits = B.length digits == 1 || B.head digits /= 48
    value = B.foldl' (\n c -> n * 10 + fromIntegral c - 48) (0 :: Int)

-- | An address literal of a later version of IP: @v1.anything@.
validFuture :: ByteString -> Bool
validFuture bytes = case C.uncons bytes of
  Just (v, rest) | v == 'v' || v == 'V' -> case C.break (== '.') rest of
    (version, more) -> not (B.null version) && B.all ((>= 0) . hexDigit) version && B.length more > 1 && B.all ok (B.drop 1 more)
  _ -> False
  where
    ok c = isNameByte c || c == 58
