-- |
-- HTTP\/2 (RFC 9113) for WAI applications, over any connection. The @http2@ package provides HPACK. Frames,
-- streams and limits are implemented here, because that package's server buffers without limit what clients do not
-- read, and does not interrupt the application of a stream that was reset.
--
-- Each stream has a thread. The thread keeps the response data until the client takes it, and is cancelled if the
-- client resets the stream. 'Http2Limits' bounds all memory and work that a client can cause on a connection.
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

    -- * Files
    WithFile,
    FileBody (..),
    openWithoutConditions,
  )
where

import Control.Concurrent (forkIOWithUnmask)
import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import Data.IORef (readIORef)
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isJust)
import Network.Wai (Application)
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Control
import Weft.Http2.Frame (ErrorCode (..), connectionPreface)
import Weft.Http2.Receive
import Weft.Http2.Settings
import Weft.Http2.Types
import Weft.IdleTimer (stop)
import Weft.Transport

-- | Serve a connection until it ends, and close it. Its first bytes must be 'connectionPreface' ('withReceived' puts
-- back bytes that were received already). The function is called as soon as the server's SETTINGS have been sent.
-- When 'serveHttp2' returns, all threads of the connection have ended. It rethrows only exceptions that are thrown to
-- the calling thread; errors of clients are reported to 'http2OnRefused'.
serveHttp2 :: Http2Settings -> (Http2Control -> IO ()) -> Connection -> Application -> IO ()
serveHttp2 settings onStart below application = do
  h <- newHttp2 settings below application
  conversation h `finally` (connAbort below >> stop (http2Timer h) >> endStreams h)
  where
    -- A shutdown may begin at once, but its GOAWAY must not be the first frame.
    conversation h = do
      begun <- try (sendSettings h)
      case begun of
        Left e -> const (pure ()) (e :: IOException)
        Right () -> onStart (Http2Control (void (drain h (pure True))) (idleSince h) (drain h (isIdle h))) >> serve h
    serve h = do
      outcome <- try (receiveFrames h)
      ending <- readTVarIO (http2Ending h)
      case outcome of
        -- The connection has failed; or it has ended, so that nothing could be sent in reply to a frame.
        Left e -> const (when (isJust ending) (endAfter h)) (e :: IOException)
        -- The client has closed its sending side: it will send no window update and no body. Clients of HTTP/2
        -- half-close only when they disconnect. What was sent before is still delivered.
        Right Nothing -> connClose below
        Right (Just (refusal, code, why)) -> cancelStreams h >> fatal h refusal code why >> endAfter h
    endAfter h = dropRest h >> connClose below
    drain h condition = mask_ $ do
      begins <- atomically $ do
        begins <- (&&) . not <$> readTVar (http2Draining h) <*> condition
        begins <$ when begins (writeTVar (http2Draining h) True)
      begins <$ when begins (void (forkIOWithUnmask (\unmask -> unmask (finish h))))
    finish h = do
      r <- try (announce h)
      either (\e -> const (pure ()) (e :: IOException)) pure r
      atomically (readTVar (http2Live h) >>= check . (== 0))
      fatal h BadRequest NoError "the server is shutting down"
    isIdle h = (== 0) <$> readTVar (http2Live h)
    idleSince h = do
      idle <- atomically ((&&) . not <$> readTVar (http2Draining h) <*> isIdle h)
      if idle then Just <$> readIORef (http2IdleSince h) else pure Nothing

-- | Tell the client that no new streams are accepted, so that it may retry them on another connection.
announce :: Http2 -> IO ()
announce h = writeFrames h (const (goAway h NoError))

cancelStreams :: Http2 -> IO ()
cancelStreams h = readTVarIO (http2Streams h) >>= mapM_ (cancel h) . IntMap.elems

-- | Cancel all streams and wait for their threads.
endStreams :: Http2 -> IO ()
endStreams h = do
  cancelStreams h
  atomically (readTVar (http2Live h) >>= check . (== 0))
