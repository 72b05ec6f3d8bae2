-- |
-- Matches, actions and instructions of flows, in the terms of OpenFlow 1.3. Version 1.0 can express only some of them;
-- the codec reports what it cannot encode.
--
-- @since 0.1.0
module Weft.OpenFlow.Match
  ( -- * Matches
    Match,
    Field (..),
    Vlan (..),
    exactIp,

    -- * Actions
    Action (..),
    Instruction (..),
    output,
    wholePacket,
  )
where

import Data.ByteString (ByteString)
import Data.Word (Word16, Word32, Word64, Word8)
import Weft.OpenFlow.Types

-- | A packet matches if all fields match. Version 1.3 requires prerequisites: an 'EthType' before fields of IP, and an
-- 'IpProtocol' before ports of TCP.
type Match = [Field]

-- | A field and its required value.
data Field
  = -- | The port on which the packet came in.
    InPort !PortNo
  | -- | Destination of the Ethernet frame.
    EthDst !MacAddress
  | -- | Source of the Ethernet frame.
    EthSrc !MacAddress
  | -- | Type of the Ethernet frame, after VLAN tags.
    EthType !Word16
  | -- | VLAN identifier.
    VlanId !Vlan
  | -- | VLAN priority, 0 to 7.
    VlanPriority !Word8
  | -- | Differentiated services code point of IP, 0 to 63.
    IpDscp !Word8
  | -- | Protocol number of IP (in 1.0 also the low byte of ARP's operation).
    IpProtocol !Word8
  | -- | IPv4 source address and mask.
    Ipv4Src !Word32 !Word32
  | -- | IPv4 destination address and mask.
    Ipv4Dst !Word32 !Word32
  | -- | Source port of TCP.
    TcpSrc !Word16
  | -- | Destination port of TCP.
    TcpDst !Word16
  | -- | Source port of UDP.
    UdpSrc !Word16
  | -- | Destination port of UDP.
    UdpDst !Word16
  | -- | ICMP type.
    IcmpType !Word8
  | -- | ICMP code.
    IcmpCode !Word8
  | -- | Any other field: class, field number and mask bit as on the wire (1.3), and the payload.
    OtherField !Word16 !Word8 !ByteString
  deriving (Eq, Show)

-- | The VLAN tag of a frame.
data Vlan
  = -- | No tag.
    Untagged
  | -- | A VLAN identifier of twelve bits.
    Tagged !Word16
  deriving (Eq, Show)

-- | The mask that selects all bits of an IPv4 address.
exactIp :: Word32
exactIp = 0xffffffff

-- | An action on a packet.
data Action
  = -- | Send the packet out of a port. For the controller's port: send at most that many bytes of it.
    Output !PortNo !Word16
  | -- | Set a field. Version 1.0 has actions for some fields only.
    SetField !Field
  | -- | Remove the outermost VLAN tag.
    PopVlan
  | -- | Add a VLAN tag of that Ethernet type (1.3).
    PushVlan !Word16
  | -- | Process the packet with a group (1.3).
    Group !Word32
  | -- | Set the queue for later output actions (1.3).
    SetQueue !Word32
  | -- | Send the packet out of a port through a queue (1.0).
    Enqueue !PortNo !Word32
  | -- | Any other action, with the bytes after its length.
    OtherAction !Word16 !ByteString
  deriving (Eq, Show)

-- | An instruction of a flow (1.3). In version 1.0 a flow has a single 'ApplyActions', or nothing, which drops.
data Instruction
  = -- | Continue in a later table.
    GotoTable !Word8
  | -- | Write metadata, with a mask.
    WriteMetadata !Word64 !Word64
  | -- | Merge the actions into the action set.
    WriteActions [Action]
  | -- | Apply the actions immediately.
    ApplyActions [Action]
  | -- | Clear the action set.
    ClearActions
  | -- | Any other instruction, with the bytes after its length.
    OtherInstruction !Word16 !ByteString
  deriving (Eq, Show)

-- | Send the whole packet out of a port.
output :: PortNo -> Action
output p = Output p wholePacket

-- | No limit on the bytes of a packet that the controller receives, and no buffering (1.3). In 1.0, a limit above the
-- size of any packet.
wholePacket :: Word16
wholePacket = 0xffff
