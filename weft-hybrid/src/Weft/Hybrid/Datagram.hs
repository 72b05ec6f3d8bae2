-- |
-- Receiving and sending many datagrams by one system call, for hybrid threads: the functions of "Weft.Datagram", with
-- its laws. This answers each datagram:
--
-- > import Control.Monad (forever)
-- > import Data.ByteString (ByteString)
-- > import Weft.Hybrid
-- > import Weft.Hybrid.Datagram
-- >
-- > answering :: (ByteString -> ByteString) -> Socket -> Hybrid ()
-- > answering answer sock = do
-- >   receiver <- newReceiver defaultReceiverSettings sock
-- >   forever $ do
-- >     queries <- receiveDatagrams receiver noDeadline
-- >     sendDatagramsTo sock noDeadline [(datagramPeer q, answer (datagramBytes q)) | q <- queries]
--
-- The socket is made by "Weft.Socket", as all sockets of hybrid threads are:
--
-- > import qualified Weft.Socket as Weft
-- >
-- > main :: IO ()
-- > main = do
-- >   bound <- Weft.socket Weft.AF_INET Weft.Datagram Weft.defaultProtocol
-- >   Weft.bind bound (Weft.SockAddrInet 7000 (Weft.tupleToHostAddress (127, 0, 0, 1)))
-- >   run (fromSocket bound >>= answering id)
--
-- What moves by one call, and what the kernel cuts and joins, is said in "Weft.Datagram". Threads of all loops may send
-- on a socket; one thread at a time may use a receiver, and a socket may have several. A thread that waits is parked on
-- the loop that polls its socket, and can be interrupted; a receive that was interrupted has received nothing. The
-- deadline that a function is given stands for the socket's own ('Weft.Hybrid.Socket.withDeadline'); data that came in
-- time is not lost. Errors are 'IOError's with the errno of recvmsg(2) and sendmsg(2) (@ECONNREFUSED@ on a connected
-- socket whose peer is gone), and @EBADF@ for a socket that is closed, or is closed while they wait.
--
-- @since 0.1.0
module Weft.Hybrid.Datagram
  ( -- * Receiving
    Datagram (..),
    Receiver,
    newReceiver,
    ReceiverSettings (..),
    defaultReceiverSettings,
    receiveDatagrams,

    -- * Sending
    sendDatagrams,
    sendDatagramsTo,
  )
where

import Control.Monad (unless, when)
import Data.Bifunctor (first)
import Data.ByteString (ByteString)
import Foreign.C.Error (Errno (..), eTIMEDOUT)
import Weft.Core.Time (Instant, never, until)
import Weft.Datagram (Datagram (..), ReceiverSettings (..), defaultReceiverSettings)
import Weft.FFI.Errno (throwErrnoCode)
import Weft.Hybrid.Descriptor
import Weft.Hybrid.Monad
import Weft.Hybrid.Socket.Types
import Weft.Hybrid.Timer (sleep)
import Weft.Socket (SockAddr)
import Weft.Socket.Batch (Buffers, newBuffers, receiveBatch, sendBatches)
import Weft.Socket.Sender
import Weft.Sys (now)
import Prelude hiding (until)

-- Receiving --------------------------------------------------------------------------

-- | A socket, and memory to receive into.
data Receiver = Receiver !Socket !Buffers

-- | A receiver for a socket, which stays the caller's. It need not be closed.
newReceiver :: ReceiverSettings -> Socket -> Hybrid Receiver
newReceiver settings s = Receiver s <$> newBuffers (nonBlocking . immediately location (socketDescriptor s)) settings
  where
    location = "Weft.Hybrid.Datagram.newReceiver"

-- | Receive what has come, in order: at least one datagram, and as many as there are, up to 'receiverMost' messages.
-- Waits until there is one. If the deadline passes first, it raises an error that satisfies
-- 'Weft.Hybrid.Deadline.isTimeout'. One system call; its bytes are copied once, into memory of their size.
receiveDatagrams :: Receiver -> Instant -> Hybrid [Datagram]
receiveDatagrams (Receiver s buffers) deadline =
  operate (Kind "Weft.Hybrid.Datagram.receiveDatagrams" Reading) (withDeadline deadline s) (receiveBatch buffers)

-- Sending ----------------------------------------------------------------------------

-- | Send each string as a datagram to the peer of a connected socket, in order; wait while there is no room. If it
-- raises an exception, those before the one that failed, or that had to wait too long, were sent.
sendDatagrams :: Socket -> Instant -> [ByteString] -> Hybrid ()
sendDatagrams s deadline = sendAllOf s deadline . map ((,) Nothing)

-- | 'sendDatagrams' to an address each.
sendDatagramsTo :: Socket -> Instant -> [(SockAddr, ByteString)] -> Hybrid ()
sendDatagramsTo s deadline = sendAllOf s deadline . map (first Just)

sendAllOf :: Socket -> Instant -> [(Maybe SockAddr, ByteString)] -> Hybrid ()
sendAllOf s deadline = sendBatches (hybridSender (withDeadline deadline s) deadline)

-- | How hybrid threads send. Exceptions of other threads need no place of their own between parts: a thread that does not
-- wait for long is rescheduled when its turn ends, and they are raised there.
hybridSender :: Socket -> Instant -> Sender Hybrid
hybridSender s deadline =
  Sender
    { senderPerform = operate (Kind location Writing) s,
      senderImmediately = nonBlocking . immediately location (socketDescriptor s),
      senderBetweenParts = unless (deadline == never) . nonBlocking $ do
        t <- now
        when (t >= deadline) (throwErrnoCode location (let Errno e = eTIMEDOUT in e)),
      senderPause = \d -> nonBlocking now >>= \t -> sleep (min d (deadline `until` t))
    }
  where
    location = "Weft.Hybrid.Datagram.sendDatagrams"
{-# INLINE hybridSender #-}
