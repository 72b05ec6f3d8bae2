-- |
-- TCP segments (RFC 9293, section 3.1): a view of the bytes, and the decoded form.
--
-- @since 0.1.0
module Weft.Tcp.Wire.Segment
  ( -- * Bytes
    View,
    view,
    sourcePort,
    destinationPort,
    checksumHolds,

    -- * Meaning
    Segment (..),
    segment,
    payloadLength,
    sequenceLength,
    decode,
    encode,
    putHeader,
    putForOffload,

    -- * Flags
    Flags (..),
    fin,
    syn,
    rst,
    psh,
    ack,
    urg,
    ece,
    cwr,
    has,
  )
where

import Data.Bits (shiftL, shiftR, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16, Word32, Word8)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Checksum
import Weft.Tcp.Wire.Malformed
import Weft.Tcp.Wire.Options
import Weft.Wire.Peek
import Weft.Wire.Put

-- | The control bits of a segment.
newtype Flags = Flags Word8
  deriving (Eq, Ord)

-- | The union of both sets of control bits.
instance Semigroup Flags where
  Flags a <> Flags b = Flags (a .|. b)

instance Monoid Flags where
  mempty = Flags 0

instance Show Flags where
  show f = concat [name | (bit', name) <- names, has bit' f]
    where
      names = [(syn, "S"), (fin, "F"), (rst, "R"), (psh, "P"), (ack, "."), (urg, "U"), (ece, "E"), (cwr, "W")]

-- | The control bits (RFC 9293, section 3.1), each by itself.
fin, syn, rst, psh, ack, urg, ece, cwr :: Flags
fin = Flags 1
syn = Flags 2
rst = Flags 4
psh = Flags 8
ack = Flags 16
urg = Flags 32
ece = Flags 64
cwr = Flags 128

-- | @has f g@: whether any control bit of @f@ is set in @g@.
has :: Flags -> Flags -> Bool
has (Flags a) (Flags b) = a .&. b /= 0
{-# INLINE has #-}

-- | The bytes of a segment whose length and data offset have been checked.
newtype View = View ByteString

-- | Check the length and the data offset of a segment. A data offset below 5 is rejected.
view :: ByteString -> Either Malformed View
view b
  | B.length b < 20 = Left Truncated
  | offset < 20 = Left BadLength
  | B.length b < offset = Left Truncated
  | otherwise = Right (View b)
  where
    offset = dataOffset b

dataOffset :: ByteString -> Int
dataOffset b = fromIntegral (word8At b 12 `shiftR` 4) * 4

-- | The source (destination) port.
sourcePort, destinationPort :: View -> Word16
sourcePort (View b) = word16At b 0
destinationPort (View b) = word16At b 2

-- | Whether the checksum is correct, given the addresses of the packet (MUST-3).
checksumHolds :: Address -> Address -> View -> Bool
checksumHolds src dst (View b) = isValid (pseudoHeader src dst 6 (B.length b) <> sumBytes b)

-- | A segment without its ports. They identify the connection, and the connection does not need them.
data Segment = Segment
  { seqNumber :: {-# UNPACK #-} !Word32,
    ackNumber :: {-# UNPACK #-} !Word32,
    flags :: !Flags,
    -- | As on the wire, not scaled.
    window :: {-# UNPACK #-} !Word16,
    urgentPointer :: {-# UNPACK #-} !Word16,
    options :: !Options,
    -- | Data, as parts that follow each other.
    payload :: ![ByteString]
  }
  deriving (Eq, Show)

-- | Decode a segment, without its ports.
segment :: View -> Segment
segment (View b) =
  Segment
    { seqNumber = word32At b 4,
      ackNumber = word32At b 8,
      flags = Flags (word8At b 13),
      window = word16At b 14,
      urgentPointer = word16At b 18,
      options = if offset == 20 then noOptions else decodeOptions (slice 20 (offset - 20) b),
      payload = [B.drop offset b | B.length b > offset]
    }
  where
    offset = dataOffset b

-- | The number of bytes of data.
payloadLength :: Segment -> Int
payloadLength = go 0 . payload
  where
    go !n [] = n
    go n (b : bs) = go (n + B.length b) bs

-- | The length in sequence numbers (SEG.LEN): the bytes of data, and one each for SYN and FIN.
sequenceLength :: Segment -> Int
sequenceLength s = payloadLength s + count syn + count fin
  where
    count f = if has f (flags s) then 1 else 0

-- | Decode source port, destination port and segment, and verify the checksum, given the source and destination
-- addresses of the packet.
decode :: Address -> Address -> ByteString -> Either Malformed (Word16, Word16, Segment)
decode src dst b = do
  v <- view b
  if checksumHolds src dst v
    then Right (sourcePort v, destinationPort v, segment v)
    else Left BadChecksum

-- | Encode header and data, given source and destination addresses and ports.
encode :: Address -> Address -> Word16 -> Word16 -> Segment -> ByteString
encode src dst from to s = B.concat (runPut (putHeader src dst from to s) : payload s)

-- | The header alone, with the checksum that includes the data.
putHeader :: Address -> Address -> Word16 -> Word16 -> Segment -> Put
putHeader src dst from to s = putSummed 16 pseudo (sumChunks (payload s)) header
  where
    header = putFields from to s 0
    pseudo = pseudoHeader src dst 6 (putLength header + payloadLength s)

-- | The header alone, for a device that completes the checksum: the checksum field contains the sum of the pseudo
-- header.
putForOffload :: Address -> Address -> Word16 -> Word16 -> Segment -> Put
putForOffload src dst from to s = putFields from to s partial
  where
    len = 20 + putLength (putOptions (options s)) + payloadLength s
    partial = foldedSum (pseudoHeader src dst 6 len)

putFields :: Word16 -> Word16 -> Segment -> Word16 -> Put
putFields from to s sum' =
  putWord16 from <> putWord16 to
    <> putWord32 (seqNumber s)
    <> putWord32 (ackNumber s)
    <> putWord8 (fromIntegral (5 + putLength opts `div` 4) `shiftL` 4)
    <> putWord8 bits
    <> putWord16 (window s)
    <> putWord16 sum'
    <> putWord16 (urgentPointer s)
    <> opts
  where
    opts = putOptions (options s)
    Flags bits = flags s
{-# INLINE putFields #-}
