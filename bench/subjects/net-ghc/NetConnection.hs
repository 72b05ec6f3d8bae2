-- |
-- Description : Sockets of the @network@ package as connections
--
-- Waiting is GHC's own manager's; deadlines do not count.
module NetConnection
  ( connection,
  )
where

import Foreign.Ptr (plusPtr)
import Network.Socket
import Network.Socket.ByteString (recv, sendMany)
import Weft.Transport (Connection (..), Operations (..), Region (..), sendFileByReading)

-- | A connection that owns the socket.
connection :: Socket -> IO Connection
connection sock = Connection operations . (,) sock <$> getPeerName sock

operations :: Operations (Socket, SockAddr)
operations =
  Operations
    { opReceive = \(sock, _) _ -> recv sock,
      opSend = \(sock, _) _ (Region p n) -> sendRegion sock p n,
      opSendMany = \(sock, _) _ -> sendMany sock,
      opSendFile = \(sock, _) _ first range -> sendMany sock first >> sendFileByReading (sendMany sock . pure) range,
      opShutdownSend = \(sock, _) _ -> shutdown sock ShutdownSend,
      opClose = close . fst,
      opAbort = close . fst,
      opPeer = snd,
      opLocal = getSocketName . fst,
      opSendProgress = const (pure Nothing),
      opAwaitPeer = Nothing,
      opIsQuiet = const (pure False),
      opSecurity = const Nothing,
      opKeepsStrings = const False
    }
  where
    sendRegion sock p n
      | n <= 0 = pure ()
      | otherwise = do
        sent <- sendBuf sock p n
        sendRegion sock (p `plusPtr` sent) (n - sent)
