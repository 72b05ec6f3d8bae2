{-# LANGUAGE LambdaCase #-}
{-# LANGUAGE OverloadedStrings #-}
{-# OPTIONS_GHC -Wno-deprecations #-}

-- |
-- The thread of a stream: it reads the request's body, runs the application and sends the response. It keeps the
-- response's data until the client takes them, so a connection holds no more data than its streams do.
module Weft.Http2.Respond
  ( startStream,
  )
where

import Control.Concurrent
import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder, toLazyByteString)
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Lazy as L
import qualified Data.CaseInsensitive as CI
import Data.Char (isDigit)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isJust, listToMaybe)
import Data.Sequence (ViewL (..), viewl, (<|))
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)
import Network.HTTP.Types
import Network.HTTP.Types.Header
import Network.Wai
import Network.Wai.Internal (Request (..), Response (..), ResponseReceived (..))
import System.IO.Error (ioeSetFileName, isEOFError)
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Http.BodyState (closeBody, finishing, writing)
import Weft.Http.Limits (Refusal (..))
import Weft.Http.Parser.Bytes (isName)
import Weft.Http.Parser.Head (expectsContinue)
import Weft.Http.Settings (ApplicationError (..))
import Weft.Http.Writer (LengthMismatch (..))
import Weft.Http2.Frame
import Weft.Http2.Hpack (encodeFields)
import Weft.Http2.Request (Head (..))
import Weft.Http2.Settings
import Weft.Http2.Types
import Weft.Sys (newAtomicWords, now)
import Weft.Transport hiding (Instant)

-- | Start a thread for a stream, on the capability of the connection. To be called masked; 'http2Live' counts the
-- thread already.
startStream :: Http2 -> Int -> Bool -> Head -> IO ()
startStream h stream final found = do
  given <- newEmptyMVar
  t <- forkIOWithUnmask $ \unmask -> do
    s <- uninterruptibleMask_ (takeMVar given)
    runStream h unmask found s
  labelThread t "weft http/2 stream"
  window <- readTVarIO (http2InitialWindow h)
  s <-
    Stream stream t
      <$> newTVarIO True
      <*> newTVarIO window
      <*> newTVarIO (Body Seq.empty 0 (if final then BodyComplete else BodyOpen))
      <*> newTVarIO streamWindowSize
      <*> newTVarIO streamWindowSize
      <*> pure (headLength found)
      <*> newIORef 0
      <*> newIORef ResponseNone
  atomically $ do
    modifyTVar' (http2Streams h) (IntMap.insert stream s)
    modifyTVar' (http2Open h) (+ 1)
  putMVar given s

-- | Serve a request from beginning to end, given the function that unmasks exceptions. Runs masked; leaves nothing
-- behind.
runStream :: Http2 -> (IO () -> IO ()) -> Head -> Stream -> IO ()
runStream h unmask head' s = (serveStream `catch` quietly) `finally` ended
  where
    -- Errors while a failure is being handled: the connection has ended, or the stream was cancelled.
    quietly :: SomeException -> IO ()
    quietly _ = pure ()
    serveStream = do
      waited <- newStreamWait (http2Limits (http2Settings h))
      request <- requestFor h head' s waited
      let respond response = do
            firstResponse s
            -- If the stream was reset, the application has been interrupted; it may have handled the exception.
            atomically (checkUncancelled s)
            ResponseReceived <$ answer request waited response
          responded = readIORef (streamResponse s) >>= \state -> when (state == ResponseNone) (throwIO NoResponse)
      r <- try (unmask (http2Application h request respond >> responded))
      either (failed request waited) pure r
    answer request waited response = do
      sendResponse h s waited request response
      http2OnResponse (http2Settings h) request (responseStatus response) (partSize response)
      finishRequest waited
    partSize response = case response of
      ResponseFile _ _ _ part -> filePartByteCount <$> part
      _ -> Nothing
    -- RFC 9113, 8.1: tell a client that is still sending to stop. First discard some of what it sends, since some
    -- clients (curl 7.88) otherwise lose the response.
    finishRequest waited = do
      Body _ _ end <- readTVarIO (streamBody s)
      -- The response is complete, whatever happens to the body.
      when (end == BodyOpen) . handle (\e -> const (pure ()) (e :: IOException)) $ do
        r <- try (dropBody waited mostDropped)
        case r of
          Right True -> pure ()
          Right False -> reset NoError
          Left e -> const (reset NoError) (e :: Stalled)
    dropBody waited left
      | left <= 0 = pure False
      | otherwise = do
        piece <- readBody h s waited
        if B.null piece then pure True else dropBody waited (left - B.length piece)
    mostDropped = 8388608
    ended = do
      t <- now
      atomically $ do
        release h s
        modifyTVar' (http2Streams h) (IntMap.delete (streamId s))
        Body _ unread end <- swapTVar (streamBody s) (Body mempty 0 BodyBroken)
        consume h unread
        giveBackGrowth h s
        when (end == BodyOpen) (endedEarly h (streamId s))
      writeIORef (http2IdleSince h) t
      atomically (modifyTVar' (http2Live h) (subtract 1))
      giveBack h `catch` quietly
    failed request waited e
      | Just StreamCancelled <- fromException e = pure ()
      | Just how <- fromException e = stalled how
      | Just io <- fromException e = do
        -- A file that ended too early has aborted the connection.
        gone <- (||) <$> (not . IntMap.member (streamId s) <$> readTVarIO (http2Streams h)) <*> (isJust <$> readTVarIO (http2Ending h))
        unless (gone && not (isEOFError io)) (report request waited e)
      | otherwise = report request waited e
    report request waited e = do
      http2OnException (http2Settings h) (Just request) e `catch` quietly
      state <- readIORef (streamResponse s)
      case state of
        ResponseEnded -> pure ()
        ResponseBegun -> reset InternalError
        ResponseNone
          -- It ends the thread and says nothing about the request. Over HTTP/1 the connection is closed without a
          -- response.
          | Just (SomeAsyncException _) <- fromException e -> reset InternalError
        ResponseNone -> do
          let response = http2OnExceptionResponse (http2Settings h) e
          r <- try (unmask (answer request waited response))
          case r of
            Right () -> pure ()
            Left e'
              | Just StreamCancelled <- fromException e' -> pure ()
              | otherwise -> reset InternalError
    reset code = writeFrames h (const (pure [resetFrame (streamId s) code]))
    -- If the client has taken nothing on any stream for the whole time, end the connection. A body that does not come
    -- says nothing about the other streams.
    stalled how = do
      Instant progress <- readIORef (http2Progress h)
      Instant t <- now
      case how of
        StalledSending
          | t - progress >= durationNs (limitWait (http2Limits (http2Settings h))) ->
            fatal h ClientTooSlow EnhanceYourCalm "nothing could be sent for too long"
        _ -> do
          http2OnRefused (http2Settings h) (connPeer (http2Below h)) ClientTooSlow Cancel "a stream was too slow"
          reset Cancel

-- Requests ---------------------------------------------------------------------------

requestFor :: Http2 -> Head -> Stream -> StreamWait -> IO Request
requestFor h head' s waited = do
  asked <- newIORef (maybe False expectsContinue (lookup "expect" (headFields head')))
  let (path, query) = B8.break (== '?') (headTarget head')
      field name = lookup name (headFields head')
      body = do
        first <- readIORef asked
        state <- readIORef (streamResponse s)
        -- If waiting to write is interrupted, nothing has been written.
        when (first && state == ResponseNone) (mask_ (writeHead [(":status", "100")] >> writeIORef asked False))
        readBody h s waited
      writeHead fields = writeFrames h $ \encoder -> do
        size <- readIORef (http2FrameSize h)
        headerFrames 0 (streamId s) size <$> encodeFields encoder fields
  empty <- (\(Body _ size end) -> size == 0 && end == BodyComplete) <$> readTVarIO (streamBody s)
  pure
    Request
      { requestMethod = headMethod head',
        httpVersion = http20,
        rawPathInfo = path,
        rawQueryString = query,
        requestHeaders = headFields head',
        isSecure = isJust (connSecurity (http2Below h)),
        remoteHost = connPeer (http2Below h),
        pathInfo = decodePathSegments path,
        queryString = parseQuery query,
        requestBody = body,
        vault = http2Vault (http2Settings h),
        requestBodyLength = if empty then KnownLength 0 else maybe ChunkedBody (KnownLength . fromIntegral) (headLength head'),
        requestHeaderHost = field hHost,
        requestHeaderRange = field hRange,
        requestHeaderReferer = field hReferer,
        requestHeaderUserAgent = field hUserAgent
      }

-- | The next piece of the body; empty at its end. Throws if the client aborted the body.
--
-- Masked, so that an exception from another thread, such as that of a timeout, arrives only while this waits. If it waits
-- to write a window update, it puts the piece back; the application may continue to read.
readBody :: Http2 -> Stream -> StreamWait -> IO ByteString
readBody h s waited = mask_ $ do
  piece <- awaitClient StalledReceiving waited $ do
    Body pieces size end <- readTVar (streamBody s)
    case viewl pieces of
      next :< rest -> do
        writeTVar (streamBody s) (Body rest (size - B.length next) end)
        -- In the same step, since the thread may be cancelled after it.
        Just next <$ consume h (B.length next)
      EmptyL -> case end of
        BodyOpen -> retry
        BodyComplete -> pure (Just B.empty)
        BodyBroken -> pure Nothing
  case piece of
    Nothing -> ioError (userError "Weft.Http2: the request was broken off")
    Just bytes -> do
      unless (B.null bytes) $ do
        progressed h waited mostSharing (B.length bytes)
        now >>= writeIORef (http2Progress h)
        (giveBackStream h s True >> giveBack h) `onException` atomically (putBack bytes)
      pure bytes
  where
    -- Nobody reads a body that was broken off.
    putBack bytes = do
      Body pieces size end <- readTVar (streamBody s)
      when (end /= BodyBroken) $ do
        writeTVar (streamBody s) (Body (bytes <| pieces) (size + B.length bytes) end)
        consume h (negate (B.length bytes))

-- Responses --------------------------------------------------------------------------

sendResponse :: Http2 -> Stream -> StreamWait -> Request -> Response -> IO ()
sendResponse h s waited request response = case response of
  ResponseBuilder status fields builder -> sendBuilder status fields builder
  ResponseFile status fields path part ->
    withPlace . http2WithFile (http2Settings h) request status fields path part $ \case
      OtherBody status' fields' builder -> sendBuilder status' fields' builder
      FileBody status' fields' range@(FileRange _ _ size) -> do
        let sized = if not (null (lengthsOf fields')) then fields' else (hContentLength, B8.pack (show size)) : fields'
            nothing = bodiless status' || size == 0
        begin status' sized nothing
        unless nothing (sendFileRange h s waited range `catch` named path)
  ResponseStream status fields stream
    | bodiless status -> begin status fields True
    | otherwise -> do
      block <- headFieldsOf h status fields
      pending <- newIORef (Pending False [] 0)
      state <- newAtomicWords 1
      declared <- declaredLength fields
      -- The head is sent by the first flush: after an exception before it, another response can be sent.
      let flushing = flush h s waited (beginWith block False) declared pending
          write = writing "Weft.Http2" state 0
      (stream (write . collect pending (flushing False)) (write (flushing False)) >> finishing "Weft.Http2" state 0 (flushing True))
        `onException` closeBody state 0
  ResponseRaw _ other -> sendResponse h s waited request other
  where
    -- An end-of-file error here means that the file has become shorter.
    named path e = ioError (if isEOFError e then ioeSetFileName e path else e)
    bodiless status = requestMethod request == methodHead || status == noContent204 || status == resetContent205 || status == notModified304
    -- Open no file while the client's windows are empty, and few files for a client that takes little.
    withPlace act
      | requestMethod request == methodHead = act
      | otherwise = bracket_ (awaitClient StalledSending waited takePlace) (atomically (modifyTVar' (http2Files h) (subtract 1))) act
    takePlace = do
      whole <- readTVar (http2Window h)
      own <- readTVar (streamWindow s)
      files <- readTVar (http2Files h)
      check (whole > 0 && own > 0 && files < limitFiles (http2Limits (http2Settings h)))
      writeTVar (http2Files h) (files + 1)
    begin status fields final = headFieldsOf h status fields >>= \block -> beginWith block final
    beginWith block !final = do
      atomically (checkUncancelled s)
      writeFramesAfter (firstResponse s) h $ \encoder -> do
        if final then answered h s else writeIORef (streamResponse s) ResponseBegun
        size <- readIORef (http2FrameSize h)
        headerFrames (if final then flagEndStream else 0) (streamId s) size <$> encodeFields encoder block
    sendBuilder status fields builder
      | bodiless status = begin status fields True
      | otherwise = do
        declared <- declaredLength fields
        case L.toChunks (toLazyByteString builder) of
          [] -> account declared True 0 >> begin status fields True
          [bytes] | B.length bytes <= 16384 -> do
            account declared True (B.length bytes)
            block <- headFieldsOf h status fields
            -- Masked, so that an exception comes before anything was written, or after it was accounted for.
            together <- mask_ $ do
              reserved <- reserveAll h s (B.length bytes)
              when reserved $ do
                (`onException` unreserve h (B.length bytes)) . writeFramesAfter (firstResponse s) h $ \encoder -> do
                  answered h s
                  size <- readIORef (http2FrameSize h)
                  frames <- headerFrames 0 (streamId s) size <$> encodeFields encoder block
                  pure (frames <> [frameHead typeData flagEndStream (streamId s) (B.length bytes), bytes])
                wrote h waited (B.length bytes)
              pure reserved
            unless together (begin status fields False >> sendBytes h s waited True bytes)
          chunks -> begin status fields False >> sendChunks declared chunks
    sendChunks _ [] = pure ()
    -- The body may be lazy: its next part is evaluated before anything is reserved or locked for this one.
    sendChunks declared (bytes : rest) = do
      final <- evaluate (null rest)
      account declared final (B.length bytes)
      sendBytes h s waited final bytes
      sendChunks declared rest

-- | RFC 9113, 8.2: names in lower case, without connection-specific fields. As with HTTP\/1, an invalid length counts as
-- not given, the first of several lengths counts, and there is none with 204 and 205 (RFC 9110, 8.6, 15.3.6). Throws 'ErrorCall' as
-- HTTP\/1 does.
headFieldsOf :: Http2 -> Status -> ResponseHeaders -> IO [(ByteString, ByteString)]
headFieldsOf h status fields = do
  -- An interim response (1xx) would leave the client waiting for the final one.
  when (statusCode status < 200 || statusCode status > 999) $
    throwIO (ErrorCall "Weft.Http2: a response with a status that is not between 200 and 999")
  more <- http2Fields (http2Settings h)
  let missing = [field | field@(name, _) <- more, not (any ((== name) . fst) fields)]
      sent = [(CI.foldedCase name, value) | (name, value) <- oneLength fields <> missing, wanted name]
  unless (all (isName . fst) sent) $
    throwIO (ErrorCall "Weft.Http2: a response field whose name is not a token")
  unless (all (B.all clean . snd) sent) $
    throwIO (ErrorCall "Weft.Http2: a response field with a line end or a zero byte")
  pure ((":status", B8.pack (show (statusCode status))) : sent)
  where
    wanted name = name `notElem` ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"]
    clean c = c /= 0 && c /= 10 && c /= 13
    oneLength given = case break ((== hContentLength) . fst) given of
      (_, []) -> given
      (before, field@(_, value) : behind)
        | status == noContent204 || status == resetContent205 -> before <> others behind
        | isJust (validLength value) -> before <> (field : others behind)
        | otherwise -> before <> oneLength behind
    others = filter ((/= hContentLength) . fst)

-- | The number that a @Content-Length@ declares.
validLength :: ByteString -> Maybe Int
validLength value = case B8.readInt value of
  Just (n, "") | B8.all isDigit value && B.length value <= 18 -> Just n
  _ -> Nothing

-- | The @Content-Length@ that the application has declared, if it has, and the bytes of the body that it has given. Used
-- by the stream's thread.
newtype Declared = Declared (Maybe (Int, IORef Int))

declaredLength :: ResponseHeaders -> IO Declared
declaredLength fields = Declared <$> mapM (\n -> (,) n <$> newIORef 0) (listToMaybe (lengthsOf fields))

-- | The valid lengths that are declared.
lengthsOf :: ResponseHeaders -> [Int]
lengthsOf fields = [n | (name, value) <- fields, name == hContentLength, Just n <- [validLength value]]

-- | The application gives that many more bytes; the flag says whether they are the last ones. Throws if the body does
-- not have its declared length: such a response is malformed (RFC 9113, 8.1.1).
account :: Declared -> Bool -> Int -> IO ()
account (Declared Nothing) _ _ = pure ()
account (Declared (Just (declared, given))) final n = do
  total <- (+ n) <$> readIORef given
  when (total > declared || (final && total /= declared)) (throwIO (LengthMismatch declared total))
  writeIORef given total

-- | Whether the head was sent, and data that the application has given to a stream and that were not sent yet: in
-- reverse order, with their size. Used by the thread that writes ('writing').
data Pending = Pending !Bool [ByteString] !Int

-- | Add what a builder makes, and flush when that is enough.
collect :: IORef Pending -> IO () -> Builder -> IO ()
collect ref flushing builder = forM_ (L.toChunks (toLazyByteString builder)) $ \bytes -> do
  Pending headed pieces size <- readIORef ref
  writeIORef ref (Pending headed (bytes : pieces) (size + B.length bytes))
  when (size + B.length bytes >= 16384) flushing

-- | Send what is pending, after the head, which the action sends. The flag says whether the body ends. After an
-- exception the response cannot be completed.
flush :: Http2 -> Stream -> StreamWait -> IO () -> Declared -> IORef Pending -> Bool -> IO ()
flush h s waited sendHead declared ref final = do
  Pending headed pieces size <- readIORef ref
  account declared final size
  unless headed sendHead
  when (size > 0 || final) (sendBytes h s waited final (B.concat (reverse pieces)))
  writeIORef ref (Pending True [] 0)

-- | Send bytes of the body as the client's windows allow. Strict, so that nothing of the application is evaluated while
-- the connection is locked for writing.
sendBytes :: Http2 -> Stream -> StreamWait -> Bool -> ByteString -> IO ()
sendBytes h s waited !final !bytes
  | B.null bytes = when final (atomically (checkUncancelled s) >> writeFrames h (const ([frameHead typeData flagEndStream (streamId s) 0] <$ answered h s)))
  | otherwise = do
    n <- withReserved h s waited (B.length bytes) $ \n ->
      writeFrames h . const $ do
        when (flags n /= 0) (answered h s)
        pure [frameHead typeData (flags n) (streamId s) n, B.take n bytes]
    when (n < B.length bytes) (sendBytes h s waited final (B.drop n bytes))
  where
    flags n = if final && n == B.length bytes then flagEndStream else 0

-- | Send part of a file as the client's windows allow.
sendFileRange :: Http2 -> Stream -> StreamWait -> FileRange -> IO ()
sendFileRange h s waited (FileRange fd offset size) = when (size > 0) $ do
  let wanted = fromIntegral (min size 16384)
  n <- withReserved h s waited wanted $ \n ->
    writeFile' h (when (fromIntegral n == size) (answered h s)) [frameHead typeData (if fromIntegral n == size then flagEndStream else 0) (streamId s) n] (FileRange fd offset (fromIntegral n))
  sendFileRange h s waited (FileRange fd (offset + fromIntegral n) (size - fromIntegral n))

-- | Throw 'ResponseTwice' if something of a response was written. An application may respond from several threads, so
-- this is decided where the head is written.
firstResponse :: Stream -> IO ()
firstResponse s = readIORef (streamResponse s) >>= \state -> when (state /= ResponseNone) (throwIO ResponseTwice)

-- | To be called before the frame that ends the response, while writing can no longer be interrupted.
answered :: Http2 -> Stream -> IO ()
answered h s = do
  writeIORef (streamResponse s) ResponseEnded
  atomicModifyIORef' (http2Completed h) (\k -> (k + 1, ()))
  atomically (release h s)

-- | Throw 'StreamCancelled' if the stream has been cancelled. To be called before the response has ended.
checkUncancelled :: Stream -> STM ()
checkUncancelled s = readTVar (streamCounted s) >>= \counted -> unless counted (throwSTM StreamCancelled)

-- | Wait until the windows have room for at least a byte, and write a frame of as many bytes as they allow.
withReserved :: Http2 -> Stream -> StreamWait -> Int -> (Int -> IO ()) -> IO Int
withReserved h s waited !wanted write = mask_ $ do
  most <- readIORef (http2FrameSize h)
  n <- awaitClient StalledSending waited $ do
    checkUncancelled s
    whole <- readTVar (http2Window h)
    own <- readTVar (streamWindow s)
    let n = minimum [whole, own, wanted, most]
    check (n > 0)
    writeTVar (http2Window h) (whole - n)
    n <$ writeTVar (streamWindow s) (own - n)
  write n `onException` unreserve h n
  n <$ wrote h waited n

-- | Reserve window space for the whole size at once, if there is enough.
reserveAll :: Http2 -> Stream -> Int -> IO Bool
reserveAll h s n = atomically $ do
  checkUncancelled s
  whole <- readTVar (http2Window h)
  own <- readTVar (streamWindow s)
  if whole < n || own < n
    then pure False
    else True <$ (writeTVar (http2Window h) (whole - n) >> writeTVar (streamWindow s) (own - n))

unreserve :: Http2 -> Int -> IO ()
unreserve h n = atomically (modifyTVar' (http2Window h) (+ n))

wrote :: Http2 -> StreamWait -> Int -> IO ()
wrote h waited n = do
  streams <- readTVarIO (http2Open h)
  progressed h waited streams n
  now >>= writeIORef (http2Progress h)
  atomicModifyIORef' (http2Earned h) (\k -> (k + 1, ()))
