-- |
-- Reading and writing in network byte order, for the other modules of @Weft.Tcp.Wire@. Reading a field is a load
-- without a bounds check: each protocol's @view@ function checks lengths once, before any field is read. A 'Put' has
-- a known length, so a header is written into memory of exactly its size.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Bytes
  ( -- * Errors
    Malformed (..),

    -- * Reading
    word8At,
    word16At,
    word32At,
    word64At,
    slice,

    -- * Writing
    Put,
    putLength,
    runPut,
    put8,
    put16,
    put32,
    put64,
    putBytes,
    putZeros,

    -- * Changing one field
    completed,
  )
where

import Data.Bits (shiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (unsafeCreate)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8, byteSwap16, byteSwap32, byteSwap64)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (peek, poke, pokeByteOff)
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import System.IO.Unsafe (unsafeDupablePerformIO)

-- | The reason why bytes are not a valid packet.
data Malformed
  = -- | The bytes are fewer than the header needs, or than a length field claims.
    Truncated
  | -- | The version, hardware type or a similar field is that of another protocol.
    WrongVersion
  | -- | A length field contradicts the format: a TCP data offset below 5, an IPv4 header length below 5, or a total
    -- length below the header's.
    BadLength
  | BadChecksum
  | -- | Invalid options or extension headers.
    BadOptions
  deriving (Eq, Ord, Show, Enum, Bounded)

-- Reading ------------------------------------------------------------------------

-- | The byte at an offset. The offset is not checked.
word8At :: ByteString -> Int -> Word8
word8At = B.unsafeIndex
{-# INLINE word8At #-}

-- | The 16-bit word at an offset. Its bytes must lie inside the string.
word16At :: ByteString -> Int -> Word16
word16At b i = load b i (\p -> bigEndian byteSwap16 <$> peek (castPtr p))
{-# INLINE word16At #-}

-- | The 32-bit word at an offset. Its bytes must lie inside the string.
word32At :: ByteString -> Int -> Word32
word32At b i = load b i (\p -> bigEndian byteSwap32 <$> peek (castPtr p))
{-# INLINE word32At #-}

-- | The 64-bit word at an offset. Its bytes must lie inside the string.
word64At :: ByteString -> Int -> Word64
word64At b i = load b i (\p -> bigEndian byteSwap64 <$> peek (castPtr p))
{-# INLINE word64At #-}

load :: ByteString -> Int -> (Ptr Word8 -> IO a) -> a
load b i f = unsafeDupablePerformIO (B.unsafeUseAsCString b (\p -> f (p `plusPtr` i)))
{-# INLINE load #-}

bigEndian :: (a -> a) -> a -> a
bigEndian swap = case targetByteOrder of
  LittleEndian -> swap
  BigEndian -> id
{-# INLINE bigEndian #-}

-- | @slice from count@: a part of a string, without copying. What lies outside the string is cut off.
slice :: Int -> Int -> ByteString -> ByteString
slice from count = B.take count . B.drop from
{-# INLINE slice #-}

-- Writing ------------------------------------------------------------------------

-- | Bytes to be written: their number, and an action that writes them at an address.
data Put = Put !Int !(Ptr Word8 -> IO ())

instance Semigroup Put where
  Put n f <> Put m g = Put (n + m) (\p -> f p >> g (p `plusPtr` n))
  {-# INLINE (<>) #-}

instance Monoid Put where
  mempty = Put 0 (\_ -> pure ())

-- | The number of bytes that will be written.
putLength :: Put -> Int
putLength (Put n _) = n

-- | Write the bytes into pinned memory of exactly their size.
runPut :: Put -> ByteString
runPut (Put n f) = B.unsafeCreate n f
{-# INLINE runPut #-}

-- | One byte.
put8 :: Word8 -> Put
put8 w = Put 1 (`poke` w)
{-# INLINE put8 #-}

-- | Two bytes, in network byte order.
put16 :: Word16 -> Put
put16 w = Put 2 (\p -> poke (castPtr p) (bigEndian byteSwap16 w))
{-# INLINE put16 #-}

-- | Four bytes, in network byte order.
put32 :: Word32 -> Put
put32 w = Put 4 (\p -> poke (castPtr p) (bigEndian byteSwap32 w))
{-# INLINE put32 #-}

-- | Eight bytes, in network byte order.
put64 :: Word64 -> Put
put64 w = Put 8 (\p -> poke (castPtr p) (bigEndian byteSwap64 w))
{-# INLINE put64 #-}

-- | The bytes of a string, without a length.
putBytes :: ByteString -> Put
putBytes b = Put (B.length b) $ \p ->
  B.unsafeUseAsCStringLen b (\(q, n) -> copyBytes p (castPtr q) n)

-- | The given number of zero bytes.
putZeros :: Int -> Put
putZeros n = Put n (\p -> fillBytes p 0 n)

-- | Write the bytes, then replace the 16-bit word at the given offset by one that the function computes from the
-- written bytes.
completed :: Int -> (Ptr Word8 -> Int -> IO Word16) -> Put -> Put
completed at word (Put n f) = Put n (\p -> f p >> word p n >>= store16 p at)
{-# INLINE completed #-}

store16 :: Ptr Word8 -> Int -> Word16 -> IO ()
store16 p at w = do
  pokeByteOff p at (fromIntegral (w `shiftR` 8) :: Word8)
  pokeByteOff p (at + 1) (fromIntegral w :: Word8)
