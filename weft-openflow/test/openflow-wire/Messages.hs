-- |
-- Generators of well-formed messages, which a switch accepts without an ERROR for their form.
module Messages
  ( genMessage,
    genVersion,
    shrinkBytes,
    kinds,
  )
where

import Data.Bits (complement, shiftL, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.ByteString.Short (toShort)
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word32, Word64)
import Test.QuickCheck hiding ((.&.))
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire (encode)

genVersion :: Gen Version
genVersion = elements [V10, V13]

-- | A message of one of the 'kinds'.
genMessage :: Version -> Gen Message
genMessage version = oneof (map snd (kinds version))

-- | Each kind of message that a version has, by name.
kinds :: Version -> [(String, Gen Message)]
kinds version =
  [ ("hello", case version of V10 -> pure (Hello []); V13 -> elements [Hello [], Hello [0x12]]),
    -- An ERROR contains the message that caused it.
    ("error", (\c s -> Error 1 c (fromMaybe B.empty (encode version 1 (EchoRequest s)))) <$> choose (0, 6) <*> bytes 40),
    ("echo request", EchoRequest <$> bytes 40),
    ("echo reply", EchoReply <$> bytes 40),
    ("features request", pure FeaturesRequest),
    ("features reply", FeaturesReply <$> genFeatures version),
    ("get config request", pure GetConfigRequest),
    ("get config reply", GetConfigReply <$> genConfig),
    ("set config", SetConfig <$> genConfig),
    ("packet in", PacketInMessage <$> genPacketIn version),
    ("flow removed", FlowRemovedMessage <$> genFlowRemoved version),
    ("port status", PortStatus <$> arbitraryBoundedEnum <*> genPort version),
    ("packet out", PacketOutMessage <$> genPacketOut version),
    ("flow mod", FlowModMessage <$> genFlowMod version),
    ("port mod", PortModMessage <$> (PortMod <$> physical <*> mac <*> choose (0, 0x7f) <*> choose (0, 0x7f) <*> choose (0, 0x7f))),
    ("queue request", QueueConfigRequest <$> elements (PortNo 1 : [portAny | version == V13])),
    ("queue reply", QueueConfigReply <$> physical <*> short (genQueue version)),
    ("description request", pure (StatsRequestMessage False DescRequest)),
    ("flow request", StatsRequestMessage False . FlowStatsRequest <$> genFilter version),
    ("table request", pure (StatsRequestMessage False TableStatsRequest)),
    ("port request", StatsRequestMessage False . PortStatsRequest <$> elements [PortNo 1, portAny]),
    ("description", reply (DescReply <$> genDescription)),
    ("flows", reply (FlowStatsReply <$> short (genFlowStats version))),
    ("tables", reply (TableStatsReply <$> short (genTableStats version))),
    ("ports", reply (PortStatsReply <$> short (genPortStats version))),
    ("barrier request", pure BarrierRequest),
    ("barrier reply", pure BarrierReply)
  ]
    ++ case version of
      V10 -> []
      V13 ->
        [ ("group mod", GroupModMessage <$> genGroupMod),
          ("meter mod", MeterModMessage <$> genMeterMod),
          ("table mod", TableMod <$> chooseAny <*> elements [0, 3]),
          ("a part of a table features request", pure (StatsRequestMessage True (OtherStatsRequest 12 B.empty))),
          ("port description request", pure (StatsRequestMessage False PortDescRequest)),
          ("port descriptions", reply (PortDescReply <$> short (genPort V13))),
          ("role request", RoleRequest <$> arbitraryBoundedEnum <*> number),
          ("role reply", RoleReply <$> arbitraryBoundedEnum <*> number),
          ("async request", pure GetAsyncRequest),
          ("async reply", GetAsyncReply <$> genAsync),
          ("async", SetAsync <$> genAsync)
        ]
  where
    reply g = StatsReplyMessage <$> arbitrary <*> g

shrinkBytes :: ByteString -> [ByteString]
shrinkBytes = map B.pack . shrink . B.unpack

bytes :: Int -> Gen ByteString
bytes n = choose (0, n) >>= fmap B.pack . vector

text :: Int -> Gen ByteString
text n = choose (0, n) >>= fmap BC.pack . (`vectorOf` choose ('a', 'z'))

short :: Gen a -> Gen [a]
short g = choose (0, 4) >>= (`vectorOf` g)

number :: Gen Word64
number = chooseAny

word :: Gen Word32
word = chooseAny

half :: Gen Word16
half = chooseAny

mac :: Gen MacAddress
mac = MacAddress <$> choose (0, 0xffffffffffff)

physical :: Gen PortNo
physical = PortNo <$> choose (1, 0xfe00)

genFeatures :: Version -> Gen Features
genFeatures version = do
  datapath <- DatapathId <$> number
  buffers <- word
  count <- chooseAny
  case version of
    V10 -> Features datapath buffers count 0 0xc7 0xfff <$> short (genPort V10)
    V13 -> pure (Features datapath buffers count 0 0x4f 0 [])

genConfig :: Gen SwitchConfig
genConfig = SwitchConfig <$> choose (0, 2) <*> half

genPacketIn :: Version -> Gen PacketIn
genPacketIn version = do
  payload <- bytes 128
  buffer <- elements [BufferId 77, noBuffer]
  port <- physical
  let len = fromIntegral (B.length payload)
  case version of
    V10 -> pure (PacketIn buffer len port 1 0 0 [] payload)
    V13 -> do
      cookie <- number
      fields <- elements [[], [OtherField 0x8000 4 (B.pack [0, 0, 0, 0, 0, 0, 1, 2])]]
      pure (PacketIn buffer len port 1 3 cookie fields payload)

genPacketOut :: Version -> Gen PacketOut
genPacketOut version = do
  actions <- genActions version
  port <- oneof [physical, pure portController]
  buffered <- arbitrary
  PacketOut (if buffered then BufferId 12 else noBuffer) port actions <$> if buffered then pure B.empty else bytes 80

-- | A match in which each field follows its prerequisites.
genMatch :: Version -> Gen Match
genMatch _ = do
  link <- concat <$> sequence [optional (InPort <$> physical), optional (EthDst <$> mac), optional (EthSrc <$> mac)]
  network <- frequency [(2, pure []), (2, other), (3, internet)]
  pure (link ++ network)
  where
    optional g = oneof [pure [], pure <$> g]
    other = (\t -> [EthType t]) <$> elements [0x88cc, 0x86dd]
    internet = do
      vlan <- frequency [(3, pure []), (1, pure [VlanId Untagged]), (1, tag)]
      dscp <- optional (IpDscp <$> choose (0, 63))
      addresses <- (++) <$> optional (address Ipv4Src) <*> optional (address Ipv4Dst)
      upper <- oneof [pure Nothing, Just <$> transport]
      pure ([EthType 0x0800] ++ vlan ++ dscp ++ maybe [] (take 1) upper ++ addresses ++ maybe [] (drop 1) upper)
    tag = (\v p -> [VlanId (Tagged v), VlanPriority p]) <$> choose (0, 4095) <*> choose (0, 7)
    address f = do
      len <- choose (1, 32 :: Int)
      let mask = complement 0 `shiftL` (32 - len)
      (\a -> f (a .&. mask) mask) <$> word
    transport =
      oneof
        [ (IpProtocol 6 :) . concat <$> sequence [optional (TcpSrc <$> half), optional (TcpDst <$> half)],
          (IpProtocol 17 :) . concat <$> sequence [optional (UdpSrc <$> half), optional (UdpDst <$> half)],
          (IpProtocol 1 :) . concat <$> sequence [optional (IcmpType <$> chooseAny), optional (IcmpCode <$> chooseAny)]
        ]

genActions :: Version -> Gen [Action]
genActions version = choose (0, 4) >>= (`vectorOf` oneof (both ++ own))
  where
    both =
      [ Output <$> oneof [physical, elements [portFlood, portAll, portInPort, portController, portNormal]] <*> choose (0, 0xff),
        SetField . EthSrc <$> mac,
        SetField . EthDst <$> mac
      ]
    own = case version of
      V10 ->
        [ SetField . VlanId . Tagged <$> choose (0, 4095),
          SetField . VlanPriority <$> choose (0, 7),
          pure PopVlan,
          SetField . (`Ipv4Src` exactIp) <$> word,
          SetField . (`Ipv4Dst` exactIp) <$> word,
          SetField . IpDscp <$> choose (0, 63),
          SetField . TcpSrc <$> half,
          SetField . TcpDst <$> half,
          Enqueue <$> physical <*> word
        ]
      V13 -> [SetQueue <$> word, Group <$> choose (0, 0xffffff00)]

genInstructions :: Version -> Gen [Instruction]
genInstructions V10 = (\as -> [ApplyActions as | not (null as)]) <$> genActions V10
genInstructions V13 = concat <$> mapM optional each
  where
    optional g = oneof [pure [], pure <$> g]
    -- In the order that the specification gives them.
    each =
      [ ApplyActions <$> genActions V13,
        pure ClearActions,
        WriteActions <$> (take 1 <$> genActions V13),
        WriteMetadata <$> number <*> number,
        GotoTable <$> choose (1, 254)
      ]

genFlowMod :: Version -> Gen FlowMod
genFlowMod version = do
  cookie <- number
  command <- arbitraryBoundedEnum
  idle <- half
  hard <- half
  priority <- half
  buffer <- elements [noBuffer, BufferId 9]
  port <- oneof [pure portAny, physical]
  flags <- choose (0, 3)
  match <- genMatch version
  instructions <- genInstructions version
  let flow = FlowMod cookie 0 0 command idle hard priority buffer port 0xffffffff flags match instructions
  pure $ case version of
    V10 -> flow
    V13 -> flow {flowCookieMask = 0xff, flowTable = 0}

genFlowRemoved :: Version -> Gen FlowRemoved
genFlowRemoved version = do
  removed <-
    FlowRemoved <$> number <*> half <*> choose (0, 2) <*> pure 0 <*> word <*> choose (0, 999999999) <*> half <*> pure 0
      <*> number
      <*> number
      <*> genMatch version
  pure $ case version of
    V10 -> removed
    V13 -> removed {removedTable = 3, removedHardTimeout = 7}

genPort :: Version -> Gen Port
genPort version = do
  port <-
    Port <$> physical <*> mac <*> (toShort <$> text 15) <*> elements [0, 1] <*> elements [0, 1]
      <*> ((,,,) <$> bits <*> bits <*> bits <*> bits)
      <*> pure (0, 0)
  case version of
    V10 -> pure port
    V13 -> (\a b -> port {portSpeeds = (a, b)}) <$> word <*> word
  where
    bits = choose (0, 0x7f)

genGroupMod :: Gen GroupMod
genGroupMod = do
  command <- arbitraryBoundedEnum
  kind <- arbitraryBoundedEnum
  buckets <- case (command, kind) of
    (ResourceDelete, _) -> pure []
    (_, GroupIndirect) -> vectorOf 1 (bucket kind)
    _ -> short (bucket kind)
  (\n -> GroupMod command kind n buckets) <$> choose (0, 0xffffff00)
  where
    bucket kind =
      Bucket <$> (if kind == GroupSelect then choose (1, 100) else pure 0)
        <*> (if kind == GroupFastFailover then physical else pure portAny)
        <*> pure 0xffffffff
        <*> genActions V13

genMeterMod :: Gen MeterMod
genMeterMod = do
  command <- arbitraryBoundedEnum
  bands <- if command == ResourceDelete then pure [] else choose (1, 4) >>= (`vectorOf` oneof [DropBand <$> word <*> word, RemarkBand <$> word <*> word <*> chooseAny])
  (\flags n -> MeterMod command flags n bands) <$> elements [1, 2, 5, 13] <*> choose (1, 0xffff0000)

genQueue :: Version -> Gen Queue
genQueue version = Queue <$> word <*> (case version of V10 -> pure portAny; V13 -> physical) <*> (concat <$> sequence properties)
  where
    properties = optional (MinRate <$> choose (0, 1000)) : [optional (MaxRate <$> choose (0, 1000)) | version == V13]
    optional g = oneof [pure [], pure <$> g]

genAsync :: Gen AsyncConfig
genAsync = AsyncConfig <$> pair <*> pair <*> pair
  where
    pair = (,) <$> choose (0, 7) <*> choose (0, 7)

genFilter :: Version -> Gen FlowFilter
genFilter version = do
  match <- genMatch version
  port <- elements [portAny, PortNo 3]
  pure $ case version of
    V10 -> FlowFilter tableAll port 0xffffffff 0 0 match
    V13 -> FlowFilter tableAll port 0xffffffff 5 0xff match

genDescription :: Gen Description
genDescription = Description <$> text 255 <*> text 255 <*> text 255 <*> text 31 <*> text 255

genFlowStats :: Version -> Gen FlowStats
genFlowStats version = do
  stats <-
    FlowStats 0 <$> word <*> choose (0, 999999999) <*> half <*> half <*> half <*> pure 0 <*> number <*> number <*> number
      <*> genMatch version
      <*> genInstructions version
  pure $ case version of
    V10 -> stats
    V13 -> stats {flowStatsFlags = 1}

genTableStats :: Version -> Gen TableStats
genTableStats V10 = TableStats <$> chooseAny <*> text 31 <*> choose (0, 0x3fffff) <*> word <*> word <*> number <*> number
genTableStats V13 = (\t -> TableStats t mempty 0 0) <$> chooseAny <*> word <*> number <*> number

genPortStats :: Version -> Gen PortStats
genPortStats version = do
  stats <- PortStats <$> physical <*> vectorOf 12 number <*> pure (0, 0)
  case version of
    V10 -> pure stats
    V13 -> (\a b -> stats {portStatsUptime = (a, b)}) <$> word <*> choose (0, 999999999)
