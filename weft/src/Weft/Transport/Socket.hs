-- |
-- The kernel's stream sockets as a transport.
module Weft.Transport.Socket
  ( socketConnection,
    socketListener,
    socketTransport,
  )
where

import Control.Exception (catch, mask_, onException)
import Control.Monad (unless, when)
import Data.Bits (testBit)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Foreign.C.Error (Errno (..), eINVAL, eNOTCONN)
import Foreign.Marshal.Alloc (alloca)
import Foreign.Storable (peek)
import GHC.IO.Exception (IOException (ioe_errno))
import Network.Socket (Family (..), ShutdownCmd (..), SockAddr (..), SocketOption (..), StructLinger (..))
import qualified Network.Socket as N
import Weft.Deadline (Instant, noDeadline)
import Weft.FFI.Socket (cSendProgress)
import Weft.Socket.Address (addressFamily)
import Weft.Socket.Basic
import Weft.Socket.ByteString (recv, recvLarge, sendAllBuf, sendMany, sendManyMore)
import Weft.Socket.File (sendFileRange)
import Weft.Socket.Options (setSockOpt, setSocketOption)
import Weft.Socket.Peer (awaitPeer, isQuiet)
import Weft.Socket.Types
import Weft.Transport.Types

-- | A connected socket and its peer.
data Connected = Connected !Socket !SockAddr

-- | A connection from a connected stream socket and its peer's address. The connection owns the
-- socket from then on.
socketConnection :: Socket -> SockAddr -> Connection
socketConnection s peer = Connection socketOperations (Connected s peer)

socketOperations :: Operations Connected
socketOperations =
  Operations
    { opReceive = receive,
      opSend = \(Connected s _) deadline (Region p n) -> before deadline s (\s' -> sendAllBuf s' p n),
      opSendMany = \(Connected s _) deadline strings -> before deadline s (`sendMany` strings),
      opSendFile = sendRange,
      opShutdownSend = \(Connected s _) _ -> shutdownSend s,
      opClose = \(Connected s _) -> close s,
      opAbort = \(Connected s _) -> abort s,
      opPeer = \(Connected _ peer) -> peer,
      opLocal = \(Connected s _) -> getSocketName s,
      opSendProgress = \(Connected s _) -> sendProgress s,
      opAwaitPeer = Just (\(Connected s _) -> awaitPeer s),
      opIsQuiet = \(Connected s _) -> isQuiet s,
      opSecurity = const Nothing,
      opKeepsStrings = const False
    }

-- | Run an operation on the socket with the deadline. Without a deadline nothing is allocated.
before :: Instant -> Socket -> (Socket -> IO a) -> IO a
before deadline s act
  | deadline == noDeadline = act s
  | otherwise = act (withDeadline deadline s)
{-# INLINE before #-}

receive :: Connected -> Instant -> Int -> IO ByteString
receive (Connected s _) deadline n
  | n <= 0 = ioError (socketError "Weft.Transport.connReceive" eINVAL)
  | n > largestCopied = before deadline s (`recvLarge` n)
  | otherwise = before deadline s (`recv` n)

-- | Up to 64 KiB, received bytes are copied into a string of their size.
largestCopied :: Int
largestCopied = 65536

-- | The kernel holds the strings back until the file's first bytes (@MSG_MORE@), so that a head and
-- a small file go into one packet.
sendRange :: Connected -> Instant -> [ByteString] -> FileRange -> IO ()
sendRange (Connected s _) deadline strings (FileRange fd offset size) = before deadline s $ \s' -> do
  unless (all B.null strings) $
    if size > 0 then sendManyMore s' strings else sendMany s' strings
  sendFileRange s' fd offset size

sendProgress :: Socket -> IO (Maybe SendProgress)
sendProgress s = alloca $ \p -> do
  found <- attempted "Weft.Transport.connSendProgress" s (`cSendProgress` p)
  case found of
    Right flags -> (\n -> Just (SendProgress (fromIntegral n) (testBit flags 0) (testBit flags 1))) <$> peek p
    Left _ -> pure Nothing

-- | If both sides have shut down sending already, shutdown(2) fails with @ENOTCONN@, which is ignored.
shutdownSend :: Socket -> IO ()
shutdownSend s =
  shutdown s ShutdownSend `catch` \e ->
    unless (fmap Errno (ioe_errno e) == Just eNOTCONN) (ioError e)

-- | With a linger time of zero, close(2) makes TCP send RST and drop its buffers: socket(7), RFC 9293, 3.10.5.
abort :: Socket -> IO ()
abort s = do
  setSockOpt s Linger (StructLinger 1 0) `catch` ignore
  close s
  where
    ignore :: IOError -> IO ()
    ignore _ = pure ()

-- Listeners --------------------------------------------------------------------------

-- | A listener from a listening socket. The listener owns the socket from then on. Its TCP
-- connections have @TCP_NODELAY@ set.
socketListener :: Socket -> IO Listener
socketListener l = do
  address <- getSocketName l
  pure
    Listener
      { listenerAccept = mask_ (accept l >>= uncurry prepared),
        listenerAddress = address,
        listenerClose = close l
      }

prepared :: Socket -> SockAddr -> IO Connection
prepared s peer = do
  (`onException` close s) $ case peer of
    SockAddrUnix _ -> pure ()
    _ -> setSocketOption s NoDelay 1
  pure (socketConnection s peer)

-- | The kernel's network. A listener is one socket. (A server of 'Weft.Socket.withServer' has one for each
-- capability.)
socketTransport :: Transport
socketTransport =
  Transport
    { transportListen = \address -> mask_ $ do
        s <- fresh address
        (`onException` close s) $ do
          when (internet address) (setSocketOption s ReuseAddr 1)
          bind s address
          listen s backlog
          socketListener s,
      transportConnect = \deadline address -> mask_ $ do
        s <- fresh address
        before deadline s (`connect` address) `onException` close s
        prepared s address
    }
  where
    backlog = 4096
    fresh address = socket (addressFamily address) N.Stream 0
    internet address = addressFamily address /= AF_UNIX
