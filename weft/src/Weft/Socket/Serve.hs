{-# LANGUAGE RankNTypes #-}

-- |
-- Servers: one acceptor thread on each capability. The connections that it accepts stay on its
-- capability, with their threads, events and timers.
--
-- Each acceptor has a listening socket of its own (@SO_REUSEPORT@), and the kernel spreads new
-- connections among these. With a single listening socket (Unix sockets, inherited sockets) one
-- acceptor gives connections to the capabilities in turn.
--
-- Acceptors and connections are threads of sets that end together ("Weft.Scope.Threads"): a set for the acceptors, and
-- one for the connections of each acceptor, so that capabilities share no memory when a connection begins or ends. When
-- a server ends, all of its threads are told to, and then all are awaited.
module Weft.Socket.Serve
  ( -- * Servers
    serve,
    withServer,
    withServerOn,
    Server,
    serverAddress,
    serverConnections,
    waitServer,
    drainServer,

    -- * Settings
    ServerSettings (..),
    defaultServerSettings,
    reportException,
    Overdue (..),
  )
where

import Control.Concurrent (getNumCapabilities)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (forM, forM_, guard, unless, void, when)
import Data.Char (isDigit)
import Data.IORef
import Data.List (partition)
import Data.Maybe (fromMaybe, isJust, listToMaybe)
import Foreign.C.Error
  ( Errno (..),
    eAFNOSUPPORT,
    eBADF,
    eCONNABORTED,
    eCONNRESET,
    eHOSTDOWN,
    eHOSTUNREACH,
    eMFILE,
    eNETDOWN,
    eNETUNREACH,
    eNFILE,
    eNOBUFS,
    eNOMEM,
    eNONET,
    eNOPROTOOPT,
    eOPNOTSUPP,
    ePERM,
    ePIPE,
    ePROTO,
  )
import GHC.IO.Exception (IOException (ioe_errno))
import Network.Socket
  ( AddrInfo (..),
    AddrInfoFlag (..),
    Family (AF_UNIX),
    HostName,
    ServiceName,
    SockAddr (..),
    SocketOption (..),
    defaultHints,
    getAddrInfo,
  )
import qualified Network.Socket as N
import System.IO.Error (catchIOError)
import Weft.Blocking (blocking)
import Weft.Core.Descriptor (prepareDescriptor)
import Weft.Core.Time (Instant (..), after, until)
import Weft.Deadline (isTimeout)
import Weft.Duration
import Weft.FFI.Listener (cRefuseNew)
import Weft.Scope.Threads
import Weft.Socket.Basic
import Weft.Socket.Options
import Weft.Socket.Types
import Weft.StandardError (reportLine)
import Weft.Sys (now)
import Weft.Sys.Label
import Weft.Thread.Time (within)
import Prelude hiding (until)

-- | Settings of a server. Begin with 'defaultServerSettings'.
data ServerSettings = ServerSettings
  { -- | Address or name to listen on; of a name only the first address. 'Nothing' is every address: of IPv6 and IPv4, or
    -- of IPv4 if the kernel has no IPv6.
    serverHost :: Maybe HostName,
    -- | Port or service name; @"0"@ lets the system choose one.
    serverPort :: ServiceName,
    -- | How many connections may wait to be accepted, for each acceptor (listen(2)).
    serverBacklog :: Int,
    -- | How many acceptors; 'Nothing' is one for each capability.
    serverAcceptors :: Maybe Int,
    -- | Send small messages at once (@TCP_NODELAY@).
    serverNoDelay :: Bool,
    -- | The most connections that may be open at a time, and as many more as there are acceptors. At the limit nothing
    -- is accepted until a connection ends; clients wait in the backlog. 'Nothing': no limit but that on descriptors.
    serverMostConnections :: Maybe Int,
    -- | Of 'withServerOn': whether other processes may have its sockets, and go on to accept from them when this server
    -- ends. See 'drainServer'.
    serverSharedSockets :: Bool,
    -- | Called once, when clients can connect and before the first of them is
    -- served, with the address. What it throws ends the server.
    serverOnListen :: SockAddr -> IO (),
    -- | Called with an exception of a handler and its peer, or with 'Nothing' and the error of an
    -- acceptor; while there are no descriptors left, once a second by each. If it throws itself,
    -- that exception goes to 'reportException'.
    serverOnException :: Maybe SockAddr -> SomeException -> IO (),
    -- | How long the end of the server waits for handlers that were killed before it calls 'serverOnOverdue'.
    -- 'maxBound': for ever.
    serverPatience :: Duration,
    -- | Called with the labels of connections' threads that have not ended within 'serverPatience' of being killed: the
    -- handler masks exceptions, cleans up slowly, or handles the exception and goes on. Decides whether the server's
    -- end waits on, or leaves them.
    serverOnOverdue :: [String] -> IO Overdue
  }

-- | All addresses, a port that the system chooses, a backlog of 4,096, an acceptor for each
-- capability, @TCP_NODELAY@, no limit on connections, sockets of 'withServerOn' may be shared; exceptions go to
-- 'reportException'. Handlers that do not end within ten seconds of being killed are printed on standard error, and the
-- server's end waits on.
defaultServerSettings :: ServerSettings
defaultServerSettings =
  ServerSettings
    { serverHost = Nothing,
      serverPort = "0",
      serverBacklog = 4096,
      serverAcceptors = Nothing,
      serverNoDelay = True,
      serverMostConnections = Nothing,
      serverSharedSockets = True,
      serverOnListen = const (pure ()),
      serverOnException = reportException,
      serverPatience = seconds 10,
      serverOnOverdue = \left -> WaitOn <$ reportLine ("weft: killed, and still running: " <> unwords left)
    }

-- | Print an exception on standard error. @EPIPE@ and @ECONNRESET@ (the client has gone), 'ThreadKilled' and
-- 'UserInterrupt' are not printed.
reportException :: Maybe SockAddr -> SomeException -> IO ()
reportException peer e
  | Just io <- fromException e, fmap Errno (ioe_errno io) `elem` map Just [ePIPE, eCONNRESET] = pure ()
  | Just async <- fromException e, async `elem` [ThreadKilled, UserInterrupt] = pure ()
  | otherwise = reportLine ("weft: " <> maybe "accept" show peer <> ": " <> displayException e)

-- | A server that runs.
data Server = Server
  { -- | Where it listens.
    serverAddress :: SockAddr,
    serverSettings :: !ServerSettings,
    serverAcceptorThreads :: !Threads,
    serverListeners :: ![Listener]
  }

-- | A listening socket, with its acceptor and the connections that this accepts.
data Listener = Listener
  { listenerSocket :: !Socket,
    -- | Whether no other process has the socket.
    listenerOwn :: !Bool,
    -- | Written by the first drain, read by the acceptor.
    listenerDrain :: !(IORef (Maybe Drain)),
    -- | Filled at the end of the acceptor.
    listenerEnded :: !(MVar AcceptorEnd),
    listenerConnections :: !Threads,
    -- | Whether its connections have @TCP_NODELAY@ from it.
    listenerNoDelay :: !Bool
  }

-- | A drain: until when clients that are connecting are given time, and until when connections above the limit on
-- connections may wait.
data Drain = Drain {drainHandshakes :: !Instant, drainLimit :: !Instant}

-- | Why an acceptor has ended.
data AcceptorEnd
  = -- | It was told to, its socket was closed, or it has accepted all connections of a drain.
    Finished
  | -- | A drain ended before it could accept all connections.
    Unfinished
  | -- | Its socket failed.
    Broken !IOException

-- | Thrown to an acceptor that waits: it looks at 'listenerDrain' again.
data LookAgain = LookAgain
  deriving (Show)

instance Exception LookAgain where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | Serve until the calling thread is interrupted, or until no acceptor is left; the connections
-- are dropped then. Each connection has a thread of its own that
-- runs the handler; its socket is closed when the handler ends. Throws an 'IOError' if it
-- cannot listen, and as 'waitServer' does.
serve :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> IO ()
serve settings handler = withServer settings handler waitServer

-- | Run a server beside an action. When the action ends, the server stops
-- listening and kills the threads of the connections that are left: it throws 'ThreadKilled' to all of them, and then
-- waits, uninterruptibly, until all have ended ('serverPatience'). What the handlers use can be released afterwards. To
-- let connections finish, call 'drainServer' first.
withServer :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withServer settings handler = bracket (listenAndStart settings handler) stopServer

-- | 'withServer' on sockets that are listening already. The server closes them. It ignores the
-- settings' address, port and backlog. With one socket the connections go
-- to the capabilities in turn; with several, those of the nth socket stay on the nth capability.
withServerOn :: ServerSettings -> [Socket] -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withServerOn settings listeners handler = bracket (startServer settings handler (not (serverSharedSockets settings)) listeners) stopServer

-- | The number of connections that are being served.
serverConnections :: Server -> IO Int
serverConnections = openConnections . serverListeners

openConnections :: [Listener] -> IO Int
openConnections listeners = sum <$> mapM (aliveThreads . listenerConnections) listeners

-- | Block until the server accepts no more: it was stopped or drained, or its listening sockets were
-- closed. If they failed, throws the error of the first one.
waitServer :: Server -> IO ()
waitServer server = do
  ends <- mapM (readMVar . listenerEnded) (serverListeners server)
  mapM_ throwIO (listToMaybe [e | Broken e <- ends])

-- | Accept the connections that are established already, stop listening, and wait until all connections have ended, at
-- most for the given duration. 'maxBound' means no limit; with zero or less it does not wait. 'True' if none is left,
-- and none had to be refused.
--
-- Clients that connect from now on are refused. One whose handshake has begun is still accepted, if it completes it
-- within 200 ms, which the drain of a TCP socket therefore takes at least, unless its limit is shorter. At the limit on
-- connections ('serverMostConnections') the others wait for their turn until the drain's limit, and are reset then.
--
-- This holds for sockets that the server has opened itself, and for those given to 'withServerOn' that no other process
-- has ('serverSharedSockets' is 'False'), on Linux from 5.7 on (before, and with a link-local address: as root). From
-- shared sockets another process goes on to accept, and other systems have no means for it: there the drain accepts
-- until no connection waits, and closes the socket next. If no other process has it, a client that connects between the
-- two system calls, or is in its handshake then, is reset.
drainServer :: Server -> Duration -> IO Bool
drainServer server limit = do
  start <- now
  let end = max mempty limit `after` start
      left = (end `until`) <$> now
  forM_ listeners $ \l -> do
    connecting <- if listenerOwn l then refuseNew (listenerSocket l) else pure mempty
    let drain = Drain (min end (connecting `after` start)) end
    atomicModifyIORef' (listenerDrain l) (\before -> (Just (maybe drain (sooner drain) before), ()))
  notifyAll (serverAcceptorThreads server) LookAgain
  -- They end by themselves, unless their user's function for exceptions takes longer.
  patience <- left
  _ <- within (patience <> seconds 1) (mapM_ (readMVar . listenerEnded) listeners)
  stopListening server
  ends <- mapM (readMVar . listenerEnded) listeners
  rest <- left
  _ <- within rest (mapM_ (waitBelow 1) listeners)
  open <- serverConnections server
  pure (open == 0 && and [case e of Unfinished -> False; _ -> True | e <- ends])
  where
    listeners = serverListeners server
    sooner (Drain h l) (Drain h' l') = Drain (min h h') (min l l')

-- | Refuse connections, and keep those that wait to be accepted. How long to wait for clients that have begun to
-- connect: not at all if they cannot be refused, or if they connect in one step, as to Unix sockets.
refuseNew :: Socket -> IO Duration
refuseNew s = (`catchIOError` const (pure mempty)) $ do
  _ <- immediately "Weft.Socket.drainServer" s cRefuseNew
  (\name -> case name of SockAddrUnix _ -> mempty; _ -> handshakeTime) <$> getSocketName s

-- | How long a drain waits for clients that have begun to connect: they need a round trip.
handshakeTime :: Duration
handshakeTime = milliseconds 200

-- | Block until there are fewer connections than that.
waitBelow :: Int -> Listener -> IO ()
waitBelow n l = awaitFewer n [listenerConnections l]

-- | Stop the acceptors and close their sockets. It cannot be interrupted; it does not take long, as an acceptor
-- can always be interrupted.
stopListening :: Server -> IO ()
stopListening server = uninterruptibleMask_ $ do
  tellAll (serverAcceptorThreads server)
  mapM_ (readMVar . listenerEnded) (serverListeners server)
  mapM_ (close . listenerSocket) (serverListeners server)

-- | Stop listening, kill the connections' threads, and wait for their ends.
stopServer :: Server -> IO ()
stopServer server = uninterruptibleMask_ $ do
  stopListening server
  mapM_ tellAll sets
  end <- after (serverPatience settings) <$> now
  forM_ sets $ \threads -> do
    patience <- (end `until`) <$> now
    awaitAll patience (serverOnOverdue settings) threads
  where
    settings = serverSettings server
    sets = map listenerConnections (serverListeners server)

-- Starting -----------------------------------------------------------------------------

listenAndStart :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> IO Server
listenAndStart settings handler = do
  caps <- getNumCapabilities
  address <- resolve settings
  listeners <- openListeners settings address (maybe caps (max 1) (serverAcceptors settings))
  startServer settings handler True listeners

-- | Start acceptors on listening sockets. Takes over the sockets: they are closed if it fails.
startServer :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> Bool -> [Socket] -> IO Server
startServer settings handler own sockets = (`onException` mapM_ close sockets) $ do
  caps <- getNumCapabilities
  bound <- case sockets of
    s : _ -> getSocketName s
    [] -> ioError (userError "Weft.Socket.serve: no address to listen on")
  forM_ sockets $ \s -> do
    listens <- isListening s
    unless listens (ioError (userError "Weft.Socket.serve: the socket does not listen"))
  acceptors <- newThreads
  listeners <- forM sockets $ \s ->
    Listener s own <$> newIORef Nothing <*> newEmptyMVar <*> newThreads <*> (if own && serverNoDelay settings then givesNoDelay s else pure False)
  -- Not masked as the rest of this: threads that it forks inherit its state.
  interruptible (serverOnListen settings bound)
  forM_ (zip [0 ..] listeners) $ \(i, l) ->
    startThread acceptors Daemon (On i) (Just (threadLabel ("weft acceptor " <> show i))) $ \unmask ->
      acceptor settings handler (placement caps (length listeners) i) listeners l unmask
  pure (Server bound settings acceptors listeners)
  where
    -- Which capability the nth connection of an acceptor goes to.
    placement caps acceptors i n
      | acceptors > 1 = i
      | otherwise = n `mod` caps

-- | Set @TCP_NODELAY@ of a listening socket, which the connections that it accepts then have from the start (Stevens
-- and others 2004, 7.4), without a system call for each. 'False' if it has no such option: a Unix socket, or one of
-- SCTP. A socket that other processes have is not changed.
givesNoDelay :: Socket -> IO Bool
givesNoDelay s = (True <$ setSocketOption s NoDelay 1) `catchIOError` const (pure False)

-- | The address to listen on.
resolve :: ServerSettings -> IO AddrInfo
resolve settings = do
  -- getaddrinfo(3) takes the last 16 bits of a number.
  when (all isDigit digits && (length digits, digits) > (5, "65535")) $
    ioError (userError ("Weft.Socket.serve: no such port: " <> port))
  found <- blocking (getAddrInfo (Just hints) (serverHost settings) (Just (serverPort settings)))
  case found of
    -- An IPv6 socket for every address takes IPv4 as well.
    _
      | serverHost settings == Nothing,
        ai : _ <- six -> do
        absent <- lacks N.AF_INET6
        pure (if absent then fromMaybe ai (listToMaybe four) else ai)
      where
        (six, four) = partition ((== N.AF_INET6) . addrFamily) found
    ai : _ -> pure ai
    [] -> ioError (userError "Weft.Socket.serve: no such address")
  where
    port = serverPort settings
    digits = dropWhile (== '0') port
    -- A kernel without IPv6 still has its addresses in the answers of getaddrinfo.
    lacks family = do
      made <- try (N.socket family N.Stream N.defaultProtocol)
      case made of
        Right s -> False <$ N.close s
        Left e -> pure (fmap Errno (ioe_errno e) == Just eAFNOSUPPORT)
    hints = defaultHints {addrFlags = [AI_PASSIVE], addrSocketType = N.Stream}

-- | Listening sockets, all on one address.
openListeners :: ServerSettings -> AddrInfo -> Int -> IO [Socket]
openListeners settings ai count
  | count == 1 || addrFamily ai == AF_UNIX = pure <$> open False (addrAddress ai)
  | otherwise = do
    -- The first one listens before it has SO_REUSEPORT. If another socket listens on the port, one of bind(2) and
    -- listen(2) fails, even if two servers start at the same moment. With the option, all would share the port.
    first <- open False (addrAddress ai)
    address <- (setSocketOption first ReusePort 1 >> getSocketName first) `onException` close first
    collect (count - 1) address [first]
  where
    collect 0 _ acc = pure (reverse acc)
    collect n address acc = do
      l <- open True address `onException` mapM_ close acc
      collect (n - 1 :: Int) address (l : acc)
    open shared address = do
      s <- bound shared address
      listen s (serverBacklog settings) `onException` close s
      pure s
    bound shared address = do
      s <- openSocket ai
      (`onException` close s) $ do
        unless (addrFamily ai == AF_UNIX) (setSocketOption s ReuseAddr 1)
        when shared (setSocketOption s ReusePort 1)
        bind s address
        pure s

-- Accepting ----------------------------------------------------------------------------

-- | The body of an acceptor's thread. It is masked, except in the user's function for exceptions: an exception arrives
-- only while it waits, so that no accepted connection is lost.
acceptor ::
  ServerSettings ->
  (Socket -> SockAddr -> IO ()) ->
  (Int -> Int) ->
  [Listener] ->
  Listener ->
  (forall a. IO a -> IO a) ->
  IO ()
acceptor settings handler place listeners listener unmask = do
  reportedAt <- newIORef (Instant minBound)
  end <- loop reportedAt 0 (serverBacklog settings) `catch` told
  -- Closed, so that the kernel gives new connections to other listeners, or refuses them.
  uninterruptibleMask_ (close (listenerSocket listener) >> putMVar (listenerEnded listener) end)
  where
    told :: SomeException -> IO AcceptorEnd
    told _ = pure Finished
    -- Given the number of the next connection, and how many may be accepted once a drain is over.
    loop :: IORef Instant -> Int -> Int -> IO AcceptorEnd
    loop reportedAt n late = do
      drain <- readIORef (listenerDrain listener)
      over <- maybe (pure False) (\d -> (>= drainLimit d) <$> now) drain
      r <- try (acceptNext drain n (over && late <= 0) `catch` failed reportedAt drain)
      case r of
        Right Nothing -> loop reportedAt (n + 1) (if over then late - 1 else late)
        Right (Just end) -> pure end
        Left LookAgain -> loop reportedAt n late
    -- Accept a connection; or why there is none to accept any more.
    acceptNext drain n refused
      | refused = pure (Just Unfinished)
      | otherwise = do
        room <- maybe (pure True) (untilRoom drain) (serverMostConnections settings)
        if room
          then do
            let socket' = maybe id (withDeadline . drainHandshakes) drain (listenerSocket listener)
            Nothing <$ (accept socket' >>= startConnection settings handler (place n) listener)
          else pure (Just Unfinished)
    failed reportedAt drain e
      | isJust drain && isTimeout e = pure (Just Finished)
      | errno e `elem` map Just passing = pure Nothing
      | errno e `elem` map Just exhausted = do
        t <- now
        before <- readIORef reportedAt
        when (t >= seconds 1 `after` before) $ do
          unmask (report settings Nothing (toException e))
          writeIORef reportedAt t
        recover
        pure (Unfinished <$ (drain >>= guard . (<= t) . drainLimit))
      | otherwise = do
        unmask (report settings Nothing (toException e))
        pure (Just (if errno e == Just eBADF then Finished else Broken e))
    errno e = Errno <$> ioe_errno e
    -- Block until there is room for a connection; 'False' if there is none at the end of a drain.
    untilRoom drain most = do
      open <- openConnections listeners
      if open < most
        then pure True
        else do
          patience <- maybe (pure maxBound) (\d -> (drainLimit d `until`) <$> now) drain
          isJust <$> within patience (awaitFewer most (map listenerConnections listeners))
    -- Errors of the one connection that was to be accepted: accept(2), \"Error
    -- handling\".
    passing =
      [eCONNABORTED, ePROTO, ePERM, eNETDOWN, eNOPROTOOPT, eHOSTDOWN, eNONET, eHOSTUNREACH, eOPNOTSUPP, eNETUNREACH]
    exhausted = [eMFILE, eNFILE, eNOBUFS, eNOMEM]
    -- Out of descriptors. Connections wait in the backlog, so the listener stays readable,
    -- and accepting again at once would spin. Wait until a connection of ours ends, or for a while.
    recover = do
      open <- aliveThreads (listenerConnections listener)
      void (within (milliseconds 100) (waitBelow open listener))

-- | Start a connection's thread. It cannot be interrupted.
startConnection :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> Int -> Listener -> (Socket, SockAddr) -> IO ()
startConnection settings handler place listener (sock, peer) = do
  started <- startThread (listenerConnections listener) Daemon (On place) (Just connectionLabel) connection `onException` dropped
  unless (isJust started) dropped
  where
    connection :: (forall a. IO a -> IO a) -> IO ()
    connection unmask = do
      -- Attached first, as a connection waits sooner or later. A single exception handler below the user's: the stack
      -- is walked through each time that the thread waits, and has 1 KiB. (The thread is masked from its start.)
      result <- try (withDescriptor sock prepareDescriptor >> unmask (when (serverNoDelay settings && not (listenerNoDelay listener)) noDelay >> handler sock peer))
      either (\e -> report settings (Just peer) e `catch` ignored) pure result
      dropped
    dropped = uninterruptibleMask_ (close sock)
    ignored :: SomeException -> IO ()
    ignored _ = pure ()
    noDelay = case peer of
      SockAddrUnix _ -> pure ()
      _ -> setSocketOption sock NoDelay 1

-- | The label of connections' threads.
connectionLabel :: Label
connectionLabel = threadLabel "weft connection"

-- | Call the user's function with an exception. Rethrows asynchronous exceptions only: a server goes on also when its
-- standard error cannot be written to.
report :: ServerSettings -> Maybe SockAddr -> SomeException -> IO ()
report settings peer e = serverOnException settings peer e `catch` failed
  where
    failed :: SomeException -> IO ()
    failed thrown = case fromException thrown of
      Just (SomeAsyncException _) -> throwIO thrown
      Nothing -> reportException peer thrown `catchIOError` const (pure ())
