-- |
-- Closing a stack, with threads that wait or that call it later, and failures while it runs: of a loop that is
-- killed, a device, a packet log and a callback.
module Spec.Ending (tests) where

import Control.Concurrent
import Control.Exception (ErrorCall (..), throwIO)
import Control.Monad
import qualified Data.ByteString as B
import Data.IORef
import Foreign.C.Error (Errno (..), eBADF, eNETDOWN, ePIPE, eTIMEDOUT)
import GHC.Conc (BlockReason (..), ThreadStatus (..), threadStatus)
import GHC.IO.Exception (ioe_description, ioe_errno)
import Lone
import System.Directory (doesPathExist)
import System.IO.Error (tryIOError)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Duration (milliseconds, seconds)
import qualified Weft.Hybrid (run)
import Weft.Tcp
import Weft.Tcp.Capture
import Weft.Tcp.Device
import qualified Weft.Tcp.Hybrid as Hybrid
import Weft.Tcp.Stack (Socket (..), fired, firedSignal)
import Weft.Tcp.Stack.Step (timerLoop)
import Weft.Tcp.Wire.Segment (Segment (payload), ack, psh)
import Weft.Test.Limits (limited)
import Weft.Test.Skip (skip, testCase)
import Weft.Transport (deadlineIn, noDeadline)

tests :: TestTree
tests =
  testGroup
    "ending"
    [ testCase "closing a stack ends accept, connect, recv and send" closesWaits,
      testCase "closing a stack ends the waits of hybrid threads" closesHybridWaits,
      testCase "a stack that is closed neither listens nor connects: ENETDOWN" late,
      testCase "closing while threads listen, accept and connect, 400 times: no thread keeps waiting" races,
      testCase "an error of the device ends all waits on the stack" deviceFails,
      testCase "connections whose device fails end with ENETDOWN" deviceLost,
      testCase "a closed device in memory: its reader gets EBADF, the other end waits" deviceClosed,
      testCase "a timer loop that is killed loses no connection" killedLoop,
      testCase "a send that is cut off after a part makes all further sends fail, with EPIPE" cutOffSend,
      testCase "data that is sent while another thread shuts down is sent, or the call fails" sendAndShutdown,
      testCase "a full disk ends the packet log, is reported once, and the stack goes on" fullDisk,
      testCase "callbacks for packets and soft errors that throw: the stack goes on" throwing
    ]

-- | Run an action in a thread. The result is an action that waits for the error, for at most half a minute, and returns
-- its errno.
failsWith :: IO a -> IO (IO (Maybe Errno))
failsWith act = do
  ended <- newEmptyMVar
  _ <- forkIO (tryIOError act >>= putMVar ended)
  pure $ do
    r <- limited 30 (takeMVar ended)
    case r of
      Nothing -> assertFailure "still waits"
      Just (Right _) -> assertFailure "succeeded"
      Just (Left e) -> pure (Errno <$> ioe_errno e)

isOneOf :: [Errno] -> Maybe Errno -> Assertion
isOneOf expected found = assertBool (show (number <$> found)) (maybe False (`elem` expected) found)
  where
    number (Errno n) = n

-- | Two connected stacks. The action may close the first one, which is closed afterwards in any case.
withOpen :: (Stack -> Stack -> IO a) -> IO a
withOpen act = do
  (da, db) <- pairOfDevices 1500 (const False)
  a <- newStack (quick [addressA]) da
  withStack (quick [addressB]) db (\b -> act a b <* closeStack a)

-- | Open a connection from the first stack to the second. Returns both ends.
joined :: Stack -> Stack -> IO (Socket, Socket)
joined a b = do
  l <- listen b Nothing 80
  c <- connect a noDeadline addressB 80
  s <- accept l
  (c, s) <$ closeListening b l

nowhere :: Address
nowhere = V4 0x0a000009

closesWaits :: Assertion
closesWaits = withOpen $ \a b -> do
  (c, _) <- joined a b
  (d, _) <- joined a b
  l <- listen a Nothing 81
  waits <-
    sequence
      [ failsWith (accept l),
        failsWith (connect a noDeadline nowhere 7),
        failsWith (recv c noDeadline 10),
        failsWith (forever (send d noDeadline (B.replicate 100000 65)))
      ]
  threadDelay 100000
  closeStack a
  forM_ waits (>>= isOneOf [eBADF, eNETDOWN])

closesHybridWaits :: Assertion
closesHybridWaits = withOpen $ \a b -> do
  (c, _) <- joined a b
  l <- Hybrid.listen a Nothing 81
  h <- Hybrid.fromTcp c
  waits <- sequence [failsWith (Weft.Hybrid.run (Hybrid.accept l)), failsWith (Weft.Hybrid.run (Hybrid.connect a noDeadline nowhere 7)), failsWith (Weft.Hybrid.run (Hybrid.recv h 10))]
  threadDelay 100000
  closeStack a
  forM_ waits (>>= isOneOf [eBADF, eNETDOWN])

late :: Assertion
late = withOpen $ \a _ -> do
  closeStack a
  closeStack a
  waits <- sequence [failsWith (void (listen a Nothing 80)), failsWith (void (connect a noDeadline addressB 80))]
  forM_ waits (>>= isOneOf [eNETDOWN])
  size <- tableSize a
  size @?= 0

races :: Assertion
races = forM_ [1 .. 400 :: Int] $ \n -> withOpen $ \a b -> do
  _ <- forkIO (void (tryIOError (listen b Nothing 80 >>= forever . accept)))
  waits <-
    sequence
      [ failsWith (listen a Nothing 81 >>= forever . accept),
        failsWith (forever (connect a noDeadline addressB 80)),
        failsWith (connect a noDeadline nowhere 80)
      ]
  replicateM_ (n `mod` 40) yield
  closeStack a
  forM_ waits (>>= isOneOf [eBADF, eNETDOWN])

deviceFails :: Assertion
deviceFails = do
  broken <- newEmptyMVar
  let device = Device "broken" 1500 False [Queue (takeMVar broken >>= ioError) (\_ _ -> pure ())] (pure ())
  withStack (quick [addressA]) device $ \a -> do
    l <- listen a Nothing 81
    waits <- sequence [failsWith (accept l), failsWith (connect a noDeadline addressB 7)]
    threadDelay 50000
    putMVar broken (userError "the device is gone")
    forM_ waits (>>= isOneOf [eBADF, eNETDOWN])
    afterwards <- failsWith (connect a noDeadline addressB 7)
    afterwards >>= isOneOf [eNETDOWN]

deviceLost :: Assertion
deviceLost = do
  (da, db) <- pairOfDevices 1500 (const False)
  failing <- newIORef False
  let failsLater q = q {receiveBatch = receiveBatch q >>= \batch -> readIORef failing >>= \f -> if f then ioError (userError "the device is gone") else pure batch}
  withStack (quick [addressA]) da {deviceQueues = map failsLater (deviceQueues da)} $ \a -> withStack (quick [addressB]) db $ \b -> do
    (c, s) <- joined a b
    (d, _) <- joined a b
    h <- Hybrid.fromTcp d
    waits <- sequence [failsWith (recv c noDeadline 10), failsWith (forever (send c noDeadline (B.replicate 100000 65))), failsWith (Weft.Hybrid.run (Hybrid.recv h 10))]
    threadDelay 100000
    writeIORef failing True
    send s noDeadline (B.singleton 1)
    forM_ waits (>>= isOneOf [eNETDOWN])
    failsWith (recv c noDeadline 10) >>= (>>= isOneOf [eNETDOWN])
    close c
    failsWith (recv c noDeadline 10) >>= (>>= isOneOf [eBADF])

deviceClosed :: Assertion
deviceClosed = do
  (a, b) <- pairOfDevices 1500 (const False)
  reader <- failsWith (readFrom a)
  threadDelay 20000
  deviceClose a
  reader >>= isOneOf [eBADF]
  failsWith (readFrom a) >>= (>>= isOneOf [eBADF])
  other <- timeout 100000 (readFrom b)
  fmap length other @?= Nothing
  -- Packets to a closed device are lost, and so are packets from it.
  forM_ (deviceQueues b) (\q -> replicateM_ 3000 (sendPacket q NoOffload [B.replicate 100 0]))
  forM_ (deviceQueues a) (\q -> sendPacket q NoOffload [B.replicate 100 0])
  nothing <- timeout 50000 (readFrom b)
  fmap length nothing @?= Nothing
  deviceClose b
  failsWith (readFrom b) >>= (>>= isOneOf [eBADF])
  where
    readFrom d = concat <$> mapM receiveBatch (take 1 (deviceQueues d))

-- | A deadline passes while the send buffer of 20,000 bytes is full.
cutOffSend :: Assertion
cutOffSend = withLone (\s -> s {stackConfig = (stackConfig s) {sendBuffer = 20000}}) $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  sock <- accept l
  send sock noDeadline (B.replicate 20000 1)
  -- Nothing is taken, so the connection can go on.
  soon >>= \limit -> failsWith (send sock limit (B.singleton 2)) >>= (>>= isOneOf [eTIMEDOUT])
  -- The initial window of ten segments is acknowledged.
  says st p {ourNext = ourNext p + 14600} 0 ack B.empty
  send sock noDeadline (B.singleton 2)
  soon >>= \limit -> failsWith (send sock limit (B.replicate 50000 3)) >>= (>>= isOneOf [eTIMEDOUT])
  r <- tryIOError (send sock noDeadline (B.singleton 4))
  either ioe_description (const "sent") r @?= "an earlier send was cut off after a part: this connection can send nothing more"
  failsWith (send sock noDeadline (B.singleton 4)) >>= (>>= isOneOf [ePIPE])
  where
    soon = deadlineIn (milliseconds 20)

-- | Both threads wait for the connection's state, which the test has taken: the one that sends first.
sendAndShutdown :: Assertion
sendAndShutdown = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000
  sock <- accept l
  _ <- sent
  kept <- takeMVar (socketConn sock)
  (sender, result) <- running (send sock noDeadline (B.pack [1, 2, 3]))
  waitUntil (blockedOnMVar sender)
  (closer, closed) <- running (shutdownSend sock)
  waitUntil (blockedOnMVar closer)
  putMVar (socketConn sock) kept
  outcome <- takeMVar result
  takeMVar closed >>= either (assertFailure . show) pure
  out <- mapM (either assertFailure pure . decoded) =<< sent
  B.concat (concatMap payload out) @?= either (const B.empty) (const (B.pack [1, 2, 3])) outcome
  where
    running act = do
      ended <- newEmptyMVar
      t <- forkIO (tryIOError act >>= putMVar ended)
      pure (t, ended)

blockedOnMVar :: ThreadId -> IO Bool
blockedOnMVar t = (== ThreadBlocked BlockedOnMVar) <$> threadStatus t

waitUntil :: IO Bool -> IO ()
waitUntil test = test >>= \b -> unless b (yield >> waitUntil test)

-- | The loop waits for a connection that another thread has taken, and is killed just after the connection is put
-- back.
killedLoop :: Assertion
killedLoop = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  sock <- accept l
  forM_ [1 .. 2000 :: Int] $ \n -> do
    kept <- takeMVar (socketConn sock)
    t <- forkIO (timerLoop st)
    atomicModifyIORef' (fired st) (\socks -> (sock : socks, ()))
    _ <- tryPutMVar (firedSignal st) ()
    -- It is blocked: on the connection, or on the signal if the stack's own loop has taken that.
    waitUntil (blockedOnMVar t)
    putMVar (socketConn sock) kept
    replicateM_ (n `mod` 3) yield
    killThread t
  says st p 0 (ack <> psh) (B.pack [1, 2, 3])
  r <- limited 30 (recv sock noDeadline 10)
  r @?= Just (B.pack [1, 2, 3])

fullDisk :: Assertion
fullDisk = do
  there' <- doesPathExist "/dev/full"
  if not there'
    then skip "no /dev/full"
    else do
      told <- newIORef (0 :: Int)
      (see, end) <- captureTo "/dev/full" (\_ -> modifyIORef told (+ 1))
      (da, db) <- pairOfDevices 1500 (const False)
      withStack (quick [addressA]) {stackTap = Just see} da $ \a -> withStack (quick [addressB]) db $ \b -> do
        (c, s) <- joined a b
        limit <- deadlineIn (seconds 200)
        let size = 2000000
        _ <- forkIO (send c limit (B.replicate size 65) >> shutdownSend c)
        receiveAll s limit 0 >>= (@?= size)
      end
      readIORef told >>= (@?= 1)

receiveAll :: Socket -> Hybrid.Instant -> Int -> IO Int
receiveAll s limit n = do
  b <- recv s limit 65536
  if B.null b then pure n else receiveAll s limit (n + B.length b)

throwing :: Assertion
throwing = do
  (da, db) <- pairOfDevices 1500 (const False)
  seen <- newIORef (0 :: Int)
  let see _ _ = modifyIORef seen (+ 1) >> throwIO (ErrorCall "of the tap")
  withStack (quick [addressA]) {stackTap = Just see} da $ \a -> withStack (quick [addressB]) db $ \b -> do
    (c, s) <- joined a b
    limit <- deadlineIn (seconds 200)
    send c limit (B.replicate 100000 65) >> shutdownSend c
    receiveAll s limit 0 >>= (@?= 100000)
    readCounter a CallbackErrors >>= (@?= 1)
  readIORef seen >>= (@?= 1)
  withLone (\s -> s {stackSoftErrors = Just (\_ _ -> ioError (userError "of the report"))}) $ \st sent -> do
    l <- listen st Nothing 80
    p <- established st sent 4000 1000
    sock <- accept l
    send sock noDeadline (B.pack [9])
    -- Three timeouts without an acknowledgment are reported.
    threadDelay 800000
    let reported n = readCounter st CallbackErrors >>= \k -> unless (k > 0 || n == (0 :: Int)) (threadDelay 50000 >> reported (n - 1))
    reported 600
    readCounter st CallbackErrors >>= (@?= 1)
    says st p 0 (ack <> psh) (B.pack [1])
    r <- limited 30 (recv sock noDeadline 10)
    r @?= Just (B.pack [1])
