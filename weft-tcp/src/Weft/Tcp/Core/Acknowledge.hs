-- |
-- The ACK field of an acceptable segment (RFC 9293, section 3.10.7.4, fifth step): acknowledged data is removed from
-- the send buffer, SACK blocks are recorded, the round-trip time is measured, and the send window is updated. Then
-- loss recovery processes the result.
--
-- @since 0.1.0
module Weft.Tcp.Core.Acknowledge
  ( acknowledgeSegment,
    scaledWindow,
    measureHandshake,
  )
where

import Data.Bits (shiftL)
import Data.List (foldl')
import Data.Maybe (isJust)
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Emit
import Weft.Tcp.Core.Recovery
import Weft.Tcp.Core.Rtt
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment (Segment (..), fin, has, payloadLength, syn)

-- | SEG.WND in bytes. That of a SYN is not scaled (RFC 7323, section 2.2).
scaledWindow :: Conn -> Segment -> Int
scaledWindow c s
  | has syn (flags s) = fromIntegral (window s)
  | otherwise = fromIntegral (window s) `shiftL` sendShift (agreed c)

-- | The time from our SYN to its acknowledgment, if it was sent once.
measureHandshake :: Env -> Conn -> Conn
measureHandshake env c
  | backoff (rtt c) == 0 && stalledSince (timers c) /= never = modifyRtt (measured (config env) (now env `since` stalledSince (timers c))) c
  | otherwise = c

-- | The segment's ACK lies between SND.UNA - MAX.SND.WND and SND.NXT.
acknowledgeSegment :: Env -> Pos -> Segment -> Conn -> Conn
acknowledgeSegment env at s c0
  -- Nothing is outstanding, so only the window can change. This is the case for each segment of a stream that the peer
  -- sends.
  | acked == una && outstanding c0 == 0 && null (sackBlocks (options s)) = updateWindow (offeredEdge c0) at acked s c0
  | nothingNew = windowUpdated
  | otherwise = rearm (recoverWith env progress (measure windowUpdated))
  where
    snd0 = sendSide c0
    una = sndUna snd0
    acked = unwrap una (ackNumber s)
    newly = max 0 (acked - una)
    -- Cumulative.
    (gone, board1) = if newly > 0 then acknowledgeTo acked (board (loss c0)) else ([], board (loss c0))
    -- Selective.
    blocks = if useSack (agreed c0) then [(unwrap una l, unwrap una r) | SackBlock l r <- take 4 (sackBlocks (options s))] else []
    valid (l, r) = l < r && l >= max una acked && r <= sndNxt snd0
    (sackedNow, board2) = foldl' one ([], board1) (filter valid blocks)
    one (out, b) (l, r) = let (g, b') = acknowledgeRange (maxScoreboard (config env)) l r b in (g ++ out, b')
    -- RFC 2883, section 4: the first block lies below the segment's own ACK, or within the second block. That of an
    -- acknowledgment which is late may lie below SND.UNA, and is no such report.
    duplicated = case blocks of
      (l, r) : rest | l < r && (r <= acked || any (\(l', r') -> l' <= l && r <= r') (take 1 rest)) -> Just (l, r)
      _ -> Nothing
    isDsack = isJust duplicated
    everything = gone ++ sackedNow
    c1 = c0 {sendSide = moved, loss = (loss c0) {board = board2}}
    moved
      | newly > 0 = snd0 {sndUna = acked, sndBuffer = dropTo acked (sndBuffer snd0)}
      | otherwise = snd0
    -- RFC 5681, section 2: a duplicate has no data, no FIN, repeats the last acknowledgment and does not change the
    -- window. The answers to probes of a closed window look the same, and report no loss.
    duplicate =
      windowIsOpen c0 && newly == 0 && acked == una && outstanding c0 > 0 && payloadLength s == 0 && not (has fin (flags s)) && not (has syn (flags s))
        && scaledWindow c0 s == sndWnd snd0
    windowUpdated = updateWindow (offeredEdge c0) at acked s c1
    nothingNew = newly == 0 && null everything && not duplicate && not isDsack
    progress =
      Progress
        { ackedBytes = newly,
          deliveredBytes = if useSack (agreed c0) then sum [sentEnd e - k | (k, e) <- everything] else withoutSack,
          delivered = everything,
          isDuplicate = duplicate,
          duplicateRange = duplicated,
          flightBefore = inFlight c0
        }
    -- Each duplicate has counted for a segment before.
    withoutSack
      | duplicate = fullSegment c0
      | otherwise = max 0 (newly - dupAcks (loss c0) * fullSegment c0)
    -- An acknowledgment that covers retransmitted data too measures the duration of the repair, not the round-trip
    -- time.
    timed = sackedNow ++ (if any (retransmitted . snd) gone then [] else gone)
    measure c = case [sentAt e | (_, e) <- timed, not (retransmitted e)] of
      [] -> if newly > 0 then echoed c else c
      times -> modifyRtt (measured (config env) (now env `since` minimum times) . progressed) c
    -- Karn's algorithm excludes retransmissions, unless an echoed timestamp identifies the transmission (RFC 7323,
    -- section 4). A duplicate does not change the timestamp that the peer echoes (section 4.3): an echo of the first
    -- transmission means that this was late, or that its acknowledgment was lost. In the second case its age would
    -- include the timeout. With SACK the peer reports the duplicate (RFC 2883): the acknowledgment was lost, nothing is
    -- measured, and the backing off ends. Without SACK only an echo counts that is as young as the retransmission, up
    -- to a tick of the clock. (Of several segments the peer echoes the first, which filled the gap.)
    --
    -- In all other cases the next data is sent with the longer timeout: it is measured even if the round-trip time has
    -- grown.
    echoed c = case timestamps (options s) of
      Just (Timestamps _ e)
        | isDsack -> modifyRtt progressed c
        | useTimestamps (agreed c),
          e /= 0,
          let ticks = unwrap 0 (timestampNow env (agreed c) - e),
          ticks >= 0,
          ticks < 600000,
          let age = millis (max 1 ticks),
          useSack (agreed c) || and [age <= (now env `since` sentAt sent) + millis 1 | (_, sent) <- take 1 gone] ->
          modifyRtt (measured (config env) age . progressed) c
      _ -> c
    -- RFC 6298, 5.3; RFC 8985, section 7.2.
    rearm c
      | newly > 0 = modifyTimers (\t -> t {retransmitAt = never, probeAt = never, stalledSince = never}) c
      | not (null everything) = modifyTimers (\t -> t {probeAt = never}) c
      | otherwise = c

-- | Take the window from the segment that the peer sent last (RFC 9293: SND.WL1, SND.WL2). When a closed window opens,
-- data that was sent as a probe is retransmitted at once. The first argument is the 'offeredEdge' before the segment.
updateWindow :: Pos -> Pos -> Pos -> Segment -> Conn -> Conn
updateWindow edge at acked s c
  | newer && sndWnd snd' == 0 && wnd > 0 =
    modifyRtt progressed (modifyLoss (\l -> l {board = markLostFrom edge (board l)}) c {sendSide = updated, timers = (timers c) {retransmitAt = never, stalledSince = never}})
  | newer = c {sendSide = updated}
  | otherwise = c
  where
    snd' = sendSide c
    wnd = scaledWindow c s
    newer = acked >= sndUna snd' && (sndWl1 snd' < at || (sndWl1 snd' == at && sndWl2 snd' <= acked))
    updated =
      snd'
        { sndWnd = wnd,
          sndEdge = if outstanding c == 0 then acked else edge,
          sndMaxWnd = max wnd (sndMaxWnd snd'),
          sndWl1 = at,
          sndWl2 = acked
        }
