-- |
-- IPv6 packets (RFC 8200) with their extension headers: a view of the fixed header, and the decoded headers.
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
    isExtension,
    holdsHeaders,
    Objection (..),
    objection,
  )
where

import Data.Bits (shiftL, shiftR, testBit, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Maybe (listToMaybe)
import Data.Word (Word16, Word32, Word8)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | A packet whose version and payload length are correct. Bytes after the payload are cut off.
newtype View = View ByteString

-- | Check a packet's version and payload length, but not its extension headers.
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

-- | The decoded headers of a packet.
data Header = Header
  { source6 :: !Address,
    destination6 :: !Address,
    -- | The transport protocol, which follows the extension headers: 6 is TCP.
    protocol6 :: !Word8,
    hopLimit :: !Word8,
    -- | Differentiated services and, in the low two bits, ECN.
    trafficClass6 :: !Word8,
    -- | 20 bits.
    flowLabel :: !Word32,
    -- | The extension headers in order. For a fragment, the payload of the packet is what follows the fragment
    -- header.
    extensions :: ![Extension]
  }
  deriving (Eq, Show)

-- | An extension header (RFC 8200, section 4).
data Extension
  = -- | Hop-by-hop options (0), routing (43), destination options (60), mobility (135), host identity (139) or shim6
    -- (140): the header's number, and its bytes after the next header and length fields. Their number is 6 plus a
    -- multiple of 8.
    Extension !Word8 !ByteString
  | FragmentHeader !Fragment
  deriving (Eq, Show)

-- | A fragment header (RFC 8200, section 4.5).
data Fragment = Fragment
  { -- | The offset of the fragment's bytes, in units of eight bytes.
    offset6 :: !Word16,
    more6 :: !Bool,
    identification6 :: !Word32
  }
  deriving (Eq, Show)

-- | A header without extensions, given protocol, source and destination.
plain :: Word8 -> Address -> Address -> Header
plain proto src dst = Header src dst proto 64 0 0 []

-- | The maximum number of extension headers. Packets with more are refused.
maxExtensions :: Int
maxExtensions = 8

-- | Decode headers and payload. Extension headers after a fragment header belong to the whole packet, so they are
-- decoded only if the fragment is the whole packet; otherwise they are part of the payload.
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
  | not (isExtension next) = Right ([], next, b)
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

-- | Whether a next header field names an extension header that 'decode' knows.
isExtension :: Word8 -> Bool
isExtension next = next `elem` [0, 43, 44, 60, 135, 139, 140]

-- | Whether the first fragment of a packet holds its remaining headers up to that of TCP, UDP or ICMPv6, given the next
-- header field and the fragment's bytes. RFC 7112, section 5, requires it, so that filters see the ports; a fragment
-- whose headers are wrong in another way is left to the decoding of the whole packet.
holdsHeaders :: Word8 -> ByteString -> Bool
holdsHeaders next b = case chain maxExtensions next b of
  Left Truncated -> False
  Left _ -> True
  Right (_, proto, body) -> B.length body >= upper proto body
  where
    upper proto body = case proto of
      6 | B.length body >= 20 -> max 20 (fromIntegral (word8At body 12 `shiftR` 4) * 4)
      6 -> 20
      17 -> 8
      58 -> 8
      _ -> 0 :: Int

-- | An option because of which a packet is to be discarded.
data Objection = Objection
  { -- | The offset of the option's type in the packet.
    objectionAt :: !Int,
    -- | Whether the source is to be told by a parameter problem of code 2.
    objectionTold :: !Bool
  }
  deriving (Eq, Show)

-- | The first option of a hop-by-hop or destination options header because of which a packet is to be discarded. No
-- option but padding is known here, so the two highest bits of its type decide (RFC 8200, section 4.2): 0 skips the
-- option, 1 discards the packet, 2 also tells the source, and so does 3 unless the destination is a multicast address.
-- An option that exceeds its header discards the packet too.
objection :: Header -> Maybe Objection
objection h = listToMaybe (concat (zipWith inside starts (extensions h)))
  where
    starts = scanl (+) 40 (map size (extensions h))
    size (Extension _ body) = 2 + B.length body
    size (FragmentHeader _) = 8
    inside at (Extension n body) | n == 0 || n == 60 = options (at + 2) body
    inside _ _ = []
    options at b = case B.uncons b of
      Nothing -> []
      -- Pad1 has no length.
      Just (0, rest) -> options (at + 1) rest
      Just (kind, rest)
        | B.null rest || B.length rest <= len -> [Objection at False]
        | kind < 0x40 -> options (at + 2 + len) (B.drop (1 + len) rest)
        | otherwise -> [Objection at (kind >= 0xc0 && not (isMulticast (destination6 h)) || kind .&. 0xc0 == 0x80)]
        where
          len = fromIntegral (word8At rest 0)
    isMulticast a = case a of
      V6 high _ -> high `shiftR` 56 == 0xff
      V4 _ -> False

-- | Encode headers and payload. Extension headers and payload must be at most 65535 bytes together.
encode :: Header -> ByteString -> ByteString
encode h body = runPut (putHeaders h (B.length body) <> putBytes body)

-- | The headers for a payload of the given number of bytes. Extension headers and payload must be at most 65535 bytes
-- together.
putHeaders :: Header -> Int -> Put
putHeaders h len =
  putWord32 (0x60000000 .|. (fromIntegral (trafficClass6 h) `shiftL` 20) .|. (flowLabel h .&. 0xfffff))
    <> putWord16 (fromIntegral (putLength after + len))
    <> putWord8 (firstOf (extensions h))
    <> putWord8 (hopLimit h)
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
  putWord8 next <> putWord8 0 <> putWord16 ((offset6 f `shiftL` 3) .|. (if more6 f then 1 else 0)) <> putWord32 (identification6 f)
putExtension (Extension _ body) next =
  putWord8 next <> putWord8 (fromIntegral (size `div` 8 - 1)) <> putBytes body <> putZeros (size - 2 - B.length body)
  where
    size = max 8 ((B.length body + 2 + 7) .&. (-8))
