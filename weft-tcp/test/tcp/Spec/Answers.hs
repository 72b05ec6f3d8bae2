-- |
-- What strangers can make a stack answer: each kind of answer is limited, for each address that it goes to and in all.
module Spec.Answers (tests) where

import Control.Monad
import qualified Data.ByteString as B
import Data.IORef
import Data.List (nub)
import Foreign.C.Error (Errno (..), eCONNREFUSED, eHOSTUNREACH)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (ioe_errno)
import Lone
import System.IO.Error (tryIOError)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tcp
import Weft.Tcp.Core (Env (..), Instant (..))
import Weft.Tcp.Device
import Weft.Tcp.Operation (beginConnect, tryConnected)
import Weft.Tcp.Stack (stackEnv)
import Weft.Tcp.Stack.Expiry (expireAt)
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Ethernet
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import Weft.Tcp.Wire.Malformed (Malformed)
import Weft.Tcp.Wire.Options (noOptions)
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (Segment, flags), ack, fin, rst, syn)

tests :: TestTree
tests =
  testGroup
    "answers"
    [ testCase "20,000 segments to a closed port: a hundred resets at once, then a thousand a second; another address gets its own" resets,
      testCase "20,000 echo requests: a hundred answers at once, then a thousand a second; another address gets its own" echoes,
      testCase "TIME-WAIT: 1,000 old SYNs and 1,000 segments outside of the window draw a few answers (RFC 5961, section 7)" timeWait,
      testCase "fragments that are missing after 30 seconds: Time Exceeded, if the first one is there (RFC 1122, section 3.3.2)" missing,
      testCase "the same over IPv6 (RFC 8200, section 4.5)" missing6,
      testCase "ICMP about a SYN: no port or protocol refuses, prohibitions end, other errors are told (RFC 1122, section 4.2.3.9)" unreachable,
      testCase "identifications of fragments are unpredictable, and differ (RFC 7739, RFC 6864)" identifications,
      testCase "1,000 ARP requests of a station draw ten answers at once, then ten a second; another station gets its own" arps,
      testCase "1,000 neighbour solicitations of a station draw ten answers at once, then ten a second" solicitations
    ]

-- | Run an action many times. Returns the number of packets sent, and the seconds that it took.
answersTo :: Int -> IO [B.ByteString] -> IO () -> IO (Int, Double)
answersTo many sent act = do
  void sent
  begun <- getMonotonicTime
  replicateM_ many act
  ended <- getMonotonicTime
  n <- length <$> sent
  pure (n, ended - begun)

-- | Whether so many answers came at once and so many a second, at most, and those at once at least.
limitedTo :: Int -> Double -> (Int, Double) -> Assertion
limitedTo once each (n, time) = assertBool (show (n, time)) (n >= once && fromIntegral n <= fromIntegral once + 1 + each * time)

strange :: Address -> Packet.Packet -> Incoming
strange from p = Incoming (Packet.encode p {Packet.packetSource = from}) False True

resets :: Assertion
resets = withLone id $ \st sent -> do
  let from a = arriveBatch st [packetFrom a 4000 (Segment 1 5 ack 500 0 noOptions [])]
  answersTo 20000 sent (from addressA) >>= limitedTo 100 1000
  mapM_ from others
  out <- mapM (either assertFailure pure . decoded) =<< sent
  assertBool (show (map flags out)) (length out >= 8 && all ((== rst) . flags) out)
  suppressed <- readCounter st AnswersLimited
  assertBool (show suppressed) (suppressed > 100)

echoes :: Assertion
echoes = withLone id $ \st sent -> do
  let from a = arriveBatch st [strange a (Packet.Packet a addressB 1 (Icmp.encode (Icmp.EchoRequest 1 2 (B.replicate 8 7))))]
  answersTo 20000 sent (from addressA) >>= limitedTo 100 1000
  mapM_ from others
  sent >>= assertBool "others were not answered" . (>= 8) . length

timeWait :: Assertion
timeWait = withLone (\s -> s {stackConfig = (stackConfig s) {timeWaitTime = 600000000}}) $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 100000
  sock <- accept l
  close sock
  let q = p {ourNext = ourNext p + 1}
  says st q 0 (ack <> fin) B.empty
  let old = arriveBatch st [packetFrom addressA 4000 (Segment 99000 0 syn 500 0 noOptions [])]
      outside = says st q (negate 50000) ack B.empty
  answersTo 1000 sent (old >> outside) >>= limitedTo 4 2
  -- Another connection in TIME-WAIT has its own limit.
  p2 <- established st sent 4001 100000
  sock2 <- accept l
  close sock2
  says st p2 {ourNext = ourNext p2 + 1} 0 (ack <> fin) B.empty
  void sent
  says st p2 {ourNext = ourNext p2 + 1} (negate 50000) ack B.empty
  sent >>= (@?= 1) . length

-- | The ICMP messages to 'addressA' that a stack sends when the time for missing fragments is over.
overdue :: [Incoming] -> IO [Either Malformed Icmp.Message]
overdue parts = withLone id $ \st sent -> do
  arriveBatch st parts
  Env (Instant t) _ <- stackEnv st addressB
  expireAt st (Instant (t + 29000000))
  sent >>= (@?= [])
  expireAt st (Instant (t + 31000000))
  out <- sent
  pure [Icmp.decode (Packet.packetBody p) | Right (Packet.Whole p) <- map Packet.decode out, Packet.packetDestination p == addressA]

missing :: Assertion
missing = do
  let parts proto body = [Incoming f False True | f <- Packet.fragment 68 7 (Packet.Packet addressA addressB proto body)]
      datagram = parts 17 (B.replicate 100 7)
      first = mconcat (map incomingPacket (take 1 datagram))
  overdue (take 2 datagram) >>= (@?= [Right (Icmp.TimeExceeded 1 first)])
  -- Without the first fragment there is nothing to quote.
  overdue (drop 1 datagram) >>= (@?= [])
  overdue datagram >>= (@?= [])
  -- An ICMP error is not answered, a query is (RFC 1122, section 3.2.2).
  let about m = take 1 (parts 1 (Icmp.encode m))
  overdue (about (Icmp.Unreachable 1 (B.replicate 100 7))) >>= (@?= [])
  overdue (about (Icmp.EchoRequest 1 2 (B.replicate 100 7))) >>= (@?= 1) . length
  -- Many at once are limited.
  overdue [Incoming f False True | n <- [1 .. 200], f <- take 1 (Packet.fragment 68 n (Packet.Packet addressA addressB 17 (B.replicate 100 7)))] >>= (@?= 10) . length

missing6 :: Assertion
missing6 = withLone (\s -> s {stackAddresses = [own]}) $ \st sent -> do
  let first = take 1 (Packet.fragment 1280 7 (Packet.Packet peer own 17 (B.replicate 3000 7)))
  arriveBatch st [Incoming f False True | f <- first]
  Env (Instant t) _ <- stackEnv st own
  expireAt st (Instant (t + 31000000))
  out <- sent
  [Icmp6.decode own peer (Packet.packetBody p) | Right (Packet.Whole p) <- map Packet.decode out] @?= [Right (Icmp6.TimeExceeded 1 (B.take 1232 f)) | f <- first]
  where
    own = V6 0xfe80000000000000 1
    peer = V6 0xfe80000000000000 2

-- | What becomes of a connection that is being opened when an ICMP message about its SYN comes.
opening :: (B.ByteString -> Icmp.Message) -> IO (Maybe Errno, [SoftError])
opening message = do
  told <- newIORef []
  withLone (\s -> s {stackSoftErrors = Just (\_ e -> modifyIORef told (e :))}) $ \st sent -> do
    sock <- beginConnect st addressA 80
    out <- sent
    arriveBatch st [strange (V4 0x0a000009) (Packet.Packet addressA addressB 1 (Icmp.encode (message (B.take 28 quoted)))) | quoted <- out]
    r <- tryIOError (tryConnected sock)
    soft <- readIORef told
    pure (either (fmap Errno . ioe_errno) (const Nothing) r, soft)

unreachable :: Assertion
unreachable = do
  let about codes expected = forM_ codes $ \code -> opening (Icmp.Unreachable code) >>= \(e, soft) -> ((\(Errno n) -> n) <$> e, soft) @?= expected
      failsWith (Errno n) = (Just n, [])
  about [2, 3] (failsWith eCONNREFUSED)
  about [9, 10, 13] (failsWith eHOSTUNREACH)
  about [0, 1, 5, 6, 7, 8, 11, 12] (Nothing, [PeerUnreached])
  forM_ [Icmp.TimeExceeded 0, Icmp.ParameterProblem 0 20] $ \m -> opening m >>= \(e, soft) -> (maybe True (const False) e, soft) @?= (True, [PeerUnreached])

-- | The identification of the fragments of an answer to an echo request.
identified :: Stack -> IO [B.ByteString] -> Address -> IO Int
identified st sent from = do
  arriveBatch st [strange from (Packet.Packet from addressB 1 (Icmp.encode (Icmp.EchoRequest 1 2 (B.replicate 3000 7))))]
  out <- sent
  case nub [fromIntegral (B.index b 4) * 256 + fromIntegral (B.index b 5) | b <- out] of
    [n] | length out > 1 -> pure n
    ns -> assertFailure (show ns)

identifications :: Assertion
identifications = do
  firsts <- replicateM 20 (withLone id (\st sent -> identified st sent addressA))
  assertBool (show firsts) (length (nub firsts) > 15)
  withLone id $ \st sent -> do
    one <- replicateM 50 (identified st sent addressA)
    length (nub one) @?= 50
    -- What one host gets says nothing about those of others.
    several <- mapM (identified st sent) others
    assertBool (show several) (length [() | (a, b) <- zip several (drop 1 several), abs (a - b) < 100] <= 2)

-- | One or two of them may share a counter with 'addressA'.
others :: [Address]
others = [V4 (0x0a0a0a00 + n) | n <- [1 .. 10]]

-- An Ethernet link --------------------------------------------------------------------------

arps :: Assertion
arps = onLink [addressB] $ \hears sent -> do
  let asks from a = hears from typeArp (encodeArp (Arp ArpRequest from a (HardwareAddress 0) addressB))
  answersTo 1000 sent (asks station addressA) >>= limitedTo 10 10
  asks (HardwareAddress 0x020000000003) (V4 0x0a000003)
  sent >>= (@?= 1) . length

solicitations :: Assertion
solicitations = onLink [own] $ \hears sent -> do
  let asks from to = hears station typeIPv6 (V6.encode (V6.plain 58 from to) {V6.hopLimit = 255} (Icmp6.encode from to (Icmp6.NeighbourSolicitation own (if isUnicast from then Just station else Nothing))))
  answersTo 1000 sent (asks peer own) >>= limitedTo 10 10
  -- Those of duplicate address detection, whose answers go to all nodes.
  answersTo 1000 sent (asks (V6 0 0) (solicitedNode own)) >>= limitedTo 10 10
  where
    own = V6 0xfe80000000000000 1
    peer = V6 0xfe80000000000000 2
