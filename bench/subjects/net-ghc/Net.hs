-- |
-- Description : Sockets on GHC's own I/O manager
--
-- The server loop as it is written today on the @network@ package: one listening socket, a thread a connection.
module Net
  ( Socket,
    serve,
    serveInTurn,
    recv,
    sendAll,
    counters,
  )
where

import Control.Concurrent (forkFinally)
import Control.Monad (forever)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)

-- | Serve on this port of the loopback interface (0: the system chooses), after telling the callback which it is.
-- The handler's socket is closed when it returns or throws. Runs until killed.
serve :: Int -> (Int -> IO ()) -> (Socket -> IO ()) -> IO ()
serve port listening handler = do
  listener <- socket AF_INET Stream defaultProtocol
  setSocketOption listener ReuseAddr 1
  bind listener (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
  listen listener 1024
  socketPort listener >>= listening . fromIntegral
  forever $ do
    (connection, _) <- accept listener
    setSocketOption connection NoDelay 1
    forkFinally (handler connection) (const (close connection))

-- | As 'serve': there is one acceptor anyway, and the run-time system moves threads to idle capabilities.
serveInTurn :: Int -> (Int -> IO ()) -> (Socket -> IO ()) -> IO ()
serveInTurn = serve

-- | GHC's manager keeps no counters.
counters :: IO [(String, Integer)]
counters = pure []
