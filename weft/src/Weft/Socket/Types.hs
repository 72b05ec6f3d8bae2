{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- The socket of "Weft.Socket", and how its operations run, end and fail.
module Weft.Socket.Types
  ( Socket (..),
    mkSocket,
    mkStreamSocket,
    withDescriptor,
    touchSocket,

    -- * Operations
    operate,
    operateThen,
    betweenParts,
    immediately,
    attempted,
    Attempt (..),
    Direction (..),
    decodeResult,
    socketError,
    cutOff,

    -- * Deadlines
    withDeadline,

    -- * Closing
    close,
    close',
    closeNumber,
  )
where

import Control.Concurrent (forkIO)
import Control.Exception (allowInterrupt, uninterruptibleMask_)
import Control.Monad (unless, void, when)
import Data.IORef (mkWeakIORef, newIORef, readIORef, writeIORef)
import Foreign.C.Error (Errno (..), eAGAIN, eBADF, ePIPE, eTIMEDOUT)
import Foreign.C.Types (CInt)
import GHC.Exts (Weak#, finalizeWeak#, touch#)
import GHC.IO (IO (..))
import GHC.IO.Exception (IOException (ioe_description))
import GHC.IORef (IORef (..))
import GHC.STRef (STRef (..))
import GHC.Weak (Weak (..))
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Core.Descriptor
import Weft.Core.Time
import Weft.FFI.Errno
import Weft.FFI.Socket
import Weft.Runtime.Managers
import Weft.Sys (now)

-- | A socket. Any number of threads may use it. It is closed by 'close', or when it is
-- garbage collected. A value also carries a deadline for the operations on it
-- ('withDeadline').
data Socket = Socket
  { socketDescriptor :: !Descriptor,
    -- | Whether a read that returns less than there was room for leaves nothing behind: it is a stream of TCP
    -- ('cDrains' has the rule).
    socketDrains :: !Bool,
    socketDeadline :: !Instant,
    -- | Carries the finalizer that closes the descriptor. Written once, by the thread that makes the socket.
    socketAnchor :: !(IORef Anchor)
  }

-- | The finalizer of the reference that holds it. ('Adrift' for the moment until there is one.)
data Anchor = Adrift | Anchored (Weak# (IORef Anchor))

-- | Equal if they share the descriptor, also with different deadlines.
instance Eq Socket where
  a == b = socketAnchor a == socketAnchor b

instance Show Socket where
  show s = unsafePerformIO $ do
    closed <- descriptorClosed (socketDescriptor s)
    pure ("<socket: " <> (if closed then "closed" else show (descriptorFd (socketDescriptor s))) <> ">")

-- | Take ownership of the descriptor of an open socket of any kind. It is made
-- non-blocking, and closed when the 'Socket' is closed or garbage collected. That it does not block is a property of
-- the open file, which other processes may share (open(2)). If one of them takes it away, operations that send or
-- receive bytes still hold up no thread but their own; 'Weft.Socket.accept', 'Weft.Socket.connect' and
-- 'Weft.Socket.sendFile' then hold up all threads of the capability, as the kernel has no way to ask for less.
mkSocket :: CInt -> IO Socket
mkSocket fd = do
  throwIfNegative_ "Weft.Socket.mkSocket" (cSetNonBlocking fd)
  cExpectLingering
  drains <- cDrains fd
  wrap (drains > 0) fd

-- | 'mkSocket' for a fresh non-blocking descriptor. 'True' if it is TCP's ('socketDrains').
mkStreamSocket :: Bool -> CInt -> IO Socket
mkStreamSocket = wrap

wrap :: Bool -> CInt -> IO Socket
wrap drains fd = do
  ep <- newDescriptor currentRegistry currentManager (Fd fd) (closeNumber fd)
  anchor <- newIORef Adrift
  -- All finalizers share a thread, so what may block is done by another one.
  Weak finalizer <- mkWeakIORef anchor (void (closeDescriptorWith (void . forkIO) ep))
  writeIORef anchor (Anchored finalizer)
  pure (Socket ep drains never anchor)

-- | Close a descriptor without blocking. With @SO_LINGER@ set, close(2) blocks even in non-blocking mode, until the
-- peer has what was sent. In that case a duplicate is kept, and the action that is returned closes it by a @safe@
-- call, once the action that is given has ended: the duplicate's close is the one that waits only if nothing else
-- refers to the file.
closeNumber :: CInt -> IO () -> IO (IO ())
closeNumber fd released = do
  lingering <- cCloseNow fd
  pure (when (lingering >= 0) (uninterruptibleMask_ released >> cCloseLingering lingering))

-- | Keep a socket from being finalized up to here.
touchSocket :: Socket -> IO ()
touchSocket s = case socketAnchor s of
  IORef (STRef r) -> IO $ \st -> (# touch# r st, () #)
{-# INLINE touchSocket #-}

-- | Take the finalizer away from a socket that has been closed. Otherwise the collector that finds the socket unused
-- keeps its descriptor's state alive, and starts a thread for it, to find that it is closed.
withoutFinalizer :: Socket -> IO ()
withoutFinalizer s = do
  anchor <- readIORef (socketAnchor s)
  case anchor of
    Anchored finalizer -> IO $ \st -> case finalizeWeak# finalizer st of (# st1, _, _ #) -> (# st1, () #)
    Adrift -> pure ()

-- | Use the descriptor. The socket is not finalized during the action.
withDescriptor :: Socket -> (Descriptor -> IO a) -> IO a
withDescriptor s act = act (socketDescriptor s) <* touchSocket s

-- Operations -----------------------------------------------------------------------

-- | Run an operation until it is done, the socket is closed, or its deadline has
-- passed. Errors are 'IOError's that name the place.
operate :: String -> Socket -> Direction -> (CInt -> IO (Attempt a)) -> IO a
operate loc s dir op = do
  outcome <- perform ep dir (socketDeadline s) (op fd)
  touchSocket s
  case outcome of
    Completed a -> pure a
    Refused e -> throwErrnoCode loc e
    DescriptorClosed -> closedError loc ep >>= ioError
    DeadlinePassed -> ioError (socketError loc eTIMEDOUT)
  where
    ep = socketDescriptor s
    Fd fd = descriptorFd ep
{-# INLINE operate #-}

-- | 'operate', and then the function, with asynchronous exceptions masked from the operation to the function's end.
operateThen :: String -> Socket -> Direction -> (CInt -> IO (Attempt a)) -> (a -> IO b) -> IO b
operateThen loc s dir op next = performThen ep dir (socketDeadline s) (op fd) $ \outcome -> do
  touchSocket s
  case outcome of
    Completed a -> next a
    Refused e -> throwErrnoCode loc e
    DescriptorClosed -> closedError loc ep >>= ioError
    DeadlinePassed -> ioError (socketError loc eTIMEDOUT)
  where
    ep = socketDescriptor s
    Fd fd = descriptorFd ep
{-# INLINE operateThen #-}

-- | Run a call that needs no waiting and returns a result or @-errno@.
immediately :: (Integral a) => String -> Socket -> (CInt -> IO a) -> IO a
immediately loc s op = do
  r <- useDescriptor ep (op fd)
  touchSocket s
  case r of
    Nothing -> ioError (socketError loc eBADF)
    Just n -> if n < 0 then throwErrnoCode loc (fromIntegral (negate n)) else pure n
  where
    ep = socketDescriptor s
    Fd fd = descriptorFd ep

-- | Why an operation was not begun: the socket is closed, or sending was cut off ('cutOff').
closedError :: String -> Descriptor -> IO IOError
closedError loc ep = do
  closed <- descriptorClosed ep
  cut <- isSendingForbidden ep
  pure $
    if cut && not closed
      then (socketError loc ePIPE) {ioe_description = "an earlier send was cut off after a part: this connection can send nothing more"}
      else socketError loc eBADF

-- | Make all further sends fail with @EPIPE@: a part of a message was sent, and the rest never will be.
cutOff :: Socket -> IO ()
cutOff = forbidSending . socketDescriptor

-- | To be called between the parts of a message, masked: exceptions arrive here, and it throws if the deadline has
-- passed. An operation does neither as long as it does not have to wait.
betweenParts :: String -> Socket -> IO ()
betweenParts loc s = do
  allowInterrupt
  unless (socketDeadline s == never) $ do
    t <- now
    when (t >= socketDeadline s) (ioError (socketError loc eTIMEDOUT))

-- | Run a call that sends and returns a result or @-errno@. It is tried once; @EAGAIN@ counts as zero.
attempted :: (Integral a) => String -> Socket -> (CInt -> IO a) -> IO (Either IOError Int)
attempted loc s op = do
  r <- useDescriptorToSend ep (op fd)
  touchSocket s
  case r of
    Nothing -> Left <$> closedError loc ep
    Just n
      | n >= 0 -> pure (Right (fromIntegral n))
      | Errno code == eAGAIN -> pure (Right 0)
      | otherwise -> pure (Left (errnoError loc code))
      where
        code = fromIntegral (negate n)
  where
    ep = socketDescriptor s
    Fd fd = descriptorFd ep
{-# INLINE attempted #-}

-- | An 'IOError' as "Network.Socket" throws them.
socketError :: String -> Errno -> IOError
socketError loc (Errno e) = errnoError loc e

-- Deadlines --------------------------------------------------------------------------

-- | A socket with a deadline ("Weft.Deadline"), on the same descriptor. Operations on this value, and transactions such
-- as that of 'Weft.Socket.waitReadSocketSTM', throw an error that satisfies 'Weft.Deadline.isTimeout' if they are not
-- finished in time. Unlike 'Weft.Thread.timeout' this loses no data: data that arrived before the deadline is returned.
--
-- > soon <- deadlineIn (seconds 5)
-- > request <- recv (withDeadline soon sock) 4096
withDeadline :: Instant -> Socket -> Socket
withDeadline d s = s {socketDeadline = d}

-- Closing ----------------------------------------------------------------------------

-- | Close a socket. Threads that wait on it get @EBADF@. No effect if it is
-- closed already; throws nothing. With the @Linger@ option set, the calling thread (and no other) waits until the
-- peer has what was sent, or the option's time is over.
close :: Socket -> IO ()
close s = void (closing s)

-- | 'close' that throws @EBADF@ if the socket is closed already.
close' :: Socket -> IO ()
close' s = do
  closed <- closing s
  unless closed (ioError (socketError "Weft.Socket.close'" eBADF))

-- | 'False' if it was closed already.
closing :: Socket -> IO Bool
closing s = closeDescriptor (socketDescriptor s) <* withoutFinalizer s <* touchSocket s
