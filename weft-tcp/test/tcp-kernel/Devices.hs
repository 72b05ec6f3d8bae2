-- |
-- What becomes of devices that are closed, deleted, or whose neighbour moves.
module Devices (tests) where

import Control.Concurrent
import Control.Exception (bracket, finally)
import Control.Monad
import qualified Data.ByteString as B
import Data.Maybe (fromJust)
import Kernel
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (openBinaryTempFile)
import System.IO.Error (tryIOError)
import System.Posix.IO (closeFd, dup, handleToFd)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
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
        testCase "an interface that is deleted ends what waits for the stack" deleted,
        testCase "TAP: a neighbour whose link-layer address changes is found again" (neighbourMoves kernelAddress),
        testCase "TAP: a neighbour whose link-layer address changes is found again, IPv6" (neighbourMoves kernelAddress6)
      ]
  ]

-- | A file, and an action that opens it for writing this number of times.
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
  ended <- timeout 5000000 (mapM_ takeMVar done)
  ended @?= Just ()
  content >>= (@?= B.empty)

deleted :: Assertion
deleted = withTun $ \d -> withStack (defaultSettings [fromJust (parseAddress ourAddress)]) d $ \st -> do
  l <- listen st Nothing 80
  ended <- newEmptyMVar
  _ <- forkIO (tryIOError (void (accept l)) >>= putMVar ended)
  threadDelay 100000
  runCommand "ip link del weft1"
  r <- timeout 5000000 (takeMVar ended)
  case r of
    Just (Left _) -> pure ()
    _ -> assertFailure (show r)
  -- For the end of 'withTun'.
  runCommand "ip tuntap add dev weft1 mode tun"

-- | The kernel's interface gets another address in the middle of a transfer that we send.
neighbourMoves :: String -> Assertion
neighbourMoves host = withKernel plainSetup {tap = True} $ \st -> startPeer ["serve", host, "5000", "1"] $ do
  limit <- deadlineIn (seconds 60)
  c <- connect st limit (fromJust (parseAddress host)) 5000
  send c limit (patternFrom 0 1000)
  -- What the kernel answered holds for two seconds here.
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
