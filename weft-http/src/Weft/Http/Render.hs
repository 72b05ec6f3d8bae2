{-# LANGUAGE OverloadedStrings #-}

-- |
-- Response heads, written into a buffer in a single pass over the fields. The pass also determines what the fields say
-- about the connection and the framing.
module Weft.Http.Render
  ( -- * Heads
    Rendered (..),
    renderHead,
    putConnection,
    ConnectionField (..),
    hasBit,
    bitClose,

    -- * Refusals
    refusalMessage,

    -- * Bytes
    putBytes,
    putColon,
    putCrlf,
    putDecimal,
    decimalDigits,
    putHex,
    hexDigits,
  )
where

import Control.Exception (ErrorCall (..), throwIO)
import Control.Monad (when)
import Data.Bits (complement, unsafeShiftR, xor, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (toForeignPtr)
import qualified Data.ByteString.Unsafe as B
import qualified Data.CaseInsensitive as CI
import Data.Word (Word16, Word32, Word64, Word8)
import Foreign.ForeignPtr (touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (peekByteOff, poke, pokeByteOff)
import Network.HTTP.Types
import Weft.Http.Buffer
import Weft.Http.Date
import Weft.Http.Parser.Bytes
import Weft.Http.Types

-- Heads ----------------------------------------------------------------------------------

-- | A head without the @Connection@ line, without a transfer coding, and without the empty line
-- at its end.
data Rendered = Rendered
  { renderedBuffer :: !Buffer,
    -- | The offset of its end. At least 'roomBehind' bytes follow it.
    renderedEnd :: !Int,
    -- | The length that the fields declare, or -1.
    renderedLength :: !Int,
    -- | A set of the bits below.
    renderedBits :: !Int
  }

-- | The fields have a @Date@; a @Server@; a @Connection@ with @close@; any @Connection@.
bitDate, bitServer, bitClose, bitConnection :: Int
bitDate = 1
bitServer = 2
bitClose = 4
bitConnection = 8

hasBit :: Int -> Int -> Bool
hasBit bit bits = bits .&. bit /= 0
{-# INLINE hasBit #-}

-- | What the response's head has to say about the connection: nothing, @close@ or @keep-alive@.
data ConnectionField = Silent | SayClose | SayKeepAlive

-- | Write a head into a buffer: the capability's own if the head fits there. The status line says HTTP\/1.1 whatever
-- the request's version is (RFC 9110, 6.2). With 'False' a declared length is left out. An invalid length is always
-- left out. Throws 'ErrorCall' if the name of a field is not a token, if a value or the status message contains a CR,
-- an LF or a zero byte, or if the status is not between 200 and 999.
renderHead :: Shared -> Status -> ResponseHeaders -> Bool -> IO Rendered
renderHead !shared !status fields !withLength = do
  buffer <- takeBuffer
  renderInto buffer shared status fields withLength
{-# NOINLINE renderHead #-}

renderInto :: Buffer -> Shared -> Status -> ResponseHeaders -> Bool -> IO Rendered
renderInto buffer shared status fields withLength
  | B.length (statusMessage status) + 15 > limit = larger
  | otherwise = putStatus p status >>= \at -> go at (-1) 0 fields
  where
    p = bufferStart buffer
    !limit = bufferSize buffer - roomBehind - B.length (sharedServerLine shared) - B.length (sharedLines shared)
    larger = do
      putBuffer buffer
      let size = 15 + B.length (statusMessage status) + sum [B.length (CI.original name) + B.length value + 4 | (name, value) <- fields]
      more <- newBuffer (size + (bufferSize buffer - limit) + standardSize)
      renderInto more shared status fields withLength
    go !at !len !bits rest = case rest of
      [] -> do
        end <- putServer shared (bufferHome buffer) bits p at
        touchBuffer buffer
        pure (Rendered buffer end len bits)
      (name, value) : others
        | end + 2 > limit -> larger
        | otherwise -> case kindOf name of
          Plain -> put len bits
          IsDate -> put len (bits .|. bitDate)
          IsServer -> put len (bits .|. bitServer)
          IsConnection
            -- The server decides, and says so where it is not the default.
            | CI.mk (trimBlanks value) == "keep-alive" -> go at len bits others
            | otherwise -> put len (bits .|. bitConnection .|. (if closes value then bitClose else 0))
          -- The server decides on codings.
          IsCoding -> go at len bits others
          IsLength
            | len >= 0 || n < 0 -> go at len bits others
            | withLength -> put n bits
            | otherwise -> go at n bits others
            where
              -- An invalid length counts as not given.
              n = decimal value
        where
          named = at + B.length (CI.original name)
          end = named + 2 + B.length value
          put len' bits' =
            copyNoting notUsual (p `plusPtr` at) (CI.original name) $ \unusual ->
              copyNoting low (p `plusPtr` (named + 2)) value $ \lows -> do
                poke (castPtr (p `plusPtr` named)) colonBlank
                poke (castPtr (p `plusPtr` end)) crlf
                -- The name may have other bytes of a token, and a low byte may be a tab, which is allowed.
                when (unusual .|. lows /= 0) (checkField (CI.original name) value)
                go (end + 2) len' bits' others
    closes value = any ((== "close") . CI.mk . trimBlanks) (C.split ',' value)
{-# NOINLINE renderInto #-}

-- | Bytes reserved after a head for the date, a @Connection@ line, and a length or a coding with
-- the empty line.
roomBehind :: Int
roomBehind = 256

-- | Write the @Connection@ line, unless the fields have one; returns the new end.
putConnection :: Buffer -> Int -> Int -> ConnectionField -> IO Int
putConnection buffer at bits field = case field of
  SayClose | not (hasBit bitClose bits) -> put "Connection: close\r\n"
  SayKeepAlive | not (hasBit bitConnection bits) -> put "Connection: keep-alive\r\n"
  _ -> pure at
  where
    put line = do
      _ <- putBytes (bufferStart buffer `plusPtr` at) line
      touchBuffer buffer
      pure (at + B.length line)
{-# INLINE putConnection #-}

-- | Write the status line; returns the offset of its end.
putStatus :: Ptr Word8 -> Status -> IO Int
putStatus p status
  | statusCode status == 200 && statusMessage status == "OK" = do
    poke (castPtr p) (littleEndian 0x312e312f50545448)
    pokeByteOff p 8 (littleEndian 0x0d4b4f2030303220)
    pokeByteOff p 16 (10 :: Word8)
    pure 17
  -- An interim response (1xx) would leave the client waiting for the final one.
  | statusCode status < 200 || statusCode status > 999 = refused "a status that is not between 200 and 999"
  | not (safe (statusMessage status)) = refused "a status message with a line end or a zero byte"
  | otherwise = do
    p1 <- putBytes p "HTTP/1.1 "
    p2 <- putDecimal p1 3 (statusCode status)
    poke p2 32
    p3 <- putBytes (p2 `plusPtr` 1) (statusMessage status)
    _ <- putCrlf p3
    pure (15 + B.length (statusMessage status))
  where
    refused what = throwIO (ErrorCall ("Weft.Http: a response with " <> what))
{-# INLINE putStatus #-}

-- | Write the lines that the server adds, unless the fields have them; returns the offset of their end.
putServer :: Shared -> Int -> Int -> Ptr Word8 -> Int -> IO Int
putServer shared home bits p at
  | bits .&. (bitDate .|. bitServer) == 0 = dateLines (sharedDate shared) home >>= put at
  | otherwise = do
    dated <- if hasBit bitDate bits then pure at else dateLines (sharedDate shared) home >>= put at . dateOnly
    served <- if hasBit bitServer bits then pure dated else put dated (sharedServerLine shared)
    put served (sharedLines shared)
  where
    put offset line = (offset + B.length line) <$ putBytes (p `plusPtr` offset) line
    dateOnly lines' = B.take (B.length lines' - B.length (sharedServerLine shared) - B.length (sharedLines shared)) lines'
{-# INLINE putServer #-}

-- Fields ---------------------------------------------------------------------------------

-- | Whether a name is one of those that matter to the server, and which.
data Kind = Plain | IsDate | IsServer | IsConnection | IsLength | IsCoding

kindOf :: HeaderName -> Kind
kindOf name = case B.length folded of
  4 | isWord "date" folded -> IsDate
  6 | isWord "server" folded -> IsServer
  10 | isWord "connection" folded -> IsConnection
  14 | wordAt folded 0 == littleEndian 0x2d746e65746e6f63 && wordAt folded 6 == littleEndian 0x6874676e656c2d74 -> IsLength
  17 | isWord "transfer-encoding" folded -> IsCoding
  _ -> Plain
  where
    folded = CI.foldedCase name
{-# INLINE kindOf #-}

-- | Copy a string. The function notes something about eight bytes; the continuation's argument is zero if that is zero
-- for all bytes. The function gives zero for letters, which fill up short strings, and should not for zero bytes, which
-- stand for the empty string. For the short strings in fields this is cheaper than a call of memcpy(3).
copyNoting :: (Word64 -> Word64) -> Ptr Word8 -> ByteString -> (Word64 -> IO a) -> IO a
copyNoting note to bytes continue
  | n >= 8 = wide 0 0
  | n >= 4 = do
    a <- peekByteOff from 0 :: IO Word32
    b <- peekByteOff from (n - 4) :: IO Word32
    pokeByteOff to 0 a
    pokeByteOff to (n - 4) b
    done (note (fromIntegral a .|. high) .|. note (fromIntegral b .|. high))
  | n >= 2 = do
    a <- peekByteOff from 0 :: IO Word16
    b <- peekByteOff from (n - 2) :: IO Word16
    pokeByteOff to 0 a
    pokeByteOff to (n - 2) b
    done (note (fromIntegral a .|. higher) .|. note (fromIntegral b .|. higher))
  | n == 1 = do
    a <- peekByteOff from 0 :: IO Word8
    pokeByteOff to 0 a
    done (note (fromIntegral a .|. highest))
  | otherwise = continue (note 0)
  where
    (memory, offset, n) = B.toForeignPtr bytes
    from = unsafeForeignPtrToPtr memory `plusPtr` offset
    done noted = touchForeignPtr memory >> continue noted
    wide i !noted
      | i + 8 <= n = word i >>= \w -> wide (i + 8) (noted .|. note w)
      | i < n = word (n - 8) >>= \w -> done (noted .|. note w)
      | otherwise = done noted
    word :: Int -> IO Word64
    word i = do
      w <- peekByteOff from i
      pokeByteOff to i w
      pure w
    high = 0x6161616100000000
    higher = 0x6161616161610000
    highest = 0x6161616161616100
{-# INLINE copyNoting #-}

-- | Not zero if a byte is below 14, as CR, LF and the zero byte are.
low :: Word64 -> Word64
low w = (w - 0x0e0e0e0e0e0e0e0e) .&. complement w .&. 0x8080808080808080
{-# INLINE low #-}

-- | Zero if all bytes are letters or hyphens, as in nearly all names of fields. The sums set the highest bit of a byte:
-- from @a@ on; behind @z@; unless it is a hyphen. No sum carries into the next byte.
notUsual :: Word64 -> Word64
notUsual w = ((complement letter .&. notHyphen) .|. w) .&. 0x8080808080808080
  where
    byte = w .&. 0x7f7f7f7f7f7f7f7f
    small = byte .|. 0x2020202020202020
    letter = (small + 0x1f1f1f1f1f1f1f1f) .&. complement (small + 0x0505050505050505)
    notHyphen = (byte `xor` 0x2d2d2d2d2d2d2d2d) + 0x7f7f7f7f7f7f7f7f
{-# INLINE notUsual #-}

-- | Throw if a field must not be sent.
checkField :: ByteString -> ByteString -> IO ()
checkField name value
  | not (isName name) = throwIO (ErrorCall "Weft.Http: a response field whose name is not a token")
  | not (safe value) = throwIO (ErrorCall "Weft.Http: a response field with a line end or a zero byte")
  | otherwise = pure ()
{-# NOINLINE checkField #-}

-- | Whether a string contains no CR, LF or zero byte.
safe :: ByteString -> Bool
safe = B.all (\c -> c /= 13 && c /= 10 && c /= 0)
{-# NOINLINE safe #-}

-- | @: @ and the end of a line.
colonBlank, crlf :: Word16
colonBlank = littleEndian16 0x203a
crlf = littleEndian16 0x0a0d

putCrlf :: Ptr Word8 -> IO (Ptr Word8)
putCrlf p = do
  poke (castPtr p) crlf
  pure (p `plusPtr` 2)
{-# INLINE putCrlf #-}

putColon :: Ptr Word8 -> IO (Ptr Word8)
putColon p = do
  poke (castPtr p) colonBlank
  pure (p `plusPtr` 2)
{-# INLINE putColon #-}

-- | Copy a string; returns the address after it.
putBytes :: Ptr Word8 -> ByteString -> IO (Ptr Word8)
putBytes p bytes = do
  B.unsafeUseAsCStringLen bytes (\(from, n) -> copyBytes p (castPtr from) n)
  pure (p `plusPtr` B.length bytes)
{-# INLINE putBytes #-}

-- | Write a number with the given count of decimal digits.
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

-- | Write a number with the given count of hexadecimal digits.
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

-- | A complete response to a refused request; it ends the connection.
refusalMessage :: Shared -> Status -> ByteString -> IO ByteString
refusalMessage shared status more = do
  added <- dateLines (sharedDate shared) 0
  pure $
    B.concat
      [ "HTTP/1.1 ",
        line,
        "\r\n",
        added,
        "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: ",
        C.pack (show (B.length text)),
        "\r\n\r\n",
        text
      ]
  where
    line = C.pack (show (statusCode status)) <> " " <> statusMessage status
    text = line <> "\n" <> more
