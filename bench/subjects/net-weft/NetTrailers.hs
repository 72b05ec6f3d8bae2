-- |
-- Description : Trailers of Weft's web server
module NetTrailers
  ( setTrailers,
  )
where

import Network.HTTP.Types (ResponseHeaders)
import Network.Wai (Request)
import Weft.Http

-- | Trailers of the response to a request over HTTP\/2.
setTrailers :: Request -> ResponseHeaders -> IO ()
setTrailers request fields = setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = constantTrailers fields})
