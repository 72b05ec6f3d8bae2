-- |
-- One connection and segments made by hand: the rules of RFC 9293 and its companions one
-- by one, and what an attacker might try. The names say which rule; doc/tcp.md refers to
-- them.
module Spec.Rfc (tests) where

import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (foldl')
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Buffer (heldParts)
import Weft.Tcp.Core.Emit (resetFor)
import Weft.Tcp.Core.Scoreboard (boardSize)
import Weft.Tcp.Core.State (Loss (..), Receive (..), loss, receiveSide)
import Weft.Tcp.Core.TimeWait (Answer (..), compact, respond)
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

tests :: TestTree
tests =
  testGroup
    "rfc"
    [ testGroup "opening" openings,
      testGroup "sequence numbers" sequences,
      testGroup "resets" resets,
      testGroup "acknowledgments" acks,
      testGroup "windows" windows,
      testGroup "retransmission" retransmissions,
      testGroup "closing" closings,
      testGroup "urgent data" urgents,
      testGroup "keep-alive" keepAlives,
      testGroup "ICMP" icmps,
      testGroup "attacks" attacks
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
    testCase "SYN-SENT: SYN and ACK establish" $ do
      let (x, out) = activeOpened
      map short out @?= [("S", 500, 0, 0)]
      let (t, out') = hears x synSegment {ackNumber = 501, flags = syn <> ack}
      is t Established
      map short out' @?= [(".", 501, 1001, 0)],
    testCase "SYN-SENT: an ACK of something else draws a reset" $
      map short (snd (hears (fst activeOpened) (plain 1 700 ""))) @?= [("R", 700, 0, 0)],
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
      -- One without the option passes.
      readable (c (fst (got cf t3 (plain 1004 501 "def")))) @?= 6,
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
    testCase "challenges are limited" $ do
      let (_, n) = foldl' (\(t, k) _ -> let (t', out) = hears t synSegment {seqNumber = 1300} in (t', k + length out)) (base, 0) [1 .. 100 :: Int]
      n @?= 10,
    testCase "a segment without ACK is dropped" $ do
      let (t, out) = hears base (plain 1001 501 "abc") {flags = psh}
      (readable (c t), out) @?= (0, []),
    testCase "in zero window, at RCV.NXT" $ do
      let small = cfg {receiveBuffer = 4}
          (t, _) = got small (baseWith small) (plain 1001 501 "abcd")
      is (fst (got small t (Segment 1005 0 rst 0 0 noOptions []))) (Closed Reset)
  ]

acks :: [TestTree]
acks =
  [ testCase "of what was not sent: answered, not taken" $ do
      let (t, out) = hears base (plain 1001 9999 "abc")
      readable (c t) @?= 0
      map short out @?= [(".", 501, 1001, 0)],
    testCase "older than the largest window: answered, not taken (RFC 5961)" $ do
      let (t, out) = hears base (plain 1001 (501 - 20000) "abc")
      readable (c t) @?= 0
      map short out @?= [(".", 501, 1001, 0)],
    testCase "Nagle holds a small segment while data is outstanding" $ do
      let (t1, out1) = does base (UserSend [C.pack "a"])
          (t2, out2) = does t1 (UserSend [C.pack "b"])
          (t3, out3) = does t2 (UserSend [C.pack "c"])
          (_, out4) = hears t3 (plain 1001 502 "")
      map short (out1 ++ out2 ++ out3) @?= [("P.", 501, 1001, 1)]
      map short out4 @?= [("P.", 502, 1001, 2)],
    testCase "Nagle switched off" $ do
      let (t0, _) = does base (Choose (\x -> x {useNagle = False}))
          (t1, _) = does t0 (UserSend [C.pack "a"])
      map short (snd (does t1 (UserSend [C.pack "b"]))) @?= [("P.", 502, 1001, 1)],
    testCase "the initial window is ten segments, at most the peer's" $ do
      let wide = cfg {sendBuffer = 1000000}
          s = synSegment {window = 60000}
          x = fst (passiveOpen (env' wide 0) opening s)
          t = fst (got wide (T 0 x) (plain 1001 501 "") {window = 60000})
      sum (map payloadLength (snd (on wide t (UserSend [B.replicate 100000 0])))) @?= 14600
      -- Six whole segments fit into 10000 bytes; the rest of the window is not worth one.
      sum (map payloadLength (snd (does base (UserSend [B.replicate 100000 0])))) @?= 8760
  ]

windows :: [TestTree]
windows =
  [ testCase "zero: probed with one byte, for ever while there are answers" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, out) = does t0 (UserSend [B.replicate 100 7])
          probing (t, n) _ = let (t', s) = sleepFor cfg 130000000 t in (fst (hears t' (plain 1001 501 "") {window = 0}), n + length s)
          (t2, probes) = foldl' probing (t1, 0 :: Int) [1 .. 30 :: Int]
      out @?= []
      is t2 Established
      assertBool (show probes) (probes >= 30)
      -- It opens: the byte of the probe goes again at once, and the rest behind it.
      let (t3, sent) = hears t2 (plain 1001 501 "")
          (_, rest) = hears t3 (plain 1001 502 "")
      map payloadLength (sent ++ rest) @?= [1, 99],
    testCase "zero, and no answers: given up" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, _) = does t0 (UserSend [B.replicate 100 7])
          (t2, _) = sleepFor cfg 3000000000 t1
      is t2 (Closed TimedOut),
    testCase "ours is announced again when it has doubled" $ do
      let small = cfg {receiveBuffer = 8000}
          t0 = baseWith small
          (t1, _) = got small t0 (plain 1001 501 (replicate 1460 'x'))
          (t2, _) = got small t1 (plain 2461 501 (replicate 1460 'x'))
          (t3, _) = got small t2 (plain 3921 501 (replicate 1460 'x'))
          (t4, _) = got small t3 (plain 5381 501 (replicate 1460 'x'))
          (t5, late) = got small t4 (plain 6841 501 (replicate 1460 'x'))
          (_, out) = on small t5 (UserReceive 100000)
      map window late @?= []
      map window out @?= [8000],
    testCase "a window that shrinks does no harm" $ do
      let (t1, _) = does base (UserSend [B.replicate 8000 1])
          (t2, _) = hears t1 (plain 1001 1961 "") {window = 100}
          (t3, _) = sleepFor cfg 10000000 t2
      is t3 Established
  ]

retransmissions :: [TestTree]
retransmissions =
  [ testCase "after a timeout, with backing off" $ do
      let (t1, _) = does base (UserSend [B.replicate 100 1])
          (t2, out) = sleepFor cfg 20000000 t1
      assertBool (show (length out)) (length out >= 5 && length out <= 9)
      mapM_ (\s -> short s @?= ("P.", 501, 1001, 100)) out
      is t2 Established,
    testCase "given up after the user timeout" $ do
      let (t1, _) = does base (UserSend [B.replicate 100 1])
      is (fst (sleepFor cfg 1200000000 t1)) (Closed TimedOut),
    testCase "three duplicates: fast retransmit (without SACK)" $ do
      let cf = cfg {offerSack = False}
          (t1, _) = on cf (baseWith cf) (UserSend [B.replicate 8760 1])
          dup = plain 1001 501 ""
          (t2, a) = got cf t1 dup
          (t3, b) = got cf t2 dup
          (_, d) = got cf t3 dup
      map short (a ++ b) @?= []
      take 1 (map short d) @?= [(".", 501, 1001, 1460)],
    testCase "limited transmit (RFC 3042): two duplicates let two new segments go" $ do
      let cf = cfg {offerSack = False, initialSegments = 2}
          (t1, out) = on cf (baseWith cf) (UserSend [B.replicate 8760 1])
          (t2, a) = got cf t1 (plain 1001 501 "")
          (_, b) = got cf t2 (plain 1001 501 "")
      (length out, map short (a ++ b)) @?= (2, [(".", 501 + 2920, 1001, 1460), (".", 501 + 4380, 1001, 1460)]),
    testCase "SACK: what is reported missing is sent again, once" $ do
      let (t1, _) = does base (UserSend [B.replicate 8760 1])
          sack l r = (plain 1001 501 "") {options = noOptions {sackBlocks = [SackBlock l r]}}
          (t2, a) = hears t1 (sack 1961 3421)
          (t3, b) = hears t2 (sack 1961 4881)
          (t4, d) = hears t3 (sack 1961 6341)
          (_, e) = hears t4 (sack 1961 7801)
      [short s | s <- a ++ b ++ d ++ e, seqNumber s == 501] @?= [(".", 501, 1001, 1460)],
    testCase "a lost tail is probed before the timeout (RFC 8985)" $ do
      let (t1, _) = does base (UserSend [B.replicate 2920 1])
          (t2, _) = hears t1 (plain 1001 1961 "")
          (_, out) = sleepFor cfg 100000 t2
      map short out @?= [("P.", 1961, 1001, 1460)],
    testCase "a peer that takes SACKed data back (RFC 2018): it is sent again" $ do
      let (t1, _) = does base (UserSend [B.replicate 4380 1])
          (t2, _) = hears t1 (plain 1001 501 "") {options = noOptions {sackBlocks = [SackBlock 1961 3421]}}
          (t3, _) = hears t2 (plain 1001 1961 "")
          (_, out) = sleepFor cfg 5000000 t3
      assertBool (show (map short out)) (any (\s -> seqNumber s == 1961) out)
  ]

closings :: [TestTree]
closings =
  [ testCase "we close first: FIN-WAIT-1, FIN-WAIT-2, TIME-WAIT, closed" $ do
      let (t1, out) = does base Shutdown
      is t1 FinWait1
      map short out @?= [("F.", 501, 1001, 0)]
      let (t2, _) = hears t1 (plain 1001 502 "")
      is t2 FinWait2
      let (t3, _) = hears t2 (plain 1001 502 "more")
      content t3 @?= C.pack "more"
      let (t4, out4) = hears t3 (plain 1005 502 "") {flags = fin <> ack}
      is t4 TimeWait
      map short out4 @?= [(".", 502, 1006, 0)]
      -- The FIN again: acknowledged again.
      map short (snd (hears t4 (plain 1005 502 "") {flags = fin <> ack})) @?= [(".", 502, 1006, 0)]
      is (fst (sleepFor cfg 70000000 t4)) (Closed Finished),
    testCase "the peer closes first: CLOSE-WAIT, LAST-ACK, closed" $ do
      let (t1, out) = hears base (plain 1001 501 "") {flags = fin <> ack}
      is t1 CloseWait
      map short out @?= [(".", 501, 1002, 0)]
      let (t2, sent) = does t1 (UserSend [C.pack "still"])
      map short sent @?= [("P.", 501, 1002, 5)]
      let (t3, _) = does t2 Close
      is t3 LastAck
      is (fst (hears t3 (plain 1002 507 ""))) (Closed Finished),
    testCase "data outstanding in CLOSE-WAIT has a timer" $ do
      let (t1, _) = hears base (plain 1001 501 "") {flags = fin <> ack}
          (t2, _) = does t1 (UserSend [C.pack "still"])
          (_, out) = sleepFor cfg 3000000 t2
      assertBool "not sent again" (not (null out)),
    testCase "both close at once: CLOSING, TIME-WAIT" $ do
      let (t1, _) = does base Close
          (t2, _) = hears t1 (plain 1001 501 "") {flags = fin <> ack}
      is t2 Closing
      is (fst (hears t2 (plain 1002 502 ""))) TimeWait,
    testCase "FIN before the data that precedes it" $ do
      let (t1, _) = hears base (plain 1004 501 "de") {flags = fin <> ack}
      is t1 Established
      let (t2, _) = hears t1 (plain 1001 501 "abc")
      is t2 CloseWait
      content t2 @?= C.pack "abcde",
    testCase "closed with data unread: a reset" $ do
      let (t1, _) = hears base (plain 1001 501 "abc")
          (t2, out) = does t1 Close
      is t2 (Closed Aborted)
      map short out @?= [("R.", 501, 1004, 0)],
    testCase "data after both directions were closed: a reset" $ do
      let (t1, _) = does base Close
          (t2, out) = hears t1 (plain 1001 502 "abc")
      is t2 (Closed Aborted)
      map (show . flags) out @?= ["R."],
    testCase "FIN-WAIT-2 of a closed connection ends" $ do
      let (t1, _) = does base Close
          (t2, _) = hears t1 (plain 1001 502 "")
      is t2 FinWait2
      is (fst (sleepFor cfg 70000000 t2)) (Closed Finished),
    testCase "abort: a reset" $ map (show . flags) (snd (does base Abort)) @?= ["R."],
    testCase "TIME-WAIT: a reset does not end it (RFC 1337), a newer SYN does (RFC 6191)" $ do
      let (t1, _) = does base Shutdown
          (t2, _) = hears t1 (plain 1001 502 "") {flags = fin <> ack}
          w = compact (c t2)
          answer s = case respond (env' cfg (at t2)) s w of
            Stay _ out -> "stay " ++ show (length out)
            Over -> "over"
            Reusable -> "reusable"
      is t2 TimeWait
      answer (Segment 1002 0 rst 0 0 noOptions []) @?= "stay 0"
      answer synSegment {seqNumber = 900} @?= "stay 1"
      answer synSegment {seqNumber = 5000} @?= "reusable"
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

keepAlives :: [TestTree]
keepAlives =
  [ testCase "off unless asked for" $ nextTimer (c base) @?= never,
    testCase "probes, then gives up" $ do
      let (t1, _) = does base (Choose (\x -> x {useKeepAlive = Just (KeepAlive (secs 100) (secs 10) 3)}))
          (t2, out) = sleepFor cfg 200000000 t1
      map short (take 3 out) @?= replicate 3 (".", 500, 1001, 0)
      is t2 (Closed TimedOut),
    testCase "answers keep it alive" $ do
      let (t1, _) = does base (Choose (\x -> x {useKeepAlive = Just (KeepAlive (secs 100) (secs 10) 3)}))
          go t _ = fst (hears (fst (sleepFor cfg 105000000 t)) (plain 1001 501 ""))
      is (foldl' go t1 [1 .. 20 :: Int]) Established
  ]

icmps :: [TestTree]
icmps =
  [ testCase "fragmentation needed: smaller segments, what was too big goes again" $ do
      let (t1, out) = does base (UserSend [B.replicate 2920 1])
          (t2, again) = does t1 (PathMtu 501 980)
      (length out, sendMss (c t2)) @?= (2, 960)
      map payloadLength again @?= [960, 500, 960, 500],
    testCase "about a segment that is not outstanding: ignored (RFC 5927)" $
      sendMss (c (fst (does base (PathMtu 77777 980)))) @?= 1460,
    testCase "a lie about the MTU stops at the floor" $ do
      let (t1, _) = does base (UserSend [B.replicate 2920 1])
      sendMss (c (fst (does t1 (PathMtu 501 1)))) @?= mssFloor cfg,
    testCase "unreachable does not end an established connection" $ do
      let (t1, _) = does base (UserSend [B.replicate 2920 1])
      is (fst (does t1 (Unreached 501))) Established,
    testCase "soft errors are reported, of what is outstanding only, and end nothing (MUST-47, MUST-56)" $ do
      let (t1, _) = does base (UserSend [B.replicate 2920 1])
          said e = [x | Notify (Soft x) <- snd (step (env' cfg (at t1)) e (c t1))]
      map said [Unreached 501, Advised 501, Unreached 77777, Advised 77777] @?= [[PeerUnreached], [PeerUnreached], [], []]
      let (x, _) = open (env' cfg 0) opening
      state (fst (step (env' cfg 1000) (Advised 500) x)) @?= SynSent,
    testCase "after three timeouts the user is told (R1)" $ do
      let (t1, _) = does base (UserSend [B.replicate 100 1])
          ticks n x acc
            | n == (0 :: Int) = acc
            | otherwise =
              let Instant due = nextTimer x
                  (x', actions) = step (env' cfg due) Tick x
               in ticks (n - 1) x' (acc ++ [e | Notify (Soft e) <- actions])
      ticks 6 (c t1) [] @?= [NoAcknowledgment]
  ]

attacks :: [TestTree]
attacks =
  [ testCase "every other byte, out of order: parts are capped" $ do
      let cf = cfg {receiveBuffer = 65535}
          t = foldl' (\x n -> fst (got cf x (plain (1003 + 2 * n) 501 "x"))) (baseWith cf) [0 .. 4000]
      assertBool (show (heldParts (rcvHeld (receiveSide (c t))))) (heldParts (rcvHeld (receiveSide (c t))) <= maxHeldParts cf),
    testCase "one byte at a time, backwards: parts are merged or capped" $ do
      let t = foldl' (\x n -> fst (hears x (plain (9000 - n) 501 "x"))) base [0 .. 7000]
      assertBool (show (heldParts (rcvHeld (receiveSide (c t))))) (heldParts (rcvHeld (receiveSide (c t))) <= maxHeldParts cfg)
      let (t', _) = hears t (plain 1001 501 (replicate 999 'y'))
      readable (c t') `compare` 998 @?= GT,
    testCase "SACK blocks of single bytes: the scoreboard is capped" $ do
      let cf = cfg {maxScoreboard = 100, sendBuffer = 100000}
          (t1, _) = on cf (baseWith cf) (UserSend [B.replicate 10000 1])
          sack x n = fst (got cf x (plain 1001 501 "") {options = noOptions {sackBlocks = [SackBlock (502 + 2 * n) (503 + 2 * n)]}})
          t = foldl' sack t1 [0 .. 4000]
      assertBool (show (boardSize (board (loss (c t))))) (boardSize (board (loss (c t))) <= 110),
    testCase "SACK blocks that make no sense are ignored" $ do
      let (t1, _) = does base (UserSend [B.replicate 7300 1])
          odd' = [SackBlock 900 800, SackBlock 501 501, SackBlock 100000 200000, SackBlock 400 9000]
          (t2, _) = hears t1 (plain 1001 501 "") {options = noOptions {sackBlocks = odd'}}
          (t3, _) = hears t2 (plain 1001 7801 "")
      is t3 Established
      nextTimer (c t3) @?= never,
    testCase "acknowledgments of every byte (RFC 3465's division) do not open the window" $ do
      let cf = cfg {sendBuffer = 1000000, initialSegments = 2}
          (t1, out) = on cf (baseWith cf) (UserSend [B.replicate 100000 1])
          step1 (x, n) k = let (x', s) = got cf x (plain 1001 (501 + k) "") in (x', n + sum (map payloadLength s))
          (_, sent) = foldl' step1 (t1, sum (map payloadLength out)) [10, 20 .. 1460]
      assertBool (show sent) (sent <= 2 * 1460 + 2 * 1460 + 1460),
    testCase "two connections do not answer each other for ever" $ do
      -- Acknowledgments of what was never sent, bounced back and forth.
      let go t n = let (t', out) = hears t (plain 1001 9999 "") in if n > (100 :: Int) then 0 else length out + go t' (n + 1)
      assertBool "a storm" (go base 0 <= 10)
  ]
