{-# LANGUAGE TypeFamilyDependencies #-}

-- |
-- A class with the operations of a server, so that one source runs on both kinds of threads. At the type 'IO'
-- it runs on GHC threads and "Weft.Socket", at 'Hybrid' on hybrid threads.
--
-- > echo :: Threads m => SocketOf m -> m ()
-- > echo sock = do
-- >   bytes <- recv sock 4096
-- >   if Data.ByteString.null bytes then close sock else sendAll sock bytes >> echo sock
--
-- The methods have the names that "Weft.Hybrid" uses; a module imports one of the two, or one of them qualified.
--
-- @since 0.1.0
module Weft.Hybrid.Class
  ( Threads (..),
  )
where

import qualified Control.Concurrent as GHC
import Control.Monad (void)
import Control.Monad.Catch (MonadMask)
import Control.Monad.IO.Class (MonadIO (..))
import Data.ByteString (ByteString)
import Data.Kind (Type)
import qualified Weft.Blocking as GHC
import Weft.Deadline (Duration, Instant)
import qualified Weft.Deadline as GHC
import qualified Weft.Hybrid.Blocking as Hybrid
import qualified Weft.Hybrid.Deadline as Hybrid
import qualified Weft.Hybrid.MVar as Hybrid
import Weft.Hybrid.Monad (Hybrid)
import qualified Weft.Hybrid.Monad as Hybrid
import qualified Weft.Hybrid.Socket as Hybrid
import qualified Weft.Hybrid.Timer as Hybrid
import Weft.Socket (ShutdownCmd, SockAddr)
import qualified Weft.Socket as GHC
import qualified Weft.Socket.ByteString as GHC
import qualified Weft.Timer as GHC

-- | A monad of threads. 'liftIO' is for what does not block.
class (MonadMask m, MonadIO m) => Threads m where
  -- | The type of sockets.
  type SocketOf m = s | s -> m

  -- | The type of MVars.
  type MVarOf m :: Type -> Type

  -- | Start a thread.
  fork :: m () -> m ()

  -- | Let other threads run.
  yield :: m ()

  -- | Wait for the given duration.
  sleep :: Duration -> m ()

  -- | Run an action with a time limit. 'Nothing' if it took longer and was interrupted.
  within :: Duration -> m a -> m (Maybe a)

  -- | Run a call that blocks.
  blocking :: IO a -> m a

  newMVar :: a -> m (MVarOf m a)
  newEmptyMVar :: m (MVarOf m a)
  takeMVar :: MVarOf m a -> m a
  putMVar :: MVarOf m a -> a -> m ()

  -- | Take over a socket of "Weft.Socket".
  fromSocket :: GHC.Socket -> m (SocketOf m)

  accept :: SocketOf m -> m (SocketOf m, SockAddr)
  connect :: SocketOf m -> SockAddr -> m ()
  recv :: SocketOf m -> Int -> m ByteString
  send :: SocketOf m -> ByteString -> m Int
  sendAll :: SocketOf m -> ByteString -> m ()
  shutdown :: SocketOf m -> ShutdownCmd -> m ()
  close :: SocketOf m -> m ()

  -- | The instant after the given duration from now ("Weft.Deadline").
  deadlineIn :: Duration -> m Instant

  -- | Run an action, and interrupt it when the deadline passes.
  inTime :: Instant -> m a -> m a

  -- | The socket, with a deadline for its operations.
  withDeadline :: Instant -> SocketOf m -> SocketOf m

instance Threads IO where
  type SocketOf IO = GHC.Socket
  type MVarOf IO = GHC.MVar
  fork = void . GHC.forkIO
  yield = GHC.yield
  sleep = GHC.sleep
  within = GHC.within
  blocking = GHC.blocking
  newMVar = GHC.newMVar
  newEmptyMVar = GHC.newEmptyMVar
  takeMVar = GHC.takeMVar
  putMVar = GHC.putMVar
  fromSocket = pure
  accept = GHC.accept
  connect = GHC.connect
  recv = GHC.recv
  send = GHC.send
  sendAll = GHC.sendAll
  shutdown = GHC.shutdown
  close = GHC.close
  deadlineIn = GHC.deadlineIn
  inTime = GHC.inTime
  withDeadline = GHC.withDeadline

instance Threads Hybrid where
  type SocketOf Hybrid = Hybrid.Socket
  type MVarOf Hybrid = Hybrid.MVar
  fork = Hybrid.fork
  yield = Hybrid.yield
  sleep = Hybrid.sleep
  within = Hybrid.within
  blocking = Hybrid.blocking
  newMVar = Hybrid.newMVar
  newEmptyMVar = Hybrid.newEmptyMVar
  takeMVar = Hybrid.takeMVar
  putMVar = Hybrid.putMVar
  fromSocket = Hybrid.fromSocket
  accept = Hybrid.accept
  connect = Hybrid.connect
  recv = Hybrid.recv
  send = Hybrid.send
  sendAll = Hybrid.sendAll
  shutdown = Hybrid.shutdown
  close = Hybrid.close
  deadlineIn = Hybrid.deadlineIn
  inTime = Hybrid.inTime
  withDeadline = Hybrid.withDeadline
