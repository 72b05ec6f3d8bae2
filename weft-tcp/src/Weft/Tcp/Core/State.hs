-- |
-- The state of a connection (RFC 9293, section 3.3): one record for each concern, and functions that read it. All
-- fields are strict. Idle connections share the records that are equal in all of them.
--
-- @since 0.1.0
module Weft.Tcp.Core.State
  ( -- * A connection
    Conn (..),
    State (..),
    Origin (..),
    CloseReason (..),
    isSynchronized,

    -- * Its parts
    Send (..),
    Receive (..),
    Agreed (..),
    Rtt (..),
    Loss (..),
    Phase (..),
    Rack (..),
    noRack,
    noLoss,
    Probe (..),
    Undo (..),
    Timers (..),
    noTimers,
    sharedTimers,
    Choices (..),

    -- * Questions
    outstanding,
    offeredEdge,
    windowIsOpen,
    inFlight,
    fullFlight,
    finPosition,
    finAcknowledged,
    isOrphan,
    dataEnd,
    sendMss,
    fullSegment,
    readable,
    sendSpace,
    nextTimer,
    queuedToSend,

    -- * Changes that keep nothing else
    modifySend,
    modifyReceive,
    modifyLoss,
    modifyTimers,
    modifyRtt,
    quickly,
  )
where

import Data.IntMap.Strict (IntMap)
import Data.Word (Word32)
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.Time

-- | The states of RFC 9293, section 3.3.2, but LISTEN, which is not a connection's
-- here (see "Weft.Tcp.Core.Listener").
data State
  = SynSent
  | SynReceived
  | Established
  | FinWait1
  | FinWait2
  | CloseWait
  | Closing
  | LastAck
  | TimeWait
  | Closed !CloseReason
  deriving (Eq, Show)

-- | Why a connection is closed.
data CloseReason
  = -- | Both sides closed it, and everything was acknowledged.
    Finished
  | -- | The peer refused it: RST in answer to our SYN, or ICMP says that it has no such port or protocol.
    Refused
  | -- | The peer reset it.
    Reset
  | -- | No answer within the user timeout, or to keep-alive probes.
    TimedOut
  | -- | By our user, or because data came that nobody will read.
    Aborted
  | -- | ICMP says that the peer cannot be reached, before there was a connection.
    Unreachable
  deriving (Eq, Show)

-- | How the connection was opened.
data Origin = ActiveOpen | PassiveOpen
  deriving (Eq, Show)

-- | Whether the handshake is complete: every state from ESTABLISHED on.
isSynchronized :: State -> Bool
isSynchronized s = case s of
  SynSent -> False
  SynReceived -> False
  Closed _ -> False
  _ -> True

-- | A connection. A step copies only the records that it changes.
data Conn = Conn
  { -- | The state of RFC 9293, section 3.3.2.
    state :: !State,
    origin :: !Origin,
    sendSide :: !Send,
    receiveSide :: !Receive,
    agreed :: !Agreed,
    rtt :: !Rtt,
    loss :: !Loss,
    congestion :: !Congestion,
    timers :: !Timers,
    choices :: !Choices
  }

-- | The send sequence space (RFC 9293, section 3.3.1). SND.NXT never moves back, so it also is SND.MAX: the scoreboard
-- decides what to retransmit.
data Send = Send
  { -- | Until ESTABLISHED this is ISS.
    sndUna :: {-# UNPACK #-} !Pos,
    sndNxt :: {-# UNPACK #-} !Pos,
    -- | In bytes, from SND.UNA.
    sndWnd :: {-# UNPACK #-} !Int,
    -- | The furthest right edge that the window has had since data is outstanding, if the window has shrunk since
    -- ('offeredEdge').
    sndEdge :: {-# UNPACK #-} !Pos,
    -- | The largest ever, for silly window avoidance and RFC 5961.
    sndMaxWnd :: {-# UNPACK #-} !Int,
    sndWl1 :: {-# UNPACK #-} !Pos,
    sndWl2 :: {-# UNPACK #-} !Pos,
    -- | Data that is not acknowledged, whether it was sent or not.
    sndBuffer :: {-# UNPACK #-} !Buffer,
    -- | The user has closed the sending side: a FIN follows the last byte.
    finQueued :: !Bool,
    -- | The position behind the urgent data; a position that was sent before if there is none.
    sndUp :: {-# UNPACK #-} !Pos
  }

-- | The receive sequence space, and pending acknowledgments.
data Receive = Receive
  { -- | In SYN-RECEIVED this is IRS + 1.
    rcvNxt :: {-# UNPACK #-} !Pos,
    -- | The right edge of the window, as far as it was ever announced. RCV.WND is
    -- its distance from RCV.NXT.
    rcvAdvertised :: {-# UNPACK #-} !Pos,
    -- | In order, not yet taken by the user.
    rcvQueue :: {-# UNPACK #-} !Buffer,
    rcvHeld :: !Held,
    -- | The segments with new data since the last acknowledgment, of which the second one is acknowledged at once.
    rcvSegments :: {-# UNPACK #-} !Int,
    -- | How many of the next segments are acknowledged in groups of two also if more arrive together ('quickly').
    rcvQuick :: {-# UNPACK #-} !Int,
    -- | The position of the peer's FIN, once it has been received.
    rcvFin :: !(Maybe Pos),
    -- | The user has closed the receiving side: further data resets the connection.
    rcvShut :: !Bool,
    -- | RCV.UP: the position behind the urgent data.
    rcvUp :: {-# UNPACK #-} !Pos,
    -- | TS.Recent of RFC 7323 and when it was set.
    tsRecent :: {-# UNPACK #-} !Word32,
    tsRecentAt :: {-# UNPACK #-} !Instant,
    -- | Last.ACK.sent of RFC 7323.
    lastAckSent :: {-# UNPACK #-} !Pos,
    -- | An acknowledgment has to be sent at the end of this step.
    ackNow :: !Bool,
    -- | A duplicate to report (RFC 2883).
    dsack :: !(Maybe (Pos, Pos)),
    -- | A position in each range to report, the one that changed last first (RFC
    -- 2018, section 4). At most four.
    sackRecent :: ![Pos],
    -- | The limits on challenge ACKs and on answers to segments outside of the window ("Weft.Tcp.Core.Rate");
    -- 'longAgo' if none was sent lately.
    challengeDue, outsideDue :: {-# UNPACK #-} !Instant,
    -- | When the last acceptable segment arrived.
    lastHeard :: {-# UNPACK #-} !Instant
  }

-- | The results of the handshake.
data Agreed = Agreed
  { -- | The peer's MSS option, 536 or 1220 without one (RFC 9293, section 3.7.1).
    peerMss :: {-# UNPACK #-} !Int,
    -- | The path's MTU without the IP header.
    pathLimit :: {-# UNPACK #-} !Int,
    useSack :: !Bool,
    useTimestamps :: !Bool,
    useScale :: !Bool,
    -- | Shifts of the windows that we receive and send.
    sendShift, receiveShift :: {-# UNPACK #-} !Int,
    -- | Added to the time in milliseconds to give TSval.
    tsOffset :: {-# UNPACK #-} !Word32,
    -- | Where our data and the peer's begin, behind the SYNs.
    sendStart, receiveStart :: {-# UNPACK #-} !Pos
  }
  deriving (Eq, Show)

-- | RFC 6298.
data Rtt = Rtt
  { -- | 0 before the first measurement.
    srtt :: {-# UNPACK #-} !Micros,
    rttvar :: {-# UNPACK #-} !Micros,
    -- | Without backing off.
    rto :: {-# UNPACK #-} !Micros,
    -- | Timeouts in a row.
    backoff :: {-# UNPACK #-} !Int,
    -- | The least measurement; 0 before the first one.
    minRtt :: {-# UNPACK #-} !Micros
  }
  deriving (Eq, Show)

-- | The state of loss detection and recovery. When everything is acknowledged it becomes 'noLoss' again, except for
-- what RACK remembers.
data Loss = Loss
  { board :: !Scoreboard,
    phase :: !Phase,
    rack :: !Rack,
    -- | Duplicate acknowledgments, without SACK.
    dupAcks :: {-# UNPACK #-} !Int,
    probe :: !Probe,
    -- | SND.NXT at the last reduction of the window; without SACK, duplicates below
    -- it say nothing new (RFC 6582, section 3.2).
    recover :: {-# UNPACK #-} !Pos,
    -- | Whether the congestion window limited the last output.
    cwndLimited :: !Bool,
    -- | The bytes in flight after the last output.
    flightThen :: {-# UNPACK #-} !Int,
    -- | When data was sent last.
    lastSent :: {-# UNPACK #-} !Instant,
    -- | 'Nothing' if there is nothing to undo.
    undo :: !(Maybe Undo)
  }

-- | What is needed to undo the last reduction of the congestion window ("Weft.Tcp.Core.Undo").
data Undo = Undo
  { -- | The state of congestion control before the reduction.
    undoCongestion :: !Congestion,
    -- | The ranges that were retransmitted since, from start to end.
    undoRanges :: !(IntMap Pos),
    -- | The retransmitted bytes that the peer has not reported as duplicates.
    undoBytes :: {-# UNPACK #-} !Int,
    -- | SND.NXT at the last retransmission. An acknowledgment beyond it is sent after the retransmission arrived.
    undoUntil :: {-# UNPACK #-} !Pos
  }

-- | Congestion state.
data Phase
  = Open
  | -- | Fast recovery until that position is acknowledged, with proportional rate
    -- reduction's RecoverFS, prr_delivered and prr_out (RFC 6937).
    Recovery {-# UNPACK #-} !Pos {-# UNPACK #-} !Int {-# UNPACK #-} !Int {-# UNPACK #-} !Int
  | -- | After a retransmission timeout, until that position is acknowledged.
    AfterTimeout {-# UNPACK #-} !Pos
  deriving (Eq, Show)

-- | RFC 8985, section 5.2. Shared until the first loss or reordering.
data Rack = Rack
  { -- | Of the entry sent last among those that arrived: its number, when it was
    -- sent, and its round-trip time.
    rackNumber :: {-# UNPACK #-} !Int,
    rackSentAt :: {-# UNPACK #-} !Instant,
    rackRtt :: {-# UNPACK #-} !Micros,
    -- | The highest position that arrived.
    rackFack :: {-# UNPACK #-} !Pos,
    reorderingSeen :: !Bool,
    -- | Multiplier of the reordering window, and for how many recoveries it stays.
    reorderFactor :: {-# UNPACK #-} !Int,
    reorderPersist :: {-# UNPACK #-} !Int,
    -- | The round that a duplicate was reported in ends here.
    dsackRound :: {-# UNPACK #-} !Pos
  }
  deriving (Eq, Show)

-- | The RACK state of a connection before its first measurement.
noRack :: Rack
noRack = Rack 0 (Instant minBound) 0 minBound False 1 0 minBound

-- | The loss state of a new connection: nothing sent, no recovery, no probe.
noLoss :: Loss
noLoss = Loss emptyBoard Open noRack 0 NoProbe minBound False 0 (Instant 0) Nothing

-- | A tail loss probe that is not yet answered (RFC 8985, section 7): where the data
-- sent ended, and whether it was a retransmission.
data Probe = NoProbe | Probe {-# UNPACK #-} !Pos !Bool
  deriving (Eq, Show)

-- | The times at which timers expire; 'never' if a timer is off.
data Timers = Timers
  { -- | Retransmission timeout, or zero-window probe.
    retransmitAt :: {-# UNPACK #-} !Instant,
    -- | Tail loss probe.
    probeAt :: {-# UNPACK #-} !Instant,
    -- | The end of the reordering window.
    reorderAt :: {-# UNPACK #-} !Instant,
    ackAt :: {-# UNPACK #-} !Instant,
    keepAliveAt :: {-# UNPACK #-} !Instant,
    -- | End of TIME-WAIT, of FIN-WAIT-2, of opening, or of an orphan's patience ('isOrphan').
    stateEndsAt :: {-# UNPACK #-} !Instant,
    -- | Since when nothing was acknowledged though something was outstanding;
    -- 'never' when nothing is.
    stalledSince :: {-# UNPACK #-} !Instant,
    -- | Keep-alive probes without an answer.
    keepAlivesSent :: {-# UNPACK #-} !Int
  }
  deriving (Eq, Show)

-- | The same timers; when all are off, those that connections share.
sharedTimers :: Timers -> Timers
sharedTimers t = if t == noTimers then noTimers else t

-- | All timers off.
noTimers :: Timers
noTimers = Timers never never never never never never never 0

-- Questions --------------------------------------------------------------------------

-- | Sent and not acknowledged, with SYN and FIN.
outstanding :: Conn -> Int
outstanding c = sndNxt (sendSide c) - sndUna (sendSide c)

-- | The furthest right edge that the window has had since data is outstanding. A peer should not move the edge back,
-- but may do so, and we must be prepared for that (RFC 9293, section 3.8.6). Outstanding data before this position was
-- sent within the window, and may have been received. Data from it on was sent to probe a closed window.
offeredEdge :: Conn -> Pos
offeredEdge c = max (sndEdge s) (sndUna s + sndWnd s)
  where
    s = sendSide c

-- | Whether the first byte that is not acknowledged lies, or lay, within the window.
windowIsOpen :: Conn -> Bool
windowIsOpen c = sndUna (sendSide c) < offeredEdge c

-- | An estimate of the bytes in the network: the pipe of RFC 6675. Without SACK each duplicate acknowledgment stands
-- for a segment that has left it.
inFlight :: Conn -> Int
inFlight c = max 0 (outstanding c - sackedBytes b - lostBytes b - left)
  where
    b = board (loss c)
    left = if useSack (agreed c) then 0 else dupAcks (loss c) * fullSegment c

-- | The flight size from which a reduction of the window starts: the congestion window if it limited the sender,
-- otherwise the flight size after the last output (RFC 9438, section 4.6). The present flight size would be too small:
-- segments that arrive together are answered once, and those before the report of the loss have reduced it.
fullFlight :: Conn -> Int
fullFlight c
  | cwndLimited l = max most (congestionWindow (windowsOf (congestion c)))
  | otherwise = most
  where
    l = loss c
    most = maximum [inFlight c, flightThen l, sendMss c]

-- | The position behind the last byte that the user has sent.
dataEnd :: Conn -> Pos
dataEnd = bufferEnd . sndBuffer . sendSide

-- | The position of our FIN, sent or not.
finPosition :: Conn -> Maybe Pos
finPosition c = if finQueued (sendSide c) then Just (dataEnd c) else Nothing

-- | Whether our FIN was sent and the peer acknowledged it.
finAcknowledged :: Conn -> Bool
finAcknowledged c = maybe False (< sndUna (sendSide c)) (finPosition c)

-- | Whether the user has closed both directions and the peer has not: it has not acknowledged everything, or not ended
-- its own direction.
isOrphan :: Conn -> Bool
isOrphan c = rcvShut (receiveSide c) && state c `elem` [FinWait1, FinWait2, Closing, LastAck]

-- | Bytes of data that a segment may carry: Eff.snd.MSS of RFC 9293, section 3.7.1,
-- without the timestamps that every segment has.
sendMss :: Conn -> Int
sendMss c = min (peerMss a) (pathLimit a - 20) - (if useTimestamps a then 12 else 0)
  where
    a = agreed c

-- | The bytes of data of a segment that does not wait for more data: 'sendMss', but at most half of the largest window
-- that the peer has offered (RFC 9293, section 3.8.6.2.1). Where the window is smaller than two segments, it is so
-- filled by two, the second of which is acknowledged at once.
fullSegment :: Conn -> Int
fullSegment c = min (sendMss c) (max 1 (sndMaxWnd (sendSide c) `div` 2))

-- | The number of bytes that the user can receive.
readable :: Conn -> Int
readable = bufferLength . rcvQueue . receiveSide

-- | The free space of the send buffer in bytes.
sendSpace :: Config -> Conn -> Int
sendSpace cfg c = max 0 (sendBuffer cfg - bufferLength (sndBuffer (sendSide c)))

-- | The bytes that are queued and have not been sent, including the FIN.
queuedToSend :: Conn -> Int
queuedToSend c = max 0 (dataEnd c + (if finQueued s then 1 else 0) - sndNxt s)
  where
    s = sendSide c

-- | When the next timeout is due, if any: one timer a connection is enough.
nextTimer :: Conn -> Instant
nextTimer c = retransmitAt t `min` probeAt t `min` reorderAt t `min` ackAt t `min` keepAliveAt t `min` stateEndsAt t
  where
    t = timers c

-- Changes ----------------------------------------------------------------------------

-- | Apply a function to the send side.
modifySend :: (Send -> Send) -> Conn -> Conn
modifySend f c = c {sendSide = f (sendSide c)}
{-# INLINE modifySend #-}

-- | Apply a function to the receive side.
modifyReceive :: (Receive -> Receive) -> Conn -> Conn
modifyReceive f c = c {receiveSide = f (receiveSide c)}
{-# INLINE modifyReceive #-}

-- | Apply a function to the loss state.
modifyLoss :: (Loss -> Loss) -> Conn -> Conn
modifyLoss f c = c {loss = f (loss c)}
{-# INLINE modifyLoss #-}

-- | Apply a function to the timers.
modifyTimers :: (Timers -> Timers) -> Conn -> Conn
modifyTimers f c = c {timers = f (timers c)}
{-# INLINE modifyTimers #-}

-- | Apply a function to the round-trip time state.
modifyRtt :: (Rtt -> Rtt) -> Conn -> Conn
modifyRtt f c = c {rtt = f (rtt c)}
{-# INLINE modifyRtt #-}

-- | Acknowledge the next 64 segments in groups of two: at the beginning of a connection, and when a segment arrives
-- again, since the acknowledgment of the first one may have been lost. The peer's window is then small, and it waits
-- for a timeout if all acknowledgments of a window are lost.
quickly :: Receive -> Receive
quickly r = r {rcvQuick = 64}
{-# INLINE quickly #-}
