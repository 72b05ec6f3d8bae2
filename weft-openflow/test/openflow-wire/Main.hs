-- |
-- The codec: decoding is the inverse of encoding and never raises an exception, and Open vSwitch can decode our
-- messages.
module Main (main) where

import Control.Exception (evaluate)
import Control.Monad (forM_)
import Data.Bits (xor)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.List (foldl', isInfixOf)
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Messages
import OfpPrint
import Test.QuickCheck
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import qualified Vectors
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Test.Main (defaultMain)
import qualified Weft.Test.Skip as Skip

main :: IO ()
main =
  defaultMain . testGroup "openflow-wire" $
    [ testGroup "round trips" [roundTrip version kind gen | version <- [V10, V13], (kind, gen) <- kinds version],
      testGroup "other bytes" [mutated, cut, random, streams],
      Vectors.tests,
      testGroup "bounds" [tooLong, versionLimits, settable, helloBitmap, sizes, oxmLengths],
      testGroup "Open vSwitch" ([readByOvs version kind gen | version <- [V10, V13], (kind, gen) <- kinds version] ++ map errorsByOvs wrongMessages)
    ]

-- | 'encode' for messages that have an encoding.
bytesOf :: Version -> Message -> ByteString
bytesOf version = fromMaybe (error "unencodable") . encode version 0x01020304

roundTrip :: Version -> String -> Gen Message -> TestTree
roundTrip version kind gen = testProperty (show version <> " " <> kind) . forAll gen $ \message ->
  let s = bytesOf version message
   in counterexample (show (B.unpack s)) $
        decode s === Right (Header (versionByte version) (B.index s 1) (B.length s) 0x01020304, message)

-- | Decode a string and force the whole result, so that an exception in it is raised.
consumed :: ByteString -> Int
consumed s = length (show (decode s))

-- | Valid messages with one to four bytes changed. In half of the cases the length field is kept.
mutated :: TestTree
mutated = testProperty "mutated messages" . withMaxSuccess 4000 . forAll gen $ \s -> consumed s > 0
  where
    gen = do
      version <- genVersion
      s <- bytesOf version <$> genMessage version
      changes <- choose (1, 4) >>= (`vectorOf` ((,) <$> choose (0, B.length s - 1) <*> chooseAny))
      keep <- arbitrary
      pure (foldl' (change keep) s changes)
    change :: Bool -> ByteString -> (Int, Word8) -> ByteString
    change keep s (i, x)
      | keep && i `elem` [2, 3] = s
      | otherwise = B.concat [B.take i s, B.singleton (B.index s i `xor` x), B.drop (i + 1) s]

-- | Every prefix of a valid message, with the length field corrected.
cut :: TestTree
cut = testProperty "cut messages" . withMaxSuccess 300 . forAll gen $ \s ->
  conjoin [consumed (relength (B.take n s)) > 0 | n <- [8 .. B.length s]]
  where
    gen = genVersion >>= \version -> bytesOf version <$> genMessage version

relength :: ByteString -> ByteString
relength s = B.concat [B.take 2 s, B.pack [fromIntegral (B.length s `div` 256), fromIntegral (B.length s)], B.drop 4 s]

random :: TestTree
random = testProperty "random bodies" . withMaxSuccess 2000 . forAllShrink gen shrinkBytes $ \s ->
  B.length s < 8 || consumed (relength s) > 0
  where
    gen = do
      version <- elements [1, 4, 0, 6]
      kind <- choose (0, 30)
      body <- choose (6, 200) >>= vector
      pure (B.pack (version : kind : body))

-- | A stream of messages that arrives in two parts, cut at any place, is split into the same messages.
streams :: TestTree
streams = testProperty "streams" . withMaxSuccess 200 . forAll gen $ \(version, messages, at) ->
  let all' = map (bytesOf version) messages
      stream = B.concat all'
      (a, b) = B.splitAt (at `mod` (B.length stream + 1)) stream
      (first, rest) = pieces a
      (second, left) = pieces (rest <> b)
   in first ++ second === all' .&&. left === B.empty
  where
    gen = do
      version <- genVersion
      messages <- choose (1, 6) >>= (`vectorOf` genMessage version)
      (,,) version messages <$> choose (0, 100000)
    pieces s = case nextMessage s of
      Whole _ m rest -> let (ms, left) = pieces rest in (m : ms, left)
      _ -> ([], s)

tooLong :: TestTree
tooLong = testCase "a message of more than 65535 bytes is unencodable" $ do
  encode V10 1 (EchoRequest (B.replicate 65528 0)) @?= Nothing
  fmap B.length (encode V10 1 (EchoRequest (B.replicate 65527 0))) @?= Just 65535

versionLimits :: TestTree
versionLimits = testCase "what 1.0 has not is unencodable there" $ do
  forM_ [RoleRequest RoleMaster 1, GetAsyncRequest, StatsRequestMessage False PortDescRequest, StatsRequestMessage True DescRequest, TableMod 1 0, GroupModMessage (GroupMod ResourceAdd GroupAll 1 []), MeterModMessage (MeterMod ResourceAdd 1 1 []), QueueConfigReply (PortNo 1) [Queue 1 portAny [MaxRate 1]]] $ \m -> encode V10 1 m @?= Nothing
  let flow m is = FlowModMessage defaultFlowMod {flowMatch = m, flowInstructions = is}
  encode V10 1 (flow [Ipv4Src 0 0xff00ff00] []) @?= Nothing
  encode V10 1 (flow [] [GotoTable 1]) @?= Nothing
  encode V10 1 (flow [InPort (PortNo 70000)] []) @?= Nothing
  encode V13 1 (flow [] [ApplyActions [Enqueue (PortNo 1) 1]]) @?= Nothing

settable :: TestTree
settable = testCase "a field that cannot be set is unencodable in SET_FIELD" $ do
  let set version f = fmap B.length (encode version 1 (PacketOutMessage (PacketOut noBuffer portController [SetField f] B.empty)))
  forM_ [V10, V13] $ \version ->
    forM_ [InPort (PortNo 1), VlanId Untagged, Ipv4Src 0x0a000000 0xff000000, Ipv4Dst 0x0a000000 0xff000000, OtherField 0x8000 2 (B.replicate 4 0), OtherField 0x8000 4 (B.replicate 8 0), OtherField 0x8000 7 (B.replicate 12 0)] $ \f ->
      (f, set version f) @?= (f, Nothing)
  -- Class 0x8000, field 26: the source address of IPv6.
  set V13 (OtherField 0x8000 52 (B.replicate 16 0)) @?= Just 48
  set V13 (Ipv4Dst 0x0a000001 exactIp) @?= Just 40

helloBitmap :: TestTree
helloBitmap = testCase "a HELLO says 1.0 and 1.3, and any version may send one" $ do
  tryRunPut (putHello 4 7 [V10, V13]) @?= Just (B.pack [4, 0, 0, 16, 0, 0, 0, 7, 0, 1, 0, 8, 0, 0, 0, 0x12])
  fmap snd (decode (B.pack [6, 0, 0, 8, 0, 0, 0, 7])) @?= Right (Hello [])
  fmap snd (decode (B.pack [6, 5, 0, 8, 0, 0, 0, 7])) @?= Left (BadVersion 6)
  -- An element whose length exceeds the message.
  fmap snd (decode (B.pack [4, 0, 0, 12, 0, 0, 0, 7, 0, 1, 0, 8])) @?= Left BadLength

-- | The sizes of OpenFlow's own fields, from number 0 on, in bits (1.3.5, table 12). A field takes whole bytes.
fieldBits :: [Int]
fieldBits = [32, 32, 64, 48, 48, 16, 13, 3, 6, 2, 8, 32, 32, 16, 16, 16, 16, 16, 16, 8, 8, 16, 32, 32, 48, 48, 128, 128, 20, 8, 8, 128, 48, 48, 20, 3, 1, 24, 64, 9]

-- | A field of any length, in a match and in an action that sets it. The labels of IPv6 and MPLS have 20 bits in 4
-- bytes.
oxmLengths :: TestTree
oxmLengths = testCase "a field has the length that its number gives, with a mask twice that" $ do
  let bytes = [if bits == 20 then 4 else (bits + 7) `div` 8 | bits <- fieldBits]
      expected = concat [[(2 * n, size), (2 * n + 1, 2 * size)] | (n, size) <- zip [0 ..] bytes]
      oxm c f n = [fromIntegral (c `div` 256 :: Int), fromIntegral c, f, fromIntegral n] ++ replicate n 0
      matched c f n =
        let fields = oxm c f n
            match = [0, 1, 0, fromIntegral (4 + length fields)] ++ fields
         in fmap snd (decode (relength (B.pack ([4, 14, 0, 0, 0, 0, 0, 7] ++ replicate 40 0 ++ match ++ replicate ((-length match) `mod` 8) 0))))
      understood = either (const False) (const True)
  [(f, n) | f <- [0 .. 79], n <- [0 .. 40], understood (matched 0x8000 f n)] @?= expected
  matched 0x8000 0 0 @?= Left BadMatchLength
  -- Fields of others: their sizes are not known, but none is empty, and a mask has the size of the value.
  [(c, f, n) | c <- [1, 0xfffe], f <- [0, 1, 2, 3], n <- [0 .. 5], understood (matched c f n) /= (n > 0 && (even f || even n))] @?= []
  [n | n <- [0 .. 8], understood (matched 0xffff 2 n)] @?= [5 .. 8]
  -- SET_FIELD of ETH_TYPE with no byte, and with four.
  let set payload = let body = [0x80, 0, 10, fromIntegral (length payload)] ++ payload in fmap snd (decode (relength (B.pack ([4, 13, 0, 0, 0, 0, 0, 7, 255, 255, 255, 255, 0, 0, 0, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 25, 0, 16] ++ body ++ replicate (12 - length body) 0))))
  map set [[], [0, 0, 0, 0]] @?= replicate 2 (Left BadSetLength)
  assertBool "two bytes" (understood (set [8, 0]))
  -- Nor are they sent.
  [(f, n) | f <- [0 .. 79], n <- [1 .. 40], Just _ <- [encode V13 1 (FlowModMessage defaultFlowMod {flowMatch = [OtherField 0x8000 f (B.replicate n 0)]})]] @?= expected

-- | Sizes that the specifications give.
sizes :: TestTree
sizes = testCase "sizes of the specifications" $ do
  let size version = B.length . bytesOf version
  size V10 (FlowModMessage defaultFlowMod) @?= 72
  size V13 (FlowModMessage defaultFlowMod) @?= 56
  size V10 (PacketOutMessage (PacketOut noBuffer portController [] B.empty)) @?= 16
  size V13 (PacketOutMessage (PacketOut noBuffer portController [] B.empty)) @?= 24
  size V13 (RoleRequest RoleMaster 1) @?= 24
  size V10 (PacketInMessage (PacketIn noBuffer 64 (PortNo 1) 0 0 0 [] (B.replicate 64 0))) @?= 82

-- | Open vSwitch decodes 40 random messages of this kind without a complaint.
readByOvs :: Version -> String -> Gen Message -> TestTree
readByOvs version kind gen = Skip.testCase ("ovs-ofctl reads " <> show version <> " " <> kind) $ do
  Skip.needProgram ofctl
  messages <- generate (vectorOf 40 gen)
  sent <- mapM (evaluate . bytesOf version) messages
  (wrong, printed) <- complaints sent
  assertBool "it printed too little" (printed >= length messages)
  assertEqual "complaints" [] (take 3 wrong)

-- | Messages with one fault each, and Open vSwitch's name for the ERROR.
wrongMessages :: [(String, Version, ByteString, String)]
wrongMessages =
  [ ("a type that no message has", V10, whole V10 99 [], "OFPBRC_BAD_TYPE"),
    ("a PACKET_IN that is too short", V13, whole V13 10 [0, 0, 0, 1], "OFPBRC_BAD_LEN"),
    ("a PORT_STATUS for no known reason", V10, whole V10 12 (9 : replicate 55 0), "NXBRC_BAD_REASON"),
    ("a PORT_STATUS for no known reason", V13, whole V13 12 (9 : replicate 71 0), "NXBRC_BAD_REASON"),
    ("a FLOW_MOD of no known command", V10, whole V10 14 (replicate 48 0 ++ [0, 9] ++ replicate 14 0), "OFPFMFC_BAD_COMMAND"),
    ("a FLOW_MOD of no known command", V13, whole V13 14 (replicate 17 0 ++ [9] ++ replicate 30 0), "OFPFMFC_BAD_COMMAND"),
    ("a role that there is not", V13, whole V13 25 ([0, 0, 0, 9] ++ replicate 12 0), "OFPRRFC_BAD_ROLE"),
    ("a match that is not OXM", V13, whole V13 10 (replicate 16 0 ++ [0, 0, 0, 4] ++ replicate 6 0), "OFPBMC_BAD_TYPE"),
    ("a field that is longer than its match", V13, whole V13 10 (replicate 16 0 ++ [0, 1, 0, 12, 0x80, 0, 0, 9] ++ replicate 18 0), "OFPBMC_BAD_LEN"),
    ("an action of 4 bytes", V10, whole V10 13 [0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 4, 0, 1, 0, 0], "OFPBAC_BAD_LEN"),
    ("a field of no bytes", V13, whole V13 10 (replicate 16 0 ++ [0, 1, 0, 8, 0x80, 0, 0, 0] ++ replicate 10 0), "OFPBMC_BAD_LEN"),
    ("a SET_FIELD of no bytes", V13, whole V13 13 ([255, 255, 255, 255, 0, 0, 0, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 25, 0, 16, 0x80, 0, 10, 0] ++ replicate 8 0), "OFPBAC_BAD_SET_LEN"),
    ("a group's unknown command", V13, whole V13 15 [0, 3, 0, 0, 0, 0, 0, 1], "OFPGMFC_BAD_COMMAND"),
    ("a group's unknown type", V13, whole V13 15 [0, 0, 4, 0, 0, 0, 0, 1], "OFPGMFC_BAD_TYPE"),
    ("a bucket of 8 bytes", V13, whole V13 15 [0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0], "OFPGMFC_BAD_BUCKET"),
    ("a meter's unknown command", V13, whole V13 29 [0, 3, 0, 1, 0, 0, 0, 1], "OFPMMFC_BAD_COMMAND"),
    ("an instruction of 4 bytes", V13, whole V13 14 (replicate 40 0 ++ [0, 1, 0, 4, 0, 0, 0, 0, 0, 5, 0, 4]), "OFPBIC_BAD_LEN")
  ]
  where
    whole version kind body = relength (B.pack ([versionByte version, kind, 0, 0, 0, 0, 0, 7] ++ body))

-- | Open vSwitch prints our ERROR for the fault with the expected name.
errorsByOvs :: (String, Version, ByteString, String) -> TestTree
errorsByOvs (what, version, bytes, name) = Skip.testCase (show version <> ": the ERROR for " <> what <> " is " <> name) $ do
  Skip.needProgram ofctl
  problem <- either pure (\m -> assertFailure ("it was understood: " <> show m)) (decode bytes)
  printed <- printedBy [bytesOf version (problemError version problem bytes)]
  assertBool (printed <> show problem) (name `isInfixOf` printed)
