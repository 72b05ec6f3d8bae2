-- |
-- Decoding messages. Total: any bytes give a message or a 'Problem'. The packet of a PACKET_IN, the most frequent
-- message, is a slice of the received string.
module Weft.OpenFlow.Wire.Decode
  ( decode,
    decodeBody,
    decodePacketIn,
    typePacketIn,
    typeStatsReply,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Action
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Header
import Weft.OpenFlow.Wire.Match
import Weft.OpenFlow.Wire.Resources
import Weft.OpenFlow.Wire.Statistics
import Weft.Wire.Peek

-- | Decode a string that is exactly one message.
decode :: ByteString -> Either Problem (Header, Message)
decode s
  | B.length s < headerSize || headerLength h /= B.length s = Left BadLength
  | headerType h == 0 = case runGet getHello (B.unsafeDrop headerSize s) of
    -- 1.0 has no elements: a body is ignored, whatever it is (1.0.1, 5.5.1).
    Left _ | headerVersion h == 1 -> Right (h, Hello [])
    hello -> (,) h <$> hello
  | otherwise = case versionFromByte (headerVersion h) of
    Nothing -> Left (BadVersion (headerVersion h))
    Just version -> (,) h <$> decodeBody version (headerType h) s
  where
    h = readHeader s

-- | Decode a message of that version and type. The string includes the header, and has the length that the header says.
decodeBody :: Version -> Word8 -> ByteString -> Either Problem Message
decodeBody version kind s
  | kind == typePacketIn = PacketInMessage <$> decodePacketIn version s
  | otherwise = runGet body (B.unsafeDrop headerSize s)
  where
    body = if kind <= 14 then common version kind else special version kind

-- | The type of PACKET_IN, in both versions.
typePacketIn :: Word8
typePacketIn = 10

-- | The type of a reply to a request for statistics.
typeStatsReply :: Version -> Word8
typeStatsReply version = case version of
  V10 -> 17
  V13 -> 19

-- | Decode the types that have the same number in both versions.
common :: Version -> Word8 -> Get Message
common version kind = case kind of
  0 -> getHello
  1 -> Error <$> getWord16 <*> getWord16 <*> getRest
  2 -> EchoRequest <$> getRest
  3 -> EchoReply <$> getRest
  4 -> do
    vendor <- getWord32
    rest <- getRest
    when (version == V13 && B.length rest < 4) (bad BadLength)
    pure (Experimenter vendor rest)
  5 -> pure FeaturesRequest
  6 -> FeaturesReply <$> getFeatures version
  7 -> pure GetConfigRequest
  8 -> GetConfigReply <$> (SwitchConfig <$> getWord16 <*> getWord16)
  9 -> SetConfig <$> (SwitchConfig <$> getWord16 <*> getWord16)
  11 -> FlowRemovedMessage <$> getFlowRemoved version
  12 -> PortStatus <$> (getEnum BadReason . fromIntegral =<< getWord8) <* skip 7 <*> getPortEntry version
  13 -> PacketOutMessage <$> getPacketOut version
  14 -> FlowModMessage <$> getFlowMod version
  _ -> bad (BadType (fromIntegral kind))

-- | Decode the types that have different numbers in the two versions.
special :: Version -> Word8 -> Get Message
special V10 kind = case kind of
  15 -> PortModMessage <$> getPortMod V10
  16 -> uncurry StatsRequestMessage <$> getStatsRequest V10
  17 -> uncurry StatsReplyMessage <$> getStatsReply V10
  18 -> pure BarrierRequest
  19 -> pure BarrierReply
  20 -> QueueConfigRequest <$> getQueueRequest V10
  21 -> uncurry QueueConfigReply <$> getQueueReply V10
  _ -> bad (BadType (fromIntegral kind))
special V13 kind = case kind of
  15 -> GroupModMessage <$> getGroupMod
  16 -> PortModMessage <$> getPortMod V13
  17 -> uncurry TableMod <$> getTableMod
  18 -> uncurry StatsRequestMessage <$> getStatsRequest V13
  19 -> uncurry StatsReplyMessage <$> getStatsReply V13
  20 -> pure BarrierRequest
  21 -> pure BarrierReply
  22 -> QueueConfigRequest <$> getQueueRequest V13
  23 -> uncurry QueueConfigReply <$> getQueueReply V13
  24 -> RoleRequest <$> getRole <* skip 4 <*> getWord64
  25 -> RoleReply <$> getRole <* skip 4 <*> getWord64
  26 -> pure GetAsyncRequest
  27 -> GetAsyncReply <$> getAsync
  28 -> SetAsync <$> getAsync
  29 -> MeterModMessage <$> getMeterMod
  _ -> bad (BadType (fromIntegral kind))
  where
    getRole = getEnum BadRole . fromIntegral =<< getWord32
    pair = (,) <$> getWord32 <*> getWord32
    getAsync = AsyncConfig <$> pair <*> pair <*> pair

-- | The elements of a HELLO: version bitmaps. Unknown elements are skipped.
getHello :: Get Message
getHello = Hello . concat <$> elements
  where
    elements = do
      left <- remaining
      if left == 0 then pure [] else (:) <$> element <*> elements
    element = do
      kind <- getWord16
      len <- fromIntegral <$> getWord16
      ws <- isolate (len - 4) (if kind == 1 then untilEnd getWord32 else [] <$ getRest)
      -- The padding of the last element may be missing.
      left <- remaining
      ws <$ skip (min left ((-len) `mod` 8))

getFeatures :: Version -> Get Features
getFeatures version = do
  datapath <- DatapathId <$> getWord64
  buffers <- getWord32
  tables <- getWord8
  case version of
    V10 -> Features datapath buffers tables 0 <$> (skip 3 *> getWord32) <*> getWord32 <*> untilEnd (getPortEntry V10)
    V13 -> do
      auxiliary <- getWord8 <* skip 2
      capabilities <- getWord32 <* skip 4
      pure (Features datapath buffers tables auxiliary capabilities 0 [])

getFlowRemoved :: Version -> Get FlowRemoved
getFlowRemoved V10 = do
  match <- getMatch V10
  FlowRemoved <$> getWord64 <*> getWord16 <*> getWord8 <* skip 1 <*> pure 0 <*> getWord32 <*> getWord32 <*> getWord16 <* skip 2
    <*> pure 0
    <*> getWord64
    <*> getWord64
    <*> pure match
getFlowRemoved V13 =
  FlowRemoved <$> getWord64 <*> getWord16 <*> getWord8 <*> getWord8 <*> getWord32 <*> getWord32 <*> getWord16 <*> getWord16
    <*> getWord64
    <*> getWord64
    <*> getMatch V13

getPacketOut :: Version -> Get PacketOut
getPacketOut version = do
  buffer <- BufferId <$> getWord32
  port <- getPort version
  len <- fromIntegral <$> getWord16
  skip (case version of V10 -> 0; V13 -> 6)
  actions <- isolate len (getActions version)
  PacketOut buffer port actions <$> getRest

getFlowMod :: Version -> Get FlowMod
getFlowMod V10 = do
  match <- getMatch V10
  cookie <- getWord64
  command <- getEnum BadCommand . fromIntegral =<< getWord16
  FlowMod cookie 0 0 command <$> getWord16 <*> getWord16 <*> getWord16 <*> (BufferId <$> getWord32) <*> getPort V10 <*> pure 0xffffffff
    <*> getWord16
    <*> pure match
    <*> getInstructions V10
getFlowMod V13 = do
  cookie <- getWord64
  mask <- getWord64
  table <- getWord8
  command <- getEnum BadCommand . fromIntegral =<< getWord8
  FlowMod cookie mask table command <$> getWord16 <*> getWord16 <*> getWord16 <*> (BufferId <$> getWord32) <*> getPort V13 <*> getWord32
    <*> getWord16
    <* skip 2
    <*> getMatch V13
    <*> getInstructions V13

-- PACKET_IN -----------------------------------------------------------------------------

-- | Decode a PACKET_IN, including its header.
decodePacketIn :: Version -> ByteString -> Either Problem PacketIn
decodePacketIn V10 s
  | B.length s < 18 = Left BadLength
  | otherwise =
    Right
      PacketIn
        { packetInBuffer = BufferId (word32At s 8),
          packetInTotal = word16At s 12,
          packetInPort = portFrom10 (word16At s 14),
          packetInReason = word8At s 16,
          packetInTable = 0,
          packetInCookie = 0,
          packetInFields = [],
          packetInData = B.unsafeDrop 18 s
        }
decodePacketIn V13 s
  | B.length s < 34 = Left BadLength
  -- A match of the port alone.
  | word32At s 24 == 0x0001000c && B.length s >= 42 && word32At s 28 == 0x80000004 =
    Right (packetIn13 s (PortNo (word32At s 32)) [] (B.unsafeDrop 42 s))
  | otherwise = do
    (fields, rest) <- runGet ((,) <$> getMatch V13 <* skip 2 <*> getRest) (B.unsafeDrop 24 s)
    case break isPort fields of
      (before, InPort port : after) -> Right (packetIn13 s port (before ++ after) rest)
      _ -> Right (packetIn13 s portAny fields rest)
  where
    isPort (InPort _) = True
    isPort _ = False
{-# INLINE decodePacketIn #-}

packetIn13 :: ByteString -> PortNo -> [Field] -> ByteString -> PacketIn
packetIn13 s port fields rest =
  PacketIn
    { packetInBuffer = BufferId (word32At s 8),
      packetInTotal = word16At s 12,
      packetInPort = port,
      packetInReason = word8At s 14,
      packetInTable = word8At s 15,
      packetInCookie = word64At s 16,
      packetInFields = fields,
      packetInData = rest
    }
{-# INLINE packetIn13 #-}
