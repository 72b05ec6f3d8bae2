-- |
-- Where Warp's settings say to listen.
module Weft.Warp.Listen
  ( withListeners,
  )
where

import Control.Exception (bracket, onException)
import Data.Streaming.Network.Internal (HostPreference (..))
import Network.Wai.Handler.Warp.Internal (Settings (..))
import Weft.Socket

-- | Run a server on the settings' host and port: one acceptor a capability.
--
-- @*@ is every address, @*4@ and @!4@ every one of IPv4, @*6@ every one with an
-- IPv6 socket (which takes IPv4 as well), @!6@ those of IPv6 only.
withListeners ::
  Settings -> ServerSettings -> (Socket -> SockAddr -> IO ()) -> (Server -> IO a) -> IO a
withListeners settings base handler act = case settingsHost settings of
  HostAny -> on Nothing
  HostIPv4 -> on (Just "0.0.0.0")
  HostIPv4Only -> on (Just "0.0.0.0")
  HostIPv6 -> on (Just "::")
  HostIPv6Only -> bracket (listenIPv6Only (settingsPort settings)) close $ \listener ->
    withServerOn base [listener] handler act
  Host name -> on (Just name)
  where
    on host = withServer base {serverHost = host, serverPort = show (settingsPort settings)} handler act

listenIPv6Only :: Int -> IO Socket
listenIPv6Only port = do
  sock <- socket AF_INET6 Stream defaultProtocol
  (`onException` close sock) $ do
    setSocketOption sock IPv6Only 1
    setSocketOption sock ReuseAddr 1
    bind sock (SockAddrInet6 (fromIntegral port) 0 (0, 0, 0, 0) 0)
    listen sock (serverBacklog defaultServerSettings)
    pure sock
