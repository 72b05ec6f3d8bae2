-- |
-- Description : Sockets on Weft
--
-- The same names as in @net-ghc@: 'recv' and 'sendAll' from Weft's counterparts of the @network@ modules, and
-- Weft's own 'W.serve'.
module Net
  ( Socket,
    serve,
    serveInTurn,
    recv,
    sendAll,
    counters,
  )
where

import Weft.Metrics (CapabilityMetrics (..), readMetrics, total)
import Weft.Socket (ServerSettings (..), SockAddr (..), Socket, defaultServerSettings)
import qualified Weft.Socket as W
import Weft.Socket.ByteString (recv, sendAll)

-- | Serve on this port of the loopback interface (0: the system chooses), after telling the callback which it is.
-- The handler's socket is closed when it returns or throws. Runs until killed.
serve :: Int -> (Int -> IO ()) -> (Socket -> IO ()) -> IO ()
serve port listening handler = W.serve (settings port listening) (const . handler)

-- | The same with one acceptor, which hands connections to the capabilities in turn: for few and busy ones.
serveInTurn :: Int -> (Int -> IO ()) -> (Socket -> IO ()) -> IO ()
serveInTurn port listening handler = W.serve (settings port listening) {serverAcceptors = Just 1} (const . handler)

settings :: Int -> (Int -> IO ()) -> ServerSettings
settings port listening =
  defaultServerSettings
    { serverHost = Just "127.0.0.1",
      serverPort = show port,
      serverOnListen = listening . portOf
    }

portOf :: SockAddr -> Int
portOf address = case address of
  SockAddrInet port _ -> fromIntegral port
  SockAddrInet6 port _ _ _ -> fromIntegral port
  SockAddrUnix _ -> 0

-- | What Weft has counted so far, summed over the capabilities.
counters :: IO [(String, Integer)]
counters = do
  metrics <- readMetrics
  pure
    [ (name, fromIntegral (total figure metrics))
      | (name, figure) <-
          [ ("waits", metricsWaits),
            ("wakeups_sent", metricsWakeupsSent),
            ("wakeups_saved", metricsWakeupsSaved),
            ("dispatched", metricsDispatched),
            ("polls_empty", metricsPollsEmpty),
            ("polls_full", metricsPollsFull),
            ("sleeps", metricsSleeps)
          ]
    ]
