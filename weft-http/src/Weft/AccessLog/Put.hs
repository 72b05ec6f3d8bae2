-- |
-- Writes text directly into a buffer without allocating. If a text does not fit, the text before it is unchanged, but
-- free memory after that may have been overwritten.
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

-- | Writes from the first address on, at most up to the second. Returns the address after the text, or null
-- if there is not enough room.
newtype Put = Put (Ptr Word8 -> Ptr Word8 -> IO (Ptr Word8))

-- A 'Put' is run once. With 'oneShot' GHC computes its parts where they are written instead of
-- allocating them (2,800 bytes a line without it).
instance Semigroup Put where
  Put f <> Put g = Put . oneShot $ \p -> oneShot $ \end -> do
    q <- f p end
    if q == nullPtr then pure nullPtr else g q end
  {-# INLINE (<>) #-}

instance Monoid Put where
  mempty = Put (\p _ -> pure p)
  {-# INLINE mempty #-}

-- | Each character becomes one byte; only for ASCII.
instance IsString Put where
  fromString = bytes . fromString
  {-# INLINE fromString #-}

-- | Write into memory between two addresses. Returns the new end, or 'Nothing' if there was not enough room.
runPut :: Put -> Ptr Word8 -> Ptr Word8 -> IO (Maybe (Ptr Word8))
runPut (Put f) p end = do
  q <- f p end
  pure (if q == nullPtr then Nothing else Just q)
{-# INLINE runPut #-}

-- | A new string of at most the given number of bytes; empty if more are needed.
putString :: Int -> Put -> ByteString
putString most put = B.unsafeCreateUptoN most $ \p ->
  maybe 0 (`minusPtr` p) <$> runPut put p (p `plusPtr` most)
{-# INLINE putString #-}

-- | A string, unchanged.
bytes :: ByteString -> Put
bytes string = Put $ \p end -> B.unsafeUseAsCStringLen string $ \(from, n) ->
  if end `minusPtr` p < n then pure nullPtr else (p `plusPtr` n) <$ copyBytes p (castPtr from) n
{-# INLINE bytes #-}

-- | One byte.
byte :: Word8 -> Put
byte w = Put $ \p end -> if p < end then (p `plusPtr` 1) <$ poke p w else pure nullPtr
{-# INLINE byte #-}

-- | A nonnegative number.
decimal :: Int -> Put
decimal n = Put (\p end -> putDigits (digits 1 n) n p end)
  where
    digits :: Int -> Int -> Int
    digits !count k = if k < 10 then count else digits (count + 1) (k `quot` 10)
{-# INLINE decimal #-}

-- | The last digits of a nonnegative number. The first argument is the number of digits.
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

-- | A nonnegative number in lower-case hexadecimal, without leading zeros.
hexadecimal :: Int -> Put
hexadecimal n
  | n < 16 = byte (hex 97 n)
  | otherwise = hexadecimal (n `shiftR` 4) <> byte (hex 97 n)

-- | The hexadecimal digit of the lowest four bits. The first argument is the character for the digit A.
hex :: Word8 -> Int -> Word8
hex a n = let d = fromIntegral (n .&. 15) in if d < 10 then 48 + d else a + d - 10

-- | A string in which each control byte, non-ASCII byte, quote and backslash is replaced by a prefix and
-- the byte's value in hexadecimal. The prefix must have fewer than
-- seven bytes. The result contains neither an unescaped quote nor a line end.
escaped :: ByteString -> ByteString -> Put
escaped prefix string = Put $ \p end -> B.unsafeUseAsCStringLen string $ \(from, n) ->
  escapeInto prefix (castPtr from) (castPtr from `plusPtr` n) p end
{-# INLINE escaped #-}

-- | Write the bytes between the second and third address, escaped, to the fourth address.
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
