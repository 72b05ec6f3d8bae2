{-# LANGUAGE OverloadedStrings #-}

-- |
-- The ends of servers and connections on the simulated machine, with data under way: no established connection is
-- dropped by a drain, no answer is cut by a reset, an answer that was broken off does not look complete, and no handler
-- outlives its server. The model kernel resets a connection that is closed with unread data, and a reset takes what its
-- peer has not received yet.
module DrainScenario
  ( drainTests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Kernel
import Network.HTTP.Types (status200)
import Network.Wai (Application, responseStream)
import Search hiding (large)
import ServerMachine
import Simulation (Scenario (..), choose, patientClock, virtualTime)
import Test.Tasty
import Weft.Duration (Duration, milliseconds, seconds)
import Weft.Http.Server
import Weft.Runtime.Managers (stopManagers)
import qualified Weft.Socket as W
import qualified Weft.Socket.ByteString as W

type Make = Setting -> IO Scenario

-- | Longer than anything else in a scenario.
patient :: Duration
patient = seconds 100000000

-- Drains ----------------------------------------------------------------------------------

-- | A client connects and sends a request while a drain begins, and others do at some moment of the drain. Each that
-- was connected is answered.
established :: Int -> Make
established others setting = do
  seen <- unseen
  late <- replicateM others unseen
  begins <- newEmptyMVar
  drained <- newIORef False
  let client s n = sending n (lastGet "/a") >> toTheEnd s n
      lateClient s server = do
        readMVar begins
        pause <- choose 40
        replicateM_ pause yield
        connecting (client s) server
      plan = plain echoing (connecting (client seen) : map lateClient late) $ do
        ok <- readIORef drained
        claims <- mapM answeredIfConnected (seen : late)
        pure ((ok, "it was not drained") : claims)
  serving setting plan {planShared = False, planBeside = \server -> putMVar begins () >> drainServer server patient >>= writeIORef drained}
  where
    answeredIfConnected s = do
      (bytes, end) <- readIORef s
      pure (end == NoConnection || (answers bytes == ["/a"] && end == Ended), "a connected client was sent " <> show bytes <> ", " <> show end)

-- | The same of a server of another protocol, which has room for one connection. With a patience of zero or less it
-- drains without a limit. Otherwise it may give up, and says so.
crowdedDrain :: Int -> Duration -> Make
crowdedDrain clients patience (Setting backend faults) = do
  bootKernel faults
  backend
  patientClock
  up <- newEmptyMVar
  done <- replicateM clients newEmptyMVar
  seen <- replicateM clients unseen
  drained <- newIORef False
  let settings = W.defaultServerSettings {W.serverMostConnections = Just 1, W.serverSharedSockets = False, W.serverOnException = \_ _ -> pure ()}
      handler s _ = do
        bytes <- W.recv s 100
        threadDelay 900000
        W.sendAll s bytes
      program = do
        l <- W.socket W.AF_INET W.Stream W.defaultProtocol
        W.bind l (W.SockAddrInet 8000 (W.tupleToHostAddress (127, 0, 0, 1)))
        W.listen l 8
        W.withServerOn settings [l] handler $ \server -> do
          putMVar up ()
          W.drainServer server (if limited then patience else patient) >>= writeIORef drained
          mapM_ takeMVar done
        stopManagers
      client (s, ended) = (readMVar up >> connecting' (\n -> sending n "x" >> toTheEnd s n)) `finally` putMVar ended ()
      connecting' act = connecting act (error "the server is not used")
  pure . Scenario (program : map client (zip seen done)) $ \stuck -> do
    ok <- readIORef drained
    found <- mapM readIORef seen
    let lost = [s | s@(bytes, end) <- found, end /= NoConnection, (bytes, end) /= ("x", Ended)]
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | ok && not (null lost) -> Just ("it says that it was drained, and clients were sent " <> show lost)
        | not ok && not limited -> Just ("it was not drained, and clients were sent " <> show found)
        | otherwise -> Nothing
  where
    limited = patience > mempty

-- Data under way --------------------------------------------------------------------------

-- | An application whose answers are counted when the server has sent them.
counting :: Application -> IO (IORef Int, Application)
counting app = do
  count <- newIORef 0
  pure (count, \request respond -> app request respond >>= \r -> r <$ atomicModifyIORef' count (\k -> (k + 1, ())))

-- | What was answered has arrived, and the stream has ended.
allAnswered :: IORef Int -> Seen -> IO [(Bool, String)]
allAnswered count seen = do
  k <- readIORef count
  (bytes, end) <- readIORef seen
  pure
    [ (length (answers bytes) >= k, show k <> " requests were answered, and the client got " <> show (length (answers bytes)) <> " answers, and " <> show (B.length bytes) <> " bytes, " <> show end),
      (end == Ended, "it ended with " <> show end)
    ]

-- | A drain begins while a client takes an answer that is larger than the kernel's buffer, and the client sends more
-- requests.
underWay :: Make
underWay setting = do
  seen <- unseen
  begun <- newEmptyMVar
  (count, app) <- counting large
  let client n = do
        sending n (get "/a")
        receivingBy 100 seen n ((>= 100) . B.length)
        putMVar begun ()
        sending n (get "/b")
        -- Within the second answer, which is the last one.
        receivingBy 100 seen n ((>= 3700) . B.length)
        sending n (get "/c")
        receivingBy 100 seen n (const False)
  serving setting (plain app [connecting client] (allAnswered count seen)) {planBeside = \server -> takeMVar begun >> void (drainServer server patient)}

-- | A drain begins while the kernel holds an answer for a client that has not received it, which sends another request
-- before it does.
heldByKernel :: Make
heldByKernel setting = do
  seen <- unseen
  (forClient, forDrain) <- (,) <$> newEmptyMVar <*> newEmptyMVar
  (count, counted) <- counting echoing
  let app request respond = counted request respond >>= \r -> r <$ mapM_ (`tryPutMVar` ()) [forClient, forDrain]
      client n = do
        sending n (get "/a")
        takeMVar forClient
        sending n (get "/b")
        receivingBy 100 seen n (const False)
      plan = plain app [connecting client] $ do
        k <- readIORef count
        (bytes, end) <- readIORef seen
        -- What was not answered may be reset.
        pure [(length (answers bytes) >= k, show k <> " requests were answered, and the client got " <> show bytes <> ", " <> show end)]
  serving setting plan {planBeside = \server -> takeMVar forDrain >> void (drainServer server patient)}

-- Ends ------------------------------------------------------------------------------------

-- | How an answer is broken off.
data Break = Throws | Killed | Stopped
  deriving (Eq)

-- | An answer of HTTP/1.0, whose end is that of the connection, is broken off: the client sees a reset.
brokenOff :: Break -> Make
brokenOff kind setting = do
  seen <- unseen
  begun <- newEmptyMVar
  let app _ respond = respond . responseStream status200 [] $ \write flush -> do
        write "begun" >> flush
        myThreadId >>= putMVar begun
        if kind == Throws then throwIO (userError "bad") else newEmptyMVar >>= takeMVar
      client n = sending n "GET / HTTP/1.0\r\n\r\n" >> toTheEnd seen n
      other server = if kind == Killed then takeMVar begun >>= killThread else server `seq` pure ()
      plan = plain app [connecting client, other] $ do
        (bytes, end) <- readIORef seen
        pure [(end == Reset, "it was sent " <> show (C.unpack bytes) <> ", " <> show end)]
  serving setting plan {planWaits = kind /= Stopped, planBeside = \_ -> when (kind == Stopped) (void (takeMVar begun))}

-- | A server is stopped while its applications run, each of which needs 1.5 seconds to clean up. When it has ended,
-- none of them runs; they were told to end at the same time.
noneLeft :: Make
noneLeft setting = do
  seen <- replicateM 3 unseen
  running <- newIORef (0 :: Int)
  entered <- newEmptyMVar
  left <- newIORef (-1)
  begun <- newIORef 0
  ended <- newIORef 0
  let change d = atomicModifyIORef' running (\k -> (k + d, ()))
      app _ _ = mask $ \restore -> do
        change 1
        putMVar entered ()
        restore (newEmptyMVar >>= takeMVar) `finally` uninterruptibleMask_ (threadDelay 1500000 >> change (-1))
      client s n = sending n (get "/a") >> toTheEnd s n
      plan = plain app (map (connecting . client) seen) $ do
        k <- readIORef left
        took <- (-) <$> readIORef ended <*> readIORef begun
        pure [(k == 0, show k <> " applications run"), (took < 2000000000, "it took " <> show took <> " ns")]
  serving
    setting
    plan
      { planWaits = False,
        planBeside = \_ -> replicateM_ 3 (takeMVar entered) >> virtualTime >>= writeIORef begun,
        planAfter = readIORef running >>= writeIORef left >> virtualTime >>= writeIORef ended
      }

drainTests :: TestTree
drainTests =
  testGroup
    "ends of a server"
    ( [testGroup "epoll" [holdsAtRandom name (make onEpoll) | (name, make) <- scenarios]]
        <> [testGroup name' [holdsAtRandom name (make setting) | (name, make) <- take 2 scenarios] | (name', setting) <- [("poll", onPoll), ("io_uring", onUring)]]
    )
  where
    scenarios =
      [ ("connections that are established when a drain begins", established 2),
        ("a drain while an answer is under way", underWay),
        ("a drain while the kernel holds an answer", heldByKernel),
        ("a drain of a server with room for one connection", crowdedDrain 3 mempty),
        ("a drain that has time for some connections only", crowdedDrain 3 (milliseconds 900)),
        ("an answer without a length, and an application that throws", brokenOff Throws),
        ("an answer without a length, and an application that is killed", brokenOff Killed),
        ("an answer without a length, and a server that is stopped", brokenOff Stopped),
        ("applications that clean up when their server is stopped", noneLeft)
      ]
