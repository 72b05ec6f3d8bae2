-- |
-- What follows when a server has switched to another protocol: bytes are passed on in both directions, each by a thread
-- that receives and sends in turn, so that the one who sends waits for the one who reads.
module Weft.Http.Proxy.Tunnel
  ( tunnel,
  )
where

import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Weft.Http.Client.Types (ClientSettings (..))
import Weft.Scope
import Weft.Transport

-- | Pass bytes on between a server's connection and a client, given how to receive from the client and to send to it,
-- until the server ends its direction, either connection breaks, or both are silent for too long. If the client ends
-- its direction, so does the proxy towards the server, whose bytes are still passed on. Throws no 'IOException'.
--
-- How long both may be silent is the limit of the client's connection ('Weft.Http.setTimeout'), which sends and
-- receives extend; when the client has ended its direction, it is 'clientReadTime'. The server has to take each piece
-- within 'clientSendTime'.
tunnel :: ClientSettings -> Connection -> IO ByteString -> (ByteString -> IO ()) -> IO ()
tunnel settings server receive send = (`catch` broken) $ do
  -- Written by the thread that receives from the client.
  clientEnded <- newIORef False
  let toServer = do
        bytes <- receive
        limit <- deadlineIn (clientSendTime settings)
        if B.null bytes
          then connShutdownSend server limit >> writeIORef clientEnded True
          else connSendBytes server limit bytes >> toServer
      toClient = do
        limit <- deadlineIn (clientReadTime settings)
        received <- try (connReceive server limit 32768)
        case received of
          Right bytes -> unless (B.null bytes) (send bytes >> toClient)
          Left e
            | isTimeout e -> readIORef clientEnded >>= \ended -> unless ended toClient
            | otherwise -> throwIO e
  -- An error of the one ends the other by closing. (If both failed at once, often for the same reason, the scope would
  -- have an exception too many.)
  withScope $ \scope -> forkDaemon scope (toServer `catch` closing) >> toClient
  where
    broken :: IOException -> IO ()
    broken _ = pure ()
    closing :: IOException -> IO ()
    closing _ = connClose server
