-- |
-- Finding losses and recovering from them: RACK and tail loss probes (RFC 8985) with
-- SACK, NewReno (RFC 6582) without; proportional rate reduction (RFC 6937) in both.
-- Sending what is lost is the part of "Weft.Tcp.Core.Output".
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
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Rtt
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | What an acknowledgment said.
data Progress = Progress
  { -- | Bytes that were acknowledged cumulatively.
    ackedBytes :: !Int,
    -- | Bytes that arrived according to it, and were not known to.
    deliveredBytes :: !Int,
    -- | The entries that they were in.
    delivered :: ![(Pos, Sent)],
    -- | It repeated the last one: nothing in it but perhaps SACK blocks is new.
    isDuplicate :: !Bool,
    -- | It reported a duplicate (RFC 2883).
    sawDsack :: !Bool,
    -- | What was in flight before it.
    flightBefore :: !Int
  }

-- | Everything that follows from an acceptable acknowledgment: losses are marked, the
-- congestion window is set.
recoverWith :: Env -> Progress -> Conn -> Conn
recoverWith env p = finish . steer . detect . probeAnswered env p . duplicates
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

-- Growing -----------------------------------------------------------------------------

-- | Outside of recovery the window grows by what is acknowledged, if it was what
-- limited the sender (RFC 9438, section 4.2 and RFC 7661 for why).
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
    c {congestion = lost (sampleOf env c 0 (fullFlight c)) (congestion c)}
  where
    next = sndNxt (sendSide c)
    flight = max (flightBefore p) (sendMss c)

-- | RFC 6937, section 3.1, with the slow start reduction bound. At the start at least
-- one segment may go (fast retransmit).
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

-- | RFC 6582: duplicates stand for segments that arrived; an acknowledgment of new
-- data takes back those that it covers.
countDuplicates :: Progress -> Conn -> Conn
countDuplicates p c
  | isDuplicate p && outstanding c > 0 = modifyLoss (\l -> l {dupAcks = dupAcks l + 1}) c
  | ackedBytes p > 0 && dupAcks (loss c) > 0 = case phase (loss c) of
    Open -> modifyLoss (\l -> l {dupAcks = 0}) c
    _ -> modifyLoss (\l -> l {dupAcks = max 0 (dupAcks l - max 0 (segments - 1))}) c
  | otherwise = c
  where
    segments = (ackedBytes p + sendMss c - 1) `div` sendMss c

-- | Three duplicates, or an acknowledgment during recovery that does not end it: the
-- first segment is lost.
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

-- | RFC 8985, section 6.2, steps 1 to 4: the entry sent last of those that arrived,
-- reordering, and its window.
rackUpdate :: Env -> Progress -> Conn -> Conn
rackUpdate env p c
  | null (delivered p) && not (sawDsack p) = c
  | otherwise = modifyLoss (\l -> l {rack = duplicate (foldl' reorder (foldl' newest (rack l) (delivered p)) (delivered p))}) c
  where
    -- A retransmission that would have been answered faster than any packet: it was
    -- the original that arrived.
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

-- | After sixteen recoveries without duplicates the reordering window is small again.
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

-- | Step 5: what was sent long enough before something that arrived is lost. Only
-- entries sent before that are looked at; each is marked once.
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

-- | The reordering window is over.
detectByTime :: Env -> Conn -> Conn
detectByTime env c = case phase (loss found) of
  Open | lostBytes (board (loss found)) > 0 -> prr True nothing (enterRecovery env nothing found)
  _ -> found
  where
    found = rackDetect env (modifyTimers (\t -> t {reorderAt = never}) c)
    nothing = Progress 0 0 [] False False (inFlight c)

-- | On a retransmission timeout (section 6.3) the first entry, and all that are as
-- late as it, are lost; without SACK all are.
markTimedOut :: Env -> Conn -> Conn
markTimedOut env c = modifyLoss (\l -> l {board = mark (board l), dupAcks = 0, probe = NoProbe}) c
  where
    k = rack (loss c)
    limit = rackRtt k + reorderingWindow c
    mark b0
      | not (useSack (agreed c)) = markAllLost b
      | otherwise = foldl' (flip markLost) b (map fst (take 1 (maybe [] pure (firstEntry b)) ++ filter late (inOrderSent b)))
      where
        -- What was reported first of all and is not acknowledged was dropped again.
        b = if sackedFrom (sndUna (sendSide c)) b0 then forgetSacked (now env) b0 else b0
    late (_, s) = sentAt s `after` limit <= now env

-- Tail loss probes ------------------------------------------------------------------------

-- | RFC 8985, section 7.2: how long after the last transmission or acknowledgment to
-- probe; 'Nothing' if there is nothing to probe, or recovery is at work. During fast recovery too when
-- all losses that are known were repaired (the RFC has it only outside): another one at the tail would wait for a timeout.
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
