{-# LANGUAGE MagicHash #-}

-- |
-- Reads bytes and machine words of a 'ByteString' by offset, and classifies the bytes of
-- HTTP. Pure. No function checks an offset; the caller has to.
module Weft.Http.Parser.Bytes
  ( -- * Access
    byteAt,
    wordAt,
    halfAt,
    littleEndian,
    littleEndian16,
    slice,
    isWord,
    spells,
    matches,

    -- * Scanning
    skipToken,
    isName,
    Ends (..),
    fieldEnds,
    lineFeedFrom,
    trimBlanks,
    valueBetween,

    -- * Classes of bytes
    inClass,
    isToken,
    isBlank,
    isDigit,
    hexDigit,
    isFieldByte,
    isFieldValue,

    -- * Numbers
    decimal,
  )
where

import Data.Bits (complement, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (accursedUnutterablePerformIO, toForeignPtr)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8, byteSwap16, byteSwap64)
import Foreign.Ptr (plusPtr)
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

-- | Four bytes of a string, in the byte order of the machine.
halfAt :: ByteString -> Int -> Word32
halfAt = storedAt
{-# INLINE halfAt #-}

storedAt :: Storable a => ByteString -> Int -> a
storedAt bytes i = B.accursedUnutterablePerformIO (unsafeWithForeignPtr start (\p -> peekByteOff p (offset + i)))
  where
    (start, offset, _) = B.toForeignPtr bytes
{-# INLINE storedAt #-}

-- | The machine's word for eight bytes that are given as a little-endian number.
littleEndian :: Word64 -> Word64
littleEndian w = case targetByteOrder of
  LittleEndian -> w
  BigEndian -> byteSwap64 w
{-# INLINE littleEndian #-}

-- | The machine's word for two bytes that are given as a little-endian number.
littleEndian16 :: Word16 -> Word16
littleEndian16 w = case targetByteOrder of
  LittleEndian -> w
  BigEndian -> byteSwap16 w
{-# INLINE littleEndian16 #-}

-- | The bytes from one offset up to another.
slice :: ByteString -> Int -> Int -> ByteString
slice bytes from to = B.unsafeTake (to - from) (B.unsafeDrop from bytes)
{-# INLINE slice #-}

-- | Is the string equal to that word?
isWord :: ByteString -> ByteString -> Bool
isWord word bytes = B.length bytes == B.length word && spells bytes 0 word
{-# INLINE isWord #-}

-- | Does that word stand at the offset? The string must have enough bytes.
spells :: ByteString -> Int -> ByteString -> Bool
spells = matches id
{-# INLINE spells #-}

-- | Compare the bytes at an offset, after applying the function, with a word. Compares eight bytes at a time; the last
-- step overlaps the one before if the length is not a multiple of eight. A short word is compared in two halves.
matches :: (Word64 -> Word64) -> ByteString -> Int -> ByteString -> Bool
matches change bytes from wanted
  | len >= 8 = go 0
  | len >= 4 = sameHalf 0 && sameHalf (len - 4)
  | otherwise = narrow 0
  where
    len = B.length wanted
    go i
      | i + 8 <= len = same i && go (i + 8)
      | otherwise = i == len || same (len - 8)
    same i = change (wordAt bytes (from + i)) == wordAt wanted i
    sameHalf i = fromIntegral (change (fromIntegral (halfAt bytes (from + i)))) == halfAt wanted i
    narrow i = i >= len || (fromIntegral (change (fromIntegral (byteAt bytes (from + i)))) == byteAt wanted i && narrow (i + 1))
{-# INLINE matches #-}

-- | The offset of the first byte that does not belong to a token, or the end.
skipToken :: ByteString -> Int -> Int
skipToken bytes = go
  where
    end = B.length bytes
    go i
      | i < end && isToken (byteAt bytes i) = go (i + 1)
      | otherwise = i
{-# INLINE skipToken #-}

-- | Is it the name of a field: a token (RFC 9110, 5.1)? It may be empty or have any bytes.
isName :: ByteString -> Bool
isName bytes = not (B.null bytes) && skipToken bytes 0 == B.length bytes
{-# NOINLINE isName #-}

-- | Two offsets in a field line: the first byte that does not belong to the name; and the first byte after it that is
-- not allowed in a value (a control character other than the tab, or DEL; RFC 9110, 5.5), or the end.
data Ends = Ends !Int !Int

-- | The ends of the field line at an offset. Not inlined, so that its few variables stay in registers: inlined
-- into the parser's loop, which has a dozen variables, each step loads and stores half of them.
fieldEnds :: ByteString -> Int -> Ends
fieldEnds bytes from = B.accursedUnutterablePerformIO (unsafeWithForeignPtr start (\p -> pure $! name (p `plusPtr` offset) from))
  where
    (start, offset, end) = B.toForeignPtr bytes
    name :: Ptr Word8 -> Int -> Ends
    name !p !i
      | i < end && isToken (at p i) = name p (i + 1)
      | otherwise = wide p i (i + 1)
    -- Skips eight bytes at a time while none of them is below 0x20 or DEL. Because of the borrow, the byte after
    -- such a byte may be reported as well; the narrow loop decides.
    wide :: Ptr Word8 -> Int -> Int -> Ends
    wide !p !colon !i
      | i + 8 > end = narrow p colon i end
      | suspects (at p i) = narrow p colon i (i + 8)
      | otherwise = wide p colon (i + 8)
    narrow :: Ptr Word8 -> Int -> Int -> Int -> Ends
    narrow !p !colon !i !stop
      | i >= stop = if stop < end then wide p colon stop else Ends colon end
      | isFieldByte (at p i) = narrow p colon (i + 1) stop
      | otherwise = Ends colon i
    at :: Storable a => Ptr Word8 -> Int -> a
    at p i = B.accursedUnutterablePerformIO (peekByteOff p i)
    {-# INLINE at #-}
{-# NOINLINE fieldEnds #-}

-- | Whether one of eight bytes may be below 0x20 or DEL. On a byte without its highest bit: subtracting 0x20 sets that bit for bytes
-- below 0x20, adding one sets it for DEL. Because of the borrow, the byte after such a byte may be reported as well.
suspects :: Word64 -> Bool
suspects w = ((w - 0x2020202020202020) .|. (w + 0x0101010101010101)) .&. complement w .&. 0x8080808080808080 /= 0
{-# INLINE suspects #-}

-- | The offset of the first LF from an offset on, or -1.
lineFeedFrom :: ByteString -> Int -> Int
lineFeedFrom bytes from = maybe (-1) (+ from) (B.elemIndex 10 (B.unsafeDrop from bytes))

-- | A string without the blanks at both ends (OWS; RFC 9110, 5.6.3).
trimBlanks :: ByteString -> ByteString
trimBlanks = B.dropWhileEnd isBlank . B.dropWhile isBlank

-- | A value without the blanks around it, usually a single space before it.
valueBetween :: ByteString -> Int -> Int -> ByteString
valueBetween bytes from to
  | from + 1 < to && byteAt bytes from == 32 && not (isBlank (byteAt bytes (from + 1))) && not (isBlank (byteAt bytes (to - 1))) = slice bytes (from + 1) to
  | otherwise = trimBlanks (slice bytes from (max from to))
{-# INLINE valueBetween #-}

-- | Is it a byte of a token (RFC 9110, 5.6.2)?
isToken :: Word8 -> Bool
isToken = inClass tokenTable
{-# INLINE isToken #-}

-- | Is a byte in the class given by a table? The table has a digit for each byte: one if it is in the class.
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

-- | A number of at most 18 decimal digits; -1 if it is not one.
decimal :: ByteString -> Int
decimal digits
  | n == 0 || n > 18 = -1
  | otherwise = go 0 0
  where
    n = B.length digits
    go i !value
      | i >= n = value
      | isDigit c = go (i + 1) (value * 10 + fromIntegral c - 48)
      | otherwise = -1
      where
        c = byteAt digits i

-- | Is the byte allowed in a field's value?
isFieldByte :: Word8 -> Bool
isFieldByte c = (c >= 32 && c /= 127) || c == 9
{-# INLINE isFieldByte #-}

-- | Are all bytes allowed in the value of a field ('isFieldByte')? Eight at a time, while none is suspect.
isFieldValue :: ByteString -> Bool
isFieldValue bytes = go 0
  where
    end = B.length bytes
    go i
      | i + 8 <= end = if suspects (wordAt bytes i) then narrow i else go (i + 8)
      | otherwise = narrow i
    narrow i = i >= end || (isFieldByte (byteAt bytes i) && narrow (i + 1))
{-# NOINLINE isFieldValue #-}
