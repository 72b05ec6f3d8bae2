{-# LANGUAGE OverloadedStrings #-}

-- |
-- A connection of HTTP\/2 that many requests share, as a client. Below "Weft.Http.Client".
--
-- * /The receiving thread/ ('runHttp2') receives, gives the bytes and the time to the core ("Weft.Http2.Client"), and
--   hands over what comes to the streams. It never sends, so it goes on while a send waits for the server.
-- * /The sending thread/ gathers what all requests have handed over, and sends it by one call. It alone uses the
--   compression of header blocks. (A request's own thread does not send: if it were interrupted, half a frame would end
--   the connection for all others.)
-- * /The threads of requests/ hand over what they have ('perform'), and wait for what comes.
-- * /The turn/ ('h2Turn') is to use the core and the table of streams, for one step that does not wait.
--
-- When a request ends, for whatever reason, its thread takes its stream out of the table ('leave'), and the core resets
-- it if it is not over. When the connection ends, the receiving thread tells all streams, and closes it.
module Weft.Http.Client.Http2
  ( -- * Connections
    Http2Connection,
    newHttp2Connection,
    runHttp2,
    http2Served,

    -- * Requests
    exchangeHttp2,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.CaseInsensitive as CI
import qualified Data.CaseInsensitive.Unsafe as CI (unsafeMk)
import Data.Foldable (toList)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (fromMaybe, isJust, isNothing)
import Data.Sequence (Seq, ViewL (..), ViewR (..), viewl, viewr, (<|), (|>))
import qualified Data.Sequence as Seq
import Network.HTTP.Types (Header)
import Weft.Core.Time (after)
import Weft.Duration
import Weft.Http.Client.Exchange (describe, isReset, largestAtOnce, synchronous, unlessFailed)
import Weft.Http.Client.Render (Listed (..))
import Weft.Http.Client.Types
import Weft.Http2.Client
import Weft.Http2.Core.Types (Frame (..), StreamId)
import Weft.Http2.Decoding (decoding)
import Weft.Http2.Encoding
import Weft.Http2.Frame
import Weft.Http2.Hpack.Encoder (Encoder, newEncoder)
import Weft.Scope (forkDaemon, race, withScope)
import Weft.Sys (now)
import Weft.Timer (sleep, within)
import Weft.Transport

-- Connections ------------------------------------------------------------------------

-- | A connection.
data Http2Connection = Http2Connection
  { h2Below :: !Connection,
    h2Settings :: !ClientSettings,
    -- | The turn, and what it is for.
    h2Turn :: !(MVar Shared),
    -- | Filled when there is something to send.
    h2Ring :: !(MVar ()),
    -- | Told how many streams there may be, when that changes. By who has the turn.
    h2Allowed :: Int -> IO ()
  }

-- | What belongs to who has the turn.
data Shared = Shared
  { sharedCore :: !Core,
    -- | The streams of the requests that have not ended.
    sharedStreams :: !(IntMap.IntMap Stream),
    -- | When the last request ended.
    sharedSince :: !Instant,
    -- | How many responses were received whole.
    sharedServed :: !Int
  }

-- | A connection over which nothing was sent, to be run by 'runHttp2'; and the function that is told how many requests
-- it takes, which must not wait.
newHttp2Connection :: ClientSettings -> (Int -> IO ()) -> Connection -> IO Http2Connection
newHttp2Connection settings allowed below = do
  t <- now
  turn <- newMVar (Shared (newCore config t decoder) IntMap.empty t 0)
  Http2Connection below settings turn <$> newMVar () <*> pure allowed
  where
    config =
      defaultConfig
        { configStreams = clientMostStreams settings,
          configWindow = clientStreamWindow settings,
          configSpare = clientSpareWindow settings,
          configHeaderBlock = clientHeadLimit settings,
          configHeaderList = clientHeadLimit settings,
          configFields = clientFieldLimit settings
        }
    decoder = decoding (clientHeadLimit settings)

-- | The number of responses that have been received whole.
http2Served :: Http2Connection -> IO Int
http2Served h = sharedServed <$> readMVar (h2Turn h)

-- | Have the turn for an action that does not wait. Masked. If it throws, nothing has changed.
withTurn :: Http2Connection -> (Shared -> IO (Shared, a)) -> IO a
withTurn h act = mask_ $ do
  before <- takeMVar (h2Turn h)
  (after', a) <- act before `onException` putMVar (h2Turn h) before
  putMVar (h2Turn h) $! after'
  pure a

-- | There may be something to send.
ring :: Http2Connection -> IO ()
ring h = void (tryPutMVar (h2Ring h) ())

-- | Let the core take some steps, and do what it says. Returns whether the connection is over.
perform :: Http2Connection -> [Input] -> IO Bool
perform h inputs = do
  t <- now
  (over, sends) <- withTurn h $ \shared -> do
    shared' <- steps h t inputs shared
    pure (shared', (isEnded (sharedCore shared'), hasFrames (sharedCore shared')))
  when sends (ring h)
  pure over

-- | By who has the turn.
steps :: Http2Connection -> Instant -> [Input] -> Shared -> IO Shared
steps h t inputs shared0 = foldM one shared0 inputs
  where
    one shared input = let (actions, core) = step t input (sharedCore shared) in obey h shared {sharedCore = core} actions

-- | By who has the turn: do what the core says.
obey :: Http2Connection -> Shared -> [Action] -> IO Shared
obey h = foldM one
  where
    one shared action = case action of
      Interim n code -> shared <$ on n (\i -> if code == 100 then i {incomingContinue = True} else i)
      Answer n found -> shared <$ on n (\i -> i {incomingHead = Just found})
      Deliver n bytes -> shared <$ on n (delivered bytes)
      DeliverEnd n trailers -> shared {sharedServed = sharedServed shared + 1} <$ on n (\i -> i {incomingEnd = Complete [(CI.unsafeMk name, value) | (name, value) <- trailers]})
      Lost n why -> shared <$ on n (lostBy (const (causeOf why)))
      Allowed -> shared <$ h2Allowed h (streamsAllowed (sharedCore shared))
      Close code why -> do
        h2Allowed h 0
        shared <$ mapM_ (arriving (lostBy (closed code why))) (IntMap.elems (sharedStreams shared))
      where
        on n f = mapM_ (arriving f) (IntMap.lookup n (sharedStreams shared))
    causeOf why = case why of
      Unprocessed -> NotProcessed
      Reset code -> StreamReset code
      Malformed what -> NotHttp2 what
    closed code why begun
      | code /= NoError = NotHttp2 why
      | begun = EndedEarly
      | otherwise = NoAnswer Nothing

-- Streams ----------------------------------------------------------------------------

-- | A stream, for its request.
data Stream = Stream
  { streamId :: !StreamId,
    -- | What has come and was not taken. Who has the turn adds, the request's thread takes.
    streamIncoming :: !(IORef Incoming),
    -- | Filled when something was added.
    streamCame :: !(MVar ()),
    -- | Bytes that were offered and not taken for sending, by who has the turn; how many were offered and not sent:
    -- added to by the thread that offers, subtracted from by the sending thread.
    streamOutgoing :: !(IORef (Seq ByteString)),
    streamUnsent :: !(IORef Int),
    -- | Filled when something was sent, or the stream was lost.
    streamMoved :: !(MVar ())
  }

-- | What has come of a response.
data Incoming = Incoming
  { incomingContinue :: !Bool,
    incomingHead :: !(Maybe ResponseHead),
    -- | Pieces of the body, and their size.
    incomingPieces :: !(Seq ByteString),
    incomingSize :: !Int,
    -- | Whether something of it was read.
    incomingRead :: !Bool,
    incomingEnd :: !End,
    -- | The server takes no more of the request.
    incomingDeaf :: !Bool
  }

-- | A response goes on, is complete with these trailers, or will not be complete.
data End = Going | Complete ![Header] | Broken !Cause

newStream :: StreamId -> IO Stream
newStream n = Stream n <$> newIORef (Incoming False Nothing Seq.empty 0 False Going False) <*> newEmptyMVar <*> newIORef Seq.empty <*> newIORef 0 <*> newEmptyMVar

-- | Something has come: tell the request.
arriving :: (Incoming -> Incoming) -> Stream -> IO ()
arriving f s = do
  atomicModifyIORef' (streamIncoming s) (\i -> (f i, ()))
  void (tryPutMVar (streamCame s) ())
  void (tryPutMVar (streamMoved s) ())

-- | Bytes of a body came. Small pieces are joined: otherwise a server that sends one byte in each frame would make the
-- client hold a hundred times its window. A copy, so that a small piece does not keep the whole receive buffer alive.
delivered :: ByteString -> Incoming -> Incoming
delivered bytes i = i {incomingPieces = pieces, incomingSize = incomingSize i + B.length bytes}
  where
    !pieces = case viewr (incomingPieces i) of
      before :> lastPiece | B.length lastPiece + B.length bytes <= 2048 -> before `adding` (lastPiece <> bytes)
      _ -> incomingPieces i `adding` B.copy bytes
    adding before !piece = before |> piece

-- | The response will not be complete, if it is not; the cause depends on whether its head has come.
lostBy :: (Bool -> Cause) -> Incoming -> Incoming
lostBy cause i = case incomingEnd i of
  Going -> i {incomingEnd = Broken (cause (isJust (incomingHead i))), incomingDeaf = True}
  _ -> i {incomingDeaf = True}

-- Receiving --------------------------------------------------------------------------

-- | Run the connection until it ends, and close it. An exception ends it.
runHttp2 :: Http2Connection -> IO ()
runHttp2 h = mask $ \restore -> do
  -- None of the two throws: the first that ends is the connection's end.
  outcome <- try (restore (race (try (sending h)) receiving))
  case outcome of
    Right end -> ended (either id id end)
    Left e -> ended (Right ()) >> throwIO (e :: SomeException)
  where
    below = h2Below h
    idle = clientIdleTime (h2Settings h)
    -- The end of the server's direction, or an error of the connection.
    receiving = do
      due <- deadlineIn idle
      received <- try (connReceive below due 16384)
      case received of
        Right bytes
          | B.null bytes -> pure (Right ())
          | otherwise -> perform h [Received bytes] >>= next
        Left e
          | isTimeout e -> unused >>= \yes -> if yes then perform h [Break NoError "idle"] >>= next else receiving
          | otherwise -> pure (Left e)
    -- The last frames are being sent.
    next over
      | over = Right () <$ sleep (seconds 1)
      | otherwise = receiving
    unused = do
      t <- now
      withTurn h (\shared -> pure (shared, IntMap.null (sharedStreams shared) && after idle (sharedSince shared) <= t))
    ended :: Either IOException () -> IO ()
    ended outcome = do
      uninterruptibleMask_ $ do
        t <- now
        withTurn h $ \shared -> do
          -- No further streams.
          shared' <- steps h t [Break NoError "the connection has ended"] shared {sharedStreams = IntMap.empty}
          mapM_ (arriving (lostBy (broken outcome))) (IntMap.elems (sharedStreams shared))
          pure (shared' {sharedStreams = sharedStreams shared}, ())
      either (const (connAbort below)) (const (connClose below)) outcome `onException` connAbort below
    broken outcome begun = case outcome of
      Left e
        | isTimeout e -> TimedOut
        | begun || not (isReset e) -> ConnectionBroken e
        | otherwise -> NoAnswer (Just e)
      Right ()
        | begun -> EndedEarly
        | otherwise -> NoAnswer Nothing

-- Sending ----------------------------------------------------------------------------

-- | Send the preface and what there is, and then whenever somebody rings, until the core has ended. Throws the error of
-- a send.
sending :: Http2Connection -> IO ()
sending h = do
  encoder <- newIORef (newEncoder 4096)
  go encoder [connectionPreface]
  where
    go encoder before = do
      takeMVar (h2Ring h)
      t <- now
      (outs, over, more) <- withTurn h $ \shared -> do
        let (frames, actions, core) = takeFrames t mostAtOnce (sharedCore shared)
        outs <- mapM (withBytes (sharedStreams shared)) frames
        shared' <- obey h shared {sharedCore = core} actions
        pure (shared', (outs, isEnded core, hasFrames core))
      when more (ring h)
      strings <- (before <>) . concat <$> mapM (encode encoder) outs
      limit <- deadlineIn (clientSendTime (h2Settings h))
      unless (null strings) (connSendMany (h2Below h) limit (if isJust (connSecurity (h2Below h)) then strings else joinSmall strings))
      forM_ outs $ \out -> case out of
        Data s _ size _ -> atomicModifyIORef' (streamUnsent s) (\n -> (n - size, ())) >> void (tryPutMVar (streamMoved s) ())
        Plain _ -> pure ()
      unless over (go encoder [])

-- | The bytes of data that are sent by one call: a few records of TLS.
mostAtOnce :: Int
mostAtOnce = 49152

-- | A frame to send. Data come with their bytes, their size, and whether they end the request.
data Out = Plain !Frame | Data !Stream [ByteString] !Int !Bool

-- | By who has the turn: find the bytes of a frame.
withBytes :: IntMap.IntMap Stream -> Frame -> IO Out
withBytes streams f = case f of
  SendData n size final | size > 0, Just s <- IntMap.lookup n streams -> (\pieces -> Data s pieces size final) <$> taken s size
  _ -> pure (Plain f)
  where
    taken _ 0 = pure []
    taken s n = do
      pieces <- readIORef (streamOutgoing s)
      case viewl pieces of
        EmptyL -> pure []
        piece :< rest
          | B.length piece <= n -> writeIORef (streamOutgoing s) rest >> (piece :) <$> taken s (n - B.length piece)
          | otherwise -> [B.take n piece] <$ (writeIORef (streamOutgoing s) $! (B.drop n piece <| rest))

-- | By the sending thread, for the frames in their order. Data of a request that has ended are not sent any more.
encode :: IORef Encoder -> Out -> IO [ByteString]
encode encoder out = case out of
  Data s pieces size final -> pure (dataHead (streamId s) final size : pieces)
  Plain f -> do
    (strings, next) <- evaluate . encodeFrame f =<< readIORef encoder
    writeIORef encoder $! next
    pure strings

-- Requests ---------------------------------------------------------------------------

-- | What does not change during a request.
data Run = Run
  { runConnection :: !Http2Connection,
    runErrand :: !Errand,
    runStream :: !Stream,
    -- | Why the request is to end although its stream is fine. Written by the threads that it has beside its own, and
    -- read by that one.
    runStopped :: !(IORef (Maybe SomeException)),
    runName :: String
  }

runSettings :: Run -> ClientSettings
runSettings = errandSettings . runErrand

runDue :: Run -> Instant
runDue = errandDue . runErrand

-- | End the request, from another thread.
stop :: Run -> SomeException -> IO ()
stop run why = writeIORef (runStopped run) (Just why) >> void (tryPutMVar (streamCame (runStream run)) ())

fails :: Run -> Phase -> Cause -> IO a
fails run phase = throwIO . ClientError (runName run) phase

-- | The end of a phase that begins now.
limited :: Run -> (ClientSettings -> Duration) -> IO Instant
limited run time = min (runDue run) <$> deadlineIn (time (runSettings run))

-- | Send a request before the deadline, and run an action on the response, as 'Weft.Http.Client.Exchange.exchange'
-- does. 'Nothing' if the connection takes no further requests, and nothing was sent. Interruptible where it waits; the
-- action runs as the caller does.
exchangeHttp2 :: Errand -> Http2Connection -> Listed -> (Response -> IO a) -> IO (Maybe a)
exchangeHttp2 errand@(Errand _ _ _ request) h listed act = mask $ \restore -> do
  t <- now
  begun <- withTurn h $ \shared -> case begin t (listedIsHead listed) (listedFields listed) (body == NoBody) (sharedCore shared) of
    Nothing -> pure (shared, Nothing)
    Just (n, core) -> do
      s <- newStream n
      shared' <- case body of
        WithHead bytes -> offer s bytes >> steps h t [Offer n (B.length bytes), Finish n []] shared {sharedCore = core}
        _ -> pure shared {sharedCore = core}
      pure (shared' {sharedStreams = IntMap.insert n s (sharedStreams shared')}, Just s)
  forM begun $ \s -> do
    ring h
    stopped <- newIORef Nothing
    restore (running (Run h errand s stopped (describe request))) `finally` leave h s
  where
    body = case requestBody request of
      EmptyBody -> NoBody
      BytesBody bytes
        | B.null bytes -> NoBody
        | B.length bytes <= largestAtOnce && not (listedExpects listed) -> WithHead bytes
      _ -> Concurrent
    running run = case body of
      NoBody -> do
        answerBy <- limited run clientAnswerTime
        awaitHead run answerBy (pure ()) >>= act . responseOf run
      WithHead _ -> do
        answerBy <- limited run clientAnswerTime
        sentBy <- min answerBy <$> limited run clientSendTime
        early <- headBefore run sentBy (pure ())
        when (isNothing early) $ do
          unsent <- readIORef (streamUnsent (runStream run))
          when (unsent > 0) (fails run Sending TimedOut)
        maybe (awaitHead run answerBy (pure ())) pure early >>= act . responseOf run
      Concurrent -> concurrentlySent run (listedExpects listed) (requestBody request) act

-- | How a body is sent.
data BodySent = NoBody | WithHead !ByteString | Concurrent
  deriving (Eq)

-- | A request has ended: its stream is reset if it is not over, and what was not read of its response counts as read.
leave :: Http2Connection -> Stream -> IO ()
leave h s = uninterruptibleMask_ $ do
  t <- now
  sends <- withTurn h $ \shared -> do
    unread <- atomicModifyIORef' (streamIncoming s) (\i -> (i {incomingPieces = Seq.empty, incomingSize = 0}, incomingSize i))
    writeIORef (streamOutgoing s) Seq.empty
    shared' <- steps h t (GiveUp (streamId s) : [Consume (streamId s) unread | unread > 0]) shared {sharedStreams = IntMap.delete (streamId s) (sharedStreams shared), sharedSince = t}
    pure (shared', hasFrames (sharedCore shared'))
  when sends (ring h)

-- Bodies of requests -----------------------------------------------------------------

-- | By who has the turn: bytes that the core is told of.
offer :: Stream -> ByteString -> IO ()
offer s bytes = do
  modifyIORef' (streamOutgoing s) (|> bytes)
  atomicModifyIORef' (streamUnsent s) (\n -> (n + B.length bytes, ()))

-- | Send the body by a thread of its own. That thread ends with the request, and if it fails, so does the request. The
-- variables are those of 'Weft.Http.Client.Exchange.exchange'.
concurrentlySent :: Run -> Bool -> RequestBody -> (Response -> IO a) -> IO a
concurrentlySent run0 expects body act = do
  proceed <- newEmptyMVar
  sent <- newEmptyMVar
  answered <- newIORef False
  unless expects (putMVar proceed True)
  -- As long as the body is sent, somebody is interested.
  let run = run0 {runErrand = (runErrand run0) {errandUnless = (readMVar sent >>) <$> errandUnless (runErrand run0)}}
  result <- try . withScope $ \scope -> do
    _ <- forkDaemon scope . synchronous (stop run) $ do
      wanted <- fromMaybe True <$> within (clientContinueTime (runSettings run)) (takeMVar proceed)
      when wanted (sendBody run body `catch` unlessAnswered answered)
      putMVar sent ()
      sleep (clientAnswerTime (runSettings run))
      came <- readIORef answered
      unless came (fails run Answering TimedOut)
    h <- awaitHead run (runDue run) (void (tryPutMVar proceed True))
    writeIORef answered True
    _ <- tryPutMVar proceed False
    act (responseOf run h)
  readIORef (runStopped run) >>= unlessFailed result
  where
    unlessAnswered answered e = do
      came <- readIORef answered
      case errorCause e of
        WrongLength -> throwIO e
        _ | came -> pure ()
        _ -> throwIO (e :: ClientError)

-- | Send the body, as far as the server takes it.
sendBody :: Run -> RequestBody -> IO ()
sendBody run body = case body of
  EmptyBody -> finish (pure [])
  BytesBody bytes -> send bytes (finish (pure []))
  StreamBody size next -> pieces size next (pure [])
  TrailedBody size next trailers -> pieces size next trailers
  where
    s = runStream run
    h = runConnection run
    finish trailers = do
      fields <- trailers
      void (perform h [Finish (streamId s) [(CI.foldedCase name, value) | (name, value) <- fields]])
    pieces left next trailers = do
      piece <- next
      case left of
        _ | B.null piece -> if maybe True (== 0) left then finish trailers else fails run Sending WrongLength
        Just n | B.length piece > n -> fails run Sending WrongLength
        _ -> send piece (pieces (subtract (B.length piece) <$> left) next trailers)
    send bytes continue
      | B.null bytes = continue
      | otherwise = do
        let (piece, rest) = B.splitAt largestAtOnce bytes
        t <- now
        withTurn h $ \shared ->
          if IntMap.member (streamId s) (sharedStreams shared)
            then offer s piece >> flip (,) () <$> steps h t [Offer (streamId s) (B.length piece)] shared
            else pure (shared, ())
        ring h
        limit <- limited run clientSendTime
        taken <- untilTaken limit
        when taken (send rest continue)
    -- Whether all was sent; not if the server takes no more.
    untilTaken limit = do
      unsent <- readIORef (streamUnsent s)
      deaf <- incomingDeaf <$> readIORef (streamIncoming s)
      if deaf || unsent == 0
        then pure (not deaf)
        else do
          left <- untilDeadline limit
          moved <- within left (takeMVar (streamMoved s))
          maybe (fails run Sending TimedOut) (const (untilTaken limit)) moved

-- Responses --------------------------------------------------------------------------

-- | Wait until what has come gives a result, before the limit.
awaitIncoming :: Run -> Phase -> Instant -> (Incoming -> IO (Maybe r)) -> IO (Maybe r)
awaitIncoming run phase limit look = go
  where
    s = runStream run
    go = do
      readIORef (runStopped run) >>= mapM_ throwIO
      found <- readIORef (streamIncoming s) >>= look
      case found of
        Just _ -> pure found
        Nothing -> do
          left <- untilDeadline limit
          came <- waiting left
          maybe (pure Nothing) (const go) came
    something left = within left (takeMVar (streamCame s))
    -- Whether anybody is interested is asked only if the wait is long.
    waiting left = case errandUnless (runErrand run) of
      Just gone | left > abandonedAfter -> something abandonedAfter >>= maybe (watched gone) (pure . Just)
      _ -> something left
    watched gone = withScope $ \scope -> do
      _ <- forkDaemon scope $ do
        gone `catch` \e -> const (pure ()) (e :: IOException)
        stop run (toException (ClientError (runName run) phase Abandoned))
      untilDeadline limit >>= something

-- | The head of the response; 'Nothing' if it has not come before the limit. The action is run if the server asks for
-- the body.
headBefore :: Run -> Instant -> IO () -> IO (Maybe ResponseHead)
headBefore run limit continue = awaitIncoming run Answering limit $ \i -> do
  when (incomingContinue i) continue
  case (incomingHead i, incomingEnd i) of
    (Nothing, Broken cause) -> fails run Answering cause
    (found, _) -> pure found

awaitHead :: Run -> Instant -> IO () -> IO ResponseHead
awaitHead run limit continue = headBefore run limit continue >>= maybe (fails run Answering TimedOut) pure

responseOf :: Run -> ResponseHead -> Response
responseOf run found =
  Response
    { responseStatus = toEnum (responseCode found),
      responseFields = responseHeaders found,
      responsePiece = nextPiece run,
      responseWhole = wholeBody run,
      responseTrailers = trailersOf <$> readIORef (streamIncoming (runStream run)),
      responseSwitched = Nothing
    }
  where
    trailersOf i = case incomingEnd i of
      Complete trailers | Seq.null (incomingPieces i) -> trailers
      _ -> []

-- | The next piece of the body; empty at its end.
nextPiece :: Run -> IO ByteString
nextPiece run = mask_ $ do
  limit <- limited run clientReadTime
  left <- untilDeadline limit
  -- What has come does not extend the deadline.
  found <- if left <= mempty then pure Nothing else awaitIncoming run Receiving limit (const takeOne)
  piece <- maybe (fails run Receiving TimedOut) pure found
  piece <$ unless (B.null piece) (readFrom run (B.length piece))
  where
    takeOne = join . atomicModifyIORef' (streamIncoming (runStream run)) $ \i -> case (viewl (incomingPieces i), incomingEnd i) of
      (piece :< rest, _) -> (i {incomingPieces = rest, incomingSize = incomingSize i - B.length piece, incomingRead = True}, pure (Just piece))
      (EmptyL, Going) -> (i, pure Nothing)
      (EmptyL, Complete _) -> (i, pure (Just B.empty))
      (EmptyL, Broken cause) -> (i, fails run Receiving cause)

-- | The whole body, if none of it was read and all of it has come.
wholeBody :: Run -> IO (Maybe ByteString)
wholeBody run = mask_ $ do
  found <- atomicModifyIORef' (streamIncoming (runStream run)) $ \i -> case incomingEnd i of
    Complete _ | not (incomingRead i) -> (i {incomingPieces = Seq.empty, incomingSize = 0, incomingRead = True}, Just (toList (incomingPieces i), incomingSize i))
    _ -> (i, Nothing)
  forM found $ \(pieces, size) -> B.concat pieces <$ unless (size == 0) (readFrom run size)

-- | So many bytes are the reader's now. They count as read, whatever becomes of him.
readFrom :: Run -> Int -> IO ()
readFrom run size = uninterruptibleMask_ (void (perform (runConnection run) [Consume (streamId (runStream run)) size]))
