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
import Control.Monad (forM, unless)
import qualified Data.Set as Set
import Foreign.C.Error (Errno (..), eBADF)
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOException (..))
import Network.Socket (SockAddr)
import Weft.Duration (Duration)
import qualified Weft.Socket as W
import qualified Weft.Thread as W
import Weft.Timer (within)
import Weft.Transport

-- | A source of connections.
data Acceptors
  = Sockets !W.Server
  | Transports !SockAddr ![Listener] !Accepted

-- | The threads of accepted connections, and the number of acceptors. An acceptor adds a thread before it runs; the
-- thread removes itself at its end. As long as an acceptor runs, it may have accepted a connection whose thread is not
-- in the set yet.
data Accepted = Accepted !(TVar (Set.Set ThreadId)) !(TVar Int)

-- | Accept from the kernel's sockets, which count their connections themselves.
fromSockets :: W.Server -> Acceptors
fromSockets = Sockets

-- | Accept from listeners of any transport, at least one, while an action runs. Each connection
-- has a thread. When the action ends, the listeners are closed and the remaining threads are killed.
withTransports :: [Listener] -> (Connection -> SockAddr -> IO ()) -> (Acceptors -> IO a) -> IO a
withTransports listeners handler act = do
  accepted@(Accepted threads acceptors) <- Accepted <$> newTVarIO Set.empty <*> newTVarIO 0
  let start = forM listeners $ \l -> do
        atomically (modifyTVar' acceptors (+ 1))
        t <- forkIOWithUnmask (\unmask -> unmask (acceptLoop threads handler l) `finally` atomically (modifyTVar' acceptors (subtract 1)))
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

-- | Accept until the listener is closed. After another error, for example if no descriptor is left, pause briefly and
-- retry.
acceptLoop :: TVar (Set.Set ThreadId) -> (Connection -> SockAddr -> IO ()) -> Listener -> IO ()
acceptLoop threads handler l = do
  next <- try (mask_ (listenerAccept l >>= serve))
  case next of
    Right () -> acceptLoop threads handler l
    Left e -> unless (isClosed e) (W.threadDelay 10000 >> acceptLoop threads handler l)
  where
    isClosed e = let Errno badf = eBADF in ioe_errno e == Just badf
    serve c = do
      counted <- newEmptyMVar
      t <- forkIOWithUnmask $ \unmask -> do
        uninterruptibleMask_ (takeMVar counted)
        self <- myThreadId
        (unmask (handler c (connPeer c)) `finally` connClose c) `finally` atomically (modifyTVar' threads (Set.delete self))
      atomically (modifyTVar' threads (Set.insert t))
      putMVar counted ()
      labelThread t "weft http connection"

-- | The address of the first listener.
acceptorsAddress :: Acceptors -> SockAddr
acceptorsAddress (Sockets s) = W.serverAddress s
acceptorsAddress (Transports a _ _) = a

-- | The number of connections.
acceptorsConnections :: Acceptors -> IO Int
acceptorsConnections (Sockets s) = W.serverConnections s
acceptorsConnections (Transports _ _ (Accepted threads _)) = Set.size <$> readTVarIO threads

-- | Block until no socket or listener accepts any more.
waitAcceptors :: Acceptors -> IO ()
waitAcceptors (Sockets s) = W.waitServer s
waitAcceptors (Transports _ _ (Accepted _ acceptors)) = atomically (readTVar acceptors >>= check . (== 0))

-- | Stop accepting, and wait for the given time for the connections to end; 'True' if all did.
drainAcceptors :: Acceptors -> Duration -> IO Bool
drainAcceptors (Sockets s) patience = W.drainServer s patience
drainAcceptors (Transports _ listeners (Accepted threads acceptors)) patience = do
  mapM_ listenerClose listeners
  done <- within patience . atomically $ do
    readTVar acceptors >>= check . (== 0)
    readTVar threads >>= check . Set.null
  maybe (Set.null <$> readTVarIO threads) (const (pure True)) done
