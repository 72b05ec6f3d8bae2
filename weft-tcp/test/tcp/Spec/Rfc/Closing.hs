-- |
-- Rules of RFC 9293 and its companions: the end of a connection, and keep-alives.
module Spec.Rfc.Closing (groups) where

import Control.Monad (forM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (foldl')
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.State (Agreed (..))
import Weft.Tcp.Core.TimeWait (Answer (..), Waiting (..), compact, respond)
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

groups :: [TestTree]
groups =
  [ testGroup "closing" closings,
    testGroup "keep-alive" keepAlives
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
      -- When the FIN arrives again, it is acknowledged again.
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
    testCase "closed, and the peer keeps its window at zero: reset after the time for orphans" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, _) = does t0 (UserSend [B.replicate 100 7])
          -- A long time before it is closed does not count.
          t2 = fst (probed t1 60)
          (t3, _) = does t2 Close
          (t4, early) = probed t3 11
          (t5, out) = probed t4 2
          probed t n = foldl' (\(x, o) _ -> let (x', s) = sleepFor cfg 10000000 x in (if isOver (c x') then x' else fst (hears x' (plain 1001 501 "") {window = 0}), o ++ s)) (t, []) [1 .. n :: Int]
      is t3 FinWait1
      is t4 FinWait1
      [() | s <- early, has rst (flags s)] @?= []
      is t5 (Closed TimedOut)
      [short s | s <- out, has rst (flags s)] @?= [("R.", 501, 1001, 0)],
    testCase "closed, and the window was zero for some time: everything is delivered" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 0}
          (t1, _) = does t0 (UserSend [B.replicate 100 7])
          (t2, _) = does t1 Close
          (t3, _) = hears (fst (sleepFor cfg 100000000 t2)) (plain 1001 501 "")
          (t4, _) = hears t3 (plain 1001 502 "")
          (t5, _) = hears t4 (plain 1001 602 "")
      is t4 FinWait1
      is t5 FinWait2,
    testCase "abort: a reset" $ map (show . flags) (snd (does base Abort)) @?= ["R."],
    testCase "abort in LAST-ACK: a reset if the FIN has not been sent yet" $ do
      let (t1, _) = hears base (plain 1001 501 "") {flags = fin <> ack}
          (t2, _) = does t1 (UserSend [B.replicate 20000 1])
          ends t = let (t', _) = does t Close in (state (c t'), map (show . flags) (snd (does t' Abort)))
      ends t2 @?= (LastAck, ["R."])
      ends t1 @?= (LastAck, []),
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
      answer synSegment {seqNumber = 5000} @?= "reusable",
    testCase "TIME-WAIT: timestamps decide before sequence numbers whether a SYN is newer (RFC 6191)" $ do
      let (t1, _) = does base Shutdown
          (t2, _) = hears t1 (plain 1001 502 "") {flags = fin <> ack}
          w = compact (c t2)
          stamped = w {waitTsRecent = 100, waitAgreed = (waitAgreed w) {useTimestamps = True}}
          -- Whether a SYN with this sequence number and timestamp begins anew.
          begins before n v = case respond (env' defaultConfig (at t2)) synSegment {seqNumber = n, options = blankOptions {timestamps = (`Timestamps` 0) <$> v}} before of
            Reusable -> True
            _ -> False
      [begins stamped n (Just v) | v <- [99, 100, 101], n <- [900, 5000]] @?= [False, False, False, True, True, True]
      [begins stamped n Nothing | n <- [900, 5000]] @?= [False, True]
      [begins w n (Just 99) | n <- [900, 5000]] @?= [True, True]
  ]

keepAlives :: [TestTree]
keepAlives =
  [ testCase "off unless asked for" $ nextTimer (c base) @?= never,
    testCase "probes, then gives up" $ do
      let (t1, _) = does base (Choose (\x -> x {useKeepAlive = Just (KeepAlive (secs 100) (secs 10) 3)}))
          (t2, out) = sleepFor cfg 200000000 t1
      map short (take 3 out) @?= replicate 3 (".", 500, 1001, 0)
      is t2 (Closed TimedOut),
    testCase "no time and no probes: a probe after a millisecond" $ do
      let (t1, _) = does base (Choose (\x -> x {useKeepAlive = Just (KeepAlive 0 (-5) 0)}))
          (t2, out) = sleepFor cfg 1500 t1
          (t3, _) = sleepFor cfg 1000 t2
      map short out @?= [(".", 500, 1001, 0)]
      is t3 (Closed TimedOut),
    testCase "answers keep it alive" $ do
      let (t1, _) = does base (Choose (\x -> x {useKeepAlive = Just (KeepAlive (secs 100) (secs 10) 3)}))
          go t _ = fst (hears (fst (sleepFor cfg 105000000 t)) (plain 1001 501 ""))
      is (foldl' go t1 [1 .. 20 :: Int]) Established,
    testCase "forged segments, outside of the window or with an unacceptable ACK, do not keep it alive" $ do
      let (t1, _) = does base (Choose (\x -> x {useKeepAlive = Just (KeepAlive (secs 100) (secs 10) 3)}))
          go t forged = fst (hears (fst (sleepFor cfg 30000000 t)) forged)
      forM_ [plain 2000000 501 "", plain 1001 900000 "", (plain 2000000 501 "") {flags = rst}, (plain 1005 501 "") {flags = syn <> ack}] $ \forged ->
        is (foldl' go t1 (replicate 6 forged)) (Closed TimedOut)
  ]
