-- |
-- The frames of link discovery, called probes. Pure, except for 'newLldpKey'. Parsing is total.
--
-- A controller sends two probes from each port. Both name the switch and the port. When another switch reports one,
-- the controller knows a link. The first probe is an LLDP frame, which bridges do not forward: its link is a cable.
-- The second has the same content, but a group address that bridges forward: it also finds links through bridges that
-- are not controlled. Hosts receive these frames too, and may send frames of their own. So a frame has a tag, a keyed
-- hash of the kind of probe, the switch and the port (SipHash-2-4, 64 bits), and the controller ignores frames without
-- a valid tag. A host without the key cannot name any port but the one whose frames it receives, nor make a link
-- through bridges look like a cable. The rest of a frame is not protected, and has no effect.
--
-- The tag does not prevent the relay of a genuine frame: two hosts that pass each other the frames of their ports make
-- a link between these ports, as a cable between them would. The tag does not expire.
--
-- @since 0.1.0
module Weft.OpenFlow.Lldp
  ( -- * Keys
    LldpKey,
    newLldpKey,
    lldpKey,
    lldpKeyBytes,

    -- * Frames
    lldpFrame,
    bridgedFrame,
    Path (..),
    pathOf,
    LldpOrigin (..),
    lldpOrigin,
    lldpDestination,
  )
where

import Control.Monad (guard)
import Data.Bits (shiftR, (.&.))
import Data.ByteArray.Hash (SipHash (..), SipKey (..), sipHash)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word64)
import System.IO (IOMode (ReadMode), withBinaryFile)
import Weft.OpenFlow.Packet
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Put
import Weft.Wire.Peek

-- Keys ----------------------------------------------------------------------------------

-- | A secret key of 16 bytes. Controllers that share a network share the key.
newtype LldpKey = LldpKey ByteString
  deriving (Eq)

-- | Does not show the key.
instance Show LldpKey where
  show _ = "LldpKey"

-- | A random key, from @\/dev\/urandom@. Throws an 'IOError' if that cannot be read.
newLldpKey :: IO LldpKey
newLldpKey = withBinaryFile "/dev/urandom" ReadMode (fmap LldpKey . (`B.hGet` 16))

-- | The key that consists of these bytes; 'Nothing' unless there are exactly 16.
lldpKey :: ByteString -> Maybe LldpKey
lldpKey s = LldpKey s <$ guard (B.length s == 16)

-- | The bytes of a key.
lldpKeyBytes :: LldpKey -> ByteString
lldpKeyBytes (LldpKey s) = s

-- | The tag of a kind of probe, given by its EtherType, a switch and a port.
tagOf :: LldpKey -> Word16 -> DatapathId -> PortNo -> Word64
tagOf (LldpKey key) etherType (DatapathId d) (PortNo port) = case sipHash (SipKey (word64At key 0) (word64At key 8)) message of
  SipHash tag -> tag
  where
    message = fromMaybe B.empty (tryRunPut (putWord16 etherType <> putWord64 d <> putWord32 port))

-- Frames --------------------------------------------------------------------------------

-- | The group address that bridges do not forward (IEEE 802.1AB, 7.1).
lldpDestination :: MacAddress
lldpDestination = MacAddress 0x0180c200000e

-- | A locally administered group address, which bridges forward.
bridgedDestination :: MacAddress
bridgedDestination = MacAddress 0x035746000001

-- | What a probe has passed.
data Path
  = -- | No bridge: it was an LLDP frame.
    Cable
  | -- | A cable, or bridges.
    AnyPath
  deriving (Eq, Show)

-- | The path of a probe with that header.
pathOf :: Frame -> Path
pathOf frame = if frameType frame == etherTypeLldp then Cable else AnyPath

-- | An LLDP frame that identifies the sending switch and port, with that source address. Chassis and port IDs have the
-- local subtype; the lifetime is 120 seconds. The tag is an organizationally specific TLV (IEEE 802.1AB, 8.6).
lldpFrame :: LldpKey -> DatapathId -> PortNo -> MacAddress -> ByteString
lldpFrame = probeFrame lldpDestination etherTypeLldp

-- | A probe with the content of 'lldpFrame', which bridges forward.
bridgedFrame :: LldpKey -> DatapathId -> PortNo -> MacAddress -> ByteString
bridgedFrame = probeFrame bridgedDestination etherTypeProbe

probeFrame :: MacAddress -> Word16 -> LldpKey -> DatapathId -> PortNo -> MacAddress -> ByteString
probeFrame destination etherType key datapath (PortNo port) address = fromMaybe B.empty (tryRunPut (header <> tlvs))
  where
    header = putMac destination <> putMac address <> putWord16 etherType
    tlvs =
      tlv 1 (putWord8 7 <> putBytes (prefix <> BC.pack (show datapath)))
        <> tlv 2 (putWord8 7 <> putWord32 port)
        <> tlv 3 (putWord16 120)
        <> tlv 127 (putBytes organization <> putWord64 (tagOf key etherType datapath (PortNo port)))
        <> putWord16 0
    tlv :: Word16 -> Put -> Put
    tlv kind body = putWord16 (kind * 512 + maybe 0 fromIntegral (putSize body)) <> body

-- | The prefix of the chassis IDs in our frames.
prefix :: ByteString
prefix = BC.pack "dpid:"

-- | The organization of the tag, which is a locally administered identifier, and the subtype.
organization :: ByteString
organization = B.pack [0x02, 0x57, 0x46, 1]

-- | The origin of a probe, or of a similar frame.
data LldpOrigin
  = -- | A controller with this key, from this port of a switch.
    FromPort !DatapathId !PortNo
  | -- | The frame names a switch and a port as ours do, without a valid tag.
    Forged
  | -- | Any other frame.
    OtherLldp
  deriving (Eq, Show)

-- | The origin of a frame, given its header and its bytes.
lldpOrigin :: LldpKey -> Frame -> ByteString -> LldpOrigin
lldpOrigin key frame s = fromMaybe OtherLldp $ do
  guard (isProbe frame)
  (1, chassis, rest) <- next (B.drop (framePayload frame) s)
  (2, port, behind) <- next rest
  name <- B.stripPrefix prefix (B.drop 1 chassis)
  datapath <- readDatapathId (BC.unpack name)
  guard (B.length port == 5 && B.index chassis 0 == 7 && B.index port 0 == 7)
  let from = PortNo (word32At port 1)
      tagged = do
        (3, _, more) <- next behind
        (127, value, _) <- next more
        tag <- B.stripPrefix organization value
        guard (B.length tag == 8 && word64At tag 0 == tagOf key (frameType frame) datapath from)
  pure (maybe Forged (const (FromPort datapath from)) tagged)
  where
    next :: ByteString -> Maybe (Word16, ByteString, ByteString)
    next b = do
      guard (B.length b >= 2)
      let h = word16At b 0
          n = fromIntegral (h .&. 511)
      guard (B.length b >= 2 + n && n > 0)
      pure (h `shiftR` 9, B.take n (B.drop 2 b), B.drop (2 + n) b)
