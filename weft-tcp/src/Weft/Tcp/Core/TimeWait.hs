-- |
-- TIME-WAIT in a few words of memory (RFC 9293, section 3.6.1; RFC 1337; RFC 6191). A connection that was closed
-- first on our side is kept in this form, so that its last ACK can be repeated and its old segments do not reach a new
-- connection.
--
-- @since 0.1.0
module Weft.Tcp.Core.TimeWait
  ( Waiting (..),
    Answer (..),
    compact,
    respond,
  )
where

import Data.Word (Word32)
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Emit (outsideRate, timestampNow)
import Weft.Tcp.Core.Rate
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment (Segment (..), ack, fin, flags, has, rst, sequenceLength, syn)

-- | A connection in TIME-WAIT.
data Waiting = Waiting
  { waitSnd :: {-# UNPACK #-} !Pos,
    waitRcv :: {-# UNPACK #-} !Pos,
    waitTsRecent :: {-# UNPACK #-} !Word32,
    waitAgreed :: !Agreed,
    endsAt :: {-# UNPACK #-} !Instant,
    -- | The limit on answers ("Weft.Tcp.Core.Rate").
    answersDue :: {-# UNPACK #-} !Instant
  }

-- | The result of a segment.
data Answer
  = Stay !Waiting ![Segment]
  | -- | The connection is forgotten.
    Over
  | -- | A SYN that begins a new connection: forget this one, and let it be opened with
    -- an initial sequence number above the old ones.
    Reusable

-- | The compact form of a connection in TIME-WAIT.
compact :: Conn -> Waiting
compact c =
  Waiting
    { waitSnd = sndNxt (sendSide c),
      waitRcv = rcvNxt (receiveSide c),
      waitTsRecent = tsRecent (receiveSide c),
      waitAgreed = agreed c,
      endsAt = stateEndsAt (timers c),
      answersDue = outsideDue (receiveSide c)
    }

-- | A segment arrives. A RST does not end the wait (RFC 1337); a FIN again restarts
-- it; a SYN that cannot be an old one may begin anew (RFC 6191). Other SYNs are acknowledged, as in other states. The
-- answers are limited: five at once, then one in each half second (RFC 5961, section 7).
respond :: Env -> Segment -> Waiting -> Answer
respond env s w
  | now env >= endsAt w = Over
  | has rst (flags s) = Stay w []
  | has syn (flags s) && not (has ack (flags s)) && isNewer = Reusable
  | has fin (flags s) && at + sequenceLength s == waitRcv w = answered w {endsAt = now env `after` timeWaitTime (config env)}
  | sequenceLength s > 0 || at /= waitRcv w = answered w
  | otherwise = Stay w []
  where
    at = unwrap (waitRcv w) (seqNumber s)
    a = waitAgreed w
    -- RFC 6191, section 2. The sequence number counts only if there are no timestamps to compare, or if they are equal.
    isNewer = case timestamps (options s) of
      Just (Timestamps v _) | offerTimestamps (config env) -> not (useTimestamps a) || later v > 0 || (later v == 0 && at > waitRcv w)
      _ -> at > waitRcv w
    later v = unwrap 0 (v - waitTsRecent w)
    answered x = maybe (Stay x []) (\due -> Stay x {answersDue = due} [answer]) (spend outsideRate (now env) (answersDue x))
    answer =
      Segment
        { seqNumber = wrap (waitSnd w),
          ackNumber = wrap (waitRcv w),
          flags = ack,
          window = 0,
          urgentPointer = 0,
          options = if useTimestamps a then noOptions {timestamps = Just (Timestamps (timestampNow env a) (waitTsRecent w))} else noOptions,
          payload = []
        }
