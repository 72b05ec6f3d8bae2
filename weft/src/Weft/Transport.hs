-- |
-- Connections over any kind of transport: the kernel's sockets, TLS, memory, a TCP stack in the program, a
-- simulated network. A server that is written for 'Listener' and 'Connection' runs on
-- each of them; another transport is a change of one line.
--
-- > echo :: Connection -> IO ()
-- > echo c = do
-- >   deadline <- deadlineIn (seconds 30)
-- >   bytes <- connReceive c deadline 4096
-- >   unless (Data.ByteString.null bytes) (connSendBytes c deadline bytes >> echo c)
--
-- Each operation takes a deadline ("Weft.Deadline"); 'noDeadline' means none. For an idle time-out, which is
-- reset all the time, "Weft.IdleTimer" with 'connAbort' as its action costs less.
--
-- At most one thread may receive and one may send at a time; any thread may close or abort. All
-- operations are interruptible while they wait. A receive that is interrupted while it waits has taken no bytes. (An
-- exception may also come as the operation returns, and take its result away. A thread that must not lose bytes to
-- exceptions masks them.)
--
-- To implement another kind of connection, fill in 'Operations'; "Weft.Transport.Laws" has
-- its laws, as actions for tests.
--
-- @since 0.1.0
module Weft.Transport
  ( -- * Connections
    Connection (..),

    -- ** Bytes
    connReceive,
    connSend,
    connSendBytes,
    connSendMany,
    connSendFile,
    FileRange (..),

    -- ** Ending
    connShutdownSend,
    connClose,
    connCloseGracefully,
    connAbort,

    -- ** The other side
    connPeer,
    connLocal,
    connSendProgress,
    SendProgress (..),
    connAwaitPeer,
    PeerState (..),
    connIsQuiet,
    connKeepsStrings,
    connSecurity,
    Security (..),
    ProtocolVersion (..),

    -- ** Deadlines
    Instant,
    deadlineIn,
    noDeadline,
    isTimeout,

    -- * Listeners and networks
    Listener (..),
    Transport (..),

    -- * The kernel's sockets
    socketConnection,
    socketListener,
    socketTransport,

    -- * In memory
    connectionPair,
    memoryTransport,

    -- * For implementations
    Operations (..),
    Region (..),
    untilDeadline,
    timeoutError,
    withReceived,
    sendFileByReading,
    filePieceSize,
  )
where

import Weft.Deadline (Instant, deadlineIn, isTimeout, noDeadline, timeoutError, untilDeadline)
import Weft.Socket.Peer (PeerState (..))
import Weft.Transport.Memory
import Weft.Transport.Socket
import Weft.Transport.Types
