-- |
-- What flows are about: fields of packets, matches, actions and instructions, in the terms of OpenFlow 1.3. Version 1.0
-- expresses a part of it; the codec says when it cannot.
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

-- | A packet matches if every field does. Version 1.3 asks for prerequisites: what is IP needs an 'EthType', what is a
-- port of TCP an 'IpProtocol' before it.
type Match = [Field]

-- | A field and the value that it must have.
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
  | -- | Differentiated services of IP, 0 to 63.
    IpDscp !Word8
  | -- | IP's protocol number (in 1.0 also the low byte of ARP's operation).
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
  | -- | Any other: class, field number and mask bit as on the wire (1.3), and the payload.
    OtherField !Word16 !Word8 !ByteString
  deriving (Eq, Show)

-- | The tag of a frame.
data Vlan
  = -- | No tag.
    Untagged
  | -- | Twelve bits.
    Tagged !Word16
  deriving (Eq, Show)

-- | The mask of a whole IPv4 address.
exactIp :: Word32
exactIp = 0xffffffff

-- | What is done with a packet.
data Action
  = -- | Send it out of a port; to the controller at most that many bytes of it.
    Output !PortNo !Word16
  | -- | Change a field; in 1.0 those that it has actions for.
    SetField !Field
  | -- | Remove the outermost VLAN tag.
    PopVlan
  | -- | Add a VLAN tag of that Ethernet type (1.3).
    PushVlan !Word16
  | -- | By a group (1.3).
    Group !Word32
  | -- | Choose a queue for what follows (1.3).
    SetQueue !Word32
  | -- | Send it out of a port by a queue (1.0).
    Enqueue !PortNo !Word32
  | -- | Any other, with the bytes after its length.
    OtherAction !Word16 !ByteString
  deriving (Eq, Show)

-- | What a flow does (1.3). Version 1.0 has a single 'ApplyActions', or nothing, which drops.
data Instruction
  = -- | Go on in a later table.
    GotoTable !Word8
  | -- | Write metadata, under a mask.
    WriteMetadata !Word64 !Word64
  | -- | Merge into the action set.
    WriteActions [Action]
  | -- | Do it now.
    ApplyActions [Action]
  | -- | Empty the action set.
    ClearActions
  | -- | Any other, with the bytes after its length.
    OtherInstruction !Word16 !ByteString
  deriving (Eq, Show)

-- | Send it out of a port, whole.
output :: PortNo -> Action
output p = Output p wholePacket

-- | No limit on what the controller gets of a packet, and no buffer (1.3); in 1.0 more than any packet has.
wholePacket :: Word16
wholePacket = 0xffff
