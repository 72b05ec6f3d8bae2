{-# LANGUAGE ForeignFunctionInterface #-}

-- |
-- The Internet checksum (RFC 1071): one's complement sums of 16-bit words. Sums of parts can be added. All functions
-- are pure; a loop in C reads the bytes.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Checksum
  ( Sum,
    sumBytes,
    sumChunks,
    pseudoHeader,
    checksum,
    foldedSum,
    isValid,
    putSummed,
  )
where

import Data.Bits (complement, shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word8, byteSwap16)
import Foreign.C.Types (CSize (..))
import Foreign.Ptr (Ptr, castPtr)
import System.IO.Unsafe (unsafeDupablePerformIO)
import Weft.Tcp.Wire.Address (Address (..))
import Weft.Wire.Put

foreign import ccall unsafe "weft_tcp_sum"
  cSum :: Ptr Word8 -> CSize -> IO Word32

-- | The sum of some bytes, and whether their number was odd: after an odd number of bytes, the sum of the following
-- bytes is added with its two bytes exchanged (RFC 1071, section 2 (B)).
data Sum = Sum !Word16 !Bool

-- | The sum of the concatenated bytes.
instance Semigroup Sum where
  Sum a odd1 <> Sum b odd2 = Sum (add a (if odd1 then byteSwap16 b else b)) (odd1 /= odd2)
  {-# INLINE (<>) #-}

instance Monoid Sum where
  mempty = Sum 0 False

add :: Word16 -> Word16 -> Word16
add a b =
  let s = fromIntegral a + fromIntegral b :: Word32
   in fromIntegral ((s .&. 0xffff) + (s `shiftR` 16))
{-# INLINE add #-}

-- | The sum of a string. O(n).
sumBytes :: ByteString -> Sum
sumBytes b
  | B.null b = mempty
  | otherwise = unsafeDupablePerformIO (B.unsafeUseAsCStringLen b (\(p, n) -> sumMemory (castPtr p) n))

sumMemory :: Ptr Word8 -> Int -> IO Sum
sumMemory p n = (\s -> Sum (fromIntegral s) (odd n)) <$> cSum p (fromIntegral n)
{-# INLINE sumMemory #-}

-- | Compute a checksum and write it into the given bytes, at the given offset, where they must contain 0. The
-- checksum covers the first sum, the bytes, and the second sum.
putSummed :: Int -> Sum -> Sum -> Put -> Put
putSummed at before after put = putThen put $ \p n -> do
  written <- sumMemory p n
  poke16 p at (checksum (before <> written <> after))
{-# INLINE putSummed #-}

-- | The sum of consecutive strings.
sumChunks :: [ByteString] -> Sum
sumChunks = foldMap sumBytes

-- | The sum of a 16-bit word.
sum16 :: Word16 -> Sum
sum16 w = Sum w False

-- | The sum of a 32-bit word, as two 16-bit words.
sum32 :: Word32 -> Sum
sum32 w = Sum (add (fromIntegral (w `shiftR` 16)) (fromIntegral w)) False

-- | The sum of the bytes of an address.
sumAddress :: Address -> Sum
sumAddress (V4 a) = sum32 a
sumAddress (V6 a b) =
  sum32 (fromIntegral (a `shiftR` 32))
    <> sum32 (fromIntegral a)
    <> sum32 (fromIntegral (b `shiftR` 32))
    <> sum32 (fromIntegral b)

-- | The sum of the pseudo header: source, destination, protocol number, and length of the transport header with its
-- data (RFC 9293, section 3.1; RFC 8200, section 8.1). The two IP versions' pseudo headers differ in zeros only.
pseudoHeader :: Address -> Address -> Word8 -> Int -> Sum
pseudoHeader src dst proto len =
  sumAddress src <> sumAddress dst <> sum16 (fromIntegral proto) <> sum32 (fromIntegral len)

-- | The value of the checksum field: the complement of the sum.
checksum :: Sum -> Word16
checksum (Sum s _) = complement s

-- | The sum itself, not complemented. A device that computes checksums expects the sum of the pseudo header in the
-- checksum field.
foldedSum :: Sum -> Word16
foldedSum (Sum s _) = s

-- | Whether a checksum is correct, given the sum of all bytes including the checksum field.
isValid :: Sum -> Bool
isValid (Sum s _) = s == 0xffff
