-- |
-- What an application can do with a request over HTTP\/2 besides WAI: trailers in both directions, under Warp's names,
-- and interim responses. The request's vault has it. Over HTTP\/1, and in other servers, there is nothing: the
-- functions return 'Nothing', or do nothing.
--
-- > app request respond = do
-- >   setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = constantTrailers [("grpc-status", "0")]})
-- >   respond (responseStream ok200 [("Content-Type", "application/grpc")] body)
module Weft.Http2.Data
  ( -- * Trailers of responses
    HTTP2Data (..),
    defaultHTTP2Data,
    getHTTP2Data,
    setHTTP2Data,
    modifyHTTP2Data,
    TrailersMaker,
    NextTrailersMaker (..),
    constantTrailers,

    -- * Trailers of requests
    getRequestTrailers,

    -- * Interim responses
    sendEarlyHints,

    -- * For the engine
    Extras (..),
    newExtras,
    extrasKey,
  )
where

import Control.Monad (join)
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.Vault.Lazy as Vault
import Network.HTTP.Types (RequestHeaders, ResponseHeaders)
import Network.Wai (Request, vault)
import System.IO.Unsafe (unsafePerformIO)

-- | What is added to a response over HTTP\/2.
newtype HTTP2Data = HTTP2Data
  { -- | Makes the trailers as the body is handed over.
    http2dataTrailers :: TrailersMaker
  }

-- | Gets each part of the body, and 'Nothing' at its end. Runs in the thread that responds. Its exceptions break the
-- response off.
type TrailersMaker = Maybe ByteString -> IO NextTrailersMaker

-- | What to do with the next part; or the trailers, at the end. Trailers that are returned before the end count if
-- nothing follows.
data NextTrailersMaker
  = NextTrailersMaker TrailersMaker
  | Trailers ResponseHeaders

-- | No trailers.
defaultHTTP2Data :: HTTP2Data
defaultHTTP2Data = HTTP2Data (constantTrailers [])

-- | Trailers that do not depend on the body.
constantTrailers :: ResponseHeaders -> TrailersMaker
constantTrailers fields part = pure (maybe (Trailers fields) (const (NextTrailersMaker (constantTrailers fields))) part)

-- | What was set for the response to a request.
getHTTP2Data :: Request -> IO (Maybe HTTP2Data)
getHTTP2Data request = join <$> mapM (readIORef . extrasData) (extrasOf request)

-- | Set it. It counts from when the application responds.
setHTTP2Data :: Request -> Maybe HTTP2Data -> IO ()
setHTTP2Data request new = modifyHTTP2Data request (const new)

-- | Change it.
modifyHTTP2Data :: Request -> (Maybe HTTP2Data -> Maybe HTTP2Data) -> IO ()
modifyHTTP2Data request change = mapM_ (\extras -> atomicModifyIORef' (extrasData extras) (\old -> (change old, ()))) (extrasOf request)

-- | The trailers of a request's body (RFC 9113, 8.1), in their order and with names in lower case. 'Nothing' until all
-- of the body was received; they are certain to be there when 'Network.Wai.getRequestBodyChunk' has returned the end.
getRequestTrailers :: Request -> IO (Maybe RequestHeaders)
getRequestTrailers request = join <$> mapM extrasTrailers (extrasOf request)

-- | Send an interim response, 103 (RFC 8297), with fields such as @Link@, before the response. Afterwards it does
-- nothing. It waits for nothing, and is not sent at all if the fields are invalid.
sendEarlyHints :: Request -> ResponseHeaders -> IO ()
sendEarlyHints request fields = mapM_ (`extrasHints` fields) (extrasOf request)

-- | What a request over HTTP\/2 has besides.
data Extras = Extras
  { extrasData :: !(IORef (Maybe HTTP2Data)),
    extrasTrailers :: IO (Maybe RequestHeaders),
    extrasHints :: ResponseHeaders -> IO ()
  }

-- | Of a request: how to read its trailers, and how to send an interim response.
newExtras :: IO (Maybe RequestHeaders) -> (ResponseHeaders -> IO ()) -> IO Extras
newExtras trailers hints = (\ref -> Extras ref trailers hints) <$> newIORef Nothing

extrasOf :: Request -> Maybe Extras
extrasOf = Vault.lookup extrasKey . vault

-- | Where a request has it.
extrasKey :: Vault.Key Extras
extrasKey = unsafePerformIO Vault.newKey
{-# NOINLINE extrasKey #-}
