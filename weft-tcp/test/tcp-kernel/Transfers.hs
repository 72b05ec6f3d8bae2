-- |
-- Transfers in both directions, over both versions of IP, with and without offload, for several MTUs, and with the
-- peer's options on and off. The bytes are compared, and the kernel's counters must show no bad checksum and no
-- unexpected reset.
module Transfers (tests, clean) where

import Control.Concurrent
import Control.Exception (SomeException, bracket, finally, try)
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (fromJust, fromMaybe)
import Kernel
import System.IO.Error (tryIOError)
import System.Process (readProcess)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Hybrid (Hybrid, Settings (..), defaultSettings, fork, forkFromIn, run, withScheduler)
import qualified Weft.Hybrid as Catch (finally)
import qualified Weft.Hybrid as Hybrid (try)
import Weft.Tcp hiding (defaultSettings)
import Weft.Tcp.Core (secs)
import qualified Weft.Tcp.Hybrid as Hybrid
import Weft.Transport (deadlineIn, noDeadline)

tests :: Bool -> [TestTree]
tests large =
  [ testGroup
      "we serve"
      [ testCase (what ++ " " ++ show n ++ " bytes, " ++ version ++ setupName s) (withServer s (\_ -> clean (peer [what, host, port, show n])))
        | s <- [plainSetup, plainSetup {offload = False}],
          (version, host) <- [("IPv4", ourAddress), ("IPv6", ourAddress6)],
          (what, port) <- [("get", "19"), ("put", "9"), ("both", "7")],
          n <- sizes s
      ],
    testGroup
      "MTU"
      [ testCase (show m ++ setupName s) . withServer s {mtu = m} $ \_ ->
          clean (peer ["get", ourAddress, "19", "2000000"] >> peer ["put", ourAddress, "9", "2000000"])
        | s <- [plainSetup, plainSetup {offload = False}],
          m <- [576, 1280, 1499, 9000]
      ],
    testGroup
      "the peer's options"
      [ testCase (name ++ "=" ++ value) . sysctl name value . withServer plainSetup {offload = False} $ \_ ->
          clean (peer ["get", ourAddress, "19", "3000000"] >> peer ["put", ourAddress, "9", "3000000"])
        | (name, values) <- [("tcp_sack", ["0", "1"]), ("tcp_timestamps", ["0", "1"]), ("tcp_window_scaling", ["0", "1"]), ("tcp_ecn", ["0", "1"])],
          value <- values
      ],
    testGroup "we connect" [testCase (show n ++ " bytes, " ++ kind ++ setupName s) (client s host kind n) | s <- [plainSetup, plainSetup {offload = False}], (kind, host) <- [("IPv4", kernelAddress), ("IPv6", kernelAddress6)], n <- [1, 100000, 5000000]],
    testGroup "hybrid threads serve" [testCase (what ++ " " ++ show n ++ " bytes, " ++ show loops ++ " loops") (withHybridServer loops (clean (peer [what, ourAddress, port, show n]))) | loops <- [1, 2], (what, port) <- [("put", "9"), ("both", "7")], n <- [1, 100000, 5000000 :: Int]],
    testCase "hybrid threads serve many at once" (withHybridServer 2 (clean (concurrently' 20 (peer ["both", ourAddress, "7", "200000"])))),
    testCase "hybrid threads connect" hybridClient,
    testCase "curl" curl,
    testCase "several queues" (withServer plainSetup {queues = 2} (\_ -> clean (replicateM_ 5 (peer ["both", ourAddress, "7", "1000000"])))),
    testGroup "a reader that stops" [testCase (show n ++ " s") (withServer plainSetup (\_ -> clean (peer ["slow", ourAddress, "19", "8000000", show n]))) | n <- (3 :: Int) : [150 | large]],
    testGroup "TAP: ARP and neighbour discovery" [testCase (unwords [what, h, how]) (withServer plainSetup {tap = True, offload = o} (\_ -> clean (peer [what, h, p, "2000000"]))) | h <- [ourAddress, ourAddress6], (what, p) <- [("get", "19"), ("put", "9"), ("both", "7")], (how, o) <- [("with offload", True), ("without", False)]],
    testCase "TAP: we connect" (client plainSetup {tap = True} kernelAddress "" 100000 >> client plainSetup {tap = True} kernelAddress6 "" 100000),
    testCase "nobody listens" refused,
    testCase "we are refused" weAreRefused,
    testCase "a reset is reported" resetSeen,
    testCase "a port is used again while we are in TIME-WAIT (RFC 6191)" (withServer plainSetup (\_ -> clean (peer ["again", ourAddress, "19", "5000"]))),
    testCase "a peer that vanishes is reported" vanishes,
    testCase "many at once" (withServer plainSetup (\_ -> clean (concurrently' 20 (peer ["both", ourAddress, "7", "200000"])))),
    testCase "a client is served by a cookie alone" cookies,
    testCase "closing leaves nothing behind but TIME-WAIT" leftovers,
    testCase "the kernel pings us" (withServer plainSetup (\_ -> runCommand "ping -c 2 -W 20 10.99.0.2 >/dev/null" >> runCommand "ping -c 1 -W 20 -s 3000 10.99.0.2 >/dev/null" >> runCommand "ping -6 -c 1 -W 20 fd99::2 > /dev/null"))
  ]
  where
    sizes :: Setup -> [Int]
    sizes s = [1, 1460, 100000] ++ (if offload s then [100000000] else [10000000]) ++ [1000000000 | large, offload s]

setupName :: Setup -> String
setupName s = if offload s then ", offload" else ""

-- | Serve echo (7), discard and count (9), and a source (19).
withServer :: Setup -> (Stack -> IO a) -> IO a
withServer s act = withKernel s $ \st ->
  bracket (mapM (start st) [(7, echo), (9, sink), (19, source)]) (mapM_ killThread) (const (act st))
  where
    start st (p, serve) = do
      l <- listen st Nothing p
      forkIO . forever $ do
        c <- accept l
        forkIO (void (try (serve c) :: IO (Either SomeException ())) `finally` close c)

echo, sink, source :: Socket -> IO ()
echo c = do
  b <- recv c noDeadline 262144
  if B.null b then shutdownSend c else send c noDeadline b >> echo c
sink c = go 0
  where
    go n = do
      b <- recv c noDeadline 262144
      if B.null b
        then send c noDeadline (C.pack (show n))
        else do
          unless (checkPattern n b) (abort c >> fail "wrong bytes")
          go (n + B.length b)
source c = do
  line <- recv c noDeadline 100
  case C.readInt line of
    Just (n, _) -> go 0 n
    Nothing -> abort c
  where
    go at n = when (at < n) $ do
      let b = patternFrom at (min 65536 (n - at))
      send c noDeadline b
      go (at + B.length b) n

-- | Serve echo (7), and discard and count (9), by hybrid threads on the given number of loops.
withHybridServer :: Int -> IO a -> IO a
withHybridServer loops act = withKernel plainSetup $ \st ->
  withScheduler defaultSettings {settingsLoops = Just loops} $ \scheduler ->
    bracket (mapM (start scheduler st) [(7, hybridEcho), (9, hybridSink 0)]) (mapM_ Hybrid.closeListener) (const act)
  where
    start scheduler st (port, serve) = do
      l <- Hybrid.listen st Nothing port
      l <$ forkFromIn scheduler (accepting l serve)
    -- The thread ends when the listener is closed.
    accepting l serve = do
      r <- Hybrid.try (Hybrid.accept l)
      case r of
        Left e -> const (pure ()) (e :: IOError)
        Right c -> fork (serve c `Catch.finally` Hybrid.close c) >> accepting l serve

hybridEcho :: Hybrid.Socket -> Hybrid ()
hybridEcho c = Hybrid.recv c 262144 >>= \b -> if B.null b then Hybrid.shutdownSend c else Hybrid.sendAll c b >> hybridEcho c

hybridSink :: Int -> Hybrid.Socket -> Hybrid ()
hybridSink n c = do
  b <- Hybrid.recv c 262144
  if B.null b
    then Hybrid.sendAll c (C.pack (show n))
    else do
      unless (checkPattern n b) (Hybrid.abort c >> fail "wrong bytes")
      hybridSink (n + B.length b) c

hybridClient :: Assertion
hybridClient = withKernel plainSetup $ \st -> clean . startPeer ["serve", kernelAddress, "5000", "1"] $ do
  got <- run $ do
    limit <- Hybrid.deadlineIn (seconds 200)
    c <- Hybrid.withDeadline limit <$> Hybrid.connect st limit (fromJust (parseAddress kernelAddress)) 5000
    fork (sendFrom c 0 >> Hybrid.shutdownSend c)
    receiveFrom c 0 `Catch.finally` Hybrid.close c
  got @?= n
  where
    n = 1000000
    sendFrom c at = when (at < n) $ do
      let b = patternFrom at (n - at)
      Hybrid.sendAll c b
      sendFrom c (at + B.length b)
    receiveFrom c at = do
      b <- Hybrid.recv c 100000
      if B.null b then pure at else unless (checkPattern at b) (fail "other bytes") >> receiveFrom c (at + B.length b)

-- | Run an action. The kernel's counters of errors must not increase, except as explained below.
clean :: IO a -> IO a
clean act = do
  before <- tcpCounters
  r <- act
  after' <- tcpCounters
  let grown name = fromMaybe 0 (lookup name after') - fromMaybe 0 (lookup name before)
  map grown ["InCsumErrors", "EstabResets"] @?= [0, 0]
  -- Segments that are sent twice can cause the remaining errors, as packet logs of a busy machine show. A client's
  -- SYN that is sent twice is answered twice, and the second SYN-ACK counts as an error if the connection is open by
  -- then. A FIN that is sent twice is acknowledged twice. If the first acknowledgment ended the connection, the
  -- second one is answered by a reset (RFC 9293, section 3.10.7.1). In the logs the reset is ours, in the other
  -- direction; the kernel follows the same rule.
  assertBool ("errors: " ++ show (before, after')) (grown "InErrs" <= grown "RetransSegs")
  assertBool ("resets: " ++ show (before, after')) (grown "OutRsts" <= grown "RetransSegs")
  pure r

client :: Setup -> String -> String -> Int -> Assertion
client s host _ n = withKernel s $ \st -> clean . startPeer ["serve", host, "5000", "1"] $ do
  limit <- deadlineIn (seconds 200)
  c <- connect st limit (fromJust (parseAddress host)) 5000
  let sendFrom at = when (at < n) $ do
        let b = patternFrom at (n - at)
        send c limit b
        sendFrom (at + B.length b)
      receiveFrom at = do
        b <- recv c limit 100000
        if B.null b
          then at @?= n
          else do
            assertBool ("other bytes at " ++ show at) (checkPattern at b)
            receiveFrom (at + B.length b)
  sendFrom 0
  shutdownSend c
  receiveFrom 0
  close c

curl :: Assertion
curl = withKernel plainSetup $ \st -> do
  l <- listen st Nothing 80
  t <- forkIO . forever $ do
    c <- accept l
    forkIO (void (tryIOError (serveHttp c)) `finally` close c)
  out <- clean (readProcess "curl" ["-s", "--max-time", "100", "http://" ++ ourAddress ++ "/"] "")
  out @?= "hello from here\n"
  out6 <- readProcess "curl" ["-s", "--max-time", "100", "http://[" ++ ourAddress6 ++ "]/"] ""
  out6 @?= out
  killThread t
  where
    serveHttp c = do
      _ <- recv c noDeadline 4096
      send c noDeadline (C.pack "HTTP/1.0 200 OK\r\nContent-Length: 16\r\nConnection: close\r\n\r\nhello from here\n")
      shutdownSend c
      void (recv c noDeadline 10)

refused :: Assertion
refused = withServer plainSetup $ \_ -> do
  r <- try (peer ["get", ourAddress, "4444", "1"]) :: IO (Either SomeException ())
  case r of
    Left e -> assertBool (show e) ("ConnectionRefused" `isIn` show e)
    Right () -> assertFailure "connected"

isIn :: String -> String -> Bool
isIn a b = C.pack a `B.isInfixOf` C.pack b

weAreRefused :: Assertion
weAreRefused = withKernel plainSetup $ \st -> do
  limit <- deadlineIn (seconds 100)
  r <- tryIOError (connect st limit (fromJust (parseAddress kernelAddress)) 4445)
  case r of
    Left e -> assertBool (show e) ("refused" `isIn` show e)
    Right _ -> assertFailure "connected"

resetSeen :: Assertion
resetSeen = withKernel plainSetup $ \st -> do
  l <- listen st Nothing 80
  done <- newEmptyMVar
  _ <- forkIO $ do
    c <- accept l
    limit <- deadlineIn (seconds 100)
    tryIOError (recv c limit 10) >>= putMVar done
  peer ["reset", ourAddress, "80"]
  r <- takeMVar done
  case r of
    Left e -> assertBool (show e) ("reset" `isIn` show e)
    Right b -> assertFailure ("received " ++ show b)

concurrently' :: Int -> IO () -> IO ()
concurrently' n act = do
  dones <- replicateM n newEmptyMVar
  forM_ dones $ \d -> forkIO ((try act :: IO (Either SomeException ())) >>= putMVar d)
  results <- mapM takeMVar dones
  sequence_ [assertFailure (show e) | Left e <- results]

-- | The stack answers every SYN with a cookie.
cookies :: Assertion
cookies = withServer plainSetup {adjust = \s -> s {stackPolicy = always}} $ \st -> do
  clean (replicateM_ 3 (peer ["both", ourAddress, "7", "500000"]))
  taken <- readCounter st CookiesTaken
  taken @?= 3
  where
    always = Policy "cookies" (\_ _ -> AnswerWithCookie) (Just maxBound)

leftovers :: Assertion
leftovers = withServer plainSetup $ \st -> do
  replicateM_ 5 (peer ["both", ourAddress, "7", "1000"])
  -- The peer ends when it has received our FIN, and its last acknowledgment is on its way then.
  let settled n = do
        live <- connections st
        unless (null live || n == (0 :: Int)) (threadDelay 50000 >> settled (n - 1))
  settled 1200
  left <- connections st
  length left @?= 0

-- | The link goes down in the middle of a transfer. Our stack gives up after the user timeout.
vanishes :: Assertion
vanishes = withKernel plainSetup {adjust = \s -> s {stackConfig = (stackConfig s) {userTimeout = secs 2}}} $ \st ->
  startPeer ["serve", kernelAddress, "5000", "1"] $ do
    limit <- deadlineIn (seconds 200)
    c <- connect st limit (fromJust (parseAddress kernelAddress)) 5000
    send c limit (patternFrom 0 1000)
    runCommand "ip link set weft0 down"
    send c limit (patternFrom 1000 1000)
    r <- tryIOError (recv c limit 10)
    case r of
      Left e -> assertBool (show e) ("timed out" `isIn` show e || "timeout" `isIn` show e)
      Right b -> assertFailure ("received " ++ show b)
    live <- connections st
    length live @?= 0
