-- |
-- Description : Warp on Weft
module NetWarp
  ( serveApplication,
  )
where

import Network.Wai (Application)
import Weft.Warp (run)

-- | Serve on this port, after telling the callback which it is.
serveApplication :: Int -> (Int -> IO ()) -> Application -> IO ()
serveApplication port listening application = listening port >> run port application
