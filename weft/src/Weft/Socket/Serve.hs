{-# LANGUAGE RankNTypes #-}

-- |
-- Servers: one acceptor on each capability, which keeps the connections it
-- accepts, with their threads, events and timers, on its own capability.
--
-- Each acceptor has a listening socket of its own (@SO_REUSEPORT@), among which the
-- kernel spreads new connections. Where that cannot be (Unix sockets, sockets that
-- were inherited) one acceptor hands connections to the capabilities in turn.
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
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Foreign.C.Error
  ( Errno (..),
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
import System.IO (hPutStrLn, stderr)
import Weft.Blocking (blocking)
import Weft.Core.Descriptor (prepareDescriptor)
import Weft.Duration
import Weft.Socket.Basic
import Weft.Socket.Options
import Weft.Socket.Types
import Weft.Thread.Time (within)

-- | Settings of a server. Begin with 'defaultServerSettings'.
data ServerSettings = ServerSettings
  { -- | Address or name to listen on; 'Nothing' is every address.
    serverHost :: Maybe HostName,
    -- | Port or service name; @"0"@ lets the system choose one.
    serverPort :: ServiceName,
    -- | How many connections may wait to be accepted, for each acceptor.
    serverBacklog :: Int,
    -- | How many acceptors; 'Nothing' is one for each capability.
    serverAcceptors :: Maybe Int,
    -- | Send small messages at once (@TCP_NODELAY@).
    serverNoDelay :: Bool,
    -- | Called once, when clients can connect and before the first of them is
    -- served, with the address. What it throws ends the server.
    serverOnListen :: SockAddr -> IO (),
    -- | Called with what a handler threw, or with what kept an acceptor from
    -- accepting. What it throws itself goes to 'reportException'.
    serverOnException :: Maybe SockAddr -> SomeException -> IO ()
  }

-- | Every address, a port that the system chooses, an acceptor for each
-- capability, no delay; exceptions go to 'reportException'.
defaultServerSettings :: ServerSettings
defaultServerSettings =
  ServerSettings
    { serverHost = Nothing,
      serverPort = "0",
      serverBacklog = 4096,
      serverAcceptors = Nothing,
      serverNoDelay = True,
      serverOnListen = const (pure ()),
      serverOnException = reportException
    }

-- | Print an exception to the standard error, unless it only says that a client
-- went away or the thread was told to end.
reportException :: Maybe SockAddr -> SomeException -> IO ()
reportException peer e
  | Just io <- fromException e, fmap Errno (ioe_errno io) `elem` map Just [ePIPE, eCONNRESET] = pure ()
  | Just async <- fromException e, async `elem` [ThreadKilled, UserInterrupt] = pure ()
  | otherwise = hPutStrLn stderr ("weft: " <> maybe "accept" show peer <> ": " <> displayException e)

-- | A server that runs.
data Server = Server
  { -- | Where it listens.
    serverAddress :: SockAddr,
    serverAcceptorThreads :: [Acceptor],
    serverListeners :: [Socket],
    serverTables :: [Connections]
  }

-- | A thread that accepts, and what is full when it has ended.
data Acceptor = Acceptor !ThreadId !(MVar ())

-- | The connections that one acceptor has started: changed by it and by their
-- threads.
data Connections = Connections
  { -- | The number of the next. Written by the acceptor.
    connectionNext :: !(IORef Int),
    connectionThreads :: !(MVar (IntMap.IntMap ThreadId)),
    -- | How many there are. Written by who holds the threads.
    connectionCount :: !(TVar Int)
  }

-- | Serve until the calling thread is interrupted, or nothing can be accepted any
-- more; connections are then dropped. Each connection has a thread of its own that
-- runs the handler; its socket is closed when the handler ends. Throws when it
-- cannot listen.
serve :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> IO ()
serve settings handler = withServer settings handler waitServer

-- | Run a server beside an action. When the action ends, the server stops
-- listening and drops the connections that are left: see 'drainServer' for ending
-- them well.
withServer :: ServerSettings -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withServer settings handler = bracket (listenAndStart settings handler) stopServer

-- | 'withServer' on sockets that listen already, which the server closes; the
-- settings' address and backlog do not count. With one socket the connections go
-- to the capabilities in turn; with several, those of the nth stay on the nth.
withServerOn :: ServerSettings -> [Socket] -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withServerOn settings listeners handler = bracket (startServer settings handler listeners) stopServer

-- | How many connections are being served.
serverConnections :: Server -> IO Int
serverConnections server = sum <$> mapM (readTVarIO . connectionCount) (serverTables server)

-- | Block until the server accepts no more: because it was stopped or drained, or
-- its sockets were closed or failed.
waitServer :: Server -> IO ()
waitServer server = mapM_ (\(Acceptor _ ended) -> readMVar ended) (serverAcceptorThreads server)

-- | Stop listening and let the connections end, for at most so long ('maxBound' is
-- no limit; what is not positive does not wait). 'True': none is left.
drainServer :: Server -> Duration -> IO Bool
drainServer server patience = do
  stopListening server
  _ <- within patience (mapM_ (waitBelow 1) (serverTables server))
  (== 0) <$> serverConnections server

-- | Block until there are fewer connections.
waitBelow :: Int -> Connections -> IO ()
waitBelow n table = atomically $ readTVar (connectionCount table) >>= check . (< n)

-- | When it returns no acceptor runs. Not to be interrupted half-way: an acceptor can
-- always be, so this does not take long.
stopListening :: Server -> IO ()
stopListening server = uninterruptibleMask_ $ do
  forM_ (serverAcceptorThreads server) $ \(Acceptor t ended) -> killThread t >> readMVar ended
  mapM_ close (serverListeners server)

-- | Interrupted, it leaves the rest of the connections to another thread.
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

-- | Owns the listening sockets from here on.
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
  serverOnListen settings bound
  threads <- forM (zip3 [0 ..] listeners tables) $ \(i, l, table) ->
    startAcceptor settings handler (placement caps (length listeners) i) i l table
  pure (Server bound threads listeners tables)
  where
    -- Which capability the nth connection of an acceptor goes to.
    placement caps acceptors i n
      | acceptors > 1 = i
      | otherwise = n `mod` caps

-- | The first address for the settings.
resolve :: ServerSettings -> IO AddrInfo
resolve settings = do
  found <- blocking (getAddrInfo (Just hints) (serverHost settings) (Just (serverPort settings)))
  case found of
    -- An IPv6 socket for every address takes IPv4 as well.
    _ | ai : _ <- [a | a <- found, serverHost settings == Nothing, addrFamily a == N.AF_INET6] -> pure ai
    ai : _ -> pure ai
    [] -> ioError (userError "Weft.Socket.serve: no such address")
  where
    hints = defaultHints {addrFlags = [AI_PASSIVE], addrSocketType = N.Stream}

-- | Listening sockets, all on one address.
openListeners :: ServerSettings -> AddrInfo -> Int -> IO [Socket]
openListeners settings ai count
  | count == 1 || addrFamily ai == AF_UNIX = pure <$> open False (addrAddress ai)
  | otherwise = do
    -- A first socket without SO_REUSEPORT finds out whether somebody else listens
    -- on the port, with whom it would otherwise be shared.
    address <- bracket (bound False (addrAddress ai)) close getSocketName
    collect count address []
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
  Connections ->
  IO Acceptor
startAcceptor settings handler place i listener table = do
  ended <- newEmptyMVar
  t <- mask_ $ forkOnWithUnmask i (\unmask -> (unmask acceptLoop `catch` ignore) >> finish ended)
  labelThread t ("weft acceptor " <> show i)
  pure (Acceptor t ended)
  where
    ignore :: SomeException -> IO ()
    ignore _ = pure ()
    -- Closed, so that the kernel sends clients to other listeners or refuses them.
    finish ended = uninterruptibleMask_ (close listener >> putMVar ended ())
    acceptLoop = do
      r <- mask_ (try (accept listener >>= startConnection settings handler place table))
      case r of
        Right () -> acceptLoop
        Left e
          | errno e `elem` map Just passing -> acceptLoop
          | errno e `elem` map Just exhausted -> do
            report settings Nothing (toException e)
            recover
            acceptLoop
          | otherwise -> report settings Nothing (toException e)
    errno e = Errno <$> ioe_errno e
    -- They concern the one connection that was to be accepted: accept(2), \"Error
    -- handling\".
    passing =
      [eCONNABORTED, ePROTO, ePERM, eNETDOWN, eNOPROTOOPT, eHOSTDOWN, eNONET, eHOSTUNREACH, eOPNOTSUPP, eNETUNREACH]
    exhausted = [eMFILE, eNFILE, eNOBUFS, eNOMEM]
    -- Out of descriptors: others are waiting in the backlog, so the listener stays
    -- readable and asking again at once would spin. One of ours that ends gives one
    -- back; otherwise look again after a while.
    recover = do
      now <- readTVarIO (connectionCount table)
      void (within (milliseconds 100) (waitBelow now table))

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
  -- The table is held meanwhile, so that a thread that ends at once finds itself there.
  (`onException` close sock) . modifyMVar_ (connectionThreads table) $ \threads -> do
    t <- forkOnWithUnmask (place n) (connection n)
    labelThread t "weft connection"
    count (+ 1)
    pure $! IntMap.insert n t threads
  where
    connection :: Int -> (forall a. IO a -> IO a) -> IO ()
    connection n unmask = do
      -- A connection waits sooner or later. One handler below the user's: its stack is walked through each time that it does. (The thread
      -- is masked from its start.)
      result <- try (withDescriptor sock prepareDescriptor >> unmask (when (serverNoDelay settings) noDelay >> handler sock peer))
      either (report settings (Just peer)) pure result `finally` ended n
    -- Whatever the handlers throw; the table is never held for long.
    ended n = uninterruptibleMask_ $ do
      close sock
      -- Forced, or the table would hold on to all threads that it ever had.
      modifyMVar_ (connectionThreads table) $ \threads -> do
        count (subtract 1)
        pure $! IntMap.delete n threads
    count = atomically . modifyTVar' (connectionCount table)
    noDelay = case peer of
      SockAddrUnix _ -> pure ()
      _ -> setSocketOption sock NoDelay 1

-- | Tell the user's function of an exception. Nothing that it throws, but what was
-- thrown at the calling thread meanwhile.
report :: ServerSettings -> Maybe SockAddr -> SomeException -> IO ()
report settings peer e = serverOnException settings peer e `catch` failed
  where
    failed :: SomeException -> IO ()
    failed thrown = case fromException thrown of
      Just (SomeAsyncException _) -> throwIO thrown
      Nothing -> reportException peer thrown
