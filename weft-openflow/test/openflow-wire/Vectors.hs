-- |
-- Messages about groups, meters, port settings, tables and queues, written by hand from the structures of the
-- specifications (1.0.1, 5.2.2, 5.3.3 and 5.3.4; 1.3.5, 7.2.2 and 7.3.4): each is encoded to these bytes and decoded
-- from them, and no other length is taken.
module Vectors (tests) where

import Control.Monad (forM_)
import Data.Bits (shiftR)
import qualified Data.ByteString as B
import Data.Word (Word8)
import OfpPrint
import Test.Tasty
import Test.Tasty.HUnit
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import qualified Weft.Test.Skip as Skip

tests :: TestTree
tests = testGroup "vectors" (concat [[exact v, otherLengths v] | v <- vectors] ++ [wrongParts, byOvs, more])

-- | Name, version, type, body, message.
type Vector = (String, Version, Word8, [Word8], Message)

whole :: Version -> Word8 -> [Word8] -> B.ByteString
whole version kind body = B.pack ([versionByte version, kind, fromIntegral (n `shiftR` 8), fromIntegral n, 1, 2, 3, 4] ++ body)
  where
    n = 8 + length body

vectors :: [Vector]
vectors =
  [ ( "OFPT_PORT_MOD of 1.0",
      V10,
      15,
      [0, 3, 2, 0, 0, 0, 0, 9] ++ [0, 0, 0, 1] ++ [0, 0, 0, 0x21] ++ [0, 0, 0, 0x40] ++ [0, 0, 0, 0],
      PortModMessage (PortMod (PortNo 3) (MacAddress 0x020000000009) 1 0x21 0x40)
    ),
    ( "OFPT_QUEUE_GET_CONFIG_REQUEST of 1.0",
      V10,
      20,
      [0, 3, 0, 0],
      QueueConfigRequest (PortNo 3)
    ),
    ( "OFPT_QUEUE_GET_CONFIG_REPLY of 1.0",
      V10,
      21,
      [0, 3, 0, 0, 0, 0, 0, 0]
        ++ ([0, 0, 0, 7] ++ [0, 24, 0, 0] ++ [0, 1, 0, 16, 0, 0, 0, 0, 1, 0xf4, 0, 0, 0, 0, 0, 0])
        ++ ([0, 0, 0, 8] ++ [0, 8, 0, 0]),
      QueueConfigReply (PortNo 3) [Queue 7 portAny [MinRate 500], Queue 8 portAny []]
    ),
    ( "OFPT_GROUP_MOD",
      V13,
      15,
      [0, 1, 3, 0, 0, 0, 0x12, 0x34]
        ++ ([0, 32, 0, 0] ++ [0, 0, 0, 2] ++ [255, 255, 255, 255] ++ [0, 0, 0, 0] ++ [0, 0, 0, 16, 0, 0, 0, 2, 0, 0x80, 0, 0, 0, 0, 0, 0])
        ++ ([0, 16, 0, 0] ++ [255, 255, 255, 255] ++ [0, 0, 0, 6] ++ [0, 0, 0, 0]),
      GroupModMessage (GroupMod ResourceModify GroupFastFailover 0x1234 [Bucket 0 (PortNo 2) 0xffffffff [Output (PortNo 2) 128], Bucket 0 portAny 6 []])
    ),
    ( "OFPT_GROUP_MOD that selects",
      V13,
      15,
      [0, 0, 1, 0, 0, 0, 0, 1] ++ [0, 16, 1, 5] ++ [255, 255, 255, 255] ++ [255, 255, 255, 255] ++ [0, 0, 0, 0],
      GroupModMessage (GroupMod ResourceAdd GroupSelect 1 [Bucket 261 portAny 0xffffffff []])
    ),
    ( "OFPT_GROUP_MOD that deletes all groups",
      V13,
      15,
      [0, 2, 0, 0, 255, 255, 255, 252],
      GroupModMessage (GroupMod ResourceDelete GroupAll 0xfffffffc [])
    ),
    ( "OFPT_PORT_MOD",
      V13,
      16,
      [0, 0, 0, 3, 0, 0, 0, 0] ++ [2, 0, 0, 0, 0, 9, 0, 0] ++ [0, 0, 0, 1] ++ [0, 0, 0, 0x21] ++ [0, 0, 0x08, 0] ++ [0, 0, 0, 0],
      PortModMessage (PortMod (PortNo 3) (MacAddress 0x020000000009) 1 0x21 0x800)
    ),
    ( "OFPT_TABLE_MOD",
      V13,
      17,
      [255, 0, 0, 0, 0, 0, 0, 3],
      TableMod tableAll 3
    ),
    ( "OFPT_QUEUE_GET_CONFIG_REQUEST",
      V13,
      22,
      [255, 255, 255, 255, 0, 0, 0, 0],
      QueueConfigRequest portAny
    ),
    ( "OFPT_QUEUE_GET_CONFIG_REPLY",
      V13,
      23,
      [255, 255, 255, 255, 0, 0, 0, 0]
        ++ ( [0, 0, 0, 7, 0, 0, 0, 3] ++ [0, 48, 0, 0, 0, 0, 0, 0] ++ [0, 1, 0, 16, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0]
               ++ [0, 2, 0, 16, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 0, 0, 0]
           )
        ++ ([0, 0, 0, 8, 0, 0, 0, 4] ++ [0, 32, 0, 0, 0, 0, 0, 0] ++ [255, 255, 0, 16, 0, 0, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, 0]),
      QueueConfigReply
        portAny
        [ Queue 7 (PortNo 3) [MinRate 100, MaxRate 1000],
          Queue 8 (PortNo 4) [OtherQueueProperty 0xffff (B.pack [0, 0, 0x23, 0x20, 0, 0, 0, 0])]
        ]
    ),
    ( "OFPT_METER_MOD",
      V13,
      29,
      [0, 0, 0, 13, 0, 0, 0, 5]
        ++ [0, 1, 0, 16, 0, 0, 0x10, 0, 0, 0, 0, 0x64, 0, 0, 0, 0]
        ++ [0, 2, 0, 16, 0, 0, 0x08, 0, 0, 0, 0, 0x32, 1, 0, 0, 0]
        ++ [255, 255, 0, 20, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0x23, 0x20, 1, 2, 3, 4],
      MeterModMessage (MeterMod ResourceAdd 13 5 [DropBand 4096 100, RemarkBand 2048 50 1, OtherBand 0xffff 1 2 (B.pack [0, 0, 0x23, 0x20, 1, 2, 3, 4])])
    )
  ]

exact :: Vector -> TestTree
exact (name, version, kind, body, message) = testCase name $ do
  encode version 0x01020304 message @?= Just (whole version kind body)
  fmap snd (decode (whole version kind body)) @?= Right message

-- | Cut at each byte, and with bytes behind it. Where a list of structures ends, a shorter message is well-formed.
otherLengths :: Vector -> TestTree
otherLengths (name, version, kind, body, message) = testCase (name <> " of another length") $ do
  forM_ [0 .. length body - 1] $ \n -> case fmap snd (decode (whole version kind (take n body))) of
    Left _ -> pure ()
    Right other -> assertBool (show (n, other)) (kind `elem` lists && encode version 0x01020304 other == Just (whole version kind (take n body)))
  forM_ [1 .. 7] $ \n -> case fmap snd (decode (whole version kind (body ++ replicate n 0))) of
    Left _ -> pure ()
    Right other -> assertFailure (show (n, other, message))
  where
    lists = case version of V10 -> [21]; V13 -> [15, 23, 29]

-- | A structure inside a message whose length is that of another one.
wrongParts :: TestTree
wrongParts = testCase "structures of wrong lengths" $
  forM_ parts $ \(kind, body, problem) -> (kind, body, fmap snd (decode (whole V13 kind body))) @?= (kind, body, Left problem)
  where
    group b = [0, 0, 0, 0, 0, 0, 0, 1] ++ b
    meter b = [0, 0, 0, 1, 0, 0, 0, 1] ++ b
    queue b = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3] ++ b
    parts =
      [ (15, group ([0, 17, 0, 0] ++ replicate 13 0), BadBucket),
        (15, group ([0, 0, 0, 0] ++ replicate 12 0), BadBucket),
        (15, group ([0, 24, 0, 0] ++ replicate 12 0), BadBucket),
        -- Its action is longer than the bucket.
        (15, group ([0, 24, 0, 0] ++ replicate 12 0 ++ [0, 0, 0, 16, 0, 0, 0, 1]), BadActionLength),
        (29, meter ([0, 1, 0, 12] ++ replicate 8 0), BadLength),
        (29, meter ([0, 1, 0, 24] ++ replicate 20 0), BadLength),
        (29, meter ([0, 2, 0, 0] ++ replicate 12 0), BadLength),
        (29, meter ([255, 255, 0, 12] ++ replicate 8 0), BadLength),
        (23, queue ([0, 15, 0, 0, 0, 0, 0, 0] ++ replicate 16 0), BadLength),
        (23, queue ([0, 40, 0, 0, 0, 0, 0, 0] ++ replicate 16 0), BadLength),
        (23, queue ([0, 24, 0, 0, 0, 0, 0, 0] ++ [0, 1, 0, 8, 0, 0, 0, 0]), BadLength),
        (23, queue ([0, 32, 0, 0, 0, 0, 0, 0] ++ [0, 9, 0, 4, 0, 0, 0, 0] ++ replicate 8 0), BadLength)
      ]

-- | What Open vSwitch prints for the vectors that it knows.
byOvs :: TestTree
byOvs = Skip.testCase "Open vSwitch reads the vectors" $ do
  Skip.needProgram ofctl
  let known = [(name, whole version kind body) | (name, version, kind, body, _) <- vectors, name /= "OFPT_METER_MOD"]
  forM_ known $ \(name, bytes) -> do
    (wrong, _) <- complaints [bytes]
    (name, wrong) @?= (name, [])
  printed <- printedBy (map snd known)
  forM_ ["watch_port:2", "weight:261", "group_id=4660,type=ff", "group_id=4294967292", "min_rate:50.0%", "queue 7:"] $ \text ->
    assertBool (text <> " is not in " <> printed) (text `isIn` printed)
  where
    isIn text s = any ((text ==) . take (length text)) (suffixes s)
    suffixes s = case s of
      [] -> [[]]
      _ : rest -> s : suffixes rest

-- | OFPMPF_REQ_MORE (1.3.5, 7.3.5).
more :: TestTree
more = testCase "a request in several parts" $ do
  let part flag = whole V13 18 ([0, 12, 0, flag, 0, 0, 0, 0] ++ [1, 2, 3, 4, 5, 6, 7, 8])
  forM_ [(0, False), (1, True)] $ \(flag, further) -> do
    let message = StatsRequestMessage further (OtherStatsRequest 12 (B.pack [1 .. 8]))
    fmap snd (decode (part flag)) @?= Right message
    encode V13 0x01020304 message @?= Just (part flag)
