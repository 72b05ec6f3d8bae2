{-# LANGUAGE CApiFFI #-}

-- |
-- Descriptors to test back ends with. They are raw numbers, non-blocking, and
-- whatever a test has not closed is closed behind it.
module Weft.Test.Descriptors
  ( Fds,
    withFds,
    own,
    shut,

    -- * Pairs: the end to read, the end to write
    pipe,
    streamPair,
    tcpPair,
    abruptTcpPair,
    handOver,

    -- * Others
    regularFile,
    openPath,
    listener,
    udpPair,
    terminal,
    openCount,
    openCountAfter,

    -- * Doing things to them
    say,
    sayUrgent,
    sayBoth,
    drain,
    fill,
    finishWriting,
    readOne,
    atEnd,
  )
where

import Control.Concurrent (forkOn, getNumCapabilities, newEmptyMVar, putMVar, takeMVar)
import Control.Exception (bracket, finally)
import Control.Monad (forM_, unless, void, when)
import Data.IORef
import qualified Data.Set as Set
import Foreign.C.String (CString, withCString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Alloc (allocaBytes)
import qualified Network.Socket as N
import System.Directory (getTemporaryDirectory, listDirectory, removeFile)
import System.IO (openTempFile)
import System.Posix.IO (FdOption (NonBlockingRead), closeFd, createPipe, dup, dupTo, handleToFd, setFdOption)
import System.Posix.Terminal (openPseudoTerminal)
import System.Posix.Types (CSsize (..), Fd (..))

-- | The open descriptors of a test.
newtype Fds = Fds (IORef (Set.Set Fd))

-- | Run a test and close the descriptors that it leaves open.
withFds :: (Fds -> IO a) -> IO a
withFds act = do
  ref <- newIORef Set.empty
  act (Fds ref) `finally` (readIORef ref >>= mapM_ closeFd . Set.toList)

-- | Add a descriptor, made non-blocking.
own :: Fds -> Fd -> IO Fd
own (Fds ref) fd = do
  setFdOption fd NonBlockingRead True
  modifyIORef' ref (Set.insert fd)
  pure fd

-- | Close one.
shut :: Fds -> Fd -> IO ()
shut (Fds ref) fd = modifyIORef' ref (Set.delete fd) >> closeFd fd

-- | A pipe.
pipe :: Fds -> IO (Fd, Fd)
pipe fds = do
  (r, w) <- createPipe
  (,) <$> own fds r <*> own fds w

-- | Close a descriptor and give its number to the reading end of a new pipe, in one step (dup2(2)); returns the writing
-- end. Without it the number may go to somebody else, and the pipe may get another: threads of other tests, dispatchers
-- and finalizers open and close descriptors too.
handOver :: Fds -> Fd -> IO Fd
handOver fds number = do
  (r, w) <- pipe fds
  _ <- dupTo r number
  w <$ shut fds r

-- | Two connected sockets of the Unix domain.
streamPair :: Fds -> IO (Fd, Fd)
streamPair fds = do
  (a, b) <- N.socketPair N.AF_UNIX N.Stream N.defaultProtocol
  (,) <$> ownSocket fds a <*> ownSocket fds b

-- | Two ends of a TCP connection over the loopback interface.
tcpPair :: Fds -> IO (Fd, Fd)
tcpPair = tcpPairWith (const (pure ()))

-- | A TCP pair of which closing the second end resets the connection.
abruptTcpPair :: Fds -> IO (Fd, Fd)
abruptTcpPair = tcpPairWith (\s -> N.setSockOpt s N.Linger (N.StructLinger 1 0))

tcpPairWith :: (N.Socket -> IO ()) -> Fds -> IO (Fd, Fd)
tcpPairWith prepare fds =
  bracket (N.socket N.AF_INET N.Stream N.defaultProtocol) N.close $ \l -> do
    bounded l
    N.bind l (N.SockAddrInet 0 loopback)
    N.listen l 1
    c <- N.socket N.AF_INET N.Stream N.defaultProtocol
    bounded c
    N.connect c =<< N.getSocketName l
    (s, _) <- N.accept l
    prepare s
    N.setSocketOption s N.NoDelay 1
    (,) <$> ownSocket fds c <*> ownSocket fds s
  where
    -- Otherwise the kernel lets buffers grow to what the machine is configured for, tens of megabytes on some. What a
    -- listener accepts has its sizes.
    bounded s = N.setSocketOption s N.RecvBuffer 200000 >> N.setSocketOption s N.SendBuffer 200000

loopback :: N.HostAddress
loopback = N.tupleToHostAddress (127, 0, 0, 1)

-- | Take the descriptor out of a 'N.Socket', which would close it when collected.
ownSocket :: Fds -> N.Socket -> IO Fd
ownSocket fds s = do
  fd <- N.withFdSocket s (dup . Fd)
  N.close s
  own fds fd

-- | An empty regular file that is deleted already.
regularFile :: Fds -> IO Fd
regularFile fds = do
  dir <- getTemporaryDirectory
  (path, h) <- openTempFile dir "weft-laws"
  fd <- handleToFd h
  removeFile path
  own fds fd

-- | Open a path for reading.
openPath :: Fds -> FilePath -> IO Fd
openPath fds path = do
  n <- withCString path (\p -> c_open p 0)
  when (n < 0) (ioError (userError ("cannot open " <> path)))
  own fds (Fd n)

-- | A listening socket, and how to connect to it.
listener :: Fds -> IO (Fd, IO Fd)
listener fds = do
  l <- N.socket N.AF_INET N.Stream N.defaultProtocol
  N.bind l (N.SockAddrInet 0 loopback)
  N.listen l 5
  addr <- N.getSocketName l
  fd <- ownSocket fds l
  pure
    ( fd,
      do
        c <- N.socket N.AF_INET N.Stream N.defaultProtocol
        N.connect c addr
        ownSocket fds c
    )

-- | Two UDP sockets, each connected to the other.
udpPair :: Fds -> IO (Fd, Fd)
udpPair fds = do
  a <- N.socket N.AF_INET N.Datagram N.defaultProtocol
  b <- N.socket N.AF_INET N.Datagram N.defaultProtocol
  forM_ [a, b] (`N.bind` N.SockAddrInet 0 loopback)
  N.connect a =<< N.getSocketName b
  N.connect b =<< N.getSocketName a
  (,) <$> ownSocket fds a <*> ownSocket fds b

-- | A pseudo-terminal: what is written to the second can be read from the first.
terminal :: Fds -> IO (Fd, Fd)
terminal fds = do
  (master, slave) <- openPseudoTerminal
  (,) <$> own fds master <*> own fds slave

-- | How many descriptors the process has open.
openCount :: IO Int
openCount = length <$> listDirectory "/proc/self/fd"

-- | The same, after a thread on each capability has run the action: a short sleep, say, that starts what the capability
-- has for as long as the process runs.
openCountAfter :: IO () -> IO Int
openCountAfter act = do
  n <- getNumCapabilities
  forM_ [0 .. n - 1] $ \i -> do
    done <- newEmptyMVar
    _ <- forkOn i (act `finally` putMVar done ())
    takeMVar done
  openCount

-- | Write this many bytes, or fewer if there is no room for them.
say :: Fd -> Int -> IO ()
say (Fd fd) n = allocaBytes n $ \p -> void (c_write fd p (fromIntegral n))

-- | Send one byte of urgent data.
sayUrgent :: Fd -> IO ()
sayUrgent (Fd fd) = withCString "!" $ \p -> void (c_send fd p 1 1)

-- | Write an ordinary byte and one byte of urgent data, in one segment: the kernel may hold back a second one until the
-- first is acknowledged.
sayBoth :: Fd -> IO ()
sayBoth (Fd fd) = withCString "a!" $ \p -> void (c_send fd p 2 1)

-- | Read until nothing is left, or the end. How many bytes there were.
drain :: Fd -> IO Int
drain (Fd fd) = allocaBytes size (go 0)
  where
    size = 65536
    go :: Int -> CString -> IO Int
    go n p = do
      r <- c_read fd p (fromIntegral size)
      if r > 0 then go (n + fromIntegral r) p else pure n

-- | Read one byte, if there is one.
readOne :: Fd -> IO ()
readOne (Fd fd) = allocaBytes 1 $ \p -> void (c_read fd p 1)

-- | Has the peer closed, with nothing left to read?
atEnd :: Fd -> IO Bool
atEnd (Fd fd) = allocaBytes 1 $ \p -> (== 0) <$> c_read fd p 1

-- | Write until there is no room.
fill :: Fd -> IO ()
fill (Fd fd) = allocaBytes size go
  where
    size = 65536
    go :: CString -> IO ()
    go p = do
      r <- c_write fd p (fromIntegral size)
      unless (r < 0) (go p)

-- | Shut down the sending half of a socket.
finishWriting :: Fd -> IO ()
finishWriting (Fd fd) = void (c_shutdown fd 1)

foreign import ccall unsafe "write" c_write :: CInt -> CString -> CSize -> IO CSsize

foreign import ccall unsafe "read" c_read :: CInt -> CString -> CSize -> IO CSsize

foreign import ccall unsafe "send" c_send :: CInt -> CString -> CSize -> CInt -> IO CSsize

foreign import ccall unsafe "shutdown" c_shutdown :: CInt -> CInt -> IO CInt

foreign import capi "fcntl.h open" c_open :: CString -> CInt -> IO CInt
