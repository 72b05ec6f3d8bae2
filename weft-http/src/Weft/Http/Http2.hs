{-# LANGUAGE OverloadedStrings #-}

-- |
-- HTTP\/2 connections in a server of "Weft.Http": converts its settings and limits to those of "Weft.Http2".
module Weft.Http.Http2
  ( serveHttp2Client,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (fromMaybe)
import qualified Data.Vault.Lazy as Vault
import Network.HTTP.Date (epochTimeToHTTPDate, formatHTTPDate)
import Network.HTTP.Types (hDate, hServer)
import Network.Wai (Application, FilePart (..), Request (..))
import System.Posix.Time (epochTime)
import Weft.Http.FileResponse
import Weft.Http.Limits (Limits (limitHead))
import qualified Weft.Http.Limits as Http1
import Weft.Http.Request (originKey, requestOrigin, securityKey)
import Weft.Http.SendTime (leastRate)
import Weft.Http.Settings
import Weft.Http.Types
import Weft.Http2
import Weft.Transport

-- | Serve an HTTP\/2 connection to its end. The string was already received from it.
serveHttp2Client :: Client -> Application -> ByteString -> IO ()
serveHttp2Client client app received = do
  connection <- withReceived received (clientConnection client)
  stamp <- newIORef (-1, [])
  serveHttp2 (http2 stamp) begun connection (app . onBehalf)
  where
    -- Whoever ends the connection sets its state first and looks for the control then.
    begun control = do
      writeIORef (clientHttp2 client) (Just control)
      isFinal client >>= \final -> when final (controlShutdown control)
    shared = clientShared client
    settings = sharedSettings shared
    limits = sharedLimits shared
    -- With the PROXY protocol the client is not the transport's peer.
    onBehalf request = request {remoteHost = clientPeer client, isSecure = clientSecure client}
    http2 stamp =
      defaultHttp2Settings
        { http2Limits =
            defaultHttp2Limits
              { limitHeaderBlock = limitHead limits,
                limitHeaderList = limitHead limits,
                limitFields = Http1.limitFields limits,
                limitIdle = Http1.limitIdle limits,
                limitFrame = sharedTimeout shared,
                limitWait = sharedTimeout shared,
                limitRate = leastRate (sharedTimeout shared)
              },
          http2Fields = fields stamp,
          http2Vault = (\file -> Vault.insert originKey (Origin file Nothing) common) <$> newIORef NoFile,
          http2OnException = settingsOnException settings,
          http2OnExceptionResponse = settingsOnExceptionResponse settings,
          http2OnResponse = fromMaybe (\_ _ _ -> pure ()) (settingsLogger settings),
          http2OnRefused = \_ refusal _ _ -> sharedOnRefused shared (clientPeer client) refusal,
          http2WithFile = withFile
        }
    common = maybe Vault.empty (\security -> Vault.insert securityKey security Vault.empty) (connSecurity (clientConnection client))
    -- Made once a second. Streams that find that the second is over write the same value.
    fields stamp = do
      now <- epochTime
      (second, made) <- readIORef stamp
      if now == second
        then pure made
        else do
          let !date = formatHTTPDate (epochTimeToHTTPDate now)
              name = settingsServerName settings
              alternative = maybe [] (\value -> [("Alt-Svc", value)]) (settingsAltSvc settings)
              new = (hDate, date) : [(hServer, name) | not (B.null name)] <> alternative
          new <$ writeIORef stamp (now, new)

-- | Opens files as for HTTP\/1.
withFile :: WithFile
withFile placed request status fields path part act = do
  open <- maybe (pure NoFile) (readIORef . originFile) (requestOrigin request)
  case (open, part) of
    (OpenFile held fd, Just range) | held == path, validPart range -> act (partOf status fields fd range)
    _ -> placed . withFileFor request status fields path part $ \found -> act $ case found of
      FileAnswer status' fields' fd range -> partOf status' fields' fd range
      OtherAnswer status' fields' text -> OtherBody status' fields' text
  where
    partOf status' fields' fd range = FileBody status' (rangeFields fields' range) (FileRange fd (fromInteger (filePartOffset range)) (fromInteger (filePartByteCount range)))
