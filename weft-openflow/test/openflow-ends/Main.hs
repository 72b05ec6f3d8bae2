{-# LANGUAGE OverloadedStrings #-}

-- |
-- What runs after a controller, or the connection of a switch, has ended: nothing. Each test lets threads of the
-- controller be in the middle of something that the end has to interrupt, or to wait for, and looks at once when the
-- end has come. It does that many times, in three ways: the action around it returns, throws, or is killed.
--
-- The threads of the process are counted, so the tests run one after the other.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.Async (AsyncCancelled, async, cancel, poll, wait, waitCatch, withAsync)
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isNothing)
import EtcdServer (freePort)
import Peer
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.Duration (milliseconds)
import Weft.OpenFlow.App
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning
import Weft.OpenFlow.Lldp
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (SockAddr (SockAddrUnix))
import Weft.Test.Capabilities (changeCapabilities)
import Weft.Test.Configurations (configurations)
import Weft.Test.Limits (within)
import Weft.Test.Main (defaultMain)
import Weft.Test.Threads (noneLeft)
import Weft.Timer (sleep)
import Weft.Transport

main :: IO ()
main = do
  numbers <- configurations (== 2) [1, 2, 4]
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain . localOption (mkTimeout 600000000) . testGroup "openflow-ends" $
    [testGroup ("-N" ++ show n) [testCase name (changeCapabilities n >> warm n >> act) | (name, act) <- cases] | n <- numbers]
  where
    cases =
      [ ("a switch that reads nothing, for which messages are queued", manyTimes 100 unread),
        ("statistics are being read from a switch that does not answer", manyTimes 100 statistics),
        ("links are being probed", manyTimes 100 discovery),
        ("an application is told of the network", manyTimes 100 delivery),
        ("callbacks for switches that leave take their time, mask exceptions, or throw", manyTimes 100 leaving),
        ("a member of a cluster, whose etcd does not answer", manyTimes 50 member),
        ("ended at any moment", storm 200),
        ("the connection of one switch ends, and the controller goes on", replicateM_ 100 oneConnection),
        ("a round that fails is not the last one", failingRounds)
      ]

-- | What is started for good when it is first used, on each capability, is started.
warm :: Int -> IO ()
warm n = do
  done <- forM [0 .. n - 1] $ \i -> do
    box <- newEmptyMVar
    box <$ forkOn i (sleep (milliseconds 1) >> putMVar box ())
  mapM_ takeMVar done
  replicateM_ 2 . withTestController quiet $ \c address ->
    foldr (\d rest -> withPeer address (\p -> switchHandshake c V10 d p >> rest)) (pure ()) [1 .. fromIntegral (2 * n)]

-- Ways to end -----------------------------------------------------------------------------

data Way = Returns | Throws | Killed
  deriving (Eq, Show, Enum, Bounded)

data Enough = Enough
  deriving (Show)

instance Exception Enough

-- | Run a scenario many times, in each way. It gets a counter, and an action that ends it, in place of what would be
-- the end of the program's own action.
manyTimes :: Int -> (Inside -> IO () -> IO ()) -> Assertion
manyTimes n scenario = forM_ (take n (cycle [minBound .. maxBound])) $ \way -> within 60 (show way) . noneLeft (show way) $ do
  inside <- newInside
  ready <- newEmptyMVar
  result <- case way of
    Returns -> try (scenario inside (pure ()))
    Throws -> try (scenario inside (throwIO Enough))
    Killed -> withAsync (scenario inside (putMVar ready () >> threadDelay maxBound)) $ \a -> do
      takeMVar ready
      cancel a
      waitCatch a
  -- At once.
  nobodyInside inside
  case result of
    Right () -> way @?= Returns
    Left e -> assertBool (show way <> ": " <> show e) (expected way e)
  where
    expected way e = case way of
      Returns -> False
      Throws -> maybe False (\Enough -> True) (fromException e)
      Killed -> maybe False (const True) (fromException e :: Maybe AsyncCancelled)

-- | How many threads are inside of what the test watches.
newtype Inside = Inside (IORef Int)

newInside :: IO Inside
newInside = Inside <$> newIORef 0

-- | An action that has some more to do when it ends, by whatever, and cannot be interrupted in that.
lingering :: Inside -> IO a -> IO a
lingering (Inside n) = bracket_ (add 1) (uninterruptibleMask_ (threadDelay 1000) >> add (-1))
  where
    add i = atomicModifyIORef' n (\k -> (k + i, ()))

-- | Wait until somebody is inside.
somebodyInside :: Inside -> Assertion
somebodyInside (Inside n) = go
  where
    go = readIORef n >>= \k -> when (k == 0) (yield >> threadDelay 50 >> go)

nobodyInside :: Inside -> Assertion
nobodyInside (Inside n) = readIORef n >>= assertEqual "threads that are inside" 0

forEver :: IO a
forEver = threadDelay maxBound >> forEver

-- Scenarios -------------------------------------------------------------------------------

-- | Without link discovery and counters, and patient.
quiet :: Settings
quiet = (patient defaultSettings) {settingsTopology = Nothing, settingsPortStats = Nothing}

-- | Sends of a switch's connection that have at least a thousand bytes do not come to an end, not even when the
-- connection is closed.
unread :: Inside -> IO () -> IO ()
unread inside end = withTestController quiet {settingsUpgrade = pure . stuck inside} $ \c address -> withPeer address $ \p -> do
  switchHandshake c V10 1 p
  sendMessage c (DatapathId 1) (EchoRequest (B.replicate 2000 0)) >>= (@?= Right ())
  somebodyInside inside
  end

-- | A connection whose long sends wait for ever.
stuck :: Inside -> Connection -> Connection
stuck inside c =
  Connection
    Operations
      { opReceive = \_ due n -> connReceive c due n,
        opSend = \_ due (Region p n) -> if n >= 1000 then lingering inside forEver else connSend c due p n,
        opSendMany = \_ due strings -> if sum (map B.length strings) >= 1000 then lingering inside forEver else connSendMany c due strings,
        opSendFile = \_ due strings range -> connSendFile c due strings range,
        opShutdownSend = \_ due -> connShutdownSend c due,
        opClose = \_ -> connClose c,
        opAbort = \_ -> connAbort c,
        opPeer = \_ -> connPeer c,
        opLocal = \_ -> connLocal c,
        opSendProgress = \_ -> connSendProgress c,
        opAwaitPeer = Nothing,
        opIsQuiet = \_ -> connIsQuiet c,
        opSecurity = \_ -> connSecurity c,
        opKeepsStrings = \_ -> connKeepsStrings c
      }
    ()

-- | 'settingsActiveUntil' that does not return once the flag is set, except in the threads that receive from switches.
withGate :: Inside -> Settings -> (Settings -> IORef Bool -> IO a) -> IO a
withGate inside settings act = do
  gate <- newIORef False
  own <- newIORef []
  let upgrade c = c <$ (myThreadId >>= \t -> atomicModifyIORef' own (\ts -> (t : ts, ())))
      until' = do
        closed <- readIORef gate
        when closed $ do
          t <- myThreadId
          ts <- readIORef own
          unless (t `elem` ts) (lingering inside forEver)
        pure maxBound
  act settings {settingsUpgrade = upgrade, settingsActiveUntil = until'} gate

-- | A switch of 1.0 may be asked when the controller is active there, which is a moment after it is known.
becomesActive :: Controller -> Assertion
becomesActive c = eventually "the controller is active" (maybe False infoActive . Map.lookup (DatapathId 1) <$> connectedSwitches c)

-- | Threads that ask, of which some share a request, are told that the switch has gone.
statistics :: Inside -> IO () -> IO ()
statistics inside end = do
  outcomes <- newIORef []
  let tell outcome = atomicModifyIORef' outcomes (\os -> (outcome : os, ()))
      ask c request = async (askSwitch c (DatapathId 1) request >>= tell . either Just (const Nothing))
  askers <- newIORef []
  (`finally` (readIORef askers >>= mapM_ wait)) . withGate inside quiet $ \settings gate ->
    withTestController settings $ \c address -> withPeer address $ \p -> do
      switchHandshake c V10 1 p
      becomesActive c
      writeIORef gate True
      forM_ [DescRequest, TableStatsRequest, DescRequest, TableStatsRequest, DescRequest] $ \request ->
        ask c request >>= \a -> modifyIORef' askers (a :)
      somebodyInside inside
      end
  readIORef outcomes >>= assertEqual "what those that asked are told" (replicate 5 (Just NotConnected))

discovery :: Inside -> IO () -> IO ()
discovery inside end = withGate inside quiet {settingsTopology = settingsTopology defaultSettings, settingsDiscovery = milliseconds 1} $ \settings gate ->
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    writeIORef gate True
    somebodyInside inside
    end

-- | A switch reports a link between two of its ports, which changes where packets are flooded.
delivery :: Inside -> IO () -> IO ()
delivery inside end = withGate inside quiet {settingsTopology = settingsTopology defaultSettings, settingsLldpKey = lldpKey (B.replicate 16 7)} $ \settings gate ->
  withTestController settings $ \c address -> withPeer address $ \p -> withPeer address $ \q -> do
    switchHandshake c V10 1 p
    switchHandshake c V10 2 q
    writeIORef gate True
    forM_ [(p, 2, 2, 1), (q, 1, 1, 2)] $ \(to, d, port, at) ->
      sendMessageOf V10 9 (PacketInMessage (PacketIn noBuffer 60 (PortNo at) 0 0 0 [] (frameOf d port))) to
    somebodyInside inside
    end
  where
    frameOf d port = lldpFrame (fromMaybe (error "no key") (lldpKey (B.replicate 16 7))) (DatapathId d) (PortNo port) (MacAddress 1)

-- | For each switch that has come, all callbacks have been called, to their ends.
leaving :: Inside -> IO () -> IO ()
leaving inside end = do
  ends <- newIORef (0 :: Int)
  let gone = lingering inside (threadDelay 500 >> atomicModifyIORef' ends (\n -> (n + 1, ())))
      callback d here = unless here $ case d of
        DatapathId 1 -> gone
        DatapathId 2 -> uninterruptibleMask_ gone
        _ -> gone >> throwIO (userError "no space left")
      incident _ = throwIO (userError "no space left")
  (`finally` (readIORef ends >>= assertEqual "calls that have ended" 3)) $
    withTestController quiet {settingsOnSwitch = callback, settingsOnIncident = incident} $ \c address ->
      withPeer address $ \one -> withPeer address $ \two -> withPeer address $ \three -> do
        zipWithM_ (switchHandshake c V10) [1 ..] [one, two, three]
        end

-- | The callback by which a member says that etcd does not answer does not return.
member :: Inside -> IO () -> IO ()
member inside end = do
  port <- freePort
  let options = (defaultClusterSettings "one" ["http://127.0.0.1:" <> show port]) {clusterOnReach = \_ -> lingering inside forEver}
  withCluster options $ \cluster around ->
    withTestController (clusterSettings cluster quiet) $ \c _ -> do
      -- Its threads have ended before the controller does.
      around c (somebodyInside inside >> end) `finally` nobodyInside inside

-- | Switches come, some with packets, and the controller is killed after a while that is another one each time.
storm :: Int -> Assertion
storm times = forM_ [1 .. times] $ \i -> within 60 (show i) . noneLeft (show i) $ do
  inside <- newInside
  address <- newEmptyMVar
  let settings =
        (patient defaultSettings)
          { settingsDiscovery = milliseconds 2,
            settingsPortStats = Just (milliseconds 2),
            settingsOnSwitch = \_ _ -> lingering inside yield,
            settingsOnIncident = \_ -> lingering inside yield
          }
      switch a d = withPeer a $ \p -> handle (\e -> const (pure ()) (e :: IOException)) $ do
        sendBytes p (introduction d)
        forM_ [1 ..] (\k -> packetFrom V10 k (PortNo 1) (fromIntegral k) 2 p >> threadDelay 100)
  withAsync (withTestControllerOf settings (shared learningSwitch) (\c a -> putMVar address (c, a) >> forEver)) $ \running -> do
    (c, a) <- takeMVar address
    withAsync (switch a 1) $ \_ -> withAsync (switch a 2) $ \_ -> withAsync (switch a 3) $ \_ -> do
      threadDelay ((i * 97) `mod` 7000)
      _ <- sendMessage c (DatapathId 1) (EchoRequest (B.replicate 2000 0))
      cancel running
      -- At once.
      nobodyInside inside

introduction :: Int -> ByteString
introduction d = B.concat [encoded (Hello []), encoded (FeaturesReply (Features (DatapathId (fromIntegral d)) 256 2 0 0 0 [Port (PortNo 1) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0)]))]
  where
    encoded = fromMaybe (error "unencodable") . encode V10 2

-- | The end of 'serveConnection' is the end of all that works for the switch.
oneConnection :: Assertion
oneConnection = within 60 "a connection" . withBareController quiet (perSwitch learningSwitch) $ \c -> noneLeft "a connection" $ do
  inside <- newInside
  (here, there) <- connectionPair 100000 (SockAddrUnix "a") (SockAddrUnix "b")
  withAsync (serveConnection c (stuck inside here) >> nobodyInside inside) $ \served -> do
    connSendBytes there noDeadline (introduction 1)
    becomesActive c
    withAsync (askSwitch c (DatapathId 1) DescRequest) $ \asked -> do
      _ <- sendMessage c (DatapathId 1) (EchoRequest (B.replicate 2000 0))
      somebodyInside inside
      poll asked >>= assertBool "it waits" . isNothing
      connClose there
      wait served
      wait asked >>= (@?= Left NotConnected)
      -- What is sent later is not sent.
      sendMessage c (DatapathId 1) (EchoRequest "late") >>= (@?= Left NotConnected)

-- | 'settingsActiveUntil' fails in rounds of the discovery. Probes are sent later all the same.
failingRounds :: Assertion
failingRounds = do
  failing <- newIORef False
  failures <- newIORef (0 :: Int)
  own <- newIORef []
  let upgrade connection = connection <$ (myThreadId >>= \t -> atomicModifyIORef' own (\ts -> (t : ts, ())))
      until' = do
        fails <- readIORef failing
        t <- myThreadId
        ts <- readIORef own
        maxBound <$ when (fails && t `notElem` ts) (modifyIORef' failures (+ 1) >> throwIO (userError "no space left"))
      settings = (patient defaultSettings) {settingsPortStats = Nothing, settingsDiscovery = milliseconds 5, settingsUpgrade = upgrade, settingsActiveUntil = until'}
  withTestController settings $ \c address -> withPeer address $ \p -> do
    switchHandshake c V10 1 p
    writeIORef failing True
    eventually "it has failed" ((>= 3) <$> readIORef failures)
    writeIORef failing False
    -- Behind what was sent before.
    sendMessageOf V10 77 (EchoRequest "") p
    _ <- expect "ECHO_REPLY" (\m -> case m of EchoReply _ -> Just (); _ -> Nothing) p
    void (expect "a probe" (\m -> case m of PacketOutMessage _ -> Just (); _ -> Nothing) p)
