-- |
-- Reading the fields of packets and messages: numbers in network byte order at an offset of a string. No bounds are
-- checked: who reads checks the length once, before any field. Pure.
module Weft.Wire.Peek
  ( word8At,
    word16At,
    word32At,
    word48At,
    word64At,
    slice,
  )
where

import Data.Bits (unsafeShiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (accursedUnutterablePerformIO, toForeignPtr)
import Data.Word (Word16, Word32, Word64, Word8, byteSwap16, byteSwap32, byteSwap64)
import Foreign.Storable (Storable (peekByteOff))
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import GHC.ForeignPtr (unsafeWithForeignPtr)

-- Note [Reading numbers]. 'B.unsafeIndex' keeps the string alive by @keepAlive#@ (bytestring 0.10.12 with GHC 9.0).
-- Each byte then costs a closure, a box and an unknown call, and a PACKET_IN has 40 such bytes. So numbers are read in
-- one piece, under 'unsafeWithForeignPtr', which is correct for actions that always return.

-- | The byte at an offset, which must be within the string.
word8At :: ByteString -> Int -> Word8
word8At = peekAt
{-# INLINE word8At #-}

-- | The two bytes at an offset. All must be within the string.
word16At :: ByteString -> Int -> Word16
word16At s i = case targetByteOrder of LittleEndian -> byteSwap16 (peekAt s i); BigEndian -> peekAt s i
{-# INLINE word16At #-}

-- | The four bytes at an offset. All must be within the string.
word32At :: ByteString -> Int -> Word32
word32At s i = case targetByteOrder of LittleEndian -> byteSwap32 (peekAt s i); BigEndian -> peekAt s i
{-# INLINE word32At #-}

-- | The six bytes at an offset. All must be within the string.
word48At :: ByteString -> Int -> Word64
word48At s i = (fromIntegral (word16At s i) `unsafeShiftL` 32) .|. fromIntegral (word32At s (i + 2))
{-# INLINE word48At #-}

-- | The eight bytes at an offset. All must be within the string.
word64At :: ByteString -> Int -> Word64
word64At s i = case targetByteOrder of LittleEndian -> byteSwap64 (peekAt s i); BigEndian -> peekAt s i
{-# INLINE word64At #-}

-- | @slice from count@: a part of a string, without copying. What lies outside the string is cut off.
slice :: Int -> Int -> ByteString -> ByteString
slice from count = B.take count . B.drop from
{-# INLINE slice #-}

peekAt :: (Storable a) => ByteString -> Int -> a
peekAt s i = case B.toForeignPtr s of
  (p, start, _) -> B.accursedUnutterablePerformIO (unsafeWithForeignPtr p (\at -> peekByteOff at (start + i)))
{-# INLINE peekAt #-}
