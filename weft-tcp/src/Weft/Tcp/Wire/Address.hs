-- |
-- Internet addresses of both versions, represented as numbers, and link-layer addresses.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Address
  ( -- * Internet addresses
    Address (..),
    parseAddress,
    showAddress,
    isUnicast,
    isSource,
    sameFamily,
    solicitedNode,

    -- * Link-layer addresses
    HardwareAddress (..),
    broadcastHardware,
    multicastHardware,
    isStation,
    hardwareAt,
    putHardware,

    -- * On the wire
    v4At,
    v6At,
    putAddress,
  )
where

import Data.Bits (shiftR, testBit, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as C
import Data.Char (isAscii)
import Data.List (intercalate)
import Data.Word (Word32, Word64)
import Network.Socket (Family (AF_INET, AF_INET6))
import Weft.Socket.Address (hostBytes, ip6Text)
import Weft.Wire.Peek
import Weft.Wire.Put

-- | An IPv4 or IPv6 address, most significant byte first.
data Address
  = V4 {-# UNPACK #-} !Word32
  | V6 {-# UNPACK #-} !Word64 {-# UNPACK #-} !Word64
  deriving (Eq, Ord)

instance Show Address where
  show = showAddress

-- | Parse an address from its text form, as inet_pton(3) does: @192.0.2.1@ or @2001:db8::1@.
parseAddress :: String -> Maybe Address
parseAddress text
  | not (all isAscii text) = Nothing
  | ':' `elem` text = (`v6At` 0) <$> hostBytes AF_INET6 (C.pack text)
  | otherwise = (`v4At` 0) <$> hostBytes AF_INET (C.pack text)

-- | The text form of an address; of an IPv6 address the one that RFC 5952 recommends.
showAddress :: Address -> String
showAddress (V4 a) = intercalate "." [show ((a `shiftR` n) .&. 0xff) | n <- [24, 16, 8, 0]]
showAddress (V6 a b) = C.unpack (ip6Text (high a, low a, high b, low b))
  where
    high w = fromIntegral (w `shiftR` 32)
    low = fromIntegral

-- | Whether the address can belong to a single host: it is not a multicast, broadcast or unspecified address (RFC
-- 9293, MUST-46 and MUST-57).
isUnicast :: Address -> Bool
isUnicast (V4 a) = a /= 0 && a < 0xe0000000
isUnicast (V6 0 0) = False
isUnicast (V6 a _) = a `shiftR` 56 /= 0xff

-- | Whether a packet on a link can have the address as its source: it can belong to a single host, and is no address of
-- a loopback interface (127/8, ::1), of "this network" (0/8) or of an IPv4 host on a socket of IPv6 (::ffff:0:0/96).
isSource :: Address -> Bool
isSource a =
  isUnicast a && case a of
    V4 w -> w `shiftR` 24 `notElem` [0, 127]
    V6 0 low -> low /= 1 && low `shiftR` 32 /= 0xffff
    V6 _ _ -> True

-- | Whether both addresses have the same IP version.
sameFamily :: Address -> Address -> Bool
sameFamily V4 {} V4 {} = True
sameFamily V6 {} V6 {} = True
sameFamily _ _ = False

-- | The multicast address to which neighbour solicitations for an address are sent (RFC 4291, section 2.7.1).
solicitedNode :: Address -> Address
solicitedNode (V6 _ b) = V6 0xff02000000000000 (0x00000001ff000000 .|. (b .&. 0xffffff))
solicitedNode a = a

-- | A link-layer address (EUI-48), in the low 48 bits.
newtype HardwareAddress = HardwareAddress Word64
  deriving (Eq, Ord, Show)

-- | The Ethernet broadcast address, @ff:ff:ff:ff:ff:ff@.
broadcastHardware :: HardwareAddress
broadcastHardware = HardwareAddress 0xffffffffffff

-- | The link-layer address to which an IPv6 multicast packet is sent on Ethernet (RFC 2464, section 7).
multicastHardware :: Address -> HardwareAddress
multicastHardware (V6 _ b) = HardwareAddress (0x333300000000 .|. (b .&. 0xffffffff))
multicastHardware _ = broadcastHardware

-- | Whether the address can belong to a single station: it is not multicast, broadcast or zero.
isStation :: HardwareAddress -> Bool
isStation (HardwareAddress w) = w /= 0 && not (testBit w 40)

-- | The link-layer address at an offset. Its six bytes must lie inside the string.
hardwareAt :: ByteString -> Int -> HardwareAddress
hardwareAt b i = HardwareAddress (word48At b i)

-- | The six bytes of a link-layer address.
putHardware :: HardwareAddress -> Put
putHardware (HardwareAddress w) = putWord48 w

-- | The IPv4 address at an offset. Its four bytes must lie inside the string.
v4At :: ByteString -> Int -> Address
v4At b i = V4 (word32At b i)
{-# INLINE v4At #-}

-- | The IPv6 address at an offset. Its sixteen bytes must lie inside the string.
v6At :: ByteString -> Int -> Address
v6At b i = V6 (word64At b i) (word64At b (i + 8))
{-# INLINE v6At #-}

-- | The four bytes of an IPv4 address or the sixteen of an IPv6 address, in network byte order.
putAddress :: Address -> Put
putAddress (V4 a) = putWord32 a
putAddress (V6 a b) = putWord64 a <> putWord64 b
