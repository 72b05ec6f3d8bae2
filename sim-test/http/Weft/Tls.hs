-- |
-- The simulated servers do not support TLS.
module Weft.Tls
  ( TlsServer,
    tlsAccept,
    looksLikeTls,
    withoutProtocol,
  )
where

import Data.ByteString (ByteString)
import Weft.Transport (Connection)

-- | A placeholder.
data TlsServer = TlsServer

tlsAccept :: TlsServer -> Connection -> IO Connection
tlsAccept TlsServer = pure

looksLikeTls :: ByteString -> Bool
looksLikeTls _ = False

withoutProtocol :: ByteString -> TlsServer -> TlsServer
withoutProtocol _ s = s
