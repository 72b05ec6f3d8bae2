-- |
-- Sockets for hybrid threads: the functions of "Weft.Socket". A thread that
-- waits is parked on the loop that polls its socket. A socket is created, bound and given
-- its options by "Weft.Socket", and then taken over by 'fromSocket'.
--
-- Every operation tries the system call first. Errors are 'IOError's with the errno; an operation on a
-- socket that is closed, or is closed while it waits, fails with @EBADF@. An idle socket has no
-- buffer. Threads of all loops may use a socket.
--
-- @since 0.1.0
module Weft.Hybrid.Socket
  ( -- * Sockets
    Socket,
    fromSocket,
    toSocket,
    accept,
    connect,
    connectTo,
    shutdown,
    close,

    -- * Data
    recv,
    send,
    sendAll,

    -- * Deadlines
    withDeadline,

    -- * From "Weft.Socket"
    SockAddr (..),
    ShutdownCmd (..),
  )
where

import Control.Exception (mask_, onException)
import Control.Monad (unless, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeUseAsCStringLen)
import Data.IORef (newIORef, readIORef, writeIORef)
import Foreign.C.Error (Errno (..), eINPROGRESS, eINVAL)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr)
import System.Posix.Types (Fd (..))
import Weft.Core.Time (Instant, never)
import Weft.FFI.Errno (errnoError)
import Weft.FFI.Socket
import Weft.Hybrid.Descriptor
import Weft.Hybrid.DescriptorTable (mayHideMore)
import Weft.Hybrid.Monad
import Weft.Hybrid.Weak (whenGarbage)
import Weft.Socket (ShutdownCmd (..), SockAddr (..))
import qualified Weft.Socket as GHC
import Weft.Socket.Address
import Weft.Socket.Scratch
import Weft.Sys (newRef)

-- | A socket. A value also carries a deadline ('withDeadline'). It is closed by 'close', or when it is garbage
-- collected.
newtype Socket = Socket Source

-- | Equal if they share the descriptor, also with different deadlines.
instance Eq Socket where
  Socket a == Socket b = sourceAnchor a == sourceAnchor b

instance Show Socket where
  show = show . socketDescriptor

socketDescriptor :: Socket -> Descriptor
socketDescriptor (Socket s) = sourceDescriptor s

-- | Take over a socket of "Weft.Socket", which is closed by this: GHC threads cannot use it any more.
fromSocket :: GHC.Socket -> Hybrid Socket
fromSocket s = nonBlocking . mask_ $ do
  fd <- GHC.socketToFd s
  drains <- cDrains fd
  newSocket (drains > 0) fd

-- | The opposite of 'fromSocket': hybrid threads cannot use the socket any more.
toSocket :: Socket -> Hybrid GHC.Socket
toSocket s = nonBlocking . mask_ $ do
  fd <- immediately "Weft.Hybrid.toSocket" (socketDescriptor s) cDup
  _ <- closeDescriptor (socketDescriptor s)
  GHC.mkSocket fd `onException` cClose fd

-- | Take ownership of a socket's descriptor, which is closed if this throws. 'True' if a short read leaves nothing
-- behind ('cDrains').
newSocket :: Bool -> CInt -> IO Socket
newSocket drains fd = (`onException` cClose fd) $ do
  d <- openDescriptor drains (Fd fd)
  anchor <- newRef ()
  whenGarbage anchor (void (closeDescriptor d))
  pure (Socket (Source d anchor never))

operate :: Kind -> Socket -> (CInt -> IO (Attempt a)) -> Hybrid a
operate kind (Socket s) = perform kind s
{-# INLINE operate #-}

-- | Wait for a connection. Returns its socket, which has no deadline, and the peer's address.
accept :: Socket -> Hybrid (Socket, SockAddr)
accept s = operate (Kind "Weft.Hybrid.accept" Reading) s $ \listener ->
  withRoom $ \p len -> do
    r <- cAccept listener p len
    decodeResult r $ \fd -> do
      addr <- readSender (fromIntegral fd) p len
      -- The connection is of its listener's kind.
      hides <- mayHideMore (socketDescriptor s)
      conn <- newSocket (not hides) (fromIntegral fd)
      more <- cAcceptable listener
      pure (if more == 0 then Drained (conn, addr) else Done (conn, addr))

-- | Connect; wait until the connection is established or has failed.
connect :: Socket -> SockAddr -> Hybrid ()
connect s addr = do
  -- The address is encoded once before, since an operation must not throw: one that cannot be encoded is an error.
  begun <- nonBlocking (withAddress addr (\_ _ -> newIORef False))
  operate (Kind "Weft.Hybrid.connect" Writing) s $ \fd -> withAddress addr $ \p n -> do
    before <- readIORef begun
    writeIORef begun True
    r <- if before then cConnected fd else cConnect fd p n
    pure $ case r of
      0 -> Done ()
      _
        | Errno (negate r) == eINPROGRESS -> NotYet
        | otherwise -> Failed (negate r)

-- | A new stream socket that is connected to the address.
connectTo :: SockAddr -> Hybrid Socket
connectTo addr = do
  s <- nonBlocking (GHC.socket (addressFamily addr) GHC.Stream 0) >>= fromSocket
  connect s addr `catchAny` \e -> close s >> throw e
  pure s

-- | Shut down one direction or both; the peer sees the end of the stream.
shutdown :: Socket -> ShutdownCmd -> Hybrid ()
shutdown s how = nonBlocking . void $ immediately "Weft.Hybrid.shutdown" (socketDescriptor s) (`cShutdown` number)
  where
    number = case how of
      ShutdownReceive -> 0
      ShutdownSend -> 1
      ShutdownBoth -> 2

-- | Close a socket. Threads that wait on it get @EBADF@. No effect if it is closed already.
close :: Socket -> Hybrid ()
close s = nonBlocking (void (closeDescriptor (socketDescriptor s)))

-- Data -------------------------------------------------------------------------------

-- | Receive what has arrived, at most the given number of bytes and at most 64 KiB; wait until there
-- is some. Empty at the end of the stream. Raises @EINVAL@ if the number is not positive.
recv :: Socket -> Int -> Hybrid ByteString
recv s n
  | n <= 0 = nonBlocking (ioError (errnoError "Weft.Hybrid.recv" (let Errno e = eINVAL in e)))
  | otherwise = operate (Kind "Weft.Hybrid.recv" Reading) s $ \fd -> withScratch $ \p -> do
    let room = min n scratchSize
    r <- cRecv fd p (fromIntegral room) 0
    decodeResult r $ \got -> do
      bytes <- if got == 0 then pure B.empty else B.create got (\to -> copyBytes to p got)
      pure (if got < room && got > 0 then Drained bytes else Done bytes)

-- | Send a string, or as much of it as the kernel takes at once; wait until it takes some. Returns the number of bytes
-- taken.
send :: Socket -> ByteString -> Hybrid Int
send s !bytes = operate (Kind "Weft.Hybrid.send" Writing) s $ \fd -> B.unsafeUseAsCStringLen bytes $ \(p, n) -> do
  r <- cSend fd (castPtr p) (fromIntegral n) 0
  decodeResult r (\sent -> pure (if sent < n then Drained sent else Done sent))

-- | Send all of a string. If it raises an exception, an unknown part has been sent.
sendAll :: Socket -> ByteString -> Hybrid ()
sendAll s bytes = unless (B.null bytes) $ do
  sent <- send s bytes
  sendAll s (B.unsafeDrop sent bytes)

-- Deadlines ----------------------------------------------------------------------------

-- | A socket with a deadline, on the same descriptor. Operations on this value raise an error that satisfies
-- 'Weft.Hybrid.Deadline.isTimeout' if they are not finished in time. Data that arrived in time is not lost.
withDeadline :: Instant -> Socket -> Socket
withDeadline d (Socket s) = Socket s {sourceDeadline = d}
