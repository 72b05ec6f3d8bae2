-- |
-- What an application gives to its stream, and what is sent when the transport can take it. Pure.
module Weft.Http2.Core.Send
  ( application,
    mostData,
    takeFrames,
  )
where

import Control.Monad
import qualified Data.IntMap.Strict as IntMap
import qualified Data.Set as Set
import Weft.Http2.Budget (earn)
import Weft.Http2.Core.Flow (endReceive, unreadOf)
import Weft.Http2.Core.Priority
import Weft.Http2.Core.Stream
import Weft.Http2.Core.Types
import Weft.Http2.Resets (completed)

-- | Handle an input of an application. Those that do not fit the state of the stream have no effect, since it may have
-- ended in the meantime.
application :: Input -> Step ()
application input = case input of
  Interim n fields -> unanswered n (queue (SendHeaders n fields False))
  Respond n fields -> unanswered n $ do
    queue (SendHeaders n fields False)
    sending n (Answering 0 Nothing)
    bidirectional n
  Offer n more -> answering n $ \offered trailers -> case trailers of
    Nothing | more > 0 -> sending n (Answering (offered + more) Nothing) >> refresh n
    _ -> pure ()
  Finish n trailers -> answering n $ \offered end ->
    when (end == Nothing) (sending n (Answering offered (Just trailers)) >> refresh n)
  Whole n fields size trailers -> do
    core <- get
    forM_ (IntMap.lookup n (coreStreams core)) $ \s ->
      when (streamSending s == Unanswered) $
        if goesAtOnce size core s
          then atOnce n fields size trailers s
          else do
            queue (SendHeaders n fields False)
            sending n (Answering size (Just trailers))
            bidirectional n
            refresh n
  Want n -> known n $ \s -> case streamReceiving s of
    Receiving expected _ | unreadOf (streamFlow s) == 0 && not (isBidirectional expected s) -> waiting n ForBody
    _ -> pure ()
  Consume n bytes -> known n $ \s -> case streamReceiving s of
    Discarding _ -> pure ()
    _ -> do
      let read' = min bytes (unreadOf (streamFlow s))
      returnRead n True read'
      probe n read'
  AwaitWindow n -> known n (\s -> unless (streamSending s == Answered) (onStream n (\s' -> s' {streamAwaits = True}) >> opened n))
  Abandon n code -> known n $ \s -> unless (streamSending s == Answered) (silently n code)
  _ -> pure ()
  where
    known n f = gets (IntMap.lookup n . coreStreams) >>= mapM_ f
    unanswered n f = known n (\s -> when (streamSending s == Unanswered) f)
    answering n f = known n $ \s -> case streamSending s of
      Answering offered end -> f offered end
      _ -> pure ()
    sending n state = onStream n (\s -> s {streamSending = state})
    -- What it has waited for the body ends here, if that is not limited any more.
    bidirectional n = known n $ \s -> case streamReceiving s of
      Receiving expected _ | isBidirectional expected s -> waitOver n
      _ -> pure ()
    -- The application knows that it has ended: it need not be stopped.
    silently n code = onStream n (\s -> s {streamSending = Answered}) >> resetHere n code

-- | The bytes of data that one 'takeFrames' may be asked for: a few records of TLS.
mostData :: Int
mostData = 49152

-- | Whether a whole response of that size can be queued as it is: the client has nothing more to send, the windows are
-- open, no other stream waits for its turn, and it fits into what is sent next.
goesAtOnce :: Int -> Core -> Stream -> Bool
goesAtOnce size core s =
  streamReceiving s == Complete
    && size <= coreFrameSize core
    && size <= streamWindow s
    && size <= coreWindow core
    && coreQueued core + size <= mostData
    && Set.null (coreReady core)

-- | Queue a whole response, and forget its stream: what 'dataFrame' and 'afterResponse' do, in one step.
atOnce :: StreamId -> [Field] -> Int -> [Field] -> Stream -> Step ()
atOnce n fields size trailers s = do
  c <- get
  let (owed, flow) = endReceive (streamFlow s) (coreFlow c)
      config = coreConfig c
      charges = coreCharges c
      isData = size > 0
      start = SendHeaders n fields False : coreQueue c
      body
        | null trailers = SendData n size True : start
        | isData = SendHeaders n trailers True : SendData n size False : start
        | otherwise = SendHeaders n trailers True : start
  modify . const $
    c
      { coreQueue = body,
        coreQueued = coreQueued c + size,
        coreWindow = coreWindow c - size,
        coreTurn = if isData then coreTurn c + 1 else coreTurn c,
        coreStreams = IntMap.delete n (coreStreams c),
        coreOpen = coreOpen c - 1,
        coreFlow = flow,
        coreIdleSince = coreTime c,
        coreProgress = if isData then coreTime c else coreProgress c,
        coreCharges =
          charges
            { chargeResets = completed (configResets config) 1 (chargeResets charges),
              chargeWindows = if isData then earn (configWindowUpdates config) 4 (chargeWindows charges) else chargeWindows charges,
              chargeEchoes = if isData then chargeEchoes charges + 1 else chargeEchoes charges
            }
      }
  window 0 owed

-- | Take what can be sent now: first all other frames, then data of at most that many bytes, as windows and priorities
-- allow.
takeFrames :: Int -> Step [Frame]
takeFrames most = do
  modify (\c -> if coreAnswers c == 0 then c else c {coreAnswers = 0})
  queued <- gets coreQueued
  -- The end of a stream may queue window updates.
  sent <- dataFrames (most - queued)
  core <- get
  modify (\c -> c {coreQueue = [], coreQueued = 0})
  pure (foldl (flip (:)) sent (coreQueue core))

dataFrames :: Int -> Step [Frame]
dataFrames most
  | most <= 0 = pure []
  | otherwise = do
    core <- get
    case next (coreTurn core) (coreReady core) of
      Just n
        | coreWindow core > 0,
          Just s <- IntMap.lookup n (coreStreams core),
          Answering offered end <- streamSending s -> do
          let size = minimum [offered, streamWindow s, coreWindow core, coreFrameSize core, most]
          frames <- dataFrame n s offered end size
          (frames <>) <$> dataFrames (most - size)
      Just _ | coreWindow core <= 0 -> [] <$ mapM_ (\(_, _, m, _) -> waiting m ForWindow) (Set.toList (coreReady core))
      _ -> pure []

-- | A frame of so many bytes, and the trailers, if they are next.
dataFrame :: StreamId -> Stream -> Int -> Maybe [Field] -> Int -> Step [Frame]
dataFrame n s offered end size = do
  modify $ \c ->
    let charges = coreCharges c
        -- The turn is over. The stream takes its place again below, if it can still send.
        (place, ready) = leave n (streamPlace s) (coreReady c)
        s' = withEarned (coreConfig c) (coreOpen c) size s {streamSending = sending, streamWindow = streamWindow s - size, streamPlace = place {placeTurn = coreTurn c + 1}}
     in c
          { coreProgress = coreTime c,
            coreWindow = coreWindow c - size,
            coreTurn = coreTurn c + 1,
            coreReady = ready,
            coreStreams = IntMap.insert n s' (coreStreams c),
            coreCharges =
              charges
                { chargeWindows = earn (configWindowUpdates (coreConfig c)) 4 (chargeWindows charges),
                  chargeEchoes = chargeEchoes charges + 1
                }
          }
  frames <$ if sending == Answered then afterResponse n else refresh n
  where
    left = offered - size
    (sending, frames) = case end of
      Just trailers
        | left == 0 -> (Answered, if null trailers then [SendData n size True] else [SendData n size False, SendHeaders n trailers True])
      _ -> (Answering left end, [SendData n size False])
