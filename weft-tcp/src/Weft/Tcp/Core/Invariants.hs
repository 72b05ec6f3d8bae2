-- |
-- Invariants of a connection, as functions for tests. The result is a list of violated invariants, each described in
-- words.
--
-- @since 0.1.0
module Weft.Tcp.Core.Invariants
  ( invariants,
    invariantsBetween,
  )
where

import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | The violated invariants of a connection after a step.
invariants :: Config -> Conn -> [String]
invariants cfg c
  | Closed _ <- state c = [name | (name, broken) <- [("a closed connection has a timer", nextTimer c /= never)], broken]
  | otherwise = [name | (name, broken) <- rules, broken]
  where
    s = sendSide c
    r = receiveSide c
    t = timers c
    b = board (loss c)
    w = windowsOf (congestion c)
    established = isSynchronized (state c)
    waits = established && state c /= TimeWait
    finSent = maybe False (< sndNxt s) (finPosition c)
    rules =
      [ ("SND.UNA > SND.NXT", sndUna s > sndNxt s),
        ("sent more than there is", established && sndNxt s > dataEnd c + (if finQueued s then 1 else 0)),
        ("unacknowledged data is gone", established && bufferStart (sndBuffer s) > sndUna s),
        ("acknowledged data is kept", established && bufferLength (sndBuffer s) > 0 && bufferStart (sndBuffer s) < sndUna s),
        ("the scoreboard does not cover what is outstanding", waits && not (boardConsistent (sndUna s) (sndNxt s) b)),
        ("the scoreboard is too large", boardSize b > maxScoreboard cfg + 4 * (1 + outstanding c `div` max 1 (sendMss c))),
        -- A fault of the model that the 2007 stack was derived from, in CLOSE-WAIT.
        ("data is outstanding without a timer", waits && outstanding c > 0 && retransmitAt t == never),
        ("data waits for the window without a timer", waits && queuedToSend c > 0 && outstanding c == 0 && retransmitAt t == never),
        ("opening without a timer", state c `elem` [SynSent, SynReceived] && (retransmitAt t == never || stateEndsAt t == never)),
        ("TIME-WAIT without an end", state c == TimeWait && stateEndsAt t == never),
        ("an acknowledgment was forgotten", established && ackNow r),
        ("unacknowledged data without a delayed acknowledgment", waits && rcvNxt r > lastAckSent r && ackAt t == never),
        ("the window's edge lies before RCV.NXT", established && rcvAdvertised r < rcvNxt r),
        ("held data that is in order", not (isNoHeld (rcvHeld r)) && maybe False (const True) (heldRange (rcvNxt r) (rcvHeld r))),
        ("held data is inconsistent", not (heldConsistent (rcvHeld r))),
        ("too many held parts", heldParts (rcvHeld r) > maxHeldParts cfg),
        ("more is kept for the user than the buffer", bufferLength (rcvQueue r) > receiveBuffer cfg),
        ("the queue ends before RCV.NXT", established && bufferEnd (rcvQueue r) /= rcvNxt r - (if finReceived then 1 else 0)),
        ("no congestion window", congestionWindow w <= 0 || slowStartThreshold w <= 0),
        ("segments below the floor", sendMss c < mssFloor cfg - 12),
        ("CLOSE-WAIT without a FIN", state c `elem` [CloseWait, LastAck, Closing, TimeWait] && not finReceived),
        ("FIN-WAIT-2 without our FIN acknowledged", state c == FinWait2 && not (finSent && finAcknowledged c))
      ]
    finReceived = maybe False (< rcvNxt r) (rcvFin r)

-- | The violated invariants of a step: values that must never decrease.
invariantsBetween :: Conn -> Conn -> [String]
invariantsBetween old new
  | not (isSynchronized (state old)) || not (isSynchronized (state new)) = []
  | otherwise =
    [ name
      | (name, f) <-
          [ ("SND.UNA went back", sndUna . sendSide),
            ("SND.NXT went back", sndNxt . sendSide),
            ("RCV.NXT went back", rcvNxt . receiveSide),
            ("the right edge of the window shrank", rcvAdvertised . receiveSide)
          ],
        f new < f old
    ]
