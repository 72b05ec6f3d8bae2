-- |
-- Writing a message of OpenFlow: "Weft.Wire.Put", and values that a protocol version cannot express. Such a value is
-- 'unencodable', and so is everything that contains it.
module Weft.OpenFlow.Wire.Put
  ( -- * Writers
    Put,
    putSize,
    pokePut,
    tryRunPut,
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

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import Weft.OpenFlow.Types
import Weft.Wire.Put

-- | The size of a writer in bytes; 'Nothing' if it is unencodable.
putSize :: Put -> Maybe Int
putSize p = if putLength p < 0 then Nothing else Just (putLength p)
{-# INLINE putSize #-}

-- | Run a writer and return the bytes; 'Nothing' if it is unencodable.
tryRunPut :: Put -> Maybe ByteString
tryRunPut p = if putLength p < 0 then Nothing else Just (runPut p)

-- | A writer for a value that has no encoding. Its size stays negative when the sizes of the largest message and of a
-- thousand other unencodable values are added.
unencodable :: Put
unencodable = putRaw (-0x1000000000) (const (pure ()))

-- | The given writer, or 'unencodable' if the condition holds.
putUnless :: Bool -> Put -> Put
putUnless condition p = if condition then unencodable else p
{-# INLINE putUnless #-}

-- | Write the six bytes of an address.
putMac :: MacAddress -> Put
putMac (MacAddress m) = putWord48 m
{-# INLINE putMac #-}

-- | Write a text in a field of the given size in bytes. It is truncated so that at least one zero byte follows.
putText :: Int -> ByteString -> Put
putText n s = putBytes cut <> putZeros (n - B.length cut)
  where
    cut = B.take (n - 1) s

-- | Pad a writer with zeros to a multiple of eight bytes.
padTo8 :: Put -> Put
padTo8 p = p <> putZeros (negate (putLength p) `mod` 8)

-- | Write the six bytes of an address at an offset.
pokeMac :: Ptr Word8 -> Int -> MacAddress -> IO ()
pokeMac p i (MacAddress m) = poke48 p i m
{-# INLINE pokeMac #-}
