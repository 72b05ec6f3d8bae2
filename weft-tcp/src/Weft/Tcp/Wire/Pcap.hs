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
import Weft.Tcp.Wire.Malformed
import Weft.Wire.Peek
import Weft.Wire.Put

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
fileHeader link = runPut (putWord32 0xa1b2c3d4 <> putWord16 2 <> putWord16 4 <> putWord32 0 <> putWord32 0 <> putWord32 262144 <> putWord32 (number link))

-- | A packet as a record of a file that begins with 'fileHeader': 16 bytes of record header, then the packet.
encodeRecord :: Record -> ByteString
encodeRecord (Record at packet) =
  runPut (putWord32 (fromIntegral s) <> putWord32 (fromIntegral us) <> len <> len <> putBytes packet)
  where
    (s, us) = at `divMod` 1000000
    len = putWord32 (fromIntegral (B.length packet))

-- | Decode a whole file: the type of its packets, its records, and the number of bytes at its end that are not a whole
-- record.
decodeFile :: ByteString -> Either Malformed (LinkType, [Record], Int)
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
    let (found, rest) = records swap unit (B.drop 24 b)
    Right (link, found, rest)

records :: (Word32 -> Word32) -> Int64 -> ByteString -> ([Record], Int)
records swap unit b
  | B.length b < 16 || B.length b - 16 < len = ([], B.length b)
  | otherwise =
    let (found, rest) = records swap unit (B.drop (16 + len) b)
     in (Record (field 0 * 1000000 + field 4 `div` unit) (slice 16 len b) : found, rest)
  where
    field at = fromIntegral (swap (word32At b at)) :: Int64
    len = fromIntegral (swap (word32At b 8))
