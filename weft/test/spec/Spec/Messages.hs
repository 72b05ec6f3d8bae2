-- |
-- Sockets beyond plain sending and receiving: files, messages with control data,
-- urgent data, bounds on closing and connecting, and company on a descriptor.
module Spec.Messages
  ( tests,
  )
where

import Control.Concurrent (yield)
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (create)
import Data.IORef
import Foreign.C.Error (eBADF, eCONNRESET, ePIPE)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Marshal.Array (pokeArray)
import Foreign.Ptr (castPtr)
import Foreign.Storable (peek, sizeOf)
import Harness
import qualified Network.Socket as N
import qualified Network.Socket.ByteString as NB
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (SeekMode (AbsoluteSeek), hClose, hSetFileSize, openBinaryTempFile)
import System.IO.Error (isEOFError)
import System.Posix.Fcntl (Advice (AdviceDontNeed), fileAdvise)
import System.Posix.IO (closeFd, fdReadBuf, fdSeek, fdWrite)
import System.Posix.Types (Fd (..))
import System.Posix.Unistd (fileSynchronise)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString
import Weft.Test.Descriptors (openPath, withFds)
import Weft.Thread (threadWaitRead)

tests :: TestTree
tests = testGroup "messages" (files <> control <> others)

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

blocks :: Task a -> IO ()
blocks t = blocked t >>= assertBool "does not block"

withUnix :: (Socket -> Socket -> IO a) -> IO a
withUnix act = bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act)

loopback :: SockAddr
loopback = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))

-- | Buffers of a fixed size. The kernel would let them grow to what the machine is configured for, tens of megabytes on
-- some, and no thread would wait for room. What a listener accepts has its sizes.
bounded :: Socket -> IO ()
bounded s = setSocketOption s RecvBuffer 200000 >> setSocketOption s SendBuffer 200000

listening :: Int -> (Socket -> SockAddr -> IO a) -> IO a
listening backlog act = bracket (socket AF_INET Stream defaultProtocol) close $ \l -> do
  bounded l
  bind l loopback
  listen l backlog
  getSocketName l >>= act l

withTcp :: (Socket -> Socket -> IO a) -> IO a
withTcp act = listening 16 $ \l addr -> bracket (socket AF_INET Stream defaultProtocol) close $ \a -> do
  bounded a
  connect a addr
  bracket (fst <$> accept l) close (act a)

-- | All until the end of the stream.
recvAll :: Socket -> IO B.ByteString
recvAll s = B.concat <$> go
  where
    go = do
      c <- recv s 65536
      if B.null c then pure [] else (c :) <$> go

payload :: Int -> B.ByteString
payload n = B.pack [fromIntegral (i * i `mod` 251) | i <- [1 .. n]]

withFile :: B.ByteString -> (FilePath -> IO a) -> IO a
withFile content = bracket make removeFile
  where
    make = do
      folder <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile folder "weft-spec"
      B.hPut h content
      path <$ hClose h

withOpen :: FilePath -> (Fd -> IO a) -> IO a
withOpen path act = withFds (\fds -> openPath fds path >>= act)

-- Files --------------------------------------------------------------------------------

files :: [TestTree]
files =
  [ test "a file arrives whole, past a slow reader" . withTcp $ \a b -> do
      let content = B.concat (replicate 20 (payload 1000000))
      withFile content $ \path -> do
        t <- start (sendFile a path >> shutdown a ShutdownSend)
        blocks t
        got <- recvAll b
        assertBool "other bytes" (got == content)
        result "sendFile" t,
    test "a file with parts in the page cache and parts on the disk" . withTcp $ \a b -> do
      let content = B.concat (replicate 20 (payload 1000000))
      withFile content $ \path -> withOpen path $ \fd -> do
        fileSynchronise fd
        fileAdvise fd 0 0 AdviceDontNeed
        -- Back into memory: the first half MiB, and some in the middle of another.
        forM_ [0, 262144, 5000000] $ \at -> fdSeek fd AbsoluteSeek at >> allocaBytes 262144 (\p -> fdReadBuf fd p 262144)
        t <- start (sendFileRange a fd 0 20000000 >> shutdown a ShutdownSend)
        got <- recvAll b
        assertBool "other bytes" (got == content)
        result "sendFileRange" t,
    test "sendFileRangeWith tells of every byte once" . withTcp $ \a b -> withFile (payload 3000000) $ \path -> withOpen path $ \fd -> do
      told <- newIORef []
      t <- start (sendFileRangeWith (\n -> modifyIORef told (n :)) a fd 1000 2999000 >> shutdown a ShutdownSend)
      got <- recvAll b
      assertBool "other bytes" (got == B.drop 1000 (payload 3000000))
      result "sendFileRangeWith" t
      parts <- readIORef told
      sum parts @?= 2999000
      assertBool (show parts) (all (\n -> n > 0 && n <= 2097152) parts),
    test "an empty file, a range, nothing of a range" . withTcp $ \a b -> withFile (payload 1000) $ \path -> withFile B.empty $ \none -> do
      sendFile a none
      withOpen path $ \fd -> do
        sendFileRange a fd 100 50
        sendFileRange a fd 990 0
        sendFileRange a fd 990 10
      shutdown a ShutdownSend
      recvAll b >>= (@?= B.take 50 (B.drop 100 (payload 1000)) <> B.drop 990 (payload 1000)),
    test "a file that ends before the range does: an error after the existing bytes" . withTcp $ \a b -> withFile (payload 100) $ \path -> do
      e <- withOpen path (\fd -> failure "sendFileRange" (sendFileRange a fd 60 1000))
      isEOFError e @? show e
      shutdown a ShutdownSend
      recvAll b >>= (@?= B.drop 60 (payload 100)),
    test "a file that shrinks while it is sent" . withTcp $ \a b -> do
      folder <- getTemporaryDirectory
      bracket (openBinaryTempFile folder "weft-spec") (removeFile . fst) $ \(path, h) -> do
        hSetFileSize h 64000000
        -- Opened here: sendFile blocks already while the pool opens it.
        t <- start (withOpen path (\fd -> sendFileRange a fd 0 64000000))
        blocks t
        hSetFileSize h 0
        hClose h
        reader <- start (recvAll b)
        e <- failure "sendFile" (result "sendFile" t)
        isEOFError e @? show e
        close a
        void (result "recv" reader),
    test "no such file; a directory" . withUnix $ \a _ -> do
      void (failure "sendFile" (sendFile a "/nonexistent/file"))
      void (failure "sendFile" (sendFile a "/")),
    test "a peer that goes away; a deadline" $ do
      withFile (B.replicate 20000000 7) $ \path -> do
        withTcp $ \a b -> do
          t <- start (sendFile a path)
          blocks t
          setSockOpt b Linger (N.StructLinger 1 0)
          close b
          e <- failure "sendFile" (result "sendFile" t)
          any (`isErrno` e) [ePIPE, eCONNRESET] @? show e
        withTcp $ \a _ -> do
          soon <- deadlineIn (milliseconds 5)
          e <- failure "sendFile" (sendFile (withDeadline soon a) path)
          isTimeout e @? show e
  ]

-- Control data ---------------------------------------------------------------------------

control :: [TestTree]
control =
  [ test "a descriptor is passed on" . withUnix $ \a b -> withUnix $ \c d -> do
      t <- start (recvFd b)
      blocks t
      withFdSocket c (sendFd a)
      bracket (result "recvFd" t) (closeFd . Fd) $ \fd -> do
        _ <- fdWrite (Fd fd) "through it"
        recv d 100 >>= (@?= C.pack "through it")
      sendAll a (C.pack "x")
      void (failure "recvFd of a plain byte" (recvFd b)),
    test "a peer that passes two descriptors at once: one comes, the other is closed" . withUnix $ \a b -> do
      two <- withFdSocket a (\fd -> B.create (2 * sizeOf fd) (\p -> pokeArray (castPtr p) [fd, fd]))
      -- Datagrams, as 'sendMsg' takes an address, which a connected stream refuses.
      withFile B.empty $ \file -> bracket unixDatagrams close $ \from -> bracket unixDatagrams close $ \to -> do
        let path = file <> ".socket"
        bind to (SockAddrUnix path)
        before <- openDescriptors
        _ <- sendMsg from (SockAddrUnix path) [B.singleton 0] [N.Cmsg passing two] mempty
        (recvFd to >>= closeFd . Fd) `finally` removeFile path
        noneLeftOpen before
      sendAll a (C.pack "x")
      recv b 1 >>= (@?= C.pack "x"),
    test "datagrams in pieces, with their sender" $
      bracket (socket AF_INET Datagram defaultProtocol) close $ \a -> bracket (socket AF_INET Datagram defaultProtocol) close $ \b -> do
        mapM_ (`bind` loopback) [a, b]
        [fromA, atB] <- mapM getSocketName [a, b]
        t <- start (recvMsg b 100 0 mempty)
        blocks t
        sendMsg a atB (map C.pack ["da", "", "ta", "gram"]) [] mempty >>= (@?= 8)
        (from, bs, cmsgs, _) <- result "recvMsg" t
        (from, bs, length cmsgs) @?= (fromA, C.pack "datagram", 0)
        sendMsg a atB [C.pack "too long"] [] mempty >>= (@?= 8)
        (_, cut, _, flags) <- recvMsg b 3 0 mempty
        cut @?= C.pack "too"
        flags @?= N.MSG_TRUNC,
    test "too little room for control data is reported" . withUnix $ \a b -> do
      before <- openDescriptors
      withFdSocket a (sendFd a)
      (_, bs, cmsgs, flags) <- recvMsg b 1 0 mempty
      (B.length bs, length cmsgs, flags) @?= (1, 0, N.MSG_CTRUNC)
      noneLeftOpen before,
    test "interrupted receives: no passed descriptor is lost" $ do
      interruptedReceives recvFd (closeFd . Fd)
      interruptedReceives (\b -> recvMsg b 1 64 mempty) $ \(_, _, cmsgs, _) ->
        forM_ cmsgs (\c -> B.useAsCString (N.cmsgData c) (peek . castPtr) >>= closeFd . Fd),
    test "deadlines and closing" . withUnix $ \_ b -> do
      soon <- deadlineIn (milliseconds 5)
      e <- failure "recvMsg" (recvMsg (withDeadline soon b) 10 10 mempty)
      isTimeout e @? show e
      t <- start (recvMsg b 10 10 mempty)
      t' <- start (recvFd b)
      blocks t
      blocks t'
      close b
      failsWith "recvMsg" eBADF (result "recvMsg" t)
      failsWith "recvFd" eBADF (result "recvFd" t')
      withFdSocket b pure >>= (@?= -1)
  ]
  where
    unixDatagrams = socket AF_UNIX Datagram defaultProtocol
    -- SOL_SOCKET and SCM_RIGHTS, on Linux.
    passing = N.CmsgId 1 1

-- | A thread receives a descriptor and is killed at about the moment when it comes. The operation runs unmasked, what
-- it returns is closed, and a message that is left goes with the socket: no descriptor may be left open.
interruptedReceives :: (Socket -> IO a) -> (a -> IO ()) -> IO ()
interruptedReceives receive closeReceived = do
  before <- openDescriptors
  forM_ [1 .. times 150] $ \i -> withUnix $ \a b -> do
    t <- start (mask (\restore -> restore (receive b) >>= closeReceived))
    blocks t
    withFdSocket a (sendFd a)
    replicateM_ (i `mod` 5) yield
    stop t
  left <- settled before openDescriptors
  -- Fewer if a descriptor of an earlier test was closed meanwhile.
  left <= before @? (show (left - before) <> " descriptors are left open")

-- Others -----------------------------------------------------------------------------------

others :: [TestTree]
others =
  [ test "urgent data: the data around it arrives, and no thread hangs" . listening 16 $ \l addr ->
      bracket (N.socket N.AF_INET N.Stream N.defaultProtocol) N.close $ \n -> do
        N.connect n addr
        bracket (fst <$> accept l) close $ \s -> forM_ [1 .. 10 :: Int] $ \_ -> do
          t <- start (exactly s 8)
          blocks t
          NB.sendAll n (C.pack "befo")
          void (NB.sendMsg n addr [C.pack "!"] [] N.MSG_OOB)
          NB.sendAll n (C.pack "afte")
          result "recv" t >>= (@?= C.pack "befoafte"),
    test "closeGracefully is bounded in bytes" . withTcp $ \a b -> do
      t <- start (forever (sendAll b (B.replicate 65536 1)))
      finishes "closing" (closeGracefully (seconds 3600) 300000 a)
      e <- failure "send" (result "send" t)
      any (`isErrno` e) [ePIPE, eCONNRESET] @? show e,
    test "connect has a deadline" . listening 0 $ \_ addr -> do
      -- The listener's queue is full after the first few.
      socks <- forM [1 .. 5 :: Int] $ \_ -> do
        s <- socket AF_INET Stream defaultProtocol
        soon <- deadlineIn (milliseconds 30)
        r <- try (connect (withDeadline soon s) addr)
        pure (s, r)
      mapM_ (close . fst) socks
      let failures = [e | (_, Left e) <- socks]
      assertBool "all were connected" (not (null failures))
      forM_ failures (\e -> isTimeout e @? show e),
    test "threadWaitRead beside recv" . withUnix $ \a b -> do
      t <- start (withFdSocket b (threadWaitRead . Fd))
      t' <- start (recv b 1)
      blocks t
      blocks t'
      -- One of the two may take the byte away before the other's dispatcher looks.
      sendAll a (C.pack "x")
      result "recv" t' >>= (@?= C.pack "x")
      sendAll a (C.pack "y")
      result "threadWaitRead" t
      recv b 1 >>= (@?= C.pack "y")
      again <- start (recv b 1)
      blocks again
      sendAll a (C.pack "z")
      result "recv again" again >>= (@?= C.pack "z"),
    test "network listens, Weft connects" $
      bracket (N.socket N.AF_INET N.Stream N.defaultProtocol) N.close $ \l -> do
        N.bind l loopback
        N.listen l 4
        addr <- N.getSocketName l
        t <- start (bracket (fst <$> N.accept l) N.close (\n -> NB.recv n 100 >>= NB.sendAll n))
        bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
          connect s addr
          sendAll s (C.pack "to network")
          recvAll s >>= (@?= C.pack "to network")
        result "network" t
  ]
  where
    exactly s n = do
      c <- recv s n
      if B.length c == n || B.null c then pure c else (c <>) <$> exactly s (n - B.length c)
