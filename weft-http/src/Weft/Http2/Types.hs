-- |
-- An HTTP\/2 connection and its streams: the state that the receiving thread and the streams' threads share, writing
-- frames, and waiting for the client within limits.
module Weft.Http2.Types
  ( -- * Connections
    Http2 (..),
    newHttp2,
    fatal,
    dropRest,
    refusalOf,
    goAway,

    -- * Streams
    ResponseState (..),
    Stream (..),
    Body (..),
    BodyEnd (..),
    appendBody,
    StreamCancelled (..),
    cancel,
    release,
    endedEarly,
    clientEnded,
    beginNumber,
    pastOf,

    -- * Writing
    writeFrames,
    writeFramesAfter,
    writeFile',
    resetFrame,
    windowFrame,

    -- * Waiting for the client
    StreamWait,
    newStreamWait,
    progressed,
    mostSharing,
    awaitClient,
    Stalled (..),

    -- * Windows for bodies of requests
    streamWindowSize,
    windowSize,
    consume,
    giveBack,
    giveBackStream,
    giveBackGrowth,
  )
where

import Control.Concurrent hiding (threadDelay)
import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isNothing)
import Data.Sequence (Seq, ViewR (..), viewr, (|>))
import GHC.Conc (labelThread)
import Network.Wai (Application)
import Weft.Core.Time (Duration (..), Instant (..), until)
import Weft.Http.Limits (Refusal (..))
import Weft.Http.Linger
import Weft.Http.SendTime
import Weft.Http2.Budget (earnTime)
import Weft.Http2.Core.Ended hiding (highest)
import Weft.Http2.Frame
import Weft.Http2.Hpack
import Weft.Http2.Settings
import Weft.IdleTimer
import Weft.Sys (AtomicWords, newAtomicWords, now)
import Weft.Thread (threadDelay)
import qualified Weft.Timer as Timer
import Weft.Transport hiding (Instant)
import Prelude hiding (until)

-- | A connection.
data Http2 = Http2
  { http2Below :: !Connection,
    http2Settings :: !Http2Settings,
    http2Application :: !Application,
    -- | The receiving thread.
    http2Receiver :: !ThreadId,
    -- | The connection's send window, in bytes. Changed by all threads.
    http2Window :: !(TVar Int),
    -- | The initial send window of a new stream. Written by the receiving thread.
    http2InitialWindow :: !(TVar Int),
    -- | The largest payload of a frame that is sent. Written by the receiving thread.
    http2FrameSize :: !(IORef Int),
    -- | The open streams. Added by the receiving thread, removed by it or by the stream's own thread.
    http2Streams :: !(TVar (IntMap.IntMap Stream)),
    -- | The number of open streams as the client counts them: begun, and neither reset nor answered. For the limit on
    -- concurrent streams.
    http2Open :: !(TVar Int),
    -- | The number of streams' threads that have not ended, including those whose stream was reset or answered.
    http2Live :: !(TVar Int),
    -- | The number of streams that have a file open. Changed by their threads.
    http2Files :: !(TVar Int),
    -- | The streams that have begun, and how those that are over have ended. Changed by all threads.
    http2Ended :: !(TVar Ended),
    -- | The highest stream number that was not refused because of a shutdown. Written by the receiving thread; constant
    -- once 'http2Draining' is true.
    http2Accepted :: !(TVar Int),
    -- | Held while frames are written.
    http2Writing :: !(MVar Encoder),
    -- | Aborts the connection if a frame cannot be written in time.
    http2Timer :: !IdleTimer,
    -- | The state of the write: "Weft.Http.SendTime".
    http2Sending :: !AtomicWords,
    -- | When a frame of a body was last written, or a piece of a body read. Written by the streams' threads.
    http2Progress :: !(IORef Instant),
    -- | Frames of bodies that were written since the receiving thread last looked.
    http2Earned :: !(IORef Int),
    -- | Responses that were completed since the receiving thread last looked.
    http2Completed :: !(IORef Int),
    -- | When the last stream ended.
    http2IdleSince :: !(IORef Instant),
    -- | Bytes of bodies that were received and not yet returned to the client's window.
    http2Unread :: !(TVar Int),
    -- | Bytes that were read or discarded since the last window update. Changed by all threads.
    http2Consumed :: !(TVar Int),
    -- | Bytes by which the receive windows of streams may still grow. Changed by the streams' threads.
    http2Growth :: !(TVar Int),
    -- | Why the connection ends. Written once.
    http2Ending :: !(TVar (Maybe ErrorCode)),
    -- | New streams are refused: the server is shutting down.
    http2Draining :: !(TVar Bool)
  }

-- | A stream.
data Stream = Stream
  { streamId :: !Int,
    streamThread :: !ThreadId,
    -- | Whether the stream counts as open. Changed by 'release'.
    streamCounted :: !(TVar Bool),
    -- | The stream's send window, in bytes.
    streamWindow :: !(TVar Int),
    -- | The received part of the request's body that was not read yet. Written by both threads.
    streamBody :: !(TVar Body),
    -- | The receive window: bytes of the body that the client may still send.
    streamRoom :: !(TVar Int),
    -- | The size to which the receive window is restored. Changed by the stream's thread.
    streamFull :: !(TVar Int),
    -- | The declared length of the body.
    streamExpected :: !(Maybe Int),
    -- | The bytes of the body that were received so far. Used by the receiving thread.
    streamReceived :: !(IORef Int),
    -- | How far the response is. Used by the threads that respond, and changed while 'http2Writing' is held.
    streamResponse :: !(IORef ResponseState)
  }

-- | Nothing of the response was sent; its head was; its last frame was. A state is entered when the write of its frame
-- can no longer be interrupted; if the write fails, the connection is aborted.
data ResponseState = ResponseNone | ResponseBegun | ResponseEnded
  deriving (Eq)

-- | Pieces that were not read yet, their total size, and whether the body continues.
data Body = Body !(Seq ByteString) !Int !BodyEnd

data BodyEnd = BodyOpen | BodyComplete | BodyBroken
  deriving (Eq)

-- | Add bytes to a body. Small pieces are joined: otherwise a client that sends one byte in each frame would make the
-- server hold a hundred times its window.
appendBody :: ByteString -> BodyEnd -> Body -> Body
appendBody bytes end (Body pieces size _)
  | B.null bytes = Body pieces size end
  | otherwise = Body joined (size + B.length bytes) end
  where
    joined = case viewr pieces of
      before :> lastPiece | B.length lastPiece + B.length bytes <= 2048 -> before `adding` (lastPiece <> bytes)
      -- A copy, so that a small piece does not keep the whole receive buffer alive.
      _ -> pieces `adding` B.copy bytes
    -- Evaluated: a thunk would keep the buffer as well.
    adding before !piece = before |> piece

-- | Thrown to the thread of a stream that was reset or whose connection has ended.
data StreamCancelled = StreamCancelled
  deriving (Show)

instance Exception StreamCancelled where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | A connection that the calling thread will receive from.
newHttp2 :: Http2Settings -> Connection -> Application -> IO Http2
newHttp2 settings below application = do
  t <- now
  self <- myThreadId
  sending <- newAtomicWords 1
  let limits = http2Limits settings
      time = limitFrame limits
  timer <- newDecidingIdleTimer time $ \late ->
    if ranLate late then pure (Later afterPause) else maybe (Expire (connAbort below)) Later <$> moreTime below sending 0 InRequest time
  Http2 below settings application self
    <$> newTVarIO 65535
    <*> newTVarIO 65535
    <*> newIORef 16384
    <*> newTVarIO IntMap.empty
    <*> newTVarIO 0
    <*> newTVarIO 0
    <*> newTVarIO 0
    <*> newTVarIO (noneEnded (limitStreams limits))
    <*> newTVarIO 0
    <*> (newEncoder >>= newMVar)
    <*> pure timer
    <*> pure sending
    <*> newIORef t
    <*> newIORef 0
    <*> newIORef 0
    <*> newIORef t
    <*> newTVarIO 0
    <*> newTVarIO 0
    <*> newTVarIO ((windowOf limits - streamWindowSize) `div` 2)
    <*> newTVarIO Nothing
    <*> newTVarIO False

-- | End the connection for a reason: send GOAWAY, unless another thread writes for longer than half a second, and shut
-- down sending; then close the connection when its client has had time to take what was sent ("Weft.Http.Linger"), or
-- abort it after an error. Meanwhile the receiving thread has to drop what comes ('dropRest'). Any thread may call it; the
-- first reason counts.
fatal :: Http2 -> Refusal -> ErrorCode -> String -> IO ()
fatal h refusal code why = do
  first <- atomically $ do
    ending <- readTVar (http2Ending h)
    case ending of
      Just _ -> pure False
      Nothing -> True <$ writeTVar (http2Ending h) (Just code)
  -- A stream's thread that is cancelled at this point must leave the lock behind, and the connection to be closed.
  when first . mask_ . (`finally` closeLater) $ do
    when (code /= NoError) (http2OnRefused (http2Settings h) (connPeer (http2Below h)) refusal code why)
    line <- idle (250 :: Int)
    forM_ line $ \encoder -> do
      deadline <- deadlineIn (if code == NoError then limit else Timer.milliseconds 500)
      (goAway h code >>= connSendMany (http2Below h) deadline >> connShutdownSend (http2Below h) deadline)
        `catch` ignore
        `finally` putMVar (http2Writing h) encoder
  where
    limit = limitFrame (http2Limits (http2Settings h))
    closeLater = forkIO (lasting >> (if code == NoError then connClose else connAbort) (http2Below h)) >>= (`labelThread` "weft http/2 end")
    lasting = untilTaken limit (pure ()) hear (http2Below h)
    -- The receiving thread has the bytes.
    hear deadline = do
      t <- now
      Timer.sleep (deadline `until` t)
      received <- readIORef (http2Progress h)
      pure (if received >= t then HeardBytes else HeardNothing)
    -- No timeout, whose exception could come when the lock has been taken.
    idle n = do
      line <- tryTakeMVar (http2Writing h)
      if isNothing line && n > 0 then Timer.sleep (Timer.milliseconds 2) >> idle (n - 1) else pure line
    ignore :: IOException -> IO ()
    ignore _ = pure ()

-- | Drop what still comes on a connection that ends, until the client closes it or 'fatal' does: TCP resets a connection
-- that is closed with unread data. By the receiving thread. A client that has seen the end sends little more than its
-- windows allow, so after 8 MiB the connection is closed.
dropRest :: Http2 -> IO ()
dropRest h = go (8388608 :: Int) `catch` ignore
  where
    go left = when (left > 0) $ do
      bytes <- connReceive (http2Below h) noDeadline 65536
      now >>= writeIORef (http2Progress h)
      unless (B.null bytes) (go (left - B.length bytes))
    ignore :: IOException -> IO ()
    ignore _ = pure ()

-- | The refusal that corresponds to an error code.
refusalOf :: ErrorCode -> Refusal
refusalOf code = case code of
  EnhanceYourCalm -> LimitExceeded
  RefusedStream -> LimitExceeded
  Cancel -> ClientTooSlow
  SettingsTimeout -> ClientTooSlow
  _ -> BadRequest

-- | Stop counting a stream as open. This happens before the client is told that the stream has ended, since the client
-- may then begin another one at once, before this stream's thread has finished.
release :: Http2 -> Stream -> STM ()
release h s = do
  counted <- readTVar (streamCounted s)
  when counted $ do
    writeTVar (streamCounted s) False
    modifyTVar' (http2Open h) (subtract 1)

-- | A stream ended here while its client may still be sending.
endedEarly :: Http2 -> Int -> STM ()
endedEarly h stream = modifyTVar' (http2Ended h) (endedHere stream)

-- | The client has ended or reset a stream: frames that come after that are errors.
clientEnded :: Http2 -> Int -> STM ()
clientEnded h stream = modifyTVar' (http2Ended h) (endedThere stream)

-- | The client has begun a stream with a higher number than all before.
beginNumber :: Http2 -> Int -> STM ()
beginNumber h stream = modifyTVar' (http2Ended h) (begin stream)

-- | What a stream is that is not in the table.
pastOf :: Http2 -> Int -> STM Past
pastOf h stream = past stream <$> readTVar (http2Ended h)

-- | GOAWAY, with the highest stream number accepted and the reason. A second GOAWAY must not have a higher number, since
-- the client may have retried the streams above the first one (RFC 9113, 6.8).
goAway :: Http2 -> ErrorCode -> IO [ByteString]
goAway h code = do
  highest <- readTVarIO (http2Accepted h)
  pure [frame typeGoAway 0 0 (B.drop 5 (frameHead 0 0 highest 0) <> errorNumber code)]

-- | Cancel a stream locally: remove it from the table and interrupt its thread. Called by the receiving thread.
--
-- Clients may close the connection, or reset the stream, as soon as they have the end of the response. So a thread that
-- has sent it is given a second to report it and to return from the application.
cancel :: Http2 -> Stream -> IO ()
cancel h s = do
  unanswered <- atomically $ do
    unanswered <- readTVar (streamCounted s)
    release h s
    modifyTVar' (http2Streams h) (IntMap.delete (streamId s))
    modifyTVar' (streamBody s) (\(Body pieces size _) -> Body pieces size BodyBroken)
    pure unanswered
  -- In a thread of its own, since an application that masks exceptions must not delay the connection.
  void . forkIO $ do
    unless unanswered (threadDelay 1000000)
    throwTo (streamThread s) StreamCancelled

-- Writing ----------------------------------------------------------------------------

-- | Write frames without others in between, with exclusive access to the compression state. Waiting for the lock can be
-- interrupted. Writing cannot, since it would leave half a frame; it has a time limit. If it fails, the connection is
-- aborted. Only the receiving thread can be interrupted as it writes, since the connection ends with it in any case; the
-- other threads' writes then fail.
writeFrames :: Http2 -> (Encoder -> IO [ByteString]) -> IO ()
writeFrames = writeFramesAfter (pure ())

-- | 'writeFrames' after an action that may throw; then nothing is written, and the connection continues. Nothing else is
-- written in between.
writeFramesAfter :: IO () -> Http2 -> (Encoder -> IO [ByteString]) -> IO ()
writeFramesAfter checked h build = writing h checked (fmap (connSendMany (http2Below h) noDeadline) . build)

-- | Write part of a file as the payload of a frame whose beginning is given by the strings. The action runs before, when
-- writing can no longer be interrupted.
writeFile' :: Http2 -> IO () -> [ByteString] -> FileRange -> IO ()
writeFile' h before strings range = writing h (pure ()) (\_ -> before >> pure (connSendFile (http2Below h) noDeadline strings range))

writing :: Http2 -> IO () -> (Encoder -> IO (IO ())) -> IO ()
writing h checked act = mask_ $ do
  encoder <- takeMVar (http2Writing h)
  self <- myThreadId
  (if self == http2Receiver h then id else uninterruptibleMask_) . (`finally` putMVar (http2Writing h) encoder) $ do
    ending <- readTVarIO (http2Ending h)
    forM_ ending (const (ioError (userError "Weft.Http2: the connection has ended")))
    checked
    (`onException` connAbort (http2Below h)) $ do
      send <- act encoder
      beginSend (http2Sending h) 0
      during (http2Timer h) (limitFrame (http2Limits (http2Settings h))) send
      endSend (http2Sending h) 0

-- | A RST_STREAM frame.
resetFrame :: Int -> ErrorCode -> ByteString
resetFrame stream code = frame typeReset 0 stream (errorNumber code)

-- | A WINDOW_UPDATE frame: stream (0 is the connection), increment.
windowFrame :: Int -> Int -> ByteString
windowFrame stream n = frame typeWindowUpdate 0 stream (B.drop 5 (frameHead 0 0 n 0))

-- Waiting for the client -------------------------------------------------------------

-- | How long a stream may still wait for its client, in nanoseconds. Used by one thread.
newtype StreamWait = StreamWait (IORef Int64)

-- | The client was too slow to take a response, or to send a body.
data Stalled = StalledSending | StalledReceiving
  deriving (Show)

instance Exception Stalled

newStreamWait :: Http2Limits -> IO StreamWait
newStreamWait limits = StreamWait <$> newIORef (durationNs (limitWait limits))

-- | The given number of bytes was transferred, which adds their time to the remaining time, up to a maximum. The least
-- rate is shared by the given number of streams.
progressed :: Http2 -> StreamWait -> Int -> Int -> IO ()
progressed h (StreamWait left) streams n = modifyIORef' left (earnTime (limitWait limits) (limitRate limits `div` max 1 (min mostSharing streams)) n)
  where
    limits = http2Limits (http2Settings h)

-- | The largest number of streams that share the least rate, so that a client cannot save up time by many streams.
mostSharing :: Int
mostSharing = 8

-- | Wait for the client; throws the given exception if it has used up its time.
awaitClient :: Stalled -> StreamWait -> STM a -> IO a
awaitClient stalled (StreamWait left) act = do
  first <- atomically ((Just <$> act) `orElse` pure Nothing)
  maybe wait pure first
  where
    wait = do
      before <- readIORef left
      Instant t <- now
      over <- newTVarIO False
      timer <- Timer.schedule (Duration before) (atomically (writeTVar over True))
      r <- atomically ((Just <$> act) `orElse` (Nothing <$ (readTVar over >>= check))) `onException` Timer.cancel timer
      _ <- Timer.cancel timer
      Instant t' <- now
      writeIORef left (before - (t' - t))
      let late = ranLate (Duration (t' - t - before))
      case r of
        Just a -> pure a
        -- What the client has sent while the process did not run is read first.
        Nothing | late -> writeIORef left (durationNs afterPause) >> wait
        Nothing -> throwIO stalled

-- Windows ----------------------------------------------------------------------------

-- | The initial receive window of a stream for a request's body: the protocol's default.
streamWindowSize :: Int
streamWindowSize = 65535

-- | The receive window of the connection: 'limitBodies', as far as the protocol allows (RFC 9113, 6.9.1, 6.9.2).
windowSize :: Http2 -> Int
windowSize = windowOf . http2Limits . http2Settings

windowOf :: Http2Limits -> Int
windowOf = min 2147483647 . max streamWindowSize . limitBodies

-- | Bytes of bodies have been read or discarded. The client may send that many more, once 'giveBack' has told it.
consume :: Http2 -> Int -> STM ()
consume h n = modifyTVar' (http2Consumed h) (+ n)

-- | Let the client send as many bytes as were consumed, if the amount is worth a frame. A thread that is interrupted
-- while it waits to write the frame leaves them to the next one.
giveBack :: Http2 -> IO ()
giveBack h = do
  consumed <- readTVarIO (http2Consumed h)
  when (consumed >= windowSize h `div` 4) . writeFrames h . const $ do
    due <- atomically $ do
      due <- swapTVar (http2Consumed h) 0
      due <$ modifyTVar' (http2Unread h) (subtract due)
    pure [windowFrame 0 due | due > 0]

-- | Enlarge a stream's receive window up to its full size less the bytes that are still unread, so as to return the
-- bytes that were read and any padding, which counts like data (RFC 9113, 6.9.1). Sends a window update only when the
-- amount is worth a frame. Called by the receiving thread, and by the stream's thread, which then wants the window to grow:
-- the full size doubles with each update, as long as the streams that are read together use no more than half of the
-- connection's window. So an upload is not limited by the delay, and streams that are not read leave room for others.
giveBackStream :: Http2 -> Stream -> Bool -> IO ()
giveBackStream h s grows = do
  worth <- atomically amount
  when (worth > 0) . writeFrames h . const $ do
    due <- atomically $ do
      due <- amount
      more <- if grows && due > 0 then min <$> readTVar (streamFull s) <*> readTVar (http2Growth h) else pure 0
      when (more > 0) $ do
        modifyTVar' (streamFull s) (+ more)
        modifyTVar' (http2Growth h) (subtract more)
      (due + more) <$ modifyTVar' (streamRoom s) (+ (due + more))
    pure [windowFrame (streamId s) due | due > 0]
  where
    amount = do
      Body _ waiting end <- readTVar (streamBody s)
      room <- readTVar (streamRoom s)
      full <- readTVar (streamFull s)
      let due = full - room - waiting
      pure (if end == BodyOpen && due >= full `div` 4 then due else 0)

-- | A stream has ended: what its receive window had grown is there for others. To be called once.
giveBackGrowth :: Http2 -> Stream -> STM ()
giveBackGrowth h s = readTVar (streamFull s) >>= \full -> modifyTVar' (http2Growth h) (+ (full - streamWindowSize))
