-- |
-- Measuring requests, for logs and counters: status, bytes, duration, and whether they were aborted.
--
-- > measured :: Application -> Application
-- > measured = observing (pure ()) $ \request exchange ->
-- >   print (rawPathInfo request, exchangeStatus exchange, exchangeTook exchange)
--
-- @since 0.1.0
module Weft.Exchange
  ( Exchange (..),
    observing,
  )
where

import Control.Exception (onException)
import Control.Monad (when)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder, byteString, lazyByteString, toLazyByteString)
import qualified Data.ByteString.Lazy as L
import Network.HTTP.Types (hContentLength, methodHead, statusCode)
import Network.Wai
import Network.Wai.Internal (Response (..))
import System.IO.Unsafe (unsafeInterleaveIO)
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Http.Parser.Bytes (decimal)
import Weft.Sys (bumpWord, newWordArray, now, peekWord, pokeWord)

-- | The outcome of a request.
data Exchange = Exchange
  { -- | The status of the application's response; 500 if the application threw an exception before it responded, since
    -- the server then sends a 500.
    exchangeStatus :: !Int,
    -- | Bytes of the body that were passed to the connection. 'Nothing' if the number is not known
    -- here: for a file whose length the server determines, for a file or a body with a declared length that was
    -- cut off, and for a raw response.
    exchangeBytes :: !(Maybe Int),
    -- | The time from when the request's head was complete until the last byte of the response was
    -- given to the connection.
    exchangeTook :: !Duration,
    -- | Whether an exception ended the request before the response was complete: the client has disconnected
    -- or is too slow, or the server is shutting down.
    exchangeAborted :: !Bool
  }
  deriving (Eq, Show)

-- | Run one action when a request begins, and another one when it has ended, by an exception or not.
-- The actions must neither block nor throw: they run on the request's thread and delay its
-- connection.
observing :: IO () -> (Request -> Exchange -> IO ()) -> Middleware
observing begun over app = measured
  where
    measured request respond = do
      begun
      Instant start <- now
      state <- newWordArray 3
      pokeWord state cellStatus 500
      pokeWord state cellBytes unknown
      let report aborted = do
            Instant end <- now
            status <- peekWord state cellStatus
            bytes <- peekWord state cellBytes
            pokeWord state cellReported 1
            over request (Exchange status (if bytes < 0 then Nothing else Just bytes) (Duration (end - start)) aborted)
          answer response = do
            let known = bodyLength (requestMethod request == methodHead) response
            pokeWord state cellStatus (statusCode (responseStatus response))
            -- The number of bytes of a body with a declared length stays unknown until the response is complete.
            pokeWord state cellBytes (if known == counted || known == 0 then 0 else unknown)
            received <- if known == counted then tallying (bumpWord state cellBytes) response >>= respond else respond response
            if known == counted then pure () else pokeWord state cellBytes known
            received <$ report False
          unlessReported act = peekWord state cellReported >>= \reported -> when (reported == 0) act
      received <- app request answer `onException` unlessReported (report True)
      -- Not reported yet: sending the response failed, and the application swallowed the exception.
      received <$ unlessReported (report True)
{-# INLINE observing #-}

-- | The state of a request: whether its outcome was reported, its status, and its bytes. Written by the threads that
-- answer the request, one at a time.
cellReported, cellStatus, cellBytes :: Int
cellReported = 0
cellStatus = 1
cellBytes = 2

-- | Special numbers of bytes: not known; to be counted while the body is produced.
unknown, counted :: Int
unknown = -1
counted = -2

-- | The bytes of a response's body, if it is complete.
bodyLength :: Bool -> Response -> Int
bodyLength isHead response
  -- RFC 9110, 6.4.1: such a response has no body, even if the application provides one.
  | isHead || status == 204 || status == 304 || status < 200 = 0
  | otherwise = case response of
    ResponseFile _ _ _ part -> maybe unknown (fromInteger . filePartByteCount) part
    ResponseRaw _ _ -> unknown
    ResponseBuilder _ fields _ -> maybe counted (\digits -> let n = decimal digits in if n < 0 then counted else n) (lookup hContentLength fields)
    ResponseStream {} -> counted
  where
    status = statusCode (responseStatus response)

-- | A response that reports the bytes of its body as it makes them.
tallying :: (Int -> IO ()) -> Response -> IO Response
tallying report response = case response of
  ResponseBuilder status fields body -> ResponseBuilder status fields . lazyByteString . L.fromChunks <$> tallied report body
  ResponseStream status fields body -> pure (ResponseStream status fields (\write -> body (\part -> tallied report part >>= mapM_ (write . byteString))))
  other -> pure other

-- | The chunks of a builder, produced lazily; each is reported when it is produced.
tallied :: (Int -> IO ()) -> Builder -> IO [B.ByteString]
tallied report = go . L.toChunks . toLazyByteString
  where
    go chunks = unsafeInterleaveIO $ case chunks of
      [] -> pure []
      bytes : rest -> report (B.length bytes) >> (bytes :) <$> go rest
