-- |
-- Bodies of STATS (1.0.1, 5.3.5) and MULTIPART (1.3.5, 7.3.5), and the structure of a port, which PORT_STATUS and port
-- descriptions share.
module Weft.OpenFlow.Wire.Statistics
  ( putStatsRequest,
    getStatsRequest,
    putStatsReply,
    getStatsReply,
    putPortEntry,
    getPortEntry,
  )
where

import Control.Monad (replicateM)
import Data.Bits (testBit)
import Data.ByteString.Short (fromShort, toShort)
import Data.Word (Word16)
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Action
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Match
import Weft.OpenFlow.Wire.Put

-- Requests ------------------------------------------------------------------------------

-- | Write the type, the flags and the body of a request, or of a part of it: 'True' if more parts follow. In 1.0 none
-- can.
putStatsRequest :: Version -> Bool -> StatsRequest -> Put
putStatsRequest version more request = putUnless (more && version == V10) $ case request of
  DescRequest -> envelope version 0 more mempty
  FlowStatsRequest f -> envelope version 1 more (putFilter version f)
  TableStatsRequest -> envelope version 3 more mempty
  PortStatsRequest p -> envelope version 4 more $ case version of
    V10 -> putPort V10 p <> putZeros 6
    V13 -> putPort V13 p <> putZeros 4
  PortDescRequest -> putUnless (version == V10) (envelope version 13 more mempty)
  OtherStatsRequest kind body -> envelope version kind more (putBytes body)

envelope :: Version -> Word16 -> Bool -> Put -> Put
envelope version kind more body = putWord16 kind <> putWord16 (if more then 1 else 0) <> putZeros (gap version) <> body

gap :: Version -> Int
gap V10 = 0
gap V13 = 4

putFilter :: Version -> FlowFilter -> Put
putFilter V10 f = putMatch V10 (filterMatch f) <> putWord8 (filterTable f) <> putZeros 1 <> putPort V10 (filterOutPort f)
putFilter V13 f =
  putWord8 (filterTable f)
    <> putZeros 3
    <> putPort V13 (filterOutPort f)
    <> putWord32 (filterOutGroup f)
    <> putZeros 4
    <> putWord64 (filterCookie f)
    <> putWord64 (filterCookieMask f)
    <> putMatch V13 (filterMatch f)

-- | Read the type, the flags and the body of a request. The flags of 1.0 have no meaning.
getStatsRequest :: Version -> Get (Bool, StatsRequest)
getStatsRequest version = do
  kind <- getWord16
  flags <- getWord16 <* skip (gap version)
  (,) (version == V13 && testBit flags 0) <$> case kind of
    0 -> pure DescRequest
    1 -> FlowStatsRequest <$> getFilter version
    3 -> pure TableStatsRequest
    4 -> case version of
      V10 -> PortStatsRequest <$> getPort V10 <* skip 6
      V13 -> PortStatsRequest <$> getPort V13 <* skip 4
    13 | version == V13 -> pure PortDescRequest
    _ -> OtherStatsRequest kind <$> getRest

getFilter :: Version -> Get FlowFilter
getFilter V10 = do
  match <- getMatch V10
  table <- getWord8 <* skip 1
  port <- getPort V10
  pure (FlowFilter table port 0xffffffff 0 0 match)
getFilter V13 =
  FlowFilter <$> getWord8 <* skip 3 <*> getPort V13 <*> getWord32 <* skip 4 <*> getWord64 <*> getWord64 <*> getMatch V13

-- Replies -------------------------------------------------------------------------------

-- | Write the type, the flags and the body of a reply. The 'Bool': more parts of the reply follow.
putStatsReply :: Version -> Bool -> StatsReply -> Put
putStatsReply version more reply = case reply of
  DescReply d -> envelope version 0 more (putDescription d)
  FlowStatsReply fs -> envelope version 1 more (putAll (putFlowStats version) fs)
  TableStatsReply ts -> envelope version 3 more (putAll (putTableStats version) ts)
  PortStatsReply ps -> envelope version 4 more (putAll (putPortStats version) ps)
  PortDescReply ps -> putUnless (version == V10) (envelope version 13 more (putAll (putPortEntry version) ps))
  OtherStatsReply kind body -> envelope version kind more (putBytes body)

-- | Read a reply: whether more parts follow, and the body.
getStatsReply :: Version -> Get (Bool, StatsReply)
getStatsReply version = do
  kind <- getWord16
  flags <- getWord16
  skip (gap version)
  body <- case kind of
    0 -> DescReply <$> getDescription
    1 -> FlowStatsReply <$> untilEnd (getFlowStats version)
    3 -> TableStatsReply <$> untilEnd (getTableStats version)
    4 -> PortStatsReply <$> untilEnd (getPortStats version)
    13 | version == V13 -> PortDescReply <$> untilEnd (getPortEntry version)
    _ -> OtherStatsReply kind <$> getRest
  pure (odd flags, body)

putDescription :: Description -> Put
putDescription d =
  putText 256 (descManufacturer d)
    <> putText 256 (descHardware d)
    <> putText 256 (descSoftware d)
    <> putText 32 (descSerial d)
    <> putText 256 (descDatapath d)

getDescription :: Get Description
getDescription = Description <$> getText 256 <*> getText 256 <*> getText 256 <*> getText 32 <*> getText 256

putFlowStats :: Version -> FlowStats -> Put
putFlowStats version f = case putSize rest of
  Nothing -> unencodable
  Just n ->
    putUnless (n > 0xff00) (putWord16 (fromIntegral (n + 4)) <> putWord8 (flowStatsTable f) <> putZeros 1 <> rest)
  where
    rest = case version of
      V10 -> putMatch V10 (flowStatsMatch f) <> times <> putZeros 6 <> counters <> instructions
      V13 -> times <> putWord16 (flowStatsFlags f) <> putZeros 4 <> counters <> putMatch V13 (flowStatsMatch f) <> instructions
    times =
      putWord32 (flowStatsSeconds f)
        <> putWord32 (flowStatsNanoseconds f)
        <> putWord16 (flowStatsPriority f)
        <> putWord16 (flowStatsIdleTimeout f)
        <> putWord16 (flowStatsHardTimeout f)
    counters = putWord64 (flowStatsCookie f) <> putWord64 (flowStatsPackets f) <> putWord64 (flowStatsBytes f)
    instructions = putInstructions version (flowStatsInstructions f)

getFlowStats :: Version -> Get FlowStats
getFlowStats version = do
  len <- fromIntegral <$> getWord16
  isolate (len - 2) $ do
    table <- getWord8 <* skip 1
    case version of
      V10 -> do
        match <- getMatch V10
        FlowStats table <$> getWord32 <*> getWord32 <*> getWord16 <*> getWord16 <*> getWord16 <* skip 6 <*> pure 0
          <*> getWord64
          <*> getWord64
          <*> getWord64
          <*> pure match
          <*> getInstructions V10
      V13 ->
        FlowStats table <$> getWord32 <*> getWord32 <*> getWord16 <*> getWord16 <*> getWord16 <*> getWord16 <* skip 4
          <*> getWord64
          <*> getWord64
          <*> getWord64
          <*> getMatch V13
          <*> getInstructions V13

putTableStats :: Version -> TableStats -> Put
putTableStats version t = putWord8 (tableStatsId t) <> putZeros 3 <> names <> putWord32 (tableStatsActive t) <> counters
  where
    names = case version of
      V10 -> putText 32 (tableStatsName t) <> putWord32 (tableStatsWildcards t) <> putWord32 (tableStatsMax t)
      V13 -> mempty
    counters = putWord64 (tableStatsLookups t) <> putWord64 (tableStatsMatched t)

getTableStats :: Version -> Get TableStats
getTableStats version = do
  table <- getWord8 <* skip 3
  case version of
    V10 -> TableStats table <$> getText 32 <*> getWord32 <*> getWord32 <*> getWord32 <*> getWord64 <*> getWord64
    V13 -> TableStats table mempty 0 0 <$> getWord32 <*> getWord64 <*> getWord64

putPortStats :: Version -> PortStats -> Put
putPortStats version p = case version of
  V10 -> putPort V10 (portStatsPort p) <> putZeros 6 <> counters
  V13 -> putPort V13 (portStatsPort p) <> putZeros 4 <> counters <> putWord32 seconds <> putWord32 nanoseconds
  where
    counters = putUnless (length (portStatsCounters p) /= 12) (putAll putWord64 (portStatsCounters p))
    (seconds, nanoseconds) = portStatsUptime p

getPortStats :: Version -> Get PortStats
getPortStats version = case version of
  V10 -> PortStats <$> getPort V10 <* skip 6 <*> replicateM 12 getWord64 <*> pure (0, 0)
  V13 -> PortStats <$> getPort V13 <* skip 4 <*> replicateM 12 getWord64 <*> ((,) <$> getWord32 <*> getWord32)

-- Ports ---------------------------------------------------------------------------------

-- | Write the structure of a port: 48 bytes in 1.0, 64 in 1.3.
putPortEntry :: Version -> Port -> Put
putPortEntry version p = case version of
  V10 -> putPort V10 (portNumber p) <> putMac (portAddress p) <> common
  V13 ->
    putPort V13 (portNumber p) <> putZeros 4 <> putMac (portAddress p) <> putZeros 2 <> common <> putWord32 now <> putWord32 best
  where
    common =
      putText 16 (fromShort (portName p)) <> putWord32 (portConfig p) <> putWord32 (portState p)
        <> putWord32 current
        <> putWord32 advertised
        <> putWord32 supported
        <> putWord32 peer
    (current, advertised, supported, peer) = portFeatures p
    (now, best) = portSpeeds p

-- | Read the structure of a port.
getPortEntry :: Version -> Get Port
getPortEntry version = case version of
  V10 -> Port <$> getPort V10 <*> getMac <*> name <*> getWord32 <*> getWord32 <*> features <*> pure (0, 0)
  V13 ->
    Port <$> getPort V13 <* skip 4 <*> getMac <* skip 2 <*> name <*> getWord32 <*> getWord32 <*> features
      <*> ((,) <$> getWord32 <*> getWord32)
  where
    name = toShort <$> getText 16
    features = (,,,) <$> getWord32 <*> getWord32 <*> getWord32 <*> getWord32
