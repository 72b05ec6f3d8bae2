-- |
-- Creating, connecting and closing sockets, their names and their descriptors.
module Weft.Socket.Basic
  ( socket,
    socketPair,
    openSocket,
    bind,
    listen,
    isListening,
    accept,
    connect,
    shutdown,
    gracefulClose,
    closeGracefully,
    closingGracefully,
    getSocketName,
    getPeerName,
    unixAddress,
    socketPort,
    socketPortSafe,
    withFdSocket,
    unsafeFdSocket,
    fdSocket,
    socketToFd,
    socketToHandle,
  )
where

import Control.Exception (SomeException, catch, finally, mask_, onException)
import Control.Monad (void, when)
import qualified Data.ByteString as B
import Data.IORef
import Data.Word (Word32)
import Foreign.C.Error (Errno (..), eADDRINUSE, eINPROGRESS, eINVAL)
import Foreign.C.String (peekCAStringLen)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Array (allocaArray)
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekElemOff)
import GHC.Foreign (withCStringLen)
import qualified GHC.IO.Device as Device
import GHC.IO.Encoding (getFileSystemEncoding)
import GHC.IO.Exception (IOException (ioe_errno))
import GHC.IO.Handle.FD (fdToHandle')
import Network.Socket
  ( AddrInfo (..),
    Family (..),
    PortNumber,
    ProtocolNumber,
    ShutdownCmd (..),
    SockAddr (..),
    SocketOption (IPv6Only),
    SocketType (..),
    packFamily,
  )
import qualified Network.Socket as N
import System.IO (BufferMode (NoBuffering), Handle, IOMode, hClose, hSetBuffering)
import System.IO.Error (catchIOError)
import System.Posix.Types (Fd (..))
import Weft.Core.Descriptor (descriptorClosed, descriptorFd)
import Weft.Core.Time (Duration, milliseconds)
import Weft.Deadline (Instant, deadlineIn)
import Weft.FFI.Errno
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Options (setSocketOption)
import Weft.Socket.Receive (recv)
import Weft.Socket.Types

-- | A new socket. An IPv6 one also takes IPv4 until its @IPv6Only@ option is set,
-- as with @network@.
socket :: Family -> SocketType -> ProtocolNumber -> IO Socket
socket family stype protocol = mask_ $ do
  fd <- throwIfNegative "Weft.Socket.socket" (cSocket (packFamily family) (typeNumber stype) protocol)
  s <- mkStreamSocket (isTcp family stype protocol) fd `onException` cClose fd
  when (family == AF_INET6 && stype `elem` [N.Stream, N.Datagram]) $
    setSocketOption s IPv6Only 0 `catch` ignore
  pure s

ignore :: SomeException -> IO ()
ignore _ = pure ()

typeNumber :: SocketType -> CInt
typeNumber (N.GeneralSocketType n) = n

-- | A stream of SCTP has messages.
isTcp :: Family -> SocketType -> ProtocolNumber -> Bool
isTcp family stype protocol = stype == N.Stream && family `elem` [AF_INET, AF_INET6] && protocol `elem` [0, 6]

-- | A new socket for an address that 'N.getAddrInfo' found.
openSocket :: AddrInfo -> IO Socket
openSocket ai = socket (addrFamily ai) (addrSocketType ai) (addrProtocol ai)

-- | Two sockets that are connected to each other. The family is usually 'AF_UNIX'.
socketPair :: Family -> SocketType -> ProtocolNumber -> IO (Socket, Socket)
socketPair family stype protocol = mask_ $
  allocaArray 2 $ \fds -> do
    throwIfNegative_ "Weft.Socket.socketPair" $
      cSocketPair (packFamily family) (typeNumber stype) protocol fds
    (a, b) <- (,) <$> peekElemOff fds 0 <*> peekElemOff fds 1
    first <- mkStreamSocket False a `onException` (cClose a >> cClose b)
    second <- mkStreamSocket False b `onException` (close first >> cClose b)
    pure (first, second)

-- | Give a socket its local address. If the address is the file of a Unix socket that no process listens on any more,
-- the file is removed first; a connect that is refused shows that it is stale. Two programs that do this at the same
-- moment may remove each other's file. The error of a bind, or of a 'connect', names the address.
bind :: Socket -> SockAddr -> IO ()
bind s addr = withAddress addr $ \p n -> do
  let once = void (immediately loc s (\fd -> cBind fd p n))
      stale e = do
        -- If it cannot be removed, the caller gets the error of bind(2), not of the removal.
        removed <- immediately loc s (\fd -> (\r -> if r == 0 then 1 else 0 :: CInt) <$> cUnlinkStale fd p n)
        if removed == 1 then once else ioError e
  once `catchIOError` \e -> case addr of
    SockAddrUnix _ | ioe_errno e == Just inUse -> stale e
    _ -> ioError e
  where
    loc = "Weft.Socket.bind: " <> show addr
    Errno inUse = eADDRINUSE

-- | The address of a Unix socket by its path: in 'SockAddrUnix' each character is a byte, of which @network@ takes the low
-- eight bits, and paths have the encoding of the file system. A zero byte at the beginning makes an abstract name
-- (unix(7)).
unixAddress :: FilePath -> IO SockAddr
unixAddress path = do
  encoding <- getFileSystemEncoding
  SockAddrUnix <$> withCStringLen encoding path peekCAStringLen

-- | Accept connections from now on. The number is how many may wait to be accepted (listen(2)).
listen :: Socket -> Int -> IO ()
listen s backlog = void (immediately "Weft.Socket.listen" s (`cListen` fromIntegral backlog))

-- | Whether the socket is listening (@SO_ACCEPTCONN@). 'True' on systems that do not report it.
isListening :: Socket -> IO Bool
isListening s = (/= 0) <$> immediately "Weft.Socket.isListening" s cListens

-- | Wait for a connection. Returns its socket and the peer's address. Several threads may
-- accept on one socket. If a thread is interrupted, the connection goes to the next one. (See 'mkSocket' for a
-- listening socket that another process shares, and has made blocking.)
accept :: Socket -> IO (Socket, SockAddr)
accept s = mask_ $
  withRoom $ \p len -> do
    fd <- operate "Weft.Socket.accept" s Reading $ \listener -> do
      r <- cAccept listener p len
      decodeResult r $ \fd -> (\more -> if more == 0 then Drained fd else Done fd) <$> cAcceptable listener
    let fd' = fromIntegral fd
    addr <- readSender fd' p len `onException` cClose fd'
    conn <- mkStreamSocket (socketDrains s) fd' `onException` cClose fd'
    pure (conn, addr)

-- | Connect, and wait until the connection is established or has failed.
connect :: Socket -> SockAddr -> IO ()
connect s addr = withAddress addr $ \p n -> do
  begun <- newIORef False
  operate ("Weft.Socket.connect: " <> show addr) s Writing $ \fd -> do
    before <- readIORef begun
    writeIORef begun True
    r <- if before then cConnected fd else cConnect fd p n
    pure $ case r of
      0 -> Done ()
      _
        | Errno (negate r) == eINPROGRESS -> NotYet
        | otherwise -> Failed (negate r)

-- | End one direction or both; the peer sees the end of the stream.
shutdown :: Socket -> ShutdownCmd -> IO ()
shutdown s how = void (immediately "Weft.Socket.shutdown" s (`cShutdown` number))
  where
    number = case how of
      ShutdownReceive -> 0
      ShutdownSend -> 1
      ShutdownBoth -> 2

-- | Close so that the peer receives all that was sent: shut down the sending direction, read until the peer does the
-- same, then close. Reading ends after the given number of milliseconds, or after 16 MiB. (The kernel's buffers of one
-- connection hold less than 16 MiB; so if the peer stops sending when it sees the end of the stream, all of its data
-- is read.) Throws no 'IOError'. If the thread is interrupted, the socket is closed at once.
gracefulClose :: Socket -> Int -> IO ()
gracefulClose s ms = closeGracefully (milliseconds ms) 16777216 s

-- | 'gracefulClose' with a limit on the bytes too: reading ends after the time, or after that number of bytes,
-- whichever comes first.
closeGracefully :: Duration -> Int -> Socket -> IO ()
closeGracefully limit bytes s =
  closingGracefully (\_ -> shutdown s ShutdownSend) (\deadline -> recv (withDeadline deadline s)) (close s) limit bytes

-- | 'closeGracefully' of anything, by how its sending direction is ended, how it receives, and how it is closed.
closingGracefully :: (Instant -> IO ()) -> (Instant -> Int -> IO B.ByteString) -> IO () -> Duration -> Int -> IO ()
closingGracefully end receive closing limit bytes = (drain `catch` ignoreIO) `finally` closing
  where
    drain = do
      deadline <- deadlineIn limit
      end deadline
      go deadline bytes
    go deadline left = when (left > 0) $ do
      chunk <- receive deadline (min left 65536)
      if B.null chunk then pure () else go deadline (left - B.length chunk)
    ignoreIO :: IOError -> IO ()
    ignoreIO _ = pure ()
{-# INLINE closingGracefully #-}

-- Names --------------------------------------------------------------------------------

-- | The local address.
getSocketName :: Socket -> IO SockAddr
getSocketName = name "Weft.Socket.getSocketName" cGetSockName

-- | The peer's address.
getPeerName :: Socket -> IO SockAddr
getPeerName = name "Weft.Socket.getPeerName" cGetPeerName

name :: String -> (CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt) -> Socket -> IO SockAddr
name loc call s = withRoom $ \p len -> do
  _ <- immediately loc s (\fd -> call fd p len)
  readAddress p len

-- | The local port of an Internet socket. Throws @EINVAL@ for other sockets.
socketPort :: Socket -> IO PortNumber
socketPort s = socketPortSafe s >>= maybe (ioError failed) pure
  where
    failed = socketError "Weft.Socket.socketPort: not an Internet socket" eINVAL

-- | The local port; 'Nothing' if it is not an Internet socket.
socketPortSafe :: Socket -> IO (Maybe PortNumber)
socketPortSafe s = do
  addr <- getSocketName s
  pure $ case addr of
    SockAddrInet p _ -> Just p
    SockAddrInet6 p _ _ _ -> Just p
    _ -> Nothing

-- Descriptors ----------------------------------------------------------------------------

-- | Use the descriptor, which is -1 if the socket is closed. The socket is not
-- finalized during the action, but another thread may close it. The action may wait for the
-- descriptor by other means ("Weft.Thread") while other threads use the socket.
withFdSocket :: Socket -> (CInt -> IO a) -> IO a
withFdSocket s act = withDescriptor s $ \ep -> do
  cExpectLingering
  closed <- descriptorClosed ep
  let Fd fd = descriptorFd ep
  act (if closed then -1 else fd)

-- | The descriptor, which is valid for as long as the socket is open and in use; -1
-- when it is closed.
unsafeFdSocket :: Socket -> IO CInt
unsafeFdSocket s = withFdSocket s pure

-- | An older name of 'unsafeFdSocket'.
fdSocket :: Socket -> IO CInt
fdSocket = unsafeFdSocket

-- | A duplicate of the descriptor, which the caller owns. The socket is closed.
socketToFd :: Socket -> IO CInt
socketToFd s = mask_ $ do
  fd <- immediately "Weft.Socket.socketToFd" s cDup
  fd <$ close s

-- | Turn a socket into a handle, which has no buffer, as that of @network@. Closing the handle closes the connection.
-- Handles wait by GHC's own I/O manager.
socketToHandle :: Socket -> IOMode -> IO Handle
socketToHandle s mode = mask_ $ do
  shown <- pure (show s)
  fd <- socketToFd s
  h <- fdToHandle' fd (Just Device.Stream) True shown mode True `onException` cClose fd
  h <$ (hSetBuffering h NoBuffering `onException` hClose h)
