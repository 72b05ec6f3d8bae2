{-# LANGUAGE OverloadedStrings #-}
-- Newer versions of wai want the body set by a function, which older versions do not have.
{-# OPTIONS_GHC -Wno-deprecations #-}

-- |
-- Builds WAI's request from a parsed head, and what a request's vault says. Pure.
module Weft.Http.Request
  ( requestOf,

    -- * TLS
    requestSecurity,
    securityKey,
  )
where

import Data.ByteString (ByteString)
import Data.Text (Text)
import qualified Data.Vault.Lazy as Vault
import GHC.Exts (lazy)
import Network.HTTP.Types
import Network.Wai (RequestBodyLength (..))
import Network.Wai.Internal (Request (..))
import System.IO.Unsafe (unsafePerformIO)
import Weft.Http.Parser.Head
import Weft.Http.Types
import Weft.Transport (Security)

-- | The request with the given head and body. The path's segments and the query are decoded when the application uses
-- them.
requestOf :: Client -> Head -> IO ByteString -> Request
requestOf client h body =
  Request
    { requestMethod = headMethod h,
      httpVersion = version,
      rawPathInfo = headPath h,
      rawQueryString = headQuery h,
      requestHeaders = headFields h,
      isSecure = clientSecure client,
      remoteHost = clientPeer client,
      pathInfo = pathOf (headPath h),
      queryString = queryOf (headQuery h),
      requestBody = body,
      vault = clientVault client,
      requestBodyLength = case headFraming h of
        NoBody -> noLength
        Sized n -> KnownLength (fromIntegral n)
        Chunked -> ChunkedBody,
      requestHeaderHost = headHost h,
      requestHeaderRange = headRange h,
      requestHeaderReferer = headReferer h,
      requestHeaderUserAgent = headUserAgent h
    }
  where
    !version = if isSet flagOld (headFlags h) then http10 else http11
{-# INLINE requestOf #-}

-- Not inlined, and their arguments are not unpacked ('lazy' prevents that), so that a request holds one word for each
-- until it is used.
pathOf :: ByteString -> [Text]
pathOf path = decodePathSegments (lazy path)
{-# NOINLINE pathOf #-}

queryOf :: ByteString -> Query
queryOf query = parseQuery (lazy query)
{-# NOINLINE queryOf #-}

noLength :: RequestBodyLength
noLength = KnownLength 0
{-# NOINLINE noLength #-}

-- TLS ------------------------------------------------------------------------------------

-- | What TLS has negotiated for the request's connection, over HTTP\/1 and HTTP\/2: the version, the name that the
-- client asked for, its certificates ('Weft.Tls.peerCertificates' decodes them). 'Nothing' without TLS, or if another
-- server runs the application.
requestSecurity :: Request -> Maybe Security
requestSecurity = Vault.lookup securityKey . vault

-- | The vault key of 'requestSecurity'.
securityKey :: Vault.Key Security
securityKey = unsafePerformIO Vault.newKey
{-# NOINLINE securityKey #-}
