-- |
-- What a controller sets up in a switch besides flows: groups, meters, the behaviour of ports, and the queues of a
-- port, which it can only read. Pure. "Weft.OpenFlow.Message" has the messages.
--
-- @since 0.1.0
module Weft.OpenFlow.Resources
  ( ResourceCommand (..),

    -- * Groups
    GroupMod (..),
    GroupType (..),
    Bucket (..),

    -- * Meters
    MeterMod (..),
    Band (..),

    -- * Ports and queues
    PortMod (..),
    Queue (..),
    QueueProperty (..),
  )
where

import Data.ByteString (ByteString)
import Data.Word (Word16, Word32, Word8)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Types

-- | The command of a 'GroupMod' or a 'MeterMod'.
data ResourceCommand = ResourceAdd | ResourceModify | ResourceDelete
  deriving (Eq, Show, Enum, Bounded)

-- | A change of a group (1.3.5, 7.3.4.2).
data GroupMod = GroupMod
  { -- | The command.
    groupCommand :: !ResourceCommand,
    -- | Which buckets a packet goes to.
    groupType :: !GroupType,
    -- | The number of the group; 0xfffffffc in a deletion: all groups.
    groupId :: !Word32,
    -- | The buckets; none in a deletion.
    groupBuckets :: [Bucket]
  }
  deriving (Eq, Show)

-- | Which buckets of a group a packet goes to: to each, to one that the switch selects, to the only one, or to the
-- first that is live.
data GroupType = GroupAll | GroupSelect | GroupIndirect | GroupFastFailover
  deriving (Eq, Show, Enum, Bounded)

-- | A bucket of a group.
data Bucket = Bucket
  { -- | Its share of the packets, in a 'GroupSelect'.
    bucketWeight :: !Word16,
    -- | The port that decides whether the bucket is live, or 'portAny'; in a 'GroupFastFailover'.
    bucketWatchPort :: !PortNo,
    -- | The group that decides it, or 0xffffffff.
    bucketWatchGroup :: !Word32,
    -- | The bucket's action set.
    bucketActions :: [Action]
  }
  deriving (Eq, Show)

-- | A change of a meter (1.3.5, 7.3.4.4).
data MeterMod = MeterMod
  { -- | The command.
    meterCommand :: !ResourceCommand,
    -- | Bits of @ofp_meter_flags@: 1 rates in kbit/s, 2 in packets/s, 4 with bursts, 8 collect statistics.
    meterFlags :: !Word16,
    -- | The number of the meter; 0xffffffff in a deletion: all meters.
    meterId :: !Word32,
    -- | The bands; none in a deletion.
    meterBands :: [Band]
  }
  deriving (Eq, Show)

-- | A band of a meter: what happens to packets above its rate. The first two numbers are the rate and the size of
-- bursts.
data Band
  = -- | They are dropped.
    DropBand !Word32 !Word32
  | -- | The drop precedence in their IP header is raised by that many levels.
    RemarkBand !Word32 !Word32 !Word8
  | -- | Any other band: its type, rate and burst, and the bytes behind these, at least four.
    OtherBand !Word16 !Word32 !Word32 !ByteString
  deriving (Eq, Show)

-- | A change of a port's behaviour (1.0.1, 5.3.3; 1.3.5, 7.3.4.3).
data PortMod = PortMod
  { -- | The port.
    portModPort :: !PortNo,
    -- | Its address, which the switch compares.
    portModAddress :: !MacAddress,
    -- | The new values of the bits of @ofp_port_config@ that are to be changed.
    portModConfig :: !Word32,
    -- | Which bits are to be changed.
    portModMask :: !Word32,
    -- | The bits of @ofp_port_features@ to advertise; 0: no change.
    portModAdvertise :: !Word32
  }
  deriving (Eq, Show)

-- | A queue of a port (1.0.1, 5.2.2; 1.3.5, 7.2.2).
data Queue = Queue
  { -- | Its number.
    queueId :: !Word32,
    -- | Its port (1.3; in 1.0 'portAny').
    queuePort :: !PortNo,
    -- | Its properties.
    queueProperties :: [QueueProperty]
  }
  deriving (Eq, Show)

-- | A property of a queue. Rates are in tenths of a percent of the port's; those above 1000 mean that there is no
-- limit.
data QueueProperty
  = -- | A rate that the queue is guaranteed.
    MinRate !Word16
  | -- | The highest rate of the queue (1.3).
    MaxRate !Word16
  | -- | Any other property: its type, and the bytes behind its header.
    OtherQueueProperty !Word16 !ByteString
  deriving (Eq, Show)
