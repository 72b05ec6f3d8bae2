-- |
-- What "Weft.Http2.Core.Receive" and "Weft.Http2.Core.Send" do to streams: their ends, their places among those that
-- can send, how long they wait, and what frames cost. Pure.
module Weft.Http2.Core.Stream
  ( -- * Ends
    streamError,
    resetHere,
    forget,
    afterResponse,
    endIfDrained,

    -- * Sending
    queueAnswer,
    refresh,
    opened,
    window,

    -- * Waiting
    waiting,
    waitOver,
    isBidirectional,
    earned,
    withEarned,

    -- * Request bodies
    discardData,
    returnRead,
    openUpload,
    probe,
    probed,

    -- * Charges
    pay,
    payEmpty,
    payReset,
  )
where

import Control.Monad
import qualified Data.IntMap.Strict as IntMap
import Weft.Core.Time (Instant (..), after)
import Weft.Duration (milliseconds)
import Weft.Http2.Budget
import Weft.Http2.Core.Ended
import Weft.Http2.Core.Flow
import Weft.Http2.Core.Priority (Place (placeReady), enter, leave)
import Weft.Http2.Core.Types
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Resets

-- Ends -------------------------------------------------------------------------------

-- | Reset a stream because of a client's error (section 5.4.2), which is reported and charged.
streamError :: StreamId -> ErrorCode -> String -> Step ()
streamError n code why = act (Refuse n (refusalOf code) code why) >> payReset >> resetHere n code

-- | Reset a stream, if the client may still send on it or wait for it, and stop its application.
resetHere :: StreamId -> ErrorCode -> Step ()
resetHere n code = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> do
    when (streamSending s /= Answered) (act (Stop n code))
    when (streamReceiving s /= Complete) (modify (\core -> core {coreEnded = endedHere n (coreEnded core)}))
    forget n
  queueAnswer (SendReset n code)

-- | A stream is over: it leaves the table, and its credit goes back.
forget :: StreamId -> Step ()
forget n = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> do
    flow <- gets coreFlow
    let (owed, flow') = endReceive (streamFlow s) flow
    modify $ \core ->
      core
        { coreStreams = IntMap.delete n (coreStreams core),
          coreOpen = coreOpen core - 1,
          coreReady = snd (leave n (streamPlace s) (coreReady core)),
          coreFlow = flow',
          coreIdleSince = coreTime core
        }
    window 0 owed

-- | End a connection that drains and has no stream.
endIfDrained :: Step ()
endIfDrained = do
  core <- get
  when (coreDrain core == Draining && IntMap.null (coreStreams core)) (failWith NoError "the server is shutting down")

-- | The last frame of the response was queued. If the client is still sending, go on for a while, since some clients
-- lose the response otherwise (curl 7.88); after that tell it to stop (section 8.1).
afterResponse :: StreamId -> Step ()
afterResponse n = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> do
    modify (\core -> core {coreCharges = paidBy core})
    case streamReceiving s of
      Complete -> forget n
      _ -> do
        most <- gets (configDiscard . coreConfig)
        onStream n (\s' -> s' {streamSending = Answered, streamReceiving = Discarding most})
        returnRead n False (unreadOf (streamFlow s))
        waiting n ForBody
  where
    paidBy core = let charges = coreCharges core in charges {chargeResets = completed (configResets (coreConfig core)) 1 (chargeResets charges)}

-- Sending ----------------------------------------------------------------------------

-- | Queue a frame that a client can cause without end. A client that causes them and does not read them is cut off.
queueAnswer :: Frame -> Step ()
queueAnswer frame = do
  core <- get
  when (coreAnswers core >= configAnswers (coreConfig core)) (failWith EnhanceYourCalm "answers are not read")
  modify (\c -> c {coreAnswers = coreAnswers c + 1})
  queue frame

-- | Give a stream its place among those that can send, or take it away, after a change of its state. An end behind
-- which there is nothing is queued at once, since it needs no window.
refresh :: StreamId -> Step ()
refresh n = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> case streamSending s of
    Answering 0 (Just trailers) -> do
      queue (if null trailers then SendData n 0 True else SendHeaders n trailers True)
      onStream n (\s' -> s' {streamSending = Answered})
      unready n s
      afterResponse n
    Answering offered _
      | offered > 0 -> do
        open <- gets ((> 0) . coreWindow)
        if streamWindow s > 0 then ready n s else unready n s
        if streamWindow s > 0 && open then waitOver n else waiting n ForWindow
    _ -> unready n s
  opened n
  where
    ready m s = unless (placeReady (streamPlace s)) (place enter m s)
    unready m s = when (placeReady (streamPlace s)) (place leave m s)
    place f m s = modify $ \core ->
      let (there, set) = f m (streamPlace s) (coreReady core)
       in core {coreReady = set, coreStreams = IntMap.adjust (\s' -> s' {streamPlace = there}) m (coreStreams core)}

-- | Tell the application that waits for the windows, if they are open.
opened :: StreamId -> Step ()
opened n = do
  known <- gets (IntMap.lookup n . coreStreams)
  open <- gets ((> 0) . coreWindow)
  forM_ known $ \s ->
    when (streamAwaits s) $
      if open && streamWindow s > 0
        then waitOver n >> onStream n (\s' -> s' {streamAwaits = False}) >> act (Opened n)
        else waiting n ForWindow

-- | Give the client that much more of a window, if it is something.
window :: StreamId -> Int -> Step ()
window n by = when (by > 0) (queueAnswer (SendWindow n by))

-- Waiting ----------------------------------------------------------------------------

-- | A stream waits for its client from now on, if it does not wait already.
waiting :: StreamId -> (Instant -> Waiting) -> Step ()
waiting n what = do
  t <- gets coreTime
  onStream n (\s -> if streamWaiting s == NotWaiting then s {streamWaiting = what t} else s)

-- | It does not wait any more: what it has waited is gone. A tunnel has all of the time for each wait, and
-- earns no more: a WebSocket may be silent over and over.
waitOver :: StreamId -> Step ()
waitOver n = do
  core <- get
  let Instant t = coreTime core
      since (Instant t') s = s {streamLeft = if streamTunnel s then streamLeft s else streamLeft s - (t - t'), streamWaiting = NotWaiting}
  forM_ (IntMap.lookup n (coreStreams core)) $ \s -> case streamWaiting s of
    NotWaiting -> pure ()
    ForWindow t' -> onStream n (since t')
    ForBody t' -> onStream n (since t')

-- | Whether the client may be silent while the application reads a body that has not ended: its length was not
-- announced, and the response has begun. So both sides of a call may be silent, as in a subscription of gRPC. A
-- WebSocket may not: its clients send pings.
isBidirectional :: Maybe Int -> Stream -> Bool
isBidirectional expected s = case (expected, streamSending s) of
  (Nothing, Answering _ _) -> not (streamTunnel s)
  _ -> False

-- | Bytes were transferred, which adds to the time that a stream may wait. Arguments: how many streams share the least
-- rate, at most eight, and the bytes.
earned :: StreamId -> Int -> Int -> Step ()
earned n sharing bytes =
  modify $ \core ->
    core
      { coreProgress = coreTime core,
        coreStreams = IntMap.adjust (withEarned (coreConfig core) sharing bytes) n (coreStreams core)
      }

-- | The same of a stream.
withEarned :: Config -> Int -> Int -> Stream -> Stream
withEarned config sharing bytes s
  | streamTunnel s = s
  | otherwise = s {streamLeft = earnTime (configWait config) rate bytes (streamLeft s)}
  where
    rate = configRate config `div` max 1 (min 8 sharing)

-- Request bodies ---------------------------------------------------------------------

-- | Bytes of data that nobody reads: the connection's window gets them back.
discardData :: Int -> Step ()
discardData bytes = do
  flow <- gets coreFlow
  case discard bytes flow of
    Nothing -> failWith FlowControlError "more data than the connection's window"
    Just (owed, flow') -> modify (\core -> core {coreFlow = flow'}) >> window 0 owed

-- | A body goes on, perhaps of a declared length: enlarge its first window, if that is used and there is enough left.
openUpload :: StreamId -> Maybe Int -> Step ()
openUpload n size = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> do
    flow <- gets coreFlow
    let (more, flow', own) = widen size flow (streamFlow s)
    when (more > 0) $ do
      modify (\core -> core {coreFlow = flow'})
      onStream n (\s' -> s' {streamFlow = own})
      window n more

-- | Bytes of a stream were read, by its application or not: both windows get them back.
returnRead :: StreamId -> Bool -> Int -> Step ()
returnRead n byApplication bytes = do
  known <- gets (IntMap.lookup n . coreStreams)
  forM_ known $ \s -> when (bytes > 0) $ do
    flow <- gets coreFlow
    let ((whole, part), flow', own) = consume (streamReceiving s /= Complete) byApplication bytes flow (streamFlow s)
    modify (\core -> core {coreFlow = flow'})
    onStream n (\s' -> s' {streamFlow = own})
    window 0 whole
    window n part

-- | The application of a stream has read bytes: they count for the round trip that is measured, or a measurement
-- begins.
probe :: StreamId -> Int -> Step ()
probe n bytes = do
  core <- get
  forM_ (IntMap.lookup n (coreStreams core)) $ \s -> case coreProbe core of
    Probing _ -> counts
    NotProbing from grew -> when (from <= coreTime core && streamReceiving s /= Complete && mayGrow (coreFlow core) (streamFlow s)) $ do
      modify (\c -> c {coreProbe = Probing grew})
      queue (SendPing probePing)
      counts
  where
    counts = onStream n (\s -> s {streamFlow = measured bytes (streamFlow s)})

-- | The client has answered: the windows follow what was read. If they grow, the next round trip is measured at once,
-- and the one behind it too, since only in that the client has the larger window; else after a tenth of a second.
probed :: Bool -> Step ()
probed before = do
  streams <- gets (filter reading . IntMap.toList . coreStreams)
  t <- gets coreTime
  grown <- forM streams $ \(n, s) -> do
    flow <- gets coreFlow
    let ((whole, part), flow', own) = sampled (length streams) flow (streamFlow s)
    modify (\core -> core {coreFlow = flow'})
    onStream n (\s' -> s' {streamFlow = own})
    window 0 whole
    window n part
    pure (part > 0)
  modify (\core -> core {coreProbe = NotProbing (if or grown || before then t else after (milliseconds 100) t) (or grown)})
  where
    reading (_, s) =
      readSince (streamFlow s) > 0 && case streamReceiving s of
        Receiving _ _ -> True
        _ -> False

-- Charges ----------------------------------------------------------------------------

-- | Spend one unit of a budget, or end the connection.
pay :: (Config -> Rate) -> (Charges -> Budget) -> (Budget -> Charges -> Charges) -> String -> Step ()
pay rate from to what = do
  core <- get
  case spend (rate (coreConfig core)) (coreTime core) (from (coreCharges core)) of
    Just left -> modify (\c -> c {coreCharges = to left (coreCharges c)})
    Nothing -> failWith EnhanceYourCalm ("too many " <> what)

-- | A frame that carries nothing.
payEmpty :: Step ()
payEmpty = pay configEmptyFrames chargeEmpty (\b c -> c {chargeEmpty = b}) "frames without a payload"

-- | A reset by the client or because of its error.
payReset :: Step ()
payReset = do
  core <- get
  case reset (configResets (coreConfig core)) (coreTime core) (chargeResets (coreCharges core)) of
    Just left -> modify (\c -> c {coreCharges = (coreCharges c) {chargeResets = left}})
    Nothing -> failWith EnhanceYourCalm "too many resets"
