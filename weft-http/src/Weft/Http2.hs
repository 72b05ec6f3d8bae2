-- |
-- HTTP\/2 (RFC 9113) for WAI applications, over any connection. Frames, streams, limits and HPACK are
-- implemented here.
--
-- An application runs in a thread that serves one stream at a time, and is kept for others of the connection. It is
-- interrupted if the client resets the stream, or the connection ends. 'Http2Limits' bounds all memory and work that a
-- client can cause on a connection.
--
-- > serveHttp2 defaultHttp2Settings (const (pure ())) connection application
--
-- @since 0.1.0
module Weft.Http2
  ( -- * Serving
    serveHttp2,
    Http2Control (..),
    connectionPreface,

    -- * Settings
    Http2Settings (..),
    defaultHttp2Settings,
    Http2Limits (..),
    defaultHttp2Limits,
    Rate (..),
    ErrorCode (..),

    -- * Trailers, and interim responses
    HTTP2Data (..),
    defaultHTTP2Data,
    getHTTP2Data,
    setHTTP2Data,
    modifyHTTP2Data,
    TrailersMaker,
    NextTrailersMaker (..),
    constantTrailers,
    getRequestTrailers,
    sendEarlyHints,

    -- * Files
    WithFile,
    FileBody (..),
    openWithoutConditions,
  )
where

import Control.Exception
import Control.Monad
import Data.IORef (writeIORef)
import Data.Maybe (isJust)
import Network.Wai (Application)
import Weft.Duration (milliseconds, seconds)
import Weft.Http2.Control
import Weft.Http2.Core
import Weft.Http2.Crew
import Weft.Http2.Data
import Weft.Http2.Decoding
import Weft.Http2.Engine
import Weft.Http2.Flush
import Weft.Http2.Frame (ErrorCode (..), connectionPreface)
import Weft.Http2.Receiver
import Weft.Http2.Resets
import Weft.Http2.Settings
import Weft.Runtime.IdleTimer (stop)
import Weft.Sys (now)
import Weft.Timer (schedule)
import Weft.Transport

-- | Serve a connection until it ends, and close it. Its first bytes must be 'connectionPreface' ('withReceived' puts
-- back bytes that were received already). The function is called as soon as the server's SETTINGS are the first
-- frame to be sent.
-- When 'serveHttp2' returns, all threads of the connection have ended. It rethrows only exceptions that are thrown to
-- the calling thread; errors of clients are reported to 'http2OnRefused'.
serveHttp2 :: Http2Settings -> (Http2Control -> IO ()) -> Connection -> Application -> IO ()
serveHttp2 settings onStart below application = do
  h <- newHttp2 (configOf limits) (decoding (limitHeaderList limits)) flush settings below application
  conversation h `finally` (connAbort below >> stop (http2Timer h) >> endCrew (http2Crew h))
  where
    -- A shutdown may begin at once, but its GOAWAY must not be the first frame: the core has queued the SETTINGS.
    conversation h = do
      onStart (Http2Control (writeIORef (http2Draining h) True >> void (drain h (const True))) (idle h) (drain h (isJust . idleSince)))
      ring h
      receiveAll h
      -- If the client has closed its sending side: it will send no window update and no body. Clients of HTTP/2
      -- half-close only when they disconnect. What was sent before is still delivered.
      connClose below
    idle h = withTurn h (\shared -> pure (shared, idleSince (sharedCore shared)))
    drain h condition = do
      t <- now
      begins <- withTurn h $ \shared ->
        if condition (sharedCore shared) && not (isEnded (sharedCore shared))
          then do
            let (actions, core) = step t BeginDrain (sharedCore shared)
            (shared', later) <- obey h shared {sharedCore = core} actions
            pure (shared', Just later)
          else pure (shared, Nothing)
      forM_ begins $ \later -> do
        afterwards h later
        ring h
        -- Who receives may wait for longer than the client has to see the first GOAWAY.
        void (schedule (max (milliseconds 1) roundTrip) (give h (Tell Tick)))
      pure (isJust begins)
    limits = http2Limits settings
    roundTrip = min (seconds 1) (limitFrame limits)

-- | The limits, as the core has them.
configOf :: Http2Limits -> Config
configOf limits =
  defaultConfig
    { configStreams = limitStreams limits,
      configHeaderBlock = limitHeaderBlock limits,
      configHeaderList = limitHeaderList limits,
      configFields = limitFields limits,
      configBodies = limitBodies limits,
      configResets = defaultResetRule {resetRate = limitResets limits},
      configPings = limitPings limits,
      configSettings = limitSettings limits,
      configPriorities = limitPriorities limits,
      configWindowUpdates = limitWindowUpdates limits,
      configEmptyFrames = limitEmptyFrames limits,
      configIdle = limitIdle limits,
      configFrame = limitFrame limits,
      configSilence = limitSilence limits,
      configWait = limitWait limits,
      configRate = limitRate limits
    }
