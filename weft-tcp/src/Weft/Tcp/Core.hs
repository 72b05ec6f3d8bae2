-- |
-- TCP (RFC 9293) as a pure function: 'step' takes a connection, an event and the time,
-- and gives the connection and what is to be done. No clock is read, nothing is
-- random, nothing is sent: whoever logs the events can repeat every run.
--
-- Where to read on: "Weft.Tcp.Core.State" says what a connection is, "Weft.Tcp.Core.Input"
-- follows section 3.10.7 of the RFC step by step, "Weft.Tcp.Core.Output" decides what to
-- send, "Weft.Tcp.Core.Recovery" finds losses. Listening, and secrets for initial
-- sequence numbers, are outside of a connection: "Weft.Tcp.Core.Listener",
-- "Weft.Tcp.Core.Secret".
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

    -- * How a connection is
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
import Weft.Tcp.Core.Config
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

-- | What happens to a connection.
data Event
  = -- | Segments, in the order of their arrival. What they have in common is answered
    -- once.
    Arrive ![Segment]
  | -- | Time has passed; to be told when 'nextTimer' is due, harmless before.
    Tick
  | UserSend ![ByteString]
  | -- | 'UserSend', and all data so far is urgent.
    UserSendUrgent ![ByteString]
  | -- | The user takes so many bytes at most.
    UserReceive !Int
  | -- | The user sends no more.
    Shutdown
  | -- | The user is done with both directions.
    Close
  | Abort
  | Choose !(Choices -> Choices)
  | -- | ICMP: a segment with that sequence number was too big for a link, of which the
    -- MTU without the IP header is given.
    PathMtu !Word32 !Int
  | -- | ICMP: a segment with that sequence number did not reach the peer.
    Unreached !Word32
  | -- | ICMP: as 'Unreached', but for a reason that may pass (RFC 9293, section 3.9.2.2):
    -- reported, and nothing else (MUST-56).
    Advised !Word32

-- | What is to be done.
data Action
  = Transmit !Segment
  | -- | In answer to 'UserReceive'. Empty at the end of the stream, and when there is
    -- nothing yet: 'atEndOfStream' tells which.
    Received ![ByteString]
  | Notify !Signal
  deriving (Eq, Show)

-- | What the user may want to know.
data Signal
  = Connected
  | -- | There is data to receive, or the end of the stream.
    Readable
  | -- | There is room to send.
    Writable
  | -- | Urgent data is ahead (RFC 9293, section 3.8.5).
    Urgent
  | -- | Something is wrong, and the connection goes on (MUST-47).
    Soft !SoftError
  | Ended !CloseReason
  deriving (Eq, Show)

-- | What a user may be told of a connection that goes on.
data SoftError
  = -- | ICMP says that the peer was not reached.
    PeerUnreached
  | -- | What was sent was not acknowledged after three timeouts: R1 of RFC 9293, section
    -- 3.8.3.
    NoAcknowledgment
  deriving (Eq, Show)

-- | Open a connection from our side.
open :: Env -> Opening -> (Conn, [Action])
open env o = fmap Transmit <$> activeOpen env o

-- | One event. O(log n) in what is outstanding and what is held, for each segment.
step :: Env -> Event -> Conn -> (Conn, [Action])
step env event c0 = (c2, map Transmit out1 ++ map Transmit out2 ++ taken ++ map Notify (signals c0 c2))
  where
    (c1, out1, taken) = handle env event c0
    (c2, out2) = case state c1 of
      Closed _ -> (c1, [])
      _ -> output env c1

handle :: Env -> Event -> Conn -> (Conn, [Segment], [Action])
handle env event c = case event of
  Arrive segments -> plain (arrivals segments c)
  Tick -> plain (timeout env c)
  UserSend bytes -> (User.send bytes c, [], [])
  UserSendUrgent bytes -> (User.urgentTo (User.send bytes c), [], [])
  UserReceive n -> let (c', bytes) = User.receive env n c in (c', [], [Received bytes])
  Shutdown -> (User.shutdown c, [], [])
  Close -> plain (User.closeBoth env c)
  Abort -> plain (User.abort env c)
  Choose f -> (User.choose env f c, [], [])
  PathMtu at room -> (pathMtu env at room c, [], [])
  Unreached at -> (unreached at c, [], [Notify (Soft PeerUnreached) | quotesOutstanding at c, isSynchronized (state c)])
  Advised at -> (c, [], [Notify (Soft PeerUnreached) | quotesOutstanding at c])
  where
    plain (c', out) = (c', out, [])
    arrivals [] x = (x, [])
    arrivals (s : ss) x =
      let (x', out) = arrive env s x
          (x'', more) = arrivals ss x'
       in (x'', if null out then more else out ++ more)

-- | What changed for the user.
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

-- | Whether nothing more can happen to it.
isOver :: Conn -> Bool
isOver c = case state c of
  Closed _ -> True
  _ -> False

-- | Whether data may still come.
mayReceive :: Conn -> Bool
mayReceive c = state c `elem` [SynSent, SynReceived, Established, FinWait1, FinWait2]

-- | Whether the user has taken everything, and nothing more comes.
atEndOfStream :: Conn -> Bool
atEndOfStream c = readable c == 0 && not (mayReceive c)

-- | Whether the user may send.
maySend :: Conn -> Bool
maySend c = not (finQueued (sendSide c)) && state c `elem` [SynSent, SynReceived, Established, CloseWait]

-- | How much of what the user will receive is urgent, whether it has arrived or not
-- (MUST-33); 0 if nothing is.
urgentAhead :: Conn -> Int
urgentAhead c = max 0 (rcvUp r - bufferStart (rcvQueue r))
  where
    r = receiveSide c
