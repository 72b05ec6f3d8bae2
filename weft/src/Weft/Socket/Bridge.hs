-- |
-- Lending a connection to the @network@ package, for what is not worth doing
-- again.
module Weft.Socket.Bridge
  ( withNetworkSocket,
    getPeerCredential,
  )
where

import Control.Exception (bracket, mask_, onException)
import Foreign.C.Types (CUInt)
import qualified Network.Socket as N
import Weft.FFI.Socket
import Weft.Socket.Types

-- | Lend the connection to code that wants a socket of the @network@ package: a
-- duplicate descriptor, closed afterwards. If that code waits, it waits by GHC's
-- own manager, and deadlines do not count.
withNetworkSocket :: Socket -> (N.Socket -> IO a) -> IO a
withNetworkSocket s = bracket lent N.close
  where
    lent = mask_ $ do
      fd <- immediately "Weft.Socket.withNetworkSocket" s cDup
      -- What is done to it concerns the connection.
      cExpectLingering
      N.mkSocket fd `onException` cClose fd

-- | Process, user and group of the peer of a Unix socket.
getPeerCredential :: Socket -> IO (Maybe CUInt, Maybe CUInt, Maybe CUInt)
getPeerCredential s = withNetworkSocket s N.getPeerCredential
