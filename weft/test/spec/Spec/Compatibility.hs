-- |
-- "Weft.Socket" where programs written for @network@ were found to notice a difference: sizes, senders, closing, stale
-- files, waiting in transactions, lazy strings.
module Spec.Compatibility
  ( tests,
  )
where

import Control.Concurrent (forkIO, killThread, yield)
import Control.Concurrent.STM (atomically, orElse)
import Control.Exception (AsyncException (HeapOverflow), bracket, finally, fromException, throwIO, try)
import Control.Monad (forM_, forever, replicateM, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import qualified Data.ByteString.Lazy.Char8 as LC
import Data.IORef
import Foreign.C.Error (eADDRINUSE, eBADF, eCONNRESET, ePIPE)
import GHC.IO.Exception (IOErrorType (InvalidArgument), IOException (ioe_type))
import Harness
import qualified Network.Socket as N
import qualified Network.Socket.ByteString as NB
import System.Directory (doesPathExist, getTemporaryDirectory, removeFile)
import System.FilePath ((</>))
import System.IO (IOMode (ReadWriteMode), hClose, hGetBuffering, hPutStr)
import System.IO.Error (catchIOError)
import System.Mem (performMajorGC)
import System.Posix.Process (getProcessID)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString
import qualified Weft.Socket.ByteString.Lazy as Lazy

tests :: TestTree
tests = testGroup "as network does" (sizes <> senders <> closing <> names <> transactions <> lazy <> handles)

handles :: [TestTree]
handles =
  [ test "socketToHandle: what is written is sent at once" . withPair Stream $ \a b -> do
      theirs <- bracket (N.socketPair N.AF_UNIX N.Stream N.defaultProtocol) (\(x, y) -> N.close x >> N.close y) $ \(x, _) ->
        bracket (N.socketToHandle x ReadWriteMode) hClose hGetBuffering
      bracket (socketToHandle a ReadWriteMode) hClose $ \h -> do
        hGetBuffering h >>= (@?= theirs)
        hPutStr h "ping"
        recv b 10 >>= (@?= C.pack "ping")
  ]

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

blocks :: Task a -> Assertion
blocks t = blocked t >>= assertBool "does not block"

loopback :: SockAddr
loopback = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))

withPair :: SocketType -> (Socket -> Socket -> IO a) -> IO a
withPair kind act = bracket (socketPair AF_UNIX kind defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act)

-- | Buffers of a fixed size. The kernel would let them grow to what the machine is configured for, tens of megabytes on
-- some, and no thread would wait for room. What a listener accepts has its sizes.
bounded :: Socket -> IO ()
bounded s = setSocketOption s RecvBuffer 200000 >> setSocketOption s SendBuffer 200000

withTcp :: (Socket -> Socket -> IO a) -> IO a
withTcp act = bracket (socket AF_INET Stream defaultProtocol) close $ \l -> do
  bounded l
  bind l loopback
  listen l 16
  addr <- getSocketName l
  bracket (socket AF_INET Stream defaultProtocol) close $ \a -> do
    bounded a
    connect a addr
    bracket (fst <$> accept l) close (act a)

payload :: Int -> B.ByteString
payload n = B.pack [fromIntegral (i * i `mod` 251) | i <- [1 .. n]]

-- | A path that nothing has.
withPath :: (FilePath -> IO a) -> IO a
withPath act = do
  folder <- getTemporaryDirectory
  pid <- getProcessID
  let path = folder </> ("weft-spec-" <> show pid)
  act path `finally` (removeFile path `catchIOError` const (pure ()))

-- Sizes ------------------------------------------------------------------------------

sizes :: [TestTree]
sizes =
  [ test "datagrams of 150,000 bytes arrive whole: recv, recvFrom, recvMsg" . withPair Datagram $ \a b -> do
      -- More than the default of some machines, or as much as this one allows.
      setSocketOption a SendBuffer 400000
      let bytes = payload 150000
          whole what got = assertBool (what <> ": " <> show (B.length got) <> " bytes") (got == bytes)
      forM_ [False, True] $ \waiting -> do
        let transfer what receive
              | waiting = do
                t <- start receive
                blocks t
                sendAll a bytes
                result what t >>= whole what
              | otherwise = sendAll a bytes >> receive >>= whole what
        transfer "recv" (recv b 200000)
        transfer "recvFrom" (fst <$> recvFrom b 200000)
        transfer "recvMsg" ((\(_, got, _, _) -> got) <$> recvMsg b 200000 0 mempty)
      sendAll a bytes
      cut <- recv b 65537
      B.length cut @?= 65537
      -- What was cut is gone, as a datagram's rest is.
      sendAll a (C.pack "next")
      recv b 65537 >>= (@?= C.pack "next"),
    test "sendManyTo: one datagram, also of many pieces, and of pieces without bytes" $
      bracket (socket AF_INET Datagram defaultProtocol) close $ \a -> bracket (socket AF_INET Datagram defaultProtocol) close $ \b -> do
        bind b loopback
        to <- getSocketName b
        forM_ [replicate 3000 (C.pack "p"), [B.empty, B.empty], [C.pack "a", B.empty, C.pack "b"]] $ \pieces -> do
          sendManyTo a pieces to
          finishes "the datagram" (recv b 65536) >>= (@?= B.concat pieces)
        -- No pieces: no datagram.
        sendManyTo a [] to
        sendManyTo a [C.pack "next"] to
        recv b 65536 >>= (@?= C.pack "next"),
    test "a stream gives more than 64 KiB at once, and the end" . withPair Stream $ \a b -> do
      setSocketOption a SendBuffer 400000
      let bytes = payload 150000
      sendAll a bytes
      got <- recv b 1000000
      assertBool (show (B.length got) <> " bytes") (got == bytes)
      sendAll a (C.pack "few")
      recv b 1000000 >>= (@?= C.pack "few")
      close a
      recv b 1000000 >>= (@?= B.empty),
    test "more bytes than there is memory for: as network, and the socket can still be used, and closed" . withPair Stream $ \a b -> do
      sendAll a (C.pack "few")
      out <- try (recv b maxBound)
      either (@?= HeapOverflow) (assertFailure . show) out
      recv b 100 >>= (@?= C.pack "few")
      close b
      recv a 100 >>= (@?= B.empty),
    test "numbers that are not positive: an invalid argument, whatever there is" . withPair Stream $ \a b ->
      bracket (N.socketPair AF_UNIX Stream defaultProtocol) (\(c, d) -> N.close c >> N.close d) $ \(c, d) ->
        forM_ [0, -1] $ \n -> do
          let alike what weft network = do
                [e, e'] <- mapM (fmap ioe_type . failure what) [weft, network]
                (what, e) @?= (what, e')
                e @?= InvalidArgument
          sendAll a (C.pack "x") >> NB.sendAll c (C.pack "x")
          alike "recv" (void (recv b n)) (void (NB.recv d n))
          alike "recvFrom" (void (recvFrom b n)) (void (NB.recvFrom d n))
  ]

-- Senders ----------------------------------------------------------------------------

senders :: [TestTree]
senders =
  [ test "recvFrom on a connected stream: the peer" . withTcp $ \a b -> do
      [fromA, _] <- mapM getSocketName [a, b]
      forM_ [10, 100000] $ \n -> do
        sendAll a (C.pack "x")
        recvFrom b n >>= (@?= (C.pack "x", fromA))
      sendAll a (C.pack "y")
      (from, bytes, _, _) <- recvMsg b 10 0 mempty
      (from, bytes) @?= (fromA, C.pack "y"),
    test "an unnamed sender" . withPath $ \path ->
      bracket (socket AF_UNIX Datagram defaultProtocol) close $ \b -> bracket (socket AF_UNIX Datagram defaultProtocol) close $ \a -> do
        bind b (SockAddrUnix path)
        sendAllTo a (C.pack "x") (SockAddrUnix path)
        recvFrom b 10 >>= (@?= (C.pack "x", SockAddrUnix "")),
    test "a family that network does not know: the data arrives, close closes" $ do
      before <- openDescriptors
      -- Netlink: "which interfaces are there?", and the kernel's answer.
      s <- socket (N.unpackFamily 16) N.Raw 0
      let ask = void (send s (B.pack ([20, 0, 0, 0, 18, 0, 1, 3] <> replicate 12 0)))
      ask
      (bytes, from) <- recvFrom s 32768
      assertBool "no answer" (B.length bytes >= 16)
      from @?= SockAddrUnix ""
      ask
      (_, bytes', _, _) <- recvMsg s 32768 0 mempty
      assertBool "no answer" (B.length bytes' >= 16)
      close s
      noneLeftOpen before
  ]

-- Closing ----------------------------------------------------------------------------

closing :: [TestTree]
closing =
  [ test "gracefulClose, closeGracefully: interrupted, they close in any case" $
      forM_ [(`gracefulClose` 60000), closeGracefully (seconds 60) maxBound] $ \closeIt ->
        forM_ [1 .. times 20] $ \i -> withTcp $ \a b -> do
          t <- start (closeIt a)
          if even i then blocks t else replicateM_ (i `mod` 7) yield
          stop t
          r <- outcome "the closing thread" t
          -- Killed before it began, it has not.
          when (even i || either (const False) (const True) r) $ do
            failsWith "recv" eBADF (recv a 1)
            recv b 1 >>= (@?= B.empty),
    test "gracefulClose is bounded in bytes" . withTcp $ \a b -> do
      sender <- start (forever (sendAll b (B.replicate 65536 1)))
      gracefulClose a 3600000
      e <- failure "send" (result "send" sender)
      any (`isErrno` e) [ePIPE, eCONNRESET] @? show e,
    test "SO_LINGER: close waits for the peer, and no other thread does" . withTcp $ \a b -> do
      setSocketOption a Linger 1
      -- Otherwise the sender may be inside a send as the socket is closed, and would be the one to wait.
      fillUp a
      full <- start (forever (sendAll a (B.replicate 65536 1)))
      blocks full
      ticks <- newIORef (0 :: Int)
      ticker <- forkIO (forever (modifyIORef' ticks (+ 1) >> pause 5))
      -- On the same capability, as -N1 is among the configurations. Other descriptors' closes go on, too.
      neighbours <- replicateM 40 (socket AF_INET Stream defaultProtocol)
      (_, took) <- timed $ do
        closer <- start (close a)
        blocks closer
        mapM_ close neighbours
        failsWith "recv" eBADF (recv a 1)
        result "close" closer
      n <- readIORef ticks
      killThread ticker
      void (outcome "the sender" full)
      took @>= 0.9
      -- A stalled capability leaves the ticker two or three turns; 200 are possible.
      n @>= 8
      close b,
    test "SO_LINGER: close does not wait for data that the peer has taken" . withTcp $ \a b -> do
      setSocketOption a Linger 30
      sendAll a (payload 10000)
      reader <- start (exactly b 10000)
      close a
      result "recv" reader >>= (@?= payload 10000),
    test "SO_LINGER: collected, it holds up no other finalizer" $ do
      before <- openDescriptors
      peers <- newIORef []
      withTcpKept peers
      replicateM_ 20 (socket AF_INET Stream defaultProtocol)
      left <- settled (before + 2) openDescriptors
      -- The peer, and the duplicate that lingers.
      assertBool (show (left - before) <> " descriptors left") (left <= before + 2)
      readIORef peers >>= mapM_ close
  ]
  where
    exactly s n = B.concat <$> go n
      where
        go 0 = pure []
        go left = recv s left >>= \c -> if B.null c then pure [] else (c :) <$> go (left - B.length c)
    -- Send until the buffers of both ends are full, and no longer grow.
    fillUp s = do
      r <- sendNow s (B.replicate 65536 1)
      case r of
        Left e -> throwIO e
        Right 0 -> pause 100 >> sendNow s (B.replicate 1 1) >>= \again -> unless (again == Right 0) (fillUp s)
        Right _ -> fillUp s
    -- A full connection that lingers for half a minute, forgotten; its peer is kept.
    withTcpKept peers = bracket (socket AF_INET Stream defaultProtocol) close $ \l -> do
      bind l loopback
      listen l 16
      a <- socket AF_INET Stream defaultProtocol
      getSocketName l >>= connect a
      (b, _) <- accept l
      writeIORef peers [b]
      setSocketOption a Linger 30
      let fill = sendNow a (B.replicate 65536 1) >>= \r -> unless (r == Right 0) (either throwIO (const fill) r)
      fill

-- Names --------------------------------------------------------------------------------

names :: [TestTree]
names =
  [ test "bind on the file that a Unix socket has left" . withPath $ \path ->
      forM_ [Stream, Datagram] $ \kind -> do
        let with = bracket (socket AF_UNIX kind defaultProtocol) close
            address = SockAddrUnix path
        with (`bind` address)
        there <- doesPathExist path
        there @?= True
        with $ \s -> do
          bind s address
          when (kind == Stream) (listen s 4)
          -- A socket is bound to the address now.
          with $ \s' -> failsWith "bind" eADDRINUSE (bind s' address)
          with $ \s' -> connect s' address
        removeFile path,
    test "bind removes nothing but a socket's file" . withPath $ \path -> do
      writeFile path "precious"
      bracket (socket AF_UNIX Stream defaultProtocol) close $ \s -> failsWith "bind" eADDRINUSE (bind s (SockAddrUnix path))
      readFile path >>= (@?= "precious"),
    test "abstract names are not files" . bracket (socket AF_UNIX Stream defaultProtocol) close $ \s -> do
      pid <- getProcessID
      let address = SockAddrUnix ("\0weft-spec-" <> show pid)
      bind s address
      bracket (socket AF_UNIX Stream defaultProtocol) close $ \s' -> failsWith "bind" eADDRINUSE (bind s' address)
  ]

-- Transactions -----------------------------------------------------------------------

transactions :: [TestTree]
transactions =
  [ test "waiting for one of two sockets in a transaction" . withPair Stream $ \a b -> withPair Stream $ \c d -> leavesNothing $ do
      (readable, cancel) <- waitAndCancelReadSocketSTM b
      (readable', cancel') <- waitAndCancelReadSocketSTM d
      t <- start (atomically ((readable >> pure 'b') `orElse` (readable' >> pure 'd')))
      blocks t
      performMajorGC
      sendAll c (C.pack "x")
      result "the transaction" t >>= (@?= 'd')
      cancel >> cancel'
      waitWriteSocketSTM a >>= atomically
      -- Level-triggered: what was left unread counts.
      waitReadSocketSTM d >>= atomically
      recv d 10 >>= (@?= C.pack "x"),
    test "closing tells a transaction that waits" . withPair Stream $ \_ b -> leavesNothing $ do
      readable <- waitReadSocketSTM b
      t <- start (atomically readable)
      blocks t
      close b
      failsWith "the transaction" eBADF (result "the transaction" t)
      failsWith "waitReadSocketSTM" eBADF (waitReadSocketSTM b)
      failsWith "waitWriteSocketSTM" eBADF (waitWriteSocketSTM b)
  ]

-- Lazy strings -----------------------------------------------------------------------

lazy :: [TestTree]
lazy =
  [ test "lazy strings: all of them arrive, and then the end" . withTcp $ \a b -> do
      let bytes = L.fromChunks ([payload (i `mod` 97) | i <- [1 .. 5000]] <> [payload 1000000])
      sender <- start (Lazy.sendAll a bytes >> shutdown a ShutdownSend)
      got <- Lazy.getContents b
      assertBool "other bytes" (got == bytes)
      result "sendAll" sender,
    test "lazy strings: send takes a part and returns its length, recv returns the available bytes" . withPair Stream $ \a b -> do
      Lazy.send a L.empty >>= (@?= 0)
      Lazy.send a (L.fromChunks [C.pack "ab", C.pack "c"]) >>= (@?= 3)
      Lazy.recv b 100 >>= (@?= LC.pack "abc")
      let bytes = L.fromChunks (replicate 2000 (payload 5000))
      n <- Lazy.send a bytes
      assertBool (show n) (n > 0 && n <= 4194304)
      got <- Lazy.recv b n
      assertBool "other bytes" (got == L.take (L.length got) bytes)
      close a
      void (Lazy.getContents b >>= \rest -> L.length got + L.length rest @?= n),
    test "lazy strings: nothing is received before it is wanted, and exceptions come out there" . withPair Stream $ \a b -> do
      soon <- deadlineIn (milliseconds 5)
      got <- Lazy.getContents (withDeadline soon b)
      sendAll a (C.pack "x")
      -- It is past the deadline, but this came.
      pause 10
      LC.head got @?= 'x'
      r <- try (L.length got `seq` pure ())
      assertBool "no time-out" (either (maybe False isTimeout . fromException) (const False) r)
  ]
