-- |
-- Expired timers (RFC 9293, section 3.10.8).
--
-- @since 0.1.0
module Weft.Tcp.Core.Timeout (timeout) where

import Weft.Tcp.Core.Buffer (emptyAt)
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Emit
import Weft.Tcp.Core.Open
import Weft.Tcp.Core.Output
import Weft.Tcp.Core.Recovery
import Weft.Tcp.Core.Rtt
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Core.Undo
import Weft.Tcp.Wire.Segment (Segment (..))

-- | Process all timers that have expired. Does nothing if none has.
timeout :: Env -> Conn -> (Conn, [Segment])
timeout env = stateEnds `next` delayedAck `next` reordering `next` lossProbe `next` retransmission `next` keepAlives
  where
    next f g c = let (c', out) = f c; (c'', out') = g c' in (c'', out ++ out')
    due f c = f (timers c) <= now env
    delayedAck c
      | due ackAt c = (modifyReceive (\r -> r {ackNow = True}) c {timers = (timers c) {ackAt = never}}, [])
      | otherwise = (c, [])
    reordering c
      | due reorderAt c = (detectByTime env c, [])
      | otherwise = (c, [])
    lossProbe c
      | due probeAt c = sendProbe env c {timers = (timers c) {probeAt = never}}
      | otherwise = (c, [])
    retransmission c
      | due retransmitAt c = retransmit env c {timers = (timers c) {retransmitAt = never}}
      | otherwise = (c, [])
    stateEnds c
      | not (due stateEndsAt c) = (c, [])
      | state c `elem` [SynSent, SynReceived] = (close TimedOut c, [])
      | isOrphan c && state c /= FinWait2 = orphanEnds env c
      | otherwise = (close Finished c, [])
    keepAlives c
      | due keepAliveAt c = sendKeepAlive env c
      | otherwise = (c, [])

close :: CloseReason -> Conn -> Conn
close why c =
  c
    { state = Closed why,
      timers = noTimers,
      loss = noLoss,
      sendSide = (sendSide c) {sndBuffer = emptyAt (dataEnd c)}
    }

-- | Reset a closed connection whose peer has acknowledged nothing for 'orphanTime'. A zero window is to be probed for
-- as long as there are answers (MUST-37), but such a connection has no user who could give up (RFC 6429).
orphanEnds :: Env -> Conn -> (Conn, [Segment])
orphanEnds env c
  | ends <= now env = (close TimedOut c, [emitReset env c])
  | otherwise = (c {timers = t {stateEndsAt = ends}}, [])
  where
    t = timers c
    ends = (if stalledSince t == never then now env else stalledSince t) `after` orphanTime (config env)

-- | Send a tail loss probe (RFC 8985, section 7.3): new data if there is some and it fits into the window, otherwise
-- the last segment again.
sendProbe :: Env -> Conn -> (Conn, [Segment])
sendProbe env c
  | outstanding c == 0 = (c, [])
  | fresh > 0 = let (c', s) = transmit env fresh False c in (watched False c', [s])
  | otherwise = case lastEntry (board (loss c)) of
    Just (k, e) ->
      let from = max k (sentEnd e - sendMss c)
          cut = modifyLoss (\l -> l {board = cutAt from (board l)}) c
          (c', s) = retransmitFrom env from (sentEnd e) cut
       in (watched True c', [s])
    Nothing -> (c, [])
  where
    snd' = sendSide c
    fresh = minimum [fullSegment c, dataEnd c - sndNxt snd', sndUna snd' + sndWnd snd' - sndNxt snd']
    watched again x =
      (modifyLoss (\l -> l {probe = Probe (sndNxt (sendSide x)) again}) x)
        { timers = (timers x) {probeAt = never, retransmitAt = now env `after` timeoutNow (config env) (rtt x)}
        }

-- | The retransmission timeout (RFC 6298, 5.4 to 5.6), or a zero-window probe (RFC 9293, section 3.8.6.1). A probe
-- says nothing about the network: the congestion window stays, and the connection remains open as long as the peer
-- answers (MUST-37).
retransmit :: Env -> Conn -> (Conn, [Segment])
retransmit env c
  | state c `elem` [SynSent, SynReceived] = let (c', out) = retransmitSyn env c in (backOff c', out)
  | not (isSynchronized (state c)) || state c == TimeWait = (c, [])
  -- Nothing was asked of the peer before there was something to send.
  | closedWindow && now env `since` max (lastHeard (receiveSide c)) (stalledSince (timers c)) >= userTimeout cfg && backoff (rtt c) > 1 = (close TimedOut c, [])
  | not closedWindow && stalledSince (timers c) /= never && now env `since` stalledSince (timers c) >= userTimeout cfg = (close TimedOut c, [])
  | outstanding c == 0 = if queuedToSend c > 0 then windowProbe env (backOff c) else (c, [])
  | closedWindow = resend (backOff c)
  | otherwise = resend (backOff (collapse env c))
  where
    cfg = config env
    closedWindow = sndWnd (sendSide c) == 0 || outstanding c == 0
    backOff x =
      let r = backedOff (rtt x)
       in x {rtt = r, timers = (timers x) {retransmitAt = now env `after` timeoutNow cfg r, probeAt = never}}
    resend x = case firstEntry (board (loss x)) of
      Just (k, e) -> pure <$> retransmitFrom env k (min (sentEnd e) (k + sendMss x)) x
      Nothing -> (x, [])

-- | RFC 5681, section 3.1: the threshold is reduced once for each flight; the window becomes one segment each time.
collapse :: Env -> Conn -> Conn
collapse env c = modifyLoss (\l -> l {phase = AfterTimeout end, recover = end}) (markTimedOut env (remembered c) {congestion = smaller})
  where
    end = case phase (loss c) of
      AfterTimeout p -> p
      _ -> sndNxt (sendSide c)
    sample = Sample (now env) 0 (fullFlight c) (sendMss c) (srtt (rtt c))
    remembered = case phase (loss c) of
      Open -> beforeReduction
      _ -> id
    smaller = case phase (loss c) of
      AfterTimeout _ -> setWindow (sendMss c) (congestion c)
      _ -> timedOut sample (congestion c)

-- | Send a probe: one byte beyond a zero window, or the data that fits into a window too small for ordinary segments,
-- or the FIN.
windowProbe :: Env -> Conn -> (Conn, [Segment])
windowProbe env c = pure <$> transmit env size (size == 0) c
  where
    snd' = sendSide c
    available = dataEnd c - sndNxt snd'
    room = sndUna snd' + sndWnd snd' - sndNxt snd'
    size = minimum [available, max 1 room, sendMss c]

-- | A keep-alive probe: the peer must answer it, because its sequence number has been acknowledged before (RFC 9293,
-- section 3.8.4).
sendKeepAlive :: Env -> Conn -> (Conn, [Segment])
sendKeepAlive env c = case useKeepAlive (choices c) of
  Just k
    | not (isSynchronized (state c)) || state c == TimeWait -> off
    | keepAlivesSent t >= keepAliveProbes k -> (close TimedOut c, [emitReset env c])
    | outstanding c > 0 -> (c {timers = t {keepAliveAt = now env `after` keepAliveInterval k}}, [])
    | otherwise ->
      let (c', s) = emit env mempty (sndNxt (sendSide c) - 1) [] c
       in (c' {timers = (timers c') {keepAliveAt = now env `after` keepAliveInterval k, keepAlivesSent = keepAlivesSent t + 1}}, [s])
  Nothing -> off
  where
    t = timers c
    off = (c {timers = t {keepAliveAt = never}}, [])
