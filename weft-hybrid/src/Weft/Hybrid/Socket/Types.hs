-- |
-- The socket of "Weft.Hybrid.Socket", and how its operations run, for the modules that have operations on it.
module Weft.Hybrid.Socket.Types
  ( Socket (..),
    socketDescriptor,
    newSocket,
    withDeadline,
    operate,
  )
where

import Control.Exception (onException)
import Control.Monad (void)
import Foreign.C.Types (CInt)
import System.Posix.Types (Fd (..))
import Weft.Core.Time (Instant, never)
import Weft.FFI.Socket (cClose)
import Weft.Hybrid.Descriptor
import Weft.Hybrid.Monad
import Weft.Hybrid.Weak (whenGarbage)
import Weft.Sys (newRef)

-- | A socket. A value also carries a deadline ('withDeadline'). It is closed by 'Weft.Hybrid.Socket.close', or when it
-- is garbage collected.
newtype Socket = Socket Source

-- | Equal if they share the descriptor, also with different deadlines.
instance Eq Socket where
  Socket a == Socket b = sourceAnchor a == sourceAnchor b

instance Show Socket where
  show = show . socketDescriptor

-- | The socket's descriptor.
socketDescriptor :: Socket -> Descriptor
socketDescriptor (Socket s) = sourceDescriptor s

-- | Take ownership of a socket's descriptor, which is closed if this throws. 'True' if a short read leaves nothing behind
-- ('Weft.FFI.Socket.cDrains').
newSocket :: Bool -> CInt -> IO Socket
newSocket drains fd = (`onException` cClose fd) $ do
  d <- openDescriptor drains (Fd fd)
  anchor <- newRef ()
  whenGarbage anchor (void (closeDescriptor d))
  pure (Socket (Source d anchor never))

-- | 'perform' on a socket.
operate :: Kind -> Socket -> (CInt -> IO (Attempt a)) -> Hybrid a
operate kind (Socket s) = perform kind s
{-# INLINE operate #-}

-- | A socket with a deadline, on the same descriptor. Operations on this value raise an error that satisfies
-- 'Weft.Hybrid.Deadline.isTimeout' if they are not finished in time. Data that arrived in time is not lost.
withDeadline :: Instant -> Socket -> Socket
withDeadline d (Socket s) = Socket s {sourceDeadline = d}
