{-# LANGUAGE OverloadedStrings #-}

-- |
-- The thread of a connection: it receives frames, enforces the protocol's rules and the limits, and starts and cancels
-- streams.
module Weft.Http2.Receive
  ( sendSettings,
    receiveFrames,
  )
where

import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import Data.Bits
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.CaseInsensitive as CI
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Time (Instant, after)
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Budget
import Weft.Http2.Core.Ended (Past (..))
import Weft.Http2.Frame
import Weft.Http2.Hpack
import Weft.Http2.Receiver
import Weft.Http2.Request
import Weft.Http2.Respond
import Weft.Http2.Settings
import Weft.Http2.Types
import Weft.Sys (now)
import Weft.Timer (within)
import Weft.Transport hiding (Instant)

-- | Send the server's SETTINGS and enlarge the connection's window. This has to be the first that is sent: also before
-- a GOAWAY, if the connection ends before the client's preface has come (RFC 9113, 3.4).
sendSettings :: Http2 -> IO ()
sendSettings h = writeFrames h (const (pure (frame typeSettings 0 0 ours : [windowFrame 0 (windowSize h - 65535) | windowSize h > 65535])))
  where
    limits = http2Limits (http2Settings h)
    ours =
      settingsPayload
        [ (3, fromIntegral (limitStreams limits)),
          (6, fromIntegral (limitHeaderList limits))
        ]

-- | Serve a connection, which has to begin with the preface, until it ends. Returns the reason, or 'Nothing' if the
-- client ended it.
receiveFrames :: Http2 -> IO (Maybe (Refusal, ErrorCode, String))
receiveFrames h = do
  r <- newReceiver h
  either (\(Leave refusal code why) -> Just (refusal, code, why)) (const Nothing) <$> try (conversation r)

conversation :: Receiver -> IO ()
conversation r = do
  preface <- need r (B.length connectionPreface)
  forM_ preface $ \bytes -> do
    when (bytes /= connectionPreface) (leave ProtocolError "no preface")
    first <- nextFrame r
    forM_ first $ \(header, payload) -> do
      when (frameType header /= typeSettings || hasFlag flagAck header) (leave ProtocolError "settings come first")
      handleFrame r header payload
      loop
  where
    loop = do
      next <- nextFrame r
      forM_ next (\(header, payload) -> handleFrame r header payload >> loop)

-- Bytes ------------------------------------------------------------------------------

-- | The next frame; 'Nothing' at the end of the stream.
nextFrame :: Receiver -> IO (Maybe (FrameHeader, ByteString))
nextFrame r = do
  start <- need r frameHeaderSize
  case start >>= parseFrameHeader of
    Nothing -> pure Nothing
    Just header -> do
      -- Larger frames were not agreed on: section 4.2.
      when (frameLength header > 16384) (leave FrameSizeError "a frame of more than 16384 bytes")
      fmap ((,) header) <$> need r (frameLength header)

-- | Take the given number of bytes; 'Nothing' if the stream ends before.
need :: Receiver -> Int -> IO (Maybe ByteString)
need r n = do
  have <- readIORef (receiverBuffer r)
  if B.length have >= n
    then Just (B.take n have) <$ writeIORef (receiverBuffer r) (B.drop n have)
    else do
      start <- now
      go start
  where
    go start = do
      before <- readIORef (receiverBuffer r)
      more <- receiveSome r start
      if B.null more
        then pure Nothing
        else do
          let have = before <> more
          writeIORef (receiverBuffer r) have
          if B.length have >= n
            then Just (B.take n have) <$ writeIORef (receiverBuffer r) (B.drop n have)
            else (if B.null before then now else pure start) >>= go -- from its first byte on

-- | Wait for bytes, for as long as allowed: to complete what the client has begun, or while no stream is open.
receiveSome :: Receiver -> Instant -> IO ByteString
receiveSome r start = do
  t <- now
  live <- readTVarIO (http2Live h)
  idle <- readIORef (http2IdleSince h)
  draining <- readTVarIO (http2Draining h)
  begun <- not . B.null <$> readIORef (receiverBuffer r)
  block <- readIORef (receiverBlock r)
  let limits = limitsOf r
      frameEnd = case block of
        Just (Block _ _ _ _ since) -> [after (limitFrame limits) since]
        Nothing -> [after (limitFrame limits) start | begun]
      idleEnd = after (limitIdle limits) idle
      ends = frameEnd <> [idleEnd | live == 0]
  when (draining && live == 0) (leave NoError "the server is shutting down")
  when (any (<= t) frameEnd) (leaveAs ClientTooSlow EnhanceYourCalm "a frame took too long")
  when (live == 0 && idleEnd <= t) (leave NoError "idle")
  ending <- readTVarIO (http2Ending h)
  forM_ ending (\code -> leave code "the connection is ending")
  -- The last stream may end in the meantime; the idle time begins then. So never wait longer than the idle time at
  -- once.
  got <- try (connReceive (http2Below h) (minimum (after (limitIdle limits) t : ends)) 16384)
  case got of
    Right bytes -> pure bytes
    Left e
      | isTimeout e -> receiveSome r start
      | otherwise -> readTVarIO (http2Ending h) >>= maybe (throwIO e) (\code -> leave code "the connection is ending")
  where
    h = receiverConnection r

-- Frames -----------------------------------------------------------------------------

handleFrame :: Receiver -> FrameHeader -> ByteString -> IO ()
handleFrame r header payload = do
  block <- readIORef (receiverBlock r)
  case block of
    Just pending
      | kind == typeContinuation -> continuation r pending header payload
      | otherwise -> leave ProtocolError "a header block was interrupted"
    Nothing
      | kind == typeData -> dataFrame r header payload
      | kind == typeHeaders -> headersFrame r header payload
      | kind == typePriority -> do
        onStream
        pay r limitPriorities budgetPriorities (\b x -> x {budgetPriorities = b}) "priorities"
        when (frameLength header /= 5) $ do
          -- Section 6.3: an error of the stream. An idle stream must not be reset (6.4), so there it is one of the
          -- connection (5.4).
          idle <- isIdle r (frameStream header)
          when idle (leave FrameSizeError "a priority")
          streamError r (frameStream header) FrameSizeError "a priority"
      | kind == typeReset -> onStream >> resetStream r header
      | kind == typeSettings -> onConnection >> settingsFrame r header payload
      | kind == typePushPromise -> leave ProtocolError "a push from a client"
      | kind == typePing -> onConnection >> pingFrame r header payload
      | kind == typeGoAway -> do
        onConnection
        when (frameLength header < 8) (leave FrameSizeError "a farewell")
        payEmpty r
      | kind == typeWindowUpdate -> windowUpdate r header payload
      | kind == typeContinuation -> leave ProtocolError "a continuation of nothing"
      | otherwise -> payEmpty r
  where
    kind = frameType header
    onStream = when (frameStream header == 0) (leave ProtocolError "a stream's frame on the connection")
    onConnection = when (frameStream header /= 0) (leave ProtocolError "the connection's frame on a stream")

-- | Reset a stream because of a client's error. This counts against the client's budget of resets.
streamError :: Receiver -> Int -> ErrorCode -> String -> IO ()
streamError r stream code why = payReset r >> streamErrorFree r stream code why

-- | The same, without the charge.
streamErrorFree :: Receiver -> Int -> ErrorCode -> String -> IO ()
streamErrorFree r stream code why = do
  http2OnRefused (http2Settings h) (connPeer (http2Below h)) (refusalOf code) code why
  found <- IntMap.lookup stream <$> readTVarIO (http2Streams h)
  forM_ found $ \s -> do
    atomically (readTVar (streamBody s) >>= \(Body _ _ end) -> when (end == BodyOpen) (endedEarly h stream))
    cancel h s
  writeFrames h (const (pure [resetFrame stream code]))
  where
    h = receiverConnection r

-- | The stream of a frame that is allowed only on streams that have begun; 'Nothing' if it has ended.
lookupStream :: Receiver -> Int -> IO (Maybe Stream)
lookupStream r stream = do
  idle <- isIdle r stream
  when idle (leave ProtocolError "a frame of a stream that was not begun")
  IntMap.lookup stream <$> readTVarIO (http2Streams (receiverConnection r))

-- | Whether a stream has not begun (section 5.1). Streams with even numbers never do, since they are the server's.
isIdle :: Receiver -> Int -> IO Bool
isIdle r stream = (== Idle) <$> atomically (pastOf (receiverConnection r) stream)

-- | What a frame of a stream is: in order, wrong, or of a stream that has ended.
data Verdict = Fine | Wrong !ErrorCode String | Late

dataFrame :: Receiver -> FrameHeader -> ByteString -> IO ()
dataFrame r header payload = do
  when (frameStream header == 0) (leave ProtocolError "data on the connection")
  found <- lookupStream r (frameStream header)
  unread <- atomically (stateTVar' (http2Unread h) (+ frameLength header))
  when (unread > windowSize h) (leave FlowControlError "more data than the connection's window")
  bytes <- maybe (leave ProtocolError "more padding than payload") pure (unpad header payload)
  when (B.null bytes && not (hasFlag flagEndStream header)) (payEmpty r)
  case found of
    Nothing -> late
    Just s -> do
      received <- (+ B.length bytes) <$> readIORef (streamReceived s)
      writeIORef (streamReceived s) received
      let final = hasFlag flagEndStream header
          wrong = case streamExpected s of
            Just expected -> received > expected || (final && received /= expected)
            Nothing -> False
      verdict <- atomically $ do
        present <- IntMap.member (streamId s) <$> readTVar (http2Streams h)
        body@(Body _ _ end) <- readTVar (streamBody s)
        room <- readTVar (streamRoom s)
        case () of
          _
            | not present -> pure Late
            | end /= BodyOpen -> pure (Wrong StreamClosed "data after the end")
            | frameLength header > room -> pure (Wrong FlowControlError "more data than the stream's window")
            | wrong -> pure (Wrong ProtocolError "a body of another length than was said")
            | otherwise -> do
              writeTVar (streamRoom s) (room - frameLength header)
              Fine <$ (writeTVar (streamBody s) $! appendBody bytes (if final then BodyComplete else BodyOpen) body)
      case verdict of
        Late -> late
        Wrong code why -> discard (frameLength header) >> streamError r (streamId s) code why
        Fine -> do
          let padding = frameLength header - B.length bytes
          when (padding > 0) (discard padding >> giveBackStream h s False)
  where
    h = receiverConnection r
    -- Section 5.1: if the server has ended the stream, this frame may have been on its way.
    late = do
      before <- atomically $ do
        before <- pastOf h (frameStream header)
        before <$ when (hasFlag flagEndStream header) (clientEnded h (frameStream header))
      discard (frameLength header)
      case before of
        Early -> pure ()
        PassedOver -> leave ProtocolError "data of a number that was passed over"
        _ -> streamError r (frameStream header) StreamClosed "data of a stream that has ended"
    discard n = atomically (consume h n) >> giveBack h
    stateTVar' v f = do
      x <- f <$> readTVar v
      x <$ writeTVar v x

-- Header blocks ----------------------------------------------------------------------

headersFrame :: Receiver -> FrameHeader -> ByteString -> IO ()
headersFrame r header payload = do
  when (even (frameStream header)) (leave ProtocolError "a stream of a client has an odd number")
  bytes <- maybe (leave ProtocolError "more padding than payload") pure (unpad header payload)
  -- Section 4.2: too small for what its flags announce.
  (_, piece) <- maybe (leave FrameSizeError "headers without their priority") pure (withoutPriority header bytes)
  t <- now
  addPiece r (Block header [] 0 0 t) header piece

continuation :: Receiver -> Block -> FrameHeader -> ByteString -> IO ()
continuation r block@(Block first _ _ _ _) header payload = do
  when (frameStream header /= frameStream first) (leave ProtocolError "a header block was interrupted")
  when (B.null payload) (payEmpty r)
  addPiece r block header payload

addPiece :: Receiver -> Block -> FrameHeader -> ByteString -> IO ()
addPiece r (Block first pieces size count since) header piece = do
  when (size' > limitHeaderBlock (limitsOf r)) (leaveAs HeadTooLarge EnhanceYourCalm "a header block is too long")
  when (count > 64) (leaveAs HeadTooLarge EnhanceYourCalm "too many continuations")
  if hasFlag flagEndHeaders header
    then do
      writeIORef (receiverBlock r) Nothing
      decoded <- decodeFields (receiverDecoder r) (limitHeaderList (limitsOf r)) (B.concat (reverse (piece : pieces)))
      either (leave CompressionError) (fieldsCame r first) decoded
    else writeIORef (receiverBlock r) (Just (Block first (B.copy piece : pieces) size' (count + 1) since))
  where
    size' = size + B.length piece

-- | A complete header block: a request, trailers, or the header block of a stream that has ended.
fieldsCame :: Receiver -> FrameHeader -> Decoded -> IO ()
fieldsCame r header (Decoded fields size) = do
  before <- atomically (pastOf h stream)
  known <- IntMap.lookup stream <$> readTVarIO (http2Streams h)
  case known of
    Just s -> trailersCame s
    Nothing
      | before == PassedOver -> leave ProtocolError "a number that was passed over"
      | before /= Idle -> afterEnd
      | otherwise -> do
        atomically (beginNumber h stream)
        newStream
        unless final . atomically $ do
          begun <- IntMap.member stream <$> readTVar (http2Streams h)
          unless begun (endedEarly h stream)
  where
    h = receiverConnection r
    stream = frameStream header
    final = hasFlag flagEndStream header
    tooMany n = limitFields (limitsOf r) > 0 && n > limitFields (limitsOf r)
    trailersCame s =
      readTVarIO (streamBody s) >>= \(Body _ _ state) -> case readTrailers fields of
        _
          | state == BodyComplete -> streamError r stream StreamClosed "headers after the end"
          | not final -> streamError r stream ProtocolError "headers in the middle of a body"
          | tooMany (length fields) || size > limitHeaderList (limitsOf r) -> streamError r stream EnhanceYourCalm "too many trailers"
        Left why -> streamError r stream ProtocolError why
        Right () -> do
          received <- readIORef (streamReceived s)
          verdict <- atomically $ do
            present <- IntMap.member stream <$> readTVar (http2Streams h)
            body@(Body _ _ end) <- readTVar (streamBody s)
            case () of
              _
                | not present -> pure Late
                | end /= BodyOpen || maybe False (/= received) (streamExpected s) ->
                  pure (Wrong ProtocolError "a body of another length than was said")
                | otherwise -> Fine <$ writeTVar (streamBody s) (appendBody B.empty BodyComplete body)
          case verdict of
            Late -> afterEnd
            Wrong code why -> streamError r stream code why
            Fine -> pure ()
    -- Section 5.1: trailers that were on their way when the server ended the stream are ignored.
    afterEnd = do
      late <- atomically ((== Early) <$> pastOf h stream <* clientEnded h stream)
      unless (late && final) (streamError r stream StreamClosed "headers of a stream that has ended")
    newStream = do
      open <- readTVarIO (http2Open h)
      case readHead fields of
        _
          | open >= limitStreams (limitsOf r) -> unlessDraining (pure ()) tooManyStreams
          | size > limitHeaderList (limitsOf r) -> unlessDraining (pure ()) tooLarge
        Left why -> unlessDraining (pure ()) (streamError r stream ProtocolError why)
        Right found
          | tooMany (length (headFields found)) -> unlessDraining (pure ()) tooLarge
          | final && maybe False (> 0) (headLength found) ->
            unlessDraining (pure ()) (streamError r stream ProtocolError "no body where one was said")
          | otherwise -> do
            awaitThreads r
            -- A shutdown waits until no stream is live, so that one becomes live as it is accepted.
            mask_ (unlessDraining (modifyTVar' (http2Live h) (+ 1)) (startStream h stream final found))
    tooManyStreams = do
      free <- budgetRefused <$> readIORef (receiverBudgets r)
      when (free > 0) (modifyIORef' (receiverBudgets r) (\b -> b {budgetRefused = free - 1}))
      (if free > 0 then streamErrorFree else streamError) r stream RefusedStream "too many streams at once"
    unlessDraining accept act = do
      draining <- atomically $ do
        begun <- readTVar (http2Draining h)
        begun <$ unless begun (writeTVar (http2Accepted h) stream >> accept)
      if draining then writeFrames h (const (pure [resetFrame stream RefusedStream])) else act
    tooLarge = do
      payReset r
      http2OnRefused (http2Settings h) (connPeer (http2Below h)) HeadTooLarge EnhanceYourCalm "the fields are too large"
      more <- http2Fields (http2Settings h)
      writeFrames h $ \encoder -> do
        block <- encodeFields encoder ([(":status", "431"), ("content-length", "0")] <> [(CI.foldedCase name, value) | (name, value) <- more])
        pure (headerFrames flagEndStream stream 16384 block <> [resetFrame stream NoError | not final])

-- | Threads of streams that were reset or have responded may need a moment to end. There are never more than twice as
-- many threads as streams may be open; until enough have ended, nothing is received.
awaitThreads :: Receiver -> IO ()
awaitThreads r = do
  live <- readTVarIO (http2Live h)
  when (live >= most) $ do
    r' <- within (limitFrame (limitsOf r)) (atomically (readTVar (http2Live h) >>= check . (< most)))
    when (r' == Nothing) (leave EnhanceYourCalm "streams do not end")
  where
    h = receiverConnection r
    most = 2 * limitStreams (limitsOf r)

-- Control ----------------------------------------------------------------------------

resetStream :: Receiver -> FrameHeader -> IO ()
resetStream r header = do
  when (frameLength header /= 4) (leave FrameSizeError "a reset")
  found <- lookupStream r (frameStream header)
  payReset r
  atomically (clientEnded (receiverConnection r) (frameStream header))
  mapM_ (cancel (receiverConnection r)) found

pingFrame :: Receiver -> FrameHeader -> ByteString -> IO ()
pingFrame r header payload = do
  when (frameLength header /= 8) (leave FrameSizeError "a ping")
  pay r limitPings budgetPings (\b x -> x {budgetPings = b}) "pings"
  unless (hasFlag flagAck header) (writeFrames (receiverConnection r) (const (pure [frame typePing flagAck 0 payload])))

settingsFrame :: Receiver -> FrameHeader -> ByteString -> IO ()
settingsFrame r header payload
  | hasFlag flagAck header = do
    unless (B.null payload) (leave FrameSizeError "an acknowledgement with a payload")
    modifyIORef' (receiverBudgets r) (\b -> b {budgetRefused = 0})
    pay r limitSettings budgetSettings (\b x -> x {budgetSettings = b}) "settings"
  | otherwise = do
    pay r limitSettings budgetSettings (\b x -> x {budgetSettings = b}) "settings"
    parameters <- maybe (leave FrameSizeError "settings") pure (parseSettings payload)
    let lastOf key = case [value | (k, value) <- parameters, k == key] of
          [] -> Nothing
          values -> Just (fromIntegral (last values) :: Int)
    forM_ parameters $ \(key, value) -> case key of
      2 -> when (value > 1) (leave ProtocolError "settings: push")
      4 -> when (fromIntegral value > maxWindow) (leave FlowControlError "settings: the window")
      5 -> when (value < 16384 || value > 16777215) (leave ProtocolError "settings: the size of frames")
      _ -> pure ()
    forM_ (lastOf 5) (writeIORef (http2FrameSize h) . min 16384)
    forM_ (lastOf 4) initialWindow
    writeFrames h $ \encoder -> do
      -- Each value, in their order: the table is emptied also by one that does not last (RFC 7541, 4.2).
      forM_ [value | (1, value) <- parameters] (\value -> limitEncoder (fromIntegral value) encoder)
      pure [frame typeSettings flagAck 0 B.empty]
  where
    h = receiverConnection r
    initialWindow value = do
      fits <- atomically $ do
        before <- readTVar (http2InitialWindow h)
        writeTVar (http2InitialWindow h) value
        streams <- readTVar (http2Streams h)
        forM (IntMap.elems streams) $ \s -> do
          own <- readTVar (streamWindow s)
          writeTVar (streamWindow s) (own + value - before)
          pure (own + value - before <= maxWindow)
      unless (and fits) (leave FlowControlError "settings: the window")

-- | The largest flow-control window: section 6.9.1.
maxWindow :: Int
maxWindow = 2147483647

windowUpdate :: Receiver -> FrameHeader -> ByteString -> IO ()
windowUpdate r header payload = do
  when (frameLength header /= 4) (leave FrameSizeError "a window update")
  earned <- atomicModifyIORef' (http2Earned h) ((,) 0)
  modifyIORef' (receiverBudgets r) (\b -> b {budgetWindows = earn (limitWindowUpdates (limitsOf r)) (4 * earned) (budgetWindows b)})
  pay r limitWindowUpdates budgetWindows (\b x -> x {budgetWindows = b}) "window updates"
  let n = fromIntegral (word32 payload .&. 0x7fffffff) :: Int
  if frameStream header == 0
    then do
      when (n == 0) (leave ProtocolError "a window update of nothing")
      total <- atomically $ do
        total <- (+ n) <$> readTVar (http2Window h)
        total <$ writeTVar (http2Window h) total
      when (total > maxWindow) (leave FlowControlError "the connection's window")
    else do
      found <- lookupStream r (frameStream header)
      forM_ found $ \s ->
        if n == 0
          then streamError r (streamId s) ProtocolError "a window update of nothing"
          else do
            total <- atomically $ do
              total <- (+ n) <$> readTVar (streamWindow s)
              total <$ writeTVar (streamWindow s) total
            when (total > maxWindow) (streamError r (streamId s) FlowControlError "a stream's window")
  where
    h = receiverConnection r
