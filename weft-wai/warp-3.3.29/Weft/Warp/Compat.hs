-- |
-- Warp's connection as it is from 3.3.29 on: Warp may replace the write buffer by
-- a larger one, and is told the local address.
module Weft.Warp.Compat
  ( newConnection,
  )
where

import Data.IORef (newIORef, readIORef)
import Network.Wai.Handler.Warp.Internal
import Weft.Warp.Wire

-- | A connection for Warp, with a write buffer of its own.
newConnection :: Wire -> IO Connection
newConnection wire = do
  local <- wireLocal wire
  buffer <- newIORef =<< createWriteBuffer writeRoomSize
  pure
    Connection
      { connSendMany = wireSendMany wire,
        connSendAll = wireSendAll wire,
        connSendFile = wireSendFile wire ((\b -> (bufBuffer b, bufSize b)) <$> readIORef buffer),
        connClose = wireClose wire,
        connRecv = wireRecv wire,
        connRecvBuf = wireRecvBuf wire,
        connWriteBuffer = buffer,
        connHTTP2 = wireHttp2 wire,
        connMySockAddr = local
      }
