-- |
-- Writing a message into memory: a 'Put' knows its exact size before it writes, so that a message goes straight into
-- the buffer that is sent. What a protocol version cannot express is 'unencodable'; it makes all that contains it so.
module Weft.OpenFlow.Wire.Put
  ( -- * Writers
    Put,
    putSize,
    pokePut,
    runPut,
    unencodable,
    putUnless,

    -- * Writing
    putWord8,
    putWord16,
    putWord32,
    putWord64,
    putMac,
    putBytes,
    putText,
    putZeros,
    putAll,

    -- * Padding
    padTo8,

    -- * At a place
    putRaw,
    poke16,
    poke32,
    poke64,
    pokeMac,
  )
where

import Data.Bits (unsafeShiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (unsafeCreate)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8, byteSwap16, byteSwap32, byteSwap64)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (poke, pokeByteOff)
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import Weft.OpenFlow.Types

-- | A size in bytes, negative if it is unencodable, and what writes that many bytes.
data Put = Put !Int (Ptr Word8 -> IO ())

instance Semigroup Put where
  Put n f <> Put m g = Put (n + m) (\p -> f p >> g (p `plusPtr` n))
  {-# INLINE (<>) #-}

instance Monoid Put where
  mempty = Put 0 (const (pure ()))
  {-# INLINE mempty #-}

-- | Its size in bytes; 'Nothing' if the version has no encoding for it.
putSize :: Put -> Maybe Int
putSize (Put n _) = if n < 0 then Nothing else Just n
{-# INLINE putSize #-}

-- | Write it: as many bytes as 'putSize' said, which the memory must have room for. Not for what is unencodable.
pokePut :: Put -> Ptr Word8 -> IO ()
pokePut (Put _ f) = f
{-# INLINE pokePut #-}

-- | A string of its own.
runPut :: Put -> Maybe ByteString
runPut (Put n f)
  | n < 0 = Nothing
  | otherwise = Just (B.unsafeCreate n f)

-- | No encoding. (A thousand of them and the largest message still add up to less than nothing.)
unencodable :: Put
unencodable = Put (-0x1000000000) (const (pure ()))

-- | Unencodable if the condition holds.
putUnless :: Bool -> Put -> Put
putUnless condition p = if condition then unencodable else p
{-# INLINE putUnless #-}

-- | One byte.
putWord8 :: Word8 -> Put
putWord8 w = Put 1 (`poke` w)
{-# INLINE putWord8 #-}

-- | Two bytes, the highest first.
putWord16 :: Word16 -> Put
putWord16 w = Put 2 (\p -> poke16 p 0 w)
{-# INLINE putWord16 #-}

-- | Four bytes.
putWord32 :: Word32 -> Put
putWord32 w = Put 4 (\p -> poke32 p 0 w)
{-# INLINE putWord32 #-}

-- | Eight bytes.
putWord64 :: Word64 -> Put
putWord64 w = Put 8 (\p -> poke64 p 0 w)
{-# INLINE putWord64 #-}

-- | Six bytes.
putMac :: MacAddress -> Put
putMac m = Put 6 (\p -> pokeMac p 0 m)
{-# INLINE putMac #-}

-- | The bytes of a string.
putBytes :: ByteString -> Put
putBytes s = Put (B.length s) $ \p -> B.unsafeUseAsCStringLen s (\(from, n) -> copyBytes p (castPtr from) n)

-- | A text in a field of that many bytes, cut so that a zero byte follows.
putText :: Int -> ByteString -> Put
putText n s = putBytes cut <> putZeros (n - B.length cut)
  where
    cut = B.take (n - 1) s

-- | Zero bytes; none for a number below.
putZeros :: Int -> Put
putZeros n
  | n <= 0 = mempty
  | otherwise = Put n (\p -> fillBytes p 0 n)

-- | One after the other.
putAll :: (a -> Put) -> [a] -> Put
putAll f = go
  where
    go [] = mempty
    go (a : as) = f a <> go as
{-# INLINE putAll #-}

-- | With zeros behind it, up to a multiple of eight bytes.
padTo8 :: Put -> Put
padTo8 p@(Put n _) = p <> putZeros ((-n) `mod` 8)

-- At a place ----------------------------------------------------------------------------

-- | That many bytes, written by hand.
putRaw :: Int -> (Ptr Word8 -> IO ()) -> Put
putRaw = Put
{-# INLINE putRaw #-}

-- | Two bytes at an offset.
poke16 :: Ptr Word8 -> Int -> Word16 -> IO ()
poke16 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap16 w; BigEndian -> w)
{-# INLINE poke16 #-}

-- | Four bytes at an offset.
poke32 :: Ptr Word8 -> Int -> Word32 -> IO ()
poke32 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap32 w; BigEndian -> w)
{-# INLINE poke32 #-}

-- | Eight bytes at an offset.
poke64 :: Ptr Word8 -> Int -> Word64 -> IO ()
poke64 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap64 w; BigEndian -> w)
{-# INLINE poke64 #-}

-- | Six bytes at an offset.
pokeMac :: Ptr Word8 -> Int -> MacAddress -> IO ()
pokeMac p i (MacAddress m) = poke16 p i (fromIntegral (m `unsafeShiftR` 32)) >> poke32 p (i + 2) (fromIntegral m)
{-# INLINE pokeMac #-}
