-- |
-- The vocabulary of "Weft.Http2.Core": its configuration, what goes in, what comes out, and the state of a connection.
-- Pure.
module Weft.Http2.Core.Types
  ( -- * Configuration
    Config (..),
    defaultConfig,
    Field,
    Fields (..),
    fieldsOf,
    Decode (..),

    -- * In and out
    StreamId,
    Input (..),
    Action (..),
    Frame (..),

    -- * The state of a connection
    Core (..),
    Phase (..),
    Drain (..),
    Block (..),
    Charges (..),
    Probe (..),
    Silence (..),

    -- * The state of a stream
    Stream (..),
    Sending (..),
    Receiving (..),
    Waiting (..),

    -- * Steps
    Step,
    module Weft.Http2.Step,
    act,
    queue,
    failWith,
    failAs,
    refusalOf,
    onStream,
    drainPing,
    probePing,
    silencePing,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B8
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.Set as Set
import Data.Word (Word16, Word32)
import Weft.Core.Time (Duration, Instant)
import Weft.Duration (seconds)
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Budget
import Weft.Http2.Core.Ended
import Weft.Http2.Core.Flow
import Weft.Http2.Core.Priority
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Pieces
import Weft.Http2.Request (Head, readHead)
import Weft.Http2.Resets
import Weft.Http2.Step

-- | A field's name, in lower case, and its value.
type Field = (ByteString, ByteString)

-- | What a header block has.
data Fields = Fields
  { -- | Of a list that is too large perhaps only the first ones.
    fieldsList :: [Field],
    -- | The size of the list (RFC 9113, 6.5.2).
    fieldsSize :: !Int,
    -- | What they are as a request. Not evaluated before it is needed, and then once for all blocks that share it.
    fieldsHead :: Either String Head
  }

-- | A list of fields, and its size.
fieldsOf :: [Field] -> Int -> Fields
fieldsOf list size = Fields list size (readHead list)

-- | A decoder of header blocks, with the state in which the last block has left it. It gives the fields and the next
-- state. After an error there is none: the connection has to end (RFC 9113, 4.3).
newtype Decode = Decode {decodeFields :: ByteString -> Either (ErrorCode, String) (Fields, Decode)}

-- | The limits on a connection. Sizes are in bytes.
data Config = Config
  { -- | Concurrent streams.
    configStreams :: !Int,
    -- | A header block, compressed. It may have 64 continuations.
    configHeaderBlock :: !Int,
    -- | The decoded fields, plus 32 for each (RFC 9113, 6.5.2).
    configHeaderList :: !Int,
    -- | Fields of a request; zero or less means no limit.
    configFields :: !Int,
    -- | Bodies that were received and not read yet, over all streams: the windows of those that are read grow up to it.
    configBodies :: !Int,
    -- | Of the rest of a body that the application does not want: more is answered by a reset.
    configDiscard :: !Int,
    -- | Frames that answer frames and wait to be sent.
    configAnswers :: !Int,
    configResets :: !ResetRule,
    configPings :: !Rate,
    configSettings :: !Rate,
    configPriorities :: !Rate,
    -- | Each frame of data that is sent allows four more.
    configWindowUpdates :: !Rate,
    -- | Frames without a payload that end nothing, GOAWAY, and frames of unknown types.
    configEmptyFrames :: !Rate,
    -- | How long a connection without streams stays open.
    configIdle :: !Duration,
    -- | How long a frame or a header block may take; also the client's answer to the first GOAWAY of a drain, and to the
    -- PING after a silence.
    configFrame :: !Duration,
    -- | How long a client with open streams may send nothing before it is asked by a PING whether it is still there.
    configSilence :: !Duration,
    -- | How long a stream may wait for its client; each byte earns the time that it takes at the least rate.
    configWait :: !Duration,
    -- | The least rate, in bytes a second.
    configRate :: !Int
  }

-- | 100 streams, 16 MiB of unread bodies.
defaultConfig :: Config
defaultConfig =
  Config
    { configStreams = 100,
      configHeaderBlock = 32768,
      configHeaderList = 32768,
      configFields = 100,
      configBodies = 16777216,
      configDiscard = 8388608,
      configAnswers = 2000,
      configResets = defaultResetRule,
      configPings = Rate 10 100,
      configSettings = Rate 5 50,
      configPriorities = Rate 100 1000,
      configWindowUpdates = Rate 200 2000,
      configEmptyFrames = Rate 20 200,
      configIdle = seconds 60,
      configFrame = seconds 30,
      configSilence = seconds 120,
      configWait = seconds 30,
      configRate = 4369
    }

-- In and out -------------------------------------------------------------------------

-- | The number of a stream.
type StreamId = Int

-- | What happens to a connection. The application's inputs for streams that have ended have no effect.
data Input
  = -- | Bytes came from the client, in pieces of any size.
    Received !ByteString
  | -- | An interim response (1xx), before the final one.
    Interim !StreamId [Field]
  | -- | The head of the response.
    Respond !StreamId [Field]
  | -- | The application has this many more bytes of the body.
    Offer !StreamId !Int
  | -- | The response ends behind the bytes that were offered, with these trailers, if any.
    Finish !StreamId [Field]
  | -- | A whole response: its head, the size of its body, and its trailers. The same as 'Respond', 'Offer' and 'Finish',
    -- for less work.
    Whole !StreamId [Field] !Int [Field]
  | -- | The application waits for the request's body.
    Want !StreamId
  | -- | The application has read this many bytes of the body.
    Consume !StreamId !Int
  | -- | The application waits until it can send on the stream: 'Opened'. For one that would open a file.
    AwaitWindow !StreamId
  | -- | The application cannot complete its response.
    Abandon !StreamId !ErrorCode
  | -- | Accept no more streams, and end with the last one.
    BeginDrain
  | -- | End the connection with an error.
    Break !ErrorCode String
  | -- | Time has passed: to be given at 'Weft.Http2.Core.nextDeadline'.
    Tick
  deriving (Eq, Show)

-- | What the owner of the connection has to do, besides sending frames.
data Action
  = -- | Start the application. The flag says that there is no body.
    Start !StreamId !Head !Bool
  | -- | Part of a request's body, never empty.
    Deliver !StreamId !ByteString
  | -- | The body is complete; its trailers.
    DeliverEnd !StreamId [Field]
  | -- | Both windows are open, after 'AwaitWindow'.
    Opened !StreamId
  | -- | The stream was reset, by either side: interrupt its application.
    Stop !StreamId !ErrorCode
  | -- | Report that a client's request was refused: the reason.
    Refuse !StreamId !Refusal !ErrorCode String
  | -- | Send what is queued, and close the connection. The last action. The reason is one for the client's operator,
    -- unless the code is 'NoError'.
    Close !Refusal !ErrorCode String
  deriving (Eq, Show)

-- | A frame to send. The owner has the bytes of bodies, and encodes header blocks in the order of the frames.
data Frame
  = SendSettings [(Word16, Word32)]
  | -- | Acknowledge the client's SETTINGS, and obey its sizes of the header table, in their order, first.
    SendSettingsAck [Int]
  | SendHeaders !StreamId [Field] !Bool
  | -- | That many bytes of those that were offered, and whether they end the stream.
    SendData !StreamId !Int !Bool
  | SendReset !StreamId !ErrorCode
  | -- | On stream 0, for the connection.
    SendWindow !StreamId !Int
  | SendPing !ByteString
  | SendPingAck !ByteString
  | SendGoAway !StreamId !ErrorCode
  deriving (Eq, Show)

-- State ------------------------------------------------------------------------------

-- | A connection.
data Core = Core
  { coreConfig :: !Config,
    corePhase :: !Phase,
    coreDrain :: !Drain,
    -- | When the input happened that is being handled.
    coreTime :: !Instant,
    -- | Bytes that form no whole frame yet, and since when the first one is there.
    corePieces :: {-# UNPACK #-} !Pieces,
    coreSince :: !Instant,
    coreBlock :: !(Maybe Block),
    coreDecode :: !Decode,
    -- | The streams that are open, and their number.
    coreStreams :: !(IntMap.IntMap Stream),
    coreOpen :: !Int,
    coreEnded :: !Ended,
    -- | The highest stream that was accepted: GOAWAY names it.
    coreAccepted :: !StreamId,
    coreFlow :: !Receive,
    coreProbe :: !Probe,
    -- | The send window, and the first one of each stream.
    coreWindow :: !Int,
    coreInitial :: !Int,
    -- | The largest frame to send.
    coreFrameSize :: !Int,
    coreAcknowledged :: !Bool,
    coreReady :: !Ready,
    -- | The number of frames of data that were sent.
    coreTurn :: !Int,
    -- | Priorities of streams that have not begun (RFC 9218, 7.1).
    corePriorities :: !(IntMap.IntMap Priority),
    coreCharges :: !Charges,
    -- | When the last stream ended, and when data were last sent or read.
    coreIdleSince :: !Instant,
    coreProgress :: !Instant,
    coreSilence :: !Silence,
    -- | Frames to send before other data, the last one first; the bytes of data in them; the number of those that a client
    -- can cause without end.
    coreQueue :: [Frame],
    coreQueued :: !Int,
    coreAnswers :: !Int,
    -- | Actions of this step, the last one first.
    coreActions :: [Action]
  }

-- | What the client has to send next: its preface, its first SETTINGS, any frames; or nothing that matters.
data Phase = AwaitPreface | AwaitSettings | Open | Ended
  deriving (Eq, Show)

-- | No drain; GOAWAY without a limit was sent, and a PING that shows when the client has seen it, by the given time at
-- the latest; GOAWAY with the last stream was sent.
data Drain = NoDrain | Announced !Instant | Draining
  deriving (Eq, Show)

-- | Since when nothing has come from the client; and since when a PING asks whether it is still there.
data Silence = Silent !Instant | Asked !Instant
  deriving (Eq, Show)

-- | The measurement of what applications read in a round trip: it may begin at that time, or a PING is under way. The flag
-- says that the last one has enlarged windows.
data Probe = NotProbing !Instant !Bool | Probing !Bool
  deriving (Eq, Show)

-- | A header block whose end has not come: stream, whether it ends the stream, pieces (the last first), their size and
-- number, and when it began.
data Block = Block !StreamId !Bool [ByteString] !Int !Int !Instant

-- | Budgets for each kind of frames that cost work and do nothing.
data Charges = Charges
  { chargeResets :: !Resets,
    chargePings :: !Budget,
    chargeSettings :: !Budget,
    chargePriorities :: !Budget,
    chargeWindows :: !Budget,
    chargeEmpty :: !Budget,
    -- | Frames of data that were sent, less the resets of streams that were over. Clients (Python's h2) answer each frame
    -- that was under way as they gave up a stream by one more reset (RFC 9113, section 5.1).
    chargeEchoes :: !Int,
    -- | Streams that may be refused without a charge until the client knows how many it may begin.
    chargeFree :: !Int
  }

-- | A stream that both sides know. It is forgotten when both have ended it, or one has reset it.
data Stream = Stream
  { streamSending :: !Sending,
    streamReceiving :: !Receiving,
    -- | The send window; negative after some SETTINGS.
    streamWindow :: !Int,
    streamFlow :: !StreamReceive,
    streamPlace :: !Place,
    -- | Nanoseconds for which the stream may still wait for its client.
    streamLeft :: !Int64,
    streamWaiting :: !Waiting,
    -- | The application waits for 'Opened'.
    streamAwaits :: !Bool,
    -- | It was begun by an extended CONNECT (RFC 8441).
    streamTunnel :: !Bool
  }

-- | How far the response is.
data Sending
  = -- | Nothing but interim responses.
    Unanswered
  | -- | The head is sent; bytes that are offered, and the trailers, if the end is known.
    Answering !Int !(Maybe [Field])
  | Answered
  deriving (Eq, Show)

-- | How far the request is.
data Receiving
  = -- | Bytes that are still to come, if their number is declared, and those that came.
    Receiving !(Maybe Int) !Int
  | -- | The response is complete: that many more bytes are discarded before the client is told to stop.
    Discarding !Int
  | Complete
  deriving (Eq, Show)

-- | What a stream waits for from its client, and since when.
data Waiting = NotWaiting | ForWindow !Instant | ForBody !Instant
  deriving (Eq, Show)

-- Steps ------------------------------------------------------------------------------

-- | A computation on a connection, which may end it.
type Step = StepOf Core

-- | Ask the owner for something.
act :: Action -> Step ()
act action = modify (\core -> core {coreActions = action : coreActions core})

-- | Queue a frame.
queue :: Frame -> Step ()
queue frame = modify (\core -> core {coreQueue = frame : coreQueue core})

-- | End the connection with an error: section 5.4.1.
failWith :: ErrorCode -> String -> Step a
failWith code = failAs (refusalOf code) code

-- | The refusal that an error usually is.
refusalOf :: ErrorCode -> Refusal
refusalOf code = case code of
  EnhanceYourCalm -> LimitExceeded
  RefusedStream -> LimitExceeded
  Cancel -> ClientTooSlow
  SettingsTimeout -> ClientTooSlow
  _ -> BadRequest

-- | End the connection with an error, for a refusal.
failAs :: Refusal -> ErrorCode -> String -> Step a
failAs refusal code why = Step $ \core ->
  Ends
    core
      { corePhase = Ended,
        corePieces = noPieces 0,
        coreBlock = Nothing,
        coreStreams = IntMap.empty,
        coreOpen = 0,
        coreReady = Set.empty,
        -- What was answered before is still sent, in front.
        coreQueue = SendGoAway (coreAccepted core) code : coreQueue core,
        coreActions = Close refusal code why : coreActions core
      }

-- | Change a stream that is known.
onStream :: StreamId -> (Stream -> Stream) -> Step ()
onStream n f = modify (\core -> core {coreStreams = IntMap.adjust f n (coreStreams core)})

-- | What the PING of a drain carries.
drainPing :: ByteString
drainPing = B8.pack "weft end"

-- | What the PING carries that asks whether the client is still there.
silencePing :: ByteString
silencePing = B8.pack "weft ask"

-- | What the PING carries that measures a round trip.
probePing :: ByteString
probePing = B8.pack "weft win"
