-- |
-- The laws of "Weft.Transport.Laws" over the kernel's sockets and memory, and what only one of these has.
module Spec.Transport
  ( tests,
  )
where

import Control.Exception (bracket)
import Control.Monad (replicateM_, void)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Word (Word32)
import Foreign.C.Error (eBADF, eCONNRESET, eTIMEDOUT)
import Foreign.Storable (Storable (..))
import Harness
import Network.Socket (Family (..), SockAddr (..), SocketOption (..), tupleToHostAddress)
import qualified Network.Socket as N
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (IOMode (ReadMode), hClose, openBinaryFile, openBinaryTempFile)
import System.Info (os)
import System.Mem (getAllocationCounter)
import System.Posix.IO (closeFd, handleToFd)
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import qualified Weft.Socket as S
import Weft.Transport
import Weft.Transport.Laws

-- | Over everything, or over TCP alone: no back end matters to memory, and Unix sockets wait as TCP does.
tests :: Bool -> TestTree
tests everything =
  withResource openFile (closeFd . fst) $ \file ->
    testGroup
      "Transport"
      ( [ testGroup
            name
            [testCase (lawName law) (file >>= lawHolds law . Implementation pair bound) | law <- connectionLaws]
          | (name, bound, pair) <- implementations,
            everything || name == "TCP"
        ]
          <> [ testGroup name [testCase (lawName law) (net >>= \t -> lawHolds law (t, address)) | law <- networkLaws]
               | (name, net, address) <- networks,
                 everything || name == "the kernel's network"
             ]
          <> [memory, received, smallReceives, aborts, peersEnds everything]
          -- The back end of poll(2) reports only to those who ask, and can never tell.
          <> [quiet | not everything]
          <> [segments | os == "linux"]
      )

-- | What becomes of a peer is noticed without receiving.
peersEnds :: Bool -> TestTree
peersEnds everything =
  testGroup
    "the peer's end"
    [ testCase name $ do
        bracket pair (\(a, b) -> connAbort a >> connAbort b) $ \(a, b) -> do
          finished <- start (connAwaitPeer a PeerFinished)
          gone <- start (connAwaitPeer a PeerGone)
          connSendBytes b noDeadline (B8.pack "unread")
          connShutdownSend b noDeadline
          result "finished" finished
          connReceive a noDeadline 100 >>= (@?= B8.pack "unread")
          blocks gone
          connAbort b
          result "gone" gone
          result "finished, since it is gone" =<< start (connAwaitPeer a PeerFinished)
        bracket pair (\(a, b) -> connAbort a >> connAbort b) $ \(a, _) -> do
          waits <- mapM (start . connAwaitPeer a) [PeerFinished, PeerGone]
          mapM_ blocks waits
          connClose a
          mapM_ (failsWith "closed meanwhile" eBADF . result "a wait") waits
          failsWith "closed before" eBADF (connAwaitPeer a PeerGone)
      | (name, _, pair) <- implementations,
        everything || name == "TCP"
    ]

blocks :: Task a -> Assertion
blocks t = blocked t >>= assertBool "does not block"

-- | TCP knows without a system call that nothing has come.
quiet :: TestTree
quiet = testCase "a connection whose bytes have been taken is quiet" . bracket tcpPair (\(a, b) -> connAbort a >> connAbort b) $ \(a, b) -> do
  receiving <- start (connReceive a noDeadline 100)
  blocks receiving
  connSendBytes b noDeadline (B8.pack "taken")
  result "a receive" receiving >>= (@?= B8.pack "taken")
  connIsQuiet a >>= (@?= True)
  connSendBytes b noDeadline (B8.pack "x")
  eventually "something has come" (not <$> connIsQuiet a)
  connReceive a noDeadline 100 >>= (@?= B8.pack "x")
  eventually "nothing is left" (connIsQuiet a)

implementations :: [(String, Int, IO (Connection, Connection))]
implementations =
  [ ("TCP", 4000000, tcpPair),
    ("Unix sockets", 1000000, unixPair),
    ("memory, 64 KiB", 65536, connectionPair 65536 here there),
    ("memory, 1000 bytes", 1000, connectionPair 1000 here there)
  ]
  where
    unixPair = do
      (a, b) <- S.socketPair AF_UNIX N.Stream 0
      pure (socketConnection a (SockAddrUnix ""), socketConnection b (SockAddrUnix ""))

networks :: [(String, IO Transport, SockAddr)]
networks =
  [ ("the kernel's network", pure socketTransport, loopback),
    ("a network in memory", memoryTransport 65536, here)
  ]

here, there, loopback :: SockAddr
here = SockAddrInet 0 (tupleToHostAddress (10, 0, 0, 1))
there = SockAddrInet 0 (tupleToHostAddress (10, 0, 0, 2))
loopback = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))

-- | Both buffers have a fixed size: the kernel would let them grow to what the machine is configured for, tens of
-- megabytes on some.
tcpPair :: IO (Connection, Connection)
tcpPair = bracket (open loopback) S.close $ \l -> do
  S.listen l 1
  address <- S.getSocketName l
  c <- open loopback
  S.connect c address
  (s, peer) <- S.accept l
  pure (socketConnection c address, socketConnection s peer)
  where
    open address = do
      s <- S.socket AF_INET N.Stream 0
      S.setSocketOption s RecvBuffer 200000
      S.setSocketOption s SendBuffer 200000
      s <$ S.bind s address

openFile :: IO (Fd, B.ByteString)
openFile = do
  folder <- getTemporaryDirectory
  (path, h) <- openBinaryTempFile folder "weft-transport"
  let contents = B8.pack (take 200000 (concatMap show [1 :: Int ..]))
  B.hPut h contents
  hClose h
  fd <- openBinaryFile path ReadMode >>= handleToFd
  (fd, contents) <$ removeFile path

memory :: TestTree
memory =
  testGroup
    "memory"
    [ testCase "single bytes are bounded by their number" $ do
        (a, _b) <- connectionPair 1000000 here there
        soon <- deadlineIn (seconds 10)
        replicateM_ 1024 (connSendBytes a soon (B8.pack "x"))
        late <- deadlineIn (milliseconds 20)
        failsWith "the 1025th" eTIMEDOUT (connSendBytes a late (B8.pack "x")),
      testCase "with a full backlog a connect waits until its deadline" $ do
        net <- memoryTransport 100
        l <- transportListen net here
        replicateM_ 128 (transportConnect net noDeadline (listenerAddress l))
        late <- deadlineIn (milliseconds 20)
        failsWith "one more" eTIMEDOUT (transportConnect net late (listenerAddress l))
        waiting <- start (transportConnect net noDeadline (listenerAddress l))
        _ <- finishes "accepting" (listenerAccept l)
        void (result "the one who waited" waiting)
        listenerClose l,
      testCase "a listener that closes aborts those it has not accepted" $ do
        net <- memoryTransport 100
        l <- transportListen net here
        c <- transportConnect net noDeadline (listenerAddress l)
        listenerClose l
        failsWith "receiving" eCONNRESET (connReceive c noDeadline 1)
    ]

received :: TestTree
received = testCase "bytes that were received already come first" $ do
  (a, b) <- connectionPair 1000 here there
  b' <- withReceived (B8.pack "GET / HTTP") b
  connSendBytes a noDeadline (B8.pack "/1.1")
  one <- connReceive b' noDeadline 4
  two <- connReceive b' noDeadline 100
  three <- connReceive b' noDeadline 100
  map B8.unpack [one, two, three] @?= ["GET ", "/ HTTP", "/1.1"]
  connSendBytes b' noDeadline (B8.pack "ok")
  connReceive a noDeadline 10 >>= (@?= "ok") . B8.unpack

-- | A thread's allocation counter counts what this thread allocates, and nothing else.
smallReceives :: TestTree
smallReceives = testCase "a small receive allocates no memory for the 64 KiB that it would accept" $ do
  (a, b) <- tcpPair
  let receives n = do
        before <- getAllocationCounter
        replicateM_ n (connSendBytes a noDeadline (B8.pack "x") >> connReceive b noDeadline 65536)
        left <- getAllocationCounter
        pure (fromIntegral (before - left) `div` n)
  -- The first one may allocate the capability's buffer.
  _ <- receives 10
  each <- receives 200
  assertBool (show each <> " bytes for each receive") (each < 16000)
  mapM_ connClose [a, b]

aborts :: TestTree
aborts = testCase "an abort of TCP resets, and drops undelivered data" $ do
  (a, b) <- tcpPair
  connSendBytes a noDeadline (B8.pack "x")
  connAbort a
  failsWith "receiving" eCONNRESET (connReceive b noDeadline 1 >> connReceive b noDeadline 1)
  connClose b

segments :: TestTree
segments =
  testCase "a head and a small file are one segment of TCP" $ do
    (fd, _) <- openFile
    (client, server) <- socketPair'
    peer <- S.getPeerName server
    let c = socketConnection server peer
    before <- dataSegments server
    connSendFile c noDeadline [B8.pack "he", B8.pack "ad"] (FileRange fd 0 100)
    both <- dataSegments server
    both - before @?= 1
    connSendFile c noDeadline [B8.pack "head"] (FileRange fd 0 0)
    alone <- dataSegments server
    alone - both @?= 1
    connClose c
    S.close client
    closeFd fd
  where
    socketPair' = do
      l <- S.socket AF_INET N.Stream 0
      S.bind l loopback
      S.listen l 1
      client <- S.socket AF_INET N.Stream 0
      S.getSocketName l >>= S.connect client
      (server, _) <- S.accept l
      S.setSocketOption server NoDelay 1
      S.close l
      pure (client, server)

-- | How many segments with data have been sent: tcpi_data_segs_out of TCP_INFO, linux/tcp.h.
dataSegments :: S.Socket -> IO Word32
dataSegments s = (\(TcpInfo n) -> n) <$> S.getSockOpt s (SockOpt 6 11)

newtype TcpInfo = TcpInfo Word32

instance Storable TcpInfo where
  sizeOf _ = 160
  alignment _ = 8
  peek p = TcpInfo <$> peekByteOff p 156
  poke p (TcpInfo n) = pokeByteOff p 156 n
