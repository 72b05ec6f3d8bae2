-- |
-- Description : Warp on GHC's own I/O manager
module NetWarp
  ( serveApplication,
    serveApplicationWith,
  )
where

import Control.Exception (bracket)
import Network.Socket
import Network.Wai (Application)
import Network.Wai.Handler.Warp (defaultSettings, runSettingsSocket)

-- | Only without TLS, which needs another package.
serveApplicationWith :: Maybe (FilePath, FilePath) -> Int -> (Int -> IO ()) -> Application -> IO ()
serveApplicationWith Nothing = serveApplication
serveApplicationWith (Just _) = \_ _ _ -> ioError (userError "this server has no TLS")

-- | Serve on this port of the loopback interface (0: the system chooses), after telling the callback which it is.
serveApplication :: Int -> (Int -> IO ()) -> Application -> IO ()
serveApplication port listening application =
  bracket (socket AF_INET Stream defaultProtocol) close $ \listener -> do
    setSocketOption listener ReuseAddr 1
    bind listener (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
    listen listener 1024
    socketPort listener >>= listening . fromIntegral
    runSettingsSocket defaultSettings listener application
