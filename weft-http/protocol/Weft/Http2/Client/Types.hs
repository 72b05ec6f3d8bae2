-- |
-- The vocabulary of "Weft.Http2.Client": its configuration, what goes in, what comes out, and the state of a
-- connection. Pure.
module Weft.Http2.Client.Types
  ( -- * Configuration
    Config (..),
    defaultConfig,

    -- * In and out
    Input (..),
    Action (..),
    Loss (..),

    -- * The state of a connection
    Core (..),
    Phase (..),
    Block (..),
    Charges (..),

    -- * The state of a stream
    Stream (..),
    Sending (..),
    Receiving (..),

    -- * Steps
    Step,
    module Weft.Http2.Step,
    act,
    queue,
    failWith,
    pay,
  )
where

import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Weft.Core.Time (Duration, Instant)
import Weft.Duration (seconds)
import Weft.Http2.Budget
import Weft.Http2.Client.Head (ResponseHead)
import Weft.Http2.Core.Ended (Ended)
import Weft.Http2.Core.Types (Decode, Field, Frame (..), StreamId)
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Pieces
import Weft.Http2.Step

-- | The limits on a connection, and on what its server may cause. Sizes are in bytes. A server that exceeds a limit on
-- the connection ends it.
data Config = Config
  { -- | Concurrent streams, if the server allows as many.
    configStreams :: !Int,
    -- | The first window of each response: what its reader has not read yet is at most so much. At least 65,535.
    configWindow :: !Int,
    -- | The windows of responses whose readers keep up may be larger by so much, all together.
    configSpare :: !Int,
    -- | A header block, compressed. It may have 64 continuations.
    configHeaderBlock :: !Int,
    -- | The decoded fields of a head or of trailers, plus 32 for each (RFC 9113, 6.5.2).
    configHeaderList :: !Int,
    -- | Fields of a head or of trailers; zero or less means no limit.
    configFields :: !Int,
    -- | Interim responses of a stream.
    configInterim :: !Int,
    -- | Frames that wait to be sent, data not counted.
    configQueue :: !Int,
    -- | Gain nothing, but are answered; a server may measure round trips with them.
    configPings :: !Rate,
    configSettings :: !Rate,
    -- | Each frame of data that is sent allows four more.
    configWindowUpdates :: !Rate,
    -- | Frames that carry nothing: without a payload, for streams that are over, of unknown types, GOAWAY. Each stream
    -- allows four more, each that this side resets another four, and each frame of data that is sent the reset that may
    -- answer it.
    configEmptyFrames :: !Rate,
    -- | After a request was given up for which nothing has come for so long, the connection gets no further ones.
    configSilence :: !Duration
  }

-- | 100 streams with 256 KiB each, and 16 MiB to grow by; heads of 64 KiB and 200 fields.
defaultConfig :: Config
defaultConfig =
  Config
    { configStreams = 100,
      configWindow = 262144,
      configSpare = 16777216,
      configHeaderBlock = 65536,
      configHeaderList = 65536,
      configFields = 200,
      configInterim = 16,
      configQueue = 4000,
      configPings = Rate 1000 2000,
      configSettings = Rate 5 50,
      configWindowUpdates = Rate 200 2000,
      configEmptyFrames = Rate 100 1000,
      configSilence = seconds 5
    }

-- In and out -------------------------------------------------------------------------

-- | What happens to a connection. Inputs for streams that are over have no effect, except 'Consume'.
data Input
  = -- | Bytes came from the server, in pieces of any size.
    Received !ByteString
  | -- | There are this many more bytes of the request's body.
    Offer !StreamId !Int
  | -- | The request ends behind the bytes that were offered, with these trailers, if any.
    Finish !StreamId [Field]
  | -- | So many bytes of a response that were delivered will not be kept any longer; once for each byte.
    Consume !StreamId !Int
  | -- | Nobody wants the response any more.
    GiveUp !StreamId
  | -- | End the connection.
    Break !ErrorCode String
  deriving (Eq, Show)

-- | What the owner of the connection has to do, besides sending frames.
data Action
  = -- | An interim response (1xx): its status.
    Interim !StreamId !Int
  | -- | The head of the response.
    Answer !StreamId !ResponseHead
  | -- | Part of its body, never empty. To be answered by 'Consume'.
    Deliver !StreamId !ByteString
  | -- | The response is complete; its trailers.
    DeliverEnd !StreamId [Field]
  | -- | The stream is over before both sides have ended it. If the response was complete, it is still good.
    Lost !StreamId !Loss
  | -- | How many streams there may be has changed: see 'Weft.Http2.Client.streamsAllowed'.
    Allowed
  | -- | Send what is queued, and close the connection. The last action; all streams that are left are lost.
    Close !ErrorCode String
  deriving (Eq, Show)

-- | Why a stream has no (whole) response.
data Loss
  = -- | The server has not acted on the request and will not: it may be repeated elsewhere, whatever it is (RFC 9113, 8.7).
    Unprocessed
  | -- | The server has reset the stream, with this code (RFC 9113, 7).
    Reset !Int
  | -- | The server has broken a rule for this stream.
    Malformed String
  deriving (Eq, Show)

-- State ------------------------------------------------------------------------------

-- | A connection.
data Core = Core
  { coreConfig :: !Config,
    corePhase :: !Phase,
    -- | When the input happened that is being handled, and when something came from the server last.
    coreTime :: !Instant,
    coreHeard :: !Instant,
    -- | Bytes that form no whole frame yet.
    corePieces :: {-# UNPACK #-} !Pieces,
    coreBlock :: !(Maybe Block),
    coreDecode :: !Decode,
    -- | The streams that are open for one side at least, and their number.
    coreStreams :: !(IntMap.IntMap Stream),
    coreOpen :: !Int,
    -- | The number of the next stream.
    coreNext :: !StreamId,
    coreEnded :: !Ended,
    -- | How many streams the server allows: one until it has said so.
    coreLimit :: !Int,
    -- | Whether no further stream begins; and the last one that the server will act on, if it has named one.
    coreRetired :: !Bool,
    coreLast :: !StreamId,
    -- | The send window, the first one of each stream, and the largest frame to send.
    coreWindow :: !Int,
    coreInitial :: !Int,
    coreFrameSize :: !Int,
    -- | The receive window: what the server may still send; what was received and not consumed; what was consumed and
    -- not returned. Together they are constant.
    coreRoom :: !Int,
    coreUnread :: !Int,
    coreOwed :: !Int,
    -- | What no window has been enlarged by.
    coreSpare :: !Int,
    -- | The streams that have data to send and a window for them; the one whose turn was the last.
    coreReady :: !IntSet.IntSet,
    coreTurn :: !StreamId,
    coreCharges :: !Charges,
    -- | Frames to send before data, the last one first, and their number.
    coreQueue :: [Frame],
    coreQueued :: !Int,
    -- | Actions of this step, the last one first.
    coreActions :: [Action]
  }

-- | What the server has to send next: its first SETTINGS, any frames; or nothing that matters.
data Phase = AwaitSettings | Open | Ended
  deriving (Eq, Show)

-- | A header block whose end has not come: stream, whether it ends the stream, pieces (the last first), their size and
-- number.
data Block = Block !StreamId !Bool [ByteString] !Int !Int

-- | Budgets for each kind of frames that cost work and do nothing.
data Charges = Charges
  { chargePings :: !Budget,
    chargeSettings :: !Budget,
    chargeWindows :: !Budget,
    chargeEmpty :: !Budget,
    -- | Frames of data that were sent, less the resets of streams that were over. Servers (Go's) answer each frame that
    -- was under way as they ended a stream by one more reset (RFC 9113, section 5.1).
    chargeEchoes :: !Int
  }

-- | A stream. It is forgotten when both sides have ended it, or one has reset it.
data Stream = Stream
  { streamSending :: !Sending,
    streamReceiving :: !Receiving,
    -- | The request is HEAD: its response has no body, whatever its length says.
    streamIsHead :: !Bool,
    -- | The send window; negative after some SETTINGS.
    streamWindow :: !Int,
    -- | The receive window; of it, what the server may still send, and what was consumed and not returned. The rest was
    -- delivered and not consumed.
    streamSize :: !Int,
    streamRoom :: !Int,
    streamOwed :: !Int,
    streamBegan :: !Instant
  }

-- | How far the request is: bytes that are offered, and the trailers, if the end is known.
data Sending = Sending !Int !(Maybe [Field]) | Sent
  deriving (Eq, Show)

-- | How far the response is: how many interim responses have come; bytes that are still to come, if their number is
-- declared, and those that came.
data Receiving
  = AwaitHead !Int
  | Body !(Maybe Int) !Int
  | Complete
  deriving (Eq, Show)

-- Steps ------------------------------------------------------------------------------

-- | A computation on a connection, which may end it.
type Step = StepOf Core

-- | Ask the owner for something.
act :: Action -> Step ()
act action = modify (\core -> core {coreActions = action : coreActions core})

-- | Queue a frame. A server that causes frames and does not take them is left.
queue :: Frame -> Step ()
queue frame = do
  core <- get
  when (coreQueued core >= configQueue (coreConfig core)) (failWith EnhanceYourCalm "frames are not taken")
  modify (\c -> c {coreQueue = frame : coreQueue c, coreQueued = coreQueued c + 1})

-- | End the connection: section 5.4.1.
failWith :: ErrorCode -> String -> Step a
failWith code why = Step $ \core ->
  Ends
    core
      { corePhase = Ended,
        coreRetired = True,
        corePieces = noPieces 0,
        coreBlock = Nothing,
        coreStreams = IntMap.empty,
        coreOpen = 0,
        coreReady = IntSet.empty,
        -- The server has begun no stream.
        coreQueue = SendGoAway 0 code : coreQueue core,
        coreActions = Close code why : coreActions core
      }

-- | Charge a frame to its budget.
pay :: (Config -> Rate) -> (Charges -> Budget) -> (Budget -> Charges -> Charges) -> String -> Step ()
pay rate from to what = do
  core <- get
  case spend (rate (coreConfig core)) (coreTime core) (from (coreCharges core)) of
    Just left -> modify (\c -> c {coreCharges = to left (coreCharges c)})
    Nothing -> failWith EnhanceYourCalm ("too many " <> what)
