{-# OPTIONS_GHC -Wno-dodgy-imports #-}

-- |
-- Sockets on Weft: the names, types and exceptions of "Network.Socket", so that a
-- program that changes its imports compiles, and what servers need beyond it.
-- Addresses, options and the like are @network@'s own types, re-exported.
--
-- > import Weft.Socket
-- > import Weft.Socket.ByteString (recv, sendAll)
-- >
-- > main :: IO ()
-- > main = serve defaultServerSettings {serverPort = "7000"} $ \sock _peer -> echo sock
-- >   where
-- >     echo sock = do
-- >       bytes <- recv sock 4096
-- >       unless (Data.ByteString.null bytes) (sendAll sock bytes >> echo sock)
--
-- An operation tries the system call first, unless the kernel has already said that it would have to wait. When it
-- has to wait, it blocks the calling thread and no other. A thread that waits holds no buffer. Errors are 'IOError's
-- with the errno. If the socket is closed, before the operation or during it, the error is @EBADF@. An asynchronous
-- exception interrupts a wait and leaves nothing behind.
--
-- Everything may be used from any thread.
--
-- Differences from @network@ 3.1:
--
-- * 'Socket' is another type: a library that wants @network@'s takes 'withNetworkSocket'. Addresses are 'SockAddr'
--   only; there are no functions for other instances of its class @SocketAddress@ ("Network.Socket.Address").
-- * Of @network@ 3.2, @recvBufNoWait@, @setSockOptValue@, @sendWithFds@ and @sendManyWithFds@ are left out. The suite
--   @spec@ compares the exports.
-- * A thread that uses a socket while another closes it gets @EBADF@ and never meets another socket of the same number.
-- * If @network@ cannot represent the family of a sender's address (netlink, for example), receiving returns the data
--   with @SockAddrUnix ""@. @network@ throws then, and the data is lost.
-- * A send that is cut off after a part makes all further sends fail, with @EPIPE@
--   ("Weft.Socket.ByteString"); @network@ sends on, and the peer mistakes one message for another's rest.
-- * Another process that shares a socket may clear its flag @O_NONBLOCK@: an operation that sends or receives bytes
--   still blocks the calling thread only; in @network@ it blocks all threads of the capability. For 'accept', see
--   'mkSocket'.
-- * 'Weft.Socket.ByteString.sendMany' on a socket of datagrams sends one, however many strings it is given; @network@
--   sends one for each 1,024 strings.
-- * 'recvFd' throws an end-of-file error at the end of the stream; @network@ returns -1.
-- * 'gracefulClose' reads until the peer's end, for the time given and 16 MiB; @network@ reads once.
-- * 'bind' removes the stale file of a Unix socket only if it is a socket, and tests it with a connect on a separate
--   socket; @network@ tests with the socket that is to be bound.
-- * 'close' of a socket with the @Linger@ option blocks the calling thread only; in @network@ it blocks all threads of
--   the capability.
-- * 'socketToFd' and 'socketToHandle' give a duplicate descriptor. 'socketPort' throws for a Unix socket.
-- * Descriptors are close-on-exec from the start.
-- * 'Weft.Socket.ByteString.sendAllTo' of an empty string sends an empty datagram; @network@ sends nothing.
--
-- @since 0.1.0
module Weft.Socket
  ( -- * Sockets
    Socket,
    socket,
    openSocket,
    socketPair,
    bind,
    listen,
    accept,
    connect,
    shutdown,
    close,
    close',
    gracefulClose,
    getSocketName,
    getPeerName,
    socketPort,
    socketPortSafe,

    -- * Memory
    sendBuf,
    recvBuf,
    sendBufTo,
    recvBufFrom,
    sendBufMsg,
    recvBufMsg,

    -- * Waiting in a transaction
    waitReadSocketSTM,
    waitAndCancelReadSocketSTM,
    waitWriteSocketSTM,
    waitAndCancelWriteSocketSTM,

    -- * Beyond @network@
    -- $beyond

    -- ** Deadlines
    module Weft.Duration,
    Instant,
    deadlineIn,
    noDeadline,
    withDeadline,
    isTimeout,

    -- ** Addresses
    unixAddress,

    -- ** The peer
    PeerState (..),
    peerState,
    awaitPeerFinished,
    awaitPeerGone,

    -- ** Files
    sendFile,
    sendFileRange,
    sendFileRangeWith,

    -- ** Closing within bounds
    closeGracefully,

    -- ** Servers
    serve,
    withServer,
    withServerOn,
    Server,
    serverAddress,
    serverConnections,
    waitServer,
    drainServer,
    ServerSettings (..),
    defaultServerSettings,
    reportException,
    Overdue (..),

    -- * Descriptors
    withFdSocket,
    unsafeFdSocket,
    fdSocket,
    touchSocket,
    mkSocket,
    socketToFd,
    socketToHandle,
    withNetworkSocket,
    sendFd,
    recvFd,
    getPeerCredential,

    -- * Options
    setSocketOption,
    getSocketOption,
    setSockOpt,
    getSockOpt,
    getSocketType,

    -- * Addresses, families and the rest, from @network@
    module Network.Socket,
  )
where

import Network.Socket hiding
  ( Socket,
    accept,
    bind,
    close,
    close',
    connect,
    fdSocket,
    getPeerCredential,
    getPeerName,
    getSockOpt,
    getSocketName,
    getSocketOption,
    getSocketType,
    gracefulClose,
    listen,
    mkSocket,
    openSocket,
    recvBuf,
    recvBufFrom,
    recvBufMsg,
    recvBufNoWait,
    recvFd,
    sendBuf,
    sendBufMsg,
    sendBufTo,
    sendFd,
    setSockOpt,
    setSockOptValue,
    setSocketOption,
    shutdown,
    socket,
    socketPair,
    socketPort,
    socketPortSafe,
    socketToFd,
    socketToHandle,
    touchSocket,
    unsafeFdSocket,
    waitAndCancelReadSocketSTM,
    waitAndCancelWriteSocketSTM,
    waitReadSocketSTM,
    waitWriteSocketSTM,
    withFdSocket,
  )
import Weft.Deadline (Instant, deadlineIn, isTimeout, noDeadline)
import Weft.Duration
import Weft.Socket.Basic
import Weft.Socket.ByteString (recvBuf, recvBufFrom, sendBuf, sendBufTo)
import Weft.Socket.File
import Weft.Socket.Message
import Weft.Socket.NetworkSocket
import Weft.Socket.Options
import Weft.Socket.Peer
import Weft.Socket.Serve
import Weft.Socket.Stm
import Weft.Socket.Types

-- $beyond
-- What @network@ does not have: a deadline for each operation, notification when the peer
-- closes, files sent by the kernel, closing with limits on time and bytes, and servers that
-- accept on every core.
