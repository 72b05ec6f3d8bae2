-- |
-- Rules of RFC 9293 and its companions for what arrives: opening a connection, sequence numbers, resets, urgent data.
module Spec.Rfc.Receiving (groups) where

import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (foldl')
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Emit (resetFor)
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

groups :: [TestTree]
groups =
  [ testGroup "opening" openings,
    testGroup "sequence numbers" sequences,
    testGroup "resets" resets,
    testGroup "urgent data" urgents
  ]

openings :: [TestTree]
openings =
  [ testCase "a SYN is answered by SYN and ACK with an MSS" $ do
      let (x, out) = passiveOpen (env' cfg 0) opening synSegment
      map short out @?= [("S.", 500, 1001, 0)]
      map (maximumSegmentSize . options) out @?= [Just 1460]
      state x @?= SynReceived,
    testCase "options that were not offered are not used" $ do
      let (_, out) = passiveOpen (env' defaultConfig 0) opening synSegment {options = noOptions}
      map (\s -> let o = options s in (sackPermitted o, timestamps o, windowScale o)) out @?= [(False, Nothing, Nothing)],
    testCase "without an MSS option 536 is assumed" $ do
      let t = fst (got cfg (T 0 (fst (passiveOpen (env' cfg 0) opening synSegment {options = noOptions}))) (plain 1001 501 ""))
      sendMss (c t) @?= 536,
    testCase "an MSS option of 0 gives the floor" $ do
      let (x, _) = passiveOpen (env' cfg 0) opening synSegment {options = noOptions {maximumSegmentSize = Just 0}}
      sendMss x @?= mssFloor cfg,
    testCase "in SYN-RECEIVED a wrong acknowledgment draws a reset" $ do
      let t = T 0 (fst (passiveOpen (env' cfg 0) opening synSegment))
      map short (snd (hears t (plain 1001 777 ""))) @?= [("R", 777, 0, 0)],
    testCase "in SYN-RECEIVED the SYN again draws the SYN and ACK again" $ do
      let t = T 0 (fst (passiveOpen (env' cfg 0) opening synSegment))
      map short (snd (hears t synSegment)) @?= [("S.", 500, 1001, 0)],
    testCase "a SYN-ACK that was sent again gives no round-trip time (Karn's algorithm, RFC 6298)" $ do
      let x = fst (passiveOpen (env' cfg 0) opening synSegment)
          (t1, _) = sleepFor cfg 400000 (T 0 x)
          (t2, _) = hears t1 synSegment
          measuredAfter t = summaryRtt (summary (c (fst (hears t (plain 1001 501 "")))))
      map measuredAfter [t1, t2] @?= [410000, 0],
    testCase "SYN-SENT: SYN and ACK establish" $ do
      let (x, out) = activeOpened
      map short out @?= [("S", 500, 0, 0)]
      let (t, out') = hears x synSegment {ackNumber = 501, flags = syn <> ack}
      is t Established
      map short out' @?= [(".", 501, 1001, 0)],
    testCase "SYN-SENT: after the reset for an old connection's acknowledgment the SYN is sent again at once, once" $ do
      let t0 = T 0 (fst (open (env' cfg 0) opening))
          old t = hears t (plain 7777 400 "")
          (t1, out1) = old t0
          (t2, out2) = old t1
          (_, later) = sleepFor cfg 1100000 t2
      map short out1 @?= [("R", 400, 0, 0), ("S", 500, 0, 0)]
      map short out2 @?= [("R", 400, 0, 0)]
      map short later @?= [("S", 500, 0, 0)]
      -- A reset for something else is no answer of an old connection.
      snd (hears t0 (plain 7777 400 "") {flags = rst <> ack}) @?= []
      -- The answer to the second SYN measures its round-trip time.
      summaryRtt (summary (c (fst (hears t1 synSegment {flags = syn <> ack, ackNumber = 501})))) @?= 10000,
    testCase "SYN-SENT: an ACK of something else draws a reset" $
      map short (take 1 (snd (hears (fst activeOpened) (plain 1 700 "")))) @?= [("R", 700, 0, 0)],
    testCase "SYN-SENT: a reset with our ACK refuses, one without is dropped" $ do
      let t = fst activeOpened
      is (fst (hears t (Segment 0 501 (rst <> ack) 0 0 noOptions []))) (Closed Refused)
      is (fst (hears t (Segment 0 0 rst 0 0 noOptions []))) SynSent,
    testCase "simultaneous opening (figure 8)" $ do
      let (t, out) = hears (fst activeOpened) synSegment
      is t SynReceived
      map short out @?= [("S.", 500, 1001, 0)]
      let (t', _) = hears t synSegment {ackNumber = 501, flags = syn <> ack}
      is t' Established,
    testCase "simultaneous opening: the window in the SYN and ACK is not scaled (RFC 7323)" $ do
      let (x, _) = open (env' defaultConfig 1000000) opening
          scaled = synSegment {options = blankOptions {windowScale = Just 7}}
          (t, _) = got defaultConfig (T 1000000 x) scaled
          (t', _) = got defaultConfig t scaled {ackNumber = 501, flags = syn <> ack}
          (t'', _) = got defaultConfig t' (plain 1001 501 "") {window = 100}
      map (summaryWindow . summary . c) [t', t''] @?= [10000, 12800],
    testCase "a SYN is sent again for three minutes, then the opening fails" $ do
      let (t, out) = sleepFor cfg 200000000 (fst activeOpened)
      is t (Closed TimedOut)
      assertBool (show (length out)) (length out >= 6 && length out <= 9),
    testCase "nobody listens: reset, but none for a reset" $ do
      fmap short (resetFor synSegment) @?= Just ("R.", 0, 1001, 0)
      fmap short (resetFor (plain 7 9 "abc")) @?= Just ("R", 9, 0, 0)
      resetFor (Segment 0 0 rst 0 0 noOptions []) @?= Nothing
  ]
  where
    activeOpened = let (x, acts) = open (env' cfg 1000000) opening in (T 1000000 x, [s | Transmit s <- acts])

sequences :: [TestTree]
sequences =
  [ testCase "data in order is delivered, and acknowledged late" $ do
      let (t, out) = hears base (plain 1001 501 "hello")
      out @?= []
      content t @?= C.pack "hello"
      map short (snd (sleepFor cfg 100000 t)) @?= [(".", 501, 1006, 0)],
    testCase "each second full segment is acknowledged at once" $ do
      let (t, out) = hears base (plain 1001 501 (replicate 1460 'a'))
          (_, out') = hears t (plain 2461 501 (replicate 1460 'a'))
      out @?= []
      map short out' @?= [(".", 501, 3921, 0)],
    testCase "each second segment is acknowledged at once, also if they are smaller than before" $ do
      let arriving (t, out) s = let (t', out') = hears t s in (t', out ++ out')
          (t1, _) = foldl' arriving (base, []) [plain 1001 501 (replicate 1460 'a'), plain 2461 501 (replicate 1460 'a')]
          (_, acks) = foldl' arriving (t1, []) [plain (3921 + 100 * n) 501 (replicate 100 'a') | n <- [0 .. 5]]
      map short acks @?= [(".", 501, 4121, 0), (".", 501, 4321, 0), (".", 501, 4521, 0)],
    testCase "data out of order is kept, and reported at once" $ do
      let (t, out) = hears base (plain 1004 501 "lo")
          (t', out') = hears t (plain 1001 501 "hel")
      map (sackBlocks . options) out @?= [[SackBlock 1004 1006]]
      map short out @?= [(".", 501, 1001, 0)]
      content t' @?= C.pack "hello"
      map short out' @?= [(".", 501, 1006, 0)],
    testCase "the newest block comes first (RFC 2018)" $ do
      let (t1, _) = hears base (plain 1010 501 "a")
          (t2, _) = hears t1 (plain 1020 501 "b")
          (_, out) = hears t2 (plain 1030 501 "c")
      map (sackBlocks . options) out @?= [[SackBlock 1030 1031, SackBlock 1020 1021, SackBlock 1010 1011]],
    testCase "a duplicate is acknowledged, and reported (RFC 2883)" $ do
      let (t, _) = hears base (plain 1001 501 "hello")
          (_, out) = hears t (plain 1001 501 "hello")
      map (\s -> (short s, sackBlocks (options s))) out @?= [((".", 501, 1006, 0), [SackBlock 1001 1006])],
    testCase "overlapping data: the first bytes count" $ do
      let (t, _) = hears base (plain 1001 501 "abc")
          (t', _) = hears t (plain 1002 501 "XYZd")
      content t' @?= C.pack "abcZd",
    testCase "data beyond the window is cut off" $ do
      let small = cfg {receiveBuffer = 4}
          t0 = baseWith small
          (t, out) = got small t0 (plain 1001 501 "abcdefgh")
      readable (c t) @?= 4
      map (\s -> (short s, window s)) out @?= [((".", 501, 1005, 0), 0)],
    testCase "an acknowledgment right behind a full window counts, though data in the window is missing" $ do
      let small = cfg {receiveBuffer = 10}
          (t1, _) = got small (baseWith small) (plain 1006 501 "fghij")
          (t2, _) = on small t1 (UserSend [C.pack "xyz"])
          (t3, out) = got small t2 (plain 1011 504 "")
          (t4, out') = got small t2 (plain 1012 504 "")
          (t5, out'') = got small t2 (plain 1011 504 "") {flags = rst}
      out @?= []
      nextTimer (c t3) @?= never
      map short out' @?= [(".", 504, 1001, 0)]
      assertBool "a timer" (nextTimer (c t4) /= never)
      out'' @?= []
      is t5 Established,
    testCase "PAWS: an old timestamp is acknowledged and dropped (RFC 7323)" $ do
      let cf = defaultConfig
          stamped v s = s {options = noOptions {timestamps = Just (Timestamps v 0)}}
          x = fst (passiveOpen (env' cf 0) opening synSegment {options = blankOptions {timestamps = Just (Timestamps 100 0)}})
          t0 = fst (got cf (T 0 x) (stamped 101 (plain 1001 501 "")))
          (t1, _) = got cf t0 (stamped 110 (plain 1001 501 "abc"))
          (t2, _) = sleepFor cf 100000 t1
          (t3, out) = got cf t2 (stamped 90 (plain 1004 501 "def"))
      readable (c t3) @?= 3
      length out @?= 1
      -- A segment without the option is accepted.
      readable (c (fst (got cf t3 (plain 1004 501 "def")))) @?= 6,
    testCase "PAWS: after 25 days of silence the peer's new timestamp is taken and echoed" $ do
      let cf = defaultConfig
          stamped v s = s {options = noOptions {timestamps = Just (Timestamps v 0)}}
          x = fst (passiveOpen (env' cf 0) opening synSegment {options = blankOptions {timestamps = Just (Timestamps 100 0)}})
          t0 = fst (got cf (T 0 x) (stamped 101 (plain 1001 501 "")))
          -- A clock of milliseconds has gone more than half of its way round.
          later = 25 * 86400 * 1000
          (t1, _) = got cf t0 {at = 1000 * fromIntegral later} (stamped later (plain 1001 501 "abc"))
          (_, out) = sleepFor cf 100000 t1
      readable (c t1) @?= 3
      [v | Just (Timestamps _ v) <- map (timestamps . options) out] @?= [later],
    testCase "sequence numbers wrap around" $ do
      let x = fst (passiveOpen (env' cfg 0) opening {initialSequence = 0xfffffff0} synSegment {seqNumber = 0xfffffffd})
          (t1, _) = hears (T 0 x) (plain 0xfffffffe 0xfffffff1 "")
          (t2, _) = hears t1 (plain 0xfffffffe 0xfffffff1 "abcdef")
          (t3, out) = does t2 (UserSend [B.replicate 40 1])
      content t2 @?= C.pack "abcdef"
      map short out @?= [("P.", 0xfffffff1, 4, 40)]
      let (t4, _) = hears t3 (plain 4 25 "")
      is t4 Established
      nextTimer (c t4) @?= never
  ]

resets :: [TestTree]
resets =
  [ testCase "at RCV.NXT: closed" $ is (fst (hears base (Segment 1001 0 rst 0 0 noOptions []))) (Closed Reset),
    testCase "elsewhere in the window: a challenge (RFC 5961)" $ do
      let (t, out) = hears base (Segment 1500 0 rst 0 0 noOptions [])
      is t Established
      map short out @?= [(".", 501, 1001, 0)],
    testCase "outside of the window: nothing" $ do
      let (t, out) = hears base (Segment 500000000 0 rst 0 0 noOptions [])
      is t Established
      out @?= [],
    testCase "a SYN: a challenge (RFC 5961)" $ do
      let (t, out) = hears base synSegment {seqNumber = 1300}
      is t Established
      map short out @?= [(".", 501, 1001, 0)],
    testCase "challenges are limited: ten at once, then one in each half second" $ do
      let (_, n) = foldl' (\(t, k) _ -> let (t', out) = hears t synSegment {seqNumber = 1300} in (t', k + length out)) (base, 0) [1 .. 100 :: Int]
      -- They come within a second.
      n @?= 11,
    testCase "a segment without ACK is dropped" $ do
      let (t, out) = hears base (plain 1001 501 "abc") {flags = psh}
      (readable (c t), out) @?= (0, []),
    testCase "in zero window, at RCV.NXT" $ do
      let small = cfg {receiveBuffer = 4}
          (t, _) = got small (baseWith small) (plain 1001 501 "abcd")
      is (fst (got small t (Segment 1005 0 rst 0 0 noOptions []))) (Closed Reset)
  ]

urgents :: [TestTree]
urgents =
  [ testCase "the user is told, and the data is in the stream" $ do
      let (x, acts) = step (env' cfg (at base)) (Arrive [(plain 1001 501 "abc") {flags = urg <> ack, urgentPointer = 2}]) (c base)
      assertBool (show acts) (Notify Urgent `elem` acts)
      content (T (at base) x) @?= C.pack "abc",
    testCase "sent: the pointer is behind the last urgent byte" $ do
      let (_, out) = does base (UserSendUrgent [C.pack "abc"])
      map (\s -> (show (flags s), urgentPointer s)) out @?= [("P.U", 3)]
  ]
