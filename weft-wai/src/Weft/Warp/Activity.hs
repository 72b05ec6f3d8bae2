{-# LANGUAGE OverloadedStrings #-}

-- |
-- What each connection is doing, so that a server that stops can tell a connection
-- that waits for its client's next request from one with a request under way.
--
-- Warp says nothing of it, but it shows in the order of its calls. Phases, each
-- written by the thread that serves the connection:
--
-- @
--   Fresh     nothing has come yet         -> Reading, Ended
--   Reading   a request came, or a part    -> Answered, Ended
--   Answered  something was sent since     -> Idle (asks for more), Reading
--   Idle      waits, with all answered     -> Reading, Ended
--   Ended     the client sends no more     -> Answered
-- @
--
-- 'Idle' would lie in three cases: an application that has begun its response and
-- reads on in the request's body; one that talks on the raw connection; and HTTP/2. 'track'
-- marks them, at a price that ordinary requests do not pay.
module Weft.Warp.Activity
  ( -- * One connection
    Activity (..),
    Phase (..),
    Hold (..),
    Cork (..),
    newActivity,
    mayReadOn,

    -- * Those of an engine
    Book,
    newBook,
    isDraining,
    enter,
    leave,
    track,
    together,

    -- * Ending
    endIdle,
  )
where

import Control.Concurrent (ThreadId, myThreadId)
import Control.Exception (IOException, bracket_, catch, onException)
import Control.Monad (forM_, when)
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.Map.Strict as Map
import Network.HTTP.Types (HeaderName, httpMajor)
import Network.Wai (Application, RequestBodyLength (..), httpVersion, requestBodyLength)
import Network.Wai.Handler.Warp.Internal (Settings)
import Network.Wai.Internal (Response (..))
import Weft.Socket (ShutdownCmd (ShutdownReceive), Socket, close, shutdown)
import Weft.Socket.ByteString (sendAll)
import Weft.Warp.Patience

-- | See the table above.
data Phase = Fresh | Reading | Answered | Idle | Ended | Probed
  deriving (Eq, Show)

-- | Is it inside an application that may read more, whatever was sent: in its
-- request's body, or on the raw connection?
data Hold = Free | InBody | OnRaw
  deriving (Eq)

-- | One connection.
data Activity = Activity
  { -- | Which serves it; over HTTP/2 others help.
    activityThread :: !ThreadId,
    activitySocket :: !Socket,
    activityPhase :: !(IORef Phase),
    -- | Written by 'track'.
    activityHold :: !(IORef Hold),
    -- | Written by Warp.
    activityHttp2 :: !(IORef Bool),
    -- | Written by 'track' and by who sends, the same thread.
    activityCork :: !(IORef Cork),
    activityPatience :: !Patience
  }

-- | Is the beginning of a response held back, so that it leaves with what follows?
data Cork
  = Open
  | -- | If it is short.
    Next
  | Held !ByteString

-- | Of a connection that has just been accepted, and is served by the calling thread.
newActivity :: Settings -> Socket -> IO Activity
newActivity settings sock = do
  self <- myThreadId
  Activity self sock <$> newIORef Fresh <*> newIORef Free <*> newIORef False <*> newIORef Open <*> newPatience settings (close sock)

-- | The connections of one engine.
data Book = Book
  { -- | By the thread that serves it. Changed by these threads.
    bookConnections :: !(IORef (Map.Map ThreadId Activity)),
    -- | How many HTTP/2 requests applications are working on.
    bookHttp2Requests :: !(IORef Int),
    -- | Written once, by whoever stops the server; shared by all engines.
    bookDraining :: !(IORef Bool)
  }

-- | An empty one. The argument becomes true when the server is to end.
newBook :: IORef Bool -> IO Book
newBook draining = (\connections requests -> Book connections requests draining) <$> newIORef Map.empty <*> newIORef 0

-- | Is the server about to end?
isDraining :: Book -> IO Bool
isDraining = readIORef . bookDraining
{-# INLINE isDraining #-}

-- | Put a connection into the book.
enter :: Book -> Activity -> IO ()
enter book activity =
  atomicModifyIORef' (bookConnections book) (\m -> (Map.insert (activityThread activity) activity m, ()))

-- | The calling thread has ended its connection, if it had one.
leave :: Book -> IO ()
leave book = do
  self <- myThreadId
  found <- atomicModifyIORef' (bookConnections book) (\m -> (Map.delete self m, Map.lookup self m))
  mapM_ (endPatience . activityPatience) found

-- | With everything answered, may more be read? Not when the server is ending.
mayReadOn :: Book -> Activity -> IO Bool
mayReadOn book activity = do
  draining <- isDraining book
  if draining then (||) . (/= Free) <$> readIORef (activityHold activity) <*> readIORef (activityHttp2 activity) else pure True

-- | Mark the requests for which the phases alone are not enough.
track :: Book -> Application -> Application
track book app req respond
  | httpMajor (httpVersion req) >= 2 = bracket_ (count 1) (count (-1)) (app req (respond . apart))
  | bodiless = app req marked
  | otherwise = holding InBody book (app req marked)
  where
    marked response = case response of
      ResponseRaw _ _ -> holding OnRaw book (respond response)
      ResponseBuilder status ((name, _) : fields) body
        | name == togetherName -> corked book (respond (ResponseBuilder status fields body))
      _ -> respond response
    bodiless = case requestBodyLength req of
      KnownLength 0 -> True
      _ -> False
    apart (ResponseBuilder status ((name, _) : fields) body) | name == togetherName = ResponseBuilder status fields body
    apart response = response
    count d = atomicModifyIORef' (bookHttp2Requests book) (\n -> (n + d, ()))

-- | Mark a response whose body is there when its head is sent, as one piece
-- ('Data.ByteString.Builder.Extra.byteStringInsert'), so that both leave in one system call:
-- worth while for bodies that Warp's buffer does not hold. In HTTP\/1; elsewhere it
-- changes nothing.
together :: Response -> Response
together (ResponseBuilder status fields body) = ResponseBuilder status ((togetherName, "1") : fields) body
together other = other

-- | Taken out before Warp sees it.
togetherName :: HeaderName
togetherName = "X-Weft-Together"

-- | Hold the head back until more is sent, or the response has ended.
corked :: Book -> IO a -> IO a
corked book act = do
  self <- myThreadId
  found <- Map.lookup self <$> readIORef (bookConnections book)
  case found of
    Nothing -> act
    Just activity -> do
      let cork = activityCork activity
      writeIORef cork Next
      a <- act `onException` writeIORef cork Open
      left <- readIORef cork
      writeIORef cork Open
      -- A response without a body, to a HEAD: it leaves now.
      case left of
        Held bytes -> do
          sending (activityPatience activity) (sendAll (activitySocket activity) bytes)
          writeIORef (activityPhase activity) Answered
        _ -> pure ()
      pure a

-- | Whatever comes within is something new.
holding :: Hold -> Book -> IO a -> IO a
holding how book act = do
  self <- myThreadId
  found <- Map.lookup self <$> readIORef (bookConnections book)
  case found of
    Nothing -> act
    Just activity -> do
      renewPatience (activityPatience activity)
      let hold = activityHold activity
      before <- readIORef hold
      bracket_ (writeIORef hold how) (writeIORef hold before) act

-- | End the connections that wait for a next request: Warp sees the end of the
-- stream, and what the client had already sent comes before it. To be repeated, ten times a
-- second, with the number of the turn from zero: a connection on which nothing has
-- come yet is given a second, and one of HTTP/2 ends when for half a second no
-- request was being worked on and nothing was sent.
endIdle :: Int -> Book -> IO ()
endIdle turn book = do
  running <- readIORef (bookHttp2Requests book)
  activities <- readIORef (bookConnections book)
  forM_ activities $ \activity -> do
    http2 <- readIORef (activityHttp2 activity)
    phase <- readIORef (activityPhase activity)
    holds <- (/= Free) <$> readIORef (activityHold activity)
    let idle
          | http2 = running == 0 && probing && phase == Probed
          | otherwise = not holds && (phase == Idle || (phase == Fresh && turn >= 10))
    when idle (end activity)
    when (http2 && probing) (writeIORef (activityPhase activity) Probed)
  where
    probing = turn `mod` 5 == 0
    end activity = shutdown (activitySocket activity) ShutdownReceive `catch` ignore
    ignore :: IOException -> IO ()
    ignore _ = pure ()
