-- |
-- Loss detection and recovery: RACK and tail loss probes (RFC 8985) with SACK, NewReno (RFC 6582) without SACK;
-- proportional rate reduction (RFC 6937) in both cases. "Weft.Tcp.Core.Output" retransmits the lost data.
--
-- @since 0.1.0
module Weft.Tcp.Core.Recovery
  ( Progress (..),
    recoverWith,
    detectByTime,
    probeTimeout,
    prrSent,
    markTimedOut,
  )
where

import Data.List (foldl')
import Data.Maybe (isJust)
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Rtt
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Core.Undo

-- | The information in an acknowledgment.
data Progress = Progress
  { -- | Bytes acknowledged cumulatively.
    ackedBytes :: !Int,
    -- | Bytes reported as received for the first time, cumulatively or selectively.
    deliveredBytes :: !Int,
    -- | The scoreboard entries of these bytes.
    delivered :: ![(Pos, Sent)],
    -- | Whether it is a duplicate acknowledgment (RFC 5681, section 2). It may have new SACK blocks.
    isDuplicate :: !Bool,
    -- | The range that it reported as received twice (RFC 2883).
    duplicateRange :: !(Maybe (Pos, Pos)),
    -- | The bytes in flight before it.
    flightBefore :: !Int
  }

-- | Process an acceptable acknowledgment: mark losses, set the congestion window.
recoverWith :: Env -> Progress -> Conn -> Conn
recoverWith env p = finish . reconsider env (duplicateRange p) (ackedBytes p) . steer . detect . probeAnswered env p . duplicates
  where
    duplicates c
      | useSack (agreed c) = rackUpdate env p c
      | otherwise = countDuplicates p c
    detect c
      | useSack (agreed c) = rackDetect env c
      | otherwise = newRenoDetect p c
    -- The first loss of a flight reduces the window.
    steer c = case phase (loss c) of
      Open | lostBytes (board (loss c)) > 0, mayReduce c -> prr True p (enterRecovery env p c)
      Recovery {} -> prr False p c
      _ -> grow env p c
    mayReduce c = useSack (agreed c) || sndUna (sendSide c) > recover (loss c)
    finish c = case phase (loss c) of
      Recovery end _ _ _ | una c >= end -> again (leaveRecovery c)
      AfterTimeout end | una c >= end -> again (modifyLoss (\l -> l {phase = Open, dupAcks = 0, rack = calmer (rack l)}) c)
      _ -> c
    again c
      | lostBytes (board (loss c)) > 0 = enterRecovery env p c
      | otherwise = c
    una = sndUna . sendSide

-- | Whether an acknowledgment reported a duplicate segment.
sawDsack :: Progress -> Bool
sawDsack = isJust . duplicateRange

-- Growing -----------------------------------------------------------------------------

-- | Outside of recovery the congestion window grows with the acknowledged bytes, but only if it limited the sender
-- (RFC 9438, section 4.2; RFC 7661 gives the reasons).
grow :: Env -> Progress -> Conn -> Conn
grow env p c
  | ackedBytes p > 0 && limited = c {congestion = acknowledged (sampleOf env c (ackedBytes p) (flightBefore p)) (congestion c)}
  | otherwise = c
  where
    w = windowsOf (congestion c)
    limited = cwndLimited (loss c) || (congestionWindow w < slowStartThreshold w && 2 * flightBefore p >= congestionWindow w)

sampleOf :: Env -> Conn -> Int -> Int -> Sample
sampleOf env c acked flight = Sample (now env) acked flight (sendMss c) (srtt (rtt c))

-- Fast recovery ------------------------------------------------------------------------

enterRecovery :: Env -> Progress -> Conn -> Conn
enterRecovery env p c =
  modifyLoss
    (\l -> l {phase = Recovery next (max 1 flight) 0 0, recover = next, probe = NoProbe})
    (beforeReduction c) {congestion = lost (sampleOf env c 0 (fullFlight c)) (congestion c)}
  where
    next = sndNxt (sendSide c)
    flight = max (flightBefore p) (sendMss c)

-- | RFC 6937, section 3.1, with the slow start reduction bound. At the beginning of recovery at least one segment may
-- be sent (fast retransmit).
prr :: Bool -> Progress -> Conn -> Conn
prr entering p c = case phase (loss c) of
  Recovery end flight total out ->
    let total' = total + deliveredBytes p
        threshold = slowStartThreshold (windowsOf (congestion c))
        pipe = inFlight c
        proportional = (total' * threshold + flight - 1) `div` flight - out
        bound = max (total' - out) (deliveredBytes p) + sendMss c
        count
          | pipe > threshold = proportional
          | otherwise = min (threshold - pipe) bound
        least = if entering then sendMss c else 0
        cwnd = max (sendMss c) (pipe + max least count)
     in modifyLoss (\l -> l {phase = Recovery end flight total' out}) c {congestion = setWindow cwnd (congestion c)}
  _ -> c

-- | Bytes were sent: prr_out.
prrSent :: Int -> Conn -> Conn
prrSent n c = case phase (loss c) of
  Recovery end flight total out -> modifyLoss (\l -> l {phase = Recovery end flight total (out + n)}) c
  _ -> c

leaveRecovery :: Conn -> Conn
leaveRecovery c =
  modifyLoss (\l -> l {phase = Open, dupAcks = 0, rack = calmer (rack l)}) c {congestion = setWindow (max (sendMss c) (slowStartThreshold (windowsOf (congestion c)))) (congestion c)}

-- Without SACK -------------------------------------------------------------------------

-- | RFC 6582: each duplicate acknowledgment stands for a segment that arrived. An acknowledgment of new data subtracts
-- the segments that it covers.
countDuplicates :: Progress -> Conn -> Conn
countDuplicates p c
  | isDuplicate p && outstanding c > 0 = modifyLoss (\l -> l {dupAcks = dupAcks l + 1}) c
  | ackedBytes p > 0 && dupAcks (loss c) > 0 = case phase (loss c) of
    Open -> modifyLoss (\l -> l {dupAcks = 0}) c
    _ -> modifyLoss (\l -> l {dupAcks = max 0 (dupAcks l - max 0 (segments - 1))}) c
  | otherwise = c
  where
    segments = (ackedBytes p + sendMss c - 1) `div` sendMss c

-- | After three duplicates, or a partial acknowledgment during recovery, the first segment counts as lost.
newRenoDetect :: Progress -> Conn -> Conn
newRenoDetect p c
  | third || partial = modifyLoss (\l -> l {board = markLost una (cutAt (una + sendMss c) (board l))}) c
  | otherwise = c
  where
    una = sndUna (sendSide c)
    third = phase (loss c) == Open && dupAcks (loss c) >= 3 && una > recover (loss c)
    partial = case phase (loss c) of
      Recovery end _ _ _ -> ackedBytes p > 0 && una < end
      _ -> False

-- RACK ---------------------------------------------------------------------------------

-- | RFC 8985, section 6.2, steps 1 to 4: the most recently sent entry that has arrived, whether there is reordering,
-- and the reordering window.
rackUpdate :: Env -> Progress -> Conn -> Conn
rackUpdate env p c
  | null (delivered p) && not (sawDsack p) = c
  | otherwise = modifyLoss (\l -> l {rack = duplicate (foldl' reorder (foldl' newest (rack l) (delivered p)) (delivered p))}) c
  where
    -- If a retransmission seems to be acknowledged faster than the least round-trip time, the original arrived.
    newest k (_, s)
      | retransmitted s && age < minRtt (rtt c) = k
      | sentNumber s >= rackNumber k = k {rackNumber = sentNumber s, rackSentAt = sentAt s, rackRtt = age}
      | otherwise = k
      where
        age = now env `since` sentAt s
    reorder k (_, s)
      | sentEnd s >= rackFack k = k {rackFack = sentEnd s}
      | retransmitted s = k
      | otherwise = k {reorderingSeen = True}
    duplicate k
      | sawDsack p && sndUna (sendSide c) >= dsackRound k =
        k {dsackRound = sndNxt (sendSide c), reorderFactor = min 64 (reorderFactor k + 1), reorderPersist = 16}
      | otherwise = k

-- | After sixteen recoveries without a duplicate the reordering window is reset.
calmer :: Rack -> Rack
calmer k
  | reorderPersist k > 1 = k {reorderPersist = reorderPersist k - 1}
  | reorderFactor k /= 1 = k {reorderFactor = 1, reorderPersist = 0}
  | otherwise = k

reorderingWindow :: Conn -> Micros
reorderingWindow c
  | not (reorderingSeen k), phase (loss c) /= Open || sackedBytes (board (loss c)) >= 3 * sendMss c = 0
  | otherwise = min (fromIntegral (reorderFactor k) * minRtt (rtt c) `div` 4) (srtt (rtt c))
  where
    k = rack (loss c)

-- | Step 5: an entry is lost if it was sent a reordering window or more before an entry that has arrived. Only
-- entries sent before that one are examined, and each is marked once.
rackDetect :: Env -> Conn -> Conn
rackDetect env c
  | rackNumber k == 0 || isEmptyBoard (board (loss c)) = c
  | otherwise = modifyTimers (\t -> t {reorderAt = wake}) (modifyLoss (\l -> l {board = foldl' (flip markLost) (board l) (map fst late)}) c)
  where
    k = rack (loss c)
    limit = rackRtt k + reorderingWindow c
    older = takeWhile ((< rackNumber k) . sentNumber . snd) (inOrderSent (board (loss c)))
    due (_, s) = sentAt s `after` limit
    late = filter ((<= now env) . due) older
    wake = case filter ((> now env) . due) older of
      [] -> never
      waiting -> maximum (map due waiting)

-- | The timer of the reordering window has expired.
detectByTime :: Env -> Conn -> Conn
detectByTime env c = case phase (loss found) of
  Open | lostBytes (board (loss found)) > 0 -> prr True nothing (enterRecovery env nothing found)
  _ -> found
  where
    found = rackDetect env (modifyTimers (\t -> t {reorderAt = never}) c)
    nothing = Progress 0 0 [] False Nothing (inFlight c)

-- | On a retransmission timeout (section 6.3) the first entry and all entries that are overdue as well count as lost.
-- Without SACK all entries do.
markTimedOut :: Env -> Conn -> Conn
markTimedOut env c = modifyLoss (\l -> l {board = mark (board l), dupAcks = 0, probe = NoProbe}) c
  where
    k = rack (loss c)
    limit = rackRtt k + reorderingWindow c
    mark b0
      | not (useSack (agreed c)) = markLostFrom (sndUna (sendSide c)) b
      | otherwise = foldl' (flip markLost) b (map fst (take 1 (maybe [] pure (firstEntry b)) ++ filter late (inOrderSent b)))
      where
        -- If the first outstanding data was reported by SACK and is still unacknowledged, the peer has discarded it.
        b = if sackedFrom (sndUna (sendSide c)) b0 then forgetSacked (now env) b0 else b0
    late (_, s) = sentAt s `after` limit <= now env

-- Tail loss probes ------------------------------------------------------------------------

-- | RFC 8985, section 7.2: the time from the last transmission or acknowledgment to the probe. 'Nothing' if there is
-- nothing to probe, or if known losses have not been retransmitted. Unlike the RFC, probes are also sent in fast
-- recovery once all known losses have been retransmitted; a further loss at the tail would wait for a timeout
-- otherwise.
probeTimeout :: Env -> Conn -> Maybe Micros
probeTimeout env c
  | not (useSack (agreed c)) || isEmptyBoard b || anySacked b || lostBytes b > 0 || timedOut' || probe (loss c) /= NoProbe = Nothing
  | srtt (rtt c) == 0 = Just (secs 1)
  | otherwise = Just (min (timeoutNow (config env) (rtt c)) (2 * srtt (rtt c) + allowance))
  where
    b = board (loss c)
    timedOut' = case phase (loss c) of
      AfterTimeout _ -> True
      _ -> False
    -- A receiver may delay the acknowledgment of a single segment.
    allowance = if outstanding c <= sendMss c then millis 50 else millis 2

-- | Section 7.4.2: whether a probe repaired a loss, which reduces the window.
probeAnswered :: Env -> Progress -> Conn -> Conn
probeAnswered env p c = case probe (loss c) of
  Probe end again
    | una < end -> c
    | not again || sawDsack p -> settled
    | una > end, Open <- phase (loss c) -> reduced
    | una > end -> settled
    | plain -> settled
    | otherwise -> c
  NoProbe -> c
  where
    una = sndUna (sendSide c)
    plain = isDuplicate p && null (delivered p)
    settled = modifyLoss (\l -> l {probe = NoProbe}) c
    reduced =
      let c' = settled {congestion = lost (sampleOf env c 0 (fullFlight c)) (congestion c)}
          w = windowsOf (congestion c')
       in c' {congestion = setWindow (min (congestionWindow w) (slowStartThreshold w)) (congestion c')}
