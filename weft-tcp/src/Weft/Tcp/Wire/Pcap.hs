-- |
-- Packet capture files, as tcpdump(8) and Wireshark read and write them (pcap-savefile(5)): version 2.4, with times
-- in microseconds or nanoseconds, in either byte order.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Pcap
  ( LinkType (..),
    Record (..),
    fileHeader,
    encodeRecord,
    decodeFile,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Int (Int64)
import Data.Word (Word32, byteSwap32)
import Weft.Tcp.Wire.Bytes

-- | The type of the packets in a file: the header with which they begin, and its number in the format.
data LinkType
  = -- | An IPv4 or IPv6 header (101).
    RawIp
  | -- | An Ethernet header (1).
    EthernetFrames
  deriving (Eq, Show, Enum, Bounded)

-- | A packet and the time at which it was captured, in microseconds since 1970.
data Record = Record !Int64 !ByteString
  deriving (Eq, Show)

number :: LinkType -> Word32
number RawIp = 101
number EthernetFrames = 1

-- | The header of a file, given the type of its packets: version 2.4, microseconds, big-endian.
fileHeader :: LinkType -> ByteString
fileHeader link = runPut (put32 0xa1b2c3d4 <> put16 2 <> put16 4 <> put32 0 <> put32 0 <> put32 262144 <> put32 (number link))

-- | A packet as a record of a file that begins with 'fileHeader': 16 bytes of record header, then the packet.
encodeRecord :: Record -> ByteString
encodeRecord (Record at packet) =
  runPut (put32 (fromIntegral s) <> put32 (fromIntegral us) <> len <> len <> putBytes packet)
  where
    (s, us) = at `divMod` 1000000
    len = put32 (fromIntegral (B.length packet))

-- | Decode a whole file. A truncated record ends it.
decodeFile :: ByteString -> Either Malformed (LinkType, [Record])
decodeFile b
  | B.length b < 24 = Left Truncated
  | otherwise = do
    (swap, unit) <- case word32At b 0 of
      0xa1b2c3d4 -> Right (id, 1)
      0xa1b23c4d -> Right (id, 1000)
      0xd4c3b2a1 -> Right (byteSwap32, 1)
      0x4d3cb2a1 -> Right (byteSwap32, 1000)
      _ -> Left WrongVersion
    link <- case lookup (swap (word32At b 20)) [(number l, l) | l <- [minBound ..]] of
      Just l -> Right l
      Nothing -> Left WrongVersion
    Right (link, records swap unit (B.drop 24 b))

records :: (Word32 -> Word32) -> Int64 -> ByteString -> [Record]
records swap unit b
  | B.length b < 16 || B.length b - 16 < len = []
  | otherwise = Record (field 0 * 1000000 + field 4 `div` unit) (slice 16 len b) : records swap unit (B.drop (16 + len) b)
  where
    field at = fromIntegral (swap (word32At b at)) :: Int64
    len = fromIntegral (swap (word32At b 8))
