-- |
-- One switch's connection: its thread receives many messages at a time, handles them, and sends the answers together.
module Weft.OpenFlow.Controller.Connection
  ( serveConnection,
    takeRole,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.MVar
import Control.Exception (Handler (..), SomeAsyncException, SomeException, bracket, catches, displayException, throwIO)
import Control.Monad (forM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Word (Word64)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Dispatch
import Weft.OpenFlow.Controller.Framer
import Weft.OpenFlow.Controller.Handshake
import Weft.OpenFlow.Controller.Liveness
import Weft.OpenFlow.Controller.Outlet
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Transport

-- | Serve a switch until its connection ends, which is reported and touches no other switch. Throws what was thrown at
-- the calling thread only.
serveConnection :: Controller -> Connection -> IO ()
serveConnection c plain = do
  who <- newIORef Nothing
  let ended why = readIORef who >>= \d -> settingsOnIncident settings (ConnectionEnded d why)
      failed :: SomeException -> IO ()
      failed e = ended (displayException e)
  (bracket (settingsUpgrade settings plain) connClose (connected who) >>= ended)
    `catches` [ Handler (\e -> throwIO (e :: SomeAsyncException)),
                Handler (\(HandshakeFailed why) -> fault c >> ended why),
                Handler failed
              ]
  where
    settings = controllerSettings c
    connected who connection = do
      outlet <- newOutlet (settingsPatience settings) connection
      deadline <- deadlineIn (settingsHandshake settings)
      r <- newReader connection deadline
      version <- negotiate (settingsVersions settings) outlet r
      features <- askFeatures version outlet r
      writeIORef who $! Just $! featuresDatapath features
      session <- newSession c outlet version features
      rest <- leftOver r
      joined c session (featuresPorts features) (setUp c session features >> run c session rest)

fault :: Controller -> IO ()
fault c = atomicModifyIORef' (controllerTotals c) (\t -> (t {totalFaults = totalFaults t + 1}, ()))

newSession :: Controller -> Outlet -> Version -> Features -> IO Session
newSession c outlet version features = do
  n <- atomicModifyIORef' (controllerNext c) (\n -> (n + 1, n))
  handler <- controllerNewInstance c
  Session n features {featuresPorts = []} version outlet handler <$> newMVar () <*> newIORef True <*> newIORef 256 <*> newIORef Map.empty <*> newIORef Map.empty
    <*> newIORef (Totals 0 0 0 0)

-- | While an action runs the session is among the controller's. One that the same switch had before is dropped: a
-- switch has one connection, and the newer one is alive.
joined :: Controller -> Session -> [Port] -> IO a -> IO a
joined c s ports = bracket enter leave . const
  where
    d = featuresDatapath (sessionFeatures s)
    enter = do
      old <- atomicModifyIORef' (controllerSessions c) (\m -> (Map.insert d s m, Map.lookup d m))
      forM_ old (connAbort . outletConnection . sessionOutlet)
      time <- currentMillis
      topologyStep c (switchJoined time d (sessionVersion s) ports)
      settingsOnSwitch (controllerSettings c) d True
    leave () = do
      mine <- atomicModifyIORef' (controllerSessions c) $ \m -> case Map.lookup d m of
        Just s' | sessionNumber s' == sessionNumber s -> (Map.delete d m, True)
        _ -> (m, False)
      totals <- readIORef (sessionTotals s)
      atomicModifyIORef' (controllerTotals c) (\t -> (addTotals t totals, ()))
      asking <- atomicModifyIORef' (sessionAsking s) (\m -> (Map.empty, m))
      forM_ asking (\(Asking _ var) -> tryPutMVar var Nothing)
      when mine $ do
        topologyStep c (switchLeft d)
        settingsOnSwitch (controllerSettings c) d False
      context <- contextNow c s
      withMVar (sessionLock s) (\_ -> void (sessionInstance s context SwitchDown))

-- | Messages until the end; why it ended.
run :: Controller -> Session -> ByteString -> IO String
run c s first = do
  withLiveness (settingsEchoAfter settings) (settingsDeadAfter settings) ask (connAbort connection) $ \watch ->
    go watch nothingPartial first
  where
    settings = controllerSettings c
    connection = outletConnection (sessionOutlet s)
    ask = mapM_ (post (sessionOutlet s) . pure) (encode (sessionVersion s) 3 (EchoRequest B.empty))
    go watch partial received
      | B.null received = do
        more <- connReceive connection noDeadline receiveSize
        if B.null more then pure "the switch closed its connection" else alive watch >> go watch partial more
      | otherwise = case feed partial received of
        Still partial' -> go watch partial' B.empty
        Broken h -> broken h
        Complete one rest -> do
          (verdict, left) <- batch c s one rest
          case verdict of
            Finish why -> pure why
            Continue -> do
              -- Evaluated before it waits, or what was received is kept until more is.
              let !start = partialOf left
              -- See Note [Turns].
              when (B.length received >= turnBytes) yield
              go watch start B.empty
    broken h = do
      mapM_ (sendHere (sessionOutlet s) . pure) (runPut (errorFor (sessionVersion s) h B.empty BadLength))
      fault c
      pure "a message shorter than its header"

-- | What a switch may send in a turn: bytes.
turnBytes :: Int
turnBytes = 8192

-- | Bytes that are received at a time. As much as a busy switch has under way (cbench: 512 packets, 42 KB), or it would have
-- its packets answered in two turns where others have theirs in one.
receiveSize :: Int
receiveSize = 65536

-- Note [Turns]. A switch that has sent much has more by now, as a rule, and must not keep the others waiting: it yields. One
-- that has sent little has to wait, which lets the others run as well. If it yielded first, the dispatcher would find no
-- event and block in the kernel while this thread is still ready: for that GHC hands the capability to another OS thread,
-- two changes of OS threads for each wake-up.

-- | All complete messages of two strings, one behind the other; answers go out together. The last one, which is not
-- complete, is left.
batch :: Controller -> Session -> ByteString -> ByteString -> IO (Verdict, ByteString)
batch c s one rest = do
  context <- contextNow c s
  out <- newOut (min 65536 (max 256 (B.length one + B.length rest)))
  (verdict, left, n) <- withMVar (sessionLock s) (\_ -> each context out 0 (if B.null one then rest else one))
  done <- Totals n <$> counted out CountPacket <*> counted out CountReply <*> counted out CountFault
  modifyIORef' (sessionTotals s) (`addTotals` done)
  finishOut out >>= sendHere (sessionOutlet s)
  pure (verdict, left)
  where
    -- The first string is one whole message or empty.
    each context out !n bytes = case nextMessage bytes of
      Whole h message behind -> do
        verdict <- handleMessage c s context out h message
        case verdict of
          Continue
            | n == 0 && not (B.null one) -> each context out 1 rest
            | otherwise -> each context out (n + 1 :: Int) behind
          Finish _ -> pure (verdict, B.empty, n)
      Missing _ -> pure (Continue, bytes, n)
      Unframed h -> do
        _ <- writePut out (errorFor (sessionVersion s) h B.empty BadLength)
        count out CountFault
        pure (Finish "a message shorter than its header", B.empty, n)

addTotals :: Totals -> Totals -> Totals
addTotals (Totals a b x y) (Totals a' b' x' y') = Totals (a + a') (b + b') (x + x') (y + y')

-- | Its role, questions, what only the master sets, then 'SwitchUp'.
setUp :: Controller -> Session -> Features -> IO ()
setUp c s features = do
  let version = sessionVersion s
  sendHere (sessionOutlet s) [bytes | version == V13, Just bytes <- [encode version 4 (StatsRequestMessage PortDescRequest)]]
  role <- settingsRole (controllerSettings c) (featuresDatapath (sessionFeatures s))
  case role of
    Just (r, generation) -> do
      when (r == RoleSlave) (writeIORef (sessionActive s) False)
      claim s r generation
      when (r /= RoleSlave) (configure s)
    Nothing -> configure s
  probe c s (featuresPorts features)
  deliverFrom c s (SwitchUp features)

-- | Be this to the switch from now on.
takeRole :: Controller -> Session -> Role -> Word64 -> IO ()
takeRole c s role generation = do
  before <- atomicModifyIORef' (sessionActive s) ((,) (role /= RoleSlave))
  claim s role generation
  -- To the applications a switch that was a slave's is new.
  unless (role == RoleSlave || before) $ do
    configure s
    deliverFrom c s (SwitchUp (sessionFeatures s))

claim :: Session -> Role -> Word64 -> IO ()
claim s role generation =
  when (sessionVersion s == V13) $ nextXid s >>= \xid -> void (postMessage s xid (RoleRequest role generation))

-- | Whole packets, and what matches nothing comes to the controller: 1.3 drops it otherwise (1.3.5, 5.4).
configure :: Session -> IO ()
configure s = do
  void (postMessage s 5 (SetConfig (SwitchConfig 0 0xffff)))
  when (sessionVersion s == V13) (void (postMessage s 6 (addFlow 0 0 [] [Output portController wholePacket])))
