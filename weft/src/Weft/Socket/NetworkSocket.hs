-- |
-- Using a connection with functions of the @network@ package, for what Weft does not implement itself.
module Weft.Socket.NetworkSocket
  ( withNetworkSocket,
    getPeerCredential,
  )
where

import Control.Exception (bracket, mask_, onException)
import Foreign.C.Types (CUInt)
import qualified Network.Socket as N
import Weft.FFI.Socket
import Weft.Socket.Types

-- | Run code that wants a socket of the @network@ package. It gets a duplicate of the
-- descriptor, which is closed afterwards. If that code waits, it waits by GHC's
-- own I/O manager, without the socket's deadline.
withNetworkSocket :: Socket -> (N.Socket -> IO a) -> IO a
withNetworkSocket s = bracket lent N.close
  where
    lent = mask_ $ do
      fd <- immediately "Weft.Socket.withNetworkSocket" s cDup
      -- Options that are set on the duplicate, such as SO_LINGER, are the connection's.
      cExpectLingering
      N.mkSocket fd `onException` cClose fd

-- | Process, user and group of the peer of a Unix socket.
getPeerCredential :: Socket -> IO (Maybe CUInt, Maybe CUInt, Maybe CUInt)
getPeerCredential s = withNetworkSocket s N.getPeerCredential
