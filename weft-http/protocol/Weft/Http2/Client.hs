-- |
-- A connection of an HTTP\/2 client as a pure value: RFC 9113. 'begin' begins a stream; 'step' takes what happens,
-- with the time, and says what has to be done; 'takeFrames' says what to send next. It decides the states of streams,
-- flow control in both directions, what the server may cause, and errors. It keeps no bytes of bodies: their owner
-- keeps them, and is told how many of them to send. The client's preface is the owner's to send, before the first
-- frames.
--
-- What a server can make it hold is bounded: a frame, a header block, frames that wait to be sent, and of each response
-- as much as its window. The connection's window is that of all streams together, so a response that is not read stops
-- no other one. The window of a response whose reader keeps up grows, since then it may be the window that limits the
-- server ("Weft.Http2.Client.Stream").
--
-- One thread at a time uses a 'Core'. The work of a step is in proportion to the bytes and frames that it is given,
-- times the logarithm of the number of streams; SETTINGS that change the window, and GOAWAY, take the number of
-- streams.
module Weft.Http2.Client
  ( -- * Connections
    Core,
    newCore,
    begin,
    step,
    takeFrames,
    hasFrames,
    streamsAllowed,
    isEnded,
    isSound,

    -- * Vocabulary
    Config (..),
    defaultConfig,
    Input (..),
    Action (..),
    Loss (..),
    ResponseHead (..),
  )
where

import Data.Foldable (toList)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Weft.Core.Time (Instant)
import Weft.Http2.Budget (fullBudget)
import Weft.Http2.Client.Head
import Weft.Http2.Client.Receive
import Weft.Http2.Client.Stream (allowRest, endIfRetired, owner)
import qualified Weft.Http2.Client.Stream as Stream
import Weft.Http2.Client.Types
import qualified Weft.Http2.Core.Ended as Past
import Weft.Http2.Core.Flow (maxWindow)
import Weft.Http2.Core.Types (Decode, Field, Frame (..), StreamId)
import Weft.Http2.Frame (frameHeaderSize)
import Weft.Http2.Pieces (noPieces)

-- | A connection that begins now, with a decoder. Its SETTINGS are queued.
newCore :: Config -> Instant -> Decode -> Core
newCore config0 t decode =
  Core
    { coreConfig = config,
      corePhase = AwaitSettings,
      coreTime = t,
      coreHeard = t,
      corePieces = noPieces frameHeaderSize,
      coreBlock = Nothing,
      coreDecode = decode,
      coreStreams = IntMap.empty,
      coreOpen = 0,
      coreNext = 1,
      coreEnded = Past.noneEnded 10000,
      coreLimit = 1,
      coreRetired = False,
      coreLast = maxWindow,
      coreWindow = 65535,
      coreInitial = 65535,
      coreFrameSize = 16384,
      coreRoom = size,
      coreUnread = 0,
      coreOwed = 0,
      coreSpare = configSpare config,
      coreReady = IntSet.empty,
      coreTurn = 0,
      coreCharges = Charges fullBudget fullBudget fullBudget fullBudget 0,
      coreQueue = [SendWindow 0 (size - 65535) | size > 65535] <> [SendSettings ours],
      coreQueued = 2,
      coreActions = []
    }
  where
    -- The first window of a stream is the protocol's for a server that has not seen the settings: it cannot be less.
    config =
      config0
        { configWindow = max 65535 (min maxWindow (configWindow config0)),
          configSpare = max 0 (min maxWindow (configSpare config0)),
          configStreams = max 1 (configStreams config0)
        }
    size = connectionWindow config
    -- No pushes (8.4), and no priorities of RFC 7540 (RFC 9218, 2.1).
    ours = [(2, 0), (4, fromIntegral (configWindow config)), (6, fromIntegral (configHeaderList config)), (9, 1)]

-- | Room for all streams.
connectionWindow :: Config -> Int
connectionWindow config = min maxWindow (configStreams config * configWindow config + configSpare config)

-- | Begin a stream at a time that is not before the last one's, if another one is allowed. Arguments: whether the
-- request is HEAD, its fields, and whether they are all of it. What is queued has to be sent soon: with too much that
-- waits, no stream begins.
begin :: Instant -> Bool -> [Field] -> Bool -> Core -> Maybe (StreamId, Core)
begin t isHead fields final core
  | coreOpen core >= streamsAllowed core || 2 * coreQueued core > configQueue config = Nothing
  | otherwise =
    Just
      ( n,
        core
          { coreTime = t,
            coreStreams = IntMap.insert n s (coreStreams core),
            coreOpen = coreOpen core + 1,
            coreNext = n + 2,
            coreEnded = Past.begin n (coreEnded core),
            coreCharges = allowRest config (coreCharges core),
            coreRetired = n + 2 > maxWindow,
            coreQueue = SendHeaders n fields final : coreQueue core,
            coreQueued = coreQueued core + 1
          }
      )
  where
    n = coreNext core
    config = coreConfig core
    s =
      Stream
        { streamSending = if final then Sent else Sending 0 Nothing,
          streamReceiving = AwaitHead 0,
          streamIsHead = isHead,
          streamWindow = coreInitial core,
          streamSize = configWindow config,
          streamRoom = configWindow config,
          streamOwed = 0,
          streamBegan = t
        }

-- | What happens next, at a time that is not before the last one's. After a 'Close', nothing has an effect.
step :: Instant -> Input -> Core -> ([Action], Core)
step t input core
  | isEnded core = ([], core)
  | otherwise = (reverse (coreActions core'), core' {coreActions = []})
  where
    core' = case runStep (handling >> endIfRetired) core {coreTime = t} of
      Goes () after' -> after'
      Ends after' -> after'
    handling = case input of
      Received bytes -> receive bytes
      _ -> owner input

-- | What to send now, of all streams: at most that many bytes of data. Frames that are not data come first; the owner
-- sends all of them, in this order, before it asks again.
takeFrames :: Instant -> Int -> Core -> ([Frame], [Action], Core)
takeFrames t most core
  | isEnded core = (reverse (coreQueue core), [], core {coreQueue = []})
  | otherwise = case runStep (Stream.takeFrames most) core {coreTime = t} of
    Ends core' -> ended [] core'
    Goes frames core' -> case runStep endIfRetired core' of
      Goes () core'' -> (frames, reverse (coreActions core''), core'' {coreActions = []})
      Ends core'' -> ended frames core''
  where
    ended frames c = (frames <> reverse (coreQueue c), reverse (coreActions c), c {coreActions = [], coreQueue = []})

-- | Whether 'takeFrames' has something to send.
hasFrames :: Core -> Bool
hasFrames core = not (null (coreQueue core)) || (coreWindow core > 0 && not (IntSet.null (coreReady core)))

-- | How many streams there may be at a time: none if the connection gets no further ones.
streamsAllowed :: Core -> Int
streamsAllowed core
  | coreRetired core = 0
  | otherwise = min (configStreams (coreConfig core)) (coreLimit core)

-- | The connection is to be closed as soon as what is queued was sent.
isEnded :: Core -> Bool
isEnded core = corePhase core == Ended

-- | What holds after each step. For tests.
isSound :: Core -> Bool
isSound core =
  isEnded core
    || coreRoom core >= 0
      && coreOwed core >= 0
      && coreUnread core >= 0
      && coreRoom core + coreUnread core + coreOwed core == connectionWindow (coreConfig core)
      && coreOpen core == IntMap.size (coreStreams core)
      && coreWindow core <= maxWindow
      && and [streamRoom s >= 0 && streamOwed s >= 0 && streamRoom s + streamOwed s <= streamSize s && streamWindow s <= maxWindow | s <- toList (coreStreams core)]
      && coreSpare core >= 0
      && coreSpare core + sum [streamSize s - configWindow (coreConfig core) | s <- toList (coreStreams core)] == configSpare (coreConfig core)
      && coreReady core == IntMap.keysSet (IntMap.filter canSend (coreStreams core))
  where
    canSend s = case streamSending s of
      Sending offered _ -> offered > 0 && streamWindow s > 0
      Sent -> False
