-- |
-- Receiving and sending many datagrams by one system call, for servers of UDP (DNS, QUIC, metrics).
--
-- > receiver <- newReceiver defaultReceiverSettings sock
-- > forever $ do
-- >   queries <- receiveDatagrams receiver noDeadline
-- >   sendDatagramsTo sock noDeadline [(datagramPeer q, answer (datagramBytes q)) | q <- queries]
--
-- Under load a call moves up to 64 messages (recvmmsg(2), sendmmsg(2)); without load it moves one, and nothing waits
-- for more to come. Datagrams of one size that go to one address one after the other, and the shorter one that ends
-- them, are handed to the kernel as one message, which it cuts (@UDP_SEGMENT@, Linux 4.18). With 'receiverOffload' it
-- also joins those that came from one sender together (@UDP_GRO@, Linux 5.0). Neither changes what is sent and
-- received. On other systems there is a call for each datagram.
--
-- Sockets of other kinds that keep messages (Unix datagrams) may be used too, without offload; not those of sequential
-- packets, whose end looks like empty datagrams without end. Any thread may send; one thread at a time may use a
-- receiver, and a socket may have several. All functions are interruptible while they wait, and their deadlines are
-- those of "Weft.Socket"; they throw the errors of recvmsg(2) and sendmsg(2). Hybrid threads have the same functions in
-- @Weft.Hybrid.Datagram@ of the package @weft-hybrid@.
--
-- 'Datagram' is also a type of socket in "Weft.Socket": import one of the two qualified, or that module
-- @hiding (SocketType (Datagram))@.
--
-- @since 0.1.0
module Weft.Datagram
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

import Control.Exception (mask_)
import Data.Bifunctor (first)
import Data.ByteString (ByteString)
import Network.Socket (SockAddr)
import Weft.Deadline (Instant)
import Weft.Socket.Batch
import Weft.Socket.Datagram (ghcSender)
import Weft.Socket.Types

-- Receiving --------------------------------------------------------------------------

-- | A socket, and memory to receive into.
data Receiver = Receiver !Socket !Buffers

-- | A receiver for a socket, which stays the caller's. It need not be closed.
newReceiver :: ReceiverSettings -> Socket -> IO Receiver
newReceiver settings s = Receiver s <$> newBuffers (immediately "Weft.Datagram.newReceiver" s) settings

-- | Receive what has come, in order: at least one datagram, and as many as there are, up to 'receiverMost' messages.
-- Waits until there is one. If the deadline passes first, it throws an error that satisfies 'Weft.Deadline.isTimeout'.
-- One system call; its bytes are copied once, into memory of their size.
receiveDatagrams :: Receiver -> Instant -> IO [Datagram]
receiveDatagrams (Receiver s buffers) deadline =
  operate "Weft.Datagram.receiveDatagrams" (withDeadline deadline s) Reading (receiveBatch buffers)

-- Sending ----------------------------------------------------------------------------

-- | Send each string as a datagram to the peer of a connected socket, in order; wait while there is no room. If it
-- throws, those before the one that failed, or that had to wait too long, were sent.
sendDatagrams :: Socket -> Instant -> [ByteString] -> IO ()
sendDatagrams s deadline = sendAllOf s deadline . map ((,) Nothing)

-- | 'sendDatagrams' to an address each.
sendDatagramsTo :: Socket -> Instant -> [(SockAddr, ByteString)] -> IO ()
sendDatagramsTo s deadline = sendAllOf s deadline . map (first Just)

-- | Masked: an exception can interrupt it only while it waits, and between batches.
sendAllOf :: Socket -> Instant -> [(Maybe SockAddr, ByteString)] -> IO ()
sendAllOf s deadline = mask_ . sendBatches (ghcSender "Weft.Datagram.sendDatagrams" (withDeadline deadline s))
