-- |
-- The simulated machine has no TLS: neither its servers nor its clients.
module Weft.Tls
  ( TlsServer,
    tlsAcceptReceived,
    looksLikeTls,
    withoutProtocol,

    -- * Clients
    TlsClientSettings (..),
    defaultTlsClientSettings,
    loadTrustOnce,
    tlsConnect,
  )
where

import Data.ByteString (ByteString)
import Weft.Duration (Duration, seconds)
import Weft.Transport (Connection, withReceived)

-- | A placeholder.
data TlsServer = TlsServer

tlsAcceptReceived :: TlsServer -> ByteString -> Connection -> IO Connection
tlsAcceptReceived TlsServer = withReceived

looksLikeTls :: ByteString -> Bool
looksLikeTls _ = False

withoutProtocol :: ByteString -> TlsServer -> TlsServer
withoutProtocol _ s = s

data TlsClientSettings = TlsClientSettings
  { tlsTrust :: (),
    tlsOffer :: [ByteString],
    tlsConnectTime :: Duration
  }

defaultTlsClientSettings :: TlsClientSettings
defaultTlsClientSettings = TlsClientSettings () [] (seconds 10)

loadTrustOnce :: () -> IO (IO ())
loadTrustOnce = pure . pure

tlsConnect :: TlsClientSettings -> String -> Connection -> IO Connection
tlsConnect _ name _ = ioError (userError ("no TLS, for " <> name))
