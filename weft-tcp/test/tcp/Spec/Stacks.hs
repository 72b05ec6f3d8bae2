-- |
-- Two stacks in one program, connected in memory: the laws of "Weft.Transport", over a link
-- that loses nothing and one that does; floods of SYNs; what a connection costs.
module Spec.Stacks (tests) where

import Control.Concurrent
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
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
import Weft.Tcp.Core.Listener (backlogSize)
import Weft.Tcp.Device
import Weft.Tcp.Stack (Listening (..))
import Weft.Tcp.Stack.Input (arriveBatch)
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
      testCase "a SYN with ECE and CWR is answered" ecn,
      testCase "forged cookies are refused" forged,
      testCase "recvMany gives the strings that came, cut to what is asked for, and none at the end" inStrings,
      testCase "time to live and differentiated services as they were chosen (MUST-48, MUST-49)" marked,
      testCase "an unreachable peer is reported (MUST-47)" advised,
      testCase "the HTTP engine serves on a stack, and drains" http
    ]
  where
    laws name loses =
      withResource openFile (\(fd, _) -> closeFd fd) $ \file ->
        testGroup name [testCase (lawName law) (withPair loses (\a b -> file >>= lawHolds law . Subject (connected a b) 8000000)) | law <- connectionLaws]
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
  limit <- deadlineIn (seconds 60)
  let sent = B.pack (take 2000000 (cycle [1 .. 251]))
  _ <- forkIO (connSendBytes c limit sent >> connShutdownSend c limit)
  let receive' acc = do
        x <- connReceive s limit 65536
        if B.null x then pure (B.concat (reverse acc)) else receive' (x : acc)
  got <- receive' []
  assertBool "other bytes" (got == sent)

-- | Of a packet: time to live and differentiated services.
marksOf :: B.ByteString -> (Int, Int)
marksOf p = (fromIntegral (B.index p 8), fromIntegral (B.index p 1))

marked :: Assertion
marked = withLone (\s -> s {stackConfig = (stackConfig s) {firstChoices = (firstChoices (stackConfig s)) {sendHopLimit = 7}}}) $ \st sent -> do
  l <- listen st Nothing 80
  arriveBatch st [packetFrom addressA 4000 (synFrom 1), packetFrom addressA 4001 (Segment 5 6 ack 0 0 noOptions [])]
  answers <- sent
  -- The SYN and ACK; the second has no connection, and no cookie: a reset.
  map marksOf answers @?= [(7, 0), (7, 0)]
  s <- handshake st (head' answers) >> accept l
  setChoices s (\o -> o {sendTrafficClass = 0xb8, sendHopLimit = 255, useNagle = False})
  _ <- sent
  send s noDeadline (C.pack "now")
  sent >>= (@?= [(255, 0xb8)]) . map marksOf
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
    [quoted] <- sent
    -- Host unreachable, from a router.
    let icmp = B.pack [3, 1, 0, 0, 0, 0, 0, 0] <> B.take 28 quoted
    arriveBatch st [Incoming (Packet.encode (Packet.Packet (V4 0x0a000009) addressB 1 (withSum icmp))) True True]
    readIORef told >>= (@?= [(4000, PeerUnreached)])
  where
    withSum b =
      let words16 = [fromIntegral (B.index b i) * 256 + fromIntegral (B.index b (i + 1)) | i <- [0, 2 .. B.length b - 2]] :: [Int]
          folded n = if n > 65535 then folded (n `mod` 65536 + n `div` 65536) else n
          x = 65535 - folded (sum words16)
       in B.take 2 b <> B.pack [fromIntegral (x `div` 256), fromIntegral (x `mod` 256)] <> B.drop 4 b

flood :: Assertion
flood = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  forM_ [1 .. 20000 :: Int] $ \n -> arriveBatch st [packetFrom (V4 (0x0b000000 + fromIntegral n)) (1024 + n `mod` 60000) (synFrom n)]
  size <- tableSize st
  waiting <- backlogSize <$> readIORef (backlog l)
  answers <- sent
  cookies <- readCounter st CookiesSent
  (size, waiting, cookies) @?= (1024, 1024, 18976)
  -- Those that are remembered are answered again after a second.
  assertBool (show (length answers)) (length answers >= 20000)
  -- A client that gets a cookie is served; its acknowledgment is all that is known of it.
  arriveBatch st [packetFrom addressA 5555 (synFrom 3)]
  [answer] <- mapM (either (assertFailure . show) pure . decoded) =<< sent
  let finalAck = Segment (seqNumber (synFrom 3) + 1) (seqNumber answer + 1) Segment.ack 500 0 noOptions {timestamps = echo answer} [B.pack [1, 2, 3]]
  arriveBatch st [packetFrom addressA 5555 finalAck]
  c <- accept l
  limit <- deadlineIn (seconds 5)
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

ecn :: Assertion
ecn = withLone id $ \st sent -> do
  _ <- listen st Nothing 80
  arriveBatch st [packetFrom addressA 1000 (synFrom 1) {flags = syn <> Segment.ece <> Segment.cwr}]
  [answer] <- mapM (either (assertFailure . show) pure . decoded) =<< sent
  flags answer @?= syn <> Segment.ack

forged :: Assertion
forged = withLone (\s -> s {stackPolicy = Policy "cookies" (\_ _ -> AnswerWithCookie) True}) $ \st sent -> do
  _ <- listen st Nothing 80
  forM_ [1 .. 5000 :: Int] $ \n -> arriveBatch st [packetFrom addressA 1000 (Segment 5 (fromIntegral n * 858993) Segment.ack 500 0 noOptions [])]
  size <- tableSize st
  size @?= 0
  answers <- mapM (either (assertFailure . show) pure . decoded) =<< sent
  assertBool "resets" (all (Segment.has Segment.rst . flags) answers && length answers == 5000)

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
        limit <- deadlineIn (seconds 10)
        got <- connReceive c limit 65536
        pure (C.pack "HTTP/1.1 200" `B.isPrefixOf` got, snd (C.breakEnd (== '\n') got))
  withServerWith defaultOptions {Http.optionTransports = [l]} Http.defaultSettings app $ \server -> do
    c <- transportConnect (tcpTransport a) noDeadline (listenerAddress l)
    replicateM_ 3 (ask c "/one" >> answer c >>= (@?= (True, C.pack "/one")))
    serverConnections server >>= (@?= 1)
    -- A request under way is finished before the server ends; nobody is let in meanwhile.
    ask c "/slow"
    takeMVar under
    clean <- drainServer server (seconds 5)
    clean @?= True
    answer c >>= (@?= (True, C.pack "/slow"))
    refusedNow <- tryIOError (transportConnect (tcpTransport a) noDeadline (listenerAddress l))
    either (const (pure ())) (const (assertFailure "connected")) refusedNow
