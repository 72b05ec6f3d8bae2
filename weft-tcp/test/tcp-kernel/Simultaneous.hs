-- |
-- Both sides open or close at the same time (RFC 9293, figures 8 and 13). Our packets are held back until the kernel
-- has sent its segment, so the segments cross in every run.
module Simultaneous (tests) where

import Control.Concurrent
import Data.Bits (testBit)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (fromJust)
import Kernel
import Test.Tasty
import Test.Tasty.HUnit
import Transfers (clean)
import Weft.Duration (seconds)
import Weft.Tcp
import Weft.Tcp.Core (State (..), summary)
import Weft.Tcp.Device
import Weft.Test.Files (withFolder)
import Weft.Transport (Instant, deadlineIn)

tests :: [TestTree]
tests =
  [ testGroup
      "at the same time"
      [ testCase "both open" bothOpen,
        testCase "both close" bothClose
      ]
  ]

-- | The packets that are held back, newest first, each with the action that sends it; 'Nothing' if packets are sent
-- at once.
type Valve = MVar (Maybe [(B.ByteString, IO ())])

-- | A device whose packets are held back while the valve is shut.
throughValve :: Valve -> Device -> IO Device
throughValve valve d = pure d {deviceQueues = map held (deviceQueues d)}
  where
    held q = q {sendPacket = \how parts -> modifyMVar_ valve (maybe (Nothing <$ sendPacket q how parts) (\l -> pure (Just ((B.concat parts, sendPacket q how parts) : l))))}

shut, open' :: Valve -> IO ()
shut valve = modifyMVar_ valve (pure . Just . concat)
open' valve = modifyMVar_ valve (\held -> Nothing <$ mapM_ snd (reverse (concat held)))

-- | Wait until a packet that satisfies the condition is held back.
waitFor :: Valve -> (B.ByteString -> Bool) -> IO B.ByteString
waitFor valve wanted = do
  held <- maybe [] (map fst) <$> readMVar valve
  case filter wanted held of
    p : _ -> pure p
    [] -> threadDelay 5000 >> waitFor valve wanted

-- | The control bits of a packet without IP options, and its source port.
flagsOf, portOf :: B.ByteString -> Int
flagsOf p = fromIntegral (B.index p 33)
portOf p = fromIntegral (B.index p 20) * 256 + fromIntegral (B.index p 21)

hasFin, isSyn, isSynAck :: B.ByteString -> Bool
hasFin p = flagsOf p `testBit` 0
isSyn p = flagsOf p == 2
isSynAck p = flagsOf p == 18

receiveAll :: Socket -> Instant -> IO B.ByteString
receiveAll c limit = do
  b <- recv c limit 65536
  if B.null b then pure b else (b <>) <$> receiveAll c limit

-- | The SYNs cross: our SYN reaches the kernel after it has sent its own, and the kernel's SYN reaches us after we
-- have sent ours.
bothOpen :: Assertion
bothOpen = do
  valve <- newMVar Nothing
  withKernel plainSetup {offload = False, around = throughValve valve} $ \st -> do
    limit <- deadlineIn (seconds 200)
    shut valve
    ours <- newEmptyMVar
    _ <- forkIO (connect st limit (fromJust (parseAddress kernelAddress)) 5001 >>= putMVar ours)
    first <- waitFor valve isSyn
    theirs <- newEmptyMVar
    _ <- forkFinally (peer ["meet", ourAddress, show (portOf first), "5001"]) (putMVar theirs)
    -- Our stack has answered the kernel's SYN.
    _ <- waitFor valve isSynAck
    open' valve
    c <- takeMVar ours
    send c limit (C.pack "from the stack")
    shutdownSend c
    receiveAll c limit >>= (@?= C.pack "from the kernel")
    close c
    takeMVar theirs >>= either (assertFailure . show) pure

-- | The FINs cross: our side is in CLOSING, and then in TIME-WAIT.
bothClose :: Assertion
bothClose = withFolder $ \folder -> do
  let mark = folder ++ "/close"
  valve <- newMVar Nothing
  withKernel plainSetup {offload = False, around = throughValve valve} $ \st -> clean $ do
    limit <- deadlineIn (seconds 200)
    l <- listen st Nothing 80
    theirs <- newEmptyMVar
    _ <- forkFinally (peer ["crossing", ourAddress, "80", mark]) (putMVar theirs)
    c <- accept l
    send c limit (C.pack "close")
    shut valve
    shutdownSend c
    _ <- waitFor valve hasFin
    -- The kernel's side closes when the file is there.
    writeFile mark ""
    receiveAll c limit >>= (@?= C.pack "bye")
    inspect c summary >>= (@?= Closing) . summaryState
    open' valve
    takeMVar theirs >>= either (assertFailure . show) pure
    close c
    settled (1200 :: Int) st
  where
    -- Wait until the only connection left is in TIME-WAIT.
    settled n st = do
      (rows, _) <- connectionTable st 10
      case rows of
        [Row _ Nothing] -> pure ()
        _ | n > 0 -> threadDelay 50000 >> settled (n - 1) st
        _ -> assertFailure (show (length rows) ++ " connections")
