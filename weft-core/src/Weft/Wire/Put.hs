-- |
-- Writing packets and messages, in network byte order. The length of a 'Put' is known before it is run, so lengths that
-- stand in headers cost nothing, and bytes are written directly into memory of exactly their number. Pure, except for
-- the functions that take an address; these check nothing.
--
-- Text that is cut where its memory ends is another thing: "Weft.AccessLog.Put" of @weft-http@.
module Weft.Wire.Put
  ( Put,
    putLength,
    runPut,
    pokePut,

    -- * Pieces
    putWord8,
    putWord16,
    putWord32,
    putWord48,
    putWord64,
    putBytes,
    putZeros,
    putAll,
    putRaw,
    putThen,

    -- * Writing at an offset
    poke16,
    poke32,
    poke48,
    poke64,
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

-- | Bytes to be written: their number, and an action that writes them at an address.
data Put = Put !Int !(Ptr Word8 -> IO ())

instance Semigroup Put where
  Put n f <> Put m g = Put (n + m) (\p -> f p >> g (p `plusPtr` n))
  {-# INLINE (<>) #-}

instance Monoid Put where
  mempty = Put 0 (const (pure ()))
  {-# INLINE mempty #-}

-- | The number of bytes that will be written.
putLength :: Put -> Int
putLength (Put n _) = n
{-# INLINE putLength #-}

-- | Write the bytes into a new string of exactly their number. 'putLength' must not be negative.
runPut :: Put -> ByteString
runPut (Put n f) = B.unsafeCreate n f
{-# INLINE runPut #-}

-- | Write the bytes at an address, where there must be room for 'putLength' bytes.
pokePut :: Put -> Ptr Word8 -> IO ()
pokePut (Put _ f) = f
{-# INLINE pokePut #-}

-- Pieces ------------------------------------------------------------------------------------------

-- | One byte.
putWord8 :: Word8 -> Put
putWord8 w = Put 1 (`poke` w)
{-# INLINE putWord8 #-}

-- | Two bytes.
putWord16 :: Word16 -> Put
putWord16 w = Put 2 (\p -> poke16 p 0 w)
{-# INLINE putWord16 #-}

-- | Four bytes.
putWord32 :: Word32 -> Put
putWord32 w = Put 4 (\p -> poke32 p 0 w)
{-# INLINE putWord32 #-}

-- | The low six bytes of a number, as an address of a link layer.
putWord48 :: Word64 -> Put
putWord48 w = Put 6 (\p -> poke48 p 0 w)
{-# INLINE putWord48 #-}

-- | Eight bytes.
putWord64 :: Word64 -> Put
putWord64 w = Put 8 (\p -> poke64 p 0 w)
{-# INLINE putWord64 #-}

-- | The bytes of a string.
putBytes :: ByteString -> Put
putBytes s = Put (B.length s) $ \p -> B.unsafeUseAsCStringLen s (\(from, n) -> copyBytes p (castPtr from) n)

-- | The given number of zero bytes; none if it is negative.
putZeros :: Int -> Put
putZeros n
  | n <= 0 = mempty
  | otherwise = Put n (\p -> fillBytes p 0 n)

-- | The writers of all elements, in order.
putAll :: (a -> Put) -> [a] -> Put
putAll f = go
  where
    go [] = mempty
    go (a : as) = f a <> go as
{-# INLINE putAll #-}

-- | A writer of the given length, from an action that writes so many bytes. A negative length marks a value that has
-- no encoding: such a writer must not be run, nor one that contains it.
putRaw :: Int -> (Ptr Word8 -> IO ()) -> Put
putRaw = Put
{-# INLINE putRaw #-}

-- | Write the bytes, then run an action on their address and number: it fills in a checksum, for example.
putThen :: Put -> (Ptr Word8 -> Int -> IO ()) -> Put
putThen (Put n f) after = Put n (\p -> f p >> after p n)
{-# INLINE putThen #-}

-- Writing at an offset ----------------------------------------------------------------------------

-- | Write two bytes at an offset.
poke16 :: Ptr Word8 -> Int -> Word16 -> IO ()
poke16 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap16 w; BigEndian -> w)
{-# INLINE poke16 #-}

-- | Write four bytes at an offset.
poke32 :: Ptr Word8 -> Int -> Word32 -> IO ()
poke32 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap32 w; BigEndian -> w)
{-# INLINE poke32 #-}

-- | Write the low six bytes of a number at an offset.
poke48 :: Ptr Word8 -> Int -> Word64 -> IO ()
poke48 p i w = poke16 p i (fromIntegral (w `unsafeShiftR` 32)) >> poke32 p (i + 2) (fromIntegral w)
{-# INLINE poke48 #-}

-- | Write eight bytes at an offset.
poke64 :: Ptr Word8 -> Int -> Word64 -> IO ()
poke64 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap64 w; BigEndian -> w)
{-# INLINE poke64 #-}
