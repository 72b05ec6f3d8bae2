-- |
-- Devices that are closed or deleted, a reader that is busy, and neighbours that change their link-layer address.
module Devices (tests) where

import Control.Concurrent
import Control.Exception (bracket, finally)
import Control.Monad
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromJust)
import Foreign.C.Error (Errno (..), eNAMETOOLONG, eNODEV)
import GHC.Conc (BlockReason (..), ThreadStatus (..), threadStatus)
import GHC.IO.Exception (ioe_errno)
import Kernel
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (openBinaryTempFile)
import System.IO.Error (tryIOError)
import System.Posix.IO (closeFd, dup, handleToFd)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Metrics (CapabilityMetrics (..), Metrics (..), readMetrics)
import Weft.Tcp
import Weft.Tcp.Device
import Weft.Tcp.Device.Tun
import Weft.Transport (deadlineIn)

tests :: [TestTree]
tests =
  [ testGroup
      "devices"
      [ testCase "a closed TUN device writes no packet into the file that got its number" closedWrites,
        testCase "a TUN device that is closed while others send and receive, 200 times" closedRaces,
        testCase "packets that arrive while the reader is busy do not wake the dispatcher" busyReader,
        testCase "a name of more than 15 bytes is refused, and opens no other device" longName,
        testCase "whether an interface is up" upAndDown,
        testCase "deleting the interface ends all waits on the stack" deleted,
        testCase "TAP: with offload, packets larger than the MTU cross in both directions" (packetSizes plainSetup {tap = True} (> 3000)),
        testCase "TAP: without offload, none does" (packetSizes plainSetup {tap = True, offload = False} (<= 1500)),
        testCase "TUN: without offload, on a device that was open with it before" (packetSizes plainSetup {around = openedBefore} (<= 1500)),
        testCase "TAP: a neighbour whose link-layer address changes is found again" (neighbourMoves kernelAddress),
        testCase "TAP: a neighbour whose link-layer address changes is found again, IPv6" (neighbourMoves kernelAddress6)
      ]
  ]

-- | A file, given as an action that reads it and an action that opens it for writing the given number of times.
withFile :: Int -> (IO B.ByteString -> IO () -> IO a) -> IO a
withFile n act = do
  tmp <- getTemporaryDirectory
  (path, h) <- openBinaryTempFile tmp "weft-tun"
  fd <- handleToFd h
  fds <- newMVar [fd]
  let openAll = modifyMVar_ fds (\old -> (++ old) <$> replicateM n (dup fd))
  act (B.readFile path) openAll `finally` (takeMVar fds >>= mapM_ closeFd >> removeFile path)

withTun :: (Device -> IO a) -> IO a
withTun = bracket up (\d -> deviceClose d `finally` runCommand "ip link del weft1")
  where
    up = do
      runCommand "ip tuntap add dev weft1 mode tun && ip link set weft1 up"
      openTun (TunSettings "weft1" False 1)

somePacket :: [B.ByteString]
somePacket = [B.pack ([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 99, 0, 2, 10, 99, 0, 1] ++ replicate 8 0)]

longName :: Assertion
longName = do
  r <- tryIOError (openTun (TunSettings "abcdefghijklmnop" False 1))
  case r of
    Left e -> ioe_errno e @?= Just (let Errno n = eNAMETOOLONG in n)
    Right d -> deviceClose d >> assertFailure ("opened " ++ deviceName d)

upAndDown :: Assertion
upAndDown = withTun $ \d -> do
  interfaceIsUp (deviceName d) >>= (@?= True)
  runCommand "ip link set weft1 down"
  interfaceIsUp (deviceName d) >>= (@?= False)
  none <- tryIOError (interfaceIsUp "weft2")
  either ioe_errno (const Nothing) none @?= Just (let Errno n = eNODEV in n)

closedWrites :: Assertion
closedWrites = withTun $ \d -> withFile 40 $ \content openAll -> do
  deviceClose d
  openAll
  forM_ (deviceQueues d) (\q -> replicateM_ 10 (sendPacket q NoOffload somePacket))
  forM_ (deviceQueues d) (\q -> tryIOError (receiveBatch q) >>= either (const (pure ())) (const (assertFailure "received")))
  content >>= (@?= B.empty)

closedRaces :: Assertion
closedRaces = forM_ [1 .. 200 :: Int] $ \n -> withTun $ \d -> withFile 20 $ \content openAll -> do
  done <- replicateM 2 newEmptyMVar
  forM_ (zip done (deviceQueues d)) $ \(v, q) -> forkIO (replicateM_ 2000 (sendPacket q NoOffload somePacket) >> putMVar v ())
  forM_ (zip (drop 1 done) (deviceQueues d)) $ \(v, q) -> forkIO (tryIOError (forever (receiveBatch q)) >> putMVar v ())
  replicateM_ (n * 3) yield
  deviceClose d
  openAll
  ended <- timeout 60000000 (mapM_ takeMVar done)
  ended @?= Just ()
  content >>= (@?= B.empty)

-- | The reader waits for a packet and gets it. Then 300 packets arrive, one after the other, while no thread reads
-- them. The dispatcher must not handle an event for each.
busyReader :: Assertion
busyReader = withTun $ \d -> forM_ (take 1 (deviceQueues d)) $ \q -> do
  runCommand ("ip addr replace " ++ kernelAddress ++ "/24 dev weft1")
  -- Read the packets that the kernel sends by itself when an interface is set up.
  drain q
  first <- newEmptyMVar
  reader <- forkIO (receiveBatch q >>= putMVar first . length)
  untilItWaits (5000 :: Int) reader
  burst 1
  received <- timeout 60000000 (takeMVar first)
  assertBool "nothing received" (received /= Nothing)
  before <- dispatched
  assertBool "the reader did not wait" (before > 0)
  burst 300
  after' <- dispatched
  assertBool (show (after' - before) ++ " events") (after' - before <= 20)
  drain q
  where
    untilItWaits n thread = do
      status <- threadStatus thread
      when (n > 0 && status /= ThreadBlocked BlockedOnMVar) (threadDelay 1000 >> untilItWaits (n - 1) thread)
    drain q = timeout 300000 (receiveBatch q) >>= mapM_ (const (drain q))
    dispatched = sum . map metricsDispatched . metricsCapabilities <$> readMetrics
    burst :: Int -> IO ()
    burst n = runCommand ("python3 -c '" ++ sender n ++ "'")
    sender n =
      "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        ++ concat ["[(s.sendto(b\"x\", (\"", ourAddress, "\", 9)), time.sleep(0.001)) for i in range(", show n, ")]"]

deleted :: Assertion
deleted = withTun $ \d -> withStack (defaultSettings [fromJust (parseAddress ourAddress)]) d $ \st -> do
  l <- listen st Nothing 80
  ended <- newEmptyMVar
  _ <- forkIO (tryIOError (void (accept l)) >>= putMVar ended)
  threadDelay 100000
  runCommand "ip link del weft1"
  r <- timeout 60000000 (takeMVar ended)
  case r of
    Just (Left _) -> pure ()
    _ -> assertFailure (show r)
  -- 'withTun' deletes the device at its end, so it has to exist.
  runCommand "ip tuntap add dev weft1 mode tun"

-- | Send a megabyte to an echo server on the kernel's stack, and check the sizes of the largest packets.
packetSizes :: Setup -> (Int -> Bool) -> Assertion
packetSizes setup right = do
  largest <- newIORef (0, 0)
  let see inwards parts = atomicModifyIORef' largest $ \(i, o) ->
        let n = sum (map B.length parts) in (if inwards then (max i n, o) else (i, max o n), ())
  withKernel setup {adjust = \s -> s {stackTap = Just see}} $ \st ->
    startPeer ["serve", kernelAddress, "5000", "1"] $ do
      limit <- deadlineIn (seconds 60)
      c <- connect st limit (fromJust (parseAddress kernelAddress)) 5000
      sender <- forkIO (send c limit (patternFrom 0 60000 <> B.replicate 940000 1) >> shutdownSend c)
      let count at = recv c limit 1000000 >>= \b -> if B.null b then pure at else count (at + B.length b)
      count (0 :: Int) >>= (@?= 1000000)
      killThread sender
      close c
  (received, sent) <- readIORef largest
  assertBool (show (received, sent)) (right received && right sent)

-- | Open the device again without offload.
openedBefore :: Device -> IO Device
openedBefore d = deviceClose d >> openTun (TunSettings (deviceName d) False 1)

-- | The kernel's interface changes its link-layer address in the middle of a transfer that we send.
neighbourMoves :: String -> Assertion
neighbourMoves host = withKernel plainSetup {tap = True} $ \st -> startPeer ["serve", host, "5000", "1"] $ do
  limit <- deadlineIn (seconds 60)
  c <- connect st limit (fromJust (parseAddress host)) 5000
  send c limit (patternFrom 0 1000)
  -- In this test, the kernel's answer is valid for two seconds.
  threadDelay 2200000
  runCommand "ip link set weft0 down && ip link set weft0 address 02:11:22:33:44:55 && ip link set weft0 up"
  when (host == kernelAddress6) $ runCommand ("ip -6 addr replace " ++ kernelAddress6 ++ "/64 dev weft0 nodad")
  send c limit (patternFrom 1000 1000)
  shutdownSend c
  let receiveFrom at = do
        b <- recv c limit 100000
        if B.null b then pure at else assertBool "other bytes" (checkPattern at b) >> receiveFrom (at + B.length b)
  receiveFrom 0 >>= (@?= 2000)
  close c
