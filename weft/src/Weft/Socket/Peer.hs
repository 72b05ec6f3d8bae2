-- |
-- The state of a connection's peer, found out without reading from it.
module Weft.Socket.Peer
  ( PeerState (..),
    peerState,
    awaitPeerFinished,
    awaitPeerGone,
    awaitPeer,
    isQuiet,
  )
where

import Control.Monad (unless)
import Data.Bits ((.&.), (.|.))
import Foreign.C.Error (eBADF, eTIMEDOUT)
import Foreign.Marshal.Alloc (allocaBytes)
import qualified Weft.Core.Descriptor as Core
import Weft.Core.Events
import Weft.FFI.Poll
import Weft.Socket.Types
import Weft.Thread.Wait (End (..), waitDescriptor)

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

-- | Block until the peer is in this state or a later one.
awaitPeer :: Socket -> PeerState -> IO ()
awaitPeer s state = case state of
  PeerOpen -> pure ()
  PeerFinished -> awaitPeerFinished s
  PeerGone -> awaitPeerGone s

-- | Whether it is known, without a system call, that nothing can be received ('Core.isQuiet').
isQuiet :: Socket -> IO Bool
isQuiet s = withDescriptor s Core.isQuiet

awaitEvents :: String -> Events -> (PeerState -> Bool) -> Socket -> IO ()
awaitEvents loc evs holds s = withDescriptor s $ \d -> do
  end <- waitDescriptor d evs (socketDeadline s)
  case end of
    Happened -> pure ()
    Closed -> ioError (socketError loc eBADF)
    -- What happened before the deadline counts.
    Late -> do
      state <- peerState s
      unless (holds state) (ioError (socketError loc eTIMEDOUT))
