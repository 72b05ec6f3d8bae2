{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- Matches as JSON, in both directions: each match that is shown can be sent. Pure.
module Weft.OpenFlow.Northbound.Match
  ( -- * Matches
    matchJson,
    fieldsJson,
    matchOf,
    missingPrerequisite,

    -- * Values
    portJson,
    portOf,
    numberOf,
    ipv4Text,
    hexText,

    -- * Objects
    onlyFields,
  )
where

import Control.Monad (unless, when)
import Data.Aeson
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Aeson.Types (JSONPathElement (Key), Parser, parseMaybe)
import Data.Bits (complement, shiftL, shiftR, testBit, (.&.), (.|.))
import qualified Data.ByteString as B
import Data.Char (digitToInt, isDigit, isHexDigit)
import Data.Foldable (foldl')
import Data.List (intercalate, sortOn)
import Data.Maybe (isJust, listToMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import Data.Word (Word16, Word32, Word8)
import Numeric (showHex)
import Text.Read (readMaybe)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Match (fieldFits, fieldOf, isPrefix, oxmOf)

-- Encoding --------------------------------------------------------------------------------

-- | The match of a flow as an object. A field whose mask is 0 is left out, since it matches all packets. So are fields
-- that a switch of 1.0 ignores (1.0.1, 5.2.3): IP fields without their prerequisites, and the priority of no VLAN tag.
matchJson :: Version -> Match -> Value
matchJson version match = fieldsJson (filter (\field -> not (hasZeroMask field || ignored field)) match)
  where
    ignored field =
      version == V10 && case field of
        VlanPriority _ -> VlanId Untagged `elem` match
        _ -> isJust (missingPrerequisite V10 match [field])

-- | Whether a field has a mask without a bit.
hasZeroMask :: Field -> Bool
hasZeroMask field = case field of
  Ipv4Src _ mask -> mask == 0
  Ipv4Dst _ mask -> mask == 0
  OtherField _ f s -> testBit f 0 && B.all (== 0) (B.drop (B.length s `div` 2) s)
  _ -> False

-- | Fields as an object.
fieldsJson :: [Field] -> Value
fieldsJson = Object . KeyMap.fromList . concatMap fieldJson

fieldJson :: Field -> [(Key.Key, Value)]
fieldJson field = case field of
  InPort p -> [("in_port", portJson p)]
  EthDst m -> ["eth_dst" .= show m]
  EthSrc m -> ["eth_src" .= show m]
  EthType t -> ["eth_type" .= t]
  VlanId Untagged -> ["vlan_vid" .= ("none" :: Text)]
  VlanId (Tagged v) -> ["vlan_vid" .= v]
  VlanPriority n -> ["vlan_pcp" .= n]
  IpDscp n -> ["ip_dscp" .= n]
  IpProtocol n -> ["ip_proto" .= n]
  Ipv4Src a m -> ["ipv4_src" .= masked a m]
  Ipv4Dst a m -> ["ipv4_dst" .= masked a m]
  TcpSrc n -> ["tcp_src" .= n]
  TcpDst n -> ["tcp_dst" .= n]
  UdpSrc n -> ["udp_src" .= n]
  UdpDst n -> ["udp_dst" .= n]
  IcmpType n -> ["icmpv4_type" .= n]
  IcmpCode n -> ["icmpv4_code" .= n]
  OtherField c f s -> [Key.fromString ("oxm_" <> show c <> "_" <> show f) .= hexText s]
  where
    masked a m
      | m == exactIp = ipv4Text a
      | isPrefix m = ipv4Text a <> "/" <> show (length (takeWhile (/= 0) (iterate (`shiftL` 1) m)))
      | otherwise = ipv4Text a <> "/" <> ipv4Text m

portJson :: PortNo -> Value
portJson p@(PortNo n)
  | isPhysical p = toJSON n
  | otherwise = toJSON (show p)

ipv4Text :: Word32 -> String
ipv4Text a = intercalate "." [show ((a `shiftR` s) .&. 255) | s <- [24, 16, 8, 0]]

-- | Two hexadecimal digits for each byte.
hexText :: B.ByteString -> String
hexText = concatMap (\b -> (if b < 16 then "0" else "") <> showHex b "") . B.unpack

-- Decoding --------------------------------------------------------------------------------

-- | The object has only these fields, and none of them is null, which would stand for the default.
onlyFields :: [Key.Key] -> Object -> Parser ()
onlyFields = onlyFieldsOr (const False)

-- | 'onlyFields', with other names that are accepted, too.
onlyFieldsOr :: (Key.Key -> Bool) -> [Key.Key] -> Object -> Parser ()
onlyFieldsOr isOther names o = case filter (\k -> k `notElem` names && not (isOther k)) (KeyMap.keys o) of
  [] -> mapM_ (\k -> fail (Key.toString k <> " is null; leave it out for the default")) (KeyMap.keys (KeyMap.filter (== Null) o))
  k : _ -> fail ("unknown field " <> Key.toString k <> "; known are " <> intercalate ", " (map Key.toString names))

-- | Decode a match. Its fields are put into the order of their OXM numbers, in which each follows its prerequisites.
matchOf :: Object -> Parser Match
matchOf o = do
  onlyFieldsOr (isJust . otherName) (map fst fields) o
  named <- concat <$> sequence [maybe (pure []) (\v -> pure <$> field v <?> Key name) (KeyMap.lookup name o) | (name, field) <- fields]
  others <- sequence [otherField c f v <?> Key name | (name, v) <- KeyMap.toList o, Just (c, f) <- [otherName name]]
  -- The class of OpenFlow's own fields comes first.
  pure (sortOn ((\(c, f) -> (c /= 0x8000, c, f)) . oxmOf) (named <> others))
  where
    fields :: [(Key.Key, Value -> Parser Field)]
    fields =
      [ ("in_port", fmap InPort . portOf "no packet comes in at" [portLocal, portController]),
        ("eth_dst", fmap EthDst . macOf),
        ("eth_src", fmap EthSrc . macOf),
        ("eth_type", fmap EthType . numberOf),
        ("vlan_vid", vlan),
        ("vlan_pcp", fmap VlanPriority . numberOf),
        ("ip_dscp", fmap IpDscp . numberOf),
        ("ip_proto", fmap IpProtocol . numberOf),
        ("ipv4_src", fmap (uncurry Ipv4Src) . addressOf),
        ("ipv4_dst", fmap (uncurry Ipv4Dst) . addressOf),
        ("tcp_src", fmap TcpSrc . numberOf),
        ("tcp_dst", fmap TcpDst . numberOf),
        ("udp_src", fmap UdpSrc . numberOf),
        ("udp_dst", fmap UdpDst . numberOf),
        ("icmpv4_type", fmap IcmpType . numberOf),
        ("icmpv4_code", fmap IcmpCode . numberOf)
      ]
    vlan (String "none") = pure (VlanId Untagged)
    vlan v = do
      n <- numberOf v
      VlanId (Tagged n) <$ unless (n < 4096) (fail "a VLAN ID is at most 4095")

-- | Decode a whole number in the range of its type.
numberOf :: forall a. (Bounded a, FromJSON a, Show a) => Value -> Parser a
numberOf = maybe (fail ("expected a number from 0 to " <> show (maxBound :: a))) pure . parseMaybe parseJSON

-- | The class and the number of a field that is named by them: @oxm_CLASS_FIELD@, as 'fieldJson' shows it.
otherName :: Key.Key -> Maybe (Word16, Word8)
otherName key = case T.splitOn "_" (Key.toText key) of
  ["oxm", c, f] -> (,) <$> (fromInteger <$> number 0xffff c) <*> (fromInteger <$> number 0xff f)
  _ -> Nothing
  where
    -- Without leading zeros: a field has one name.
    number most t = case readMaybe (T.unpack t) of
      Just n | n <= most, t == T.pack (show n), T.all isDigit t -> Just n
      _ -> Nothing

otherField :: Word16 -> Word8 -> Value -> Parser Field
otherField c f = withText "hexadecimal digits" $ \t -> do
  let digits = map digitToInt (T.unpack t)
      bytes = B.pack (inPairs digits)
      inPairs (a : b : rest) = fromIntegral (16 * a + b) : inPairs rest
      inPairs _ = []
  when (T.null t || odd (T.length t) || T.length t > 510 || not (T.all isHexDigit t)) (fail "expected 1 to 255 bytes, each as two hexadecimal digits")
  unless (fieldFits c f (B.length bytes)) (fail "the field has another length")
  case fieldOf c f bytes of
    other@OtherField {}
      | hasZeroMask other -> fail "the mask has no bit; without the field, all packets match"
      | otherwise -> pure other
    field -> fail ("this field has a name of its own: " <> intercalate ", " (map (Key.toString . fst) (fieldJson field)))

-- | The error message for the first of some fields that the switch would ignore (1.0.1, 5.2.3) or refuse (1.3.5,
-- 7.2.3.6) because of what the match does not have. In 1.0 a priority without a VLAN ID is one of all tags, although
-- 1.0.1 has it ignored: it is how Open vSwitch takes it, and the only form in which such a flow can be shown and sent.
missingPrerequisite :: Version -> Match -> [Field] -> Maybe String
missingPrerequisite version match fields = listToMaybe [name <> " needs " <> needed | field <- fields, Just (name, needed, False) <- [needs field]]
  where
    needs field = case field of
      VlanPriority _ -> Just ("vlan_pcp", "a number as vlan_vid", any isTagged match || version == V10 && VlanId Untagged `notElem` match)
      IpDscp _ -> Just ("ip_dscp", etherTypes ip, isType ip)
      IpProtocol _ -> Just ("ip_proto", etherTypes (ip <> arp), isType (ip <> arp))
      Ipv4Src _ _ -> Just ("ipv4_src", etherTypes (0x0800 : arp), isType (0x0800 : arp))
      Ipv4Dst _ _ -> Just ("ipv4_dst", etherTypes (0x0800 : arp), isType (0x0800 : arp))
      TcpSrc _ -> protocol "tcp_src" 6 ip
      TcpDst _ -> protocol "tcp_dst" 6 ip
      UdpSrc _ -> protocol "udp_src" 17 ip
      UdpDst _ -> protocol "udp_dst" 17 ip
      IcmpType _ -> protocol "icmpv4_type" 1 [0x0800]
      IcmpCode _ -> protocol "icmpv4_code" 1 [0x0800]
      _ -> Nothing
    isTagged field = case field of
      VlanId (Tagged _) -> True
      -- VLAN_VID with a mask.
      OtherField 0x8000 13 _ -> True
      _ -> False
    protocol name n types = Just (name, etherTypes types <> " and ip_proto " <> show n, isType types && IpProtocol n `elem` match)
    isType types = not (null [() | EthType t <- match, t `elem` types])
    etherTypes types = "eth_type " <> intercalate " or " (map show types)
    -- In 1.0 the IP fields are of IPv4 only, and of ARP.
    ip = if version == V10 then [0x0800] else [0x0800, 0x86dd]
    arp = [0x0806 | version == V10] :: [Word16]

-- | Decode a port: a number, or the name of one of these reserved ports. For the others: what the error says of them.
portOf :: String -> [PortNo] -> Value -> Parser PortNo
portOf unfit reserved v = case v of
  String s
    | Just p <- lookup s names -> pure p
    | s `elem` map (T.pack . show) reservedPorts -> fail (unfit <> " the port " <> T.unpack s <> "; " <> expected)
    | otherwise -> fail expected
  _ -> do
    n <- numberOf v
    let p = PortNo n
    p <$ unless (isPhysical p) (fail "not the number of a port")
  where
    names = [(T.pack (show p), p) | p <- reserved]
    expected = "expected the number of a port, or one of " <> intercalate ", " (map (T.unpack . fst) names)

macOf :: Value -> Parser MacAddress
macOf = withText "an address" $ maybe (fail "expected an address such as 02:00:00:00:00:01") pure . readMac . T.unpack

-- | Decode an IPv4 address and its mask: an address, alone, with a prefix length, or with a mask such as 255.255.0.0.
addressOf :: Value -> Parser (Word32, Word32)
addressOf = withText "an address" $ \s -> do
  let (a, rest) = T.breakOn "/" s
  address <- maybe wrong pure (quad a)
  mask <- case T.uncons rest of
    Nothing -> pure exactIp
    Just (_, m)
      | Just bits <- decimal m, bits >= 1, bits <= 32 -> pure (complement 0 `shiftL` (32 - bits))
      | Just mask <- quad m, mask /= 0 -> pure mask
      | T.any (== '.') m -> fail "a mask is four numbers of which one is not 0, such as 255.255.0.0; without the field, all addresses match"
      | otherwise -> fail "a prefix length is 1 to 32; without the field, all addresses match"
  pure (address .&. mask, mask)
  where
    quad :: Text -> Maybe Word32
    quad t = case mapM decimal (T.splitOn "." t) of
      Just bytes | length bytes == 4, all (<= 255) bytes -> Just (foldl' (\acc b -> (acc `shiftL` 8) .|. fromIntegral b) 0 bytes)
      _ -> Nothing
    -- At most three digits, and no leading zero, which others read as octal.
    decimal :: Text -> Maybe Int
    decimal t
      | T.all isDigit t, T.length t <= 3, t == "0" || T.take 1 t /= "0" = readMaybe (T.unpack t)
      | otherwise = Nothing
    wrong :: Parser a
    wrong = fail "expected an address such as 10.0.0.1 or 10.0.0.0/24"
