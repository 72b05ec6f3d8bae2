-- |
-- Writing messages. The size is known before the first byte is written, so that messages go one behind the other into
-- the memory that is sent.
module Weft.OpenFlow.Wire.Encode
  ( encode,
    putMessage,
    putHello,
  )
where

import Data.Bits (setBit)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.List (foldl')
import Data.Word (Word32, Word8)
import Foreign.Ptr (plusPtr)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Action
import Weft.OpenFlow.Wire.Match
import Weft.OpenFlow.Wire.Put
import Weft.OpenFlow.Wire.Statistics

-- | A whole message. 'Nothing': the version has no such message, field or action, or it is longer than 65535 bytes.
encode :: Version -> Xid -> Message -> Maybe ByteString
encode version xid = runPut . putMessage version xid

-- | A whole message with its header, for 'pokePut'.
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
  FlowModMessage f -> framed version 14 xid (putFlowMod version f)
  StatsRequestMessage r -> framed version (16 + shift) xid (putStatsRequest version r)
  StatsReplyMessage more r -> framed version (17 + shift) xid (putStatsReply version more r)
  BarrierRequest -> framed version (18 + shift) xid mempty
  BarrierReply -> framed version (19 + shift) xid mempty
  RoleRequest r generation -> only13 24 (role r generation)
  RoleReply r generation -> only13 25 (role r generation)
  GetAsyncRequest -> only13 26 mempty
  GetAsyncReply a -> only13 27 (async a)
  SetAsync a -> only13 28 (async a)
  where
    shift = case version of V10 -> 0; V13 -> 2
    only13 kind body = putUnless (version == V10) (framed version kind xid body)
    config c = putWord16 (configFlags c) <> putWord16 (configMissSendLen c)
    role r generation = putWord32 (enum r) <> putZeros 4 <> putWord64 generation
    async a = pair (asyncPacketIn a) <> pair (asyncPortStatus a) <> pair (asyncFlowRemoved a)
    pair (a, b) = putWord32 a <> putWord32 b

-- | A HELLO with any version in its header and these words of a version bitmap (1.3.5, 7.5.1).
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
      poke16 p 0 (fromIntegral version * 256 + fromIntegral kind)
      poke16 p 2 (fromIntegral (n + 8))
      poke32 p 4 xid
      pokePut body (p `plusPtr` 8)
{-# INLINE header #-}

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

-- | A FLOW_MOD, of which a busy controller sends a million a second. Where it has the usual form, a match that is
-- checked before and nothing but one output, its writer is a single closure.
putFlowMod :: Version -> FlowMod -> Put
putFlowMod V10 f
  | Just n <- oneOutput (flowInstructions f),
    port < 0xfff8 || port >= 0xfffffff8,
    expressible10 (flowMatch f) = case n of
    Just (Output (PortNo to) most)
      | to < 0xfff8 || to >= 0xfffffff8 -> putRaw 72 $ \p -> do
        start p
        poke16 p 64 0
        poke16 p 66 8
        poke16 p 68 (fromIntegral to)
        poke16 p 70 most
    Nothing -> putRaw 64 start
    _ -> unencodable
  | otherwise = putMatch V10 (flowMatch f) <> putUnless (port >= 0xfff8 && port < 0xfffffff8) (putRaw 24 fixed) <> putInstructions V10 (flowInstructions f)
  where
    PortNo port = flowOutPort f
    start p = pokeMatch10 (flowMatch f) p >> fixed (p `plusPtr` 40)
    fixed p = do
      poke64 p 0 (flowCookie f)
      poke16 p 8 (enum (flowCommand f))
      poke16 p 10 (flowIdleTimeout f)
      poke16 p 12 (flowHardTimeout f)
      poke16 p 14 (flowPriority f)
      poke32 p 16 (bufferNumber (flowBuffer f))
      poke16 p 20 (fromIntegral port)
      poke16 p 22 (flowFlags f)
putFlowMod V13 f = case oneOutput (flowInstructions f) of
  Just n | match >= 0 -> case n of
    Just (Output (PortNo to) most) -> putRaw (64 + match) $ \p -> do
      start p
      let q = p `plusPtr` (40 + match)
      poke32 q 0 0x00040018
      poke32 q 4 0
      poke32 q 8 16
      poke32 q 12 to
      poke16 q 16 most
      poke16 q 18 0
      poke32 q 20 0
    _ -> putRaw (40 + match) start
  _ -> putRaw 40 fixed <> putMatch V13 (flowMatch f) <> putInstructions V13 (flowInstructions f)
  where
    match = matchSize13 (flowMatch f)
    PortNo port = flowOutPort f
    start p = fixed p >> pokeMatch13 (flowMatch f) (p `plusPtr` 40)
    fixed p = do
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

-- | Nothing to do, or one output; 'Nothing' for all else.
oneOutput :: [Instruction] -> Maybe (Maybe Action)
oneOutput instructions = case instructions of
  [] -> Just Nothing
  [ApplyActions [a@(Output _ _)]] -> Just (Just a)
  _ -> Nothing

bufferNumber :: BufferId -> Word32
bufferNumber (BufferId n) = n
