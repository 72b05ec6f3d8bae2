{-# LANGUAGE RankNTypes #-}

-- |
-- Servers: one acceptor thread on each capability. The connections that it accepts stay on its
-- capability, with their threads, events and timers.
--
-- Each acceptor has a listening socket of its own (@SO_REUSEPORT@), and the kernel spreads new
-- connections among these. With a single listening socket (Unix sockets, inherited sockets) one
-- acceptor gives connections to the capabilities in turn.
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
  )
where

import Control.Concurrent (ThreadId, forkIO, forkOnWithUnmask, getNumCapabilities, killThread)
import Control.Concurrent.MVar
import Control.Concurrent.STM
import Control.Exception
import Control.Monad (forM, forM_, unless, void, when)
import Data.Char (isDigit)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.List (partition)
import Data.Maybe (catMaybes, fromMaybe, listToMaybe)
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
import GHC.Conc (labelThread)
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
import Weft.Core.Time (Instant (..), after)
import Weft.Duration
import Weft.Socket.Basic
import Weft.Socket.Options
import Weft.Socket.Types
import Weft.StandardError (reportLine)
import Weft.Sys (now)
import Weft.Thread.Time (within)

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
    -- | The most connections that may be open at a time, and as many more as there are acceptors. At the limit nothing is
    -- accepted until a connection ends; clients wait in the backlog. 'Nothing': no limit but that on descriptors.
    serverMostConnections :: Maybe Int,
    -- | Called once, when clients can connect and before the first of them is
    -- served, with the address. What it throws ends the server.
    serverOnListen :: SockAddr -> IO (),
    -- | Called with an exception of a handler and its peer, or with 'Nothing' and the error of an
    -- acceptor; while there are no descriptors left, once a second by each. If it throws itself,
    -- that exception goes to 'reportException'.
    serverOnException :: Maybe SockAddr -> SomeException -> IO ()
  }

-- | All addresses, a port that the system chooses, a backlog of 4,096, an acceptor for each
-- capability, @TCP_NODELAY@, no limit on connections; exceptions go to 'reportException'.
defaultServerSettings :: ServerSettings
defaultServerSettings =
  ServerSettings
    { serverHost = Nothing,
      serverPort = "0",
      serverBacklog = 4096,
      serverAcceptors = Nothing,
      serverNoDelay = True,
      serverMostConnections = Nothing,
      serverOnListen = const (pure ()),
      serverOnException = reportException
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
    serverAcceptorThreads :: [Acceptor],
    serverListeners :: [Socket],
    serverTables :: [Connections]
  }

-- | A thread that accepts, and an MVar that is full when it has ended: with the error that ended it, if it was not told
-- to end, and its socket was not closed.
data Acceptor = Acceptor !ThreadId !(MVar (Maybe IOException))

-- | The connections of one acceptor. Written by it and by the connections' threads.
data Connections = Connections
  { -- | The number of the next connection. Written by the acceptor.
    connectionNext :: !(IORef Int),
    connectionThreads :: !(MVar (IntMap.IntMap ThreadId)),
    -- | How many there are. Written while 'connectionThreads' is held.
    connectionCount :: !(TVar Int)
  }

-- | Serve until the calling thread is interrupted, or until no acceptor is left; the connections
-- are dropped then. Each connection has a thread of its own that
-- runs the handler; its socket is closed when the handler ends. Throws an 'IOError' if it
-- cannot listen, and as 'waitServer' does.
serve :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> IO ()
serve settings handler = withServer settings handler waitServer

-- | Run a server beside an action. When the action ends, the server stops
-- listening and kills the threads of the connections that are left. To let them finish, call
-- 'drainServer' first.
withServer :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withServer settings handler = bracket (listenAndStart settings handler) stopServer

-- | 'withServer' on sockets that are listening already. The server closes them. It ignores the
-- settings' address, port and backlog. With one socket the connections go
-- to the capabilities in turn; with several, those of the nth socket stay on the nth capability.
withServerOn :: ServerSettings -> [Socket] -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withServerOn settings listeners handler = bracket (startServer settings handler listeners) stopServer

-- | The number of connections that are being served.
serverConnections :: Server -> IO Int
serverConnections = openConnections . serverTables

openConnections :: [Connections] -> IO Int
openConnections tables = sum <$> mapM (readTVarIO . connectionCount) tables

-- | Block until the server accepts no more: it was stopped or drained, or its listening sockets were
-- closed. If they failed, throws the error of the first one.
waitServer :: Server -> IO ()
waitServer server = do
  failures <- mapM (\(Acceptor _ ended) -> readMVar ended) (serverAcceptorThreads server)
  mapM_ throwIO (listToMaybe (catMaybes failures))

-- | Stop listening and wait until all connections have ended, at most for the given duration. 'maxBound' means no
-- limit; zero or less does not wait. 'True' if none is left.
drainServer :: Server -> Duration -> IO Bool
drainServer server limit = do
  stopListening server
  _ <- within limit (mapM_ (waitBelow 1) (serverTables server))
  (== 0) <$> serverConnections server

-- | Block until there are fewer connections than that.
waitBelow :: Int -> Connections -> IO ()
waitBelow n table = atomically $ readTVar (connectionCount table) >>= check . (< n)

-- | Stop the acceptors and close their sockets. It cannot be interrupted; it does not take long, as an acceptor
-- can always be interrupted.
stopListening :: Server -> IO ()
stopListening server = uninterruptibleMask_ $ do
  forM_ (serverAcceptorThreads server) $ \(Acceptor t ended) -> killThread t >> readMVar ended
  mapM_ close (serverListeners server)

-- | Stop listening and kill the connections' threads. If it is interrupted, another thread kills the rest.
stopServer :: Server -> IO ()
stopServer server = do
  stopListening server
  mapM (fmap IntMap.elems . readMVar . connectionThreads) (serverTables server) >>= dropAll . concat
  where
    dropAll (t : ts) = (killThread t `onException` forkIO (dropAll (t : ts))) >> dropAll ts
    dropAll [] = pure ()

-- Starting -----------------------------------------------------------------------------

listenAndStart :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> IO Server
listenAndStart settings handler = do
  caps <- getNumCapabilities
  address <- resolve settings
  listeners <- openListeners settings address (maybe caps (max 1) (serverAcceptors settings))
  startServer settings handler listeners

-- | Start acceptors on listening sockets. Takes over the sockets: they are closed if it fails.
startServer :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> [Socket] -> IO Server
startServer settings handler listeners = (`onException` mapM_ close listeners) $ do
  caps <- getNumCapabilities
  bound <- case listeners of
    l : _ -> getSocketName l
    [] -> ioError (userError "Weft.Socket.serve: no address to listen on")
  forM_ listeners $ \l -> do
    listens <- isListening l
    unless listens (ioError (userError "Weft.Socket.serve: the socket does not listen"))
  tables <- forM listeners (const (Connections <$> newIORef 0 <*> newMVar IntMap.empty <*> newTVarIO 0))
  -- Not masked as the rest of this: threads that it forks inherit its state.
  interruptible (serverOnListen settings bound)
  threads <- forM (zip3 [0 ..] listeners tables) $ \(i, l, table) ->
    startAcceptor settings handler (placement caps (length listeners) i) i l tables table
  pure (Server bound threads listeners tables)
  where
    -- Which capability the nth connection of an acceptor goes to.
    placement caps acceptors i n
      | acceptors > 1 = i
      | otherwise = n `mod` caps

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

startAcceptor ::
  ServerSettings ->
  (Socket -> SockAddr -> IO ()) ->
  (Int -> Int) ->
  Int ->
  Socket ->
  [Connections] ->
  Connections ->
  IO Acceptor
startAcceptor settings handler place i listener tables table = do
  ended <- newEmptyMVar
  reportedAt <- newIORef (Instant minBound)
  t <- mask_ $ forkOnWithUnmask i (\unmask -> (unmask (acceptLoop reportedAt) `catch` ignore) >>= finish ended)
  labelThread t ("weft acceptor " <> show i)
  pure (Acceptor t ended)
  where
    ignore :: SomeException -> IO (Maybe IOException)
    ignore _ = pure Nothing
    -- Closed, so that the kernel gives new connections to other listeners, or refuses them.
    finish ended failure = uninterruptibleMask_ (close listener >> putMVar ended failure)
    -- The error, unless the socket was closed.
    acceptLoop reportedAt = do
      mapM_ untilRoom (serverMostConnections settings)
      r <- mask_ (try (accept listener >>= startConnection settings handler place table))
      case r of
        Right () -> acceptLoop reportedAt
        Left e
          | errno e `elem` map Just passing -> acceptLoop reportedAt
          | errno e `elem` map Just exhausted -> do
            t <- now
            before <- readIORef reportedAt
            when (t >= seconds 1 `after` before) $ do
              report settings Nothing (toException e)
              writeIORef reportedAt t
            recover
            acceptLoop reportedAt
          | otherwise -> do
            report settings Nothing (toException e)
            pure (if errno e == Just eBADF then Nothing else Just e)
    errno e = Errno <$> ioe_errno e
    untilRoom most = do
      open <- openConnections tables
      when (open >= most) . atomically $ mapM (readTVar . connectionCount) tables >>= check . (< most) . sum
    -- Errors of the one connection that was to be accepted: accept(2), \"Error
    -- handling\".
    passing =
      [eCONNABORTED, ePROTO, ePERM, eNETDOWN, eNOPROTOOPT, eHOSTDOWN, eNONET, eHOSTUNREACH, eOPNOTSUPP, eNETUNREACH]
    exhausted = [eMFILE, eNFILE, eNOBUFS, eNOMEM]
    -- Out of descriptors. Connections wait in the backlog, so the listener stays readable,
    -- and accepting again at once would spin. Wait until a connection of ours ends, or for a while.
    recover = do
      open <- readTVarIO (connectionCount table)
      void (within (milliseconds 100) (waitBelow open table))

-- | Masked, so that no accepted socket is lost.
startConnection ::
  ServerSettings ->
  (Socket -> SockAddr -> IO ()) ->
  (Int -> Int) ->
  Connections ->
  (Socket, SockAddr) ->
  IO ()
startConnection settings handler place table (sock, peer) = do
  n <- readIORef (connectionNext table)
  writeIORef (connectionNext table) (n + 1)
  -- The table is held meanwhile: a thread that ends at once has to find its entry in it.
  (`onException` close sock) . modifyMVar_ (connectionThreads table) $ \threads -> do
    -- Counted before the fork: the thread may run, and answer its client, on another capability at once.
    count (+ 1)
    t <- forkOnWithUnmask (place n) (connection n) `onException` count (subtract 1)
    labelThread t "weft connection"
    pure $! IntMap.insert n t threads
  where
    connection :: Int -> (forall a. IO a -> IO a) -> IO ()
    connection n unmask = do
      -- Attached first, as a connection waits sooner or later. A single exception handler below the user's: the stack
      -- is walked through each time that the thread waits, and has 1 KiB. (The thread is masked from its start.)
      result <- try (withDescriptor sock prepareDescriptor >> unmask (when (serverNoDelay settings) noDelay >> handler sock peer))
      either (report settings (Just peer)) pure result `finally` ended n
    -- Runs whatever the handler throws. Uninterruptible; the table is never held for long.
    ended n = uninterruptibleMask_ $ do
      close sock
      -- Forced, or the table would keep all of its earlier threads alive.
      modifyMVar_ (connectionThreads table) $ \threads -> do
        count (subtract 1)
        pure $! IntMap.delete n threads
    count = atomically . modifyTVar' (connectionCount table)
    noDelay = case peer of
      SockAddrUnix _ -> pure ()
      _ -> setSocketOption sock NoDelay 1

-- | Call the user's function with an exception. Rethrows asynchronous exceptions only: a server goes on also when its
-- standard error cannot be written to.
report :: ServerSettings -> Maybe SockAddr -> SomeException -> IO ()
report settings peer e = serverOnException settings peer e `catch` failed
  where
    failed :: SomeException -> IO ()
    failed thrown = case fromException thrown of
      Just (SomeAsyncException _) -> throwIO thrown
      Nothing -> reportException peer thrown `catchIOError` const (pure ())
