{-# LANGUAGE OverloadedStrings #-}

-- |
-- WebSockets over HTTP\/2 (RFC 8441), for applications that know those of HTTP\/1.1: an extended CONNECT is given to
-- the application as the request of an upgrade (RFC 6455, 4.1), which it answers by 'Network.Wai.responseRaw'. What it
-- sends begins with a response of HTTP\/1.1, of which the status and the fields are translated; behind it are the bytes
-- of the tunnel. So @wai-websockets@ serves both versions.
--
-- The ends of a tunnel: what the client ends (END_STREAM) is the end for who receives, and what the application ends by
-- returning or by an exception is one for the client. A reset interrupts the application, as with each stream, and an
-- application whose bytes may be incomplete, as one of its sends was interrupted, resets the stream.
--
-- The functions run in the stream's thread. What they give to the application may be used by several threads, one of
-- which receives; sends wait for each other, and for the client. Their errors are 'IOError's.
module Weft.Http2.Tunnel
  ( isTunnel,
    upgradeOf,
    respondTunnel,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Maybe (isJust)
import Network.HTTP.Types
import Network.Wai
import Network.Wai.Internal (Response (..))
import Weft.Http.Limits (defaultLimits)
import Weft.Http.Parser.Head (Resume (..))
import Weft.Http.Parser.Response
import Weft.Http2.Crew (isCancelled)
import Weft.Http2.Data (Extras)
import Weft.Http2.Engine
import Weft.Http2.Request (Head (..))
import Weft.Http2.Response

-- | Whether a request is an extended CONNECT. The core lets only those for WebSockets through.
isTunnel :: Head -> Bool
isTunnel = isJust . headProtocol

-- | The request of an upgrade over HTTP\/1.1 that asks for the same. HTTP\/2 has no key, as a client of it cannot take
-- another server's answer for one (RFC 8441, 5); the application has to have one.
upgradeOf :: Head -> Head
upgradeOf found = found {headMethod = methodGet, headFields = fields <> [("Connection", "Upgrade"), ("Upgrade", "websocket"), (key, "AAAAAAAAAAAAAAAAAAAAAA==")]}
  where
    fields = filter ((/= key) . fst) (headFields found)
    key = "Sec-WebSocket-Key"

-- | Respond to such a request, given how to receive. A response of success that is not a raw one would be a tunnel for
-- the client; the application that gives it does not know WebSockets, and the client gets 501 (Not Implemented).
respondTunnel :: Http2 -> Stream -> IO ByteString -> Extras -> Request -> Response -> IO ()
respondTunnel h s receive extras request response = case response of
  ResponseRaw talk _ -> newReply h s untrailed request response >>= \reply -> talking h s reply receive talk
  _
    | statusIsSuccessful (responseStatus response) -> sendResponse h s extras request (responseLBS notImplemented501 [] "")
    | otherwise -> sendResponse h s extras request response

-- | How far the application's bytes are.
data Sent
  = -- | The beginning of a response's head, and how far it was parsed.
    PartOfHead !Resume !ByteString
  | Begun
  | -- | The end was handed over, or a send was interrupted.
    Over

talking :: Http2 -> Stream -> Reply -> IO ByteString -> (IO ByteString -> (ByteString -> IO ()) -> IO ()) -> IO ()
talking h s reply receive talk = do
  state <- newMVar (PartOfHead (Resume 0 0) B.empty)
  -- Whoever has been interrupted does not wait for a thread that sends and may never be done.
  talk receive (sendTo state) `onException` mask_ (tryTakeMVar state >>= mapM_ (end state))
  mask_ (takeMVar state >>= end state)
  begun <- isClaimed s
  when begun (ended reply)
  where
    -- One sends at a time: the bytes of another would come between, or in front of the head.
    sendTo state bytes = mask $ \unmask -> unless (B.null bytes) $ do
      before <- takeMVar state
      next <- unmask (send before bytes) `onException` putMVar state Over
      putMVar state next
    send before bytes = do
      gone <- isCancelled (streamRun s)
      when gone (failed "the stream was reset")
      case before of
        PartOfHead resume begin -> respondHead resume (begin <> bytes)
        Begun -> Begun <$ part Nothing [bytes]
        Over -> failed "the stream has ended"
    respondHead resume whole = case resumeResponse defaultLimits False resume whole of
      ResponseIncomplete resume' -> pure (PartOfHead resume' whole)
      ResponseInvalid why -> failed ("no response of HTTP/1.1 to the upgrade: " <> show why)
      ResponseComplete found
        | headResponseFraming found == ResponseChunked -> failed "a response to the upgrade that is chunked"
        | statusIsSuccessful (statusOf found) -> failed "a response to the upgrade that is neither one nor an error"
        | otherwise -> do
          fields <- headFieldsOf h (if headStatus found == 101 then ok200 else statusOf found) (filter (not . ofUpgrade found) (headResponseFields found))
          let rest = B.drop (headResponseEnd found) whole
          Begun <$ part (Just fields) [rest | not (B.null rest)]
    statusOf found = mkStatus (headStatus found) (headReason found)
    -- A tunnel has no length.
    ofUpgrade found (name, _) = headStatus found == 101 && name `elem` [hContentLength, "Sec-WebSocket-Accept"]
    part begin bytes = handOver reply begin bytes False >> roomFor reply
    -- What was not begun is answered as if it had not been tried.
    end state before = do
      case before of
        Begun -> handOver reply Nothing [] True
        _ -> pure ()
      putMVar state Over
    failed why = ioError (userError ("Weft.Http2: " <> why))
