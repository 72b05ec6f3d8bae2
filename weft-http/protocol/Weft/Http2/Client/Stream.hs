{-# LANGUAGE OverloadedStrings #-}

-- |
-- What happens to the streams of a client's connection, by the server ("Weft.Http2.Client.Receive") or by their owners
-- ('owner'): their ends, their turns to send, the credit for what was read. Pure.
module Weft.Http2.Client.Stream
  ( -- * Ends
    lost,
    malformed,
    allowRest,
    forget,
    responded,
    endIfRetired,

    -- * Credit
    consumed,
    creditStream,

    -- * Sending
    onStream,
    refresh,
    owner,
    takeFrames,
  )
where

import Control.Monad
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Weft.Core.Time (after)
import Weft.Http2.Budget (earn)
import Weft.Http2.Client.Types
import Weft.Http2.Core.Ended (endedHere)
import Weft.Http2.Core.Types (Field, Frame (..), StreamId)
import Weft.Http2.Frame (ErrorCode (..))

-- | Change a stream that is known.
onStream :: StreamId -> (Stream -> Stream) -> Step ()
onStream n f = modify (\core -> core {coreStreams = IntMap.adjust f n (coreStreams core)})

-- Ends -------------------------------------------------------------------------------

-- | A stream is over before its end.
lost :: StreamId -> Loss -> Step ()
lost n why = act (Lost n why) >> forget n

-- | The server has broken a rule for one stream: section 5.4.2.
malformed :: StreamId -> ErrorCode -> String -> Step ()
malformed n code why = act (Lost n (Malformed why)) >> resetHere n code

-- | Reset a stream that is known. What the server still sends on it is ignored, and a few frames of it are no sign of a
-- server that floods: the head, trailers, and a reset may be under way.
resetHere :: StreamId -> ErrorCode -> Step ()
resetHere n code = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> do
    when (streamReceiving s /= Complete) (modify (\core -> core {coreEnded = endedHere n (coreEnded core)}))
    modify (\core -> core {coreCharges = allowRest (coreConfig core) (coreCharges core)})
    forget n
    queue (SendReset n code)

-- | Allow what may come for a stream when it is over.
allowRest :: Config -> Charges -> Charges
allowRest config charges = charges {chargeEmpty = earn (configEmptyFrames config) 4 (chargeEmpty charges)}

-- | A stream leaves the table. What its window had grown by is for others.
forget :: StreamId -> Step ()
forget n = modify $ \core -> case IntMap.lookup n (coreStreams core) of
  Nothing -> core
  Just s ->
    core
      { coreStreams = IntMap.delete n (coreStreams core),
        coreOpen = coreOpen core - 1,
        coreReady = IntSet.delete n (coreReady core),
        coreSpare = coreSpare core + streamSize s - configWindow (coreConfig core)
      }

-- | The response is complete; the stream is over if the request is as well.
responded :: StreamId -> [Field] -> Step ()
responded n trailers = do
  act (DeliverEnd n trailers)
  onStream n (\s -> s {streamReceiving = Complete})
  forgetIfOver n

forgetIfOver :: StreamId -> Step ()
forgetIfOver n = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> when (streamSending s == Sent && streamReceiving s == Complete) (forget n)

-- | A connection without streams that gets no further ones ends.
endIfRetired :: Step ()
endIfRetired = do
  core <- get
  when (coreRetired core && coreOpen core == 0) (failWith NoError "no further streams")

-- Credit -----------------------------------------------------------------------------

-- | Bytes of the connection's window were consumed. They are returned when they are worth a frame.
consumed :: Int -> Step ()
consumed size = do
  core <- get
  let owed = coreOwed core + size
  if owed >= configWindow (coreConfig core) `div` 2
    then do
      modify (\c -> c {coreOwed = 0, coreRoom = coreRoom c + owed})
      queue (SendWindow 0 owed)
    else modify (\c -> c {coreOwed = owed})

-- | The same for a stream, if the server goes on sending on it.
--
-- Its window grows by this, up to 'largestWindow', if less than a quarter of it is delivered and not consumed: then its
-- reader waits for the server, and the server may wait for the window. That of a reader who lags does not grow, and
-- none shrinks: a stream does not last long, and all that they can grow by is bounded ('configSpare').
creditStream :: StreamId -> Int -> Step ()
creditStream n size = do
  core <- get
  forM_ (IntMap.lookup n (coreStreams core)) $ \s ->
    when (streamReceiving s /= Complete) $ do
      let owed = streamOwed s + size
          unread = streamSize s - streamRoom s - owed
          more
            | 4 * unread >= streamSize s = 0
            | otherwise = max 0 (minimum [3 * streamSize s, largestWindow - streamSize s, coreSpare core])
      if 2 * owed >= streamSize s || owed >= mostOwed
        then do
          modify (\c -> c {coreSpare = coreSpare c - more})
          onStream n (\s' -> s' {streamOwed = 0, streamSize = streamSize s + more, streamRoom = streamRoom s + owed + more})
          queue (SendWindow n (owed + more))
        else onStream n (\s' -> s' {streamOwed = owed})

-- | What a window may grow to: a gigabit a second over a round trip of 33 ms.
largestWindow :: Int
largestWindow = 4194304

-- | Credit of that many bytes is returned, however large the window is.
mostOwed :: Int
mostOwed = 262144

-- Sending ----------------------------------------------------------------------------

-- | Give a stream a turn among those that can send, or take it away, after a change of its state. An end behind which
-- there is nothing is queued at once, since it needs no window.
refresh :: StreamId -> Step ()
refresh n = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> case streamSending s of
    Sending 0 (Just trailers) -> do
      onStream n (\s' -> s' {streamSending = Sent})
      ready IntSet.delete
      queue (if null trailers then SendData n 0 True else SendHeaders n trailers True)
      forgetIfOver n
    Sending offered _ -> ready (if offered > 0 && streamWindow s > 0 then IntSet.insert else IntSet.delete)
    Sent -> ready IntSet.delete
  where
    ready change = modify (\core -> core {coreReady = change n (coreReady core)})

-- | Handle an input of a stream's owner, or of the connection's.
owner :: Input -> Step ()
owner input = case input of
  Offer n more -> sending n $ \offered end ->
    when (end == Nothing && more > 0) (onStream n (\s -> s {streamSending = Sending (offered + more) end}) >> refresh n)
  Finish n trailers -> sending n $ \offered end ->
    when (end == Nothing) (onStream n (\s -> s {streamSending = Sending offered (Just trailers)}) >> refresh n)
  Consume n size -> do
    unread <- gets coreUnread
    let size' = min size unread
    modify (\core -> core {coreUnread = unread - size'})
    consumed size'
    creditStream n size'
  GiveUp n -> do
    core <- get
    forM_ (IntMap.lookup n (coreStreams core)) $ \s -> do
      -- The server, or the way to it, may be no more. Those that wait for it still may.
      let silent = after (configSilence (coreConfig core)) (max (coreHeard core) (streamBegan s)) <= coreTime core
      when (silent && streamReceiving s /= Complete && not (coreRetired core)) (modify (\c -> c {coreRetired = True}) >> act Allowed)
      resetHere n (if streamReceiving s == Complete then NoError else Cancel)
  Break code why -> failWith code why
  Received _ -> pure ()
  where
    sending n f = do
      known <- gets (IntMap.lookup n . coreStreams)
      forM_ known $ \s -> case streamSending s of
        Sending offered end -> f offered end
        Sent -> pure ()

-- | Take what can be sent now: first all other frames, then data of at most that many bytes, as the windows allow, of
-- all streams in turn.
takeFrames :: Int -> Step [Frame]
takeFrames most = do
  queued <- gets coreQueue
  modify (\core -> core {coreQueue = [], coreQueued = 0})
  (reverse queued <>) <$> dataFrames most

dataFrames :: Int -> Step [Frame]
dataFrames most
  | most <= 0 = pure []
  | otherwise = do
    core <- get
    case nextTurn (coreTurn core) (coreReady core) of
      Just n
        | coreWindow core > 0,
          Just s <- IntMap.lookup n (coreStreams core),
          Sending offered end <- streamSending s -> do
          let size = minimum [offered, streamWindow s, coreWindow core, coreFrameSize core, most]
          frames <- dataFrame n s offered end size
          (frames <>) <$> dataFrames (most - size)
      _ -> pure []
  where
    nextTurn turn ready = case IntSet.lookupGT turn ready of
      Nothing -> fst <$> IntSet.minView ready
      found -> found

-- | A frame of so many bytes, and the trailers, if they are next.
dataFrame :: StreamId -> Stream -> Int -> Maybe [Field] -> Int -> Step [Frame]
dataFrame n s offered end size = do
  modify $ \core ->
    let charges = coreCharges core
     in core
          { coreWindow = coreWindow core - size,
            coreTurn = n,
            coreStreams = IntMap.insert n s {streamSending = sending, streamWindow = streamWindow s - size} (coreStreams core),
            coreCharges =
              charges
                { chargeWindows = earn (configWindowUpdates (coreConfig core)) 4 (chargeWindows charges),
                  chargeEchoes = chargeEchoes charges + 1
                }
          }
  refresh n
  frames <$ forgetIfOver n
  where
    left = offered - size
    (sending, frames) = case end of
      Just trailers
        | left == 0 -> (Sent, if null trailers then [SendData n size True] else [SendData n size False, SendHeaders n trailers True])
      _ -> (Sending left end, [SendData n size False])
