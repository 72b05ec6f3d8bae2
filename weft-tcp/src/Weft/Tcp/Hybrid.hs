-- |
-- TCP in the application for hybrid threads (Li and Zdancewic 2007, section 4.8: @sys_tcp@), with an interface like
-- that of "Weft.Hybrid.Socket". A waiting thread is parked, and the stack resumes it on the loop
-- where it waits. A connection needs no file descriptor, no kernel thread and no GHC thread.
--
-- > import Weft.Hybrid (Hybrid, finally, fork, run)
-- > import Weft.Tcp (Stack)
-- > import Weft.Tcp.Hybrid
-- >
-- > server :: Stack -> IO ()
-- > server stack = do
-- >   listener <- listen stack Nothing 7
-- >   run . forever $ do
-- >     sock <- accept listener
-- >     fork (echo sock `finally` close sock)
-- >
-- > echo :: Socket -> Hybrid ()
-- > echo sock = do
-- >   bytes <- recv sock 4096
-- >   if B.null bytes then pure () else sendAll sock bytes >> echo sock
--
-- Each operation tries first, and waits only if it has to. A waiting operation can be interrupted; no data is lost,
-- but an interrupted 'connect' gives up its connection. Errors are 'IOError's with the errno of the kernel's sockets.
-- Using a closed connection fails with @EBADF@, also if it is closed during the call, and with @ENETDOWN@ if its stack
-- was closed or its device failed. At most one thread may receive and one may send on a connection at a time; all other
-- operations, including 'close', may be called from any loop. A connection is not closed when the program drops its
-- last reference to it.
--
-- @since 0.1.0
module Weft.Tcp.Hybrid
  ( -- * Connections
    Socket,
    fromTcp,
    connect,
    shutdownSend,
    close,
    abort,
    setChoices,
    socketFlow,

    -- * Data
    recv,
    send,
    sendAll,

    -- * Deadlines
    Instant,
    deadlineIn,
    noDeadline,
    withDeadline,
    isTimeout,

    -- * Listeners
    Listener,
    listen,
    accept,
    closeListener,
    listenerPort,
  )
where

import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16)
import Foreign.C.Error (eBUSY, eTIMEDOUT)
import Weft.Hybrid (Hybrid, Instant, deadlineIn, isTimeout, mask, mask_, noDeadline, nonBlocking, onException)
import Weft.Hybrid.Flag
import Weft.Tcp.Core (Choices)
import Weft.Tcp.Core.Secret (Flow)
import Weft.Tcp.Operation (Attempt (..), failWith)
import qualified Weft.Tcp.Operation as Tcp
import Weft.Tcp.Stack (Listening (..), Stack)
import qualified Weft.Tcp.Stack as Tcp
import Weft.Tcp.Stack.Waker (Waker, hand)
import Weft.Tcp.Wire.Address

-- | A connection, together with a deadline for its operations.
data Socket = Socket
  { tcpSocket :: !Tcp.Socket,
    -- | The stack raises these when another attempt to receive or to send may succeed.
    readFlag, writeFlag :: !Flag,
    deadlineOf :: !Instant
  }

-- | Hand a connection of "Weft.Tcp" over to hybrid threads. A second call fails with @EBUSY@. GHC's
-- threads must not use the connection any more: an operation that has to wait gets @EBUSY@.
fromTcp :: Tcp.Socket -> IO Socket
fromTcp sock = Socket sock <$> flagFor (Tcp.socketReader sock) <*> flagFor (Tcp.socketWriter sock) <*> pure noDeadline

flagFor :: Waker -> IO Flag
flagFor waker = do
  flag <- newFlag
  ours <- hand waker (raiseFlag flag)
  if ours then pure flag else failWith "fromTcp" eBUSY

-- | Repeat an attempt until it succeeds. After the deadline, try once more, then throw @ETIMEDOUT@. The
-- flag is lowered before each attempt, so an event during or after the attempt raises it again.
perform :: String -> Instant -> Flag -> IO (Attempt a) -> Hybrid a
perform loc deadline flag attempt = go
  where
    go = nonBlocking (lowerFlag flag >> attempt) >>= answer again
    answer _ (Done a) = pure a
    answer later NotYet = later
    again = do
      inTime <- awaitFlagUntil deadline flag
      if inTime then go else nonBlocking attempt >>= answer (nonBlocking (failWith loc eTIMEDOUT))

-- Connections --------------------------------------------------------------------------

-- | Connect to an address and port, from one of the stack's addresses, until the given instant
-- ('noDeadline' for none). Errors are those of 'Weft.Tcp.connect'. An interrupted call leaves no connection behind.
connect :: Stack -> Instant -> Address -> Word16 -> Hybrid Socket
connect stack deadline to port = mask $ \restore -> do
  sock <- nonBlocking (Tcp.beginConnect stack to port >>= fromTcp)
  restore (perform "connect" deadline (writeFlag sock) (Tcp.tryConnected (tcpSocket sock))) `onException` abort sock
  pure sock

-- | Close the sending direction. Idempotent.
shutdownSend :: Socket -> Hybrid ()
shutdownSend = nonBlocking . Tcp.shutdownSend . tcpSocket

-- | Close both directions. The stack still delivers data that was sent before. Threads that wait on
-- the connection get @EBADF@. Idempotent.
close :: Socket -> Hybrid ()
close = nonBlocking . Tcp.close . tcpSocket

-- | Close the connection and drop undelivered data: the peer gets a reset. Idempotent.
abort :: Socket -> Hybrid ()
abort = nonBlocking . Tcp.abort . tcpSocket

-- | Change Nagle's algorithm, delayed acknowledgments and keep-alives.
setChoices :: Socket -> (Choices -> Choices) -> Hybrid ()
setChoices s f = nonBlocking (Tcp.setChoices (tcpSocket s) f)

-- | The addresses and ports of the connection.
socketFlow :: Socket -> Flow
socketFlow = Tcp.socketFlow . tcpSocket

-- Data ---------------------------------------------------------------------------------

-- | Receive available bytes, at most the given number. Waits until there are some. Empty at the end
-- of the stream. Throws @ECONNRESET@ or @ETIMEDOUT@ if the connection ended with that error.
recv :: Socket -> Int -> Hybrid ByteString
recv s n = perform "recv" (deadlineOf s) (readFlag s) (Tcp.tryReceive (tcpSocket s) n)

-- | Send as many bytes as there is room for, and return their number. Waits until there is room. @EPIPE@ after a
-- 'sendAll' that was cut off.
send :: Socket -> ByteString -> Hybrid Int
send s bytes
  | B.null bytes = pure 0
  | otherwise = do
    later <- perform "send" (deadlineOf s) (writeFlag s) (Tcp.trySend (tcpSocket s) [bytes])
    pure (B.length bytes - sum (map B.length later))

-- | Send the whole string, without copying it. If a deadline or 'Weft.Hybrid.killThread' cuts it off after a part was
-- queued, the peer would mistake whatever is sent next for the rest. So every further send on the connection then fails
-- with @EPIPE@ and a message that says why.
sendAll :: Socket -> ByteString -> Hybrid ()
sendAll s bytes = unless (B.null bytes) . mask_ $ do
  -- Masked from the first part on; it is interruptible where it waits.
  left <- part bytes
  unless (B.null left) (rest left `onException` nonBlocking (Tcp.cutOff (tcpSocket s)))
  where
    part left = (`B.drop` left) <$> send s left
    rest left = unless (B.null left) (part left >>= rest)

-- | The same connection with another deadline. An operation that has not succeeded by then throws an error that
-- satisfies 'isTimeout'; no received data is lost.
withDeadline :: Instant -> Socket -> Socket
withDeadline d s = s {deadlineOf = d}

-- Listeners ------------------------------------------------------------------------------

-- | A listening port.
data Listener = Listener !Stack !Listening !Flag

-- | Listen on a port, at one of the stack's addresses or at all of them. Port 0 chooses a free port.
-- Throws @EADDRINUSE@ if the port is in use.
listen :: Stack -> Maybe Address -> Word16 -> IO Listener
listen stack address port = do
  l <- Tcp.listen stack address port
  Listener stack l <$> flagFor (acceptWaker l)

-- | The listening port, including a port that 'listen' has chosen.
listenerPort :: Listener -> Word16
listenerPort (Listener _ l _) = listeningPort l

-- | Wait for a connection. Several threads may wait. Throws @EBADF@ once the listener is closed.
accept :: Listener -> Hybrid Socket
accept (Listener _ l flag) = perform "accept" noDeadline flag $ do
  r <- Tcp.tryAccept l
  case r of
    Done sock -> Done <$> fromTcp sock
    NotYet -> pure NotYet

-- | Stop listening. Waiting threads get @EBADF@, and connections that were not accepted are reset.
-- Idempotent.
closeListener :: Listener -> IO ()
closeListener (Listener stack l _) = Tcp.closeListening stack l
