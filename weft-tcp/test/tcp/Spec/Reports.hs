-- |
-- Situations in which other stacks failed, from their public bug reports (@doc/reliability.md@ has the list).
module Spec.Reports (tests) where

import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (foldl', nub)
import Data.Word (Word32)
import Handmade
import Lone
import System.IO.Error (tryIOError)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp (StackSettings (..), abort, accept, connections, listen, send)
import Weft.Tcp.Core
import Weft.Tcp.Core.Emit (resetFor)
import Weft.Tcp.Core.Scoreboard (boardSize)
import Weft.Tcp.Core.State (Loss (..), inFlight, loss, outstanding)
import Weft.Tcp.Device (Incoming (..))
import Weft.Tcp.Operation (beginConnect, tryConnected)
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Ethernet
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment
import Weft.Transport (noDeadline)

tests :: TestTree
tests =
  testGroup
    "reports"
    [ testGroup "timers" timing,
      testGroup "windows" windows,
      testGroup "closing" closing,
      testGroup "resets" resets,
      testGroup "handshakes" handshakes,
      testGroup "links" links
    ]

timing :: [TestTree]
timing =
  [ testCase "acknowledgments that acknowledge nothing do not put the retransmission off" $ do
      let (t1, _) = does base (UserSend [B.replicate 100 7])
          -- A window update each 50 ms: no duplicates.
          go (t, out) n = let (t', late) = sleepFor cfg 40000 t; (t'', now') = hears t' (plain 1001 501 "") {window = 9000 + n} in (t'', out ++ late ++ now')
          (_, sent) = foldl' go (t1, []) [1 .. 60]
      -- In three seconds, with a first timeout of one.
      assertBool (show (map short sent)) (length [() | s <- sent, payloadLength s > 0] >= 2),
    testCase "an acknowledgment in the middle of a segment: the rest is retransmitted from there" $ do
      let (t1, _) = does base (UserSend [B.replicate 1460 7])
          (t2, _) = hears t1 (plain 1001 1001 "")
          (t3, again) = sleepFor cfg 5000000 t2
      assertBool (show (map short again)) (not (null again) && all (\s -> seqNumber s == 1001 && payloadLength s == 960) again)
      nextTimer (c (fst (hears t3 (plain 1001 1961 "")))) @?= never,
    testCase "a FIN that is retransmitted has the same sequence number each time, and is given up at last" $ do
      let (t1, out) = does base Close
          (t2, again) = sleepFor cfg 1000000000 t1
          fins = [seqNumber s | s <- out ++ again, has fin (flags s)]
      nub fins @?= [501]
      assertBool (show (length fins)) (length fins >= 5)
      is t2 (Closed TimedOut),
    testCase "data acknowledged by a FIN is not retransmitted" $ do
      let (t1, _) = does base (UserSend [B.replicate 1000 7])
          (t2, _) = hears t1 (plain 1001 1501 "") {flags = fin <> ack}
          (_, again) = sleepFor cfg 10000000 t2
      is t2 CloseWait
      [payloadLength s | s <- again, payloadLength s > 0] @?= []
  ]

windows :: [TestTree]
windows =
  [ testCase "a zero window that was announced in an answer to a probe opens when the user reads" $ do
      let cf = cfg {receiveBuffer = 2000}
          (t1, _) = got cf (baseWith cf) (plain 1001 501 (replicate 2000 'x'))
          -- A probe of one byte.
          (t2, out) = got cf t1 (plain 3001 501 "y")
          (_, update) = on cf t2 (UserReceive 2000)
      [(ackNumber s, window s) | s <- out] @?= [(3001, 0)]
      [(ackNumber s, window s) | s <- update] @?= [(3001, 2000)],
    testCase "with a zero window, old acknowledgments and keep-alives are answered" $ do
      let cf = cfg {receiveBuffer = 2000}
          (t1, _) = got cf (baseWith cf) (plain 1001 501 (replicate 2000 'x'))
          answer s = map short (snd (got cf t1 s))
      map answer [plain 3000 501 "", plain 3000 501 "x", plain 1001 501 ""] @?= replicate 3 [(".", 501, 3001, 0)],
    testCase "segments out of order that fill the whole window are all kept" $ do
      let cf = cfg {receiveBuffer = 3500}
          parts = [(500, 1000, 'b'), (1500, 1000, 'c'), (2500, 1000, 'd'), (0, 500, 'a')] :: [(Word32, Int, Char)]
          t = foldl' (\x (at', n, ch) -> fst (got cf x (plain (1001 + at') 501 (replicate n ch)))) (baseWith cf) parts
      content t @?= C.concat [C.replicate 500 'a', C.replicate 1000 'b', C.replicate 1000 'c', C.replicate 1000 'd'],
    testCase "the window of an old connection's last segment does not become that of another connection" . withLone id $ \st sent -> do
      l <- listen st Nothing 80
      p <- established st sent 4000 1000
      sock <- accept l
      arriveBatch st [packetFrom addressA 4001 (Segment 77 88 (fin <> ack) 63 0 noOptions [])]
      segments sent >>= (@?= [rst]) . map flags
      send sock noDeadline (B.replicate 400 7)
      segments sent >>= (@?= [400]) . map payloadLength
      peerPort p @?= 4000,
    testCase "the window that an answer to a probe announces avoids silly windows" $ do
      let cf = cfg {receiveBuffer = 4000}
          (t1, _) = got cf (baseWith cf) (plain 1001 501 (replicate 4000 'x'))
          (t2, out2) = on cf t1 (UserReceive 100)
          (t3, out3) = got cf t2 (plain 5001 501 "y")
          (_, out4) = on cf t3 (UserReceive 2000)
      -- A hundred bytes are less than a segment, and than half of the buffer.
      map window (out2 ++ out3) @?= [0]
      map window out4 @?= [2100],
    testCase "what was reported before it was acknowledged does not count as in flight for ever" $ do
      let cf = cfg {sendBuffer = 100000}
          block a b = noOptions {sackBlocks = [SackBlock a b]}
          round' (t, at') _ =
            let (t1, out) = on cf t (UserSend [B.replicate 4380 7])
                (t2, _) = got cf t1 (plain 1001 at' "") {options = block (at' + 1460) (at' + 2920), window = 60000}
                (t3, _) = got cf t2 (plain 1001 (at' + 4380) "") {window = 60000}
             in (if length out < 3 then error "too few segments" else t3, at' + 4380)
          (end, _) = foldl' round' (fst (got cf (baseWith cf) (plain 1001 501 "") {window = 60000}), 501) [1 .. 50 :: Int]
      (inFlight (c end), outstanding (c end), boardSize (board (loss (c end)))) @?= (0, 0, 0),
    testCase "a window that shrinks to zero while data is in flight: probes go on, and all is sent once it opens" $ do
      let (t1, _) = does base (UserSend [B.replicate 7300 7])
          (t2, _) = hears t1 (plain 1001 1961 "") {window = 0}
          (t3, probes) = sleepFor cfg 30000000 t2
          (t4, _) = hears t3 (plain 1001 1961 "") {window = 10000}
          (t5, more) = sleepFor cfg 5000000 t4
      assertBool (show (length probes)) (length probes >= 3)
      let end = maximum [seqNumber s + fromIntegral (payloadLength s) | s <- more ++ probes]
      end @?= 7801
      is (fst (hears t5 (plain 1001 7801 ""))) Established,
    testCase "a window of one byte, and then of zero, stops no transfer" $ do
      let (t0, _) = hears base (plain 1001 501 "") {window = 1}
          (t1, _) = does t0 (UserSend [B.replicate 10 7])
          -- The peer takes byte after byte, and closes its window in between.
          go (t, n) _ =
            let (t', out) = sleepFor cfg 5000000 t
                upTo = maximum (n : [seqNumber s + fromIntegral (payloadLength s) | s <- out])
                (t'', _) = hears t' (plain 1001 (min (n + 1) upTo) "") {window = 0}
                (t''', _) = hears t'' (plain 1001 (min (n + 1) upTo) "") {window = 1}
             in (t''', min (n + 1) upTo)
          (end, acked) = foldl' go (t1, 501) [1 .. 40 :: Int]
      acked @?= 511
      is end Established
  ]

closing :: [TestTree]
closing =
  [ testCase "after our FIN, before and after its acknowledgment, the peer's data is delivered" $ do
      let (t1, _) = does base Shutdown
          (t2, _) = hears t1 (plain 1001 501 "before")
          (t3, _) = hears t2 (plain 1007 502 "")
          (t4, _) = hears t3 (plain 1007 502 "after")
          (t5, out) = hears t4 (plain 1012 502 "") {flags = fin <> ack}
      content t4 @?= C.pack "beforeafter"
      is t5 TimeWait
      [short s | s <- out] @?= [(".", 502, 1013, 0)],
    testCase "the acknowledgment of our FIN is lost: the peer's FIN, which acknowledges it again, closes" $ do
      let (t1, _) = does base Close
          (t2, again) = sleepFor cfg 1500000 t1
          (t3, _) = hears t2 (plain 1001 502 "") {flags = fin <> ack}
      assertBool "our FIN again" (any (has fin . flags) again)
      is t3 TimeWait,
    testCase "CLOSING: our FIN is retransmitted until it is acknowledged" $ do
      let (t1, _) = does base Shutdown
          (t2, _) = hears t1 (plain 1001 501 "") {flags = fin <> ack}
          (t3, again) = sleepFor cfg 1500000 t2
      is t2 Closing
      assertBool (show (map short again)) (any (\s -> has fin (flags s) && seqNumber s == 501) again)
      is (fst (hears t3 (plain 1002 502 ""))) TimeWait,
    testCase "half closed by the peer and silent: unacknowledged data ends the connection" $ do
      let (t1, _) = hears base (plain 1001 501 "") {flags = fin <> ack}
          (t2, _) = does t1 (UserSend [B.replicate 100 7])
      is t2 CloseWait
      is (fst (sleepFor cfg 2000000000 t2)) (Closed TimedOut)
  ]

resets :: [TestTree]
resets =
  [ testCase "the numbers of resets for closed ports, also where they wrap" $ do
      let reset f s a body = short <$> resetFor (Segment s a f 100 0 noOptions [C.pack body | not (null body)])
          top = maxBound :: Word32
      [reset (ack <> psh) s 77 "data" | s <- [0, 5, top - 1, top]] @?= replicate 4 (Just ("R", 77, 0, 0))
      [reset syn s 0 "" | s <- [5, top]] @?= [Just ("R.", 0, 6, 0), Just ("R.", 0, 0, 0)]
      [reset (syn <> fin) s 0 "data" | s <- [5, top - 2]] @?= [Just ("R.", 0, 11, 0), Just ("R.", 0, 3, 0)]
      reset rst 5 5 "" @?= Nothing,
    testCase "a reset outside of the window is dropped without an answer" $
      [length (snd (hears base (Segment s 0 rst 0 0 noOptions []))) | s <- [1000, 900, 90000]] @?= [0, 0, 0],
    testCase "the challenge for a reset within the window names what the peer needs, and its next reset ends the connection" $ do
      let (t1, out) = hears base (Segment 1100 0 rst 0 0 noOptions [])
      map short out @?= [(".", 501, 1001, 0)]
      -- The peer, which has no connection, resets at the acknowledgment number.
      concat [[state (c (fst (hears t1 r)))] | s <- out, Just r <- [resetFor s]] @?= [Closed Reset]
  ]

handshakes :: [TestTree]
handshakes =
  [ testCase "the handshake's acknowledgment without the timestamps that were agreed upon opens the connection" $ do
      let cf = defaultConfig
          x = fst (passiveOpen (env' cf 0) opening synSegment {options = blankOptions {timestamps = Just (Timestamps 100 0)}})
          (t, _) = got cf (T 0 x) (plain 1001 501 "")
      is t Established
      content (fst (got cf t (plain 1001 501 "abc"))) @?= C.pack "abc",
    testCase "of many half-open connections none is left when their time is over" $ do
      let x = fst (passiveOpen (env' cfg 0) opening synSegment)
      is (fst (sleepFor cfg 400000000 (T 0 x))) (Closed TimedOut),
    testCase "ICMP errors again and again during a handshake, and after its end" . withLone id $ \st sent -> do
      sock <- beginConnect st addressA 80
      out <- sent
      let icmp code = arriveBatch st [Incoming (Packet.encode (Packet.Packet (V4 0x0a000009) addressB 1 (Icmp.encode (Icmp.Unreachable code (B.take 28 q))))) False True | q <- out]
      mapM_ icmp [1, 1, 3, 3, 1]
      connections st >>= (@?= 0) . length
      refused <- tryIOError (tryConnected sock)
      either (const (pure ())) (const (assertFailure "not refused")) refused
      mapM_ icmp [3, 1]
      abort sock,
    testCase "many connections to one port from one client, opened and reset, leave nothing behind" . withLone (\s -> s {maxTimeWait = 10}) $ \st sent -> do
      l <- listen st Nothing 80
      forM_ [1 .. 3000] $ \n -> do
        p <- established st sent (1024 + n) 1000
        says st p 0 rst B.empty
        sock <- accept l
        abort sock
      connections st >>= (@?= []) . map (const ()),
    testCase "a SYN with data and a FIN opens a connection whose data and FIN come again" $ do
      let (x, out) = passiveOpen (env' cfg 0) opening synSegment {flags = syn <> fin, payload = [C.pack "abc"]}
          (t1, _) = got cfg (T 0 x) (plain 1001 501 "")
          (t2, _) = hears t1 (plain 1001 501 "abc") {flags = fin <> ack}
      map short out @?= [("S.", 500, 1001, 0)]
      content t2 @?= C.pack "abc"
      is t2 CloseWait
  ]

links :: [TestTree]
links =
  [ testCase "the answer to the first echo request waits for its neighbour" . withStackOnLink [addressB] $ \hears' sent -> do
      hears' station typeIPv4 (echoFrom addressA addressB)
      asked <- sent
      [arpOperation a | b <- asked, Right f <- [decodeFrame b], Right a <- [decodeArp (frameBody f)]] @?= [ArpRequest]
      hears' station typeArp (encodeArp (Arp ArpReply station addressA ours addressB))
      sent >>= (@?= [20 + 16]) . map (B.length . B.drop 14),
    testCase "echo requests to all hosts, or from all hosts, are not answered" . withStackOnLink [addressB] $ \hears' sent -> do
      forM_ [(addressA, V4 0xffffffff), (addressA, V4 0xe0000001), (V4 0xffffffff, addressB), (V4 0xe0000001, addressB), (V4 0, addressB)] $ \(from, to) ->
        hears' station typeIPv4 (echoFrom from to)
      sent >>= (@?= []),
    testCase "packets for a neighbour that is not there: a request in a second" . withStackOnLink [addressB] $ \hears' sent -> do
      replicateM_ 200 (hears' station typeIPv4 (echoFrom addressA addressB))
      out <- sent
      assertBool (show (length out)) (length out <= 3),
    testCase "an advertisement to all nodes answers nobody's solicitation (RFC 4861, section 7.1.2)" . withStackOnLink [own] $ \hears' sent -> do
      let nd from to m = hears' station typeIPv6 (V6.encode (V6.plain 58 from to) {V6.hopLimit = 255} (Icmp6.encode from to m))
          echo6 = hears' station typeIPv6 (V6.encode (V6.plain 58 peer own) (Icmp6.encode peer own (Icmp6.EchoRequest 1 2 (B.replicate 8 7))))
      echo6
      void sent
      nd peer (V6 0xff02000000000000 1) (Icmp6.NeighbourAdvertisement False True True peer (Just station))
      sent >>= (@?= [])
      nd peer own (Icmp6.NeighbourAdvertisement False True True peer (Just station))
      sent >>= (@?= 1) . length,
    testCase "a solicitation from no address comes without a link-layer address, and to its target's group (RFC 4861, section 7.1.1)" . withStackOnLink [own] $ \hears' sent -> do
      let answers to from = do
            hears' station typeIPv6 (V6.encode (V6.plain 58 (V6 0 0) to) {V6.hopLimit = 255} (Icmp6.encode (V6 0 0) to (Icmp6.NeighbourSolicitation own from)))
            length <$> sent
      found <- sequence [answers to from | (to, from) <- [(solicitedNode own, Just station), (own, Nothing), (solicitedNode own, Nothing)]]
      found @?= [0, 0, 1],
    testCase "IPv6 fragments of impossible sizes are reported (RFC 8200, section 4.5)" . withLone (\s -> s {stackAddresses = [own]}) $ \st sent -> do
      let told f n = do
            let part = V6.encode (V6.plain 17 peer own) {V6.extensions = [V6.Extension 60 (B.pack [1, 4, 0, 0, 0, 0]), V6.FragmentHeader f]} (B.replicate n 7)
            arriveBatch st [Incoming part False True]
            out <- sent
            pure [(code, at', quoted == part) | Right (Packet.Whole p) <- map Packet.decode out, Right (Icmp6.ParameterProblem code at' quoted) <- [Icmp6.decode own peer (Packet.packetBody p)]]
      -- The payload length, and the fragment's offset.
      told (V6.Fragment 1 True 7) 20 >>= (@?= [(0, 4, True)])
      told (V6.Fragment 8191 False 7) 8 >>= (@?= [(0, 50, True)])
      told (V6.Fragment 1 True 7) 16 >>= (@?= []),
    testCase "fragments of hosts with the same identification are not joined" . withLone id $ \st sent -> do
      let parts from = take 2 (Packet.fragment 68 7 (Packet.Packet from addressB 1 (Icmp.encode (Icmp.EchoRequest 1 2 (B.replicate 80 7)))))
      forM_ (take 1 (parts addressA) ++ drop 1 (parts (V4 0x0a000005))) (\f -> arriveBatch st [Incoming f False True])
      sent >>= (@?= [])
      forM_ (drop 1 (parts addressA)) (\f -> arriveBatch st [Incoming f False True])
      sent >>= (@?= 1) . length
  ]
  where
    own = V6 0xfe80000000000000 1
    peer = V6 0xfe80000000000000 2
    echoFrom from to = Packet.encode (Packet.Packet from to 1 (Icmp.encode (Icmp.EchoRequest 1 2 (B.replicate 8 7))))

-- | The segments that a stack has sent.
segments :: IO [B.ByteString] -> IO [Segment]
segments sent = mapM (either assertFailure pure . decoded) =<< sent
