-- |
-- Writing a message into memory. The exact size of a 'Put' is known before it is run, so that a message is written
-- directly into the buffer that is sent. A value that a protocol version cannot express is 'unencodable', and so is
-- everything that contains it.
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

    -- * Writing at an offset
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

-- | A writer: its size in bytes, which is negative if it is unencodable, and an action that writes that many bytes.
data Put = Put !Int (Ptr Word8 -> IO ())

instance Semigroup Put where
  Put n f <> Put m g = Put (n + m) (\p -> f p >> g (p `plusPtr` n))
  {-# INLINE (<>) #-}

instance Monoid Put where
  mempty = Put 0 (const (pure ()))
  {-# INLINE mempty #-}

-- | The size of a writer in bytes; 'Nothing' if it is unencodable.
putSize :: Put -> Maybe Int
putSize (Put n _) = if n < 0 then Nothing else Just n
{-# INLINE putSize #-}

-- | Run a writer. It writes 'putSize' bytes, for which the memory must have room. It must not be unencodable.
pokePut :: Put -> Ptr Word8 -> IO ()
pokePut (Put _ f) = f
{-# INLINE pokePut #-}

-- | Run a writer and return the bytes; 'Nothing' if it is unencodable.
runPut :: Put -> Maybe ByteString
runPut (Put n f)
  | n < 0 = Nothing
  | otherwise = Just (B.unsafeCreate n f)

-- | A writer for a value that has no encoding. Its size stays negative when the sizes of the largest message and of a
-- thousand other unencodable values are added.
unencodable :: Put
unencodable = Put (-0x1000000000) (const (pure ()))

-- | The given writer, or 'unencodable' if the condition holds.
putUnless :: Bool -> Put -> Put
putUnless condition p = if condition then unencodable else p
{-# INLINE putUnless #-}

-- | Write one byte.
putWord8 :: Word8 -> Put
putWord8 w = Put 1 (`poke` w)
{-# INLINE putWord8 #-}

-- | Write two bytes, the highest first, as all numbers in OpenFlow.
putWord16 :: Word16 -> Put
putWord16 w = Put 2 (\p -> poke16 p 0 w)
{-# INLINE putWord16 #-}

-- | Write four bytes.
putWord32 :: Word32 -> Put
putWord32 w = Put 4 (\p -> poke32 p 0 w)
{-# INLINE putWord32 #-}

-- | Write eight bytes.
putWord64 :: Word64 -> Put
putWord64 w = Put 8 (\p -> poke64 p 0 w)
{-# INLINE putWord64 #-}

-- | Write the six bytes of an address.
putMac :: MacAddress -> Put
putMac m = Put 6 (\p -> pokeMac p 0 m)
{-# INLINE putMac #-}

-- | Write the bytes of a string.
putBytes :: ByteString -> Put
putBytes s = Put (B.length s) $ \p -> B.unsafeUseAsCStringLen s (\(from, n) -> copyBytes p (castPtr from) n)

-- | Write a text in a field of the given size in bytes. It is truncated so that at least one zero byte follows.
putText :: Int -> ByteString -> Put
putText n s = putBytes cut <> putZeros (n - B.length cut)
  where
    cut = B.take (n - 1) s

-- | Write the given number of zero bytes; none if it is negative.
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

-- | Pad a writer with zeros to a multiple of eight bytes.
padTo8 :: Put -> Put
padTo8 p@(Put n _) = p <> putZeros ((-n) `mod` 8)

-- Writing at an offset ----------------------------------------------------------------------------

-- | A writer of the given size in bytes, from an action that writes them.
putRaw :: Int -> (Ptr Word8 -> IO ()) -> Put
putRaw = Put
{-# INLINE putRaw #-}

-- | Write two bytes at an offset.
poke16 :: Ptr Word8 -> Int -> Word16 -> IO ()
poke16 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap16 w; BigEndian -> w)
{-# INLINE poke16 #-}

-- | Write four bytes at an offset.
poke32 :: Ptr Word8 -> Int -> Word32 -> IO ()
poke32 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap32 w; BigEndian -> w)
{-# INLINE poke32 #-}

-- | Write eight bytes at an offset.
poke64 :: Ptr Word8 -> Int -> Word64 -> IO ()
poke64 p i w = pokeByteOff p i (case targetByteOrder of LittleEndian -> byteSwap64 w; BigEndian -> w)
{-# INLINE poke64 #-}

-- | Write the six bytes of an address at an offset.
pokeMac :: Ptr Word8 -> Int -> MacAddress -> IO ()
pokeMac p i (MacAddress m) = poke16 p i (fromIntegral (m `unsafeShiftR` 32)) >> poke32 p (i + 2) (fromIntegral m)
{-# INLINE pokeMac #-}
