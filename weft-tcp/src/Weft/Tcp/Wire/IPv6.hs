-- |
-- IPv6 (RFC 8200) with its extension headers: a view of the fixed header, and what
-- a packet means.
--
-- @since 0.1.0
module Weft.Tcp.Wire.IPv6
  ( -- * Bytes
    View,
    view,
    source,
    destination,

    -- * Meaning
    Header (..),
    Extension (..),
    Fragment (..),
    decode,
    encode,
    putHeaders,
    plain,
    maxExtensions,
  )
where

import Data.Bits (shiftL, shiftR, testBit, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16, Word32, Word8)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Bytes

-- | A packet whose version and payload length hold; bytes behind the payload are
-- cut off.
newtype View = View ByteString

-- | Check version and payload length; extension headers are not looked at.
view :: ByteString -> Either Malformed View
view b
  | B.length b < 40 = Left Truncated
  | word8At b 0 `shiftR` 4 /= 6 = Left WrongVersion
  | B.length b < total = Left Truncated
  | otherwise = Right (View (B.take total b))
  where
    total = 40 + fromIntegral (word16At b 4)

-- | The source (destination) address of the fixed header.
source, destination :: View -> Address
source (View b) = v6At b 8
destination (View b) = v6At b 24

-- | A packet's headers.
data Header = Header
  { source6 :: !Address,
    destination6 :: !Address,
    -- | The protocol above, after the extension headers: 6 is TCP.
    protocol6 :: !Word8,
    hopLimit :: !Word8,
    -- | Differentiated services and, in the low two bits, ECN.
    trafficClass6 :: !Word8,
    -- | 20 bits.
    flowLabel :: !Word32,
    -- | In their order. The payload of a fragment other than the first is a part of
    -- what follows its fragment header.
    extensions :: ![Extension]
  }
  deriving (Eq, Show)

-- | An extension header (RFC 8200, section 4).
data Extension
  = -- | Hop-by-hop options (0), routing (43), destination options (60), or mobility,
    -- host identity, shim6 (135, 139, 140): its number, and what follows the
    -- two bytes of next header and length: 6 bytes and a multiple of 8.
    Extension !Word8 !ByteString
  | FragmentHeader !Fragment
  deriving (Eq, Show)

-- | A fragment header (RFC 8200, section 4.5).
data Fragment = Fragment
  { -- | In units of eight bytes.
    offset6 :: !Word16,
    more6 :: !Bool,
    identification6 :: !Word32
  }
  deriving (Eq, Show)

-- | An ordinary packet.
plain :: Word8 -> Address -> Address -> Header
plain proto src dst = Header src dst proto 64 0 0 []

-- | Longer chains of extension headers are refused.
maxExtensions :: Int
maxExtensions = 8

-- | Headers and payload. What follows a fragment header is payload unless the
-- fragment is the only one: extension headers behind it belong to the whole.
decode :: ByteString -> Either Malformed (Header, ByteString)
decode b = do
  View p <- view b
  (exts, proto, body) <- chain maxExtensions (word8At p 6) (B.drop 40 p)
  let first = word32At p 0
  Right
    ( Header
        { source6 = v6At p 8,
          destination6 = v6At p 24,
          protocol6 = proto,
          hopLimit = word8At p 7,
          trafficClass6 = fromIntegral (first `shiftR` 20),
          flowLabel = first .&. 0xfffff,
          extensions = exts
        },
      body
    )

chain :: Int -> Word8 -> ByteString -> Either Malformed ([Extension], Word8, ByteString)
chain left next b
  | next == 44 = if left == 0 then Left BadOptions else fragment
  | next `notElem` [0, 43, 60, 135, 139, 140] = Right ([], next, b)
  | left == 0 = Left BadOptions
  | B.length b < 8 || B.length b < size = Left Truncated
  | otherwise = Extension next (slice 2 (size - 2) b) `before` chain (left - 1) (word8At b 0) (B.drop size b)
  where
    size = (fromIntegral (word8At b 1) + 1) * 8
    before e = fmap (\(es, proto, body) -> (e : es, proto, body))
    fragment
      | B.length b < 8 = Left Truncated
      | otherwise =
        let w = word16At b 2
            f = Fragment (w `shiftR` 3) (testBit w 0) (word32At b 4)
            rest = (word8At b 0, B.drop 8 b)
         in FragmentHeader f
              `before` if more6 f || offset6 f /= 0
                then Right ([], fst rest, snd rest)
                else uncurry (chain (left - 1)) rest

-- | Headers and payload, which with the extension headers must be at most 65535 bytes.
encode :: Header -> ByteString -> ByteString
encode h body = runPut (putHeaders h (B.length body) <> putBytes body)

-- | The headers for a payload of so many bytes, which with the extension headers
-- must be at most 65535.
putHeaders :: Header -> Int -> Put
putHeaders h len =
  put32 (0x60000000 .|. (fromIntegral (trafficClass6 h) `shiftL` 20) .|. (flowLabel h .&. 0xfffff))
    <> put16 (fromIntegral (putLength after + len))
    <> put8 (firstOf (extensions h))
    <> put8 (hopLimit h)
    <> putAddress (source6 h)
    <> putAddress (destination6 h)
    <> after
  where
    after = mconcat (zipWith putExtension (extensions h) (drop 1 (map number (extensions h)) <> [protocol6 h]))
    firstOf exts = case exts of
      [] -> protocol6 h
      e : _ -> number e

number :: Extension -> Word8
number (Extension n _) = n
number (FragmentHeader _) = 44

putExtension :: Extension -> Word8 -> Put
putExtension (FragmentHeader f) next =
  put8 next <> put8 0 <> put16 ((offset6 f `shiftL` 3) .|. (if more6 f then 1 else 0)) <> put32 (identification6 f)
putExtension (Extension _ body) next =
  put8 next <> put8 (fromIntegral (size `div` 8 - 1)) <> putBytes body <> putZeros (size - 2 - B.length body)
  where
    size = max 8 ((B.length body + 2 + 7) .&. (-8))
