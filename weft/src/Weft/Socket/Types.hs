{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- The socket of "Weft.Socket", and the one way in which its operations run, end
-- and fail.
module Weft.Socket.Types
  ( Socket (..),
    mkSocket,
    mkStreamSocket,
    withEndpoint,
    touchSocket,

    -- * Operations
    operate,
    immediately,
    attempted,
    Attempt (..),
    Direction (..),
    answer,
    socketError,

    -- * Deadlines
    Instant,
    deadlineIn,
    noDeadline,
    withDeadline,
    isTimeout,

    -- * Closing
    close,
    close',
  )
where

import Control.Monad (unless, void)
import Data.IORef (mkWeakIORef, newIORef)
import Foreign.C.Error (Errno (..), eAGAIN, eBADF, eTIMEDOUT)
import Foreign.C.Types (CInt)
import GHC.Exts (touch#)
import GHC.IO (IO (..))
import GHC.IO.Exception (IOErrorType (TimeExpired), IOException (ioe_type))
import GHC.IORef (IORef (..))
import GHC.STRef (STRef (..))
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Core.Endpoint
import Weft.Core.Time
import Weft.FFI.Errno
import Weft.FFI.Socket
import Weft.Runtime
import Weft.Sys (now)

-- | A socket. Used from any number of threads; closed by 'close', or when it is
-- garbage. A value also carries a deadline for the operations that it is given
-- to: see 'withDeadline'.
data Socket = Socket
  { socketEndpoint :: !Endpoint,
    -- | Does a read that returns less than there was room for leave nothing
    -- behind? So it is with TCP; with Unix sockets control messages, with
    -- datagrams their limits stop a read.
    socketDrains :: !Bool,
    socketDeadline :: !Instant,
    -- | Carries the finalizer that closes the descriptor.
    socketAnchor :: !(IORef ())
  }

-- | The same open descriptor; the deadline does not count.
instance Eq Socket where
  a == b = socketAnchor a == socketAnchor b

instance Show Socket where
  show s = unsafePerformIO $ do
    closed <- endpointClosed (socketEndpoint s)
    pure ("<socket: " <> (if closed then "closed" else show (endpointFd (socketEndpoint s))) <> ">")

-- | Take charge of an open socket's descriptor, of any kind. It is made
-- non-blocking, and closed when the 'Socket' is closed or garbage.
mkSocket :: CInt -> IO Socket
mkSocket fd = do
  throwIfNegative_ "Weft.Socket.mkSocket" (cSetNonBlocking fd)
  wrap False fd

-- | The same for a fresh non-blocking descriptor that is known to be TCP's.
mkStreamSocket :: Bool -> CInt -> IO Socket
mkStreamSocket = wrap

wrap :: Bool -> CInt -> IO Socket
wrap drains fd = do
  ep <- newEndpoint currentRegistry currentManager (Fd fd) (cClose fd)
  anchor <- newIORef ()
  _ <- mkWeakIORef anchor (void (closeEndpoint ep))
  pure (Socket ep drains never anchor)

-- | Keep a socket from being finalized up to here.
touchSocket :: Socket -> IO ()
touchSocket s = case socketAnchor s of
  IORef (STRef r) -> IO $ \st -> (# touch# r st, () #)
{-# INLINE touchSocket #-}

-- | Use the endpoint; the socket stays alive meanwhile.
withEndpoint :: Socket -> (Endpoint -> IO a) -> IO a
withEndpoint s act = act (socketEndpoint s) <* touchSocket s

-- Operations -----------------------------------------------------------------------

-- | Run an operation until it is done, the socket is closed, or its deadline has
-- passed: then an 'IOError' names the place.
operate :: String -> Socket -> Direction -> (CInt -> IO (Attempt a)) -> IO a
operate loc s dir op = do
  outcome <- perform ep dir (socketDeadline s) (op fd)
  touchSocket s
  case outcome of
    Completed a -> pure a
    Refused e -> throwErrnoCode loc e
    EndpointClosed -> ioError (socketError loc eBADF)
    DeadlinePassed -> ioError (socketError loc eTIMEDOUT)
  where
    ep = socketEndpoint s
    Fd fd = endpointFd ep
{-# INLINE operate #-}

-- | Run a call that needs no waiting and returns a result or @-errno@.
immediately :: (Integral a) => String -> Socket -> (CInt -> IO a) -> IO a
immediately loc s op = do
  r <- useEndpoint ep (op fd)
  touchSocket s
  case r of
    Nothing -> ioError (socketError loc eBADF)
    Just n -> if n < 0 then throwErrnoCode loc (fromIntegral (negate n)) else pure n
  where
    ep = socketEndpoint s
    Fd fd = endpointFd ep

-- | Run a call that returns a result or @-errno@, once: @EAGAIN@ counts as zero.
attempted :: (Integral a) => String -> Socket -> (CInt -> IO a) -> IO (Either IOError Int)
attempted loc s op = do
  r <- useEndpoint ep (op fd)
  touchSocket s
  pure $ case r of
    Nothing -> Left (socketError loc eBADF)
    Just n
      | n >= 0 -> Right (fromIntegral n)
      | Errno code == eAGAIN -> Right 0
      | otherwise -> Left (errnoError loc code)
      where
        code = fromIntegral (negate n)
  where
    ep = socketEndpoint s
    Fd fd = endpointFd ep
{-# INLINE attempted #-}

-- | Sort out a result: at least zero to the continuation, @EAGAIN@ means wait, the
-- rest are failures.
answer :: (Integral n) => n -> (Int -> IO (Attempt a)) -> IO (Attempt a)
answer r k
  | r >= 0 = k (fromIntegral r)
  | Errno code == eAGAIN = pure NotYet
  | otherwise = pure (Failed code)
  where
    code = fromIntegral (negate r)
{-# INLINE answer #-}

-- | An 'IOError' as "Network.Socket" throws them.
socketError :: String -> Errno -> IOError
socketError loc (Errno e) = errnoError loc e

-- Deadlines --------------------------------------------------------------------------

-- | That long from now.
deadlineIn :: Duration -> IO Instant
deadlineIn d = after d <$> now

-- | No deadline.
noDeadline :: Instant
noDeadline = never

-- | The same socket, for operations with that deadline: each throws an error that
-- satisfies 'isTimeout' when it could not be done in time. Unlike
-- 'Weft.Thread.timeout' it loses no data: what arrived before the deadline is
-- returned.
--
-- > soon <- deadlineIn (seconds 5)
-- > request <- recv (withDeadline soon sock) 4096
withDeadline :: Instant -> Socket -> Socket
withDeadline d s = s {socketDeadline = d}

-- | Is it the error of a deadline that passed (or of a connection that the kernel
-- gave up)?
isTimeout :: IOError -> Bool
isTimeout e = case ioe_type e of
  TimeExpired -> True
  _ -> False

-- Closing ----------------------------------------------------------------------------

-- | Close a socket. Threads that wait on it get @EBADF@. No effect on one that is
-- closed; throws nothing.
close :: Socket -> IO ()
close s = void (closeEndpoint (socketEndpoint s)) <* touchSocket s

-- | The same, but throws @EBADF@ when it is closed already.
close' :: Socket -> IO ()
close' s = do
  closed <- closeEndpoint (socketEndpoint s) <* touchSocket s
  unless closed (ioError (socketError "Weft.Socket.close'" eBADF))
