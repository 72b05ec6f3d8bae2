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
import Control.Monad (when)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder)
import Data.ByteString.Builder.Internal (BufferRange (..), BuildStep, bufferFull, builder, fillWithBuildStep, insertChunk, runBuilder)
import Foreign.Ptr (minusPtr)
import Network.HTTP.Types (hContentLength, methodHead, statusCode)
import Network.Wai
import Network.Wai.Internal (Response (..))
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Sys (bumpCell, newCells, now, peekCell, pokeCell)

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
observing begun over app = measured
  where
    measured request respond = do
      begun
      Instant start <- now
      state <- newCells 3
      pokeCell state cellStatus 500
      pokeCell state cellBytes unknown
      let tell aborted = do
            Instant end <- now
            status <- peekCell state cellStatus
            bytes <- peekCell state cellBytes
            pokeCell state cellTold 1
            over request (Exchange status (if bytes < 0 then Nothing else Just bytes) (Duration (end - start)) aborted)
          answer response = do
            let known = bodyLength (requestMethod request == methodHead) response
            pokeCell state cellStatus (statusCode (responseStatus response))
            -- Until all has gone well nobody knows how much of a body of a declared length did.
            pokeCell state cellBytes (if known == counted || known == 0 then 0 else unknown)
            received <- respond (if known == counted then tallying (bumpCell state cellBytes) response else response)
            if known == counted then pure () else pokeCell state cellBytes known
            received <$ tell False
          unlessTold act = peekCell state cellTold >>= \told -> when (told == 0) act
      received <- app request answer `onException` unlessTold (tell True)
      -- It was not when the response failed, and the application took that for nothing.
      received <$ unlessTold (tell True)
{-# INLINE observing #-}

-- | The state of a request: was it told of? What was, or will be, told. Written by the threads that answer it,
-- one after the other.
cellTold, cellStatus, cellBytes :: Int
cellTold = 0
cellStatus = 1
cellBytes = 2

-- | Instead of a number of bytes: nobody knows; they have to be counted as they are made.
unknown, counted :: Int
unknown = -1
counted = -2

-- | The bytes of a response's body, if it is complete.
bodyLength :: Bool -> Response -> Int
bodyLength isHead response
  -- RFC 9110, 6.4.1: these have no body, whatever the application gave.
  | isHead || status == 204 || status == 304 || status < 200 = 0
  | otherwise = case response of
    ResponseFile _ _ _ part -> maybe unknown (fromInteger . filePartByteCount) part
    ResponseRaw _ _ -> unknown
    ResponseBuilder _ fields _ -> maybe counted decimal (lookup hContentLength fields)
    ResponseStream {} -> counted
  where
    status = statusCode (responseStatus response)
    decimal digits
      | B.null digits || B.length digits > 18 || not (B.all (\c -> c >= 48 && c <= 57) digits) = counted
      | otherwise = B.foldl' (\n c -> 10 * n + fromIntegral c - 48) 0 digits

-- | The same response, which says of every few bytes of its body that it made them.
tallying :: (Int -> IO ()) -> Response -> Response
tallying tell response = case response of
  ResponseBuilder status fields body -> ResponseBuilder status fields (tallied tell body)
  ResponseStream status fields body -> ResponseStream status fields (\write -> body (write . tallied tell))
  other -> other

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
