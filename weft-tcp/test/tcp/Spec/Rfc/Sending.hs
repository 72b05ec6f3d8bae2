-- |
-- Rules of RFC 9293 and its companions for what is sent: acknowledgments, windows, retransmissions, congestion
-- control.
module Spec.Rfc.Sending (groups) where

import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (foldl')
import Data.Word (Word32)
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Congestion (Algorithm (..), Sample (..), Window (..))
import Weft.Tcp.Core.Congestion.Cubic (cubic)
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

groups :: [TestTree]
groups =
  [ testGroup "acknowledgments" acks,
    testGroup "windows" windows,
    testGroup "retransmission" retransmissions
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
      -- Six whole segments fit into the window of 10000 bytes. The rest of the window is too small for another one.
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
      -- The window opens: the probe's byte is sent again at once, and the rest after its acknowledgment.
      let (t3, sent) = hears t2 (plain 1001 501 "")
          (_, rest) = hears t3 (plain 1001 502 "")
      map payloadLength (sent ++ rest) @?= [1, 99],
    testCase "zero, and no answers: given up" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, _) = does t0 (UserSend [B.replicate 100 7])
          (t2, _) = sleepFor cfg 3000000000 t1
      is t2 (Closed TimedOut),
    testCase "zero for a long time, and then something to send: the user timeout begins with it" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, _) = sleepFor cfg 1000000000 t0
          (t2, _) = does t1 (UserSend [B.replicate 100 7])
          (t3, probes) = sleepFor cfg 20000000 t2
      is t3 Established
      assertBool (show (length probes)) (length probes >= 3)
      is (fst (sleepFor cfg 1200000000 t3)) (Closed TimedOut),
    testCase "zero, and probed: acknowledgments and resets are at the window, not behind the probe" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, _) = does t0 (UserSend [B.replicate 100 7])
          (t2, probes) = sleepFor cfg 300000 t1
          (t3, _) = hears t2 (plain 1001 501 "hello") {window = 0}
          (_, late) = sleepFor cfg 100000 t3
      map short probes @?= [(".", 501, 1001, 1)]
      map short late @?= [(".", 501, 1006, 0)]
      map short (snd (does t2 Abort)) @?= [("R.", 501, 1001, 0)],
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
    testCase "closed while data is in flight: what was sent within the window is not sent again (RFC 9293, section 3.8.6)" $ do
      let (t1, _) = does base (UserSend [B.replicate 12000 1])
          (t2, _) = hears t1 (plain 1001 1961 "") {window = 0}
          (t3, out) = hears t2 (plain 1001 1961 "")
          (_, out') = hears t3 (plain 1001 9261 "")
      map short out @?= [(".", 9261, 1001, 1460)]
      map short out' @?= [(".", 10721, 1001, 1460)],
    testCase "closed while data is in flight: what is lost of it is sent again" $ do
      let (t1, _) = does base (UserSend [B.replicate 8760 1])
          (_, out) = hears t1 (plain 1001 501 "") {window = 0, options = noOptions {sackBlocks = [SackBlock 1961 9261]}}
      map short out @?= [(".", 501, 1001, 1460)],
    testCase "closed while data is in flight: a lost tail is probed" $ do
      let (t1, _) = does base (UserSend [B.replicate 2920 1])
          (t2, _) = hears t1 (plain 1001 1961 "") {window = 0}
          (t3, probes) = sleepFor cfg 100000 t2
          (t4, _) = hears t3 (plain 1001 501 "hello") {ackNumber = 1961, window = 0}
          (_, late) = sleepFor cfg 100000 t4
      map short probes @?= [("P.", 1961, 1001, 1460)]
      -- The peer accepts it whether it has received the data or not.
      map short (take 1 late) @?= [(".", 3421, 1006, 0)],
    testCase "closed while data is in flight, and all of that lost: sent again after a timeout, once the window is open" $ do
      let (t1, _) = does base (UserSend [B.replicate 8760 1])
          (t2, _) = hears t1 (plain 1001 501 "") {window = 0}
          (t3, _) = sleepFor cfg 100000000 t2
          (t4, _) = hears t3 (plain 1001 501 "")
          (_, out) = sleepFor cfg 1000000 t4
      map short (take 1 out) @?= [(".", 501, 1001, 1460)],
    testCase "smaller than a segment: half of it counts as a full segment, which does not wait (RFC 1122, section 4.2.3.4)" $ do
      let small = (plain 1001 501 "") {window = 500}
          t0 = fst (got cfg (T 1000000 (fst (passiveOpen (env' cfg 1000000) opening synSegment {window = 500}))) small)
          (t1, out1) = does t0 (UserSend [B.replicate 2000 1])
          (t2, out2) = hears t1 small {ackNumber = 751}
          (t3, out3) = hears t2 small {ackNumber = 1101}
          (_, out4) = hears t3 small {ackNumber = 1251}
      map short out1 @?= [(".", 501, 1001, 250), (".", 751, 1001, 250)]
      map short out2 @?= [(".", 1001, 1001, 250)]
      -- The window has room for 350 bytes, then for 250.
      map short out3 @?= [(".", 1251, 1001, 250)]
      map short out4 @?= [(".", 1501, 1001, 250)],
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
    testCase "the answer to a duplicate does not measure the timeout (timestamps without SACK)" $ do
      let cf = withoutSack {offerTimestamps = True}
          (t1, first) = on cf (stampedWith cf) (UserSend [B.replicate 100 1])
          -- The acknowledgment was lost. That of the retransmission echoes the first transmission.
          (t2, again) = sleepFor cf 9000000 t1
          (t3, _) = got cf t2 (answer (last first) 601)
          -- The next data is acknowledged at once, and measured.
          (t4, second) = on cf t3 (UserSend [B.replicate 100 2])
          (t5, _) = got cf t4 (answer (last second) 701)
          (t6, _) = on cf t5 (UserSend [B.replicate 100 3])
          (_, out) = sleepFor cf 1000000 t6
      assertBool (show (length again)) (length again >= 3)
      map seqNumber (take 1 out) @?= [701],
    testCase "the echo of a timestamp that was not sent yet measures nothing" $ do
      let cf = withoutSack {offerTimestamps = True}
          (t1, first) = on cf (stampedWith cf) (UserSend [B.replicate 100 1])
          (t2, _) = sleepFor cf 9000000 t1
          later s = s {options = (options s) {timestamps = (\(Timestamps v e) -> Timestamps v (e + 100000)) <$> timestamps (options s)}}
          (t3, _) = got cf t2 (later (answer (last first) 601))
          (t4, _) = on cf t3 (UserSend [B.replicate 100 2])
      -- The timeout stays as long as it has become.
      map short (snd (sleepFor cf 3000000 t4)) @?= [],
    testGroup
      "a round-trip time that has grown to three seconds is found, after which nothing is sent twice"
      [ testCase name $ do
          let cf = change withoutSack
              -- Data goes out, and is acknowledged after three seconds.
              turn (t0, _) n =
                let (t1, out) = on cf t0 (UserSend [B.replicate 100 n])
                    (t2, again) = sleepFor cf 2990000 t1
                    newest = maximum (map seqNumber out)
                 in (fst (got cf t2 (answer (last [s | s <- out, seqNumber s == newest]) (newest + 100))), length again)
          map (snd . foldl' turn (stampedWith cf, 0)) [[1], [1 .. 12]] @?= [expected, 0]
        | (name, change, expected) <-
            [ ("without timestamps", id, 3),
              ("timestamps", \o -> o {offerTimestamps = True}, 3),
              ("timestamps and SACK, which sends a probe too (RFC 8985)", \o -> o {offerTimestamps = True, offerSack = True}, 4)
            ]
      ],
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
    testCase "CUBIC: time in which the window does not limit the sender does not count (RFC 9438, section 5.8)" $ do
      let grown t (w, s) = onAcknowledged cubic (Sample (Instant t) 1000 100000 1000 100000) w s
          -- A loss with 100 segments in flight. After 70 of them, the next minute is idle.
          (threshold, s0) = onLoss cubic (Sample (Instant 0) 0 100000 1000 100000) (Window 100000 maxBound) (algorithmStart cubic)
          (w1, s1) = grown 1000000 (Window threshold threshold, s0)
          (w2, _) = grown 61000000 (w1, s1)
      assertBool (show (w1, w2)) (congestionWindow w2 - congestionWindow w1 < 100),
    testCase "CUBIC: after a timeout the window grows from where congestion avoidance begins (RFC 9438, section 4.8)" $ do
      let acked (w, s) t = onAcknowledged cubic (Sample (Instant t) 1000 70000 1000 100000) w s
          -- After two seconds with an acknowledgment of a segment each 10 ms.
          grown x = congestionWindow (fst (foldl' acked x [0, 10000 .. 2000000]))
          reducedBy f =
            let (threshold, s) = f cubic (Sample (Instant 0) 0 100000 1000 100000) (Window 100000 maxBound) (algorithmStart cubic)
             in grown (Window threshold threshold, s)
          (lossy, timedOut) = (reducedBy onLoss, reducedBy onTimeout)
      -- After a loss the window returns to the earlier maximum of 100 segments. After a timeout it knows none.
      assertBool (show (lossy, timedOut)) (lossy > 78000 && timedOut >= 70000 && timedOut < 73000),
    testCase "a peer that takes SACKed data back (RFC 2018): it is sent again" $ do
      let (t1, _) = does base (UserSend [B.replicate 4380 1])
          (t2, _) = hears t1 (plain 1001 501 "") {options = noOptions {sackBlocks = [SackBlock 1961 3421]}}
          (t3, _) = hears t2 (plain 1001 1961 "")
          (_, out) = sleepFor cfg 5000000 t3
      assertBool (show (map short out)) (any (\s -> seqNumber s == 1961) out)
  ]

withoutSack :: Config
withoutSack = cfg {offerSack = False}

-- | A connection with a peer that offers timestamps.
stampedWith :: Config -> T
stampedWith cf = fst (got cf (T 1000000 x) (answer (last synAck) 501))
  where
    (x, synAck) = passiveOpen (env' cf 1000000) opening synSegment {options = blankOptions {timestamps = Just (Timestamps 7 0)}}

-- | An acknowledgment that echoes the timestamp of a segment.
answer :: Segment -> Word32 -> Segment
answer s a = (plain 1001 a "") {options = noOptions {timestamps = (\(Timestamps v _) -> Timestamps 8 v) <$> timestamps (options s)}}
