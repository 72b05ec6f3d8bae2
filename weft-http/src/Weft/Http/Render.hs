{-# LANGUAGE OverloadedStrings #-}

-- |
-- Response heads, written into memory. What a response's fields say about its connection and framing is
-- found out once ('survey').
module Weft.Http.Render
  ( -- * Fields
    Survey (..),
    survey,
    hasBit,
    bitClose,

    -- * Heads
    refusalMessage,
    headRoom,
    renderHead,
    ConnectionField (..),
    putBytes,
    putCrlf,
    putDecimal,
    decimalDigits,
    putHex,
    hexDigits,
  )
where

import Control.Exception (ErrorCall (..), throwIO)
import Control.Monad (when)
import Data.Bits (complement, unsafeShiftR, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B
import qualified Data.CaseInsensitive as CI
import Data.Word (Word8)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (poke)
import Network.HTTP.Types
import Weft.Http.Date
import Weft.Http.Parser.Bytes
import Weft.Http.Types

-- | What the fields of a response amount to: their bytes as lines, the length that they declare or -1, and bits.
data Survey = Survey !Int !Int !Int

-- | It has the field; @Connection@ has @close@; a name or a value has a CR, an LF or a zero byte; the length is none.
bitDate, bitServer, bitClose, bitConnection, bitBroken :: Int
bitDate = 1
bitServer = 2
bitClose = 4
bitConnection = 8
bitBroken = 16

hasBit :: Int -> Int -> Bool
hasBit bit bits = bits .&. bit /= 0
{-# INLINE hasBit #-}

-- | Which of the fields that concern the server a name is.
data Kind = Plain | IsDate | IsServer | IsConnection | IsLength | IsCoding

kindOf :: HeaderName -> Kind
kindOf name = case B.length folded of
  4 | folded == "date" -> IsDate
  6 | folded == "server" -> IsServer
  10 | folded == "connection" -> IsConnection
  14 | folded == "content-length" -> IsLength
  17 | folded == "transfer-encoding" -> IsCoding
  _ -> Plain
  where
    folded = CI.foldedCase name
{-# INLINE kindOf #-}

-- | Look at the fields of a response once.
survey :: ResponseHeaders -> Survey
survey = go 0 (-1) 0
  where
    go !size !len !bits fields = case fields of
      [] -> Survey size len bits
      (name, value) : rest ->
        let size' = size + B.length (CI.original name) + B.length value + 4
            bits' = if safe (CI.original name) && safe value then bits else bits .|. bitBroken
         in case kindOf name of
              Plain -> go size' len bits' rest
              IsDate -> go size' len (bits' .|. bitDate) rest
              IsServer -> go size' len (bits' .|. bitServer) rest
              IsConnection -> go size' len (bits' .|. bitConnection .|. (if closes value then bitClose else 0)) rest
              IsLength -> go size' (declared value) bits' rest
              IsCoding -> go size len bits' rest
    closes value = any ((== "close") . CI.mk . trimBlanks) (C.split ',' value)

-- | A length that is none counts as not given.
declared :: ByteString -> Int
declared digits
  | B.null digits || B.length digits > 18 || not (B.all isDigit digits) = -1
  | otherwise = B.foldl' (\n c -> n * 10 + fromIntegral c - 48) 0 digits

-- | Is there no byte that ends a line? Eight at a time while none of them is below 14.
safe :: ByteString -> Bool
safe bytes = wide 0
  where
    end = B.length bytes
    wide i
      | i + 8 > end = narrow i end
      | (w - 0x0e0e0e0e0e0e0e0e) .&. complement w .&. 0x8080808080808080 == 0 = wide (i + 8)
      | otherwise = narrow i (i + 8)
      where
        w = wordAt bytes i
    narrow i stop
      | i >= stop = stop >= end || wide stop
      | c == 13 || c == 10 || c == 0 = False
      | otherwise = narrow (i + 1) stop
      where
        c = byteAt bytes i

-- | What the connection does after a response, as far as it has to be said.
data ConnectionField = Silent | SayClose | SayKeepAlive

-- | Bytes that 'renderHead' needs at most, and some 64 more for what is written behind it.
headRoom :: Shared -> Status -> Survey -> Int
headRoom shared status (Survey size _ _) =
  size + B.length (statusMessage status) + B.length (sharedServerLine shared) + B.length (sharedLines shared) + 160

-- | Write a head but for its length or coding and the empty line at its end; where it ends. The status line says HTTP\/1.1
-- whatever the request's version (RFC 9110, 6.2). With 'False' a declared length is left out.
renderHead :: Shared -> Ptr Word8 -> Status -> ResponseHeaders -> Survey -> ConnectionField -> Bool -> IO (Ptr Word8)
renderHead shared p0 status fields (Survey _ _ bits) ending withLength = do
  when (hasBit bitBroken bits) (throwIO (ErrorCall "Weft.Http: a response field with a line end or a zero byte"))
  p1 <- putBytes p0 "HTTP/1.1 "
  p2 <- putDecimal p1 3 (statusCode status)
  poke p2 32
  p3 <- putBytes (p2 `plusPtr` 1) (statusMessage status)
  p4 <- putCrlf p3
  p5 <- if hasBit bitDate bits then pure p4 else dateLine >>= putBytes p4
  p6 <- if hasBit bitServer bits then pure p5 else putBytes p5 (sharedServerLine shared)
  p7 <- putBytes p6 (sharedLines shared)
  p8 <- putFields withLength p7 fields
  case ending of
    Silent -> pure p8
    SayClose -> if hasBit bitClose bits then pure p8 else putBytes p8 "Connection: close\r\n"
    SayKeepAlive -> if hasBit bitConnection bits then pure p8 else putBytes p8 "Connection: keep-alive\r\n"
{-# NOINLINE renderHead #-}

putFields :: Bool -> Ptr Word8 -> ResponseHeaders -> IO (Ptr Word8)
putFields withLength = go
  where
    go !p fields = case fields of
      [] -> pure p
      (name, value) : rest -> case kindOf name of
        IsCoding -> go p rest
        IsLength | not withLength -> go p rest
        _ -> do
          p1 <- putBytes p (CI.original name)
          poke p1 58
          poke (p1 `plusPtr` 1) (32 :: Word8)
          p2 <- putBytes (p1 `plusPtr` 2) value
          p3 <- putCrlf p2
          go p3 rest

putCrlf :: Ptr Word8 -> IO (Ptr Word8)
putCrlf p = do
  poke p 13
  poke (p `plusPtr` 1) (10 :: Word8)
  pure (p `plusPtr` 2)
{-# INLINE putCrlf #-}

-- | Copy a string; where it ends.
putBytes :: Ptr Word8 -> ByteString -> IO (Ptr Word8)
putBytes p bytes = do
  B.unsafeUseAsCStringLen bytes (\(from, n) -> copyBytes p (castPtr from) n)
  pure (p `plusPtr` B.length bytes)
{-# INLINE putBytes #-}

-- | A number in so many decimal digits.
putDecimal :: Ptr Word8 -> Int -> Int -> IO (Ptr Word8)
putDecimal p digits = go (digits - 1)
  where
    go i n
      | i < 0 = pure (p `plusPtr` digits)
      | otherwise = do
        let (q, r) = n `quotRem` 10
        poke (p `plusPtr` i) (fromIntegral (48 + r) :: Word8)
        go (i - 1) q

decimalDigits :: Int -> Int
decimalDigits n = if n < 10 then 1 else 1 + decimalDigits (n `quot` 10)

-- | A number in so many hexadecimal digits.
putHex :: Ptr Word8 -> Int -> Int -> IO (Ptr Word8)
putHex p digits = go (digits - 1)
  where
    go i n
      | i < 0 = pure (p `plusPtr` digits)
      | otherwise = do
        let d = n .&. 15
        poke (p `plusPtr` i) (fromIntegral (if d < 10 then 48 + d else 87 + d) :: Word8)
        go (i - 1) (n `unsafeShiftR` 4)

hexDigits :: Int -> Int
hexDigits n = if n < 16 then 1 else 1 + hexDigits (n `unsafeShiftR` 4)

-- | A response that ends its connection.
refusalMessage :: Status -> ByteString -> ByteString
refusalMessage status more =
  B.concat
    [ "HTTP/1.1 ",
      line,
      "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: ",
      C.pack (show (B.length text)),
      "\r\n\r\n",
      text
    ]
  where
    line = C.pack (show (statusCode status)) <> " " <> statusMessage status
    text = line <> "\n" <> more
