{-# LANGUAGE OverloadedStrings #-}

-- |
-- What a client sends: bytes are cut into frames, and each frame changes the state (RFC 9113, sections 4 to 6). Pure.
module Weft.Http2.Core.Receive
  ( receive,
    finishAnnouncement,
  )
where

import Control.Monad
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeTake)
import qualified Data.CaseInsensitive as CI
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (fromMaybe, isJust)
import qualified Data.Set as Set
import Weft.Core.Time (Duration (..))
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Core.Ended
import Weft.Http2.Core.Flow
import Weft.Http2.Core.Priority
import Weft.Http2.Core.Stream
import Weft.Http2.Core.Types
import Weft.Http2.Frame
import Weft.Http2.Pieces
import Weft.Http2.Request

-- Bytes ------------------------------------------------------------------------------

-- | Take bytes, in pieces of any size: handle every frame that is whole, and keep the rest.
receive :: ByteString -> Step ()
receive bytes = do
  pieces <- gets corePieces
  -- Whether the first byte that will be kept has come now.
  let fresh = piecesSize pieces == 0
  unless (B.null bytes) (either (keep fresh) (loop fresh) (joinPiece bytes pieces))
  where
    keep fresh pieces = modify (\core -> core {corePieces = pieces, coreSince = if fresh then coreTime core else coreSince core})
    loop fresh buffer = do
      phase <- gets corePhase
      let wanted = if phase == AwaitPreface then B.length connectionPreface else frameWanted buffer
      if B.length buffer < wanted
        then keep fresh (keepRest wanted buffer)
        else whole phase (B.unsafeTake wanted buffer) >> loop True (B.unsafeDrop wanted buffer)

whole :: Phase -> ByteString -> Step ()
whole phase bytes = case phase of
  AwaitPreface
    | bytes == connectionPreface -> modify (\core -> core {corePhase = AwaitSettings})
    | otherwise -> failWith ProtocolError "no preface"
  _ -> forM_ (parseFrameHeader bytes) $ \header -> do
    when (frameLength header > mostPayload) (failWith FrameSizeError "a frame of more than 16384 bytes")
    when (phase == AwaitSettings) $ do
      when (frameType header /= typeSettings || hasFlag flagAck header) (failWith ProtocolError "settings come first")
      modify (\core -> core {corePhase = Open})
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
        payPriority
        -- Section 6.3. The priority itself has no meaning any more.
        when (frameLength header /= 5) $ do
          ended <- gets coreEnded
          known <- gets (IntMap.member (frameStream header) . coreStreams)
          -- A stream that has not begun must not be reset.
          when (not known && past (frameStream header) ended == Idle) (failWith FrameSizeError "a priority of another size")
          streamError (frameStream header) FrameSizeError "a priority of another size"
      | kind == typeReset -> onStreamOnly >> resetFrame header
      | kind == typeSettings -> onConnectionOnly >> settingsFrame header payload
      | kind == typePing -> onConnectionOnly >> pingFrame header payload
      | kind == typeGoAway -> do
        onConnectionOnly
        when (frameLength header < 8) (failWith FrameSizeError "a goaway")
        payEmpty
      | kind == typeWindowUpdate -> windowUpdate header payload
      | kind == typePushPromise -> failWith ProtocolError "a client pushes"
      | kind == typeContinuation -> failWith ProtocolError "a continuation of nothing"
      | kind == typePriorityUpdate -> onConnectionOnly >> priorityUpdate header payload
      | otherwise -> payEmpty
  where
    kind = frameType header
    onStreamOnly = when (frameStream header == 0) (failWith ProtocolError "a stream's frame on the connection")
    onConnectionOnly = when (frameStream header /= 0) (failWith ProtocolError "the connection's frame on a stream")

-- | What the client sends on a stream that is not open (section 5.1). The action is for a stream that the server has
-- ended first, so that the frame may have been under way.
notOpen :: StreamId -> String -> Step () -> Step ()
notOpen n what early = do
  ended <- gets coreEnded
  case past n ended of
    Idle -> failWith ProtocolError (what <> " of a stream that has not begun")
    PassedOver -> failWith ProtocolError (what <> " of a stream that was passed over")
    Early -> early
    Over -> streamError n StreamClosed (what <> " of a stream that has ended")

clientEnded :: StreamId -> Step ()
clientEnded n = modify (\core -> core {coreEnded = endedThere n (coreEnded core)})

dataFrame :: FrameHeader -> ByteString -> Step ()
dataFrame header payload = do
  bytes <- maybe (failWith ProtocolError "more padding than payload") pure (unpad header payload)
  when (B.null bytes && not final) payEmpty
  core <- get
  case IntMap.lookup n (coreStreams core) of
    Nothing -> do
      -- Also of a stream that has not begun: an error of flow control would be the same end.
      discardData size
      notOpen n "data" (when final (clientEnded n))
    Just s -> case streamReceiving s of
      Complete -> discardData size >> streamError n StreamClosed "data after the end"
      Discarding left -> do
        discardInto core s
        if final
          then onStream n (\s' -> s' {streamReceiving = Complete}) >> forget n
          else do
            onStream n (\s' -> s' {streamReceiving = Discarding (left - B.length bytes)})
            waitOver n >> earned n 8 (B.length bytes) >> waiting n ForBody
            when (left < B.length bytes) (resetHere n NoError)
      Receiving expected got -> case arriving core s of
        BeyondConnection -> failWith FlowControlError "more data than the connection's window"
        BeyondStream -> discardData size >> streamError n FlowControlError "more data than the stream's window"
        Fits flow own
          | maybe False (\e -> got' > e || (final && got' /= e)) expected -> do
            discardData size
            streamError n ProtocolError "a body of another length than was said"
          | otherwise -> do
            modify (\c -> c {coreFlow = flow})
            onStream n (\s' -> s' {streamFlow = own, streamReceiving = if final then Complete else Receiving expected got'})
            unless (B.null bytes) (waitOver n >> earned n 8 (B.length bytes) >> act (Deliver n bytes))
            when final (waitOver n >> act (DeliverEnd n []))
            returnRead n False (size - B.length bytes)
            unless final (openUpload n expected)
          where
            got' = got + B.length bytes
  where
    n = frameStream header
    size = frameLength header
    final = hasFlag flagEndStream header
    -- Before it knows our SETTINGS, a client may believe that the window is the protocol's default.
    arriving core s = arrive (if coreAcknowledged core then 0 else 65535 - receiveShare (coreFlow core)) size (coreFlow core) (streamFlow s)
    discardInto core s = case arriving core s of
      BeyondConnection -> failWith FlowControlError "more data than the connection's window"
      BeyondStream -> discardData size
      Fits flow own -> do
        modify (\c -> c {coreFlow = flow})
        onStream n (\s' -> s' {streamFlow = own})
        returnRead n False size

-- Header blocks ----------------------------------------------------------------------

headersFrame :: FrameHeader -> ByteString -> Step ()
headersFrame header payload = do
  when (even (frameStream header)) (failWith ProtocolError "a stream of a client has an odd number")
  bytes <- maybe (failWith ProtocolError "more padding than payload") pure (unpad header payload)
  -- Section 4.2: too small for what its flags announce.
  (_, piece) <- maybe (failWith FrameSizeError "headers without their priority") pure (withoutPriority header bytes)
  t <- gets coreTime
  addPiece (Block (frameStream header) (hasFlag flagEndStream header) [] 0 0 t) header piece

continuation :: Block -> FrameHeader -> ByteString -> Step ()
continuation block@(Block n _ _ _ _ _) header payload = do
  when (frameStream header /= n) (failWith ProtocolError "a header block was interrupted")
  when (B.null payload) payEmpty
  addPiece block header payload

addPiece :: Block -> FrameHeader -> ByteString -> Step ()
addPiece (Block n final pieces size count since) header piece = do
  config <- gets coreConfig
  when (size' > configHeaderBlock config) (failAs HeadTooLarge EnhanceYourCalm "a header block is too long")
  when (count > 64) (failAs HeadTooLarge EnhanceYourCalm "too many continuations")
  if hasFlag flagEndHeaders header
    then do
      Decode decode <- gets coreDecode
      case decode (B.concat (reverse (piece : pieces))) of
        Left (code, why) -> failWith code why
        Right (fields, decode') -> do
          modify (\core -> core {coreBlock = Nothing, coreDecode = decode'})
          fieldsCame n final fields
    else modify (\core -> core {coreBlock = Just (Block n final (B.copy piece : pieces) size' (count + 1) since)})
  where
    size' = size + B.length piece

-- | A complete header block: a request, trailers, or one of a stream that has ended.
fieldsCame :: StreamId -> Bool -> Fields -> Step ()
fieldsCame n final found = do
  core <- get
  case IntMap.lookup n (coreStreams core) of
    Just s -> case streamReceiving s of
      Complete -> streamError n StreamClosed "headers after the end"
      _ | not final -> streamError n ProtocolError "headers in the middle of a body"
      Discarding _ -> onStream n (\s' -> s' {streamReceiving = Complete}) >> forget n
      Receiving expected got
        -- RFC 9113, 8.5: nothing but data.
        | streamTunnel s -> streamError n ProtocolError "headers in a tunnel"
        | tooMany core (length (fieldsList found)) -> streamError n EnhanceYourCalm "too many trailers"
        | maybe False (/= got) expected -> streamError n ProtocolError "a body of another length than was said"
        | Left why <- readTrailers (fieldsList found) -> streamError n ProtocolError why
        | otherwise -> do
          onStream n (\s' -> s' {streamReceiving = Complete})
          waitOver n
          act (DeliverEnd n (fieldsList found))
    Nothing
      | n > highest (coreEnded core) -> newStream n final found
      | otherwise -> notOpen n "headers" (if final then clientEnded n else streamError n StreamClosed "headers in the middle of a body")

tooMany :: Core -> Int -> Bool
tooMany core count = let most = configFields (coreConfig core) in most > 0 && count > most

newStream :: StreamId -> Bool -> Fields -> Step ()
newStream n final found = do
  core <- get
  let config = coreConfig core
      known = IntMap.lookup n (corePriorities core)
      begun = begin n (coreEnded core)
      priorities = if IntMap.null (corePriorities core) then IntMap.empty else snd (IntMap.split n (corePriorities core))
      -- No stream that is open.
      passing = modify (\c -> c {coreEnded = if final then begun else endedHere n begun, corePriorities = priorities})
  case fieldsHead found of
    -- A client that is told to go away, and has not seen it yet, may repeat its request elsewhere: no charge.
    _ | coreDrain core == Draining -> passing >> queueAnswer (SendReset n RefusedStream)
    _
      | coreOpen core >= configStreams config -> passing >> refused core
      | fieldsSize found > configHeaderList config -> passing >> tooLarge
    Left why -> passing >> accepted >> streamError n ProtocolError why
    Right head'
      | tooMany core (length (headFields head')) -> passing >> tooLarge
      -- What RFC 9220, 3 says of HTTP/3.
      | any ((/= "websocket") . CI.mk) (headProtocol head') -> passing >> answered BadRequest ProtocolError "501" "a protocol that is not known"
      | final && maybe False (> 0) (headLength head') -> passing >> accepted >> streamError n ProtocolError "no body where one was said"
      | otherwise -> do
        let asked = maybe defaultPriority parsePriority (lookup "priority" (headFields head'))
            Duration wait = configWait config
            s =
              Stream
                { streamSending = Unanswered,
                  streamReceiving = if final then Complete else Receiving (headLength head') 0,
                  streamWindow = coreInitial core,
                  streamFlow = beginReceive (coreFlow core),
                  streamPlace = newPlace (fromMaybe asked known) (coreTurn core),
                  streamLeft = wait,
                  streamWaiting = NotWaiting,
                  streamAwaits = False,
                  streamTunnel = isJust (headProtocol head')
                }
        modify $ \c ->
          c
            { coreAccepted = n,
              coreStreams = IntMap.insert n s (coreStreams c),
              coreOpen = coreOpen c + 1,
              coreEnded = begun,
              corePriorities = priorities,
              coreActions = Start n head' final : coreActions c
            }
  where
    accepted = modify (\c -> c {coreAccepted = n})
    -- RFC 9113, 5.1.2. A client that does not know the limit yet has done nothing wrong.
    refused core
      | not (coreAcknowledged core) && chargeFree (coreCharges core) > 0 = do
        modify (\c -> c {coreCharges = (coreCharges c) {chargeFree = chargeFree (coreCharges c) - 1}})
        act (Refuse n LimitExceeded RefusedStream "too many streams at once")
        queueAnswer (SendReset n RefusedStream)
      | otherwise = streamError n RefusedStream "too many streams at once"
    tooLarge = answered HeadTooLarge EnhanceYourCalm "431" "the fields are too large"
    answered refusal code status why = do
      accepted
      payReset
      act (Refuse n refusal code why)
      queueAnswer (SendHeaders n [(":status", status), ("content-length", "0")] True)
      unless final (queueAnswer (SendReset n NoError))

-- Control ----------------------------------------------------------------------------

resetFrame :: FrameHeader -> Step ()
resetFrame header = do
  when (frameLength header /= 4) (failWith FrameSizeError "a reset")
  core <- get
  let known = IntMap.lookup n (coreStreams core)
  when (past n (coreEnded core) == Idle) (failWith ProtocolError "a reset of a stream that has not begun")
  case known of
    Nothing | echoes core > 0 -> modify (\c -> c {coreCharges = (coreCharges c) {chargeEchoes = echoes c - 1}})
    _ -> payReset
  forM_ known $ \s -> do
    when (streamSending s /= Answered) (act (Stop n Cancel))
    forget n
  clientEnded n
  where
    n = frameStream header
    echoes = chargeEchoes . coreCharges

pingFrame :: FrameHeader -> ByteString -> Step ()
pingFrame header payload = do
  when (frameLength header /= 8) (failWith FrameSizeError "a ping")
  core <- get
  case coreProbe core of
    Probing before | answers && payload == probePing -> probed before
    _ -> do
      pay configPings chargePings (\b c -> c {chargePings = b}) "pings"
      case coreDrain core of
        _ | not answers -> queueAnswer (SendPingAck (B.copy payload))
        Announced _ | payload == drainPing -> finishAnnouncement
        _ -> pure ()
  where
    answers = hasFlag flagAck header

-- | The client has seen the first GOAWAY, or has had its time: name the last stream that is served (section 6.8).
finishAnnouncement :: Step ()
finishAnnouncement = do
  modify (\core -> core {coreDrain = Draining})
  accepted <- gets coreAccepted
  queue (SendGoAway accepted NoError)
  endIfDrained

settingsFrame :: FrameHeader -> ByteString -> Step ()
settingsFrame header payload = do
  pay configSettings chargeSettings (\b c -> c {chargeSettings = b}) "settings"
  if hasFlag flagAck header
    then do
      unless (B.null payload) (failWith FrameSizeError "an acknowledgement with a payload")
      modify (\core -> core {coreAcknowledged = True})
    else do
      parameters <- maybe (failWith FrameSizeError "settings") pure (parseSettings payload)
      -- Section 6.5.3: in their order.
      forM_ parameters $ \(key, value) -> case key of
        2 -> when (value > 1) (failWith ProtocolError "settings: push")
        4 -> do
          when (fromIntegral value > maxWindow) (failWith FlowControlError "settings: the window")
          initialWindow (fromIntegral value)
        5 -> do
          when (value < 16384 || value > 16777215) (failWith ProtocolError "settings: the size of frames")
          modify (\core -> core {coreFrameSize = min 16384 (fromIntegral value)})
        8 -> when (value > 1) (failWith ProtocolError "settings: extended CONNECT")
        9 -> when (value > 1) (failWith ProtocolError "settings: priorities")
        _ -> pure ()
      queueAnswer (SendSettingsAck [fromIntegral value | (1, value) <- parameters])

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
      let total = coreWindow core + by
      when (total > maxWindow) (failWith FlowControlError "the connection's window")
      modify (\c -> c {coreWindow = total})
      -- The streams that were only waiting for it.
      when (coreWindow core <= 0 && total > 0) $ do
        mapM_ (\(_, _, m, _) -> waitOver m) (Set.toList (coreReady core))
        mapM_ opened (IntMap.keys (coreStreams core))
    else case IntMap.lookup n (coreStreams core) of
      -- It may have been sent before the client knew the end, of either side (section 5.1).
      Nothing -> when (past n (coreEnded core) == Idle) (failWith ProtocolError "a window update of a stream that has not begun")
      Just s
        | by == 0 -> streamError n ProtocolError "a window update of nothing"
        | streamWindow s + by > maxWindow -> streamError n FlowControlError "a stream's window"
        | otherwise -> onStream n (\s' -> s' {streamWindow = streamWindow s + by}) >> refresh n
  where
    n = frameStream header
    by = fromIntegral (word32 payload .&. 0x7fffffff) :: Int

payPriority :: Step ()
payPriority = pay configPriorities chargePriorities (\b c -> c {chargePriorities = b}) "priorities"

-- | RFC 9218, 7.1.
priorityUpdate :: FrameHeader -> ByteString -> Step ()
priorityUpdate header payload = do
  payPriority
  when (frameLength header < 4) (failWith FrameSizeError "a priority update")
  when (n == 0) (failWith ProtocolError "a priority update of the connection")
  core <- get
  case IntMap.lookup n (coreStreams core) of
    Just s -> do
      let (place, ready) = leave n (streamPlace s) (coreReady core)
      modify (\c -> c {coreReady = ready})
      onStream n (\s' -> s' {streamPlace = place {placePriority = priority}})
      refresh n
    -- One that is early; as many are kept as streams may begin.
    Nothing ->
      when (odd n && n > highest (coreEnded core) && IntMap.size (corePriorities core) < configStreams (coreConfig core)) $
        modify (\c -> c {corePriorities = IntMap.insert n priority (corePriorities c)})
  where
    n = fromIntegral (word32 payload .&. 0x7fffffff) :: Int
    priority = parsePriority (B.drop 4 payload)
