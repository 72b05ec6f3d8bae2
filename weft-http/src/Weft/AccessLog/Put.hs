-- |
-- Text written straight into a buffer, without anything allocated for it. What does not
-- fit leaves the buffer as it was, but for bytes behind its end.
module Weft.AccessLog.Put
  ( Put,
    runPut,
    putString,

    -- * Pieces
    bytes,
    byte,
    decimal,
    decimalIn,
    hexadecimal,
    escaped,
  )
where

import Data.Bits (shiftR, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString.Internal as B (unsafeCreateUptoN)
import qualified Data.ByteString.Unsafe as B
import Data.String (IsString (..))
import Data.Word (Word8)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, minusPtr, nullPtr, plusPtr)
import Foreign.Storable (peek, poke, pokeByteOff)
import GHC.Exts (oneShot)

-- | Writes from the first address on, below the second; returns where it stopped, or null
-- when there is not enough room.
newtype Put = Put (Ptr Word8 -> Ptr Word8 -> IO (Ptr Word8))

-- A put is run once: what it is made of is computed where it is written, and nothing is
-- allocated to keep it (2,800 bytes a line without 'oneShot', 2026-11-21).
instance Semigroup Put where
  Put f <> Put g = Put . oneShot $ \p -> oneShot $ \end -> do
    q <- f p end
    if q == nullPtr then pure nullPtr else g q end
  {-# INLINE (<>) #-}

instance Monoid Put where
  mempty = Put (\p _ -> pure p)
  {-# INLINE mempty #-}

-- | Its bytes are the characters, which are ASCII.
instance IsString Put where
  fromString = bytes . fromString
  {-# INLINE fromString #-}

-- | Write into memory, from the first address to the second: the new end, if there was room.
runPut :: Put -> Ptr Word8 -> Ptr Word8 -> IO (Maybe (Ptr Word8))
runPut (Put f) p end = do
  q <- f p end
  pure (if q == nullPtr then Nothing else Just q)
{-# INLINE runPut #-}

-- | A new string of at most this many bytes; empty if it needs more.
putString :: Int -> Put -> ByteString
putString most put = B.unsafeCreateUptoN most $ \p ->
  maybe 0 (`minusPtr` p) <$> runPut put p (p `plusPtr` most)
{-# INLINE putString #-}

-- | A string as it is.
bytes :: ByteString -> Put
bytes string = Put $ \p end -> B.unsafeUseAsCStringLen string $ \(from, n) ->
  if end `minusPtr` p < n then pure nullPtr else (p `plusPtr` n) <$ copyBytes p (castPtr from) n
{-# INLINE bytes #-}

-- | One byte.
byte :: Word8 -> Put
byte w = Put $ \p end -> if p < end then (p `plusPtr` 1) <$ poke p w else pure nullPtr
{-# INLINE byte #-}

-- | A number that is not negative.
decimal :: Int -> Put
decimal n = Put (\p end -> putDigits (digits 1 n) n p end)
  where
    digits :: Int -> Int -> Int
    digits !count k = if k < 10 then count else digits (count + 1) (k `quot` 10)
{-# INLINE decimal #-}

-- | The last digits of a number that is not negative. The first argument is the number of digits.
decimalIn :: Int -> Int -> Put
decimalIn count n = Put (putDigits count n)
{-# INLINE decimalIn #-}

putDigits :: Int -> Int -> Ptr Word8 -> Ptr Word8 -> IO (Ptr Word8)
putDigits !count !n !p !end
  | end `minusPtr` p < count = pure nullPtr
  | otherwise = go (count - 1) n
  where
    go !i !k
      | i < 0 = pure (p `plusPtr` count)
      | otherwise = do
        let (rest, digit) = k `quotRem` 10
        pokeByteOff p i (48 + fromIntegral digit :: Word8)
        go (i - 1) rest

-- | A number that is not negative, in base 16, in small letters, without leading zeros.
hexadecimal :: Int -> Put
hexadecimal n
  | n < 16 = byte (hex 97 n)
  | otherwise = hexadecimal (n `shiftR` 4) <> byte (hex 97 n)

-- | The digit of the lowest four bits, with that for an A.
hex :: Word8 -> Int -> Word8
hex a n = let d = fromIntegral (n .&. 15) in if d < 10 then 48 + d else a + d - 10

-- | A string in which each control byte, each byte that is not ASCII, the quote and the
-- backslash are replaced by their number in base 16 behind a prefix, which has fewer than
-- seven bytes. Whoever reads it finds no quote in it that ends it, and no line.
escaped :: ByteString -> ByteString -> Put
escaped prefix string = Put $ \p end -> B.unsafeUseAsCStringLen string $ \(from, n) ->
  escapeInto prefix (castPtr from) (castPtr from `plusPtr` n) p end
{-# INLINE escaped #-}

-- | Write the bytes from the second address to the third, escaped, to the fourth address.
escapeInto :: ByteString -> Ptr Word8 -> Ptr Word8 -> Ptr Word8 -> Ptr Word8 -> IO (Ptr Word8)
escapeInto prefix !s0 !stop !p0 !end = go s0 p0
  where
    go !s !p
      | s == stop = pure p
      | end `minusPtr` p < 8 = pure nullPtr
      | otherwise = do
        w <- peek s
        if harmless w
          then poke p w >> go (s `plusPtr` 1) (p `plusPtr` 1)
          else replace w p >>= go (s `plusPtr` 1)
    harmless w = w >= 32 && w < 127 && w /= 34 && w /= 92
    replace w p = B.unsafeUseAsCStringLen prefix $ \(from, n) -> do
      copyBytes p (castPtr from) n
      pokeByteOff p n (hex 65 (fromIntegral w `shiftR` 4))
      pokeByteOff p (n + 1) (hex 65 (fromIntegral w))
      pure (p `plusPtr` (n + 2))
