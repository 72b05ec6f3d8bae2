-- |
-- Sockets that keep messages, and sockets whose description another process has made blocking.
module Spec.Datagrams
  ( tests,
  )
where

import Control.Exception (bracket, finally, try)
import Control.Monad (forM_, replicateM_, void)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.List (isInfixOf)
import Foreign.C.Error (eBADF, eINVAL, eMSGSIZE)
import Foreign.Marshal.Alloc (allocaBytes)
import Harness
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import System.IO.Error (isEOFError)
import System.Posix.IO (FdOption (NonBlockingRead), closeFd, createPipe, setFdOption)
import System.Posix.Types (Fd (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.FFI.Socket (cDrains)
import Weft.Metrics
import Weft.Socket
import Weft.Socket.ByteString
import qualified Weft.Socket.ByteString.Lazy as Lazy

tests :: TestTree
tests = testGroup "datagrams" (wholeMessages <> fullPeers <> sharedDescriptions <> passing)

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

withPair :: SocketType -> (Socket -> Socket -> IO a) -> IO a
withPair kind act = bracket (socketPair AF_UNIX kind defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act)

-- Messages ---------------------------------------------------------------------------

wholeMessages :: [TestTree]
wholeMessages =
  [ test ("more pieces than a call takes are one message: " <> name) $
      forM_ [Datagram, SeqPacket] $ \kind -> withPair kind $ \a b -> do
        -- The limit of a call is 1,024.
        forM_ [1023, 1024, 1025, 3000] $ \n -> do
          sending a (replicate n (C.pack "ab"))
          got <- recv b 65536
          (B.length got, B.length (B.filter (== 97) got)) @?= (2 * n, n)
        soon <- deadlineIn (milliseconds 1)
        e <- failure "recv" (recv (withDeadline soon b) 1)
        isTimeout e @? "a second message: " <> show e
    | (name, sending) <-
        [ ("sendMany", sendMany),
          ("lazy sendAll", \a -> Lazy.sendAll a . L.fromChunks),
          ("lazy send", \a -> void . Lazy.send a . L.fromChunks)
        ]
  ]
    <> [ test "a message that is too long is an error, and none is sent" . withPair Datagram $ \a b -> do
           setSocketOption a SendBuffer 8192
           failsWith "sendMany" eMSGSIZE (sendMany a (replicate 1025 (B.replicate 1000 1)))
           failsWith "sendManyNow" eMSGSIZE (sendManyNow a (replicate 1025 (C.pack "a")) >>= either ioError pure)
           sendAll a (C.pack "after")
           recv b 100 >>= (@?= C.pack "after"),
         test "a stream takes any number of pieces, in parts" . withPair Stream $ \a b -> do
           t <- start (sendMany a (replicate 300000 (C.pack "ab")) >> shutdown a ShutdownSend)
           let count n = recv b 65536 >>= \bytes -> if B.null bytes then pure n else count (n + B.length bytes)
           count 0 >>= (@?= 600000)
           result "sendMany" t
       ]

-- Full peers ---------------------------------------------------------------------------

-- | A sender without a peer, and a receiver at an address, whose queue is full.
withFull :: (Socket -> Socket -> SockAddr -> IO a) -> IO a
withFull act = do
  folder <- getTemporaryDirectory
  bracket (openBinaryTempFile folder "weft-spec" >>= \(path, h) -> path <$ hClose h) removeFile $ \path -> do
    let address = SockAddrUnix (path <> ".socket")
    withSocket $ \to -> withSocket $ \from -> do
      bind to address
      (fill from address >> act from to address) `finally` removeFile (path <> ".socket")
  where
    withSocket = bracket (socket AF_UNIX Datagram defaultProtocol) close
    fill from address = do
      soon <- deadlineIn (milliseconds 5)
      e <- failure "filling the queue" (replicateM_ 100000 (sendTo (withDeadline soon from) (C.pack "x") address))
      isTimeout e @? show e

fullPeers :: [TestTree]
fullPeers =
  [ test "a send to a Unix socket without room waits, and goes on when there is room" . withFull $ \from to address ->
      forM_
        [ void (sendTo from (C.pack "a") address),
          sendManyTo from [C.pack "a", C.pack "b"] address,
          void (sendMsg from address [C.pack "a"] [] mempty)
        ]
        $ \sending -> do
          t <- start sending
          blocked t >>= assertBool "does not block"
          _ <- recv to 100
          result "the send" t,
    test "waiting for such a peer does not spin" . withFull $ \from _ address -> do
      before <- total metricsWaits <$> readMetrics
      soon <- deadlineIn (milliseconds 300)
      e <- failure "sendTo" (sendTo (withDeadline soon from) (C.pack "a") address)
      isTimeout e @? show e
      afterwards <- total metricsWaits <$> readMetrics
      -- One for each try where it spins: tens of thousands.
      assertBool (show (afterwards - before) <> " waits") (afterwards - before < 1000),
    test "closing the sender ends the wait; so does an exception" . withFull $ \from _ address -> do
      t <- start (sendTo from (C.pack "a") address)
      blocked t >>= assertBool "does not block"
      stop t
      t' <- start (sendTo from (C.pack "a") address)
      blocked t' >>= assertBool "does not block"
      close from
      failsWith "sendTo" eBADF (result "sendTo" t')
  ]

-- Shared descriptions --------------------------------------------------------------------

-- | O_NONBLOCK belongs to the description, so that whoever shares it can clear it.
makeBlocking :: Socket -> IO ()
makeBlocking s = withFdSocket s (\fd -> setFdOption (Fd fd) NonBlockingRead False)

sharedDescriptions :: [TestTree]
sharedDescriptions =
  [ test ("another process has cleared O_NONBLOCK: " <> name) . withPair Stream $ \a b -> do
      prepared a
      makeBlocking a
      soon <- deadlineIn (milliseconds 20)
      e <- failure name (act (withDeadline soon a))
      isTimeout e @? show e
      -- In a system call that blocks, no other thread would run, and this would not end.
      t <- start (act a)
      blocked t >>= assertBool "does not block"
      stop t
      close b
    | (name, prepared, act) <- receiving <> sending
  ]
    <> [ test "another process has cleared O_NONBLOCK: sends that do not wait" . withPair Stream $ \a _ -> do
           filled a
           makeBlocking a
           sendNow a (C.pack "x") >>= either ioError (@?= 0)
           sendManyNow a [C.pack "x", C.pack "y"] >>= either ioError (@?= 0)
       ]
  where
    receiving =
      [ (name, const (pure ()), act)
        | (name, act) <-
            [ ("recv", \s -> void (recv s 10)),
              ("recvLarge", \s -> void (recvLarge s 100000)),
              ("recvFrom", \s -> void (recvFrom s 10)),
              ("recvBuf", \s -> allocaBytes 10 (\p -> void (recvBuf s p 10))),
              ("recvBufFrom", \s -> allocaBytes 10 (\p -> void (recvBufFrom s p 10))),
              ("recvMsg", \s -> void (recvMsg s 10 10 mempty)),
              ("recvFd", void . recvFd)
            ]
      ]
    sending =
      [ (name, filled, act)
        | (name, act) <-
            [ ("send", \s -> void (send s (C.pack "x"))),
              ("sendAll", \s -> sendAll s (C.pack "x")),
              ("sendMany of two", \s -> sendMany s [C.pack "x", C.pack "y"]),
              ("sendMany", \s -> sendMany s (map C.pack ["x", "y", "z"])),
              ("sendManyMore", \s -> sendManyMore s (map C.pack ["x", "y"])),
              ("lazy sendAll", \s -> Lazy.sendAll s (L.fromChunks [C.pack "x"])),
              ("sendFd", \s -> withFdSocket s (sendFd s))
            ]
      ]
    -- Small pieces at last, so that there is no room for one byte.
    filled s = forM_ [65536, 1] $ \size ->
      let go = sendNow s (B.replicate size 1) >>= either ioError (\n -> if n == 0 then pure () else go) in go

-- What a socket is, and passing descriptors
-- ------------------------------------------------------------------------------

passing :: [TestTree]
passing =
  [ test "only a stream of TCP, or a pipe, is emptied by a short read" $ do
      drains AF_INET Stream 0 >>= (@?= Just True)
      drains AF_INET Stream 6 >>= (@?= Just True)
      mapM (\kind -> drains AF_UNIX kind 0) [Stream, Datagram, SeqPacket] >>= (@?= replicate 3 (Just False))
      drains AF_INET Datagram 0 >>= (@?= Just False)
      -- SCTP in both styles, and MPTCP: a kernel may have neither.
      others <- mapM (uncurry (drains AF_INET)) [(Stream, 132), (SeqPacket, 132), (Stream, 262)]
      filter (== Just True) others @?= []
      bracket createPipe (\(r, w) -> mapM_ closeFd [r, w]) $ \(Fd r, Fd w) -> mapM cDrains [r, w] >>= (@?= [1, 1]),
    test "recvFd at the end of the stream, and of a byte without a descriptor" . withPair Stream $ \a b -> do
      sendAll a (C.pack "x")
      e <- failure "recvFd" (recvFd b)
      (isErrno eINVAL e && "without a descriptor" `isInfixOf` show e) @? show e
      close a
      end <- failure "recvFd" (recvFd b)
      isEOFError end @? show end
  ]
  where
    -- 'Nothing' if there is no such socket.
    drains family kind protocol = do
      r <- try (bracket (socket family kind protocol) close (`withFdSocket` cDrains))
      pure (either (\e -> let _ = e :: IOError in Nothing) (Just . (> 0)) r)
