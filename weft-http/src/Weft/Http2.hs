-- |
-- HTTP\/2 (RFC 9113) for WAI applications, over any connection. The compression of fields is the @http2@ package's; frames,
-- streams and limits are here, because that package's own server holds what clients do not read without a bound and does not end
-- the application of a stream that was reset.
--
-- Each stream has a thread that holds what it sends until the client takes it, and is cancelled when the client resets
-- the stream. 'Http2Limits' bounds everything that a client can make a connection hold or do.
--
-- > serveHttp2 defaultHttp2Settings (const (pure ())) connection application
--
-- @since 0.1.0
module Weft.Http2
  ( -- * Serving
    serveHttp2,
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

import Control.Concurrent (forkIO)
import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import qualified Data.IntMap.Strict as IntMap
import Network.Wai (Application)
import Weft.Duration (milliseconds)
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Frame (ErrorCode (..), connectionPreface)
import Weft.Http2.Receive
import Weft.Http2.Settings
import Weft.Http2.Types
import Weft.IdleTimer (stop)
import Weft.Transport

-- | Serve a connection to its end, and close it. Its first bytes must be 'connectionPreface' ('withReceived' puts back bytes that were
-- received already). The function gets, at once, an action by which any thread can begin a graceful shutdown: no new
-- streams are accepted, open streams go on, and then the connection ends. When 'serveHttp2' returns, all threads of the connection have
-- ended. It rethrows only exceptions that are thrown to the calling thread; errors of clients are reported to 'http2OnRefused'.
serveHttp2 :: Http2Settings -> (IO () -> IO ()) -> Connection -> Application -> IO ()
serveHttp2 settings onStart below application = do
  h <- newHttp2 settings below application
  (onStart (drain h) >> serve h) `finally` (connAbort below >> stop (http2Timer h) >> endStreams h)
  where
    serve h = do
      outcome <- try (receiveFrames h)
      case outcome of
        Left e -> const (pure ()) (e :: IOException)
        -- The client has ended its sending: no window and no body will come, and clients of HTTP/2 do so only when they go.
        Right Nothing -> pure ()
        Right (Just (refusal, code, why)) -> do
          cancelStreams h
          fatal h refusal code why
          connCloseGracefully (milliseconds 500) 8388608 below
    drain h = do
      first <- atomically $ do
        before <- readTVar (http2Draining h)
        not before <$ writeTVar (http2Draining h) True
      when first . void . forkIO $ do
        r <- try (announce h)
        either (\e -> const (pure ()) (e :: IOException)) pure r
        atomically (readTVar (http2Live h) >>= check . (== 0))
        fatal h BadRequest NoError "the server is shutting down"

-- | No new streams are taken: the client may send those again elsewhere.
announce :: Http2 -> IO ()
announce h = writeFrames h (const (goAway h NoError))

cancelStreams :: Http2 -> IO ()
cancelStreams h = readTVarIO (http2Streams h) >>= mapM_ (cancel h) . IntMap.elems

-- | Nothing of the connection is left afterwards.
endStreams :: Http2 -> IO ()
endStreams h = do
  cancelStreams h
  atomically (readTVar (http2Live h) >>= check . (== 0))
