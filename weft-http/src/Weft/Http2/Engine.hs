-- |
-- An HTTP\/2 connection: who owns what, and how its threads meet.
--
-- * /Receiving/ ("Weft.Http2.Receiver") is a duty that one thread of the connection's crew has at a time. It receives,
--   gives the bytes and the time to the core, and does what the core says: it starts applications, delivers bodies, stops
--   streams. It never sends, so it goes on while a send waits for the client.
-- * /Applications/ run in the threads of the crew ("Weft.Http2.Crew"), first of all in the one that has just received.
--   They hand over what they have ('give') and go on, unless it is much.
-- * /The flusher/ ("Weft.Http2.Flush"), a job of the crew too, gathers what applications have handed over and all frames
--   that the core has, of all streams, and sends them by one call. There is one at a time: it alone uses the compression
--   of header blocks and the bytes of responses. It may wait for the client.
-- * /The turn/ ('http2Turn') is to use the core and the table of streams: by who receives and the flusher, for one step
--   that does not wait.
-- * /The thread that serves the connection/ waits for its end, and ends the crew. Exceptions that are thrown to it end the
--   connection.
--
-- Threads of the crew run many requests, so an exception that somebody throws to one of them may come too late, for a
-- request that has ended. Those who receive and flush are not ended by it.
--
-- The flusher's word:
--
-- @
--   Quiet      nobody flushes                          -> Flushing, by whoever has something ('ring'): it adds the job
--   Flushing   a flusher is a job, or runs             -> Again ('ring'); -> Quiet, by the flusher when it has sent
--                                                         all that it saw, and the core had no more
--   Again      there is more than it may have seen     -> Flushing, by the flusher before it looks
-- @
--
-- Whoever rings has made its change before; the flusher looks after the move. So one of them sees the other. A flusher
-- whose send has failed leaves the word, so that nothing is sent any more.
--
-- The flusher's job waits behind the applications that the same segment has started. Those that do not wait are ready
-- by then, and all their answers go with one send.
module Weft.Http2.Engine
  ( -- * Connections
    Http2 (..),
    newHttp2,
    Shared (..),
    LastHead (..),
    withTurn,

    -- * Streams
    Stream (..),
    newStream,
    claimed,
    isClaimed,
    isComplete,
    completed,
    unclaimed,

    -- * Handing over
    Given (..),
    Answer (..),
    newAnswer,
    give,
    ring,

    -- * Request bodies
    Body (..),
    BodyEnd (..),
    deliver,
    breakBody,
  )
where

import Control.Concurrent.MVar
import Control.Concurrent.QSem
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Sequence (Seq, ViewR (..), viewr, (|>))
import qualified Data.Sequence as Seq
import Network.HTTP.Types (ResponseHeaders)
import Network.Wai (Application)
import Weft.Core.Time (Instant)
import Weft.Http.SendTime
import Weft.Http2.Core
import Weft.Http2.Crew
import Weft.Http2.Hpack.Encoder (Encoder, newEncoder)
import Weft.Http2.Settings
import Weft.Runtime.IdleTimer
import Weft.Sys (WordArray, casWord, newWordArray, now, readWord, writeWord)
import Weft.Transport hiding (Instant)

-- Connections ------------------------------------------------------------------------

-- | A connection.
data Http2 = Http2
  { http2Below :: !Connection,
    http2Settings :: !Http2Settings,
    http2Application :: !Application,
    http2Crew :: !Crew,
    -- | The turn, and what it is for.
    http2Turn :: !(MVar Shared),
    -- | What applications have handed over, the last first. Any thread adds, the flusher takes all.
    http2Inbox :: !(IORef [Given]),
    -- | The flusher's word.
    http2Flushing :: !WordArray,
    -- | What a flusher does.
    http2Flush :: IO (),
    -- | Used by the flusher.
    http2Encoder :: !(IORef Encoder),
    -- | The last head of a response. Written by applications' threads, and by the flusher when no stream is open.
    http2LastHead :: !(IORef LastHead),
    -- | Aborts the connection if a send makes no progress in time: "Weft.Http.SendTime".
    http2Timer :: !IdleTimer,
    http2Sending :: !WordArray,
    -- | Places for files that are open.
    http2Files :: !QSem,
    -- | How many streams make their bodies as they go, files among them: written by their threads.
    http2Senders :: !WordArray,
    -- | When bytes came that were dropped, as the connection ends. Written by who receives.
    http2Heard :: !(IORef Instant),
    -- | Filled when the last frame was sent, and the sending direction has ended.
    http2Sent :: !(MVar ()),
    -- | Whether the server shuts down: then a client that has taken everything is waited for less long.
    http2Draining :: !(IORef Bool)
  }

-- | What belongs to who has the turn.
data Shared = Shared
  { sharedCore :: !Core,
    -- | The streams whose application may still be delivered to or answer.
    sharedStreams :: !(IntMap.IntMap Stream)
  }

-- | The fields of a response's head as they are sent, and what they were made of: the status, the application's fields,
-- and those that are added.
data LastHead = NoHead | LastHead !Int !ResponseHeaders !ResponseHeaders ![Field]

-- | A connection, given the core's decoder and the flusher.
newHttp2 :: Config -> Decode -> (Http2 -> IO ()) -> Http2Settings -> Connection -> Application -> IO Http2
newHttp2 config decode flushing settings below application = do
  t <- now
  sending <- newWordArray 1
  let limits = http2Limits settings
      time = limitFrame limits
  timer <- newDecidingIdleTimer time $ \late ->
    if ranLate late then pure (Later afterPause) else maybe (Expire (connAbort below)) Later <$> moreTime below sending 0 InRequest time
  crew <- newCrew
  turn <- newMVar (Shared (newCore config t decode) IntMap.empty)
  inbox <- newIORef []
  flushes <- newWordArray 1
  encoder <- newIORef (newEncoder 4096)
  lastHead <- newIORef NoHead
  files <- newQSem (max 1 (limitFiles limits))
  senders <- newWordArray 1
  heard <- newIORef t
  sent <- newEmptyMVar
  draining <- newIORef False
  let h = Http2 below settings application crew turn inbox flushes (flushing h) encoder lastHead timer sending files senders heard sent draining
  pure h

-- | Have the turn for an action that does not wait. Masked. If it throws, nothing has changed.
withTurn :: Http2 -> (Shared -> IO (Shared, a)) -> IO a
withTurn h act = mask_ $ do
  before <- takeMVar (http2Turn h)
  (after', a) <- act before `onException` putMVar (http2Turn h) before
  putMVar (http2Turn h) $! after'
  pure a

-- Streams ----------------------------------------------------------------------------

-- | A stream, for its application.
data Stream = Stream
  { streamId :: !StreamId,
    streamRun :: !Run,
    -- | The part of the request's body that was not read yet. Who has the turn adds, the application takes.
    streamBody :: !(IORef Body),
    -- | Filled when something was added.
    streamArrived :: !(MVar ()),
    -- | Filled when the windows are open, after 'AwaitWindow'.
    streamOpened :: !(MVar ()),
    -- | Whether a response was handed over, and whether its end was: see 'claimed'.
    streamClaim :: !WordArray,
    -- | The response. Written by the thread that hands it over, before it does; read by the flusher.
    streamAnswer :: !(IORef (Maybe Answer))
  }

-- | Pieces that were not read yet, their total size, and whether the body continues.
data Body = Body !(Seq ByteString) !Int !BodyEnd

-- | A body continues, has ended with these trailers, or was broken off.
data BodyEnd = BodyOpen | BodyComplete [Field] | BodyBroken

-- | A stream that begins; the flag says that it has no body.
newStream :: StreamId -> Bool -> IO Stream
newStream n final =
  Stream n
    <$> newRun
    <*> newIORef (Body Seq.empty 0 (if final then BodyComplete [] else BodyOpen))
    <*> newEmptyMVar
    <*> newEmptyMVar
    <*> newWordArray 1
    <*> newIORef Nothing

-- | Claim the stream for a response: 'False' if there is one. An application may respond from several threads.
claimed :: Stream -> Answer -> IO Bool
claimed s answer = do
  found <- casWord (streamClaim s) 0 0 1
  (found == 0) <$ when (found == 0) (writeIORef (streamAnswer s) (Just answer))

-- | Whether there is a response.
isClaimed :: Stream -> IO Bool
isClaimed s = (/= 0) <$> readWord (streamClaim s) 0

-- | The end of the response is being handed over.
completed :: Stream -> IO ()
completed s = writeWord (streamClaim s) 0 2

-- | Whether the response was handed over to its end.
isComplete :: Stream -> IO Bool
isComplete s = (== 2) <$> readWord (streamClaim s) 0

-- | The response was taken back.
unclaimed :: Stream -> IO ()
unclaimed s = writeWord (streamClaim s) 0 0

-- | Add bytes to a body. Small pieces are joined: otherwise a client that sends one byte in each frame would make the
-- server hold a hundred times its window.
deliver :: Stream -> ByteString -> BodyEnd -> IO ()
deliver s bytes end = do
  atomicModifyIORef' (streamBody s) (\body -> (added body, ()))
  void (tryPutMVar (streamArrived s) ())
  where
    added (Body pieces size _)
      | B.null bytes = Body pieces size end
      | otherwise = Body (joined pieces) (size + B.length bytes) end
    joined pieces = case viewr pieces of
      before :> lastPiece | B.length lastPiece + B.length bytes <= 2048 -> before `adding` (lastPiece <> bytes)
      -- A copy, so that a small piece does not keep the whole receive buffer alive.
      _ -> pieces `adding` B.copy bytes
    -- Evaluated: a thunk would keep the buffer as well.
    adding before !piece = before |> piece

-- | A body that is not complete is not going to be.
breakBody :: Stream -> IO ()
breakBody s = do
  atomicModifyIORef' (streamBody s) $ \body@(Body pieces size end) ->
    (case end of BodyComplete _ -> body; _ -> Body pieces size BodyBroken, ())
  void (tryPutMVar (streamArrived s) ())

-- Handing over -----------------------------------------------------------------------

-- | What is handed over.
data Given
  = -- | For the core.
    Tell !Input
  | -- | Part of a response: the head, if it is the first part; pieces of the body and their size; the trailers, if it is
    -- the last part.
    Part !Stream !Answer !(Maybe [Field]) [ByteString] !Int !(Maybe [Field])

-- | A response that is handed over. Its words:
--
-- * 0, the state. @Given -> Taken@ by the flusher; @Given -> Withdrawn@ by the application's thread, if it is
--   interrupted: then another response can be given.
-- * 1, the bytes that were handed over and not sent. Added to by the application's thread, subtracted from by the
--   flusher.
-- * 2, whether the end was sent. Written by the flusher.
data Answer = Answer
  { answerWords :: !WordArray,
    -- | Filled by the flusher when it has sent something.
    answerSent :: !(MVar ()),
    -- | The bytes that were taken and not sent. Used by the flusher.
    answerPieces :: !(IORef (Seq ByteString)),
    -- | Run when the end was sent, by the flusher.
    answerReport :: IO ()
  }

-- | A response of which nothing was handed over, and what to do when all of it was sent.
newAnswer :: IO () -> IO Answer
newAnswer report = (\cells sent pieces -> Answer cells sent pieces report) <$> newWordArray 3 <*> newEmptyMVar <*> newIORef Seq.empty

-- | Hand something over.
give :: Http2 -> Given -> IO ()
give h given = atomicModifyIORef' (http2Inbox h) (\rest -> (given : rest, ())) >> ring h

-- | There is something to send, or for the flusher to look at.
ring :: Http2 -> IO ()
ring h = do
  found <- casWord (http2Flushing h) 0 0 1
  case found of
    0 -> do
      run <- newRun
      addJobs (http2Crew h) [Job run False (const (http2Flush h))]
    1 -> do
      seen <- casWord (http2Flushing h) 0 1 2
      when (seen == 0) (ring h)
    _ -> pure ()
