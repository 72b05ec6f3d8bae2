-- |
-- A connection of an HTTP\/2 server as a pure value: RFC 9113, with priorities (RFC 9218) and WebSockets (RFC 8441).
-- 'step' takes what happens, with the time, and says what has to be done; 'takeFrames' says what to send next. It
-- decides the states of streams, flow control in both directions, limits, priorities and errors. It keeps no bytes of
-- responses: their owner keeps them, and is told how many of them to send.
--
-- One thread at a time uses a 'Core'. The work of a step is in proportion to the bytes and frames that it is given,
-- times the logarithm of the number of streams; SETTINGS that change the window take the number of streams.
module Weft.Http2.Core
  ( -- * Connections
    Core,
    newCore,
    step,
    stepAll,
    mostData,
    takeFrames,
    hasFrames,
    nextDeadline,
    openStreams,
    maySend,
    isQuiet,
    idleSince,
    isEnded,
    isSound,

    -- * Vocabulary
    Config (..),
    defaultConfig,
    Field,
    Fields (..),
    fieldsOf,
    Decode (..),
    StreamId,
    Input (..),
    Action (..),
    Frame (..),
  )
where

import Control.Monad
import qualified Data.ByteString as B
import Data.Foldable (toList)
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (catMaybes, isNothing)
import qualified Data.Set as Set
import Weft.Core.Time (Duration (..), Instant (..), after)
import Weft.Duration (seconds)
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Budget (fullBudget)
import Weft.Http2.Core.Ended (noneEnded)
import Weft.Http2.Core.Flow
import Weft.Http2.Core.Priority (Place (..))
import Weft.Http2.Core.Receive
import Weft.Http2.Core.Send (mostData)
import qualified Weft.Http2.Core.Send as Send
import Weft.Http2.Core.Stream
import Weft.Http2.Core.Types
import Weft.Http2.Frame (ErrorCode (..), connectionPreface)
import Weft.Http2.Pieces (noPieces, piecesSize)
import Weft.Http2.Resets (noResets)

-- | A connection that begins now, with a decoder. Its SETTINGS are queued.
newCore :: Config -> Instant -> Decode -> Core
newCore config t decode =
  Core
    { coreConfig = config,
      corePhase = AwaitPreface,
      coreDrain = NoDrain,
      coreTime = t,
      corePieces = noPieces (B.length connectionPreface),
      coreSince = t,
      coreBlock = Nothing,
      coreDecode = decode,
      coreStreams = IntMap.empty,
      coreOpen = 0,
      coreEnded = noneEnded (configStreams config),
      coreAccepted = 0,
      coreFlow = flow,
      coreProbe = NotProbing t False,
      coreWindow = 65535,
      coreInitial = 65535,
      coreFrameSize = 16384,
      coreAcknowledged = False,
      coreReady = Set.empty,
      coreTurn = 0,
      corePriorities = IntMap.empty,
      coreCharges = Charges noResets fullBudget fullBudget fullBudget fullBudget fullBudget 0 1000,
      coreIdleSince = t,
      coreProgress = t,
      coreSilence = Silent t,
      coreQueue = [SendWindow 0 more | more > 0] <> [SendSettings ours],
      coreQueued = 0,
      coreAnswers = 0,
      coreActions = []
    }
  where
    flow = newReceive (configBodies config) (configStreams config)
    more = receiveSize flow - 65535
    -- 8: extended CONNECT (RFC 8441, 3). The last one: the priorities of RFC 7540 are ignored (RFC 9218, 2.1).
    ours =
      [(3, fromIntegral (configStreams config))]
        <> [(4, fromIntegral (receiveShare flow)) | receiveShare flow /= 65535]
        <> [(6, fromIntegral (configHeaderList config)), (8, 1), (9, 1)]

-- | What happens next, at a time that is not before the last one's. After a 'Close', nothing has an effect.
step :: Instant -> Input -> Core -> ([Action], Core)
step t input = stepAll t [input]

-- | Several things happen, in their order, at the same time.
stepAll :: Instant -> [Input] -> Core -> ([Action], Core)
stepAll t inputs core
  | isEnded core = ([], core)
  | otherwise = (reverse (coreActions core'), core' {coreActions = []})
  where
    core' = case runStep (mapM_ handling inputs >> endIfDrained) core {coreTime = t} of
      Goes () after' -> after'
      Ends after' -> after'

handling :: Input -> Step ()
handling input = case input of
  Received bytes -> modify (\core -> core {coreSilence = Silent (coreTime core)}) >> receive bytes
  BeginDrain -> beginDrain
  Break code why -> failWith code why
  Tick -> tick
  _ -> Send.application input

-- | What to send now, of all streams: at most that many bytes of data. Frames that are not data come first; the owner
-- sends all of them, in this order, before it asks again.
takeFrames :: Instant -> Int -> Core -> ([Frame], [Action], Core)
takeFrames t most core
  | isEnded core = (reverse (coreQueue core), [], core {coreQueue = []})
  | otherwise = case runStep (Send.takeFrames most) core {coreTime = t} of
    Ends core' -> ended [] core'
    Goes frames core' -> case runStep endIfDrained core' of
      Goes () core'' -> (frames, reverse (coreActions core''), core'' {coreActions = []})
      -- The last data were the end of a drain.
      Ends core'' -> ended frames core''
  where
    ended frames c = (frames <> reverse (coreQueue c), reverse (coreActions c), c {coreActions = [], coreQueue = []})

-- | Whether 'takeFrames' has something to send.
hasFrames :: Core -> Bool
hasFrames core = not (null (coreQueue core)) || (coreWindow core > 0 && not (Set.null (coreReady core)))

-- | The number of streams as the client counts them.
openStreams :: Core -> Int
openStreams = coreOpen

-- | Whether both windows of a stream are open.
maySend :: StreamId -> Core -> Bool
maySend n core = coreWindow core > 0 && maybe False ((> 0) . streamWindow) (IntMap.lookup n (coreStreams core))

-- | Whether no more than the idle time is running, which only the client's bytes and a drain can change.
isQuiet :: Core -> Bool
isQuiet core = IntMap.null (coreStreams core) && piecesSize (corePieces core) == 0 && isNothing (coreBlock core) && coreDrain core `elem` [NoDrain, Draining]

-- | When the last stream ended, or the connection began. 'Nothing' if a stream is open, or a drain has begun.
idleSince :: Core -> Maybe Instant
idleSince core
  | IntMap.null (coreStreams core) && coreDrain core == NoDrain && not (isEnded core) = Just (coreIdleSince core)
  | otherwise = Nothing

-- | The connection is to be closed as soon as what is queued was sent.
isEnded :: Core -> Bool
isEnded core = corePhase core == Ended

-- Drains -----------------------------------------------------------------------------

-- | Section 6.8: a GOAWAY that refuses nothing yet, and after a round trip another one, so that no request is lost that
-- the client sent before it knew.
beginDrain :: Step ()
beginDrain = do
  core <- get
  when (coreDrain core == NoDrain) $ do
    modify (\c -> c {coreDrain = Announced (after (min (seconds 1) (configFrame (coreConfig core))) (coreTime core))})
    queue (SendGoAway maxWindow NoError)
    queue (SendPing drainPing)

-- Time -------------------------------------------------------------------------------

-- | When the next 'Tick' is due.
nextDeadline :: Core -> Maybe Instant
nextDeadline core = case map fst (deadlines core) of
  [] -> Nothing
  ds -> Just (minimum ds)

-- | What happens when nothing else does, and when.
deadlines :: Core -> [(Instant, Step ())]
deadlines core
  | isEnded core = []
  | otherwise =
    catMaybes
      [ frame,
        Just $ if IntMap.null (coreStreams core) then (after (configIdle config) (coreIdleSince core), failWith NoError "idle") else silence,
        case coreDrain core of
          Announced t -> Just (t, finishAnnouncement)
          _ -> Nothing
      ]
      <> [(wait t s, stalled n w) | (n, s) <- IntMap.toList (coreStreams core), w <- [streamWaiting s], Just t <- [since w]]
  where
    config = coreConfig core
    frame = case coreBlock core of
      Just (Block _ _ _ _ _ t) -> Just (after (configFrame config) t, slow)
      Nothing | piecesSize (corePieces core) > 0 -> Just (after (configFrame config) (coreSince core), slow)
      Nothing -> Nothing
    slow = failAs ClientTooSlow EnhanceYourCalm "a frame took too long"
    -- An application may be silent for as long as it likes, and so may its client. But a client that has lost its network
    -- says nothing, and would keep its streams for ever.
    silence = case coreSilence core of
      Silent t -> (after (configSilence config) t, modify (\c -> c {coreSilence = Asked (coreTime c)}) >> queue (SendPing silencePing))
      Asked t -> (after (configFrame config) t, failAs ClientTooSlow EnhanceYourCalm "the client does not answer")
    since w = case w of
      NotWaiting -> Nothing
      ForWindow t -> Just t
      ForBody t -> Just t
    wait t s = after (Duration (streamLeft s)) t

tick :: Step ()
tick = do
  core <- get
  sequence_ [what | (t, what) <- deadlines core, t <= coreTime core]

-- | A stream has waited for too long. If the client has taken nothing on any stream, that is the connection's end.
stalled :: StreamId -> Waiting -> Step ()
stalled n w = do
  core <- get
  forM_ (IntMap.lookup n (coreStreams core)) $ \s -> case (w, streamReceiving s) of
    (ForWindow _, _) | after (configWait (coreConfig core)) (coreProgress core) <= coreTime core -> failAs ClientTooSlow EnhanceYourCalm "nothing could be sent for too long"
    -- The response is complete, whatever happens to the body.
    (ForBody _, Discarding _) -> resetHere n NoError
    _ -> act (Refuse n ClientTooSlow Cancel "a stream was too slow") >> resetHere n Cancel

-- Invariants -------------------------------------------------------------------------

-- | What holds after each step. For tests.
isSound :: Core -> Bool
isSound core =
  isEnded core
    || sound (configStreams (coreConfig core) - coreOpen core) (map streamFlow (toList (coreStreams core))) (coreFlow core)
      && and [placeReady (streamPlace s) == canSend s | s <- toList (coreStreams core)]
      && Set.size (coreReady core) == length (filter canSend (toList (coreStreams core)))
      && coreWindow core <= maxWindow
      && coreQueued core == sum [size | SendData _ size _ <- coreQueue core]
      && coreOpen core == IntMap.size (coreStreams core)
      && coreOpen core <= configStreams (coreConfig core)
  where
    canSend s = case streamSending s of
      Answering offered _ -> offered > 0 && streamWindow s > 0
      _ -> False
