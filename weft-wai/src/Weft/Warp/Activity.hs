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
    Watch (..),
    newActivity,
    phaseOf,
    setPhase,
    holdOf,
    requestsOf,
    isRefused,
    setRefused,
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
    lastRequest,
    waitingOf,
    showOut,
  )
where

import Control.Concurrent (ThreadId, myThreadId, throwTo)
import Control.Exception (IOException, SomeException, bracket_, catch, fromException, onException, throwIO)
import Control.Monad (forM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (catMaybes)
import GHC.IO.Exception (IOErrorType (InvalidArgument))
import Network.HTTP.Types (HeaderName, hConnection, httpMajor)
import Network.Wai (Application, RequestBodyLength (..), httpVersion, mapResponseHeaders, requestBodyLength)
import Network.Wai.Internal (Response (..))
import System.IO.Error (ioeGetErrorType)
import System.TimeManager (TimeoutThread (..))
import Weft.Socket (ShutdownCmd (ShutdownReceive), Socket, shutdown)
import Weft.Sys (Cells, newCells, peekCell, pokeCell)
import Weft.Warp.Guard (Guard)
import Weft.Warp.Limits (Limits (..), Refusal)
import Weft.Warp.Patience
import Weft.Warp.Stream (Stream (..))

-- | See the table above.
--
-- Two more are written by others: 'Probed', by who looks whether anything happens on a
-- connection of HTTP\/2, and 'ShownOut', by who makes room for a new one. The thread
-- overwrites them.
data Phase = Fresh | Reading | Answered | Idle | Ended | Probed | ShownOut
  deriving (Eq, Show, Enum)

-- | Is it inside an application that may read more, whatever was sent: in its
-- request's body, or on the raw connection?
data Hold = Free | InBody | OnRaw
  deriving (Eq, Enum)

-- | One connection.
data Activity = Activity
  { -- | Which serves it; over HTTP/2 others help.
    activityThread :: !ThreadId,
    activitySocket :: !Socket,
    activityStream :: !Stream,
    activityWatch :: !(Maybe Watch),
    -- | Words that change with each request: a reference to a value would be one more thing for the
    -- collector to look at. Cell 0: the 'Phase'. Cell 1: the 'Hold', written by 'track'. The
    -- other two only where the client has limits, written by the thread that receives. Cell
    -- 2: how many requests there have been. Cell 3: not zero if the client was told that it is refused.
    activityCells :: !Cells,
    -- | Written by Warp.
    activityHttp2 :: !(IORef Bool),
    -- | Written by 'track' and by who sends, the same thread.
    activityCork :: !(IORef Cork),
    activityPatience :: !Patience,
    activityReceiver :: !Receiver
  }

-- | What is kept of a connection whose client has limits. Written by the thread that
-- receives.
data Watch = Watch
  { watchLimits :: !Limits,
    watchGuard :: !(IORef Guard),
    watchRefused :: !(Refusal -> IO ())
  }

-- | Is the beginning of a response held back, so that it leaves with what follows?
data Cork
  = Open
  | -- | If it is short.
    Next
  | Held !ByteString

-- | Of a connection that has just been accepted, and is served by the calling thread.
newActivity :: Socket -> Stream -> Maybe Watch -> Patience -> IO Activity
newActivity sock stream watch patience = do
  self <- myThreadId
  cells <- newCells 4
  http2 <- newIORef False
  cork <- newIORef Open
  let receiver = receiving patience (receiveFailed self http2) (streamRecv stream)
      activity = Activity self sock stream watch cells http2 cork patience receiver
  activity <$ setPhase activity Fresh

-- | What is received when that fails, for the thread that serves the connection.
receiveFailed :: ThreadId -> IORef Bool -> SomeException -> IO ByteString
receiveFailed self http2 e = do
  free <- readIORef http2
  case (fromException e, fromException e) of
    -- Over HTTP/2 it is not the connection's own thread that receives. That one is told, and this
    -- one ends, which all versions of the library take well only as an end of the stream.
    (Just TimeoutThread, _) | free -> B.empty <$ throwTo self TimeoutThread
    -- By a server that ends.
    (_, Just closed) | ioeGetErrorType closed == InvalidArgument -> pure B.empty
    _ -> throwIO e

phaseOf :: Activity -> IO Phase
phaseOf activity = toEnum <$> peekCell (activityCells activity) 0

setPhase :: Activity -> Phase -> IO ()
setPhase activity = pokeCell (activityCells activity) 0 . fromEnum

holdOf :: Activity -> IO Hold
holdOf activity = toEnum <$> peekCell (activityCells activity) 1

setHold :: Activity -> Hold -> IO ()
setHold activity = pokeCell (activityCells activity) 1 . fromEnum

-- | How many requests there have been, of a client that has limits.
requestsOf :: Activity -> IO Int
requestsOf activity = peekCell (activityCells activity) 2

-- | Was the client told that it is refused? Then nothing else is sent.
isRefused :: Activity -> IO Bool
isRefused activity = (/= 0) <$> peekCell (activityCells activity) 3

setRefused :: Activity -> IO ()
setRefused activity = pokeCell (activityCells activity) 3 1

-- | The connections of one engine.
data Book = Book
  { -- | By the thread that serves it. Changed by these threads.
    bookConnections :: !(IORef (Map.Map ThreadId Activity)),
    -- | How many HTTP/2 requests applications are working on.
    bookHttp2Requests :: !(IORef Int),
    -- | How many connections have a last request under way. Changed by their threads.
    bookLast :: !(IORef Int),
    -- | Written once, by whoever stops the server; shared by all engines.
    bookDraining :: !(IORef Bool)
  }

-- | An empty one. The argument becomes true when the server is to end.
newBook :: IORef Bool -> IO Book
newBook draining = (\connections requests ends -> Book connections requests ends draining) <$> newIORef Map.empty <*> newIORef 0 <*> newIORef 0

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
  forM_ found $ \activity -> do
    endPatience (activityPatience activity)
    final <- hadLast activity
    when final (atomicModifyIORef' (bookLast book) (\n -> (n - 1, ())))

-- | A connection begins on a request; is it the last that it may make?
lastRequest :: Book -> Activity -> Int -> IO ()
lastRequest book activity limit = do
  n <- (+ 1) <$> requestsOf activity
  pokeCell (activityCells activity) 2 n
  when (n == limit) (atomicModifyIORef' (bookLast book) (\k -> (k + 1, ())))

hadLast :: Activity -> IO Bool
hadLast activity = case activityWatch activity of
  Nothing -> pure False
  Just watch -> (\n -> limit > 0 && n >= limit) <$> requestsOf activity
    where
      limit = limitRequests (watchLimits watch)

-- | With everything answered, may more be read? Not when the server is ending.
mayReadOn :: Book -> Activity -> IO Bool
mayReadOn book activity = do
  draining <- (||) <$> isDraining book <*> hadLast activity
  if draining then (||) . (/= Free) <$> holdOf activity <*> readIORef (activityHttp2 activity) else pure True

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
        | name == togetherName -> corked book (final (ResponseBuilder status fields body))
      _ -> final response
    -- RFC 9112, 9.6: the client is told not to send another request.
    final response = do
      closing <- closes book
      respond (if closing then mapResponseHeaders ((hConnection, "close") :) response else response)
    bodiless = case requestBodyLength req of
      KnownLength 0 -> True
      _ -> False
    apart (ResponseBuilder status ((name, _) : fields) body) | name == togetherName = ResponseBuilder status fields body
    apart response = response
    count d = atomicModifyIORef' (bookHttp2Requests book) (\n -> (n + d, ()))

-- | Will the calling thread's connection be closed after this response?
closes :: Book -> IO Bool
closes book = do
  draining <- isDraining book
  some <- readIORef (bookLast book)
  if draining || some <= 0 then pure draining else mine
  where
    mine = do
      self <- myThreadId
      found <- Map.lookup self <$> readIORef (bookConnections book)
      maybe (pure False) hadLast found

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
          sending (activityPatience activity) (streamSend (activityStream activity) bytes)
          setPhase activity Answered
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
      grantUsual (activityPatience activity)
      before <- holdOf activity
      bracket_ (setHold activity how) (setHold activity before) act

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
    phase <- phaseOf activity
    holds <- (/= Free) <$> holdOf activity
    let idle
          | http2 = running == 0 && probing && phase == Probed
          | otherwise = not holds && (phase == Idle || (phase == Fresh && turn >= 10))
    when idle (end activity)
    when (http2 && probing) (setPhase activity Probed)
  where
    probing = turn `mod` 5 == 0
    end activity = shutdown (activitySocket activity) ShutdownReceive `catch` ignore
    ignore :: IOException -> IO ()
    ignore _ = pure ()

-- | The connections that wait for their clients with no request under way, with how
-- much of their time is left, from 1 downwards. One of HTTP\/2 is among them when half of
-- its time has passed without anything. Any thread may ask.
waitingOf :: Book -> IO [(Double, Activity)]
waitingOf book = readIORef (bookConnections book) >>= fmap catMaybes . mapM one . Map.elems
  where
    one activity = do
      phase <- phaseOf activity
      http2 <- readIORef (activityHttp2 activity)
      hold <- holdOf activity
      left <- grantedLeft (activityPatience activity)
      let waits
            | http2 = left < 0.5 && phase /= ShownOut
            | otherwise = hold == Free && phase `elem` [Fresh, Idle]
      pure (if waits then Just (left, activity) else Nothing)

-- | End a connection that waits, to make room: a request that has come meanwhile is still
-- answered.
showOut :: Activity -> IO ()
showOut activity = do
  setPhase activity ShownOut
  shutdown (activitySocket activity) ShutdownReceive `catch` ignore
  where
    ignore :: IOException -> IO ()
    ignore _ = pure ()
