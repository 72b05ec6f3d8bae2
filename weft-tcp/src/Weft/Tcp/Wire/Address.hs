{-# LANGUAGE ForeignFunctionInterface #-}

-- |
-- Internet addresses of both versions, as numbers, and link-layer addresses.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Address
  ( -- * Internet addresses
    Address (..),
    parseAddress,
    showAddress,
    isUnicast,
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

import Data.Bits (shiftL, shiftR, testBit, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8)
import Foreign.C.String (CString, peekCString, withCString)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr, castPtr)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Tcp.Wire.Bytes

-- | An IPv4 or IPv6 address, most significant byte first.
data Address
  = V4 {-# UNPACK #-} !Word32
  | V6 {-# UNPACK #-} !Word64 {-# UNPACK #-} !Word64
  deriving (Eq, Ord)

instance Show Address where
  show = showAddress

foreign import ccall unsafe "inet_pton"
  cInetPton :: CInt -> CString -> Ptr Word8 -> IO CInt

foreign import ccall unsafe "inet_ntop"
  cInetNtop :: CInt -> CString -> CString -> Word32 -> IO CString

-- | AF_INET and AF_INET6 of Linux.
familyV4, familyV6 :: CInt
familyV4 = 2
familyV6 = 10

-- | From its text (inet_pton(3)): @192.0.2.1@ or @2001:db8::1@.
parseAddress :: String -> Maybe Address
parseAddress text
  | '\0' `elem` text = Nothing
  | ':' `elem` text = (`v6At` 0) <$> parse familyV6 16
  | otherwise = (`v4At` 0) <$> parse familyV4 4
  where
    parse family size = unsafePerformIO . withCString text $ \t -> allocaBytes size $ \p -> do
      ok <- cInetPton family t p
      if ok == 1 then Just <$> B.packCStringLen (castPtr p, size) else pure Nothing

-- | Its text (inet_ntop(3), for IPv6 the form of RFC 5952).
showAddress :: Address -> String
showAddress a = unsafePerformIO . B.unsafeUseAsCString (runPut (putAddress a)) $ \p ->
  allocaBytes 64 $ \out -> cInetNtop (family a) p out 64 >>= peekCString
  where
    family V4 {} = familyV4
    family V6 {} = familyV6

-- | Whether one host can have the address: neither multicast nor broadcast nor
-- unspecified (RFC 9293, MUST-46 and MUST-57).
isUnicast :: Address -> Bool
isUnicast (V4 a) = a /= 0 && a < 0xe0000000
isUnicast (V6 0 0) = False
isUnicast (V6 a _) = a `shiftR` 56 /= 0xff

-- | Whether both are of one version.
sameFamily :: Address -> Address -> Bool
sameFamily V4 {} V4 {} = True
sameFamily V6 {} V6 {} = True
sameFamily _ _ = False

-- | Where neighbour solicitations for an address go (RFC 4291, section 2.7.1).
solicitedNode :: Address -> Address
solicitedNode (V6 _ b) = V6 0xff02000000000000 (0x00000001ff000000 .|. (b .&. 0xffffff))
solicitedNode a = a

-- | An EUI-48, in the low 48 bits.
newtype HardwareAddress = HardwareAddress Word64
  deriving (Eq, Ord, Show)

-- | The Ethernet broadcast address, @ff:ff:ff:ff:ff:ff@.
broadcastHardware :: HardwareAddress
broadcastHardware = HardwareAddress 0xffffffffffff

-- | Where an IPv6 multicast goes on Ethernet (RFC 2464, section 7).
multicastHardware :: Address -> HardwareAddress
multicastHardware (V6 _ b) = HardwareAddress (0x333300000000 .|. (b .&. 0xffffffff))
multicastHardware _ = broadcastHardware

-- | Whether one station can have the address: not multicast, not broadcast, not zero.
isStation :: HardwareAddress -> Bool
isStation (HardwareAddress w) = w /= 0 && not (testBit w 40)

-- | At an offset; the six bytes must lie inside.
hardwareAt :: ByteString -> Int -> HardwareAddress
hardwareAt b i =
  HardwareAddress ((fromIntegral (word16At b i) `shiftL` 32) .|. fromIntegral (word32At b (i + 2)))

-- | The six bytes of a link-layer address.
putHardware :: HardwareAddress -> Put
putHardware (HardwareAddress w) = put16 (fromIntegral (w `shiftR` 32) :: Word16) <> put32 (fromIntegral w)

-- | At an offset; the four bytes must lie inside.
v4At :: ByteString -> Int -> Address
v4At b i = V4 (word32At b i)
{-# INLINE v4At #-}

-- | At an offset; the sixteen bytes must lie inside.
v6At :: ByteString -> Int -> Address
v6At b i = V6 (word64At b i) (word64At b (i + 8))
{-# INLINE v6At #-}

-- | The four bytes of an IPv4 address or the sixteen of an IPv6 address, in network byte
-- order.
putAddress :: Address -> Put
putAddress (V4 a) = put32 a
putAddress (V6 a b) = put64 a <> put64 b
