-- |
-- A snapshot of a connection's figures, for tables and logs. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Core.Summary
  ( Summary (..),
    summary,
    stateName,
    describe,
  )
where

import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | A snapshot of a connection. Sizes are bytes of data.
data Summary = Summary
  { summaryState :: !State,
    -- | The smoothed round-trip time (RFC 6298), and the least seen; 0 before the first
    -- measurement.
    summaryRtt, summaryMinRtt :: !Micros,
    -- | The retransmission timeout, without backing off.
    summaryRto :: !Micros,
    summaryCwnd :: !Int,
    -- | 'Nothing' before the first loss.
    summarySsthresh :: !(Maybe Int),
    -- | The peer's window.
    summaryWindow :: !Int,
    summaryMss :: !Int,
    -- | Sent, and neither acknowledged nor known to be lost.
    summaryInFlight :: !Int,
    -- | Queued by the user, and not sent yet.
    summaryUnsent :: !Int,
    -- | Received in order, and not yet read by the user.
    summaryUnread :: !Int,
    -- | The number of ranges that were received out of order.
    summaryHeld :: !Int,
    -- | Acknowledged by the peer, since the beginning.
    summarySent :: !Int,
    -- | Received in order, since the beginning.
    summaryReceived :: !Int,
    -- | Whether losses are being repaired, and whether that took a timeout.
    summaryPhase :: !Phase
  }
  deriving (Eq, Show)

-- | The snapshot of a connection.
summary :: Conn -> Summary
summary c =
  Summary
    { summaryState = state c,
      summaryRtt = srtt (rtt c),
      summaryMinRtt = minRtt (rtt c),
      summaryRto = rto (rtt c),
      summaryCwnd = congestionWindow windows,
      summarySsthresh = if slowStartThreshold windows == maxBound then Nothing else Just (slowStartThreshold windows),
      summaryWindow = sndWnd s,
      summaryMss = sendMss c,
      summaryInFlight = inFlight c,
      summaryUnsent = max 0 (dataEnd c - sndNxt s),
      summaryUnread = readable c,
      summaryHeld = heldParts (rcvHeld r),
      summarySent = max 0 (min (sndUna s) (dataEnd c) - sendStart (agreed c)),
      summaryReceived = max 0 (bufferEnd (rcvQueue r) - receiveStart (agreed c)),
      summaryPhase = phase (loss c)
    }
  where
    s = sendSide c
    r = receiveSide c
    windows = windowsOf (congestion c)

-- | The name of a state, as in the RFC and in ss(8).
stateName :: State -> String
stateName st = case st of
  SynSent -> "SYN-SENT"
  SynReceived -> "SYN-RECEIVED"
  Established -> "ESTABLISHED"
  FinWait1 -> "FIN-WAIT-1"
  FinWait2 -> "FIN-WAIT-2"
  CloseWait -> "CLOSE-WAIT"
  Closing -> "CLOSING"
  LastAck -> "LAST-ACK"
  TimeWait -> "TIME-WAIT"
  Closed _ -> "CLOSED"

-- | Why a connection is closed, in words.
endingName :: CloseReason -> String
endingName why = case why of
  Finished -> "finished"
  Refused -> "refused"
  Reset -> "reset by the peer"
  TimedOut -> "timed out"
  Aborted -> "aborted here"
  Unreachable -> "unreachable"

-- | In a line: the state, what is in flight and what waits, the windows, the round-trip time
-- in milliseconds.
describe :: Summary -> String
describe s =
  unwords $
    [stateName (summaryState s)]
      ++ ["(" ++ endingName why ++ ")" | Closed why <- [summaryState s]]
      ++ [ "sent=" ++ show (summarySent s),
           "received=" ++ show (summaryReceived s),
           "flight=" ++ show (summaryInFlight s)
         ]
      ++ ["unsent=" ++ show (summaryUnsent s) | summaryUnsent s > 0]
      ++ ["unread=" ++ show (summaryUnread s) | summaryUnread s > 0]
      ++ ["held=" ++ show (summaryHeld s) | summaryHeld s > 0]
      ++ ["cwnd=" ++ show (summaryCwnd s)]
      ++ ["ssthresh=" ++ show n | Just n <- [summarySsthresh s]]
      ++ ["window=" ++ show (summaryWindow s)]
      ++ ["rtt=" ++ inMillis (summaryRtt s) ++ "ms" | summaryRtt s > 0]
      ++ case summaryPhase s of
        Open -> []
        Recovery {} -> ["recovery"]
        AfterTimeout _ -> ["after-timeout"]

inMillis :: Micros -> String
inMillis (Micros n) = show (n `div` 1000) ++ "." ++ drop 1 (show (1000 + n `mod` 1000))
