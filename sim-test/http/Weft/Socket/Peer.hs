-- |
-- "Weft.Socket.Peer" on the simulated machine, whose kernel does not tell of ends that nobody has received: a wait for
-- one lasts until it is interrupted, as on connections that cannot tell.
module Weft.Socket.Peer
  ( PeerState (..),
    awaitPeer,
    isQuiet,
  )
where

import Control.Monad (forever)
import qualified Weft.Core.Descriptor as Core
import Weft.Socket.Types
import Weft.Thread.Time (sleep)

data PeerState = PeerOpen | PeerFinished | PeerGone
  deriving (Eq, Ord, Show)

awaitPeer :: Socket -> PeerState -> IO ()
awaitPeer _ state = case state of
  PeerOpen -> pure ()
  _ -> forever (sleep maxBound)

-- | As in the real module.
isQuiet :: Socket -> IO Bool
isQuiet s = withDescriptor s Core.isQuiet
