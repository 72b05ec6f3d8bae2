-- |
-- Accepts connections, from the kernel's sockets or from the listeners of another transport, and
-- counts them, while a server runs. Any thread may call these functions.
module Weft.Http.Acceptors
  ( Acceptors,
    fromSockets,
    withTransports,
    acceptorsAddress,
    acceptorsConnections,
    waitAcceptors,
    drainAcceptors,
  )
where

import Control.Concurrent
import Control.Concurrent.STM
import Control.Exception
import Control.Monad (forM)
import qualified Data.Set as Set
import Foreign.C.Error
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOException (..))
import Network.Socket (SockAddr)
import Weft.Duration (Duration)
import qualified Weft.Socket as W
import Weft.Sys.Label
import qualified Weft.Thread as W
import Weft.Timer (within)
import Weft.Transport

-- | A source of connections.
data Acceptors
  = Sockets !W.Server
  | Transports !SockAddr ![Listener] !Accepted

-- | The threads of accepted connections, the number of acceptors, and the first error that ended one of them. An
-- acceptor adds a thread before it runs; the thread removes itself at its end. As long as an acceptor runs, it may have
-- accepted a connection whose thread is not in the set yet.
data Accepted = Accepted !(TVar (Set.Set ThreadId)) !(TVar Int) !(TVar (Maybe SomeException))

-- | Accept from the kernel's sockets, which count their connections themselves.
fromSockets :: W.Server -> Acceptors
fromSockets = Sockets

-- | Accept from listeners of any transport, at least one, while an action runs. Each connection
-- has a thread. When the action ends, the listeners are closed and the remaining threads are killed. The first function
-- is called with the errors of listeners, except those of one connection. With a number, nothing is accepted while so
-- many connections are open.
withTransports :: (SomeException -> IO ()) -> Maybe Int -> [Listener] -> (Connection -> SockAddr -> IO ()) -> (Acceptors -> IO a) -> IO a
withTransports report most listeners handler act = do
  accepted@(Accepted threads acceptors failure) <- Accepted <$> newTVarIO Set.empty <*> newTVarIO 0 <*> newTVarIO Nothing
  let ended l e = do
        atomically (modifyTVar' failure (maybe (Just e) Just))
        listenerClose l
        reported report e
      start = forM listeners $ \l -> do
        atomically (modifyTVar' acceptors (+ 1))
        t <- forkIOWithUnmask $ \unmask ->
          unmask (acceptLoop report most threads handler l >>= mapM_ (ended l)) `finally` atomically (modifyTVar' acceptors (subtract 1))
        t <$ labelThread t "weft http accept"
      stop running = do
        mapM_ listenerClose listeners
        mapM_ killThread running
        readTVarIO threads >>= mapM_ killThread
  bracket start stop $ \_ -> act (Transports (address listeners) listeners accepted)
  where
    address ls = case ls of
      l : _ -> listenerAddress l
      [] -> throw (userError "Weft.Http: no listener")

-- | Call the function with an error. What it throws is dropped, except asynchronous exceptions.
reported :: (SomeException -> IO ()) -> SomeException -> IO ()
reported report e = report e `catch` failed
  where
    failed :: SomeException -> IO ()
    failed thrown = case fromException thrown of
      Just (SomeAsyncException _) -> throwIO thrown
      Nothing -> pure ()

-- | Accept until the listener is closed or fails; then its error is returned. After errors of one connection, and if no
-- descriptor or memory is left, pause and retry.
acceptLoop :: (SomeException -> IO ()) -> Maybe Int -> TVar (Set.Set ThreadId) -> (Connection -> SockAddr -> IO ()) -> Listener -> IO (Maybe SomeException)
acceptLoop report most threads handler l = go (0 :: Int)
  where
    -- Given how many times in a row there was no network.
    go down = do
      mapM_ (\n -> atomically (readTVar threads >>= check . (< n) . Set.size)) most
      next <- try (mask_ (listenerAccept l >>= serve))
      case next of
        Right () -> go 0
        Left e
          | is [eBADF] e -> pure Nothing
          | is passing e -> W.threadDelay 10000 >> go 0
          | is exhausted e -> reported report e >> W.threadDelay 100000 >> go 0
          | is [eNETDOWN] e, down < 100 -> W.threadDelay 10000 >> go (down + 1)
          | Just (SomeAsyncException _) <- fromException e -> throwIO e
          | otherwise -> pure (Just e)
    is errnos e = (fromException e >>= fmap Errno . ioe_errno) `elem` map Just errnos
    -- As in "Weft.Socket": errors of the one connection that was to be accepted (accept(2), \"Error handling\").
    -- ENETDOWN is one of them, of the kernel's sockets; with other listeners it is the end of their network. For a
    -- second it may be either.
    passing = [eCONNABORTED, ePROTO, ePERM, eNOPROTOOPT, eHOSTDOWN, eNONET, eHOSTUNREACH, eOPNOTSUPP, eNETUNREACH]
    exhausted = [eMFILE, eNFILE, eNOBUFS, eNOMEM]
    serve c = do
      counted <- newEmptyMVar
      t <- forkIOWithUnmask $ \unmask -> do
        uninterruptibleMask_ (takeMVar counted)
        self <- myThreadId
        (unmask (handler c (connPeer c)) `finally` connClose c) `finally` atomically (modifyTVar' threads (Set.delete self))
      atomically (modifyTVar' threads (Set.insert t))
      putMVar counted ()
      setLabel t connectionLabel

-- | The label of connections' threads.
connectionLabel :: Label
connectionLabel = threadLabel "weft http connection"

-- | The address of the first listener.
acceptorsAddress :: Acceptors -> SockAddr
acceptorsAddress (Sockets s) = W.serverAddress s
acceptorsAddress (Transports a _ _) = a

-- | The number of connections.
acceptorsConnections :: Acceptors -> IO Int
acceptorsConnections (Sockets s) = W.serverConnections s
acceptorsConnections (Transports _ _ (Accepted threads _ _)) = Set.size <$> readTVarIO threads

-- | Block until no socket or listener accepts any more. Throws the first error that ended one, if any.
waitAcceptors :: Acceptors -> IO ()
waitAcceptors (Sockets s) = W.waitServer s
waitAcceptors (Transports _ _ (Accepted _ acceptors failure)) =
  atomically (readTVar acceptors >>= check . (== 0) >> readTVar failure) >>= mapM_ throwIO

-- | Stop accepting, and wait for the given time for the connections to end; 'True' if all did.
drainAcceptors :: Acceptors -> Duration -> IO Bool
drainAcceptors (Sockets s) patience = W.drainServer s patience
drainAcceptors (Transports _ listeners (Accepted threads acceptors _)) patience = do
  mapM_ listenerClose listeners
  done <- within patience . atomically $ do
    readTVar acceptors >>= check . (== 0)
    readTVar threads >>= check . Set.null
  maybe (Set.null <$> readTVarIO threads) (const (pure True)) done
