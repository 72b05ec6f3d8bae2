-- |
-- Processing of received segments in the steps of RFC 9293, section 3.10.7.4: sequence number, RST, SYN, ACK, URG,
-- data, FIN. The check of RFC 7323 (PAWS) comes before them, and the checks of RFC 5961 are part of them.
--
-- @since 0.1.0
module Weft.Tcp.Core.Input (arrive) where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word32)
import Weft.Tcp.Core.Acknowledge
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Emit
import Weft.Tcp.Core.Open
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import qualified Weft.Tcp.Core.TimeWait as TimeWait
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

-- | Process one segment. Returns answers that must be sent at once. Everything else is sent by "Weft.Tcp.Core.Output",
-- once for all segments that arrived together.
arrive :: Env -> Segment -> Conn -> (Conn, [Segment])
arrive env s c = case state c of
  Closed _ -> (c, maybe [] pure (resetFor s))
  SynSent -> case arriveSynSent env s c of
    (c', out, True) -> let (c'', more) = afterSyn c' in (c'', out ++ more)
    (c', out, False) -> (c', out)
  TimeWait -> arriveTimeWait env s c
  _ -> checkSequence env s (periodOver env c)
  where
    -- The SYN of a SYN-ACK has been processed. Data and FIN may follow it.
    afterSyn c'
      | payloadLength s > 0 || has fin (flags s) = arriveText env (rcvNxt (receiveSide c')) s {flags = dropSyn (flags s)} c'
      | otherwise = (c', [])

dropSyn :: Flags -> Flags
dropSyn f = mconcat [g | g <- [fin, rst, psh, ack, urg], has g f]

arriveTimeWait :: Env -> Segment -> Conn -> (Conn, [Segment])
arriveTimeWait env s c = case TimeWait.respond env s (TimeWait.compact c) of
  TimeWait.Stay w answer -> (modifyReceive (\r -> r {outsideDue = TimeWait.answersDue w}) c {timers = (timers c) {stateEndsAt = TimeWait.endsAt w}}, answer)
  TimeWait.Over -> (c {state = Closed Finished, timers = noTimers}, [])
  -- The stack opens the new connection; a connection cannot become a new one by itself.
  TimeWait.Reusable -> (c, [])

-- First: the sequence number ----------------------------------------------------------

checkSequence :: Env -> Segment -> Conn -> (Conn, [Segment])
checkSequence env s c
  -- The peer's SYN arrives again in SYN-RECEIVED: it has not received ours, or both sides open at the same time (figure
  -- 8). The part of the segment behind the SYN is processed. The SYN is still in its flags: its window is not scaled.
  | state c == SynReceived,
    has syn (flags s),
    at + 1 == rcvNxt r,
    not (has rst (flags s)) =
    if has ack (flags s) && not pawsFails
      then checkAck env (at + 1) s c
      else answerLimited env c (retransmitSyn env)
  | pawsFails && not (has rst (flags s)) = outside
  | not acceptable = if has rst (flags s) then (c, []) else outside
  | otherwise = checkReset env at s c
  where
    r = receiveSide c
    at = unwrap (rcvNxt r) (seqNumber s)
    len = sequenceLength s
    edge = rcvAdvertised r
    -- The four cases of the RFC's table. A segment at RCV.NXT is accepted even if the window is zero, so that its ACK,
    -- URG and RST are processed; its data is cut off (MUST-66). So is an acknowledgment at the window's right edge: a
    -- peer that has filled the window numbers its acknowledgments so, even if some of its data was lost.
    acceptable
      | len == 0 = at >= rcvNxt r && (at < edge || at == edge && not (has rst (flags s))) || at == rcvNxt r
      | otherwise = (at < edge && at + len > rcvNxt r) || at == rcvNxt r
    -- RFC 7323, section 5.3, R1. A segment without the option is accepted, because middleboxes and old systems strip
    -- it.
    pawsFails = case timestamps (options s) of
      Just (Timestamps v _) | useTimestamps (agreed c) -> isOlder env v r && not (lateReport v)
      _ -> False
    -- Acknowledgments without data all have the same sequence number, so that each of them sets TS.Recent, and PAWS
    -- drops those which another has overtaken. Their reports on duplicates would be lost. They change nothing else, and
    -- count unless they are older than a retransmission timeout, in milliseconds: no clock is faster (section 5.4).
    lateReport v =
      len == 0 && at == rcvNxt r && has ack (flags s) && not (null (sackBlocks (options s)))
        && millis (unwrap 0 (tsRecent r - v)) <= rto (rtt c)
    -- A duplicate segment is acknowledged at once, with a report of it (RFC 2883). The rate of other answers is
    -- limited, but not of answers to data: two connections cannot keep each other busy with data, and its sender waits
    -- for an answer.
    outside
      | has syn (flags s) = challengeAck env reported
      | payloadLength s > 0 = pure <$> emitAck env reported
      | otherwise = outsideAck env reported
    reported = modifyReceive (if payloadLength s > 0 then \y -> quickly y {dsack = duplicate} else \y -> y {dsack = duplicate}) c
    duplicate
      | len > 0 && at + len <= rcvNxt r && useSack (agreed c) = Just (at, at + len)
      | otherwise = Nothing

-- | Whether a timestamp is older than TS.Recent. After 24 days the peer's clock may have gone half of its way round,
-- and TS.Recent means nothing (RFC 7323, section 5.5).
isOlder :: Env -> Word32 -> Receive -> Bool
isOlder env v r = unwrap 0 (v - tsRecent r) < 0 && now env `since` tsRecentAt r < secs (24 * 86400)

-- | Remember when a segment came, and take its timestamp if the window's left edge lies in it (RFC 7323, section 5.3,
-- R3). The segment's sequence number and ACK have to be acceptable: otherwise a forged segment could keep a connection
-- open whose peer is gone, or have the peer's segments discarded.
remember :: Env -> Pos -> Segment -> Conn -> Conn
remember env at s c = case useKeepAlive (choices c) of
  Just k | keepAliveAt (timers c) /= never -> c {receiveSide = heard, timers = (timers c) {keepAliveAt = now env `after` keepAliveIdle k, keepAlivesSent = 0}}
  _ -> c {receiveSide = heard}
  where
    r = receiveSide c
    heard = case timestamps (options s) of
      Just (Timestamps v _)
        | useTimestamps (agreed c), not (isOlder env v r), at <= lastAckSent r -> r {lastHeard = now env, tsRecent = v, tsRecentAt = now env}
      _ -> r {lastHeard = now env}

-- Second: the RST bit (RFC 5961, section 3.2). Fourth: the SYN bit (section 4.2) --------

checkReset :: Env -> Pos -> Segment -> Conn -> (Conn, [Segment])
checkReset env at s c
  | has rst (flags s) =
    if at == rcvNxt (receiveSide c)
      then (c {state = Closed why, timers = noTimers}, [])
      else challengeAck env c
  | has syn (flags s) = challengeAck env c
  | not (has ack (flags s)) = (c, [])
  | otherwise = checkAck env at s c
  where
    why = if state c == SynReceived && origin c == ActiveOpen then Refused else Reset

-- Fifth: the ACK field ---------------------------------------------------------------------

checkAck :: Env -> Pos -> Segment -> Conn -> (Conn, [Segment])
checkAck env at s c
  | state c == SynReceived =
    if acked > sndUna snd' && acked <= sndNxt snd'
      then acknowledged' (openedBy env at s c)
      else answerLimited env c (\x -> (x, maybe [] pure (resetFor s)))
  -- RFC 5961, section 5.2: old acknowledgments are accepted from a limited range only.
  | acked > sndNxt snd' || acked < sndUna snd' - sndMaxWnd snd' = challengeAck env c
  | otherwise = acknowledged' c
  where
    snd' = sendSide c
    acked = unwrap (sndUna snd') (ackNumber s)
    acknowledged' x =
      let (x', end) = afterAck env (acknowledgeSegment env at s (remember env at s x))
       in if end then (x', []) else arriveText env at s x'

-- | Process the last ACK of the handshake.
openedBy :: Env -> Pos -> Segment -> Conn -> Conn
openedBy env at s c = (established env measuredOnce) {sendSide = (sendSide opened) {sndWnd = wnd, sndMaxWnd = wnd, sndWl1 = at, sndWl2 = sndNxt (sendSide c)}}
  where
    opened = established env measuredOnce
    wnd = scaledWindow c s
    measuredOnce = measureHandshake env c

-- | The next state if the peer has acknowledged our FIN. 'True' if the connection is closed or in TIME-WAIT.
afterAck :: Env -> Conn -> (Conn, Bool)
afterAck env c
  | not (finAcknowledged c) = (c, False)
  | otherwise = case state c of
    FinWait1
      | rcvShut (receiveSide c) -> (c {state = FinWait2, timers = (timers c) {stateEndsAt = now env `after` finWaitTime (config env)}}, False)
      | otherwise -> (c {state = FinWait2}, False)
    Closing -> (enterTimeWait env c, True)
    LastAck -> (c {state = Closed Finished, timers = noTimers}, True)
    _ -> (c, False)

enterTimeWait :: Env -> Conn -> Conn
enterTimeWait env c = c {state = TimeWait, timers = noTimers {stateEndsAt = now env `after` timeWaitTime (config env)}}

-- Sixth: the URG bit. Seventh: the segment's data --------------------------------------------

arriveText :: Env -> Pos -> Segment -> Conn -> (Conn, [Segment])
arriveText env at s c
  | state c `notElem` [Established, FinWait1, FinWait2] = lateFin
  | len == 0 && not (has fin (flags s)) = (urgentTo, [])
  -- Data after the user has closed the connection (RFC 9293, section 3.6.1: SHLD-3).
  | rcvShut r && at + len > rcvNxt r && len > 0 = (c {state = Closed Aborted, timers = noTimers}, [emitReset env c])
  | otherwise = finish env (accept env at s urgentTo)
  where
    r = receiveSide c
    len = payloadLength s
    -- MUST-31: the user is told that there is urgent data ahead.
    urgentTo
      | has urg (flags s) && at + fromIntegral (urgentPointer s) > rcvUp r =
        modifyReceive (\y -> y {rcvUp = at + fromIntegral (urgentPointer s)}) c
      | otherwise = c
    -- After the peer's FIN, a retransmitted FIN is acknowledged again.
    lateFin
      | has fin (flags s) || len > 0 = (modifyReceive (\y -> y {ackNow = True}) c, [])
      | otherwise = (c, [])

-- | Insert the part of a segment that lies in the window into the receive queue or the out-of-order data.
accept :: Env -> Pos -> Segment -> Conn -> (Conn, [Segment])
accept env at s c
  | from == rcvNxt r = inOrder env body' sawFin trimmed c {receiveSide = withFin}
  | otherwise = outOfOrder env from body' c {receiveSide = withFin}
  where
    r = receiveSide c
    edge = rcvAdvertised r
    len = payloadLength s
    from = max at (rcvNxt r)
    to = min (at + len) (maybe edge (min edge) (rcvFin r))
    trimmed = at < from || to < at + len
    body' = cutTo (from - at) (to - at) (payload s)
    -- A FIN counts only if the window has room for it, and if no data behind it is held: a peer that has sent such data
    -- contradicts itself.
    finAt = at + len
    sawFin = has fin (flags s) && finAt <= edge && maybe True (finAt >=) (heldEnd (rcvHeld r))
    withFin
      | sawFin, Nothing <- rcvFin r, finAt >= rcvNxt r = r {rcvFin = Just finAt}
      | otherwise = r

cutTo :: Int -> Int -> [ByteString] -> [ByteString]
cutTo from to = filter (not . B.null) . go 0
  where
    go _ [] = []
    go at (b : bs)
      | at >= to = []
      | otherwise = compactPart (B.length b) (B.take (to - max at from) (B.drop (from - at) b)) : go (at + B.length b) bs

inOrder :: Env -> [ByteString] -> Bool -> Bool -> Conn -> (Conn, [Segment])
inOrder env body sawFin trimmed c = (delayed c {receiveSide = r'}, [])
  where
    r = receiveSide c
    queue = foldl (flip append) (rcvQueue r) body
    (released, held') = releaseFrom (bufferEnd queue) (rcvHeld r)
    queue' = foldl (flip append) queue released
    next = bufferEnd queue'
    -- RFC 5681, section 4.2: a segment that fills a gap is acknowledged at once, and so are a FIN and every second
    -- segment.
    gap = not (isNoHeld (rcvHeld r))
    r' =
      r
        { rcvNxt = next,
          rcvQueue = queue',
          rcvHeld = held',
          rcvSegments = rcvSegments r + new,
          rcvQuick = max 0 (rcvQuick r - new),
          sackRecent = if isNoHeld held' then [] else sackRecent r,
          ackNow = ackNow r || sawFin || gap || trimmed || null body || not (delayAcks (choices c) && ackDelay (config env) > 0) || rcvSegments r + new >= 2
        }
    -- The parts of coalesced segments count one by one, and a part that the device has coalesced as several.
    new = sum [(B.length part + most - 1) `div` most | part <- body]
    most = max 1 (announcedMss (config env))
    delayed x
      | ackNow r' || ackAt (timers x) /= never = x
      | otherwise = modifyTimers (\t -> t {ackAt = now env `after` ackDelay (config env)}) x

-- | Hold out-of-order data. Each such segment is answered at once by a duplicate acknowledgment (RFC 5681, section 4.2)
-- that reports the ranges held.
outOfOrder :: Env -> Pos -> [ByteString] -> Conn -> (Conn, [Segment])
outOfOrder env from body c = pure <$> emitAck env c {receiveSide = kept}
  where
    r = receiveSide c
    bytes = B.concat body
    end = from + B.length bytes
    known = maybe False ((>= end) . snd) (heldRange from (rcvHeld r)) && end > from
    kept = case hold (maxHeldParts (config env)) from bytes (rcvHeld r) of
      Just h | end > from -> r {rcvHeld = h, sackRecent = evaluated (recent h), dsack = if known && useSack (agreed c) then Just (from, end) else dsack r}
      _ -> r
    -- An unevaluated list would retain all earlier states.
    evaluated ps = foldr seq ps ps
    -- The range of this segment first; one position for each range.
    recent h = take 4 (from : [p | p <- sackRecent r, heldRange p h /= heldRange from h])

-- Eighth: the FIN bit -----------------------------------------------------------------------

finish :: Env -> (Conn, [Segment]) -> (Conn, [Segment])
finish env (c, out)
  | rcvFin r /= Just (rcvNxt r) = (c, out)
  | otherwise = case state c of
    Established -> (received {state = CloseWait}, out)
    FinWait1
      | finAcknowledged c -> (enterTimeWait env received, out)
      | otherwise -> (received {state = Closing}, out)
    FinWait2 -> (enterTimeWait env received, out)
    _ -> (c, out)
  where
    r = receiveSide c
    received = c {receiveSide = r {rcvNxt = rcvNxt r + 1, rcvAdvertised = max (rcvAdvertised r) (rcvNxt r + 1), rcvHeld = noHeld, sackRecent = [], ackNow = True}}
