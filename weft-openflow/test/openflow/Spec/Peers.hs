{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Correct and faulty switches over real connections. Whatever one of them does, the others are still answered.
module Spec.Peers
  ( tests,

    -- * For other tests
    encoded,
    plain,
    withWitness,
  )
where

import Control.Concurrent (forkIO, forkOn, getNumCapabilities, killThread, myThreadId, threadCapability, threadDelay, yield)
import Control.Concurrent.MVar
import Control.Exception (IOException, SomeException, bracket, try)
import Control.Monad (forM_, forever, replicateM_, unless, void, when)
import Data.Bits (xor)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import GHC.Clock (getMonotonicTime)
import Peer
import System.Timeout (timeout)
import Test.QuickCheck (Gen, choose, chooseAny, elements, generate, vectorOf)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (SockAddr)
import Weft.Transport (Connection (..), Operations (..))

tests :: TestTree
tests =
  testGroup
    "peers"
    [ testGroup "negotiation" (map negotiated negotiations),
      testGroup "answers" [answersOneByteSegments, manyAtOnce, oneTurn, sameSwitchTwice, inTurn],
      testGroup "faults" (map faulty faults ++ [unknownType, portlessPacket, truncatedPacket V10, truncatedPacket V13, manyFaults, brokenApplication, fuzzed]),
      testGroup "peers that stop" [silent, echoes, slowHandshake, readsNothing, postsToDeaf, killedSenders, departure, hostsOfBatch, hostAge]
    ]

-- | Settings without statistics and topology, whose messages would come between the expected ones, for peers that
-- answer no echo requests.
plain :: Settings
plain = (patient defaultSettings) {settingsTopology = Nothing, settingsPortStats = Nothing}

-- | A packet of this switch is answered. Tests use it before and after a fault of another switch.
beside :: Controller -> Peer -> IO ()
beside _ p = do
  n <- generate (choose (10, 1000000))
  packetFrom V10 n (PortNo 1) 1 2 p
  let go = do
        (h, _) <- expect "the answer to a packet" answer p
        -- LLDP frames may be sent meanwhile.
        unless (headerXid h == n) go
  go
  where
    answer m = case m of
      PacketOutMessage _ -> Just ()
      FlowModMessage _ -> Just ()
      _ -> Nothing

-- | Run a test while another switch is connected, which must be answered before and after the test.
withWitness :: Settings -> (Controller -> SockAddr -> IO a) -> IO a
withWitness settings act = withTestController settings $ \c address -> withPeer address $ \witness -> do
  switchHandshake c V10 200 witness
  beside c witness
  r <- act c address
  beside c witness
  pure r

encoded :: Version -> Xid -> Message -> B.ByteString
encoded version xid = fromMaybe (error "unencodable") . encode version xid

-- Negotiation -----------------------------------------------------------------------------

-- | The HELLO of a switch, and the version that is negotiated; 'Nothing': the switch is refused.
negotiations :: [(String, B.ByteString, Maybe Version)]
negotiations =
  [ ("1.0 without a bitmap", B.pack [1, 0, 0, 8, 0, 0, 0, 1], Just V10),
    ("1.0 with a body", B.pack [1, 0, 0, 12, 0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef], Just V10),
    ("1.3 without a bitmap", B.pack [4, 0, 0, 8, 0, 0, 0, 1], Just V13),
    ("1.5 with both in its bitmap", B.pack [6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x52], Just V13),
    ("1.5 with 1.0 in its bitmap", B.pack [6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x42], Just V10),
    ("an element that is not known", B.pack [4, 0, 0, 16, 0, 0, 0, 1, 0, 9, 0, 8, 1, 2, 3, 4], Just V13),
    ("1.1 without a bitmap", B.pack [2, 0, 0, 8, 0, 0, 0, 1], Nothing),
    ("1.2 alone in its bitmap", B.pack [4, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 8], Nothing)
  ]

negotiated :: (String, B.ByteString, Maybe Version) -> TestTree
negotiated (name, hello, expected) = testCase name . withTestController plain $ \_ address -> withPeer address $ \p -> do
  sendBytes p hello
  case expected of
    Just version -> do
      (h, ()) <- expect "FEATURES_REQUEST" (\m -> if m == FeaturesRequest then Just () else Nothing) p
      headerVersion h @?= versionByte version
    Nothing -> do
      (_, codes) <- expect "an ERROR" errorCodes p
      codes @?= (0, 0)
      ended p

errorCodes :: Message -> Maybe (Int, Int)
errorCodes m = case m of
  Error t c _ -> Just (fromIntegral t, fromIntegral c)
  _ -> Nothing

-- Answers ---------------------------------------------------------------------------------

answersOneByteSegments :: TestTree
answersOneByteSegments = testCase "a switch that sends byte by byte" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  let bytes = encoded V10 77 (EchoRequest "one by one")
  forM_ (B.unpack (bytes <> bytes)) $ \b -> sendBytes p (B.singleton b) >> threadDelay 200
  replicateM_ 2 (expect "ECHO_REPLY" (\m -> if m == EchoReply "one by one" then Just () else Nothing) p)

manyAtOnce :: TestTree
manyAtOnce = testCase "5000 packets at once have 5000 answers, each its own" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  sender <- forkIO (forM_ [1 .. 5000] (\n -> packetFrom V10 n (PortNo 1) (fromIntegral n) 2 p))
  seen <- newIORef Map.empty
  let go :: Int -> IO ()
      go 0 = pure ()
      go n = do
        (_, b) <- expect "an answer" buffer p
        modifyIORef' seen (Map.insertWith (+) b (1 :: Int))
        go (n - 1)
  go 5000
  answers <- readIORef seen
  (Map.size answers, maximum (Map.elems answers)) @?= (5000, 1)
  killThread sender
  where
    buffer m = case m of
      PacketOutMessage o -> Just (packetOutBuffer o)
      FlowModMessage f | flowCommand f == FlowAdd -> Just (flowBuffer f)
      _ -> Nothing

-- | If a switch has 512 packets in flight, all of them are answered in one turn. With 399 (32 KiB) in one turn and 113
-- in the next, it would have fewer packets answered than a switch whose packets arrive without a pause.
oneTurn :: TestTree
oneTurn = testCase "512 packets that are there are received in one piece" $ do
  gate <- newMVar ()
  sizes <- newIORef []
  waiting <- newIORef False
  let noted (Connection operations s) = pure (Connection operations {opReceive = \t deadline n -> withMVar gate (const (writeIORef waiting True)) >> received (opReceive operations t deadline n)} s)
      received act = act >>= \b -> b <$ (writeIORef waiting False >> atomicModifyIORef' sizes (\ns -> (B.length b : ns, ())))
      closeGate = do
        takeMVar gate
        inside <- readIORef waiting
        unless inside (putMVar gate () >> threadDelay 1000 >> closeGate)
      packet n = encoded V10 n (PacketInMessage (PacketIn (BufferId n) 64 (PortNo 1) 0 0 0 [] (B.pack ([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0] ++ replicate 50 0))))
  withTestController plain {settingsUpgrade = noted} $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    -- The gate is closed once the switch's thread is behind it: it receives this message, and then stops at the gate.
    closeGate
    sendMessageOf V10 5 (EchoRequest "before") p
    void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)
    sendBytes p (B.concat (map packet [1 .. 512]))
    writeIORef sizes []
    putMVar gate ()
    replicateM_ 512 (expect "an answer" (\case PacketOutMessage _ -> Just (); _ -> Nothing) p)
  readIORef sizes >>= \found -> take 1 (reverse found) @?= [512 * 82]

sameSwitchTwice :: TestTree
sameSwitchTwice = testCase "a switch that connects again has its old connection dropped" . withWitness plain $ \c address ->
  withPeer address $ \old -> withPeer address $ \new -> do
    switchHandshake c V10 1 old
    beside c old
    switchHandshake c V10 1 new
    ended old
    beside c new
    known <- connectedSwitches c
    Map.member (DatapathId 1) known @?= True

-- | One acceptor assigns the switches. With several acceptors, the kernel would choose among them.
inTurn :: TestTree
inTurn = testCase "switches are handed to the capabilities in turn" $ do
  capabilities <- getNumCapabilities
  places <- newIORef []
  let noted connection = do
        (place, _) <- myThreadId >>= threadCapability
        connection <$ atomicModifyIORef' places (\ps -> (place : ps, ()))
      connected c address n = foldr (\i rest -> withPeer address (\p -> switchHandshake c V10 i p >> rest)) (pure ()) [1 .. fromIntegral n]
  withTestController plain {settingsUpgrade = noted} $ \c address -> connected c address (8 * capabilities)
  found <- readIORef places
  Map.fromListWith (+) [(place, 1 :: Int) | place <- found] @?= Map.fromList [(place, 8) | place <- [0 .. capabilities - 1]]

-- Faults ----------------------------------------------------------------------------------

-- | Faulty bytes, whether they come after the handshake, and the outcome.
faults :: [(String, Bool, B.ByteString, (Int, Int))]
faults =
  [ ("a length below 8", True, B.pack [1, 2, 0, 4, 0, 0, 0, 1], (1, 6)),
    ("a length of 0 behind a good message", True, B.pack [1, 3, 0, 8, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 0, 1], (1, 6)),
    ("another version", True, B.pack [4, 2, 0, 8, 0, 0, 0, 1], (1, 0)),
    ("a length below 8 as HELLO", False, B.pack [1, 0, 0, 7, 0, 0, 0, 0], (1, 6)),
    ("a length of 0 as HELLO", False, B.pack [4, 0, 0, 0, 0, 0, 0, 0], (1, 6)),
    ("a HELLO that is cut", False, B.pack [4, 0, 0, 12, 0, 0, 0, 1, 0, 1, 0, 16], (0, 0)),
    ("no HELLO", False, B.pack [1, 5, 0, 8, 0, 0, 0, 1], (0, 0)),
    ("HTTP", False, "GET / HTTP/1.1\r\nHost: x\r\n\r\n" <> B.replicate 30000 65, (0, 0))
  ]

faulty :: (String, Bool, B.ByteString, (Int, Int)) -> TestTree
faulty (name, late, bytes, codes) = testCase name . withWitness plain $ \c address -> withPeer address $ \p -> do
  when late (switchHandshake c V10 1 p)
  _ <- try (sendBytes p bytes) :: IO (Either IOException ())
  (_, found) <- expect "an ERROR" errorCodes p
  found @?= codes
  ended p

-- | OpenFlow 1.3.5, 7.4.1: a PACKET_IN names its input port. Without it, nothing is known about where to flood.
portlessPacket :: TestTree
portlessPacket = testCase "a PACKET_IN without an input port is reported and dropped" $ do
  problems <- newIORef []
  withWitness plain {settingsOnIncident = \case { Misunderstood d why -> modifyIORef' problems ((d, why) :); _ -> pure () }} $ \c address -> withPeer address $ \p -> do
    switchHandshake c V13 1 p
    let frame = B.pack ([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0] ++ replicate 46 0)
        start n = B.pack ([4, 10, 0, n, 0, 0, 0, 77, 255, 255, 255, 255, 0, 60, 0, 0] ++ replicate 8 0)
    sendBytes p (start (34 + 60) <> B.pack ([0, 1, 0, 4] ++ replicate 6 0) <> frame)
    sendMessageOf V13 78 (PacketInMessage (PacketIn noBuffer 60 portAny 0 0 0 [] frame)) p
    sendMessageOf V13 79 (EchoRequest "behind them") p
    let go = do
          (m, packet) <- expect "ECHO_REPLY" (\case EchoReply _ -> Just False; PacketOutMessage _ -> Just True; _ -> Nothing) p
          when packet (assertFailure ("an answer to " <> show (headerXid m)))
    go
    found <- readIORef problems
    map fst found @?= [DatapathId 1, DatapathId 1]

-- | OpenFlow 1.3.5, 7.4.1: a switch may send a part of a packet, and buffer the packet or not. What is not buffered is
-- lost, and its first bytes are no packet: they are not sent on, whether the destination is unknown, known, or all
-- hosts. The switch is told again to send whole packets.
truncatedPacket :: Version -> TestTree
truncatedPacket version = testCase (show version <> ": a packet of which only the first bytes are left is not sent on") $ do
  incidents <- newIORef []
  withTestController plain {settingsOnIncident = \case { PacketTruncated _ n total -> atomicModifyIORef' incidents (\is -> ((n, total) : is, ())); _ -> pure () }} $ \c address -> withPeer address $ \p -> do
    switchHandshake c version 1 p
    announcePorts version p
    void (expect "the configuration" (\case SetConfig _ -> Just (); _ -> Nothing) p)
    let frame to from size = B.pack (mac to ++ mac from ++ [8, 0]) <> B.replicate (size - 14) 0
        mac n = if n == 255 then replicate 6 255 else [2, 0, 0, 0, 0, n]
        report buffer port total bytes = sendMessageOf version 7 (PacketInMessage (PacketIn buffer total (PortNo port) reasonNoMatch 0 0 [] bytes)) p
        answers = do
          sendMessageOf version 8 (EchoRequest "behind") p
          let go found =
                nextFrom p >>= \case
                  Just (_, EchoReply "behind") -> pure (reverse found)
                  Just (_, m) -> go (m : found)
                  Nothing -> assertFailure "the connection ended"
          go []
        sentOn found = [packetOutData o | PacketOutMessage o <- found]
    forM_ [9, 255] $ \to -> do
      report noBuffer 1 1514 (frame to 1 64)
      found <- answers
      sentOn found @?= []
      when (to == 9) ([config | SetConfig config <- found] @?= [SwitchConfig 0 0xffff])
    -- Its sender is known nevertheless.
    report noBuffer 2 60 (frame 1 2 60)
    found <- answers
    [flowInstructions f | FlowModMessage f <- found, flowCommand f == FlowAdd, flowPriority f > 0] @?= [[ApplyActions [output (PortNo 1)]]]
    sentOn found @?= [frame 1 2 60]
    -- A flow is installed for the packets that follow.
    report noBuffer 1 1514 (frame 2 1 64)
    known <- answers
    (sentOn known, length [() | FlowModMessage f <- known, flowCommand f == FlowAdd, flowPriority f > 0]) @?= ([], 1)
    report (BufferId 77) 1 1514 (frame 255 1 64)
    buffered <- answers
    [(packetOutBuffer o, packetOutData o) | PacketOutMessage o <- buffered] @?= [(BufferId 77, "")]
    readIORef incidents >>= (@?= replicate 3 (64, 1514))

unknownType :: TestTree
unknownType = testCase "an unknown type draws an ERROR and the connection goes on" $ do
  problems <- newIORef []
  withWitness plain {settingsOnIncident = \case { Misunderstood _ why -> modifyIORef' problems (why :); _ -> pure () }} $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    sendBytes p (B.pack [1, 99, 0, 12, 0, 0, 0, 42, 1, 2, 3, 4])
    (h, codes) <- expect "an ERROR" errorCodes p
    (headerXid h, codes) @?= (42, (1, 1))
    -- A message that is too short for its type.
    sendBytes p (B.pack [1, 10, 0, 12, 0, 0, 0, 43, 1, 2, 3, 4])
    (h', codes') <- expect "an ERROR" errorCodes p
    (headerXid h', codes') @?= (43, (1, 6))
    beside c p
    readIORef problems >>= (@?= ["type 10: its length does not fit its contents", "type 99: unknown type"])

-- | The number of reports depends on the time that the messages take. The first report is that the switch has
-- connected.
manyFaults :: TestTree
manyFaults = testCase "of a switch's faulty messages ten a second are reported, and the number of the others" $ do
  incidents <- newIORef []
  let settings = (patient plain) {settingsOnIncident = \i -> atomicModifyIORef' incidents (\is -> (i : is, ()))}
      many = 2000
      reports found = length [() | Misunderstood _ _ <- found]
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    begun <- getMonotonicTime
    sendBytes p (B.concat (replicate many (B.pack [1, 99, 0, 8, 0, 0, 0, 42])))
    sendMessageOf V10 7 (EchoRequest "behind them") p
    void (expect "ECHO_REPLY" (\case EchoReply _ -> Just (); _ -> Nothing) p)
    reported <- reports <$> readIORef incidents
    over <- getMonotonicTime
    assertBool (show reported) (reported >= 9 && reported <= 10 * (ceiling (over - begun) + 2))
    controllerIncidents c >>= (@?= many)
    eventually "the number of the others" ((\found -> reports found + sum [n | IncidentsOmitted (Just (DatapathId 1)) n <- found] == many) <$> readIORef incidents)

brokenApplication :: TestTree
brokenApplication = testCase "an application that fails at one switch ends that connection" $ do
  let app = App () $ \context event () -> case event of
        Packet p
          | contextSwitch context == DatapathId 1 -> error "the application's fault"
          | otherwise -> ((), release p [output portFlood])
        _ -> ((), [])
  withTestControllerOf plain (perSwitch app) $ \c address -> withPeer address $ \good -> withPeer address $ \bad -> do
    switchHandshake c V10 2 good
    switchHandshake c V10 1 bad
    packetFrom V10 5 (PortNo 1) 1 2 bad
    ended bad
    beside c good

-- | Valid streams of a switch with some bytes changed. Whatever happens to their connections, another switch is
-- answered.
fuzzed :: TestTree
fuzzed = testCase "200 fuzzed connections" . withWitness plain $ \_ address -> forM_ [1 .. 200 :: Int] $ \_ -> withPeer address $ \p -> do
  bytes <- generate stream
  _ <- try (sendBytes p bytes) :: IO (Either IOException ())
  -- On a few connections the controller waits for more bytes; most end.
  _ <- timeout 2000 (try (ended p) :: IO (Either SomeException ()))
  pure ()
  where
    stream :: Gen B.ByteString
    stream = do
      version <- elements [V10, V13]
      -- Six changes do not make the identifier that of the other switch, whose connection would end.
      let one = encoded version 1
          good = B.concat [one (Hello []), one (FeaturesReply (Features (DatapathId 0x7777777777777777) 256 2 0 0 0 [])), one (EchoRequest "x"), one (StatsReplyMessage False (PortStatsReply [])), one (PortStatus PortAdded (Port (PortNo 1) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0))), one (PacketInMessage (PacketIn noBuffer 60 (PortNo 1) 0 0 0 [] (B.replicate 60 2)))]
      count <- choose (0, 6)
      changes <- vectorOf count ((,) <$> choose (0, B.length good - 1) <*> chooseAny)
      pure (foldr (\(i, x) s -> B.concat [B.take i s, B.singleton (B.index s i `xor` x), B.drop (i + 1) s]) good changes)

-- Peers that stop -------------------------------------------------------------------------

silent :: TestTree
silent = testCase "a switch that says nothing is asked for an echo, then dropped" $ do
  let settings = plain {settingsEchoAfter = milliseconds 300, settingsDeadAfter = milliseconds 300}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    void (expect "ECHO_REQUEST" (\case EchoRequest _ -> Just (); _ -> Nothing) p)
    ended p
    eventually "it is gone" (Map.null <$> connectedSwitches c)

echoes :: TestTree
echoes = testCase "a switch that answers echoes stays, asked again and again" $ do
  -- If the answers did not count, the switch would be dropped before the last request.
  let settings = plain {settingsEchoAfter = milliseconds 400, settingsDeadAfter = milliseconds 3000}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    replicateM_ 10 $ do
      (h, payload) <- expect "ECHO_REQUEST" (\case EchoRequest s -> Just s; _ -> Nothing) p
      sendMessageOf V10 (headerXid h) (EchoReply payload) p
    beside c p

slowHandshake :: TestTree
slowHandshake = testCase "a peer that says nothing at all is dropped" $
  withTestController plain {settingsHandshake = milliseconds 300} $ \_ address -> withPeer address $ \p -> do
    sendBytes p (B.pack [1, 0])
    ended p

-- | A switch sends packets and reads no answers, until the controller stops reading from it. So what it can send is
-- bounded by the kernel's buffers and one batch.
readsNothing :: TestTree
readsNothing = testCase "a switch that reads nothing costs bounded memory" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  count <- newIORef (0 :: Int)
  let packet = encoded V10 9 (PacketInMessage (PacketIn (BufferId 9) 60 (PortNo 1) 0 0 0 [] (B.pack ([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0] ++ replicate 46 0))))
      many = B.concat (replicate 1000 packet)
  bracket (forkIO (forever (sendBytes p many >> modifyIORef' count (+ 1000)))) killThread $ \_ -> do
    let stuck = do
          before <- readIORef count
          threadDelay 700000
          now <- readIORef count
          if before == now then pure now else stuck
    sent <- stuck
    most <- mostUnread
    assertBool ("it could send " <> show sent <> " packets") (sent > 0 && sent < most)

-- | Other threads send to a switch that reads nothing: its connection is closed, and no thread waits.
postsToDeaf :: TestTree
postsToDeaf = testCase "messages for a switch that reads nothing are bounded" . withWitness plain $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  -- While the connection ends, messages may still be accepted, and are dropped.
  let go n = do
        started <- timeout 10000000 (sendMessage c (DatapathId 1) (EchoRequest (B.replicate 60000 0)))
        case started of
          Nothing -> assertFailure "it waited"
          Just (Left _) -> pure n
          Just (Right ()) -> threadDelay 500 >> if n > 5000 then assertFailure "no bound" else go (n + 1 :: Int)
  n <- go 0
  assertBool (show n) (n > 10)
  eventually "it is dropped" (Map.notMember (DatapathId 1) <$> connectedSwitches c)

-- | After each message the sender has nothing to do and ends, so that the next message forks another one.
killedSenders :: TestTree
killedSenders = testCase "a thread that is killed while it sends does not stop the messages of others" . withTestController (patient plain) $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  let send = void . sendMessage c (DatapathId 1)
  forM_ [1 .. 1000] $ \n -> do
    sender <- forkOn n (replicateM_ 20000 (send BarrierRequest >> yield)) -- They fit into the queue if the delay lasts long.
    threadDelay 200
    killThread sender
    let mark = EchoRequest (B.pack [fromIntegral (n `div` 256), fromIntegral n])
    send mark
    expect "the message after it" (\m -> if m == mark then Just () else Nothing) p

-- | Two hosts send a packet each, and the first one answers the ARP requests of the controller. If it is forgotten
-- nevertheless, because the machine is slow, it sends another packet. The second host does not.
hostAge :: TestTree
hostAge = testCase "a host that is silent and answers no ARP request leaves" $ do
  let settings = (patient defaultSettings) {settingsPortStats = Nothing, settingsTopology = Just defaultTopologySettings {topologyHostLife = 2000}}
      arp operation destination source ip = B.pack (destination ++ source ++ [8, 6, 0, 1, 8, 0, 6, 4, 0, operation] ++ source ++ ip ++ destination ++ [0, 0, 0, 0] ++ replicate 18 0)
      one = [2, 0, 0, 0, 0, 1]
      two = [2, 0, 0, 0, 0, 2]
      known c = Map.keys . topologyHosts <$> controllerNetwork c
  sending <- newMVar ()
  answered <- newIORef (0 :: Int)
  withTestController settings $ \c address -> withPeer address $ \p -> do
    let arrives n bytes = withMVar sending $ \_ -> sendMessageOf V10 0 (PacketInMessage (PacketIn noBuffer 60 (PortNo n) 0 0 0 [] bytes)) p
        announce n mac = arrives n (arp 1 (replicate 6 255) mac [10, 0, 0, fromIntegral n])
        answers = do
          (_, o) <- expect "an ARP request" (\case PacketOutMessage o | B.take 2 (B.drop 12 (packetOutData o)) == B.pack [8, 6], B.take 6 (packetOutData o) == B.pack one -> Just o; _ -> Nothing) p
          when (packetOutActions o == [output (PortNo 1)]) $ do
            arrives 1 (arp 2 (B.unpack (B.take 6 (B.drop 6 (packetOutData o)))) one [10, 0, 0, 1])
            modifyIORef' answered (+ 1)
          answers
    switchHandshake c V10 1 p
    announce 2 two
    announce 1 one
    bracket (forkIO answers) killThread $ \_ -> eventually "the second host is forgotten, the first is not" $ do
      hosts <- known c
      unless (MacAddress 0x020000000001 `elem` hosts) (announce 1 one)
      n <- readIORef answered
      pure (n >= 3 && hosts == [MacAddress 0x020000000001])

-- | Hosts are entered into the network once for a batch, but before anything else in the batch takes effect.
hostsOfBatch :: TestTree
hostsOfBatch = testCase "hosts and ports of one batch are taken in their order" . withWitness (patient defaultSettings) $ \c address ->
  withPeer address $ \p -> do
    switchHandshake c V10 1 p
    let one xid = fromMaybe (error "unencodable") . encode V10 xid
        packet port source = PacketInMessage (PacketIn noBuffer 60 (PortNo port) 0 0 0 [] (B.pack ([2, 0, 0, 0, 0, 99, 2, 0, 0, 0, 0, source, 8, 0] ++ replicate 46 0)))
        gone = PortStatus PortDeleted (Port (PortNo 2) (MacAddress 2) "p" 0 0 (0, 0, 0, 0) (0, 0))
    sendBytes p (B.concat (zipWith one [1 ..] [packet 1 1, packet 2 2, gone, packet 1 3, packet 3 1, EchoRequest "end"]))
    void (expect "the end of the batch" (\case EchoReply "end" -> Just (); _ -> Nothing) p)
    hosts <- topologyHosts <$> controllerNetwork c
    [(mac, snd (hostPlace h)) | (MacAddress mac, h) <- Map.toList hosts] @?= [(0x020000000001, PortNo 3), (0x020000000003, PortNo 1)]

departure :: TestTree
departure = testCase "ports and switches that leave" . withWitness (patient defaultSettings) {settingsPortStats = Nothing} $ \c address -> do
  withPeer address $ \p -> do
    switchHandshake c V10 1 p
    packetFrom V10 5 (PortNo 1) 1 2 p
    void (expect "a flood" (\case PacketOutMessage o | packetOutBuffer o == BufferId 5 -> Just (); _ -> Nothing) p)
    sendMessageOf V10 0 (PortStatus PortDeleted (Port (PortNo 1) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0))) p
    (_, f) <- expect "the deletion of its flows" (\case FlowModMessage f -> Just f; _ -> Nothing) p
    (flowCommand f, flowOutPort f) @?= (FlowDelete, PortNo 1)
  eventually "it is gone" (Map.notMember (DatapathId 1) <$> connectedSwitches c)
