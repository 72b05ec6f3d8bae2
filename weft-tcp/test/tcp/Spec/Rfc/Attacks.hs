-- |
-- Rules of RFC 9293 and its companions: ICMP messages and attacks.
module Spec.Rfc.Attacks (groups) where

import qualified Data.ByteString as B
import Data.List (foldl')
import Handmade
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Buffer (heldParts)
import Weft.Tcp.Core.Scoreboard (boardSize)
import Weft.Tcp.Core.State (Loss (..), Receive (..), loss, receiveSide)
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

groups :: [TestTree]
groups =
  [ testGroup "ICMP" icmps,
    testGroup "attacks" attacks
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
    testCase "a forged timestamp with an ACK of what was not sent does not become TS.Recent" $ do
      let cf = defaultConfig
          stamped v s = s {options = noOptions {timestamps = Just (Timestamps v 0)}}
          x = fst (passiveOpen (env' cf 0) opening synSegment {options = blankOptions {timestamps = Just (Timestamps 100 0)}})
          t0 = fst (got cf (T 0 x) (stamped 101 (plain 1001 501 "")))
          t1 = fst (got cf t0 (stamped 1000000 (plain 1001 9999 "forged")))
          t2 = fst (got cf t1 (stamped 102 (plain 1001 501 "abc")))
      map (readable . c) [t1, t2] @?= [0, 3],
    testCase "a challenge is forgotten five seconds later, and the limit begins again" $ do
      let (t1, out1) = hears base synSegment {seqNumber = 1300}
          (t2, _) = sleepFor cfg 6000000 t1
          (t3, _) = hears t2 (plain 1001 501 "")
          again = foldl' (\(t, k) _ -> let (t', out) = hears t synSegment {seqNumber = 1300} in (t', k + length out)) (t3, 0) [1 .. 100 :: Int]
      length out1 @?= 1
      map ((== longAgo) . challengeDue . receiveSide . c) [t1, t3] @?= [False, True]
      snd again @?= 11,
    testCase "probes of a peer are answered whatever SYNs and resets are forged" $ do
      let forge t n = foldl' (\x s -> fst (hears x s)) t (concat (replicate n [synSegment {seqNumber = 77777777}, synSegment {seqNumber = 1300}, Segment 1300 0 rst 0 0 noOptions []]))
          second (t, answers) _ =
            let (t', out) = hears (forge t 30) (plain 1000 501 "") in (T (at t + 1000000) (c t'), answers ++ [map short out])
      snd (foldl' second (base, []) [1 .. 10 :: Int]) @?= replicate 10 [(".", 501, 1001, 0)],
    testCase "forged segments outside of the window: five answers at once, then one in each half second" $ do
      let one (t, earlier) k = let (t', out) = hears t (plain (90000 + fromIntegral k) 501 "") in (t', [at t' | _ <- out] ++ earlier)
          times = reverse (snd (foldl' one (base, []) [1 .. 1000 :: Int]))
          gaps = zipWith (-) (drop 1 times) times
      -- In ten seconds. A probe of the peer that comes in between is answered by the next one.
      assertBool (show times) (length times <= 25 && take 4 gaps == replicate 4 10000 && maximum gaps <= 500000),
    testCase "TIME-WAIT: old SYNs and segments outside of the window draw a few answers, and a FIN draws one later" $ do
      let (t1, _) = does base Shutdown
          (t2, _) = hears t1 (plain 1001 502 "") {flags = fin <> ack}
          (t3, n) = drawn t2 [synSegment {seqNumber = 900}, plain 90000 502 "", plain 900 502 "old data"]
      is t2 TimeWait
      atMost 25 n
      map short (snd (hears (T (at t3 + 1000000) (c t3)) (plain 1001 502 "") {flags = fin <> ack})) @?= [(".", 502, 1002, 0)],
    testCase "SYN-RECEIVED: copies of the SYN, and unacceptable acknowledgments, draw a few answers" $ do
      let t0 = T 1000000 (fst (passiveOpen (env' cfg 1000000) opening synSegment))
          (t1, n) = drawn t0 [synSegment]
          (t2, m) = drawn t1 [plain 1001 9999 ""]
      mapM_ (atMost 25) [n, m]
      -- The connection can still be opened.
      is (fst (hears t2 (plain 1001 501 ""))) Established,
    testCase "SYN-SENT: unacceptable acknowledgments draw a few answers" $ do
      let t0 = T 1000000 (fst (open (env' cfg 1000000) opening))
          (t1, n) = drawn t0 [plain 7777 9999 ""]
      atMost 25 n
      is (fst (hears t1 synSegment {flags = syn <> ack, ackNumber = 501})) Established,
    testCase "two connections do not answer each other for ever" $ do
      -- Each segment acknowledges data that was never sent. The answers must stop.
      let go t n = let (t', out) = hears t (plain 1001 9999 "") in if n > (100 :: Int) then 0 else length out + go t' (n + 1)
      assertBool "a storm" (go base 0 <= 12)
  ]
  where
    -- The number of answers to these segments, a thousand times, 10 ms apart.
    drawn t0 segments = foldl' (\(t, n) s -> let (t', out) = hears t s in (t', n + length out)) (t0, 0 :: Int) (concat (replicate (1000 `div` length segments) segments))
    atMost most n = assertBool (show n) (n >= 1 && n <= most)
