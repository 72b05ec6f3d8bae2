-- |
-- TIME-WAIT in a few words of memory (RFC 9293, section 3.6.1; RFC 1337; RFC 6191): what
-- is left of a connection that we closed first, so that its last ACK can be repeated
-- and its old segments reach nobody else.
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
import Weft.Tcp.Core.Emit (timestampNow)
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment (Segment (..), ack, fin, flags, has, rst, sequenceLength, syn)

-- | What is kept.
data Waiting = Waiting
  { waitSnd :: {-# UNPACK #-} !Pos,
    waitRcv :: {-# UNPACK #-} !Pos,
    waitTsRecent :: {-# UNPACK #-} !Word32,
    waitAgreed :: !Agreed,
    endsAt :: {-# UNPACK #-} !Instant
  }

-- | What a segment leads to.
data Answer
  = Stay !Waiting ![Segment]
  | -- | The connection is forgotten.
    Over
  | -- | A SYN that begins a new connection: forget this one, and let it be opened with
    -- an initial sequence number above the old ones.
    Reusable

-- | Of a connection in TIME-WAIT.
compact :: Conn -> Waiting
compact c =
  Waiting
    { waitSnd = sndNxt (sendSide c),
      waitRcv = rcvNxt (receiveSide c),
      waitTsRecent = tsRecent (receiveSide c),
      waitAgreed = agreed c,
      endsAt = stateEndsAt (timers c)
    }

-- | A segment arrives. A RST does not end the wait (RFC 1337); a FIN again restarts
-- it; a SYN with a larger sequence number or timestamp may begin anew (RFC 6191).
respond :: Env -> Segment -> Waiting -> Answer
respond env s w
  | now env >= endsAt w = Over
  | has rst (flags s) = Stay w []
  | has syn (flags s) && not (has ack (flags s)) && (newTimestamp || at > waitRcv w) = Reusable
  | has fin (flags s) && at + sequenceLength s == waitRcv w = Stay w {endsAt = now env `after` timeWaitTime (config env)} [answer]
  | sequenceLength s > 0 || at /= waitRcv w = Stay w [answer]
  | otherwise = Stay w []
  where
    at = unwrap (waitRcv w) (seqNumber s)
    a = waitAgreed w
    newTimestamp = case timestamps (options s) of
      Just (Timestamps v _) -> useTimestamps a && unwrap 0 (v - waitTsRecent w) > 0
      Nothing -> False
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
