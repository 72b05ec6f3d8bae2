-- |
-- What became of a request: the one place that measures it, for logs and counters.
--
-- > measured :: Application -> Application
-- > measured = observing (pure ()) $ \request exchange ->
-- >   print (rawPathInfo request, exchangeStatus exchange, exchangeTook exchange)
module Weft.Exchange
  ( Exchange (..),
    observing,
  )
where

import Control.Exception (onException)
import Control.Monad (unless)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder)
import Data.ByteString.Builder.Internal (BufferRange (..), BuildStep, bufferFull, builder, fillWithBuildStep, insertChunk, runBuilder)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Foreign.Ptr (minusPtr)
import Network.HTTP.Types (hContentLength, methodHead, statusCode)
import Network.Wai
import Network.Wai.Internal (Response (..))
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Sys (now)

-- | A request that is over.
data Exchange = Exchange
  { -- | As the application gave it; 500 when it threw and gave none, which is what Warp
    -- says to the client then.
    exchangeStatus :: !Int,
    -- | Bytes of the body that were given to the connection. 'Nothing' where nobody here
    -- knows: a file whose length Warp finds out, a file or a body of a declared length that was
    -- cut off, a raw response.
    exchangeBytes :: !(Maybe Int),
    -- | From when the request's head was there until the last byte of the response had been
    -- given to the connection. Of HTTP\/2: until it was queued, which Warp does not wait
    -- for.
    exchangeTook :: !Duration,
    -- | Did an exception end it before the response was complete, as when the client goes
    -- away, is too slow, or the server ends?
    exchangeAborted :: !Bool
  }
  deriving (Eq, Show)

-- | Run one action when a request comes, and another one when it is over, however it ends.
-- Neither may block or throw: they are run on the request's thread, before its connection
-- goes on.
observing :: IO () -> (Request -> Exchange -> IO ()) -> Middleware
observing begun over app request respond = do
  begun
  Instant start <- now
  answered <- newIORef False
  let tell status bytes aborted = do
        Instant end <- now
        over request (Exchange status bytes (Duration (end - start)) aborted)
      answer response = do
        writeIORef answered True
        let status = statusCode (responseStatus response)
        case measure (requestMethod request == methodHead) response of
          Known atEnd -> do
            received <- respond response `onException` tell status (if atEnd == Just 0 then atEnd else Nothing) True
            received <$ tell status atEnd False
          Counted counting -> do
            count <- newIORef 0
            let soFar aborted = readIORef count >>= \bytes -> tell status (Just bytes) aborted
            received <- respond (counting (\n -> modifyIORef' count (+ n))) `onException` soFar True
            received <$ soFar False
  app request answer `onException` do
    told <- readIORef answered
    unless told (tell 500 Nothing True)

-- | How the bytes of a body are found out.
data Measure
  = -- | They are those when all has gone well, if anybody knows.
    Known !(Maybe Int)
  | -- | By a response that says of every few bytes that it made them.
    Counted ((Int -> IO ()) -> Response)

measure :: Bool -> Response -> Measure
measure isHead response
  -- RFC 9110, 6.4.1: these have no body, whatever the application gave.
  | isHead || status == 204 || status == 304 || status < 200 = Known (Just 0)
  | otherwise = case response of
    ResponseFile _ _ _ part -> Known (fromInteger . filePartByteCount <$> part)
    ResponseRaw _ _ -> Known Nothing
    ResponseBuilder _ h _ | Just n <- declared h -> Known (Just n)
    ResponseBuilder s h b -> Counted (\tell -> ResponseBuilder s h (tallied tell b))
    ResponseStream s h body -> Counted (\tell -> ResponseStream s h (\write -> body (write . tallied tell)))
  where
    status = statusCode (responseStatus response)
    declared h = case C.readInt <$> lookup hContentLength h of
      Just (Just (n, rest)) | B.null rest -> Just n
      _ -> Nothing

-- | A builder that says how many bytes it has made. They are counted where they are, in
-- Warp's buffer.
tallied :: (Int -> IO ()) -> Builder -> Builder
tallied tell b = builder (go (runBuilder b))
  where
    go :: BuildStep () -> BuildStep r -> BuildStep r
    go step next range@(BufferRange start _) = fillWithBuildStep step done full inserted range
      where
        done end () = do
          tell (end `minusPtr` start)
          let BufferRange _ limit = range
          next (BufferRange end limit)
        full end wanted step' = do
          tell (end `minusPtr` start)
          pure (bufferFull wanted end (go step' next))
        inserted end bytes step' = do
          tell (end `minusPtr` start + B.length bytes)
          pure (insertChunk end bytes (go step' next))
