{-# LANGUAGE MagicHash #-}

-- |
-- Reading bytes and machine words of a 'ByteString' by offset, and the classes of bytes that
-- HTTP is made of. Pure; nothing here checks an offset, which is the caller's duty.
module Weft.Http.Parser.Bytes
  ( -- * Access
    byteAt,
    wordAt,
    halfAt,
    littleEndian,
    littleEndian16,
    slice,

    -- * Scanning
    skipToken,
    skipValue,
    lineFeedFrom,
    trimBlanks,

    -- * Classes of bytes
    inClass,
    isToken,
    isBlank,
    isDigit,
    hexDigit,
    isFieldByte,
  )
where

import Data.Bits (complement, xor, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (accursedUnutterablePerformIO, toForeignPtr)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8, byteSwap16, byteSwap64)
import Foreign.Ptr (Ptr)
import Foreign.Storable (Storable, peekByteOff)
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import GHC.Exts (Ptr (Ptr))
import GHC.ForeignPtr (unsafeWithForeignPtr)

-- | A byte of a string. ('B.unsafeIndex' of bytestring 0.10 allocates.)
byteAt :: ByteString -> Int -> Word8
byteAt = storedAt
{-# INLINE byteAt #-}

-- | Eight bytes of a string, in the byte order of the machine.
wordAt :: ByteString -> Int -> Word64
wordAt = storedAt
{-# INLINE wordAt #-}

-- | Four bytes likewise.
halfAt :: ByteString -> Int -> Word32
halfAt = storedAt
{-# INLINE halfAt #-}

storedAt :: Storable a => ByteString -> Int -> a
storedAt bytes i = B.accursedUnutterablePerformIO (unsafeWithForeignPtr start (\p -> peekByteOff p (offset + i)))
  where
    (start, offset, _) = B.toForeignPtr bytes
{-# INLINE storedAt #-}

-- | A word written as a little-endian machine reads it, on this machine.
littleEndian :: Word64 -> Word64
littleEndian w = case targetByteOrder of
  LittleEndian -> w
  BigEndian -> byteSwap64 w
{-# INLINE littleEndian #-}

-- | The same of two bytes.
littleEndian16 :: Word16 -> Word16
littleEndian16 w = case targetByteOrder of
  LittleEndian -> w
  BigEndian -> byteSwap16 w
{-# INLINE littleEndian16 #-}

-- | The bytes from one offset up to another.
slice :: ByteString -> Int -> Int -> ByteString
slice bytes from to = B.unsafeTake (to - from) (B.unsafeDrop from bytes)
{-# INLINE slice #-}

-- | The offset of the first byte that belongs to no token, or the end.
skipToken :: ByteString -> Int -> Int
skipToken bytes = go
  where
    end = B.length bytes
    go i
      | i < end && isToken (byteAt bytes i) = go (i + 1)
      | otherwise = i
{-# INLINE skipToken #-}

-- | The offset of the first byte that may not stand in a field's value, or the end: a control
-- character other than the tab, or DEL (RFC 9110, 5.5).
skipValue :: ByteString -> Int -> Int
skipValue bytes = wide
  where
    end = B.length bytes
    -- Eight bytes at a time while none of them is below 0x20 or DEL. A byte behind such a
    -- one may be taken for one too, by the borrow; the narrow loop decides.
    wide i
      | i + 8 > end = narrow i end
      | suspects (wordAt bytes i) = narrow i (i + 8)
      | otherwise = wide (i + 8)
    narrow i stop
      | i >= stop = if stop < end then wide stop else end
      | isFieldByte (byteAt bytes i) = narrow (i + 1) stop
      | otherwise = i
    suspects w = (below 0x2020202020202020 w .|. below 0x0101010101010101 (w `xor` 0x7f7f7f7f7f7f7f7f)) /= 0
    below n w = (w - n) .&. complement w .&. 0x8080808080808080
{-# INLINE skipValue #-}

-- | The offset of the first LF from an offset on, or -1.
lineFeedFrom :: ByteString -> Int -> Int
lineFeedFrom bytes from = maybe (-1) (+ from) (B.elemIndex 10 (B.unsafeDrop from bytes))

-- | Without the blanks at both ends (OWS; RFC 9110, 5.6.3).
trimBlanks :: ByteString -> ByteString
trimBlanks = B.dropWhileEnd isBlank . B.dropWhile isBlank

-- | A byte of a token (RFC 9110, 5.6.2).
isToken :: Word8 -> Bool
isToken = inClass tokenTable
{-# INLINE isToken #-}

-- | Is it of the class that a table has? A table is a digit for each byte: one for those of the class.
inClass :: Ptr Word8 -> Word8 -> Bool
inClass table c = (B.accursedUnutterablePerformIO (peekByteOff table (fromIntegral c)) :: Word8) /= 48
{-# INLINE inClass #-}

tokenTable :: Ptr Word8
tokenTable =
  Ptr
    "0000000000000000000000000000000001011111001101101111111111000000\
    \0111111111111111111111111110001111111111111111111111111111101010\
    \0000000000000000000000000000000000000000000000000000000000000000\
    \0000000000000000000000000000000000000000000000000000000000000000"#

-- | A space or a tab.
isBlank :: Word8 -> Bool
isBlank c = c == 32 || c == 9
{-# INLINE isBlank #-}

-- | Is it an ASCII digit?
isDigit :: Word8 -> Bool
isDigit c = c - 48 <= 9
{-# INLINE isDigit #-}

-- | The value of a hexadecimal digit, or -1.
hexDigit :: Word8 -> Int
hexDigit c
  | c - 48 <= 9 = fromIntegral (c - 48)
  | c - 97 <= 5 = fromIntegral (c - 87)
  | c - 65 <= 5 = fromIntegral (c - 55)
  | otherwise = -1
{-# INLINE hexDigit #-}

-- | A byte that may stand in a field's value.
isFieldByte :: Word8 -> Bool
isFieldByte c = (c >= 32 && c /= 127) || c == 9
{-# INLINE isFieldByte #-}
