-- |
-- TCP in the application for hybrid threads (2007, section 4.8: @sys_tcp@), in the shapes of
-- "Weft.Hybrid.Socket". A thread that waits is parked, and the stack's loop resumes it on the
-- loop where it waits: no descriptor, and no thread of the kernel's or of GHC's for a connection.
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
-- Each operation tries first; one that waits can be interrupted, and nothing is lost by that
-- but the connection that 'connect' was about to open. Errors are 'IOError's with the errno of
-- the kernel's sockets; what was closed, before or meanwhile, is @EBADF@. Of one
-- connection at most one thread receives and one sends at a time; all others, closing among
-- them, may be done from any loop. A connection that is dropped and not closed stays open.
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
import Weft.Hybrid (Hybrid, Instant, deadlineIn, isTimeout, mask, noDeadline, nonBlocking, onException)
import Weft.Hybrid.Flag
import Weft.Tcp.Core (Choices)
import Weft.Tcp.Core.Secret (Flow)
import Weft.Tcp.Operation (Attempt (..), failWith)
import qualified Weft.Tcp.Operation as Tcp
import Weft.Tcp.Stack (Listening (..), Stack)
import qualified Weft.Tcp.Stack as Tcp
import Weft.Tcp.Stack.Waker (Waker, hand)
import Weft.Tcp.Wire.Address

-- | A connection; its value carries a deadline.
data Socket = Socket
  { tcpSocket :: !Tcp.Socket,
    -- | Raised by the stack when receiving, or sending, may be worth trying.
    readFlag, writeFlag :: !Flag,
    deadlineOf :: !Instant
  }

-- | Hand a connection of "Weft.Tcp" over to hybrid threads; only once (@EBUSY@). GHC's threads must
-- not use it any more: one that has to wait gets @EBUSY@.
fromTcp :: Tcp.Socket -> IO Socket
fromTcp sock = Socket sock <$> flagFor (Tcp.socketReader sock) <*> flagFor (Tcp.socketWriter sock) <*> pure noDeadline

flagFor :: Waker -> IO Flag
flagFor waker = do
  flag <- newFlag
  ours <- hand waker (raiseFlag flag)
  if ours then pure flag else failWith "fromTcp" eBUSY

-- | Try until it is done; once more after the deadline, then throw @ETIMEDOUT@. The flag is lowered
-- before the attempt: what happens after the attempt has looked raises it.
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

-- | Connect to an address and port, from an address of the stack's own, until an instant at
-- most ('noDeadline'). Errors as 'Weft.Tcp.connect'. A thread that is interrupted leaves nothing behind.
connect :: Stack -> Instant -> Address -> Word16 -> Hybrid Socket
connect stack deadline to port = mask $ \restore -> do
  sock <- nonBlocking (Tcp.beginConnect stack to port >>= fromTcp)
  restore (perform "connect" deadline (writeFlag sock) (Tcp.tryConnected (tcpSocket sock))) `onException` abort sock
  pure sock

-- | End the sending direction. No effect the second time.
shutdownSend :: Socket -> Hybrid ()
shutdownSend = nonBlocking . Tcp.shutdownSend . tcpSocket

-- | Close both directions; what was sent is still delivered, by the stack. Threads that wait on
-- the connection get @EBADF@. Idempotent.
close :: Socket -> Hybrid ()
close = nonBlocking . Tcp.close . tcpSocket

-- | Close, and drop what was not delivered: the peer gets a reset. Idempotent.
abort :: Socket -> Hybrid ()
abort = nonBlocking . Tcp.abort . tcpSocket

-- | Nagle's algorithm, delayed acknowledgments, keep-alives.
setChoices :: Socket -> (Choices -> Choices) -> Hybrid ()
setChoices s f = nonBlocking (Tcp.setChoices (tcpSocket s) f)

-- | The addresses and ports of the connection.
socketFlow :: Socket -> Flow
socketFlow = Tcp.socketFlow . tcpSocket

-- Data ---------------------------------------------------------------------------------

-- | Receive the bytes that are there, at most the number given, waiting until there are some.
-- Empty at the end of the stream. @ECONNRESET@ and @ETIMEDOUT@ if that is how it ended.
recv :: Socket -> Int -> Hybrid ByteString
recv s n = perform "recv" (deadlineOf s) (readFlag s) (Tcp.tryReceive (tcpSocket s) n)

-- | Send as much as there is room for, waiting until there is some: how many bytes.
send :: Socket -> ByteString -> Hybrid Int
send s bytes
  | B.null bytes = pure 0
  | otherwise = do
    later <- perform "send" (deadlineOf s) (writeFlag s) (Tcp.trySend (tcpSocket s) [bytes])
    pure (B.length bytes - sum (map B.length later))

-- | Send all. The string is not copied. When it throws, the peer has got a part.
sendAll :: Socket -> ByteString -> Hybrid ()
sendAll s bytes = unless (B.null bytes) $ do
  sent <- send s bytes
  sendAll s (B.drop sent bytes)

-- | A socket with a deadline: it shares the connection, and its operations raise an error that
-- satisfies 'isTimeout' when they are not done in time. What came in time is not lost.
withDeadline :: Instant -> Socket -> Socket
withDeadline d s = s {deadlineOf = d}

-- Listeners ------------------------------------------------------------------------------

-- | A port that is listened on.
data Listener = Listener !Stack !Listening !Flag

-- | Listen on a port, at one of the stack's addresses or at all of them. Port 0 stands for
-- a free one. @EADDRINUSE@ if somebody does already.
listen :: Stack -> Maybe Address -> Word16 -> IO Listener
listen stack address port = do
  l <- Tcp.listen stack address port
  Listener stack l <$> flagFor (acceptWaker l)

-- | The port, also where 'listen' chose it.
listenerPort :: Listener -> Word16
listenerPort (Listener _ l _) = listeningPort l

-- | Wait for a connection. Several threads may. @EBADF@ once the listener is closed.
accept :: Listener -> Hybrid Socket
accept (Listener _ l flag) = perform "accept" noDeadline flag $ do
  r <- Tcp.tryAccept l
  case r of
    Done sock -> Done <$> fromTcp sock
    NotYet -> pure NotYet

-- | Take no more: threads that wait get @EBADF@, connections that were not accepted are reset.
-- Idempotent.
closeListener :: Listener -> IO ()
closeListener (Listener stack l _) = Tcp.closeListening stack l
