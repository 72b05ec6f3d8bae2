{-# LANGUAGE ExistentialQuantification #-}

-- |
-- The types of "Weft.Transport", and what is common to all implementations.
module Weft.Transport.Types
  ( -- * Connections
    Connection (..),
    Operations (..),
    Region (..),
    FileRange (..),
    connReceive,
    connSend,
    connSendBytes,
    connSendMany,
    connSendFile,
    connShutdownSend,
    connClose,
    connAbort,
    connPeer,
    connLocal,
    connSendProgress,
    SendProgress (..),
    connAwaitPeer,
    connIsQuiet,
    connSecurity,
    connKeepsStrings,
    connCloseGracefully,

    -- * Security
    Security (..),
    ProtocolVersion (..),

    -- * Listeners and transports
    Listener (..),
    Transport (..),

    -- * For implementations
    withReceived,
    sendFileByReading,
    filePieceSize,
  )
where

import Control.Monad (forever, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (createAndTrim)
import Data.IORef
import Data.Int (Int64)
import Data.Word (Word16, Word8)
import Foreign.C.Error (eINVAL)
import Foreign.Ptr (Ptr)
import GHC.IO.Exception (IOErrorType (EOF))
import Network.Socket (SockAddr)
import System.IO.Error (mkIOError)
import System.Posix.Types (Fd (..))
import Weft.Deadline (Duration, Instant)
import Weft.FFI.Errno (throwIfNegative)
import Weft.FFI.Socket (cReadAt)
import Weft.Socket.Basic (closingGracefully)
import Weft.Socket.Peer (PeerState (..))
import Weft.Socket.Pieces (withBytes)
import Weft.Socket.Types (socketError)
import Weft.Thread.Time (sleep)

-- | A connection: a reliable stream of bytes in each direction. It consists of the operations of
-- its kind and its state, and takes three words beside the state.
--
-- At most one thread receives and at most one sends at a time; the two may be different threads.
-- Any thread may use 'connClose', 'connAbort', 'connPeer', 'connLocal', 'connAwaitPeer' and 'connSecurity' at any time.
data Connection = forall s. Connection !(Operations s) !s

-- | The operations that a kind of connection implements; @s@ is its state. Each field is documented at
-- the function of the same name: 'opReceive' at 'connReceive' and so on. 'opClose' and 'opAbort' are also called by
-- timers, on a dispatcher: they may not block. "Weft.Transport.Laws" tests an implementation.
data Operations s = Operations
  { opReceive :: !(s -> Instant -> Int -> IO ByteString),
    opSend :: !(s -> Instant -> Region -> IO ()),
    opSendMany :: !(s -> Instant -> [ByteString] -> IO ()),
    opSendFile :: !(s -> Instant -> [ByteString] -> FileRange -> IO ()),
    opShutdownSend :: !(s -> Instant -> IO ()),
    opClose :: !(s -> IO ()),
    opAbort :: !(s -> IO ()),
    opPeer :: !(s -> SockAddr),
    opLocal :: !(s -> IO SockAddr),
    -- | 'Nothing' where it is not known.
    opSendProgress :: !(s -> IO (Maybe SendProgress)),
    -- | 'Nothing' where it cannot be told without receiving.
    opAwaitPeer :: !(Maybe (s -> PeerState -> IO ())),
    -- | 'False' where it is not known.
    opIsQuiet :: !(s -> IO Bool),
    opSecurity :: !(s -> Maybe Security),
    opKeepsStrings :: !(s -> Bool)
  }

-- | The progress of the peer in reading the sent data.
data SendProgress = SendProgress
  { -- | Bytes that it has acknowledged since the connection began.
    sendAcknowledged :: !Int,
    -- | Whether all bytes are still in the buffer below that were there when it took no more.
    sendFull :: !Bool,
    -- | Whether there are bytes that it has not acknowledged; after the end of the sending side, also while that is not
    -- acknowledged.
    sendOutstanding :: !Bool
  }
  deriving (Eq, Show)

-- | A piece of memory: its address and its size in bytes.
data Region = Region {-# UNPACK #-} !(Ptr Word8) {-# UNPACK #-} !Int

-- | Part of an open regular file: the descriptor, the offset and the length in bytes. The
-- descriptor's own position is neither used nor changed.
data FileRange = FileRange !Fd !Int64 !Int64

-- Operations -------------------------------------------------------------------------

-- | Receive at least one byte and at most the given number; wait until there is one. (An implementation may
-- return fewer bytes than have arrived.) Empty at the end of the stream, any number of times. Ask for more than 32 KiB
-- only if so much is expected: the kernel's sockets then allocate memory for the whole number, and copy nothing.
--
-- If the deadline passes first, it throws an error that satisfies
-- 'Weft.Socket.isTimeout'; nothing is lost, and a later call receives what comes. Throws @EBADF@ if the
-- connection is closed, @ECONNRESET@ if the peer aborted it, @EINVAL@ if the number
-- is not positive.
connReceive :: Connection -> Instant -> Int -> IO ByteString
connReceive (Connection ops s) = opReceive ops s
{-# INLINE connReceive #-}

-- | Send this many bytes of memory; wait while the peer does not take them. The memory has to stay valid during the
-- call. If it throws, an unknown part has been sent, and the connection can only be used to
-- receive and to close. Errors as 'connReceive'; also @EPIPE@ or @ECONNRESET@ if the peer
-- takes no more.
connSend :: Connection -> Instant -> Ptr Word8 -> Int -> IO ()
connSend (Connection ops s) deadline p n = opSend ops s deadline (Region p n)
{-# INLINE connSend #-}

-- | 'connSend' of a string.
connSendBytes :: Connection -> Instant -> ByteString -> IO ()
connSendBytes c deadline bytes = withBytes bytes (connSend c deadline)

-- | Send strings one after the other, gathered into as few system calls or packets as possible. The strings may be in
-- use after the call: see 'connKeepsStrings'. Otherwise as 'connSend'.
connSendMany :: Connection -> Instant -> [ByteString] -> IO ()
connSendMany (Connection ops s) = opSendMany ops s
{-# INLINE connSendMany #-}

-- | Send strings and then part of a file. The kernel's sockets send the file without
-- copying it through the program; others read and send it in pieces of at most 'filePieceSize'.
-- Throws an end-of-file error when the file ends before the range does. Otherwise as 'connSend'.
connSendFile :: Connection -> Instant -> [ByteString] -> FileRange -> IO ()
connSendFile (Connection ops s) = opSendFile ops s
{-# INLINE connSendFile #-}

-- | End the sending direction: the peer receives what was sent and then the end of the stream.
-- Receiving goes on. A second call has no effect. The deadline is for
-- implementations that have to send something.
connShutdownSend :: Connection -> Instant -> IO ()
connShutdownSend (Connection ops s) = opShutdownSend ops s
{-# INLINE connShutdownSend #-}

-- | Close both directions without waiting. Operations that wait, and all later ones, throw
-- @EBADF@. Data that was sent is still delivered, unless data of the peer was left unread: then a kernel may
-- reset the connection. A server that wants its last response read uses 'connCloseGracefully'.
-- No effect if it is closed already; throws nothing; any thread may call it.
connClose :: Connection -> IO ()
connClose (Connection ops s) = opClose ops s
{-# INLINE connClose #-}

-- | Close, and drop what has not been delivered yet. The peer's operations fail if the protocol can signal that
-- (TCP: RST). Buffers for a peer that does not read are freed at once. Otherwise as
-- 'connClose'.
connAbort :: Connection -> IO ()
connAbort (Connection ops s) = opAbort ops s
{-# INLINE connAbort #-}

-- | The peer's address.
connPeer :: Connection -> SockAddr
connPeer (Connection ops s) = opPeer ops s

-- | The local address (for the kernel's sockets, one system call). Throws @EBADF@ if the connection is closed.
connLocal :: Connection -> IO SockAddr
connLocal (Connection ops s) = opLocal ops s

-- | The progress of the peer in reading the sent data. The kernel's send buffer holds megabytes, so a send that waits
-- shows little of it. Known for TCP on Linux, by two system calls; 'Nothing' for other and for closed connections.
-- Any thread.
connSendProgress :: Connection -> IO (Maybe SendProgress)
connSendProgress (Connection ops s) = opSendProgress ops s

-- | Wait until the peer is in this state or a later one: it has finished sending, or the connection is gone in both
-- directions. Nothing is received: bytes that have come stay where they are. Where the kind of connection cannot tell,
-- this waits for ever: the kernel's sockets, memory and TLS over them can tell (of TLS, what has become of the
-- connection below), "Weft.Tcp" cannot. A TCP peer that has closed its socket has only finished sending, until
-- something is sent to it ('PeerState').
--
-- Any number of threads may wait, beside one that receives. Interruptible. Throws @EBADF@ if the connection is closed,
-- before or meanwhile.
connAwaitPeer :: Connection -> PeerState -> IO ()
connAwaitPeer (Connection ops s) state = case opAwaitPeer ops of
  _ | state == PeerOpen -> pure ()
  Just await -> await s state
  Nothing -> forever (sleep maxBound)

-- | Whether it is known, without a system call, that a receive would have to wait: an earlier one has taken all that
-- had come, and nothing has been reported since. 'False' if there is something, or it is not known. What comes at this
-- moment may not have been reported yet. For the thread that receives.
connIsQuiet :: Connection -> IO Bool
connIsQuiet (Connection ops s) = opIsQuiet ops s
{-# INLINE connIsQuiet #-}

-- | The peer's certificates and the encryption; 'Nothing' for plain text.
connSecurity :: Connection -> Maybe Security
connSecurity (Connection ops s) = opSecurity ops s

-- | Close so that the peer receives all that was sent: shut down the sending direction, receive and drop
-- until the peer does the same, at most for the given duration and number of bytes, then close. Throws no
-- 'IOError'. If the thread is interrupted, the connection is closed at once.
connCloseGracefully :: Duration -> Int -> Connection -> IO ()
connCloseGracefully limit bytes c = closingGracefully (connShutdownSend c) (connReceive c) (connClose c) limit bytes

-- | Whether the connection may read strings that it was given by 'connSendMany' or 'connSendFile' after the call has
-- returned: it queues them, or keeps them to send them again. This matters only to a caller whose strings are views of
-- memory that it writes to later. Memory given to 'connSend' and 'connSendBytes' is never used after the call.
connKeepsStrings :: Connection -> Bool
connKeepsStrings (Connection ops s) = opKeepsStrings ops s

-- Security ---------------------------------------------------------------------------

-- | The results of a TLS handshake.
data Security = Security
  { securityVersion :: !ProtocolVersion,
    -- | The number of the cipher suite (IANA's registry of TLS cipher suites).
    securityCipher :: !Word16,
    -- | The negotiated application protocol (RFC 7301), for example @h2@ or @http/1.1@.
    securityAlpn :: !(Maybe ByteString),
    -- | The name that the client asked for (RFC 6066, section 3).
    securityServerName :: !(Maybe ByteString),
    -- | The peer's certificate chain, in DER, its own certificate first, as it was sent; empty if it sent none. It has
    -- been verified, unless a client trusts anything.
    securityPeerCertificates :: ![ByteString],
    -- | Whether an earlier session was resumed.
    securityResumed :: !Bool
  }
  deriving (Eq, Show)

-- | Versions of TLS.
data ProtocolVersion = TlsVersion12 | TlsVersion13
  deriving (Eq, Ord, Show)

-- Listeners --------------------------------------------------------------------------

-- | Accepts connections.
data Listener = Listener
  { -- | Wait for a connection. Any number of threads may wait; if one is interrupted, the connection goes
    -- to the next. Throws @EBADF@ if the listener is closed. Other errors may be temporary
    -- (@EMFILE@, @ECONNABORTED@): see accept(2).
    listenerAccept :: !(IO Connection),
    -- | The address that it listens on.
    listenerAddress :: !SockAddr,
    -- | Accept no more; connections stay open. Idempotent, throws nothing; any thread may call it.
    listenerClose :: !(IO ())
  }

-- | A network: the kernel's, one in memory, or another.
data Transport = Transport
  { -- | Listen at an address; port 0 lets the transport choose one. Throws @EADDRINUSE@ and the other
    -- errors of bind(2).
    transportListen :: !(SockAddr -> IO Listener),
    -- | Connect to an address before the deadline. Throws @ECONNREFUSED@ and the other errors of connect(2), and
    -- if the deadline passes first, an error that satisfies 'Weft.Socket.isTimeout'.
    transportConnect :: !(Instant -> SockAddr -> IO Connection)
  }

-- For implementations ----------------------------------------------------------------

-- | The size in bytes of the pieces that 'sendFileByReading' reads: 64 KiB.
filePieceSize :: Int
filePieceSize = 65536

-- | Send part of a file with a function that sends a string. The file is read by @safe@ calls: while the kernel waits
-- for the disk, other threads of the capability run.
sendFileByReading :: (ByteString -> IO ()) -> FileRange -> IO ()
sendFileByReading send (FileRange (Fd fd) from size)
  | from < 0 || size < 0 = ioError (socketError loc eINVAL)
  | otherwise = go from size
  where
    loc = "Weft.Transport.connSendFile"
    go offset left = when (left > 0) $ do
      let wanted = fromIntegral (min left (fromIntegral filePieceSize))
      piece <- B.createAndTrim wanted $ \p ->
        fromIntegral <$> throwIfNegative loc (cReadAt fd p (fromIntegral wanted) offset)
      when (B.null piece) (ioError (mkIOError EOF loc Nothing Nothing))
      send piece
      go (offset + fromIntegral (B.length piece)) (left - fromIntegral (B.length piece))

-- | The connection, from which the given bytes are received first. For code that has received the beginning to find out
-- which protocol it is.
withReceived :: ByteString -> Connection -> IO Connection
withReceived bytes c
  | B.null bytes = pure c
  | otherwise = (\left -> Connection receivedOperations (Received left c)) <$> newIORef bytes

-- | The bytes that are left, written by the thread that receives; and the connection.
data Received = Received !(IORef ByteString) !Connection

receivedOperations :: Operations Received
receivedOperations =
  Operations
    { opReceive = \(Received ref c) deadline n -> do
        left <- readIORef ref
        if B.null left || n <= 0
          then connReceive c deadline n
          else B.take n left <$ writeIORef ref (B.drop n left),
      opSend = \(Received _ (Connection ops s)) -> opSend ops s,
      opSendMany = \(Received _ c) -> connSendMany c,
      opSendFile = \(Received _ c) -> connSendFile c,
      opShutdownSend = \(Received _ c) -> connShutdownSend c,
      opClose = \(Received _ c) -> connClose c,
      opAbort = \(Received _ c) -> connAbort c,
      opPeer = \(Received _ c) -> connPeer c,
      opLocal = \(Received _ c) -> connLocal c,
      opSendProgress = \(Received _ c) -> connSendProgress c,
      opAwaitPeer = Just (\(Received _ c) -> connAwaitPeer c),
      opIsQuiet = \(Received ref c) -> do
        left <- readIORef ref
        if B.null left then connIsQuiet c else pure False,
      opSecurity = \(Received _ c) -> connSecurity c,
      opKeepsStrings = \(Received _ c) -> connKeepsStrings c
    }
