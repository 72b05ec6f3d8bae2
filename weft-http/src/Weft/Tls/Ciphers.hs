-- |
-- The supported versions and ciphers: TLS 1.3, and TLS 1.2 with ephemeral elliptic-curve keys and authenticated
-- encryption only, so that every connection has forward secrecy.
module Weft.Tls.Ciphers
  ( supported,
  )
where

import Data.Default.Class (def)
import Data.Word (Word16)
import Network.TLS
import Network.TLS.Extra.Cipher (ciphersuite_strong)

-- | The @tls@ package's settings for both sides.
supported :: Supported
supported =
  def
    { supportedVersions = [TLS13, TLS12],
      supportedCiphers = filter ((`elem` acceptedCiphers) . cipherID) ciphersuite_strong,
      supportedClientInitiatedRenegotiation = False
    }

-- | The numbers of the accepted cipher suites (IANA registry).
acceptedCiphers :: [Word16]
acceptedCiphers =
  [ 0x1301, -- TLS_AES_128_GCM_SHA256
    0x1302, -- TLS_AES_256_GCM_SHA384
    0x1303, -- TLS_CHACHA20_POLY1305_SHA256
    0xc02b, -- ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    0xc02c, -- ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
    0xc02f, -- ECDHE_RSA_WITH_AES_128_GCM_SHA256
    0xc030, -- ECDHE_RSA_WITH_AES_256_GCM_SHA384
    0xcca8, -- ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    0xcca9 -- ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
  ]
