-- |
-- Output: first retransmissions of lost data, then new data, then an acknowledgment if one is still pending. It also
-- sets the timers for outstanding data (RFC 9293, section 3.8.6.2.1; RFC 6298, section 5; RFC 6675, section 5).
--
-- @since 0.1.0
module Weft.Tcp.Core.Output
  ( output,
    transmit,
    retransmitFrom,
  )
where

import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Emit
import Weft.Tcp.Core.Recovery
import Weft.Tcp.Core.Rtt
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Core.Undo
import Weft.Tcp.Wire.Segment (Segment, fin, psh)

-- | All segments that may be sent now, in this order.
output :: Env -> Conn -> (Conn, [Segment])
output env c0
  | isSynchronized (state c0) && state c0 /= TimeWait =
    let (c1, first) = reportFirst env c0
        (c2, sent) = sendLost env (afterIdle env c1) first
        (c3, sent') = sendNew env c2 sent
        (c4, sent'') = acknowledge env c3 sent'
     in (settleTimers env c4, reverse sent'')
  | otherwise = let (c, sent) = acknowledge env c0 [] in (c, sent)

-- | Send a separate acknowledgment for SACK blocks: segments with data carry none, since they would take room from it.
reportFirst :: Env -> Conn -> (Conn, [Segment])
reportFirst env c
  | ackNow r && (dsack r /= Nothing || not (isNoHeld (rcvHeld r))) = pure <$> emitAck env c
  | otherwise = (c, [])
  where
    r = receiveSide c

acknowledge :: Env -> Conn -> [Segment] -> (Conn, [Segment])
acknowledge env c sent
  | ackNow (receiveSide c) = (: sent) <$> emitAck env c
  | otherwise = (c, sent)

-- | Start again slowly after nothing was sent for a retransmission timeout (RFC 5681,
-- section 4.1).
afterIdle :: Env -> Conn -> Conn
afterIdle env c
  | outstanding c == 0 && queuedToSend c > 0 && now env `since` lastSent (loss c) > rto (rtt c) =
    c {congestion = restarted (initialWindow (initialSegments (config env)) (sendMss c)) (congestion c)}
  | otherwise = c

-- | Room in the congestion window. If nothing is in flight, one segment may always be sent.
congestionRoom :: Conn -> Int
congestionRoom c
  | pipe == 0 = max (sendMss c) room
  | otherwise = room
  where
    pipe = inFlight c
    room = congestionWindow (windowsOf (congestion c)) - pipe

-- | As many whole segments as one transmission may carry. (The device splits it into segments of 'sendMss'.)
mostAtOnce :: Env -> Conn -> Int
mostAtOnce env c
  | fullSegment c < mss = fullSegment c
  | otherwise = max mss (offloadBytes (config env) `div` mss * mss)
  where
    mss = sendMss c

-- Lost data ------------------------------------------------------------------------------

sendLost :: Env -> Conn -> [Segment] -> (Conn, [Segment])
sendLost env c sent = case firstLost (board (loss c)) of
  Just (from, s)
    | size >= min mss (sentEnd s - from), size > 0 -> let (c', seg) = retransmitFrom env from (from + size) c in sendLost env c' (seg : sent)
    | otherwise -> (limitedBy (size <= 0 && windowRoom > 0) c, sent)
    where
      mss = sendMss c
      room = congestionRoom c
      windowRoom = offeredEdge c - from
      whole = if room >= mss then room `div` mss * mss else room
      size = minimum [sentEnd s - from, mostAtOnce env c, whole, windowRoom]
  Nothing -> (c, sent)

-- | Retransmit the data between two positions.
retransmitFrom :: Env -> Pos -> Pos -> Conn -> (Conn, Segment)
retransmitFrom env from to c = (noteRetransmission env from to (prrSent (to - from) c' {loss = l {board = recordRetransmission (now env) from to (board l), lastSent = now env}}), s)
  where
    (c', s) = dataSegment env from to c
    l = loss c'

-- | A segment with the data between two positions, and the FIN if it lies there.
dataSegment :: Env -> Pos -> Pos -> Conn -> (Conn, Segment)
dataSegment env from to c = emit env (endFlags <> pushFlags) from (range from to (sndBuffer (sendSide c))) c
  where
    endFlags = if Just (to - 1) == finPosition c then fin else mempty
    pushFlags = if to >= dataEnd c && from < dataEnd c then psh else mempty

-- New data -------------------------------------------------------------------------------

sendNew :: Env -> Conn -> [Segment] -> (Conn, [Segment])
sendNew env c sent
  | firstLost (board (loss c)) /= Nothing = (c, sent)
  | size > 0 || withFin = let (c', s) = transmit env size withFin c in sendNew env c' (s : sent)
  | otherwise = (limitedBy (available > 0 && room < mss && windowRoom >= min available mss) c, sent)
  where
    snd' = sendSide c
    mss = fullSegment c
    room = congestionRoom c
    windowRoom = sndUna snd' + sndWnd snd' - sndNxt snd'
    available = dataEnd c - sndNxt snd'
    whole = if room >= mss then room `div` mss * mss else 0
    size = worthwhile c available (max 0 (minimum [available, mostAtOnce env c, whole, windowRoom]))
    -- A FIN needs a place in the window, but no whole segment of the congestion window.
    withFin = finQueued snd' && sndNxt snd' <= dataEnd c && size == max 0 available && windowRoom > size

-- | How much of what could be sent is worth sending: full segments, and the rest if it is everything and Nagle's
-- algorithm does not hold it (RFC 9293, sections 3.7.4 and 3.8.6.2.1).
worthwhile :: Conn -> Int -> Int -> Int
worthwhile c available size
  | size <= 0 = 0
  | size == available && (rest == 0 || not nagling || finQueued (sendSide c)) = size
  | otherwise = size - rest
  where
    rest = size `mod` fullSegment c
    nagling = useNagle (choices c) && outstanding c > 0

-- | Send the given number of bytes of new data, and the FIN if asked to.
transmit :: Env -> Int -> Bool -> Conn -> (Conn, Segment)
transmit env size withFin c = (prrSent (to - from) c' {sendSide = (sendSide c') {sndNxt = to}, loss = sentNow, timers = t {probeAt = never}}, s)
  where
    from = sndNxt (sendSide c)
    to = from + size + (if withFin then 1 else 0)
    (c', s) = dataSegment env from to c
    l = loss c'
    t = timers c'
    sentNow = l {board = recordSent (now env) from to (board l), lastSent = now env, cwndLimited = False}

-- | Record whether the congestion window limited the output, and the bytes in flight now.
limitedBy :: Bool -> Conn -> Conn
limitedBy b c
  | cwndLimited (loss c) == b && flightThen (loss c) == flight = c
  | otherwise = modifyLoss (\l -> l {cwndLimited = b, flightThen = flight}) c
  where
    flight = inFlight c

-- Timers -----------------------------------------------------------------------------------

-- | Set a timer if data is outstanding or waits for the window, and none otherwise (RFC 6298, 5.1 and 5.2; RFC 9293,
-- section 3.8.6.1).
settleTimers :: Env -> Conn -> Conn
settleTimers env c
  | outstanding c == 0 && queuedToSend c == 0 = idle c {timers = sharedTimers t {retransmitAt = never, probeAt = never, reorderAt = never, stalledSince = never}}
  | otherwise = c {timers = t {retransmitAt = retransmit, probeAt = probing, stalledSince = stalled}}
  where
    t = timers c
    retransmit = if retransmitAt t == never then now env `after` timeoutNow (config env) (rtt c) else retransmitAt t
    stalled = if stalledSince t == never then now env else stalledSince t
    probing
      | not (windowIsOpen c) = never
      | otherwise = case probeTimeout env c of
        Nothing -> never
        Just wait
          | probeAt t /= never -> probeAt t
          | otherwise -> now env `after` wait

-- | Reset the records of data that was sent and has arrived, so that an idle connection can be stored in its compact
-- form ("Weft.Tcp.Core.Packed").
idle :: Conn -> Conn
idle c
  | nextTransmission (board l) == nextTransmission emptyBoard = c
  | otherwise = c {loss = l {board = emptyBoard, rack = forgotten, dupAcks = 0, undo = Nothing}}
  where
    l = loss c
    k = rack l
    -- The numbers of transmissions start again from 0.
    forgotten
      | reorderingSeen k || reorderFactor k /= 1 = k {rackNumber = 0, rackSentAt = rackSentAt noRack}
      | otherwise = noRack
