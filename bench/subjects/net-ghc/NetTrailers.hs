-- |
-- Description : Trailers of Warp
module NetTrailers
  ( setTrailers,
  )
where

import Network.HTTP.Types (ResponseHeaders)
import Network.HTTP2.Server (NextTrailersMaker (..))
import Network.Wai (Request)
import Network.Wai.Handler.Warp (HTTP2Data (..), defaultHTTP2Data, setHTTP2Data)

-- | Trailers of the response to a request over HTTP\/2.
setTrailers :: Request -> ResponseHeaders -> IO ()
setTrailers request fields = setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = maker})
  where
    maker part = pure (maybe (Trailers fields) (const (NextTrailersMaker maker)) part)
