-- |
-- Connections, whatever carries them: the kernel's sockets, TLS, memory, a stack in the program, a
-- simulated network. A server that takes a 'Listener' and speaks to 'Connection's runs on
-- each of them; changing what is below it is a change of one line.
--
-- > echo :: Connection -> IO ()
-- > echo c = do
-- >   deadline <- deadlineIn (seconds 30)
-- >   bytes <- connReceive c deadline 4096
-- >   unless (Data.ByteString.null bytes) (connSendBytes c deadline bytes >> echo c)
--
-- Each operation takes a deadline, 'noDeadline' if it has none. For an idle time that is
-- pushed later all the time, "Weft.IdleTimer" with 'connAbort' as its action costs less.
--
-- One thread receives and one sends at a time; closing and aborting is for any thread. All
-- operations are interruptible while they wait; one that received nothing has lost nothing.
--
-- To implement another kind of connection, fill in 'Operations'; "Weft.Transport.Laws" are
-- the laws that it has to keep, as actions for its tests.
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
    withReceived,
    sendFileByReading,
    filePieceSize,
  )
where

import Weft.Socket.Types (Instant, deadlineIn, isTimeout, noDeadline)
import Weft.Transport.Memory
import Weft.Transport.Socket
import Weft.Transport.Types
