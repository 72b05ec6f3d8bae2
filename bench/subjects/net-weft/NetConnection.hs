-- |
-- Description : Weft's sockets as connections
module NetConnection
  ( connection,
  )
where

import Net (Socket)
import Weft.Socket (getPeerName)
import Weft.Transport (Connection, socketConnection)

-- | A connection that owns the socket.
connection :: Socket -> IO Connection
connection sock = socketConnection sock <$> getPeerName sock
