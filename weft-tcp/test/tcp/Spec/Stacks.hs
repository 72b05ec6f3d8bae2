-- |
-- Two stacks in one program, connected in memory: the laws of "Weft.Transport", over a link that loses nothing and
-- one that does; SYN floods and forged cookies; settings of packets; the HTTP engine on a stack.
module Spec.Stacks (tests) where

import Control.Concurrent
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (nub)
import Data.Maybe (mapMaybe)
import Foreign.C.Error (Errno (..), eNETUNREACH)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (ioe_errno)
import Lone
import Network.HTTP.Types (status200)
import Network.Wai (rawPathInfo, responseLBS)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hFlush, openBinaryTempFile)
import System.IO.Error (tryIOError)
import System.Posix.IO (closeFd, handleToFd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http (defaultOptions, drainServer, serverConnections, withServerWith)
import qualified Weft.Http as Http
import Weft.Tcp
import Weft.Tcp.Core (Env (..), summary)
import Weft.Tcp.Core.Listener (backlogSize)
import Weft.Tcp.Core.Secret (cookieFor)
import Weft.Tcp.Device
import Weft.Tcp.Stack (Listening (..), Socket (..), Stack (secret), stackEnv)
import Weft.Tcp.Stack.Input (arriveBatch)
import qualified Weft.Tcp.Wire.IPv6 as V6
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..), ack, syn)
import qualified Weft.Tcp.Wire.Segment as Segment
import Weft.Transport
import Weft.Transport.Laws

tests :: TestTree
tests =
  testGroup
    "stacks"
    [ laws "laws of connections" (const False),
      testGroup "laws of networks" [testCase (lawName law) (withPair (const False) (\a b -> lawHolds law (Transport (transportListen (tcpTransport b)) (transportConnect (tcpTransport a)), there))) | law <- networkLaws],
      testCase "a link that loses every 17th packet" lossy,
      testCase "a flood of 20,000 SYNs takes no memory, and a client is served" flood,
      testCase "one source does not fill the backlog" oneSource,
      testCase "a policy without cookies: the oldest half-open connection makes room, and no open one" evicting,
      testCase "connections that were reset before they were accepted stay in the backlog" resetUnaccepted,
      testCase "a SYN that arrives together with a reset of the connection on its ports opens another one" resetAndSyn,
      testCase "a SYN with ECE and CWR is answered" ecn,
      testCase "of a flood, SYNs that come twice are answered" floodFiltered,
      testCase "1,000 SYNs at once are answered at once" burst,
      testCase "SYNs and pings from addresses that no other host has are not answered (MUST-57)" impossibleSources,
      testCase "connecting to an address that no other host has sends nothing, and is an error" impossiblePeers,
      testCase "forged cookies are refused" forged,
      testCase "a valid cookie is refused if none was sent" cookieUnsent,
      testCase "closing is not interrupted, and sends a FIN, while a step of the connection runs" closeInterrupted,
      testCase "a connection that is closed with data behind a gap is reset" closeHeld,
      testCase "without SACK, the answers to probes of a zero window leave the congestion window alone" zeroWindow,
      testCase "a cookie opens no connection while too many wait to be accepted, and does so later" cookiesBounded,
      testCase "a connection from a cookie has no round-trip time before its first measurement" cookieTime,
      testCase "recvMany gives the strings that came, cut to what is asked for, and none at the end" inStrings,
      testCase "time to live and differentiated services as they were chosen (MUST-48, MUST-49)" marked,
      testCase "an unreachable peer is reported (MUST-47)" advised,
      testCase "a router that does not report its MTU: packets of 576 bytes (RFC 1191)" noMtu,
      testCase "an unknown IPv6 option is reported by ICMP, at most 100 times a second" unknownOptions,
      testCase "extension headers inside of IPv6 fragments are processed" fragmentedExtensions,
      testCase "the answer to an echo request larger than the MTU comes in fragments" bigEcho,
      testCase "the HTTP engine serves on a stack, and drains" http
    ]
  where
    laws name loses =
      withResource openFile (\(fd, _) -> closeFd fd) $ \file ->
        testGroup name [testCase (lawName law) (withPair loses (\a b -> file >>= lawHolds law . Implementation (connected a b) 8000000)) | law <- connectionLaws]
    openFile = do
      tmp <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile tmp "weft-tcp"
      let bytes = B.pack (take 300000 (cycle [0 .. 250]))
      B.hPut h bytes
      hFlush h
      fd <- handleToFd h
      (fd, bytes) <$ removeFile path

connected :: Stack -> Stack -> IO (Connection, Connection)
connected a b = do
  l <- transportListen (tcpTransport b) there
  c <- transportConnect (tcpTransport a) noDeadline (listenerAddress l)
  s <- listenerAccept l
  (c, s) <$ listenerClose l

lossy :: Assertion
lossy = withPair (\n -> n `mod` 17 == 16) $ \a b -> do
  (c, s) <- connected a b
  limit <- deadlineIn (seconds 200)
  let sent = B.pack (take 2000000 (cycle [1 .. 251]))
  _ <- forkIO (connSendBytes c limit sent >> connShutdownSend c limit)
  let receive' acc = do
        x <- connReceive s limit 65536
        if B.null x then pure (B.concat (reverse acc)) else receive' (x : acc)
  got <- receive' []
  assertBool "other bytes" (got == sent)

-- | The time to live and the differentiated services of a packet.
marksOf :: B.ByteString -> (Int, Int)
marksOf p = (fromIntegral (B.index p 8), fromIntegral (B.index p 1))

marked :: Assertion
marked = withLone (\s -> s {stackConfig = (stackConfig s) {firstChoices = (firstChoices (stackConfig s)) {sendHopLimit = 7}}}) $ \st sent -> do
  l <- listen st Nothing 80
  arriveBatch st [packetFrom addressA 4000 (synFrom 1), packetFrom addressA 4001 (Segment 5 6 ack 0 0 noOptions [])]
  answers <- sent
  -- A SYN-ACK for the first packet. The second one belongs to no connection and has no valid cookie, so the answer is
  -- a reset.
  map marksOf answers @?= [(7, 0), (7, 0)]
  s <- handshake st (head' answers) >> accept l
  setChoices s (\o -> o {sendTrafficClass = 0xb8, sendHopLimit = 255, useNagle = False})
  _ <- sent
  send s noDeadline (C.pack "now")
  sent >>= (@?= [(255, 0xb8)]) . nub . map marksOf
  where
    head' xs = case xs of
      x : _ -> x
      [] -> B.empty

advised :: Assertion
advised = do
  told <- newIORef []
  withLone (\s -> s {stackSoftErrors = Just (\f e -> modifyIORef told ((remotePort f, e) :))}) $ \st sent -> do
    l <- listen st Nothing 80
    arriveBatch st [packetFrom addressA 4000 (synFrom 1)]
    answers <- sent
    mapM_ (handshake st) answers
    s <- accept l
    _ <- sent
    send s noDeadline (C.pack "lost")
    quoted : _ <- sent
    -- An ICMP error from a router: host unreachable.
    let icmp = B.pack [3, 1, 0, 0, 0, 0, 0, 0] <> B.take 28 quoted
    arriveBatch st [Incoming (Packet.encode (Packet.Packet (V4 0x0a000009) addressB 1 (withSum icmp))) True True]
    readIORef told >>= (@?= [(4000, PeerUnreached)])
  where
    withSum b =
      let words16 = [fromIntegral (B.index b i) * 256 + fromIntegral (B.index b (i + 1)) | i <- [0, 2 .. B.length b - 2]] :: [Int]
          folded n = if n > 65535 then folded (n `mod` 65536 + n `div` 65536) else n
          x = 65535 - folded (sum words16)
       in B.take 2 b <> B.pack [fromIntegral (x `div` 256), fromIntegral (x `mod` 256)] <> B.drop 4 b

noMtu :: Assertion
noMtu = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000
  sock <- accept l
  send sock noDeadline (B.replicate 1400 7)
  quoted : _ <- sent
  let icmp = Icmp.encode (Icmp.FragmentationNeeded 0 (B.take 28 quoted))
  arriveBatch st [Incoming (Packet.encode (Packet.Packet (V4 0x0a000009) addressB 1 icmp)) True True]
  inspect sock summary >>= (@?= 536) . summaryMss

unknownOptions :: Assertion
unknownOptions = withLone (\s -> s {stackAddresses = [own]}) $ \st sent -> do
  let with kind = V6.encode (V6.plain 59 peer own) {V6.extensions = [V6.Extension 60 (B.pack [kind, 4, 0, 0, 0, 0])]} B.empty
  forM_ [0x1e, 0x5e] (\kind -> arriveBatch st [Incoming (with kind) False True])
  sent >>= (@?= [])
  arriveBatch st [Incoming (with 0x9e) False True]
  out <- sent
  [Icmp6.decode own peer body | Right (Packet.Whole (Packet.Packet from to 58 body)) <- map Packet.decode out, (from, to) == (own, peer)]
    @?= [Right (Icmp6.ParameterProblem 2 42 (with 0x9e))]
  replicateM_ 5000 (arriveBatch st [Incoming (with 0x9e) False True])
  many <- length <$> sent
  -- The test may go on for several seconds.
  assertBool (show many) (many < 4000)
  where
    own = V6 0xfe80000000000000 2
    peer = V6 0xfe80000000000000 1

-- | Behind the fragment headers is a header with an option of the given kind, and an echo request.
fragmentedExtensions :: Assertion
fragmentedExtensions = withLone (\s -> s {stackAddresses = [own]}) $ \st sent -> do
  let request = Icmp6.encode peer own (Icmp6.EchoRequest 1 2 (B.replicate 2000 7))
      joined kind = B.drop 40 (V6.encode (V6.plain 58 peer own) {V6.extensions = [V6.Extension 60 (B.pack [kind, 4, 0, 0, 0, 0])]} request)
      arrives proto body n = do
        forM_ (Packet.fragment 1300 n (Packet.Packet peer own proto body)) (\f -> arriveBatch st [Incoming f False True])
        sent
  -- The answer takes two fragments.
  answer <- arrives 60 (joined 0x1e) 1
  map B.length answer @?= [1496, 608]
  B.concat (map (B.drop 48) answer) @?= Icmp6.encode own peer (Icmp6.EchoReply 1 2 (B.replicate 2000 7))
  arrives 60 (joined 0x5e) 2 >>= (@?= [])
  told <- arrives 60 (joined 0x9e) 3
  [(code, at) | Right (Packet.Whole (Packet.Packet _ _ 58 body)) <- map Packet.decode told, Right (Icmp6.ParameterProblem code at _) <- [Icmp6.decode own peer body]] @?= [(2, 42)]
  -- The first fragment of a packet, in fragments itself, is refused, so the packet stays incomplete.
  let inner = map (B.drop 40) (Packet.fragment 1500 4 (Packet.Packet peer own 58 request))
  answers <- forM (zip [5 ..] inner) (uncurry (flip (arrives 44)))
  answers @?= [[], []]
  where
    own = V6 0xfe80000000000000 2
    peer = V6 0xfe80000000000000 1

bigEcho :: Assertion
bigEcho = withLone id $ \st sent -> do
  let body = B.replicate 3000 7
      packet = Packet.Packet addressA addressB 1 (Icmp.encode (Icmp.EchoRequest 1 2 body))
  arriveBatch st [Incoming f False True | f <- Packet.fragment 1500 9 packet]
  out <- sent
  map B.length out @?= [1500, 1500, 68]
  -- Without the IP headers:
  B.concat (map (B.drop 20) out) @?= Icmp.encode (Icmp.EchoReply 1 2 body)

flood :: Assertion
flood = withLone (\s -> s {stackCookieRate = maxBound}) $ \st sent -> do
  l <- listen st Nothing 80
  forM_ [1 .. 20000 :: Int] $ \n -> arriveBatch st [packetFrom (V4 (0x0b000000 + fromIntegral n)) (1024 + n `mod` 60000) (synFrom n)]
  size <- tableSize st
  waiting <- backlogSize <$> readIORef (backlog l)
  answers <- sent
  cookies <- readCounter st CookiesSent
  (size, waiting, cookies) @?= (1024, 1024, 18976)
  -- The connections in the backlog send their SYN-ACKs again after a second.
  assertBool (show (length answers)) (length answers >= 20000)
  -- A client that gets a cookie is served. Its acknowledgment contains everything that the stack needs.
  arriveBatch st [packetFrom addressA 5555 (synFrom 3)]
  -- Those in the backlog may be sent again in between: this one goes to port 5555.
  [answer] <- mapM (either (assertFailure . show) pure . decoded) . filter ((== B.pack [0x15, 0xb3]) . B.take 2 . B.drop 22) =<< sent
  let finalAck = Segment (seqNumber (synFrom 3) + 1) (seqNumber answer + 1) Segment.ack 500 0 noOptions {timestamps = echo answer} [B.pack [1, 2, 3]]
  arriveBatch st [packetFrom addressA 5555 finalAck]
  c <- accept l
  limit <- deadlineIn (seconds 60)
  got <- recv c limit 10
  got @?= B.pack [1, 2, 3]
  where
    echo a = (\(Timestamps v _) -> Timestamps 6 v) <$> timestamps (options a)

oneSource :: Assertion
oneSource = withLone id $ \st _ -> do
  l <- listen st Nothing 80
  forM_ [1 .. 5000 :: Int] $ \n -> arriveBatch st [packetFrom addressA (1024 + n) (synFrom n)]
  arriveBatch st [packetFrom (V4 0x0c000001) 99 (synFrom 1)]
  waiting <- backlogSize <$> readIORef (backlog l)
  waiting @?= 129

evicting :: Assertion
evicting = withLone (\s -> s {stackPolicy = evictingBacklog 50 1000}) $ \st sent -> do
  l <- listen st Nothing 80
  let waiting = backlogSize <$> readIORef (backlog l)
      syns from ns = forM_ ns $ \n -> arriveBatch st [packetFrom from (1024 + n) (synFrom n)]
  -- One is opened, and waits to be accepted.
  opened <- established st sent 4000 1000
  syns (V4 0x0c000001) [1 .. 2000]
  waiting >>= (@?= 50)
  -- A client that comes meanwhile and answers at once.
  later <- established st sent 4001 1000
  syns (V4 0x0c000001) [3000 .. 3100]
  waiting >>= (@?= 50)
  forM_ [opened, later] (\p -> says st p 0 ack (B.singleton 7))
  socks <- replicateM 2 (accept l)
  got <- mapM (\sock -> deadlineIn (seconds 5) >>= \limit -> recv sock limit 10) socks
  got @?= [B.singleton 7, B.singleton 7]
  waiting >>= (@?= 48)
  -- When all are open, none has to go.
  forM_ [5000 .. 5049] (\port -> established st sent port 1000)
  syns (V4 0x0c000002) [1 .. 10]
  waiting >>= (@?= 50)
  replicateM_ 50 (accept l)
  waiting >>= (@?= 0)

resetUnaccepted :: Assertion
resetUnaccepted = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  forM_ [1 .. 100] $ \n -> do
    p <- established st sent (1024 + n) 1000
    says st p 0 Segment.rst B.empty
  let waiting = backlogSize <$> readIORef (backlog l)
  waiting >>= (@?= 100)
  _ <- accept l
  waiting >>= (@?= 99)
  closeListening st l
  waiting >>= (@?= 0)

resetAndSyn :: Assertion
resetAndSyn = withLone id $ \st sent -> do
  _ <- listen st Nothing 80
  p <- established st sent 4000 1000
  _ <- sent
  arriveBatch st [bytesAt p 0 Segment.rst B.empty, packetFrom addressA 4000 (Segment 900000 0 syn 500 0 noOptions [])]
  answers <- mapM (either (assertFailure . show) pure . decoded) =<< sent
  map flags answers @?= [syn <> Segment.ack]

ecn :: Assertion
ecn = withLone id $ \st sent -> do
  _ <- listen st Nothing 80
  arriveBatch st [packetFrom addressA 1000 (synFrom 1) {flags = syn <> Segment.ece <> Segment.cwr}]
  [answer] <- mapM (either (assertFailure . show) pure . decoded) =<< sent
  flags answer @?= syn <> Segment.ack

floodFiltered :: Assertion
floodFiltered = withLone (\s -> (onlyCookies s) {stackCookieRate = 1000}) $ \st sent -> do
  _ <- listen st Nothing 80
  let forge n = arriveBatch st [packetFrom (V4 (0x0b000000 + fromIntegral n)) (1024 + n `mod` 60000) (synFrom n)]
      client = arriveBatch st [packetFrom addressA 5555 (synFrom 3)]
      flooded from = sum <$> mapM (\n -> forge n >> (length <$> sent)) [from .. from + 20000 :: Int]
  begun <- getMonotonicTime
  answered <- flooded 1
  -- A SYN that comes when the rate allows it is answered, and not remembered.
  let unanswered = replicateM_ 20 (forge 60000) >> sent >> client >> sent >>= \found -> unless (null found) unanswered
  known <- getMonotonicTime
  unanswered
  more <- flooded 30000
  ended <- getMonotonicTime
  -- A hundred at once, then one in each millisecond; and a few of which the bit was set.
  assertBool (show (answered, more, ended - begun)) (answered + more <= 100 + ceiling ((ended - begun) * 1000) + 200)
  replicateM_ 20 (forge 60000)
  _ <- sent
  -- The client comes again. Others in between have used up what the rate allows.
  client
  again <- mapM (either assertFailure pure . decoded) =<< sent
  late <- getMonotonicTime
  -- It is known for two seconds at least; on a busy machine they may be over.
  when (late < known + 2) (map flags again @?= [syn <> Segment.ack])

-- | More clients at once than the rate allows in 10 ms. Twenty times as many are too many.
burst :: Assertion
burst = withLone onlyCookies $ \st sent -> do
  _ <- listen st Nothing 80
  let packets from = [packetFrom (V4 (0x0b000000 + fromIntegral n)) (1024 + n) (synFrom n) | n <- [from .. from + 999 :: Int]]
  arriveBatch st (packets 1)
  sent >>= (@?= 1000) . length
  begun <- getMonotonicTime
  forM_ [1 .. 19] (arriveBatch st . packets . (* 1000))
  ended <- getMonotonicTime
  more <- length <$> sent
  assertBool (show (more, ended - begun)) (more <= 2000 + ceiling ((ended - begun) * 20000) + 200)

impossibleSources :: Assertion
impossibleSources = withLone (\s -> s {stackAddresses = [addressB, own6]}) $ \st sent -> do
  _ <- listen st Nothing 80
  let from src =
        [ Packet.Packet src own 6 (Segment.encode src own 4000 80 (synFrom 1)),
          Packet.Packet src own 6 (Segment.encode src own 80 80 (synFrom 1)),
          case src of
            V4 {} -> Packet.Packet src own 1 (Icmp.encode (Icmp.EchoRequest 1 2 (B.replicate 8 7)))
            V6 {} -> Packet.Packet src own 58 (Icmp6.encode src own (Icmp6.EchoRequest 1 2 (B.replicate 8 7)))
        ]
        where
          own = case src of V4 {} -> addressB; V6 {} -> own6
      answers src = arriveBatch st [Incoming (Packet.encode p) False True | p <- from src] >> (length <$> sent)
      texts = ["127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "10.0.0.2", "::", "::1", "::ffff:10.0.0.1", "ff02::1", "fd09::2"]
  found <- mapM answers (mapMaybe parseAddress texts)
  zip texts found @?= [(t, 0) | t <- texts]
  readCounter st NotForUs >>= (@?= 3 * length texts)
  others <- mapM answers (mapMaybe parseAddress ["10.0.0.1", "128.0.0.1", "fd09::1", "fe80::1"])
  others @?= [3, 3, 3, 3]
  where
    own6 = V6 0xfd09000000000000 2

impossiblePeers :: Assertion
impossiblePeers = withLone (\s -> s {stackAddresses = [addressB, V6 0xfd09000000000000 2]}) $ \st sent -> do
  deadline <- deadlineIn (seconds 1)
  let texts = ["127.0.0.1", "0.0.0.1", "255.255.255.255", "10.0.0.2", "::1", "ff02::1", "fd09::2"]
  outs <- forM (mapMaybe parseAddress texts) $ \to ->
    either (\e -> fmap Errno (ioe_errno e) == Just eNETUNREACH) (const False) <$> tryIOError (connect st deadline to 80)
  zip texts outs @?= [(t, True) | t <- texts]
  sent >>= (@?= 0) . length

-- | Answers each SYN with a cookie.
onlyCookies :: StackSettings -> StackSettings
onlyCookies s = s {stackPolicy = Policy "cookies" (\_ _ -> AnswerWithCookie) (Just maxBound)}

forged :: Assertion
forged = withLone onlyCookies $ \st sent -> do
  _ <- listen st Nothing 80
  forM_ [1 .. 5000 :: Int] $ \n -> arriveBatch st [packetFrom addressA 1000 (Segment 5 (fromIntegral n * 858993) Segment.ack 500 0 noOptions [])]
  size <- tableSize st
  size @?= 0
  answers <- mapM (either (assertFailure . show) pure . decoded) =<< sent
  assertBool "resets, of which the number is limited" (all (Segment.has Segment.rst . flags) answers && length answers >= 100)

cookieUnsent :: Assertion
cookieUnsent = withLone onlyCookies $ \st _ -> do
  _ <- listen st Nothing 80
  Env t _ <- stackEnv st addressB
  let cookie = cookieFor (secret st) t (Flow 4000 addressA 80 addressB) 1000 1460
      acknowledge = arriveBatch st [packetFrom addressA 4000 (Segment 1001 (cookie + 1) ack 500 0 noOptions [])]
  acknowledge
  tableSize st >>= (@?= 0)
  arriveBatch st [packetFrom addressA 4001 (synFrom 1)]
  acknowledge
  tableSize st >>= (@?= 1)

closeInterrupted :: Assertion
closeInterrupted = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000
  sock <- accept l
  -- As a step does.
  state <- takeMVar (socketConn sock)
  ended <- newEmptyMVar
  t <- forkFinally (close sock) (const (putMVar ended ()))
  threadDelay 20000
  _ <- forkIO (killThread t)
  threadDelay 20000
  _ <- sent
  putMVar (socketConn sock) state
  takeMVar ended
  answers <- mapM (either assertFailure pure . decoded) =<< sent
  map flags answers @?= [Segment.fin <> ack]

closeHeld :: Assertion
closeHeld = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  sock <- accept l
  says st p 1 ack (B.replicate 1000 7)
  _ <- sent
  close sock
  answers <- mapM (either assertFailure pure . decoded) =<< sent
  map (Segment.has Segment.rst . flags) answers @?= [True]
  tableSize st >>= (@?= 0)

zeroWindow :: Assertion
zeroWindow = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  arriveBatch st [packetFrom addressA 4000 (Segment 1000 0 syn 65535 0 (Options (Just 1460) Nothing False Nothing []) [])]
  [answer] <- mapM (either assertFailure pure . decoded) =<< sent
  let acknowledge = arriveBatch st [packetFrom addressA 4000 (Segment 1001 (seqNumber answer + 1) ack 0 0 noOptions [])]
  acknowledge
  sock <- accept l
  before <- inspect sock summary
  send sock noDeadline (B.replicate 100 7)
  forM_ [1 .. 5 :: Int] $ \_ -> do
    let probe = sent >>= \out -> when (null out) (threadDelay 5000 >> probe)
    probe
    acknowledge
  later <- inspect sock summary
  summaryCwnd later @?= summaryCwnd before

cookiesBounded :: Assertion
cookiesBounded = withLone (\s -> s {stackPolicy = (stackPolicy (onlyCookies s)) {cookieLimit = Just 2}}) $ \st sent -> do
  l <- listen st Nothing 80
  peers <- forM [4000, 4001, 4002] (\port -> established st sent port 1000)
  connections st >>= (@?= 2) . length
  _ <- accept l
  -- The third client takes its connection for open. Its first data opens it.
  forM_ (drop 2 peers) (\p -> says st p 0 ack (B.singleton 7))
  connections st >>= (@?= 3) . length

cookieTime :: Assertion
cookieTime = withLone onlyCookies $ \st sent -> do
  l <- listen st Nothing 80
  arriveBatch st [packetFrom addressA 4000 (synFrom 1)]
  sent >>= mapM_ (handshake st)
  sock <- accept l
  figures <- inspect sock summary
  (summaryRtt figures, summaryRto figures) @?= (0, initialRto defaultConfig)

inStrings :: Assertion
inStrings = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  sock <- accept l
  let a = B.replicate 1400 1
      b = B.replicate 1400 2
  says st p 0 ack a
  says st p 1400 ack b
  recvMany sock noDeadline 2000 >>= (@?= [a, B.take 600 b])
  recvMany sock noDeadline 2000 >>= (@?= [B.drop 600 b])
  says st p 2800 (ack <> Segment.fin) B.empty
  recvMany sock noDeadline 2000 >>= (@?= [])

http :: Assertion
http = withPair (const False) $ \a b -> do
  l <- transportListen (tcpTransport b) there
  under <- newEmptyMVar
  let app request respond = do
        when (rawPathInfo request == C.pack "/slow") (putMVar under () >> threadDelay 300000)
        respond (responseLBS status200 [] (L.fromStrict (rawPathInfo request)))
      ask c path = connSendBytes c noDeadline (C.pack ("GET " ++ path ++ " HTTP/1.1\r\nHost: x\r\n\r\n"))
      answer c = do
        limit <- deadlineIn (seconds 60)
        got <- connReceive c limit 65536
        pure (C.pack "HTTP/1.1 200" `B.isPrefixOf` got, snd (C.breakEnd (== '\n') got))
  withServerWith defaultOptions {Http.optionTransports = [l]} Http.defaultSettings app $ \server -> do
    c <- transportConnect (tcpTransport a) noDeadline (listenerAddress l)
    replicateM_ 3 (ask c "/one" >> answer c >>= (@?= (True, C.pack "/one")))
    serverConnections server >>= (@?= 1)
    -- Draining the server finishes a running request. Afterwards, connections are refused.
    ask c "/slow"
    takeMVar under
    clean <- drainServer server (seconds 25)
    clean @?= True
    answer c >>= (@?= (True, C.pack "/slow"))
    refusedNow <- tryIOError (transportConnect (tcpTransport a) noDeadline (listenerAddress l))
    either (const (pure ())) (const (assertFailure "connected")) refusedNow
