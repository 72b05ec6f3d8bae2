-- |
-- Opening of connections, active and passive, and negotiation of options (RFC 9293, sections 3.5 and 3.10.7.3).
--
-- @since 0.1.0
module Weft.Tcp.Core.Open
  ( Opening (..),
    activeOpen,
    passiveOpen,
    establishedFrom,
    arriveSynSent,
    established,
    retransmitSyn,
  )
where

import Data.Bits (shiftL)
import Data.Maybe (fromMaybe, isJust)
import Data.Word (Word32)
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Emit
import Weft.Tcp.Core.Rtt
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment (Segment (..), ack, has, rst, syn)

-- | The initial values of a connection. The caller computes them ("Weft.Tcp.Core.Secret").
data Opening = Opening
  { initialSequence :: !Word32,
    timestampOffset :: !Word32,
    -- | The path's MTU, as far as it is known, without the IP header.
    pathKnown :: !Int,
    -- | The MSS of a peer that sends no MSS option: 536 for IPv4, 1220 for IPv6 (MUST-15).
    mssDefault :: !Int
  }

-- | Added to initial sequence numbers, so that no position is ever negative.
firstLap :: Pos
firstLap = 1 `shiftL` 32

blank :: Env -> Opening -> State -> Origin -> Conn
blank env o st from =
  Conn
    { state = st,
      origin = from,
      sendSide = Send start' (start' + 1) 0 start' 0 0 0 (emptyAt (start' + 1)) False start',
      receiveSide = quickly $ Receive 0 0 (emptyAt 0) noHeld 0 0 Nothing False 0 0 never 0 False Nothing [] longAgo longAgo (now env),
      agreed =
        Agreed
          { peerMss = mssDefault o,
            pathLimit = pathKnown o,
            useSack = offerSack cfg,
            useTimestamps = offerTimestamps cfg,
            useScale = offerScale cfg,
            sendShift = 0,
            receiveShift = scaleFor (receiveBuffer cfg),
            tsOffset = timestampOffset o,
            sendStart = start' + 1,
            receiveStart = 0
          },
      rtt = initialRtt cfg,
      loss = noLoss,
      congestion = start (congestionControl cfg) (Window (initialWindow (initialSegments cfg) 536) maxBound),
      timers = noTimers,
      choices = firstChoices cfg
    }
  where
    cfg = config env
    start' = firstLap + fromIntegral (initialSequence o)

-- | OPEN (section 3.10.1): a connection in SYN-SENT, and its SYN.
activeOpen :: Env -> Opening -> (Conn, [Segment])
activeOpen env o = pure <$> emitSyn env (synTimers env (blank env o SynSent ActiveOpen))

synTimers :: Env -> Conn -> Conn
synTimers env c =
  c
    { timers =
        (timers c)
          { retransmitAt = now env `after` timeoutNow (config env) (rtt c),
            stateEndsAt = now env `after` synTimeout (config env),
            stalledSince = now env
          }
    }

-- | A SYN arrived at a listener (section 3.10.7.2): a connection in SYN-RECEIVED, and its SYN-ACK. Data and FIN in the
-- SYN are dropped; the peer retransmits them.
passiveOpen :: Env -> Opening -> Segment -> (Conn, [Segment])
passiveOpen env o s = pure <$> emitSyn env (synTimers env (peerSyn env s (blank env o SynReceived PassiveOpen)))

-- | The connection that a SYN cookie stands for, given the SYN as it must have been, and our sequence number. It is in
-- SYN-RECEIVED. The caller then passes the segment with the cookie to 'Weft.Tcp.Core.step'. Nobody remembers when the
-- SYN-ACK was sent, so the handshake gives no round-trip time.
establishedFrom :: Env -> Opening -> Segment -> Conn
establishedFrom env o s = modifyTimers (\t -> t {stalledSince = never}) (fst (passiveOpen env o s))

-- | Use the initial sequence number and the options of the peer's SYN.
peerSyn :: Env -> Segment -> Conn -> Conn
peerSyn env s c =
  c
    { agreed = settled,
      receiveSide =
        r
          { rcvNxt = first + 1,
            rcvAdvertised = first + 1,
            rcvQueue = emptyAt (first + 1),
            rcvUp = first + 1,
            lastAckSent = first + 1,
            tsRecent = maybe 0 (\(Timestamps v _) -> v) (timestamps opts),
            tsRecentAt = now env,
            lastHeard = now env
          },
      sendSide = (sendSide c) {sndWnd = fromIntegral (window s), sndMaxWnd = fromIntegral (window s), sndWl1 = first, sndWl2 = sndUna (sendSide c)},
      congestion = setWindow (initialWindow (initialSegments (config env)) mss) (congestion c)
    }
  where
    opts = options s
    r = receiveSide c
    a0 = agreed c
    first = firstLap + fromIntegral (seqNumber s)
    scaled = useScale a0 && isJust (windowScale opts)
    settled =
      a0
        { peerMss = max (mssFloor (config env)) (maybe (peerMss a0) fromIntegral (maximumSegmentSize opts)),
          receiveStart = first + 1,
          useSack = useSack a0 && sackPermitted opts,
          useTimestamps = useTimestamps a0 && isJust (timestamps opts),
          useScale = scaled,
          -- RFC 7323, section 2.3: a shift above 14 is taken as 14.
          sendShift = if scaled then min 14 (fromIntegral (fromMaybe 0 (windowScale opts))) else 0,
          receiveShift = if scaled then receiveShift a0 else 0
        }
    mss = sendMss c {agreed = settled}

-- | Our SYN was acknowledged.
established :: Env -> Conn -> Conn
established env c =
  c
    { state = if finQueued s then FinWait1 else Established,
      sendSide = s {sndUna = sndNxt s},
      -- Without keep-alives an open connection has no timer, so that it can share 'noTimers'.
      timers = sharedTimers (timers c) {retransmitAt = never, stateEndsAt = ends, stalledSince = never, keepAliveAt = keep},
      -- After a lost SYN the first timeout is three seconds (RFC 6298, 5.7), and the window is one segment (RFC 5681,
      -- section 3.1).
      rtt = if lostSyn && srtt (rtt c) == 0 then (rtt c) {rto = max (secs 3) (rto (rtt c)), backoff = 0} else (rtt c) {backoff = 0},
      congestion = if lostSyn then setWindow (sendMss c) (congestion c) else congestion c
    }
  where
    s = sendSide c
    lostSyn = backoff (rtt c) > 0
    keep = maybe never (\k -> now env `after` keepAliveIdle k) (useKeepAlive (choices c))
    -- The user has closed it before it was open.
    ends = if finQueued s && rcvShut (receiveSide c) then now env `after` orphanTime (config env) else never

-- | Retransmit the SYN or the SYN-ACK. Its acknowledgment does not say which transmission it answers, so the handshake
-- gives no round-trip time (Karn's algorithm; RFC 6298, section 3).
retransmitSyn :: Env -> Conn -> (Conn, [Segment])
retransmitSyn env c = pure <$> emitSyn env (modifyTimers (\t -> t {stalledSince = never}) c)

-- | Process a segment in SYN-SENT (section 3.10.7.3), in the RFC's order. 'Right' if
-- processing goes on with the segment's data as in other states.
arriveSynSent :: Env -> Segment -> Conn -> (Conn, [Segment], Bool)
arriveSynSent env s c
  -- First, check the ACK bit.
  | hasAck && not acceptable = let (c', out) = maybe (c, []) (answerLimited env c . ofOld) (resetFor s) in (c', out, False)
  -- Second, check the RST bit.
  | has rst (flags s) = if hasAck then (closed Refused, [], False) else (c, [], False)
  -- Fourth, check the SYN bit.
  | not (has syn (flags s)) = (c, [], False)
  | hasAck =
    let c' = measureSyn (peerSyn env s c)
        open = established env c'
     in (modifyReceive (\r -> r {ackNow = True}) open {sendSide = (sendSide open) {sndWl2 = acked}}, [], True)
  | otherwise =
    -- Simultaneous opening (figure 8).
    let (c', seg) = emitSyn env (peerSyn env s c) {state = SynReceived}
     in (c', [seg], False)
  where
    hasAck = has ack (flags s)
    acked = unwrap (sndUna (sendSide c)) (ackNumber s)
    acceptable = acked > sndUna (sendSide c) && acked <= sndNxt (sendSide c)
    closed why = c {state = Closed why, timers = noTimers}
    -- The peer has an older connection, and has answered our SYN by an acknowledgment (RFC 5961, section 4.2). The
    -- reset ends that connection, and the SYN goes again at once, but once only, as anybody can send such
    -- acknowledgments.
    ofOld reset x
      | backoff (rtt c) > 0 || outsideDue (receiveSide c) /= longAgo = (x, [reset])
      | otherwise =
        let again = (timers x) {retransmitAt = now env `after` timeoutNow (config env) (rtt x), stalledSince = now env}
            (x', seg) = emitSyn env x {timers = again}
         in (x', [reset, seg])
    measureSyn x
      | backoff (rtt x) == 0 = modifyRtt (measured (config env) (now env `since` stalledSince (timers x))) x
      | otherwise = x
