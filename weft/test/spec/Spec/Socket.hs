-- |
-- "Weft.Socket" against itself and against @network@: what is sent arrives, what is
-- closed tells its waiters, and no descriptor's bytes reach another's owner.
module Spec.Socket
  ( tests,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.STM (atomically)
import Control.Exception (bracket, try)
import Control.Monad (forM, forM_, replicateM, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (isInfixOf)
import Foreign.C.Error (eADDRINUSE, eBADF, eCONNREFUSED, eCONNRESET, ePIPE)
import Harness
import qualified Network.Socket as N
import qualified Network.Socket.ByteString as NB
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Metrics
import Weft.Socket
import Weft.Socket.ByteString

tests :: TestTree
tests = testGroup "sockets" (peers <> deadlines <> ends <> closing)

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

loopback :: SockAddr
loopback = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))

-- | Buffers of a fixed size. The kernel would let them grow to what the machine is configured for, tens of megabytes on
-- some, and no thread would wait for room. What a listener accepts has its sizes.
bounded :: Socket -> IO ()
bounded s = setSocketOption s RecvBuffer 200000 >> setSocketOption s SendBuffer 200000

listening :: (Socket -> SockAddr -> IO a) -> IO a
listening act = bracket (socket AF_INET Stream defaultProtocol) close $ \l -> do
  bounded l
  bind l loopback
  listen l 16
  getSocketName l >>= act l

-- | The two ends of a TCP connection.
withTcp :: (Socket -> Socket -> IO a) -> IO a
withTcp act = listening $ \l addr ->
  bracket (socket AF_INET Stream defaultProtocol) close $ \a -> do
    bounded a
    connect a addr
    bracket (fst <$> accept l) close (act a)

withUnix :: (Socket -> Socket -> IO a) -> IO a
withUnix act = bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act)

recvExactly :: Socket -> Int -> IO B.ByteString
recvExactly s = fmap B.concat . go
  where
    go 0 = pure []
    go n = do
      c <- recv s n
      if B.null c then pure [] else (c :) <$> go (n - B.length c)

blocks :: Task a -> Assertion
blocks t = blocked t >>= assertBool "does not block"

payload :: Int -> B.ByteString
payload n = fst (B.unfoldrN n (\i -> Just (fromIntegral (i * i `mod` 251), i + 1)) (1 :: Int))

-- Peers ------------------------------------------------------------------------------

peers :: [TestTree]
peers =
  [ test "network connects to Weft" . listening $ \l addr ->
      bracket (N.socket AF_INET Stream defaultProtocol) N.close $ \n -> do
        t <- start (accept l)
        blocks t
        N.connect n addr
        (s, _) <- result "accept" t
        sendAll s (C.pack "to network")
        NB.recv n 100 >>= (@?= C.pack "to network")
        NB.sendAll n (C.pack "to Weft")
        recv s 100 >>= (@?= C.pack "to Weft")
        close s,
    -- An accept that leaves nothing behind does not look again: each of the connections has to be found nevertheless.
    test "connections that come together, or while another is accepted, are all accepted" . listening $ \l addr -> do
      let client = socket AF_INET Stream defaultProtocol >>= \c -> c <$ connect c addr
          taken = accept l >>= close . fst
      replicateM_ 20 $ do
        together <- replicateM 5 client
        finishes "those that wait" (replicateM_ 5 taken)
        first <- start taken
        second <- start (taken >> taken)
        racing <- replicateM 3 (start client)
        others <- mapM (result "connect") racing
        result "one thread" first
        result "another thread" second
        mapM_ close (together <> others),
    test "of two threads that receive, both get their share" . withTcp $ \a b -> do
      one <- start (recv b 100)
      two <- start (recv b 100)
      mapM_ blocks [one, two]
      sendAll a (C.pack "x")
      eventually "one has received" $ (||) <$> (not <$> blocked one) <*> (not <$> blocked two)
      sendAll a (C.pack "x")
      mapM_ (\t -> result "recv" t >>= (@?= C.pack "x")) [one, two],
    test "UDP, and its ICMP error" $
      bracket (socket AF_INET Datagram defaultProtocol) close $ \a -> do
        b <- socket AF_INET Datagram defaultProtocol
        bind a loopback
        bind b loopback
        [fromA, atB] <- mapM getSocketName [a, b]
        t <- start (recvFrom b 100)
        blocks t
        sendAllTo a (C.pack "datagram") atB
        result "recvFrom" t >>= (@?= (C.pack "datagram", fromA))
        close b
        connect a atB
        t' <- start (recv a 100)
        blocks t'
        void (send a (C.pack "nobody"))
        failsWith "recv" eCONNREFUSED (result "recv" t'),
    test "a refused connection" $ do
      addr <- listening (const pure)
      bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
        e <- failure "connect" (connect s addr)
        isErrno eCONNREFUSED e @? show e
        assertBool (show e) (show addr `isInfixOf` show e),
    test "an address in use is named" $
      listening $ \_ addr -> bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
        e <- failure "bind" (bind s addr)
        isErrno eADDRINUSE e @? show e
        assertBool (show e) (show addr `isInfixOf` show e),
    test "large transfers, both ways at once" . withTcp $ \a b -> do
      let bytes = payload 4000000
      ts <- forM [a, b] $ \s -> start (sendAll s bytes)
      ss <- forM [a, b] $ \s -> start (recvExactly s (B.length bytes))
      mapM_ (result "send") ts
      forM_ ss $ \t -> result "recv" t >>= assertBool "other bytes" . (== bytes),
    test "sendNow, sendManyNow: as much as fits, nothing, the rest by waiting, failures" . withTcp $ \a b -> do
      let bytes = payload 16000000
          fill n = either ioError (\k -> if k == 0 then pure n else fill (n + k)) =<< sendNow a (B.drop n bytes)
      sent <- fill 0
      assertBool (show sent <> " bytes") (sent > 0 && sent < B.length bytes)
      rest <- start (sendAll a (B.drop sent bytes))
      blocks rest
      got <- recvExactly b (B.length bytes)
      assertBool "other bytes" (got == bytes)
      result "sendAll" rest
      sendNow a B.empty >>= (@?= Right 0)
      sendManyNow a [C.pack "ab", B.empty, C.pack "c"] >>= (@?= Right 3)
      recvExactly b 3 >>= (@?= C.pack "abc")
      close a
      sendManyNow a [C.pack "x"] >>= failsWith "sendManyNow" eBADF . either ioError pure
      sendNow a (C.pack "x") >>= failsWith "sendNow" eBADF . either ioError pure,
    test "sendMany with thousands of chunks" . withUnix $ \a b -> do
      let chunks = [payload (i `mod` 97) | i <- [1 .. 5000]]
      t <- start (sendMany a chunks)
      got <- recvExactly b (sum (map B.length chunks))
      assertBool "other bytes" (got == B.concat chunks)
      result "send" t,
    test "sendMany of two strings, of which the kernel takes a part" . forM_ [(1, 900000), (900000, 1), (450000, 450000), (1, 1)] $ \(n, m) -> withUnix $ \a b -> do
      let strings = [payload n, B.reverse (payload m)]
      t <- start (sendMany a strings)
      got <- recvExactly b (n + m)
      assertBool "other bytes" (got == B.concat strings)
      result "send" t
  ]

-- Deadlines --------------------------------------------------------------------------

deadlines :: [TestTree]
deadlines =
  [ test "deadlines: recv, accept, send" . withUnix $ \a _ -> listening $ \l _ -> do
      late "recv" a (`recv` 1)
      late "accept" l accept
      late "send" a (\s -> let go = send s (B.replicate 65536 0) >> go in go),
    test "cancellation: a deadline loses no data and disturbs no other waiter" . withUnix $ \a b -> do
      patient <- start (recvExactly b 1)
      blocks patient
      replicateM_ 5 (late "recv" b (`recv` 1))
      sendAll a (C.pack "x")
      result "the patient one" patient >>= (@?= C.pack "x")
      forM_ [1 .. times 300] $ \i -> do
        t <- start (deadlineIn (microseconds (i `mod` 90)) >>= \d -> try (recv (withDeadline d b) 1))
        replicateM_ (i `mod` 7) yield
        sendAll a (C.pack "y")
        r <- result "recv" t
        rest <- either (\e -> (isTimeout e @? show e) >> recv b 1) pure r
        rest @?= C.pack "y",
    test "a deadline that has passed: nothing is waited for, and what has come is received" . withUnix $ \a b -> do
      past <- deadlineIn mempty
      before <- sum . map metricsWaits . metricsCapabilities <$> readMetrics
      forM_ [1 .. 100 :: Int] $ \_ -> do
        e <- failure "recv" (recv (withDeadline past b) 1)
        isTimeout e @? show e
      later <- sum . map metricsWaits . metricsCapabilities <$> readMetrics
      -- Others may wait meanwhile.
      assertBool (show (later - before) <> " waits") (later - before < 50)
      sendAll a (C.pack "xy")
      replicateM 2 (recv (withDeadline past b) 1) >>= (@?= map C.pack ["x", "y"])
      -- One who waits is not disturbed.
      patient <- start (recv b 1)
      blocks patient
      void (failure "recv" (recv (withDeadline past b) 1))
      sendAll a (C.pack "z")
      result "the patient one" patient >>= (@?= C.pack "z"),
    test "several threads read one socket" . withUnix $ \a b -> do
      ts <- replicateM 8 (start (recv b 1))
      forM_ [1 .. 8 :: Int] $ \_ -> sendAll a (C.pack "z")
      forM_ ts $ \t -> result "recv" t >>= (@?= C.pack "z")
  ]

-- | The operation throws when the deadline has passed.
late :: String -> Socket -> (Socket -> IO a) -> Assertion
late what s act = do
  d <- deadlineIn (milliseconds 5)
  e <- failure what (act (withDeadline d s))
  isTimeout e @? show e

-- Ends -------------------------------------------------------------------------------

ends :: [TestTree]
ends =
  [ test "half-close and reset are distinguished" . withTcp $ \a b -> do
      peerState a >>= (@?= PeerOpen)
      finished <- start (awaitPeerFinished a)
      gone <- start (awaitPeerGone a)
      mapM_ blocks [finished, gone]
      shutdown b ShutdownSend
      result "finished" finished
      peerState a >>= (@?= PeerFinished)
      blocks gone
      setSockOpt b Linger (StructLinger 1 0)
      close b
      result "gone" gone
      peerState a >>= (@?= PeerGone),
    test "a wait for what does not come costs nothing" . withTcp $ \a b -> do
      -- Attached, and writable.
      receiver <- start (recv a 10)
      blocks receiver
      readable <- waitReadSocketSTM a
      waiters <- (:) <$> start (atomically readable) <*> replicateM 2 (start (awaitPeerFinished a))
      mapM_ blocks waiters
      before <- total metricsDispatched <$> readMetrics
      pause 200
      after' <- total metricsDispatched <$> readMetrics
      assertBool (show (after' - before) <> " events") (after' - before < 50)
      close b
      void (outcome "the receiver" receiver)
      forM_ waiters (outcome "a waiter"),
    test "waits for the peer end with the deadline" . withTcp $ \a b -> do
      late "awaitPeerFinished" a awaitPeerFinished
      late "awaitPeerGone" a awaitPeerGone
      shutdown b ShutdownSend
      eventually "the end arrives" ((== PeerFinished) <$> peerState a)
      -- What has happened counts, also after the deadline.
      past <- deadlineIn mempty
      awaitPeerFinished (withDeadline past a)
      late "awaitPeerGone" a awaitPeerGone,
    test "no SIGPIPE: EPIPE or ECONNRESET" . withTcp $ \a b -> do
      close b
      e <- failure "send" (replicateM_ 1000 (send a (C.pack "x") >> pause 1))
      any (`isErrno` e) [ePIPE, eCONNRESET] @? show e,
    test "closeGracefully is bounded in time" . withTcp $ \a _ -> do
      (_, s) <- timed (closeGracefully (milliseconds 50) maxBound a)
      s @>= 0.05
      when (s > 15) (assertFailure ("took " <> show s))
  ]

-- Closing ----------------------------------------------------------------------------

closing :: [TestTree]
closing =
  [ test "close race: waiters get EBADF; closing twice, use afterwards" . withUnix $ \a _ -> listening $ \l _ -> do
      readers <- replicateM 3 (start (void (recv a 1)))
      acceptor <- start (void (accept l))
      waiter <- start (awaitPeerFinished a)
      mapM_ blocks (acceptor : waiter : readers)
      close a >> close a >> close l
      forM_ (acceptor : waiter : readers) (failsWith "waiter" eBADF . result "waiter")
      failsWith "close'" eBADF (close' a)
      failsWith "recv" eBADF (recv a 1)
      failsWith "awaitPeerFinished" eBADF (awaitPeerFinished a),
    test "descriptor reuse (ABA): no thread waits for or reads the new owner's bytes" $
      forM_ [1 .. times 3000] $ \i -> withUnix $ \a b -> do
        t <- start (recv a 8)
        p <- start (awaitPeerFinished a)
        replicateM_ (i `mod` 5) yield
        close a
        withUnix $ \c d -> do
          sendAll d (C.pack "secret")
          failsWith "old reader" eBADF (result "recv" t)
          failsWith "old waiter" eBADF (result "wait" p)
          recv c 100 >>= (@?= C.pack "secret")
        close b,
    test "killed while it closes: the descriptor is still closed" $
      forM_ [1 .. times 300] $ \i -> withUnix $ \a b -> do
        t <- start (recv a 1)
        when (even i) (blocks t)
        closer <- start (close a)
        replicateM_ (i `mod` 7) yield
        stop closer
        -- Killed before it began, it has not.
        close a
        recv b 1 >>= (@?= B.empty)
        failsWith "recv" eBADF (result "recv" t),
    test "collector: unreachable sockets are closed" $ do
      before <- openDescriptors
      replicateM_ 50 (socket AF_INET Stream defaultProtocol)
      left <- settled before openDescriptors
      unless (left <= before) (assertFailure (show (left - before) <> " left")),
    test "collector: one collection frees all that closed sockets have held" $ do
      let some = 500
          -- No other collection comes meanwhile: they allocate less than half of an allocation area.
          heldByClosed = do
            -- Finalizers of sockets that others have left behind run first.
            before <- replicateM_ 3 collect >> liveBytes
            replicateM_ some (socket AF_INET Stream defaultProtocol >>= close)
            subtract before <$> liveBytes
      -- What other threads of the program hold may change.
      held <- minimum <$> replicateM 5 heldByClosed
      assertBool (show held <> " bytes of " <> show some <> " sockets") (held < 128 * some),
    test "collector: a thread that waits is not taken for deadlocked" . withUnix $ \a b -> do
      t <- start (recv b 1)
      blocks t
      replicateM_ 3 performMajorGC
      sendAll a (C.pack "x")
      result "recv" t >>= (@?= C.pack "x")
  ]
