{-# LANGUAGE OverloadedStrings #-}

-- |
-- What a server sends: bytes are cut into frames, and each frame changes the state (RFC 9113, sections 4 to 6). Pure.
module Weft.Http2.Client.Receive
  ( receive,
  )
where

import Control.Monad
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeTake)
import qualified Data.IntMap.Strict as IntMap
import Weft.Http2.Client.Head
import Weft.Http2.Client.Stream
import Weft.Http2.Client.Types
import Weft.Http2.Core.Ended
import Weft.Http2.Core.Flow (maxWindow)
import Weft.Http2.Core.Types (Decode (..), Fields (..), Frame (..), StreamId)
import Weft.Http2.Frame
import Weft.Http2.Pieces

-- Bytes ------------------------------------------------------------------------------

-- | Take bytes, in pieces of any size: handle every frame that is whole, and keep a copy of the rest.
receive :: ByteString -> Step ()
receive bytes = do
  modify (\core -> core {coreHeard = coreTime core})
  pieces <- gets corePieces
  unless (B.null bytes) (either keep loop (joinPiece bytes pieces))
  where
    keep pieces = modify (\core -> core {corePieces = pieces})
    loop buffer
      | B.length buffer < wanted = keep (keepRest wanted buffer)
      | otherwise = whole (B.unsafeTake wanted buffer) >> loop (B.unsafeDrop wanted buffer)
      where
        wanted = frameWanted buffer

whole :: ByteString -> Step ()
whole bytes = forM_ (parseFrameHeader bytes) $ \header -> do
  when (frameLength header > mostPayload) (failWith FrameSizeError "a frame of more than 16384 bytes")
  phase <- gets corePhase
  when (phase == AwaitSettings) $ do
    -- Section 3.4. What speaks another protocol is noticed here.
    when (frameType header /= typeSettings || hasFlag flagAck header) (failWith ProtocolError "the server does not begin with settings")
    -- A server that does not limit streams allows any number.
    modify (\core -> core {corePhase = Open, coreLimit = maxBound})
    act Allowed
  handle header (B.unsafeDrop frameHeaderSize bytes)

-- Frames -----------------------------------------------------------------------------

handle :: FrameHeader -> ByteString -> Step ()
handle header payload = do
  block <- gets coreBlock
  case block of
    Just pending
      | kind == typeContinuation -> continuation pending header payload
      | otherwise -> failWith ProtocolError "a header block was interrupted"
    Nothing
      | kind == typeData -> onStreamOnly >> dataFrame header payload
      | kind == typeHeaders -> onStreamOnly >> headersFrame header payload
      | kind == typePriority -> do
        onStreamOnly
        when (frameLength header /= 5) (failWith FrameSizeError "a priority of another size")
        payEmpty
      | kind == typeReset -> onStreamOnly >> resetFrame header payload
      | kind == typeSettings -> onConnectionOnly >> settingsFrame header payload
      | kind == typePing -> onConnectionOnly >> pingFrame header payload
      | kind == typeGoAway -> onConnectionOnly >> goAwayFrame header payload
      | kind == typeWindowUpdate -> windowUpdate header payload
      -- Section 8.4: it was told not to.
      | kind == typePushPromise -> failWith ProtocolError "the server pushes"
      | kind == typeContinuation -> failWith ProtocolError "a continuation of nothing"
      | otherwise -> payEmpty
  where
    kind = frameType header
    onStreamOnly = when (frameStream header == 0) (failWith ProtocolError "a stream's frame on the connection")
    onConnectionOnly = when (frameStream header /= 0) (failWith ProtocolError "the connection's frame on a stream")

payEmpty :: Step ()
payEmpty = pay configEmptyFrames chargeEmpty (\b c -> c {chargeEmpty = b}) "frames that carry nothing"

-- | What the server sends on a stream that is not open (section 5.1). A frame may have been under way when this side
-- ended the stream; the flag says that it ends the server's.
notOpen :: StreamId -> Bool -> String -> Step ()
notOpen n final what = do
  ended <- gets coreEnded
  case past n ended of
    Early -> payEmpty >> when final (modify (\core -> core {coreEnded = endedThere n ended}))
    Over -> failWith StreamClosed (what <> " on a stream that has ended")
    _ -> failWith ProtocolError (what <> " on a stream that has not begun")

dataFrame :: FrameHeader -> ByteString -> Step ()
dataFrame header payload = do
  bytes <- maybe (failWith ProtocolError "more padding than payload") pure (unpad header payload)
  when (B.null bytes && not final) payEmpty
  core <- get
  when (size > coreRoom core) (failWith FlowControlError "more data than the connection's window")
  modify (\c -> c {coreRoom = coreRoom c - size})
  case IntMap.lookup n (coreStreams core) of
    -- Paid for by the window.
    Nothing | past n (coreEnded core) == Early -> consumed size >> when final (modify (\c -> c {coreEnded = endedThere n (coreEnded c)}))
    Nothing -> notOpen n final "data"
    Just s -> case streamReceiving s of
      Complete -> failWith StreamClosed "data after the end"
      AwaitHead _ -> consumed size >> malformed n ProtocolError "data before the head"
      Body expected got
        | size > streamRoom s -> consumed size >> malformed n FlowControlError "more data than the stream's window"
        | maybe False (\e -> got' > e || (final && got' /= e)) expected -> consumed size >> malformed n ProtocolError "a body of another length than was said"
        | otherwise -> do
          modify (\c -> c {coreUnread = coreUnread c + B.length bytes})
          onStream n (\s' -> s' {streamRoom = streamRoom s - size, streamReceiving = Body expected got'})
          unless (B.null bytes) (act (Deliver n bytes))
          when final (responded n [])
          let padding = size - B.length bytes
          when (padding > 0) (consumed padding >> creditStream n padding)
        where
          got' = got + B.length bytes
  where
    n = frameStream header
    size = frameLength header
    final = hasFlag flagEndStream header

-- Header blocks ----------------------------------------------------------------------

headersFrame :: FrameHeader -> ByteString -> Step ()
headersFrame header payload = do
  bytes <- maybe (failWith ProtocolError "more padding than payload") pure (unpad header payload)
  (_, piece) <- maybe (failWith FrameSizeError "headers without their priority") pure (withoutPriority header bytes)
  addPiece (Block (frameStream header) (hasFlag flagEndStream header) [] 0 0) header piece

continuation :: Block -> FrameHeader -> ByteString -> Step ()
continuation block@(Block n _ _ _ _) header payload = do
  when (frameStream header /= n) (failWith ProtocolError "a header block was interrupted")
  when (B.null payload) payEmpty
  addPiece block header payload

addPiece :: Block -> FrameHeader -> ByteString -> Step ()
addPiece (Block n final pieces size count) header piece = do
  most <- gets (configHeaderBlock . coreConfig)
  when (size' > most) (failWith EnhanceYourCalm "a header block is too long")
  when (count > 64) (failWith EnhanceYourCalm "too many continuations")
  if hasFlag flagEndHeaders header
    then do
      Decode decode <- gets coreDecode
      case decode (B.concat (reverse (piece : pieces))) of
        Left (code, why) -> failWith code why
        Right (fields, decode') -> do
          modify (\core -> core {coreBlock = Nothing, coreDecode = decode'})
          fieldsCame n final fields
    else modify (\core -> core {coreBlock = Just (Block n final (B.copy piece : pieces) size' (count + 1))})
  where
    size' = size + B.length piece

-- | A complete header block: an interim response, a head, or trailers.
fieldsCame :: StreamId -> Bool -> Fields -> Step ()
fieldsCame n final found = do
  core <- get
  let config = coreConfig core
      tooLarge = fieldsSize found > configHeaderList config || (configFields config > 0 && length (fieldsList found) > configFields config + 1)
      wrong = malformed n ProtocolError
  case IntMap.lookup n (coreStreams core) of
    Nothing -> notOpen n final "headers"
    Just s -> case streamReceiving s of
      Complete -> failWith StreamClosed "headers after the end"
      _ | tooLarge -> malformed n EnhanceYourCalm "the fields exceed the limits"
      Body expected got
        | not final -> wrong "headers in the middle of a body"
        | maybe False (/= got) expected -> wrong "a body of another length than was said"
        | otherwise -> either wrong (const (responded n (fieldsList found))) (readTrailers (fieldsList found))
      AwaitHead interim -> case readResponse (fieldsList found) of
        Left why -> wrong why
        Right answer
          -- Section 8.6.
          | responseCode answer == 101 -> wrong "a switch of protocols"
          | responseCode answer < 200 -> case () of
            _
              | final -> wrong "an interim response that ends the stream"
              | interim >= configInterim config -> malformed n EnhanceYourCalm "too many interim responses"
              | otherwise -> onStream n (\s' -> s' {streamReceiving = AwaitHead (interim + 1)}) >> act (Interim n (responseCode answer))
          | final && maybe False (> 0) expected -> wrong "no body where one was said"
          | otherwise -> do
            onStream n (\s' -> s' {streamReceiving = Body expected 0})
            act (Answer n answer)
            when final (responded n [])
          where
            -- RFC 9110, 6.4.1.
            expected = if streamIsHead s || responseCode answer `elem` [204, 304] then Just 0 else responseLength answer

-- Control ----------------------------------------------------------------------------

resetFrame :: FrameHeader -> ByteString -> Step ()
resetFrame header payload = do
  when (frameLength header /= 4) (failWith FrameSizeError "a reset")
  core <- get
  when (past n (coreEnded core) `elem` [Idle, PassedOver]) (failWith ProtocolError "a reset of a stream that has not begun")
  -- Section 5.1: what comes behind a reset is an error of the stream only, whether it had ended before or not. Servers
  -- of gRPC (its C core) send trailers and a reset when a deadline has passed, and once more when the call has ended.
  modify (\c -> c {coreEnded = endedHere n (coreEnded c)})
  case IntMap.lookup n (coreStreams core) of
    Nothing
      | echoes > 0 -> modify (\c -> c {coreCharges = (coreCharges c) {chargeEchoes = echoes - 1}})
      | otherwise -> payEmpty
      where
        echoes = chargeEchoes (coreCharges core)
    Just s
      | code == fromEnum RefusedStream, AwaitHead _ <- streamReceiving s -> lost n Unprocessed
      | otherwise -> lost n (Reset code)
  where
    n = frameStream header
    code = fromIntegral (word32 payload)

pingFrame :: FrameHeader -> ByteString -> Step ()
pingFrame header payload = do
  when (frameLength header /= 8) (failWith FrameSizeError "a ping")
  pay configPings chargePings (\b c -> c {chargePings = b}) "pings"
  unless (hasFlag flagAck header) (queue (SendPingAck (B.copy payload)))

-- | Section 6.8: what has a higher number than the last stream was not acted on.
goAwayFrame :: FrameHeader -> ByteString -> Step ()
goAwayFrame header payload = do
  when (frameLength header < 8) (failWith FrameSizeError "a goaway")
  payEmpty
  core <- get
  when (highestServed > coreLast core) (failWith ProtocolError "a goaway that takes a former one back")
  modify (\c -> c {coreRetired = True, coreLast = highestServed})
  unless (coreRetired core) (act Allowed)
  forM_ (IntMap.keys (snd (IntMap.split highestServed (coreStreams core)))) $ \n -> do
    modify (\c -> c {coreEnded = endedHere n (coreEnded c)})
    lost n Unprocessed
  where
    highestServed = fromIntegral (word32 payload .&. 0x7fffffff) :: Int

settingsFrame :: FrameHeader -> ByteString -> Step ()
settingsFrame header payload = do
  pay configSettings chargeSettings (\b c -> c {chargeSettings = b}) "settings"
  if hasFlag flagAck header
    then unless (B.null payload) (failWith FrameSizeError "an acknowledgement with a payload")
    else do
      parameters <- maybe (failWith FrameSizeError "settings") pure (parseSettings payload)
      -- Section 6.5.3: in their order.
      forM_ parameters $ \(key, value) -> case key of
        2 -> when (value /= 0) (failWith ProtocolError "settings: push")
        3 -> modify (\core -> core {coreLimit = fromIntegral value}) >> act Allowed
        4 -> do
          when (fromIntegral value > maxWindow) (failWith FlowControlError "settings: the window")
          initialWindow (fromIntegral value)
        5 -> do
          when (value < 16384 || value > 16777215) (failWith ProtocolError "settings: the size of frames")
          modify (\core -> core {coreFrameSize = min 16384 (fromIntegral value)})
        _ -> pure ()
      queue (SendSettingsAck [fromIntegral (min 65536 value) | (1, value) <- parameters])

-- | Section 6.9.2: the windows of all streams change by the difference.
initialWindow :: Int -> Step ()
initialWindow value = do
  core <- get
  let by = value - coreInitial core
      streams = IntMap.map (\s -> s {streamWindow = streamWindow s + by}) (coreStreams core)
  when (any ((> maxWindow) . streamWindow) streams) (failWith FlowControlError "settings: the window")
  modify (\c -> c {coreInitial = value, coreStreams = streams})
  when (by /= 0) (mapM_ refresh (IntMap.keys streams))

windowUpdate :: FrameHeader -> ByteString -> Step ()
windowUpdate header payload = do
  when (frameLength header /= 4) (failWith FrameSizeError "a window update")
  pay configWindowUpdates chargeWindows (\b c -> c {chargeWindows = b}) "window updates"
  core <- get
  if n == 0
    then do
      when (by == 0) (failWith ProtocolError "a window update of nothing")
      when (coreWindow core + by > maxWindow) (failWith FlowControlError "the connection's window")
      modify (\c -> c {coreWindow = coreWindow c + by})
    else case IntMap.lookup n (coreStreams core) of
      -- It may have been sent before the server knew the end, of either side (section 5.1).
      Nothing -> when (past n (coreEnded core) `elem` [Idle, PassedOver]) (failWith ProtocolError "a window update of a stream that has not begun")
      Just s
        | by == 0 -> malformed n ProtocolError "a window update of nothing"
        | streamWindow s + by > maxWindow -> malformed n FlowControlError "a stream's window"
        | otherwise -> onStream n (\s' -> s' {streamWindow = streamWindow s + by}) >> refresh n
  where
    n = frameStream header
    by = fromIntegral (word32 payload .&. 0x7fffffff) :: Int
