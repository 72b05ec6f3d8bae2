-- |
-- The operations of connections and listeners that wait, for GHC's threads: try, wait for a
-- token, try again. Internal: see "Weft.Tcp". Errors are those of the kernel's sockets.
--
-- @since 0.1.0
module Weft.Tcp.Socket
  ( -- * Connections
    connect,
    recv,
    recvMany,
    send,
    sendMany,
    shutdownSend,
    close,
    abort,
    setChoices,

    -- * Listeners
    listen,
    accept,
    closeListening,
  )
where

import Control.Concurrent.MVar
import Control.Exception (mask, mask_, onException)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word16)
import Foreign.C.Error
import qualified Weft.Core.Time as Clock
import qualified Weft.Sys as Sys
import Weft.Tcp.Operation
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Waker
import Weft.Tcp.Wire.Address
import qualified Weft.Timer as Timer

-- | Try until it is done. After the deadline it throws @ETIMEDOUT@. @EBUSY@ where threads of
-- another kind have the socket.
perform :: String -> Clock.Instant -> Waker -> IO (Attempt a) -> IO a
perform loc deadline waker attempt = go
  where
    -- What the token told of before is seen by the attempt.
    go = lower waker >> attempt >>= result
    result (Done a) = pure a
    result NotYet = do
      found <- tokenOf waker
      case found of
        Nothing -> failWith loc eBUSY
        Just (token, fresh) -> do
          unless fresh (wait token)
          go
    wait token
      | deadline == Clock.never = takeMVar token
      | otherwise = do
        t <- Sys.now
        r <- Timer.within (Clock.until deadline t) (takeMVar token)
        when (r == Nothing) (failWith loc eTIMEDOUT)

-- | Connect to an address and port, from an address of the stack's own. @ECONNREFUSED@,
-- @ETIMEDOUT@, @EHOSTUNREACH@ as connect(2); @ENETUNREACH@ if the stack has no address of
-- that version; @EADDRNOTAVAIL@ if no port is left.
connect :: Stack -> Clock.Instant -> Address -> Word16 -> IO Socket
connect st deadline to port = mask $ \restore -> do
  sock <- beginConnect st to port
  restore (perform "connect" deadline (socketWriter sock) (tryConnected sock)) `onException` abort sock
  pure sock

-- | Receive what there is, so many bytes at most, waiting until there is some; empty at
-- the end of the stream. @ECONNRESET@ and @ETIMEDOUT@ if that is how it ended, @EBADF@
-- once it is closed here.
recv :: Socket -> Clock.Instant -> Int -> IO ByteString
recv sock deadline n = perform "recv" deadline (socketReader sock) (tryReceive sock n)

-- | 'recv' without a copy: the strings that came, which together are that many bytes at most; none at the end of the
-- stream. They keep the memory of the packets that they came in, up to twice their size.
recvMany :: Socket -> Clock.Instant -> Int -> IO [ByteString]
recvMany sock deadline n = perform "recvMany" deadline (socketReader sock) (tryReceiveMany sock n)

-- | Send a string, waiting while the peer does not take it. The string is not copied.
send :: Socket -> Clock.Instant -> ByteString -> IO ()
send sock deadline bytes = sendMany sock deadline [bytes]

-- | Send strings one after the other.
sendMany :: Socket -> Clock.Instant -> [ByteString] -> IO ()
sendMany sock deadline strings = unless (all B.null strings) $ do
  later <- perform "send" deadline (socketWriter sock) (trySend sock strings)
  sendMany sock deadline later

-- | Wait for a connection. @EBADF@ once the listener is closed.
accept :: Listening -> IO Socket
accept l = mask_ (perform "accept" Clock.never (acceptWaker l) (tryAccept l))
