-- |
-- The connection of a switch. Its thread receives many messages at a time, handles them, and sends the replies
-- together.
module Weft.OpenFlow.Controller.Connection
  ( serveConnection,
    takeRole,
    tableMissFlow,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.MVar
import Control.Exception (Exception, Handler (..), SomeAsyncException, SomeException, bracket, catches, displayException, finally, mask_, throwIO, uninterruptibleMask_)
import Control.Monad (join, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller.Descriptions
import Weft.OpenFlow.Controller.Discovery
import Weft.OpenFlow.Controller.Dispatch
import Weft.OpenFlow.Controller.Errors
import Weft.OpenFlow.Controller.Framer
import Weft.OpenFlow.Controller.Handshake
import Weft.OpenFlow.Controller.Liveness
import Weft.OpenFlow.Controller.Requests
import Weft.OpenFlow.Controller.Roles
import Weft.OpenFlow.Controller.SendQueue
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Message
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Scope (Child (..), Scope, await, forkUsing, withScope, work)
import Weft.Transport

-- | Serve a switch until its connection ends. The end is reported by 'settingsOnIncident' and does not affect other
-- switches. Throws only asynchronous exceptions. When it returns or throws, no thread that worked for the connection is
-- left, applications know that the switch has gone, and the connection is closed.
serveConnection :: Controller -> Connection -> IO ()
serveConnection c plain = do
  who <- newIORef Nothing
  aborted <- newIORef Nothing
  let ended why = do
        d <- readIORef who
        reason <- fromMaybe why <$> readIORef aborted
        report c (ConnectionEnded (peerAddress plain) d reason)
      failed :: SomeException -> IO ()
      failed e = ended (displayException e)
  (bracket (settingsUpgrade settings plain) connClose (connected who aborted) >>= ended)
    `catches` [ Handler (\e -> throwIO (e :: SomeAsyncException)),
                Handler (\(HandshakeFailed why) -> fault c >> ended why),
                Handler (\HandshakeTimeout -> ended "the switch did not complete the handshake in time"),
                Handler failed
              ]
  where
    settings = controllerSettings c
    -- What is left of requests is given up when no thread can change anything any more.
    connected who aborted connection = do
      leftBehind <- newIORef (pure ())
      withScope (inScope who aborted connection leftBehind) `finally` join (readIORef leftBehind)
    inScope who aborted connection leftBehind scope = do
      sendQueue <- newSendQueue scope (settingsSendTimeout settings) aborted connection
      deadline <- deadlineIn (settingsHandshake settings)
      r <- newReader connection deadline
      version <- negotiate (settingsVersions settings) sendQueue r
      features <- askFeatures version sendQueue r
      -- Before its incidents count as those of the switch.
      settingsMayClaim settings connection (featuresDatapath features) >>= mapM_ (throwIO . Refused)
      writeIORef who $! Just $! featuresDatapath features
      session <- newSession c scope sendQueue version features
      writeIORef leftBehind (switchGone session)
      rest <- leftOver r
      joined c session (featuresPorts features) (setUp c session features >> run c session rest)

-- | The controller does not serve this connection: the reason.
newtype Refused = Refused String
  deriving (Show)

instance Exception Refused where
  displayException (Refused why) = why

fault :: Controller -> IO ()
fault c = atomicModifyIORef' (controllerTotals c) (\t -> (t {totalFaults = totalFaults t + 1}, ()))

newSession :: Controller -> Scope -> SendQueue -> Version -> Features -> IO Session
newSession c scope sendQueue version features = do
  n <- atomicModifyIORef' (controllerNext c) (\n -> (n + 1, n))
  handler <- controllerNewInstance c
  Session n features {featuresPorts = []} version sendQueue scope handler <$> newMVar () <*> newIORef [] <*> newIORef False <*> newMVar 0 <*> newIORef firstOwnXid <*> newIORef Map.empty <*> newIORef Map.empty <*> newIORef Map.empty
    <*> newIORef False
    <*> newIORef noTotals
    <*> newIORef Nothing
    <*> newIORef Nothing
    <*> newIORef Nothing
    <*> newIORef 0
    <*> newIORef noDescriptions

-- | Run an action while the session is registered with the controller. A switch has one connection. If another one is
-- registered with its datapath ID, that one is sent an echo request: if it answers, this one is refused; otherwise this
-- one takes its place, since the switch has lost the other one. Anybody may claim a datapath ID, also with a
-- certificate of TLS, unless 'settingsMayClaim' refuses it; what answers is left alone.
--
-- The session is removed by a thread of its own: an exception that interrupts this one must not leave it registered.
joined :: Controller -> Session -> [Port] -> IO a -> IO a
joined c s ports act = (enter >> act) `finally` toTheEnd leave
  where
    d = featuresDatapath (sessionFeatures s)
    -- If this fails after the session is registered, 'leave' removes it.
    enter = do
      -- Not while 'controllerJoining' is held: other switches need not wait for this one.
      before <- Map.lookup d <$> readIORef (controllerSessions c)
      there <- maybe (pure False) (\old -> isThere c old (settingsTakeover (controllerSettings c))) before
      when there (throwIO (Refused "another connection with its datapath ID answers"))
      entered <- withMVar (controllerJoining c) $ \_ -> do
        entered <- mask_ . join . atomicModifyIORef' (controllerSessions c) $ \m -> case Map.lookup d m of
          Just old
            | Just (sessionNumber old) /= fmap sessionNumber before -> (m, pure False)
            | otherwise -> (Map.insert d s m, True <$ abortFor "the switch has connected again" (sessionOutlet old))
          Nothing -> (Map.insert d s m, pure True)
        when entered $ do
          time <- currentMillis
          topologyStep c (switchJoined time d (sessionVersion s) ports)
          report c (Connected d)
          settingsOnSwitch (controllerSettings c) d True
        pure entered
      -- A third one came first.
      unless entered enter
    leave = withMVar (controllerJoining c) $ \_ -> do
      mine <- atomicModifyIORef' (controllerSessions c) $ \m -> case Map.lookup d m of
        Just s' | sessionNumber s' == sessionNumber s -> (Map.delete d m, True)
        _ -> (m, False)
      totals <- readIORef (sessionTotals s)
      atomicModifyIORef' (controllerTotals c) (\t -> (addTotals t totals, ()))
      switchGone s
      when mine $
        topologyStep c (switchLeft d)
          `finally` settingsOnSwitch (controllerSettings c) d False
          `finally` (contextNow c s >>= \context -> withMVar (sessionLock s) (\_ -> void (sessionInstance s context SwitchDown)))
          `finally` report c (Disconnected d)

-- | Run an action to its end in another thread, and wait for it. Throws what the action throws. The wait cannot be
-- interrupted, and the action is not: it runs unmasked, so that callbacks in it can have time limits of their own, in a
-- thread that nobody else knows.
toTheEnd :: IO () -> IO ()
toTheEnd act = uninterruptibleMask_ (withScope (\scope -> forkUsing leaving scope act >>= await))
  where
    leaving = work {childLabel = Just "weft openflow leaving"}

-- | Handle messages until the connection ends. Returns the reason.
run :: Controller -> Session -> ByteString -> IO String
run c s first = do
  withLiveness (settingsEchoAfter settings) (settingsDeadAfter settings) ask (abortFor "the switch did not answer an echo request" (sessionOutlet s)) $ \watch ->
    go watch nothingPartial first
  where
    settings = controllerSettings c
    connection = sendQueueConnection (sessionOutlet s)
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
              -- Evaluated before the thread waits: a thunk would retain the received string.
              let !start = partialOf left
              -- See Note [Turns].
              when (B.length received >= turnBytes) yield
              go watch start B.empty
    broken h = do
      mapM_ (sendHere (sessionOutlet s) . pure) (tryRunPut (errorFor (sessionVersion s) h B.empty BadLength))
      fault c
      pure "the switch sent a message with a length below 8"

-- | A switch that has sent at least that many bytes yields before it receives more.
turnBytes :: Int
turnBytes = 8192

-- | The maximum number of bytes received at a time: at least what a busy switch has in flight (cbench: 512 packets, 42
-- KB). With less, some switches would have their packets answered in one turn, and others in two.
receiveSize :: Int
receiveSize = 65536

-- Note [Turns]. A switch that has sent much has usually sent more in the meantime. Its thread yields, so that the
-- others are not delayed. A switch that has sent little has to wait anyway, which lets the others run. If its thread
-- yielded first, the dispatcher would find no event and block in the kernel while this thread is still ready. GHC then
-- hands the capability to another OS thread: two switches of OS threads for each wake-up.

-- | Handle all complete messages of two strings in a row, and send the replies together. Returns the rest, the start of
-- an incomplete message.
batch :: Controller -> Session -> ByteString -> ByteString -> IO (Verdict, ByteString)
batch c s one rest = do
  context <- contextNow c s
  -- With the clock that was read already; neither allocates.
  end <- settingsActiveUntil (controllerSettings c)
  when (contextTime context >= end) (timeOver s)
  out <- newOut (min 65536 (max 256 (B.length one + B.length rest)))
  (verdict, left, n) <- withMVar (sessionLock s) (\_ -> each context out 0 (if B.null one then rest else one) <* noteHosts c s)
  done <- Totals n <$> counted out CountPacket <*> counted out CountReply <*> counted out CountFault <*> counted out CountForged
  modifyIORef' (sessionTotals s) (`addTotals` done)
  finishOut out >>= sendHere (sessionOutlet s)
  pure (verdict, left)
  where
    -- The first string is one complete message or empty.
    each context out !n bytes = case nextMessage bytes of
      Whole h message behind -> do
        verdict <- handleMessage c s context out h message
        case verdict of
          Continue -> do
            -- Other messages may have changed what the context has: the ports, or how to flood.
            context' <- if headerType h == typePacketIn then pure context else contextNow c s
            if n == 0 && not (B.null one) then each context' out 1 rest else each context' out (n + 1 :: Int) behind
          Finish _ -> pure (verdict, B.empty, n)
      Missing _ -> pure (Continue, bytes, n)
      Unframed h -> do
        _ <- writePut out (errorFor (sessionVersion s) h B.empty BadLength)
        count out CountFault
        pure (Finish "the switch sent a message with a length below 8", B.empty, n)

-- | Set up a new connection: request the ports, claim the role, configure the switch as its master, send LLDP frames,
-- and deliver 'SwitchUp'. While 'settingsRole' runs, which may take long, another thread may set a later role by
-- 'takeRole'; the role that it returns is then obsolete. In 1.3 the switch has to give the role first ('roleGiven').
setUp :: Controller -> Session -> Features -> IO ()
setUp c s features = do
  let version = sessionVersion s
  sendHere (sessionOutlet s) [bytes | version == V13, Just bytes <- [encode version 4 (StatsRequestMessage False PortDescRequest)]]
  before <- readMVar (sessionRole s)
  role <- settingsRole (controllerSettings c) (featuresDatapath (sessionFeatures s))
  first <- modifyMVar (sessionRole s) $ \now ->
    -- 'Nothing' is no decision: any role that was set is kept.
    if now /= maybe 0 (const before) role
      then pure (now, False)
      else do
        new <- case role of
          Just (wanted, generation) -> assumeRole s wanted generation
          Nothing -> do
            was <- atomicModifyIORef' (sessionActive s) ((,) True)
            not was <$ configure s
        pure (now + 1, new)
  probe c s (featuresPorts features)
  when first (deliverFrom c s (SwitchUp features))
