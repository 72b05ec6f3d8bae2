-- |
-- IPv4 packets (RFC 791): a view of the bytes, and the decoded header.
--
-- @since 0.1.0
module Weft.Tcp.Wire.IPv4
  ( -- * Bytes
    View,
    view,
    source,
    destination,
    protocol,
    viewsFragment,
    routesBySource,
    headerBytes,
    payload,

    -- * Meaning
    Header (..),
    header,
    decode,
    encode,
    putHeader,
    plain,
  )
where

import Data.Bits (shiftL, shiftR, testBit, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16, Word8)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Checksum
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

-- | A packet whose version, lengths and header checksum are correct. Bytes after its total length are cut off.
newtype View = View ByteString

-- | Check a packet's version, lengths and header checksum. O(header).
view :: ByteString -> Either Malformed View
view b
  | B.length b < 20 = Left Truncated
  | word8At b 0 `shiftR` 4 /= 4 = Left WrongVersion
  | ihl < 20 || total < ihl = Left BadLength
  | B.length b < total = Left Truncated
  | not (isValid (sumBytes (B.take ihl b))) = Left BadChecksum
  | otherwise = Right (View (B.take total b))
  where
    ihl = headerLength b
    total = fromIntegral (word16At b 2)

headerLength :: ByteString -> Int
headerLength b = fromIntegral (word8At b 0 .&. 15) * 4

-- | The source (destination) address.
source, destination :: View -> Address
source (View b) = v4At b 12
destination (View b) = v4At b 16

-- | The number of the transport protocol: 6 is TCP.
protocol :: View -> Word8
protocol (View b) = word8At b 9

-- | Whether the packet is a fragment: it is not the first one, or more follow.
viewsFragment :: View -> Bool
viewsFragment (View b) = word16At b 6 .&. 0x3fff /= 0

-- | Whether it has the option of a loose or strict source route (131 or 137).
routesBySource :: View -> Bool
routesBySource (View b) = headerLength b > 20 && within (slice 20 (headerLength b - 20) b)
  where
    within o = case B.uncons o of
      Just (kind, rest)
        | kind == 131 || kind == 137 -> True
        | kind == 1 -> within rest
        | kind /= 0, not (B.null rest), size rest >= 2 -> within (B.drop (size rest) o)
      _ -> False
    size rest = fromIntegral (word8At rest 0) :: Int

-- | The bytes of the header.
headerBytes :: View -> ByteString
headerBytes (View b) = B.take (headerLength b) b

-- | The bytes after the header.
payload :: View -> ByteString
payload (View b) = B.drop (headerLength b) b

-- | A decoded header. The lengths and the checksum are computed from it and the payload.
data Header = Header
  { source4 :: !Address,
    destination4 :: !Address,
    protocol4 :: !Word8,
    timeToLive :: !Word8,
    -- | Differentiated services and, in the low two bits, ECN.
    trafficClass4 :: !Word8,
    identification :: !Word16,
    dontFragment :: !Bool,
    moreFragments :: !Bool,
    -- | The offset of a fragment's bytes, in units of eight bytes.
    fragmentOffset :: !Word16,
    -- | Options as on the wire: up to 40 bytes, a multiple of four.
    options4 :: !ByteString
  }
  deriving (Eq, Show)

-- | A header without options, for a packet that must not be fragmented, given protocol, source and destination.
plain :: Word8 -> Address -> Address -> Header
plain proto src dst = Header src dst proto 64 0 0 True False 0 B.empty

-- | All fields of the header.
header :: View -> Header
header (View b) =
  Header
    { source4 = v4At b 12,
      destination4 = v4At b 16,
      protocol4 = word8At b 9,
      timeToLive = word8At b 8,
      trafficClass4 = word8At b 1,
      identification = word16At b 4,
      dontFragment = testBit flags 14,
      moreFragments = testBit flags 13,
      fragmentOffset = flags .&. 0x1fff,
      options4 = slice 20 (headerLength b - 20) b
    }
  where
    flags = word16At b 6

-- | Decode header and payload of a packet, with the checks of 'view'.
decode :: ByteString -> Either Malformed (Header, ByteString)
decode b = (\v -> (header v, payload v)) <$> view b

-- | Encode header and payload. Options are cut off after 40 bytes and padded.
encode :: Header -> ByteString -> ByteString
encode h body = runPut (putHeader h (B.length body) <> putBytes body)

-- | A header for a payload of the given number of bytes. Header and payload must be at most 65535 bytes.
putHeader :: Header -> Int -> Put
putHeader h len =
  putSummed 10 mempty mempty $
    putWord8 (0x40 .|. fromIntegral (ihl `div` 4))
      <> putWord8 (trafficClass4 h)
      <> putWord16 (fromIntegral (ihl + len))
      <> putWord16 (identification h)
      <> putWord16 (flag (dontFragment h) 14 .|. flag (moreFragments h) 13 .|. (fragmentOffset h .&. 0x1fff))
      <> putWord8 (timeToLive h)
      <> putWord8 (protocol4 h)
      <> putWord16 0
      <> putAddress (source4 h)
      <> putAddress (destination4 h)
      <> putBytes options
      <> putZeros padding
  where
    options = B.take 40 (options4 h)
    padding = negate (B.length options) .&. 3
    ihl = 20 + B.length options + padding
    flag b i = if b then 1 `shiftL` i else 0 :: Word16
{-# INLINE putHeader #-}
