{-# LANGUAGE OverloadedStrings #-}

-- |
-- One request and its response on a connection of any kind: sending, awaiting the head, reading the body, each phase
-- with its time limit. Below "Weft.Http.Client" and "Weft.Http.Client.Connection", which have the rules of use.
module Weft.Http.Client.Exchange
  ( HttpConnection,
    newHttpConnection,
    httpConnection,
    exchangesDone,
    exchange,
    exchangeRendered,
    After (..),
    Idle (..),
    idleUntil,
    describe,
    synchronous,
    unlessFailed,
    isReset,
    largestAtOnce,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (fromMaybe)
import Foreign.C.Error (Errno (..), eCONNRESET, ePIPE)
import GHC.IO.Exception (IOException (ioe_errno))
import Network.HTTP.Types (Header, mkStatus)
import Numeric (showHex)
import Weft.Duration
import Weft.Http.Client.Guard
import Weft.Http.Client.Render
import Weft.Http.Client.Types
import Weft.Http.Client.Url
import Weft.Http.Limits (Limits)
import Weft.Http.Parser.Head (start)
import Weft.Http.Parser.Response
import Weft.Http.Parser.ResponseBody
import Weft.Scope (forkDaemon, withScope)
import Weft.Timer (sleep, within)
import Weft.Transport

-- | A connection over which HTTP\/1.1 is spoken, as a client.
data HttpConnection = HttpConnection
  { -- | The connection below, for closing it.
    httpConnection :: !Connection,
    -- | Bytes that were received and belong to no part of a response yet. Written by the thread that receives.
    httpHeld :: !(IORef ByteString),
    -- | How many bytes to ask for when the next response begins. Written by the thread that receives, for each head.
    httpWanted :: !(IORef Int),
    -- | Written at the end of each exchange.
    httpDone :: !(IORef Int),
    -- | Used by the thread that receives.
    httpGuard :: !Guard
  }

-- | Use a connection for HTTP. It has to be closed by the caller.
newHttpConnection :: Connection -> IO HttpConnection
newHttpConnection c = HttpConnection c <$> newIORef B.empty <*> newIORef wantedFirst <*> newIORef 0 <*> newGuard c

-- | The number of responses that have been received whole.
exchangesDone :: HttpConnection -> IO Int
exchangesDone = readIORef . httpDone

-- | What has become of a connection after an exchange.
data After
  = -- | It can be used for another request.
    Kept
  | -- | It cannot: the server or the request said so, or something is left of the request or of the response.
    NotKept
  | -- | It cannot: bytes have come that belong to no response (RFC 9112, 6.3).
    Surplus
  deriving (Eq, Show)

-- | Send a request before the deadline, and run an action on the response. The response may come before all of the
-- request's body was sent, which goes on while the action runs.
exchange :: ClientSettings -> HttpConnection -> Instant -> Request -> (Response -> IO a) -> IO (a, After)
exchange settings c due request act = case renderRequest request of
  Left why -> throwIO (ClientError (describe request) Sending (InvalidRequest why))
  Right rendered -> exchangeRendered (Errand settings Nothing due request) c rendered act `onException` connAbort (httpConnection c)

-- | 'exchange' with the head of the request. After an exception the connection is of no use any more, and the caller
-- has to abort it. Masked or not: where it waits it is interruptible. The action runs as the caller does.
exchangeRendered :: Errand -> HttpConnection -> Rendered -> (Response -> IO a) -> IO (a, After)
exchangeRendered errand@(Errand settings _ _ request) c rendered act = case requestBody request of
  EmptyBody -> atOnce run rendered B.empty act
  BytesBody bytes | B.length bytes <= largestAtOnce && not (renderedExpects rendered) -> atOnce run rendered bytes act
  body -> concurrentlySent run rendered body act
  where
    run = Run errand (clientLimits settings) c (describe request)

-- | The most bytes of a body that are sent before the response is awaited: 64 KiB. A server that does not read has room
-- for about as many.
largestAtOnce :: Int
largestAtOnce = 65536

-- | Method and URL.
describe :: Request -> String
describe request = C.unpack (requestMethod request) <> " " <> showUrl (requestUrl request)

-- | What does not change during an exchange.
data Run = Run
  { runErrand :: !Errand,
    runLimits :: !Limits,
    runConnection :: !HttpConnection,
    runName :: String
  }

runSettings :: Run -> ClientSettings
runSettings = errandSettings . runErrand

runDue :: Run -> Instant
runDue = errandDue . runErrand

fails :: Run -> Phase -> Cause -> IO a
fails run phase = throwIO . ClientError (runName run) phase

-- | The end of a phase that begins now.
limited :: Run -> (ClientSettings -> Duration) -> IO Instant
limited run time = min (runDue run) <$> deadlineIn (time (runSettings run))

-- Requests ---------------------------------------------------------------------------

-- | Send head and body, then receive.
atOnce :: Run -> Rendered -> ByteString -> (Response -> IO a) -> IO (a, After)
atOnce run rendered body act = do
  sent <- sendWithin run (filter (not . B.null) [renderedHead rendered, body])
  limit <- limited run clientAnswerTime
  h <- awaitHead run rendered limit (either Just (const Nothing) sent) (pure ())
  receiving run rendered h (pure (either (const False) (const True) sent)) act

-- | Send strings before the end of the phase. 'Left' if the server takes no more: it may have answered before.
sendWithin :: Run -> [ByteString] -> IO (Either IOException ())
sendWithin run strings = do
  limit <- limited run clientSendTime
  r <- try (connSendMany (httpConnection (runConnection run)) limit strings)
  case r of
    Left e
      | isTimeout e -> fails run Sending TimedOut
      | not (isReset e) -> fails run Sending (ConnectionBroken e)
    _ -> pure r

-- | Send the body by a thread of its own. That thread ends with the exchange, and if it fails, so does the exchange.
--
-- Four variables: whether the body is to be sent, given by the first of the server and the time; whether it was sent
-- whole; whether the response's head has come, after which the thread no longer ends the exchange for slowness; why the
-- thread has ended the exchange, by an abort of the connection. (It does not throw: the exchange may be ending at this
-- moment, often for the same reason, and the scope would have an exception too many.)
concurrentlySent :: Run -> Rendered -> RequestBody -> (Response -> IO a) -> IO (a, After)
concurrentlySent run0 rendered body act = do
  proceed <- newEmptyMVar
  sent <- newEmptyMVar
  answered <- newIORef False
  failure <- newIORef Nothing
  first <- sendWithin run0 [renderedHead rendered]
  unless (renderedExpects rendered) (putMVar proceed True)
  -- As long as the body is sent, somebody is interested.
  let run = run0 {runErrand = (runErrand run0) {errandUnless = (readMVar sent >>) <$> errandUnless (runErrand run0)}}
      upload = do
        wanted <- fromMaybe True <$> within (clientContinueTime (runSettings run)) (takeMVar proceed)
        if wanted && first == Right () then sendBody run body `catch` unlessAnswered answered else pure False
      give why = do
        writeIORef failure (Just why)
        _ <- tryPutMVar sent False
        connAbort (httpConnection (runConnection run))
  result <- try . withScope $ \scope -> do
    _ <- forkDaemon scope . synchronous give $ do
      upload >>= putMVar sent
      sleep (clientAnswerTime (runSettings run))
      came <- readIORef answered
      unless came (fails run Answering TimedOut)
    h <- awaitHead run rendered (runDue run) Nothing (void (tryPutMVar proceed True))
    writeIORef answered True
    _ <- tryPutMVar proceed False
    -- The thread may not have run since its last byte was sent.
    receiving run rendered h (fromMaybe False <$> within (milliseconds 100) (readMVar sent)) act
  -- The thread has ended.
  readIORef failure >>= unlessFailed result
  where
    unlessAnswered answered e = do
      came <- readIORef answered
      case errorCause e of
        WrongLength -> throwIO e
        _ | came -> pure False
        _ -> throwIO (e :: ClientError)

-- | Run an action, and the function with what it throws, except exceptions that are thrown to its thread.
synchronous :: (SomeException -> IO ()) -> IO () -> IO ()
synchronous failed act =
  act `catch` \e -> case fromException e of
    Just (SomeAsyncException _) -> throwIO e
    Nothing -> failed e

-- | The result of an exchange, unless the thread that sends the body has failed: what followed from that counts for
-- nothing, an exception that was thrown to the caller does.
unlessFailed :: Either SomeException a -> Maybe SomeException -> IO a
unlessFailed result failure = case (result, failure) of
  (Left e, _) | Just (SomeAsyncException _) <- fromException e -> throwIO e
  (_, Just why) -> throwIO why
  (Left e, Nothing) -> throwIO e
  (Right a, Nothing) -> pure a

-- | Send the body. False if the server takes no more.
sendBody :: Run -> RequestBody -> IO Bool
sendBody run body = case body of
  EmptyBody -> pure True
  BytesBody bytes
    | B.null bytes -> pure True
    | (piece, rest) <- B.splitAt largestAtOnce bytes -> send [piece] (sendBody run (BytesBody rest))
  StreamBody (Just n) next -> sized n next
  StreamBody Nothing next -> chunked next
  TrailedBody size next _ -> sendBody run (StreamBody size next)
  where
    send strings continue = sendWithin run strings >>= either (const (pure False)) (const continue)
    sized left next = do
      piece <- next
      case () of
        _
          | B.null piece -> if left == 0 then pure True else fails run Sending WrongLength
          | B.length piece > left -> fails run Sending WrongLength
          | otherwise -> send [piece] (sized (left - B.length piece) next)
    chunked next = do
      piece <- next
      if B.null piece
        then send ["0\r\n\r\n"] (pure True)
        else send [C.pack (showHex (B.length piece) "\r\n"), piece, "\r\n"] (chunked next)

-- Responses --------------------------------------------------------------------------

-- | Receive something, at most so many bytes, before the limit; empty at the end of the stream. The function says what
-- an error of the connection means. A receive that need not wait takes no notice of its deadline, so that a server that
-- sends without a pause could go on for ever: the clock is read here.
--
-- Whether anybody is interested ('errandUnless') is asked only if the wait is long.
receive :: Run -> Phase -> (IOException -> Cause) -> Instant -> Int -> IO ByteString
receive run phase broken limit most = do
  t <- deadlineIn (nanoseconds 0)
  when (t >= limit) (fails run phase TimedOut)
  ending <- guarding (httpGuard c) t limit (errandUnless (runErrand run)) (connReceive (httpConnection c) noDeadline most)
  case ending of
    Came bytes -> pure bytes
    Disturbed e -> fails run phase (if isTimeout e then TimedOut else broken e)
    Late -> fails run phase TimedOut
    Unwanted -> fails run phase Abandoned
  where
    c = runConnection run

-- | The head of the final response, before the limit. The error is that of sending the request, and the action is run
-- for each 100 (Continue). After an exception, bytes that were received may be lost.
awaitHead :: Run -> Rendered -> Instant -> Maybe IOException -> IO () -> IO ResponseHead
awaitHead run rendered limit unsent continue = go (0 :: Int) start
  where
    held = httpHeld (runConnection run)
    go interim resume = do
      bytes <- readIORef held
      case resumeResponse (runLimits run) (renderedIsHead rendered) resume bytes of
        ResponseInvalid NoStatusLine -> fails run Answering (OtherProtocol (B.copy (B.take 64 bytes)))
        ResponseInvalid why -> fails run Answering (NotHttp why)
        ResponseIncomplete next -> more interim next bytes
        ResponseComplete h -> do
          -- Evaluated: what is kept between requests would keep the whole response otherwise.
          writeIORef held $! B.drop (headResponseEnd h) bytes
          writeIORef (httpWanted (runConnection run)) $! wantedAgain (headResponseEnd h) (headResponseFraming h)
          case headStatus h of
            101
              | switchesAsAsked (headResponseFields h) -> pure h
              | otherwise -> fails run Answering (NotHttp UnaskedUpgrade)
            status
              | status >= 200 -> pure h
              | interim >= mostInterim -> fails run Answering (NotHttp TooManyInterim)
              | otherwise -> when (status == 100) continue >> go (interim + 1) start
    switchesAsAsked fields = let chosen = switches fields in not (null chosen) && all (`elem` renderedSwitches rendered) chosen
    more interim next bytes = do
      new <- receive run Answering broken limit =<< readIORef (httpWanted (runConnection run))
      when (B.null new) (fails run Answering (if first then NoAnswer unsent else EndedEarly))
      writeIORef held $! if B.null bytes then new else bytes <> new
      go interim next
      where
        first = interim == 0 && B.null bytes
        broken why
          | isReset why, first = NoAnswer (Just why)
          | otherwise = ConnectionBroken why

-- | The most interim responses to a request.
mostInterim :: Int
mostInterim = 16

-- | Where the reading of a body is. Written by the thread that reads the response.
data Reading
  = At !Place
  | -- | With the trailer fields.
    Over ![Header]
  | Failed !ClientError

-- | Run the action on the response, and say what has become of the connection. The first action tells whether the
-- request was sent whole.
receiving :: Run -> Rendered -> ResponseHead -> IO Bool -> (Response -> IO a) -> IO (a, After)
receiving run rendered h sentWhole act = do
  place <- newIORef (At (placeFor (headResponseFraming h)))
  switched <- if headStatus h == 101 then Just <$> takenOver else pure Nothing
  a <- act (Response (mkStatus (headStatus h) (headReason h)) (headResponseFields h) (nextPiece run place) (wholeBody run place) (trailersOf <$> readIORef place) switched)
  over <- maybe (finishHeld run place) (const (pure False)) switched
  rest <- readIORef (httpHeld (runConnection run))
  when over (modifyIORef' (httpDone (runConnection run)) (+ 1))
  kept <- if over && B.null rest && headPersists h && not (renderedCloses rendered) then sentWhole else pure False
  pure (a, if kept then Kept else if over && unasked rest == SurplusBytes then Surplus else NotKept)
  where
    trailersOf reading = case reading of
      Over trailers -> trailers
      _ -> []
    takenOver = do
      rest <- readIORef (httpHeld (runConnection run))
      writeIORef (httpHeld (runConnection run)) B.empty
      withReceived rest (httpConnection (runConnection run))

-- | The next piece of the body; empty at its end.
nextPiece :: Run -> IORef Reading -> IO ByteString
nextPiece run ref = mask_ $ do
  reading <- readIORef ref
  case reading of
    Over _ -> pure B.empty
    Failed e -> throwIO e
    At place -> do
      limit <- limited run clientReadTime
      readIORef held >>= go limit place
  where
    held = httpHeld (runConnection run)
    save rest reading = writeIORef held rest >> writeIORef ref reading
    broken cause = do
      let e = ClientError (runName run) Receiving cause
      writeIORef ref (Failed e)
      throwIO e
    go limit place bytes = case advance (runLimits run) place bytes of
      Piece piece rest next -> piece <$ save rest (At next)
      Complete fields rest -> B.empty <$ save rest (Over fields)
      Broken why -> broken (NotHttp why)
      Needs rest next -> do
        save rest (At next)
        new <- receive run Receiving ConnectionBroken limit (wantedFor next)
        case () of
          _
            | not (B.null new) -> let both = if B.null rest then new else rest <> new in writeIORef held both >> go limit next both
            | endsWithConnection next -> B.empty <$ save B.empty (Over [])
            | otherwise -> broken EndedEarly

-- | The whole body, if none of it was read and it was received already.
wholeBody :: Run -> IORef Reading -> IO (Maybe ByteString)
wholeBody run ref = do
  reading <- readIORef ref
  bytes <- readIORef held
  case reading of
    At place | Just (whole, rest) <- takeWhole place bytes -> Just whole <$ ((writeIORef held $! rest) >> writeIORef ref (Over []))
    _ -> pure Nothing
  where
    held = httpHeld (runConnection run)

-- | Pass over what has been received of the body. True if that was the rest of it.
finishHeld :: Run -> IORef Reading -> IO Bool
finishHeld run ref = do
  reading <- readIORef ref
  case reading of
    Over _ -> pure True
    Failed _ -> pure False
    At place -> readIORef held >>= go place
  where
    held = httpHeld (runConnection run)
    go place bytes = case advance (runLimits run) place bytes of
      Piece _ rest next -> go next rest
      Complete _ rest -> True <$ writeIORef held rest
      _ -> pure False

-- Between requests -------------------------------------------------------------------

-- | What has become of a connection without a request.
data Idle
  = -- | Nothing has come.
    Quiet
  | -- | The peer has ended it, possibly after a response of status 408, by which servers give up idle connections
    -- (RFC 9110, section 15.5.9).
    Ended
  | -- | Bytes have come that belong to no request.
    SurplusBytes
  deriving (Eq, Show)

-- | Watch a connection on which no request is under way until the instant, or until something comes. Unless it is
-- 'Quiet', the connection cannot be used for another request. With an instant that has passed, this tells what the
-- connection's manager has noticed so far. Errors of the connection other than a reset are thrown.
idleUntil :: Instant -> HttpConnection -> IO Idle
idleUntil due c =
  try (connReceive (httpConnection c) due 4096) >>= \found -> case found of
    Right bytes -> pure (if B.null bytes then Ended else unasked bytes)
    Left e
      | isTimeout e -> pure Quiet
      | isReset e -> pure Ended
      | otherwise -> throwIO e

-- | What bytes that belong to no request say of the connection.
unasked :: ByteString -> Idle
unasked bytes
  | B.null bytes = Quiet
  | "HTTP/1." `B.isPrefixOf` bytes, " 408" `B.isPrefixOf` B.drop 8 bytes = Ended
  | otherwise = SurplusBytes

-- | Whether the connection was reset.
isReset :: IOException -> Bool
isReset e = fmap Errno (ioe_errno e) `elem` [Just eCONNRESET, Just ePIPE]
