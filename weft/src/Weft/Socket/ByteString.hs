-- |
-- Sending and receiving: the names, types and exceptions of
-- "Network.Socket.ByteString". Every operation tries the system call first. It waits, without holding a
-- buffer, only if that says @EAGAIN@, and until the socket's deadline ('Weft.Socket.withDeadline').
--
-- Any thread may use a socket; one thread in each direction is usual. Two threads
-- that send on one stream at the same time may interleave.
--
-- @since 0.1.0
module Weft.Socket.ByteString
  ( -- * Sending
    send,
    sendAll,
    sendAllBuf,
    sendNow,
    sendTo,
    sendAllTo,
    sendMany,
    sendManyMore,
    sendManyNow,
    sendManyTo,
    sendMsg,

    -- * Receiving
    recv,
    recvLarge,
    recvFrom,
    recvMsg,

    -- * Memory
    sendBuf,
    recvBuf,
    sendBufTo,
    recvBufFrom,
  )
where

import Weft.Socket.Message (recvMsg, sendMsg)
import Weft.Socket.Receive
import Weft.Socket.Send
