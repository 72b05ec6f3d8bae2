{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Weft's web server
module NetWarp
  ( serveApplication,
    serveApplicationWith,
  )
where

import Control.Exception (bracket)
import qualified Network.Socket as N
import Network.Wai (Application)
import Weft.Http (Options (..), defaultOptions, defaultSettings, loadTls, runWith, setBeforeMainLoop, setHTTP2Cleartext, setHost, setPort)

-- | Serve on this port of the loopback interface (0: one that is free), after telling the callback which it is.
serveApplication :: Int -> (Int -> IO ()) -> Application -> IO ()
serveApplication = serveApplicationWith Nothing

-- | The same over TLS with this certificate chain and key. HTTP\/2 is served over TLS and without, as in Warp.
serveApplicationWith :: Maybe (FilePath, FilePath) -> Int -> (Int -> IO ()) -> Application -> IO ()
serveApplicationWith secure wanted listening application = do
  tls <- traverse (uncurry loadTls) secure
  port <- if wanted == 0 then freePort else pure wanted
  let settings = setHost "127.0.0.1" (setPort port (setBeforeMainLoop (listening port) (setHTTP2Cleartext True defaultSettings)))
  runWith defaultOptions {optionTls = tls} settings application

-- | A port that is free at the moment.
freePort :: IO Int
freePort = bracket (N.socket N.AF_INET N.Stream N.defaultProtocol) N.close $ \socket -> do
  N.bind socket (N.SockAddrInet 0 (N.tupleToHostAddress (127, 0, 0, 1)))
  fromIntegral <$> N.socketPort socket
