-- |
-- Segments that are late and not lost: what the peer reports on them, and what the sender does about it (RFC 2883, RFC
-- 3708, RFC 4015, RFC 8985).
module Spec.Rfc.Reordering (groups) where

import qualified Data.ByteString as B
import Data.Word (Word32)
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Congestion (Window (..), windowsOf)
import Weft.Tcp.Core.State (Conn (..), Loss (..), Rack (..), Receive (..))
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

groups :: [TestTree]
groups = [testGroup "reordering" (undoing ++ reports)]

undoing :: [TestTree]
undoing =
  [ testCase "a reduction of the window is undone when each retransmission is reported as a duplicate" $ do
      let (t, out) = reduced
          (t1, _) = hears t (acks (edge 10) [block 0 1])
      map seqNumber out @?= [edge 0]
      threshold t @?= reducedTo
      threshold t1 @?= maxBound
      -- Two segments less than the ten are acknowledged, so the window is the one of ten that it was.
      window' t1 @?= windowBefore
      reorderingSeen (rack (loss (c t1))) @?= True,
    testCase "so is that of a timeout, without a burst" $ do
      let (t0, _) = does wide (UserSend [B.replicate (20 * mss) 0])
          (t, out) = sleepFor cfg 250000 t0
          (t1, again) = hears t (acks (edge 1) [])
          (t2, again') = hears t1 (acks (edge 2) [block 0 1])
          t3 = fst (hears t2 (acks (edge 11) [block 1 5]))
      -- The first is a tail loss probe, with new data. The timeout counts the first segment as lost, and those that are
      -- overdue like it.
      map seqNumber (out ++ again ++ again') @?= map edge [10, 0, 1, 2, 3, 4]
      (window' t, threshold t) @?= (mss, 11242)
      threshold t2 @?= 11242
      (window' t3, threshold t3) @?= (14600, maxBound),
    testCase "not if a retransmission was not reported" $ do
      let (t, _) = reduced
      threshold (fst (hears t (acks (edge 10) []))) @?= reducedTo,
    testCase "not for the report of a segment that was not retransmitted" $ do
      let (t, _) = reduced
      threshold (fst (hears t (acks (edge 10) [block 5 6]))) @?= reducedTo,
    testCase "not before all retransmissions are reported" $ do
      -- The second and the third segment of the window are missing as well.
      let (t0, _) = does wide (UserSend [B.replicate (40 * mss) 0])
          (t1, out1) = hears t0 (acks (edge 0) [block 3 7])
          (t2, out2) = hears t1 (acks (edge 0) [block 3 9])
          (t3, out3) = hears t2 (acks (edge 0) [block 3 10])
          (t4, _) = hears t3 (acks (edge 10) [block 0 1])
          (t5, _) = hears t4 (acks (edge 10) [block 1 2])
          (t6, _) = hears t5 (acks (edge 10) [block 2 3])
      filter (< edge 3) (map seqNumber (out1 ++ out2 ++ out3)) @?= map edge [0, 1, 2]
      map ((== maxBound) . threshold) [t3, t4, t5, t6] @?= [False, False, False, True]
  ]

reports :: [TestTree]
reports =
  [ testCase "a late acknowledgment's blocks are no reports of duplicates" $ do
      let (t0, _) = does wide (UserSend [B.replicate (10 * mss) 0])
          (t1, _) = hears t0 (acks (edge 5) [])
          (t2, _) = hears t1 (acks (edge 0) [block 2 4])
      reorderFactor (rack (loss (c t2))) @?= 1
      let (t3, _) = hears t2 (acks (edge 5) [block 2 4])
      reorderFactor (rack (loss (c t3))) @?= 2,
    testCase "a report that another acknowledgment has overtaken counts, although its timestamp is older (RFC 7323)" $ do
      let stamped = stampedBase
          (t0, _) = got stampedCfg stamped (stampedAck 100 (edge 0) [])
          (t1, _) = on stampedCfg t0 (UserSend [B.replicate (10 * stampedMss) 0])
          (t2, _) = got stampedCfg t1 (stampedAck 120 (edge 0 + 5 * fromIntegral stampedMss) [])
          late = stampedAck 110 (edge 0) [SackBlock (edge 0 - 300) (edge 0 - 200)]
          (t3, _) = got stampedCfg t2 late
      reorderFactor (rack (loss (c t3))) @?= 2
      tsRecent (receiveSide (c t3)) @?= 120
      -- One from long ago does not count, nor does data.
      reorderFactor (rack (loss (c (fst (got stampedCfg t2 (stampedAck (120 - 3600000) (edge 0) [SackBlock (edge 0 - 300) (edge 0 - 200)])))))) @?= 1
      readable (c (fst (got stampedCfg t2 late {payload = [B.replicate 3 120]}))) @?= 0
  ]

mss, stampedMss :: Int
mss = 1460
stampedMss = 1448

-- | The sequence number behind so many segments.
edge :: Int -> Word32
edge n = 501 + fromIntegral (n * mss)

block :: Int -> Int -> SackBlock
block from to = SackBlock (edge from) (edge to)

acks :: Word32 -> [SackBlock] -> Segment
acks a blocks = (plain 1001 a "") {window = 60000, options = noOptions {sackBlocks = blocks}}

-- | An established connection with a peer whose window is 60,000 bytes.
wide :: T
wide = fst (hears base (acks 501 []))

-- | Ten segments were sent, and the first was retransmitted when the next nine had arrived.
reduced :: (T, [Segment])
reduced = hears (fst (does wide (UserSend [B.replicate (10 * mss) 0]))) (acks (edge 0) [block 1 10])

windowBefore, reducedTo :: Int
windowBefore = window' (fst (does wide (UserSend [B.replicate (10 * mss) 0])))
reducedTo = threshold (fst reduced)

window', threshold :: T -> Int
window' = congestionWindow . windowsOf . congestion . c
threshold = slowStartThreshold . windowsOf . congestion . c

stampedCfg :: Config
stampedCfg = cfg {offerTimestamps = True}

stampedBase :: T
stampedBase = fst (got stampedCfg (T 1000000 x) (stampedAck 8 501 []))
  where
    x = fst (passiveOpen (env' stampedCfg 1000000) opening synSegment {options = blankOptions {timestamps = Just (Timestamps 7 0)}})

stampedAck :: Word32 -> Word32 -> [SackBlock] -> Segment
stampedAck v a blocks = (acks a blocks) {options = noOptions {sackBlocks = blocks, timestamps = Just (Timestamps v 0)}}
