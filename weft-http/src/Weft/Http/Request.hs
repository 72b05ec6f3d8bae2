{-# LANGUAGE OverloadedStrings #-}
-- Newer versions of wai want the body set by a function, which older versions do not have.
{-# OPTIONS_GHC -Wno-deprecations #-}

-- |
-- Builds WAI's request from a parsed head, and what a request's vault says.
module Weft.Http.Request
  ( requestOf,

    -- * TLS
    requestSecurity,
    securityKey,

    -- * Connections
    requestOrigin,
    originKey,
    awaitClientFinished,
    awaitClientGone,
    clientEnd,
  )
where

import Control.Monad (forever)
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
import Weft.Timer (sleep)
import Weft.Transport (PeerState (..), Security, connAwaitPeer)

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

-- Connections ----------------------------------------------------------------------------

-- | What is known of the request's connection or stream, if this server runs the application.
requestOrigin :: Request -> Maybe Origin
requestOrigin = Vault.lookup originKey . vault

-- | The vault key of 'requestOrigin'.
originKey :: Vault.Key Origin
originKey = unsafePerformIO Vault.newKey
{-# NOINLINE originKey #-}

-- | Block until the request's client sends nothing more: it has closed its connection, or has only ended its direction
-- and still reads, which looks the same until something is sent to it (RFC 9293, 3.6; 'Weft.Transport.connAwaitPeer').
-- For an application that works for long, in a thread beside the work:
--
-- > race (awaitClientFinished request) (ask database question) >>= either (const (respond nobody)) (respond . page)
--
-- Nothing of the connection is received: a body, and requests that were sent ahead, stay where they are. Over HTTP\/2,
-- and in other servers, this blocks for ever: there a client that resets its stream or ends its connection ends the
-- application by an exception. Any thread may call it, while the request is answered. Interruptible. Throws @EBADF@ if
-- the server closes the connection.
awaitClientFinished :: Request -> IO ()
awaitClientFinished = awaitClient PeerFinished

-- | 'awaitClientFinished' for a connection that is gone in both directions: it was reset, as happens to one that the
-- client has closed when something is sent to it.
awaitClientGone :: Request -> IO ()
awaitClientGone = awaitClient PeerGone

awaitClient :: PeerState -> Request -> IO ()
awaitClient state request = maybe (forever (sleep maxBound)) (\await -> await state) (clientEnd request)

-- | The wait for the end of the request's client, if it can be told.
clientEnd :: Request -> Maybe (PeerState -> IO ())
clientEnd request = connAwaitPeer <$> (requestOrigin request >>= originConnection)
