-- |
-- Undoing a reduction of the congestion window that was wrong: nothing was lost, segments were only late. The peer
-- reports each segment that arrives twice (RFC 2883). When it has done so for all bytes that were retransmitted since
-- the reduction, the originals have arrived (RFC 3708). The window then grows back as after a spurious timeout (RFC
-- 4015): by slow start, without a burst, and the algorithm gets its earlier state back (RFC 9438, section 4.9).
--
-- Without SACK nothing is undone: such peers report no duplicates. Nor is it when all data is acknowledged before the
-- last report arrives: an idle connection keeps nothing for it.
--
-- @since 0.1.0
module Weft.Tcp.Core.Undo
  ( beforeReduction,
    noteRetransmission,
    reconsider,
  )
where

import qualified Data.IntMap.Strict as IntMap
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | The window is about to be reduced. If the peer's reports on an earlier reduction may still be on their way, both
-- are undone together or not at all.
beforeReduction :: Conn -> Conn
beforeReduction c
  | not (useSack (agreed c)) = c
  | Just u <- undo (loss c), sndUna (sendSide c) <= undoUntil u = c
  | otherwise = modifyLoss (\l -> l {undo = Just (Undo (congestion c) IntMap.empty 0 (sndNxt (sendSide c)))}) c

-- | A range was retransmitted.
noteRetransmission :: Env -> Pos -> Pos -> Conn -> Conn
noteRetransmission env from to c = case undo l of
  Just u
    -- A peer that never reports duplicates must not make this grow.
    | IntMap.size ranges > maxScoreboard (config env) -> c {loss = l {undo = Nothing}}
    | otherwise -> c {loss = l {undo = Just u {undoRanges = ranges, undoBytes = undoBytes u + (to - from), undoUntil = sndNxt (sendSide c)}}}
    where
      ranges = addRange from to (undoRanges u)
  Nothing -> c
  where
    l = loss c

-- | Process an acknowledgment, with the range that it reports as a duplicate. Undoes the reduction if there is nothing
-- left that speaks for it.
reconsider :: Env -> Maybe (Pos, Pos) -> Int -> Conn -> Conn
reconsider env duplicate acked c = case undo (loss c) of
  Just u
    | IntMap.null (undoRanges u) -> c
    | left > 0 || lostBytes (board (loss c)) > 0 -> modifyLoss (\l -> l {undo = Just u {undoBytes = left}}) c
    | otherwise -> modifyLoss (\l -> l {phase = Open, undo = Nothing, rack = (rack l) {reorderingSeen = True}}) c {congestion = setWindow window (setThreshold threshold (undoCongestion u))}
    where
      left = undoBytes u - maybe 0 (\(from, to) -> bytesWithin from to (undoRanges u)) duplicate
      before = windowsOf (undoCongestion u)
      threshold = max (congestionWindow before) (slowStartThreshold before)
      most = inFlight c + max acked (initialWindow (initialSegments (config env)) (sendMss c))
      window = max (congestionWindow (windowsOf (congestion c))) (min (congestionWindow before) most)
  Nothing -> c
