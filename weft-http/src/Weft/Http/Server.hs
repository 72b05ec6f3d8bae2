{-# LANGUAGE OverloadedStrings #-}

-- |
-- Servers: from an accepted connection to the engine, and from the start of a server to its shutdown.
--
-- Connections are accepted on every capability and stay there, with the threads that serve them. A server
-- begins a graceful shutdown when the action passed to 'settingsInstallShutdownHandler' is run, when
-- 'drainServer' is called, or when its listening sockets fail. It accepts no further connections, closes those
-- that wait for a next request, and lets requests in progress finish.
--
-- @since 0.1.0
module Weft.Http.Server
  ( -- * Servers
    Server,
    withServerWith,
    serverAddress,
    serverConnections,
    waitServer,
    drainServer,

    -- * Options
    Options (..),
    defaultOptions,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (forM, forM_, join, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromMaybe, isJust)
import qualified Data.Vault.Lazy as Vault
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOErrorType (..))
import Network.HTTP.Types (badRequest400)
import Network.Wai (Application)
import System.IO.Error (ioeGetErrorType)
import Weft.Duration (Duration, seconds)
import Weft.Http.Acceptors
import Weft.Http.Admission
import Weft.Http.Date (newDateLines)
import Weft.Http.Engine
import Weft.Http.Http2
import Weft.Http.Limits
import Weft.Http.Linger (lingerTime)
import Weft.Http.ProxyProtocol
import Weft.Http.Render (refusalMessage)
import Weft.Http.Request (originKey, securityKey)
import Weft.Http.SendTime (Waiting (..), afterPause, moreTime)
import Weft.Http.Settings
import Weft.Http.Table
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Runtime.IdleTimer
import Weft.Socket (ServerSettings (..), SockAddr (..), Socket, defaultServerSettings)
import qualified Weft.Socket as W
import Weft.Sys (WordArray, newWordArray, peekWord, pokeWord)
import qualified Weft.Thread as W
import Weft.Tls (TlsServer, looksLikeTls, tlsAcceptReceived, withoutProtocol)
import Weft.Transport

-- Options --------------------------------------------------------------------------------

-- | Options of a server that Warp's settings do not have. Begin with 'defaultOptions'.
data Options = Options
  { -- | Sockets that are listening already, for example passed by systemd; the server closes them. If the list
    -- is empty, the server listens where the settings say.
    optionListeners :: ![Socket],
    -- | Whether other processes may have these sockets, and go on to accept from them when this server ends. If not, no
    -- client that connects while the server shuts down is reset: it is served or refused ('W.drainServer').
    optionSharedListeners :: !Bool,
    -- | Accept from these listeners, of any transport, and from no socket; the server closes them.
    optionTransports :: ![Listener],
    -- | Accept only TLS connections.
    optionTls :: !(Maybe TlsServer),
    -- | Limits on clients. 'Nothing' means limits as in Warp: 'setMaxTotalHeaderLength' for the size of a head,
    -- 'setTimeout' for its time and for idle connections, the default for the number of fields, and no limit on
    -- requests, connections and send buffers.
    optionLimits :: !(Maybe Limits),
    -- | Called when a connection is refused, for logs and counters. It must not block.
    optionOnRefused :: !(SockAddr -> Refusal -> IO ()),
    -- | Whether an address belongs to a proxy. If given, only connections from proxies may begin with a PROXY protocol
    -- header, and the limit on connections per address does not apply to proxies.
    optionProxy :: !(Maybe (SockAddr -> Bool))
  }

-- | No TLS, and no limits except those of the settings; sockets that are given may be shared.
defaultOptions :: Options
defaultOptions =
  Options
    { optionListeners = [],
      optionSharedListeners = True,
      optionTransports = [],
      optionTls = Nothing,
      optionLimits = Nothing,
      optionOnRefused = \_ _ -> pure (),
      optionProxy = Nothing
    }

-- Servers --------------------------------------------------------------------------------

-- | A running server.
data Server = Server
  { serverSockets :: !Acceptors,
    serverTables :: ![Table],
    serverDraining :: !(IORef Bool),
    -- | Full if the shutdown should begin, or the server cannot continue: with the error that it could not accept for.
    serverEnd :: !(MVar (Maybe SomeException))
  }

-- | Run a server while an action runs; the action gets the server. When the
-- action ends, the server stops and drops the remaining connections; call
-- 'drainServer' before to end them gracefully. The applications of these get 'ThreadKilled', and their handlers
-- two seconds until the function returns. Throws an 'IOError' if the server cannot listen.
withServerWith :: Options -> Settings -> Application -> (Server -> IO a) -> IO a
withServerWith options settings app act = do
  caps <- getNumCapabilities
  draining <- newIORef False
  ended <- newEmptyMVar
  admission <- newAdmission
  tables <- forM [1 .. caps] (const newTable)
  shared <- sharedFor options settings draining admission
  let service = Service shared options admission tables app
      handler plain peer = do
        (cap, _) <- threadCapability =<< myThreadId
        case drop (cap `mod` caps) tables of
          table : _ -> serveConnection service table plain peer
          [] -> pure ()
  listening (base ended) tables handler $ \sockets -> do
    let server = Server sockets tables draining ended
    bracket (watch server) killThread (\_ -> act server)
  where
    listening server tables handler inner = case (optionTransports options, optionListeners options) of
      (transports@(first : _), _) -> do
        serverOnListen server (listenerAddress first)
        withTransports (settingsOnException settings Nothing) most transports handler inner `finally` untilGone tables
      ([], []) -> withListeners settings server (ofSocket handler) (inner . fromSockets)
      ([], listeners) -> W.withServerOn server listeners (ofSocket handler) (inner . fromSockets)
    ofSocket handler sock peer = do
      when (sendBuffer > 0) (W.setSocketOption sock W.SendBuffer sendBuffer)
      handler (socketConnection sock peer) peer
    sendBuffer = maybe 0 limitSendBuffer (optionLimits options)
    most = optionLimits options >>= mostSockets
    base ended =
      defaultServerSettings
        { serverMostConnections = most,
          serverSharedSockets = optionSharedListeners options,
          serverOnListen = \_ -> do
            settingsInstallShutdownHandler settings (void (tryPutMVar ended Nothing))
            settingsBeforeMainLoop settings,
          serverOnException = \_ -> settingsOnException settings Nothing,
          serverPatience = seconds 2,
          serverOnOverdue = \_ -> pure W.Leave
        }
    -- A server ends if its listening sockets fail or the user closes them.
    watch server = do
      t <- forkIOWithUnmask $ \unmask -> do
        result <- try (unmask (waitAcceptors (serverSockets server)))
        case result of
          Left e | Just (SomeAsyncException _) <- fromException e -> throwIO e
          _ -> void (tryPutMVar (serverEnd server) (either Just (const Nothing) result))
      t <$ labelThread t "weft http watch"

-- | Wait until the threads of the remaining connections, which have been killed, have ended; for two seconds at most.
-- The exception has reached them, but the program may end next, before the handlers of applications and @setOnClose@
-- have run.
untilGone :: [Table] -> IO ()
untilGone tables = go (200 :: Int)
  where
    go turns = do
      gone <- and <$> mapM isEmptyTable tables
      unless (gone || turns == 0) (W.threadDelay 10000 >> go (turns - 1))

-- | Run a server on the settings' host and port, with one acceptor for each capability.
withListeners :: Settings -> ServerSettings -> (Socket -> SockAddr -> IO ()) -> (W.Server -> IO a) -> IO a
withListeners settings base handler act = case settingsHost settings of
  HostAny -> on Nothing
  HostIPv4 -> on (Just "0.0.0.0")
  HostIPv4Only -> on (Just "0.0.0.0")
  HostIPv6 -> on (Just "::")
  HostIPv6Only -> bracket (listenIPv6Only (settingsPort settings)) W.close $ \listener ->
    W.withServerOn base {serverSharedSockets = False} [listener] handler act
  Host name -> on (Just name)
  where
    on host = W.withServer base {serverHost = host, serverPort = show (settingsPort settings)} handler act

listenIPv6Only :: Int -> IO Socket
listenIPv6Only port = do
  sock <- W.socket W.AF_INET6 W.Stream W.defaultProtocol
  (`onException` W.close sock) $ do
    W.setSocketOption sock W.IPv6Only 1
    W.setSocketOption sock W.ReuseAddr 1
    W.bind sock (SockAddrInet6 (fromIntegral port) 0 (0, 0, 0, 0) 0)
    W.listen sock (serverBacklog defaultServerSettings)
    pure sock

sharedFor :: Options -> Settings -> IORef Bool -> Admission -> IO Shared
sharedFor options settings draining admission = do
  forM_ ([("setServerName", settingsServerName settings)] <> maybe [] (\value -> [("setAltSvc", value)]) (settingsAltSvc settings)) $ \(name, value) ->
    when (B.any (\c -> (c < 32 && c /= 9) || c == 127) value) $
      ioError (userError ("Weft.Http: " <> name <> ": " <> show value <> " contains a control character, and cannot be the value of a field"))
  date <- newDateLines (server <> more)
  let limits = bounded (fromMaybe lenient (optionLimits options))
  pure
    Shared
      { sharedSettings = settings,
        sharedLimits = limits,
        sharedTimeout = timeout,
        sharedServerLine = server,
        sharedLines = more,
        sharedDate = date,
        sharedOnRefused = optionOnRefused options,
        sharedDraining = draining,
        sharedContinues = countAgain limits admission,
        sharedDepart = departEntry admission
      }
  where
    server = if B.null (settingsServerName settings) then B.empty else "Server: " <> settingsServerName settings <> "\r\n"
    more = maybe B.empty (\value -> "Alt-Svc: " <> value <> "\r\n") (settingsAltSvc settings)
    timeout
      | settingsTimeout settings <= 0 = maxBound
      | otherwise = seconds (fromIntegral (settingsTimeout settings))
    -- Zero or less means no limit.
    bounded given =
      given
        { limitTarget = positive (limitTarget given),
          limitHead = positive (limitHead given),
          limitHeadTime = lasting (limitHeadTime given),
          limitIdle = lasting (limitIdle given)
        }
    -- Offsets are added to it.
    positive size = if size > 0 then size else maxBound `quot` 4
    lasting time = if time > mempty then time else maxBound
    lenient =
      defaultLimits
        { limitTarget = settingsMaxTotalHeaderLength settings,
          limitHead = settingsMaxTotalHeaderLength settings,
          limitHeadTime = timeout,
          limitIdle = timeout,
          limitRequests = 0,
          limitConnections = 0,
          limitPerAddress = 0,
          limitSendBuffer = 0
        }

-- | The address on which the server listens.
serverAddress :: Server -> SockAddr
serverAddress = acceptorsAddress . serverSockets

-- | The number of connections, busy or idle.
serverConnections :: Server -> IO Int
serverConnections = acceptorsConnections . serverSockets

-- | Block until the server's shutdown begins: the shutdown handler was run, or the server cannot
-- accept connections any more. Call 'drainServer' next. Throws the error for which it cannot accept, unless its
-- listening sockets were closed.
waitServer :: Server -> IO ()
waitServer server = readMVar (serverEnd server) >>= mapM_ throwIO

-- | Stop accepting, close the connections that wait for a next request, and let
-- the requests in progress finish, for the given time at most. Returns 'True' if no connection is
-- left.
--
-- Connections that have not received anything yet get one second.
drainServer :: Server -> Duration -> IO Bool
drainServer server patience = do
  writeIORef (serverDraining server) True
  _ <- tryPutMVar (serverEnd server) Nothing
  bracket startEnding endEnding (\_ -> drainAcceptors (serverSockets server) patience)
  where
    startEnding = do
      ended <- newEmptyMVar
      t <- forkIOWithUnmask (\unmask -> (unmask (ending (0 :: Int)) `catch` stopped) `finally` putMVar ended ())
      (t, ended) <$ labelThread t "weft http drain"
    -- Until the thread has ended it waits for time: a program that stops the managers next would start one for it.
    endEnding (t, ended) = killThread t >> readMVar ended
    ending turn = do
      mapM_ (endIdle (turn >= 10)) (serverTables server)
      W.threadDelay 100000
      ending (turn + 1)
    stopped :: AsyncException -> IO ()
    stopped _ = pure ()

-- Connections ----------------------------------------------------------------------------

-- | What a server's connections are served with.
data Service = Service
  { serviceShared :: !Shared,
    serviceOptions :: !Options,
    serviceAdmission :: !Admission,
    -- | The tables of all capabilities.
    serviceTables :: ![Table],
    serviceApplication :: !Application
  }

-- | Serve a connection on the calling thread until it ends, and close it. Refuses it if there are too many connections.
--
-- This and the functions below are not inlined into each other: a closure would hold each field of the records that it
-- uses, and a connection makes several.
serveConnection :: Service -> Table -> Connection -> SockAddr -> IO ()
serveConnection service table plain peer0 = mask $ \restore -> do
  room <- admit (sharedLimits (serviceShared service)) (serviceAdmission service) (serviceTables service)
  if room
    then serveAdmitted service table plain peer0 restore
    else optionOnRefused (serviceOptions service) peer0 TooManyConnections >> connClose plain
{-# NOINLINE serveConnection #-}

-- | Runs masked; the function argument restores the masking state.
serveAdmitted :: Service -> Table -> Connection -> SockAddr -> (IO () -> IO ()) -> IO ()
serveAdmitted service@Service {serviceShared = shared} table plain peer0 restore = do
  self <- myThreadId
  cells <- newWordArray cellCount
  -- Until it runs, all of this time counts as left ('shareOfTimeLeft').
  deadline <- newDecidingIdleTimer (limitHeadTime (sharedLimits shared)) (timeOver service plain peer0 self cells)
  file <- newIORef NoFile
  http2 <- newIORef Nothing
  release <- newIORef (pure ())
  let client = Client shared plain plain peer0 False self deadline cells file (Vault.insert originKey (Origin file (Just plain)) Vault.empty) http2
      entry = Entry self cells deadline http2
  number <- addEntry table entry
  -- The clean-up is kept here and not on the stack, where it would take forty words. GHC walks the stack each time
  -- the thread waits, and its first chunk has 1 KiB. For the same reason a single handler does all of the clean-up.
  atEnd <- newIORef (finish table client number release)
  result <- try (restore (receiveFirst service client release))
  readIORef atEnd >>= \act -> act result
{-# NOINLINE serveAdmitted #-}

-- | The end of a connection, however it came. Runs masked.
finish :: Table -> Client -> Int -> IORef (IO ()) -> Either SomeException () -> IO ()
finish table client number release result = do
  stop deadline
  (void (stopWaiting (clientCells client)) `finally` join (readIORef release))
    `finally` (removeEntry table number >> depart client >> connClose (clientBelow client))
  either ended pure result
  where
    deadline = clientIdleTimer client
    settings = sharedSettings (clientShared client)
    ended e
      | Just EndIdle <- fromException e = pure ()
      | Just io <- fromException e = do
        late <- expired deadline
        unless (late || ioeGetErrorType io `elem` [ResourceVanished, InvalidArgument, ProtocolError]) (settingsOnException settings Nothing e)
      | Just (SomeAsyncException _) <- fromException e = throwIO e
      | otherwise = settingsOnException settings Nothing e
{-# NOINLINE finish #-}

-- | What to do when a connection's time is over. Runs in the dispatcher. Refusals are reported before the connection is
-- closed, since a test or a program that counts them may wait for the close.
timeOver :: Service -> Connection -> SockAddr -> ThreadId -> WordArray -> Duration -> IO WhenDue
timeOver Service {serviceShared = shared, serviceOptions = options} plain peer0 self cells late = do
  phase <- peekWord cells cellPhase
  unfinished <- (+) <$> peekWord cells cellHandshake <*> peekWord cells cellBegun
  case () of
    _
      -- What clients have sent while the process did not run is read first.
      | ranLate late -> pure (Later afterPause)
      | phase == phaseBusy -> fromMaybe (Expire (refused ClientTooSlow `finally` (leave >> connAbort plain))) <$> taking InRequest (sharedTimeout shared)
      | phase == phaseIdle -> taking ForRequest (min lingerTime (sharedTimeout shared)) >>= maybe (timeIsOver phase unfinished) pure
      | otherwise -> timeIsOver phase unfinished
  where
    taking waiting time = fmap Later <$> moreTime plain cells cellSending waiting time
    timeIsOver phase unfinished
      -- The connection's thread has to end the TLS session, and may have to wait for the client to do so.
      | isJust (optionTls options), unfinished == 0, phase `notElem` [phaseEnding, phaseEnded] = Later farewellTime <$ endSoon
      | otherwise = pure (Expire (when (unfinished > 0) (refused HeadTooSlow) `finally` (leave >> connClose plain)))
    refused = optionOnRefused options peer0
    leave = sharedDepart shared cells
    -- In another thread, since the dispatcher must not wait until the exception has arrived.
    endSoon = forkIO (void (endThread self cells)) >>= \t -> labelThread t "weft http idle"
{-# NOINLINE timeOver #-}

-- | Receive the PROXY header if there may be one, admit the client, and speak with it. Stores the clean-up in the
-- reference, which the caller reads.
receiveFirst :: Service -> Client -> IORef (IO ()) -> IO ()
receiveFirst Service {serviceOptions = options, serviceAdmission = admission, serviceApplication = app} client release = do
  awaitHead client
  found <- maybe (pure Nothing) (\mode -> readProxyHeader mode (connReceive (clientBelow client) noDeadline receiveSize)) announcing
  case found of
    Nothing -> optionOnRefused options peer0 BadRequest
    Just (announced, rest) -> do
      let peer = fromMaybe peer0 announced
      welcome <- mask_ $ do
        (room, leaveAddress) <- admitOf (if isProxy peer then limits {limitPerAddress = 0} else limits) admission peer
        writeIORef release leaveAddress
        if room
          then do
            headCame client
            late <- stopWaiting (clientCells client)
            when late (throwIO EndIdle)
            open <- settingsOnOpen settings peer
            when open (writeIORef release (settingsOnClose settings peer `finally` leaveAddress))
            setPhase client phaseFresh
            open <$ awaitHead client
          else False <$ optionOnRefused options peer TooManyOfAddress
      when welcome (speak options app (if isJust announced then client {clientPeer = peer} else client) rest)
  where
    settings = sharedSettings (clientShared client)
    limits = sharedLimits (clientShared client)
    peer0 = clientPeer client
    isProxy address = maybe False ($ address) (optionProxy options)
    -- Only proxies may begin with such a header. If it is required, only proxies may connect.
    announcing
      | maybe True ($ peer0) (optionProxy options) = Just mode
      | mode == ProxyProtocolRequired = Nothing
      | otherwise = Just ProxyProtocolNone
      where
        mode = settingsProxyProtocol settings
{-# NOINLINE receiveFirst #-}

-- | Perform the TLS handshake if TLS is enabled, and then speak HTTP. The string was received already.
speak :: Options -> Application -> Client -> ByteString -> IO ()
speak options app client rest = case optionTls options of
  Nothing -> serveClient client app (cleartext client) rest
  Just offered -> do
    -- A client that was offered HTTP/2 and then got HTTP/1.1 could not continue.
    let tls = if settingsHTTP2Enabled settings then offered else withoutProtocol "h2" offered
    pokeWord (clientCells client) cellHandshake 1
    first <- if B.null rest then connReceive (clientConnection client) noDeadline receiveSize else pure rest
    if looksLikeTls first
      then shakeHands tls first >>= spoken
      else do
        pokeWord (clientCells client) cellHandshake 0
        -- Load balancers check that a port listens by a connection on which they send nothing.
        unless (B.null first) explain
  where
    settings = sharedSettings (clientShared client)
    cleartext c = if settingsHTTP2Cleartext settings then Just (serveHttp2Client c app) else Nothing
    explain = do
      leaveIdle client
      text <- refusalMessage (clientShared client) badRequest400 "This port speaks HTTPS: the address begins with https://\n"
      optionOnRefused options (clientPeer client) HandshakeFailed
      connSendBytes (clientConnection client) noDeadline text
      linger client
    shakeHands tls first = do
      found <- try (tlsAcceptReceived tls first (clientConnection client))
      pokeWord (clientCells client) cellHandshake 0
      case found of
        Right connection -> pure (Just connection)
        Left e
          | Just (SomeAsyncException _) <- fromException e -> throwIO e
          | otherwise -> do
            late <- timedOut client
            Nothing <$ unless late (optionOnRefused options (clientPeer client) HandshakeFailed >> leaveIdle client >> linger client)
    spoken Nothing = pure ()
    spoken (Just connection) = do
      let security = connSecurity connection
          known = maybe id (Vault.insert securityKey) security (clientVault client)
          client' = client {clientConnection = connection, clientSecure = True, clientVault = known}
          agreed = security >>= securityAlpn
      ( if settingsHTTP2Enabled settings && agreed == Just "h2"
          then leaveIdle client' >> serveHttp2Client client' app B.empty
          else serveClient client' app Nothing B.empty >> farewell client'
        )
        `finally` (depart client >> connClose connection)
    -- RFC 8446, 6.1: without a close_notify alert, a TLS client assumes a truncation. After half a response it is
    -- right.
    farewell client' = do
      state <- responseState client'
      unless (state == responseBegun) $ do
        headCame client'
        depart client'
        deadline <- deadlineIn farewellTime
        connShutdownSend (clientConnection client') deadline `catch` \e -> const (pure ()) (e :: IOException)
{-# NOINLINE speak #-}

-- | How long the end of a TLS session may take.
farewellTime :: Duration
farewellTime = seconds 2
