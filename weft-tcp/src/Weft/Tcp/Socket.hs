-- |
-- The blocking operations of connections and listeners for GHC's threads: try, wait for a
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
import Control.Exception (allowInterrupt, mask, mask_, onException)
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

-- | Repeat an attempt until it succeeds. Throws @ETIMEDOUT@ after the deadline, and @EBUSY@ if the
-- socket was handed over to hybrid threads.
perform :: String -> Clock.Instant -> Waker -> IO (Attempt a) -> IO a
perform loc deadline waker attempt = go
  where
    -- The token can be emptied first: the attempt takes into account every event that filled it before.
    go = lower waker >> attempt >>= result
    result (Done a) = pure a
    result NotYet = do
      found <- tokenOf waker
      case found of
        Nothing -> failWith loc eBUSY
        Just (token, fresh) -> do
          unless fresh $ do
            wait token
            -- An exception that has come while the thread waited for its turn is thrown before anything is taken, which
            -- it would take away; another thread that waits tries then.
            allowInterrupt `onException` tryPutMVar token ()
          go
    wait token
      | deadline == Clock.never = takeMVar token
      | otherwise = do
        t <- Sys.now
        r <- Timer.within (Clock.until deadline t) (takeMVar token)
        when (r == Nothing) (failWith loc eTIMEDOUT)

-- | Connect to an address and port, from one of the stack's addresses. @ECONNREFUSED@,
-- @ETIMEDOUT@ or @EHOSTUNREACH@ as connect(2); @ENETUNREACH@ if the stack has no address of
-- that IP version, or if no other host can have the address (the stack's own, loopback, multicast); @EADDRNOTAVAIL@ if
-- no port is free.
connect :: Stack -> Clock.Instant -> Address -> Word16 -> IO Socket
connect st deadline to port = mask $ \restore -> do
  sock <- beginConnect st to port
  restore (perform "connect" deadline (socketWriter sock) (tryConnected sock)) `onException` abort sock
  pure sock

-- | Receive available bytes, at most the given number. Waits until there are some. Empty at the
-- end of the stream. @ECONNRESET@ or @ETIMEDOUT@ if the connection ended with that error, @EBADF@
-- if it was closed locally, @ENETDOWN@ if its stack or the device was.
recv :: Socket -> Clock.Instant -> Int -> IO ByteString
recv sock deadline n = mask_ $ perform "recv" deadline (socketReader sock) (tryReceive sock n)

-- | Like 'recv', but without a copy: the strings as they arrived, with at most the given number of bytes in all; none
-- at the end of the stream. Each string keeps memory of its packet alive, up to twice its size.
recvMany :: Socket -> Clock.Instant -> Int -> IO [ByteString]
recvMany sock deadline n = mask_ $ perform "recvMany" deadline (socketReader sock) (tryReceiveMany sock n)

-- | Send a string, without copying it. Waits while there is no room in the send buffer. If a deadline or an
-- asynchronous exception cuts it off after a part was queued, the peer would mistake whatever is sent next for the
-- rest. So every further send on the connection then fails with @EPIPE@ and a message that says why.
send :: Socket -> Clock.Instant -> ByteString -> IO ()
send sock deadline bytes = sendMany sock deadline [bytes]

-- | Send strings in order, without copying them. If it is cut off after a part, further sends fail, as with 'send'.
sendMany :: Socket -> Clock.Instant -> [ByteString] -> IO ()
sendMany sock deadline strings = unless (all B.null strings) . mask_ $ do
  -- Masked from the first part on; it is interruptible where it waits.
  left <- part strings
  unless (all B.null left) (rest left `onException` cutOff sock)
  where
    part = perform "send" deadline (socketWriter sock) . trySend sock
    rest left = unless (all B.null left) (part left >>= rest)

-- | Wait for a connection. @EBADF@ once the listener is closed.
accept :: Listening -> IO Socket
accept l = mask_ (perform "accept" Clock.never (acceptWaker l) (tryAccept l))
