-- |
-- Encoding messages. The size is known before the first byte is written, so messages are written directly into the
-- buffer that is sent.
module Weft.OpenFlow.Wire.Encode
  ( encode,
    putMessage,
    putHello,

    -- * The usual FLOW_MOD
    usualFlowSize,
    pokeUsualFlow,
  )
where

import Data.Bits (setBit)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.List (foldl')
import Data.Word (Word32, Word8)
import Foreign.Ptr (Ptr, plusPtr)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Action
import Weft.OpenFlow.Wire.Match
import Weft.OpenFlow.Wire.Put
import Weft.OpenFlow.Wire.Resources
import Weft.OpenFlow.Wire.Statistics

-- | Encode a message. 'Nothing' if the version has no such message, field or action, or if it would be longer than
-- 65,535 bytes.
encode :: Version -> Xid -> Message -> Maybe ByteString
encode version xid = tryRunPut . putMessage version xid

-- | A message with its header, for 'pokePut'.
putMessage :: Version -> Xid -> Message -> Put
putMessage version xid message = case message of
  Hello ws -> framed version 0 xid (hello ws)
  Error t c s -> framed version 1 xid (putWord16 t <> putWord16 c <> putBytes s)
  EchoRequest s -> framed version 2 xid (putBytes s)
  EchoReply s -> framed version 3 xid (putBytes s)
  Experimenter vendor s ->
    putUnless (version == V13 && B.length s < 4) (framed version 4 xid (putWord32 vendor <> putBytes s))
  FeaturesRequest -> framed version 5 xid mempty
  FeaturesReply f -> framed version 6 xid (putFeatures version f)
  GetConfigRequest -> framed version 7 xid mempty
  GetConfigReply c -> framed version 8 xid (config c)
  SetConfig c -> framed version 9 xid (config c)
  PacketInMessage p -> framed version 10 xid (putPacketIn version p)
  FlowRemovedMessage r -> framed version 11 xid (putFlowRemoved version r)
  PortStatus reason port -> framed version 12 xid (putWord8 (enum reason) <> putZeros 7 <> putPortEntry version port)
  PacketOutMessage p -> framed version 13 xid (putPacketOut version p)
  FlowModMessage f -> case usualFlowSize version f of
    0 -> framed version 14 xid (putFlowMod version f)
    n -> putRaw n (pokeUsualFlow version xid f n)
  GroupModMessage g -> only13 15 (putGroupMod g)
  PortModMessage p -> framed version (case version of V10 -> 15; V13 -> 16) xid (putPortMod version p)
  TableMod table c -> only13 17 (putTableMod table c)
  StatsRequestMessage more r -> framed version (16 + shift) xid (putStatsRequest version more r)
  StatsReplyMessage more r -> framed version (17 + shift) xid (putStatsReply version more r)
  BarrierRequest -> framed version (18 + shift) xid mempty
  BarrierReply -> framed version (19 + shift) xid mempty
  QueueConfigRequest p -> framed version (20 + shift) xid (putQueueRequest version p)
  QueueConfigReply p queues -> framed version (21 + shift) xid (putQueueReply version p queues)
  RoleRequest r generation -> only13 24 (role r generation)
  RoleReply r generation -> only13 25 (role r generation)
  GetAsyncRequest -> only13 26 mempty
  GetAsyncReply a -> only13 27 (async a)
  SetAsync a -> only13 28 (async a)
  MeterModMessage m -> only13 29 (putMeterMod m)
  where
    shift = case version of V10 -> 0; V13 -> 2
    only13 kind body = putUnless (version == V10) (framed version kind xid body)
    config c = putWord16 (configFlags c) <> putWord16 (configMissSendLen c)
    role r generation = putWord32 (enum r) <> putZeros 4 <> putWord64 generation
    async a = pair (asyncPacketIn a) <> pair (asyncPortStatus a) <> pair (asyncFlowRemoved a)
    pair (a, b) = putWord32 a <> putWord32 b

-- | A HELLO with the given version byte in its header and a bitmap of the given versions (1.3.5, 7.5.1).
putHello :: Word8 -> Xid -> [Version] -> Put
putHello byte xid versions = header byte 0 xid (hello [foldl' (\w v -> setBit w (fromIntegral (versionByte v))) 0 versions])

hello :: [Word32] -> Put
hello [] = mempty
hello ws = padTo8 (putWord16 1 <> putWord16 (fromIntegral (4 + 4 * length ws)) <> putAll putWord32 ws)

enum :: (Enum a, Num n) => a -> n
enum = fromIntegral . fromEnum

framed :: Version -> Word8 -> Xid -> Put -> Put
framed version = header (versionByte version)
{-# INLINE framed #-}

header :: Word8 -> Word8 -> Xid -> Put -> Put
header version kind xid body = case putSize body of
  Nothing -> unencodable
  Just n
    | n > 0xffff - 8 -> unencodable
    | otherwise -> putRaw (n + 8) $ \p -> do
      pokeHeaderOf version kind xid (n + 8) p
      pokePut body (p `plusPtr` 8)
{-# INLINE header #-}

-- | Write the header of a message, given its type, transaction ID and size in bytes.
pokeHeader :: Version -> Word8 -> Xid -> Int -> Ptr Word8 -> IO ()
pokeHeader version = pokeHeaderOf (versionByte version)
{-# INLINE pokeHeader #-}

pokeHeaderOf :: Word8 -> Word8 -> Xid -> Int -> Ptr Word8 -> IO ()
pokeHeaderOf version kind xid size p = do
  poke16 p 0 (fromIntegral version * 256 + fromIntegral kind)
  poke16 p 2 (fromIntegral size)
  poke32 p 4 xid
{-# INLINE pokeHeaderOf #-}

putFeatures :: Version -> Features -> Put
putFeatures version f = putWord64 datapath <> putWord32 (featuresBuffers f) <> putWord8 (featuresTables f) <> rest
  where
    DatapathId datapath = featuresDatapath f
    rest = case version of
      V10 ->
        putZeros 3 <> putWord32 (featuresCapabilities f) <> putWord32 (featuresActions f)
          <> putAll (putPortEntry V10) (featuresPorts f)
      V13 -> putWord8 (featuresAuxiliary f) <> putZeros 2 <> putWord32 (featuresCapabilities f) <> putZeros 4

putPacketIn :: Version -> PacketIn -> Put
putPacketIn version p = buffer <> putWord16 (packetInTotal p) <> rest <> putBytes (packetInData p)
  where
    buffer = let BufferId n = packetInBuffer p in putWord32 n
    rest = case version of
      V10 -> putPort V10 (packetInPort p) <> putWord8 (packetInReason p) <> putZeros 1
      V13 ->
        putWord8 (packetInReason p) <> putWord8 (packetInTable p) <> putWord64 (packetInCookie p)
          <> putMatch V13 (InPort (packetInPort p) : packetInFields p)
          <> putZeros 2

putFlowRemoved :: Version -> FlowRemoved -> Put
putFlowRemoved version r = case version of
  V10 -> putMatch V10 (removedMatch r) <> start <> putZeros 1 <> times <> putZeros 2 <> counters
  V13 ->
    start <> putWord8 (removedTable r) <> times <> putWord16 (removedHardTimeout r) <> counters
      <> putMatch V13 (removedMatch r)
  where
    start = putWord64 (removedCookie r) <> putWord16 (removedPriority r) <> putWord8 (removedReason r)
    times = putWord32 (removedSeconds r) <> putWord32 (removedNanoseconds r) <> putWord16 (removedIdleTimeout r)
    counters = putWord64 (removedPackets r) <> putWord64 (removedBytes r)

putPacketOut :: Version -> PacketOut -> Put
putPacketOut V10 (PacketOut (BufferId buffer) (PortNo from) actions s)
  | null actions && B.null s && (from < 0xfff8 || from >= 0xfffffff8) = putRaw 8 $ \p -> do
    poke32 p 0 buffer
    poke16 p 4 (fromIntegral from)
    poke16 p 6 0
putPacketOut version p = case putSize actions of
  Nothing -> unencodable
  Just n ->
    putUnless (n > 0xfff0) $
      putWord32 buffer <> putPort version (packetOutInPort p) <> putWord16 (fromIntegral n)
        <> putZeros (case version of V10 -> 0; V13 -> 6)
        <> actions
        <> putBytes (packetOutData p)
  where
    BufferId buffer = packetOutBuffer p
    actions = putActions version (packetOutActions p)

putFlowMod :: Version -> FlowMod -> Put
putFlowMod V10 f =
  putMatch V10 (flowMatch f)
    <> putUnless (port >= 0xfff8 && port < 0xfffffff8) (putRaw 24 (pokeFlowFixed V10 f))
    <> putInstructions V10 (flowInstructions f)
  where
    PortNo port = flowOutPort f
putFlowMod V13 f = putRaw 40 (pokeFlowFixed V13 f) <> putMatch V13 (flowMatch f) <> putInstructions V13 (flowInstructions f)

-- | The part of a FLOW_MOD with a fixed layout: after the match in 1.0, before it in 1.3.
pokeFlowFixed :: Version -> FlowMod -> Ptr Word8 -> IO ()
pokeFlowFixed V10 f p = do
  poke64 p 0 (flowCookie f)
  poke16 p 8 (enum (flowCommand f))
  poke16 p 10 (flowIdleTimeout f)
  poke16 p 12 (flowHardTimeout f)
  poke16 p 14 (flowPriority f)
  poke32 p 16 (bufferNumber (flowBuffer f))
  poke16 p 20 (fromIntegral port)
  poke16 p 22 (flowFlags f)
  where
    PortNo port = flowOutPort f
pokeFlowFixed V13 f p = do
  poke64 p 0 (flowCookie f)
  poke64 p 8 (flowCookieMask f)
  poke16 p 16 ((fromIntegral (flowTable f) * 256) + enum (flowCommand f))
  poke16 p 18 (flowIdleTimeout f)
  poke16 p 20 (flowHardTimeout f)
  poke16 p 22 (flowPriority f)
  poke32 p 24 (bufferNumber (flowBuffer f))
  poke32 p 28 port
  poke32 p 32 (flowOutGroup f)
  poke16 p 36 (flowFlags f)
  poke16 p 38 0
  where
    PortNo port = flowOutPort f

-- The usual FLOW_MOD ----------------------------------------------------------------------

-- | The size of a FLOW_MOD of the usual form, with its header: a match that the version can express, and one output or
-- none. 0 for any other FLOW_MOD. A busy controller sends a million a second, nearly all of this form.
usualFlowSize :: Version -> FlowMod -> Int
usualFlowSize version f = case oneOutput (flowInstructions f) of
  Nothing -> 0
  Just action -> case version of
    V10
      | expressible10 (flowMatch f),
        portIn10 (flowOutPort f) -> case action of
        Nothing -> 72
        Just (Output to _) | portIn10 to -> 80
        _ -> 0
      | otherwise -> 0
    V13
      | match < 0 || match > 0xff00 -> 0
      | otherwise -> maybe (48 + match) (const (72 + match)) action
  where
    match = matchSize13 (flowMatch f)
    portIn10 (PortNo n) = n < 0xfff8 || n >= 0xfffffff8

-- | Write a FLOW_MOD of the usual form, given its 'usualFlowSize'.
pokeUsualFlow :: Version -> Xid -> FlowMod -> Int -> Ptr Word8 -> IO ()
pokeUsualFlow version xid f size p = do
  pokeHeader version 14 xid size p
  case version of
    V10 -> do
      pokeMatch10 (flowMatch f) (p `plusPtr` 8)
      pokeFlowFixed V10 f (p `plusPtr` 48)
      case oneOutput (flowInstructions f) of
        Just (Just (Output (PortNo to) most)) -> do
          poke16 p 72 0
          poke16 p 74 8
          poke16 p 76 (fromIntegral to)
          poke16 p 78 most
        _ -> pure ()
    V13 -> do
      pokeFlowFixed V13 f (p `plusPtr` 8)
      pokeMatch13 (flowMatch f) (p `plusPtr` 48)
      case oneOutput (flowInstructions f) of
        Just (Just (Output (PortNo to) most)) -> do
          let q = p `plusPtr` (size - 24)
          poke32 q 0 0x00040018
          poke32 q 4 0
          poke32 q 8 16
          poke32 q 12 to
          poke16 q 16 most
          poke16 q 18 0
          poke32 q 20 0
        _ -> pure ()

-- | The action of instructions that consist of at most one output; 'Nothing' for others.
oneOutput :: [Instruction] -> Maybe (Maybe Action)
oneOutput instructions = case instructions of
  [] -> Just Nothing
  [ApplyActions [a@(Output _ _)]] -> Just (Just a)
  _ -> Nothing
{-# INLINE oneOutput #-}

bufferNumber :: BufferId -> Word32
bufferNumber (BufferId n) = n
