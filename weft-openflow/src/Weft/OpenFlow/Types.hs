-- | Identifiers used by all OpenFlow messages: versions, datapaths, ports, buffers, link-layer addresses. Pure. A value
-- has the same meaning in all protocol versions; the codec translates between wire formats.
--
-- @since 0.1.0
module Weft.OpenFlow.Types
  ( -- * Versions
    Version (..),
    versionByte,
    versionFromByte,

    -- * Transactions
    Xid,

    -- * Datapaths
    DatapathId (..),
    readDatapathId,

    -- * Ports
    PortNo (..),
    isPhysical,
    maxPort,
    portInPort,
    portTable,
    portNormal,
    portFlood,
    portAll,
    portController,
    portLocal,
    portAny,
    reservedPorts,

    -- * Buffers
    BufferId (..),
    noBuffer,

    -- * Link-layer addresses
    MacAddress (..),
    isMulticast,
    broadcastMac,
    readMac,
  )
where

import Data.Bits (shiftL, shiftR, testBit, (.&.), (.|.))
import Data.List (intercalate)
import Data.Word (Word32, Word64, Word8)
import Numeric (readHex, showHex)

-- | The supported protocol versions.
data Version
  = -- | OpenFlow 1.0, wire version 0x01.
    V10
  | -- | OpenFlow 1.3, wire version 0x04.
    V13
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | The version byte, which is the first byte of a message.
versionByte :: Version -> Word8
versionByte V10 = 1
versionByte V13 = 4

-- | The version of a version byte, if it is supported.
versionFromByte :: Word8 -> Maybe Version
versionFromByte 1 = Just V10
versionFromByte 4 = Just V13
versionFromByte _ = Nothing

-- | The transaction ID, which a reply repeats from its request.
type Xid = Word32

-- | A switch's datapath ID: 48 bits of MAC address and 16 bits of the operator's choice. Shown as 16 hexadecimal
-- digits.
newtype DatapathId = DatapathId Word64
  deriving (Eq, Ord)

instance Show DatapathId where
  show (DatapathId n) = pad 16 n

-- | Parse the output of 'show'. Leading zeros may be missing.
readDatapathId :: String -> Maybe DatapathId
readDatapathId s = case readHex s of
  [(n, "")] | length s <= 16 -> Just (DatapathId n)
  _ -> Nothing

-- | A port of a switch, in the 32 bits of OpenFlow 1.3. Reserved ports have their 1.3 numbers in both versions.
newtype PortNo = PortNo Word32
  deriving (Eq, Ord)

instance Show PortNo where
  show p@(PortNo n)
    | Just name <- lookup p reservedNames = name
    | otherwise = show n

reservedNames :: [(PortNo, String)]
reservedNames =
  [ (portInPort, "in_port"),
    (portTable, "table"),
    (portNormal, "normal"),
    (portFlood, "flood"),
    (portAll, "all"),
    (portController, "controller"),
    (portLocal, "local"),
    (portAny, "any")
  ]

-- | Whether a port is a physical port and not a reserved number.
isPhysical :: PortNo -> Bool
isPhysical p = p > PortNo 0 && p <= maxPort

-- | The highest number of a physical port (OFPP_MAX of 1.3; 1.0's is 0xff00).
maxPort :: PortNo
maxPort = PortNo 0xffffff00

-- | The port on which the packet came in.
portInPort :: PortNo
portInPort = PortNo 0xfffffff8

-- | The flow table; only in PACKET_OUT.
portTable :: PortNo
portTable = PortNo 0xfffffff9

-- | The switch's own forwarding.
portNormal :: PortNo
portNormal = PortNo 0xfffffffa

-- | All ports but the one on which the packet came in and those that do not flood.
portFlood :: PortNo
portFlood = PortNo 0xfffffffb

-- | All ports but the one on which the packet came in.
portAll :: PortNo
portAll = PortNo 0xfffffffc

-- | The controller.
portController :: PortNo
portController = PortNo 0xfffffffd

-- | The switch's own network stack.
portLocal :: PortNo
portLocal = PortNo 0xfffffffe

-- | No port, or any port (OFPP_NONE, OFPP_ANY).
portAny :: PortNo
portAny = PortNo 0xffffffff

-- | The reserved ports, which 'show' shows by name.
reservedPorts :: [PortNo]
reservedPorts = map fst reservedNames

-- | A packet buffered in the switch.
newtype BufferId = BufferId Word32
  deriving (Eq, Ord, Show)

-- | The packet is not buffered.
noBuffer :: BufferId
noBuffer = BufferId 0xffffffff

-- | A link-layer address in the low 48 bits. Shown as @02:00:00:00:00:01@.
newtype MacAddress = MacAddress Word64
  deriving (Eq, Ord)

instance Show MacAddress where
  show (MacAddress n) = intercalate ":" [pad 2 ((n `shiftR` s) .&. 0xff) | s <- [40, 32 .. 0]]

-- | Whether an address is multicast or broadcast: the group bit is set.
isMulticast :: MacAddress -> Bool
isMulticast (MacAddress n) = testBit n 40
{-# INLINE isMulticast #-}

-- | @ff:ff:ff:ff:ff:ff@
broadcastMac :: MacAddress
broadcastMac = MacAddress 0xffffffffffff

-- | Parse the output of 'show'.
readMac :: String -> Maybe MacAddress
readMac s = case mapM byte (splitColons s) of
  Just bytes | length bytes == 6 -> Just (MacAddress (foldl (\acc b -> (acc `shiftL` 8) .|. b) 0 bytes))
  _ -> Nothing
  where
    byte [a, b] = case readHex [a, b] of
      [(n, "")] -> Just n
      _ -> Nothing
    byte _ = Nothing

splitColons :: String -> [String]
splitColons s = case break (== ':') s of
  (part, _ : rest) -> part : splitColons rest
  (part, []) -> [part]

pad :: Int -> Word64 -> String
pad width n = replicate (width - length digits) '0' ++ digits
  where
    digits = showHex n ""
