-- |
-- Warp's connection as it was up to 3.3.21: with one write buffer of a fixed size.
module Weft.Warp.Compat
  ( newConnection,
  )
where

import Network.Wai.Handler.Warp.Internal
import Weft.Warp.Wire

-- | A connection for Warp, with a write buffer of its own.
newConnection :: Wire -> IO Connection
newConnection wire = do
  buffer <- allocateBuffer writeRoomSize
  pure
    Connection
      { connSendMany = wireSendMany wire,
        connSendAll = wireSendAll wire,
        connSendFile = wireSendFile wire (pure (buffer, writeRoomSize)),
        connClose = wireClose wire,
        connFree = freeBuffer buffer,
        connRecv = wireRecv wire,
        connRecvBuf = wireRecvBuf wire,
        connWriteBuffer = buffer,
        connBufferSize = writeRoomSize,
        connHTTP2 = wireHttp2 wire
      }
