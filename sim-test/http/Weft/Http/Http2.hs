-- |
-- The simulated servers do not support HTTP\/2.
module Weft.Http.Http2
  ( serveHttp2Client,
  )
where

import Data.ByteString (ByteString)
import Network.Wai (Application)
import Weft.Http.Types (Client)

serveHttp2Client :: Client -> Application -> ByteString -> IO ()
serveHttp2Client _ _ _ = pure ()
