-- |
-- Groups, meters, port settings and queues on the wire (1.0.1, 5.2.2, 5.3.3 and 5.3.4; 1.3.5, 7.2.2 and 7.3.4). The
-- readers take exactly the bytes of their structure: with bytes left, the message's length is wrong. Pure.
module Weft.OpenFlow.Wire.Resources
  ( putGroupMod,
    getGroupMod,
    putMeterMod,
    getMeterMod,
    putPortMod,
    getPortMod,
    putTableMod,
    getTableMod,
    putQueueRequest,
    getQueueRequest,
    putQueueReply,
    getQueueReply,
  )
where

import Control.Monad (when)
import Data.Bits ((.&.))
import qualified Data.ByteString as B
import Data.Word (Word16, Word32, Word8)
import Weft.OpenFlow.Resources
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Action
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Match
import Weft.OpenFlow.Wire.Put

-- Groups --------------------------------------------------------------------------------

-- | Write the body of a GROUP_MOD.
putGroupMod :: GroupMod -> Put
putGroupMod g =
  putWord16 (enum (groupCommand g)) <> putWord8 (enum (groupType g)) <> putZeros 1 <> putWord32 (groupId g)
    <> putAll putBucket (groupBuckets g)

-- | Read it.
getGroupMod :: Get GroupMod
getGroupMod = exactly $ do
  command <- getEnum BadGroupCommand . fromIntegral =<< getWord16
  kind <- getEnum BadGroupType . fromIntegral =<< getWord8
  GroupMod command kind <$> (skip 1 *> getWord32) <*> untilEnd getBucket

putBucket :: Bucket -> Put
putBucket b = case putSize actions of
  Nothing -> unencodable
  Just n ->
    putUnless (n > 0xffe0) $
      putWord16 (fromIntegral (n + 16)) <> putWord16 (bucketWeight b) <> putPort V13 (bucketWatchPort b)
        <> putWord32 (bucketWatchGroup b)
        <> putZeros 4
        <> actions
  where
    actions = putActions V13 (bucketActions b)

getBucket :: Get Bucket
getBucket = do
  len <- fromIntegral <$> blame BadBucket getWord16
  when (len < 16 || len .&. 7 /= 0) (bad BadBucket)
  body <- blame BadBucket (getBytes (len - 2))
  readAll body $ Bucket <$> getWord16 <*> getPort V13 <*> getWord32 <* skip 4 <*> getActions V13

-- Meters --------------------------------------------------------------------------------

-- | Write the body of a METER_MOD.
putMeterMod :: MeterMod -> Put
putMeterMod m = putWord16 (enum (meterCommand m)) <> putWord16 (meterFlags m) <> putWord32 (meterId m) <> putAll putBand (meterBands m)

-- | Read it.
getMeterMod :: Get MeterMod
getMeterMod = exactly $ do
  command <- getEnum BadMeterCommand . fromIntegral =<< getWord16
  MeterMod command <$> getWord16 <*> getWord32 <*> untilEnd getBand

putBand :: Band -> Put
putBand band = case band of
  DropBand rate burst -> header 1 16 rate burst <> putZeros 4
  RemarkBand rate burst level -> header 2 16 rate burst <> putWord8 level <> putZeros 3
  OtherBand kind rate burst s -> let n = B.length s + 12 in putUnless (n < 16 || n > 0xffff) (header kind (fromIntegral n) rate burst <> putBytes s)
  where
    header :: Word16 -> Word16 -> Word32 -> Word32 -> Put
    header kind len rate burst = putWord16 kind <> putWord16 len <> putWord32 rate <> putWord32 burst

getBand :: Get Band
getBand = do
  kind <- getWord16
  body <- getWord16 >>= \len -> if len < 16 then bad BadLength else getBytes (fromIntegral len - 4)
  readAll body $ do
    rate <- getWord32
    burst <- getWord32
    case kind of
      1 -> DropBand rate burst <$ skip 4
      2 -> RemarkBand rate burst <$> getWord8 <* skip 3
      _ -> OtherBand kind rate burst <$> getRest

-- Ports and tables ----------------------------------------------------------------------

-- | Write the body of a PORT_MOD.
putPortMod :: Version -> PortMod -> Put
putPortMod version p = putPort version (portModPort p) <> putZeros before <> putMac (portModAddress p) <> putZeros behind <> rest
  where
    (before, behind) = portModGaps version
    rest = putWord32 (portModConfig p) <> putWord32 (portModMask p) <> putWord32 (portModAdvertise p) <> putZeros 4

-- | Read it.
getPortMod :: Version -> Get PortMod
getPortMod version = exactly $ PortMod <$> getPort version <* skip before <*> getMac <* skip behind <*> getWord32 <*> getWord32 <*> getWord32 <* skip 4
  where
    (before, behind) = portModGaps version

-- | The padding before and behind the address in a PORT_MOD, in bytes.
portModGaps :: Version -> (Int, Int)
portModGaps version = case version of
  V10 -> (0, 0)
  V13 -> (4, 2)

-- | Write the body of a TABLE_MOD: the table and its configuration.
putTableMod :: Word8 -> Word32 -> Put
putTableMod table config = putWord8 table <> putZeros 3 <> putWord32 config

-- | Read it.
getTableMod :: Get (Word8, Word32)
getTableMod = exactly $ (,) <$> getWord8 <* skip 3 <*> getWord32

-- Queues --------------------------------------------------------------------------------

-- | Write the body of a request for the queues of a port.
putQueueRequest :: Version -> PortNo -> Put
putQueueRequest version p = case version of
  V10 -> putPort V10 p <> putZeros 2
  V13 -> putPort V13 p <> putZeros 4

-- | Read it.
getQueueRequest :: Version -> Get PortNo
getQueueRequest version = exactly $ case version of
  V10 -> getPort V10 <* skip 2
  V13 -> getPort V13 <* skip 4

-- | Write the body of the reply: the port and its queues.
putQueueReply :: Version -> PortNo -> [Queue] -> Put
putQueueReply version p queues = putPort version p <> putZeros (case version of V10 -> 6; V13 -> 4) <> putAll (putQueue version) queues

-- | Read it.
getQueueReply :: Version -> Get (PortNo, [Queue])
getQueueReply version = exactly $ do
  p <- getPort version <* skip (case version of V10 -> 6; V13 -> 4)
  (,) p <$> untilEnd (getQueue version)

putQueue :: Version -> Queue -> Put
putQueue version q = case putSize properties of
  Nothing -> unencodable
  Just n -> putUnless (n > 0xffe0) $ case version of
    V10 -> putWord32 (queueId q) <> putWord16 (fromIntegral (n + 8)) <> putZeros 2 <> properties
    V13 -> putWord32 (queueId q) <> putPort V13 (queuePort q) <> putWord16 (fromIntegral (n + 16)) <> putZeros 6 <> properties
  where
    properties = putAll (putProperty version) (queueProperties q)

getQueue :: Version -> Get Queue
getQueue version = do
  number <- getWord32
  case version of
    V10 -> do
      len <- fromIntegral <$> getWord16 <* skip 2
      Queue number portAny <$> isolate (len - 8) properties
    V13 -> do
      p <- getPort V13
      len <- fromIntegral <$> getWord16 <* skip 6
      Queue number p <$> isolate (len - 16) properties
  where
    properties = untilEnd (getProperty version)

putProperty :: Version -> QueueProperty -> Put
putProperty version property = case property of
  MinRate rate -> header 1 16 <> putWord16 rate <> putZeros 6
  MaxRate rate -> putUnless (version == V10) (header 2 16 <> putWord16 rate <> putZeros 6)
  OtherQueueProperty kind s -> let n = B.length s + 8 in putUnless (n > 0xffff) (header kind (fromIntegral n) <> putBytes s)
  where
    header kind len = putWord16 kind <> putWord16 len <> putZeros 4

getProperty :: Version -> Get QueueProperty
getProperty version = do
  kind <- getWord16
  body <- getWord16 >>= \len -> skip 4 *> getBytes (fromIntegral len - 8)
  readAll body $ case kind of
    1 -> MinRate <$> getWord16 <* skip 6
    2 | version == V13 -> MaxRate <$> getWord16 <* skip 6
    _ -> OtherQueueProperty kind <$> getRest

-- Both versions -------------------------------------------------------------------------

-- | Run a parser on a string, all of which it has to read.
readAll :: B.ByteString -> Get a -> Get a
readAll s g = either bad pure (runGet (exactly g) s)

enum :: (Enum a, Num n) => a -> n
enum = fromIntegral . fromEnum
