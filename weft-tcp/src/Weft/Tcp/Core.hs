-- |
-- TCP (RFC 9293) as a pure function: 'step' takes a connection, an event and the time,
-- and returns the connection and a list of actions. It reads no clock, uses no randomness
-- and performs no I/O, so a recorded sequence of events can be replayed exactly.
--
-- Guide to the modules: "Weft.Tcp.Core.State" defines a connection's state,
-- "Weft.Tcp.Core.Input" follows section 3.10.7 of the RFC step by step,
-- "Weft.Tcp.Core.Output" decides what to send, and "Weft.Tcp.Core.Recovery" detects losses.
-- Listening and the secrets for initial sequence numbers are not part of a connection; see
-- "Weft.Tcp.Core.Listener" and "Weft.Tcp.Core.Secret".
--
-- @since 0.1.0
module Weft.Tcp.Core
  ( -- * Steps
    step,
    open,
    passiveOpen,
    Event (..),
    Action (..),
    Signal (..),
    SoftError (..),

    -- * Connections
    Conn,
    State (..),
    CloseReason (..),
    state,
    readable,
    sendSpace,
    sendMss,
    nextTimer,
    isOver,
    atEndOfStream,
    mayReceive,
    maySend,
    urgentAhead,

    -- * State of a connection
    Summary (..),
    Phase (..),
    summary,
    stateName,
    describe,

    -- * Settings
    Env (..),
    Config (..),
    defaultConfig,
    KeepAlive (..),
    Choices (..),
    Opening (..),
    module Weft.Tcp.Core.Time,
  )
where

import Data.ByteString (ByteString)
import Data.Word (Word32)
import Weft.Tcp.Core.Buffer (bufferStart)
import Weft.Tcp.Core.Coalesce
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Emit (emitAck)
import Weft.Tcp.Core.Icmp
import Weft.Tcp.Core.Input
import Weft.Tcp.Core.Open
import Weft.Tcp.Core.Output
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Summary
import Weft.Tcp.Core.Time
import Weft.Tcp.Core.Timeout
import qualified Weft.Tcp.Core.User as User
import Weft.Tcp.Wire.Segment (Segment)

-- | An input of a connection.
data Event
  = -- | Segments that arrived together, in the order of their arrival.
    Arrive ![Segment]
  | -- | Time has passed. Must be passed when 'nextTimer' expires; harmless before.
    Tick
  | UserSend ![ByteString]
  | -- | Like 'UserSend', and marks all data so far as urgent.
    UserSendUrgent ![ByteString]
  | -- | The user receives at most the given number of bytes.
    UserReceive !Int
  | -- | The user closes the sending direction.
    Shutdown
  | -- | The user closes both directions.
    Close
  | Abort
  | Choose !(Choices -> Choices)
  | -- | ICMP: a segment with the given sequence number was too big for a link. The second field is the link's MTU
    -- without the IP header.
    PathMtu !Word32 !Int
  | -- | ICMP: a segment with the given sequence number did not reach the peer.
    Unreached !Word32
  | -- | ICMP: like 'Unreached', because the peer has no such port, or no TCP.
    Declined !Word32
  | -- | ICMP: like 'Unreached', but the cause may be temporary (RFC 9293, section 3.9.2.2).
    -- It is reported and has no other effect (MUST-56).
    Advised !Word32

-- | An output of a connection.
data Action
  = Transmit !Segment
  | -- | The answer to 'UserReceive'. Empty at the end of the stream, and when there is no
    -- data yet; 'atEndOfStream' distinguishes the two.
    Received ![ByteString]
  | Notify !Signal
  deriving (Eq, Show)

-- | A change of a connection of which the user is notified.
data Signal
  = Connected
  | -- | Data, or the end of the stream, can be received.
    Readable
  | -- | There is room in the send buffer.
    Writable
  | -- | There is urgent data ahead (RFC 9293, section 3.8.5).
    Urgent
  | -- | A soft error: the connection continues (MUST-47).
    Soft !SoftError
  | Ended !CloseReason
  deriving (Eq, Show)

-- | An error that does not end the connection.
data SoftError
  = -- | ICMP reported that the peer is unreachable.
    PeerUnreached
  | -- | Data is unacknowledged after three timeouts: R1 of RFC 9293, section
    -- 3.8.3.
    NoAcknowledgment
  deriving (Eq, Show)

-- | Open a connection actively.
open :: Env -> Opening -> (Conn, [Action])
open env o = fmap Transmit <$> activeOpen env o

-- | Process one event. O(log n) for each segment, in the number of outstanding and out-of-order ranges.
step :: Env -> Event -> Conn -> (Conn, [Action])
step env event c0 = (c2, map Transmit out1 ++ map Transmit out2 ++ taken ++ map Notify (signals c0 c2))
  where
    (c1, out1, taken) = handle env event c0
    (c2, out2) = case state c1 of
      Closed _ -> (c1, [])
      _ -> output env c1

handle :: Env -> Event -> Conn -> (Conn, [Segment], [Action])
handle env event c = case event of
  Arrive segments -> plain (arriveTogether env segments c)
  Tick -> plain (timeout env c)
  UserSend bytes -> (User.send bytes c, [], [])
  UserSendUrgent bytes -> (User.urgentTo (User.send bytes c), [], [])
  UserReceive n -> let (c', bytes) = User.receive env n c in (c', [], [Received bytes])
  Shutdown -> (User.shutdown c, [], [])
  Close -> plain (User.closeBoth env c)
  Abort -> plain (User.abort env c)
  Choose f -> (User.choose env f c, [], [])
  PathMtu at room -> (pathMtu env at room c, [], [])
  Unreached at -> hard Unreachable at
  Declined at -> hard Refused at
  Advised at -> (c, [], [Notify (Soft PeerUnreached) | quotesOutstanding at c])
  where
    plain (c', out) = (c', out, [])
    hard why at = (unreached why at c, [], [Notify (Soft PeerUnreached) | quotesOutstanding at c, isSynchronized (state c)])

-- | Process segments that arrived together. The last of them are acknowledged by 'output', with data if there is some.
-- Those before are acknowledged in groups of 32 (Linux acknowledges once what its GRO joins, up to 44 segments), and of
-- two (RFC 5681, section 4.2) where a loss of acknowledgments would be felt ('quickly').
arriveTogether :: Env -> [Segment] -> Conn -> (Conn, [Segment])
arriveTogether env segments = go (length segments) segments
  where
    go _ [] c = (c, [])
    go n (s : following) c =
      let size = if rcvQuick (receiveSide c) > 0 then 2 else 32
          (joined, others) = coalesceFirst (if n < size + 2 then n else size) c s following
          left = length others
          (arrived, out) = arrive env joined c
          r = receiveSide arrived
          (next, acks)
            | left >= 2, ackNow r, rcvSegments r >= size, isSynchronized (state arrived) = pure <$> emitAck env arrived
            | otherwise = (arrived, [])
          (end, more) = go left others next
       in (end, out ++ acks ++ more)

-- | The signals for the user that result from a step, given the connection before and after it.
signals :: Conn -> Conn -> [Signal]
signals old new =
  [Connected | opening (state old), not (opening (state new)), not (isOver new)]
    ++ [Readable | readable new > readable old || (ended new && not (ended old))]
    ++ [Writable | bufferStart (sndBuffer (sendSide new)) > bufferStart (sndBuffer (sendSide old))]
    ++ [Urgent | rcvUp (receiveSide new) > rcvUp (receiveSide old), not (opening (state old))]
    ++ [Soft NoAcknowledgment | backoff (rtt new) >= 3, backoff (rtt old) < 3]
    ++ [Ended why | Closed why <- [state new], not (isOver old)]
  where
    opening s = s == SynSent || s == SynReceived
    ended = not . mayReceive

-- | Whether the connection has ended.
isOver :: Conn -> Bool
isOver c = case state c of
  Closed _ -> True
  _ -> False

-- | Whether more data may arrive.
mayReceive :: Conn -> Bool
mayReceive c = state c `elem` [SynSent, SynReceived, Established, FinWait1, FinWait2]

-- | Whether the user has received all data and no more will arrive.
atEndOfStream :: Conn -> Bool
atEndOfStream c = readable c == 0 && not (mayReceive c)

-- | Whether the user may send.
maySend :: Conn -> Bool
maySend c = not (finQueued (sendSide c)) && state c `elem` [SynSent, SynReceived, Established, CloseWait]

-- | The number of urgent bytes that the user has yet to receive, whether they have arrived or not
-- (MUST-33); 0 if there is no urgent data.
urgentAhead :: Conn -> Int
urgentAhead c = max 0 (rcvUp r - bufferStart (rcvQueue r))
  where
    r = receiveSide c
