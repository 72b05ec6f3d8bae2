-- |
-- The state of a connection's peer, found out without reading from it.
module Weft.Socket.Peer
  ( PeerState (..),
    peerState,
    awaitPeerFinished,
    awaitPeerGone,
  )
where

import Control.Concurrent.MVar
import Control.Exception (mask_, onException)
import Control.Monad (unless, void)
import Data.Bits ((.&.), (.|.))
import Data.Maybe (fromMaybe)
import Foreign.C.Error (eBADF, eTIMEDOUT)
import Foreign.Marshal.Alloc (allocaBytes)
import Weft.Core.Descriptor (descriptorFd, useDescriptor)
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.Core.Time (never)
import Weft.Core.Timer (cancelTimer)
import Weft.FFI.Poll
import Weft.Runtime.Managers
import Weft.Socket.Types
import Weft.Sys (attempt)

-- | The state of a peer, as far as the kernel knows. A TCP peer that has closed its socket looks like one that has
-- only finished sending, until something is sent to it.
data PeerState
  = -- | It may still send.
    PeerOpen
  | -- | It will send nothing more, and may still be reading (half-close).
    PeerFinished
  | -- | The connection is gone: reset, or closed by both sides.
    PeerGone
  deriving (Eq, Ord, Show)

-- | The present state. One system call; does not wait.
peerState :: Socket -> IO PeerState
peerState s = allocaBytes pollFdSize $ \p -> do
  _ <- immediately "Weft.Socket.peerState" s $ \fd -> do
    pokePollFd p 0 fd pollRdHup
    pollLook p 1
  bits <- peekRevents p 0
  pure $
    if bits .&. (pollHup .|. pollErr) /= 0
      then PeerGone
      else if bits .&. pollRdHup /= 0 then PeerFinished else PeerOpen

-- | Block until the peer has finished sending, whether or not its data has been read. A server can run this beside a
-- long computation, and cancel the computation when its client has gone. Throws @EBADF@ when the socket is closed, and
-- as other operations do when its deadline has passed.
awaitPeerFinished :: Socket -> IO ()
awaitPeerFinished = awaitEvents "Weft.Socket.awaitPeerFinished" evtPeerClosed (/= PeerOpen)

-- | Block until the connection is gone in both directions; a half-close does not
-- count. Throws @EBADF@ when the socket is closed, and as other operations do when its deadline has passed.
awaitPeerGone :: Socket -> IO ()
awaitPeerGone = awaitEvents "Weft.Socket.awaitPeerGone" evtHangup (== PeerGone)

awaitEvents :: String -> Events -> (PeerState -> Bool) -> Socket -> IO ()
awaitEvents loc evs holds s = withDescriptor s wait
  where
    closed = ioError (socketError loc eBADF)
    deadline = socketDeadline s
    -- Registered while the socket cannot be closed, so that the kernel cannot give its number to another
    -- file before.
    wait ep = mask_ $ do
      m <- currentManager
      box <- newEmptyMVar
      let fd = descriptorFd ep
          report _ e = void (tryPutMVar box (Just e))
      outcome <- useDescriptor ep (attempt (register (managerRegistry m) m fd evs OneShot report))
      placed <- fromMaybe closed outcome
      case placed of
        Ready -> pure ()
        ManagerGone -> wait ep
        Placed key -> do
          timer <-
            if deadline == never
              then pure Nothing
              else Just <$> addTimer m deadline (void (tryPutMVar box Nothing))
          let withdraw = mapM_ cancelTimer timer >> unregister (managerRegistry m) fd key
          found <- takeMVar box `onException` withdraw
          case found of
            Just e -> do
              mapM_ cancelTimer timer
              if e `includes` evtOrphaned
                then wait ep
                else if e `includes` evtClose then closed else pure ()
            Nothing -> withdraw >> late
    -- What happened before the deadline counts.
    late = do
      state <- peerState s
      unless (holds state) (ioError (socketError loc eTIMEDOUT))
