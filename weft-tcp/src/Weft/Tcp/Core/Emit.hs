-- |
-- Construction of segments. Every segment carries the acknowledgment, the window and the options of the receive
-- side; the connection records what was announced.
--
-- @since 0.1.0
module Weft.Tcp.Core.Emit
  ( emit,
    emitAck,
    emitSyn,
    emitReset,
    resetFor,
    challengeAck,
    answerLimited,
    outsideAck,
    outsideRate,
    periodOver,
    timestampNow,
    windowUpdateWorthwhile,
  )
where

import Data.Bits (shiftL, shiftR)
import Data.ByteString (ByteString)
import Data.List (nub)
import Data.Maybe (mapMaybe)
import Data.Word (Word32)
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Rate
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment (Flags, Segment (..), ack, has, rst, sequenceLength, syn, urg)

-- | A segment of an open connection from a position on, with the given flags and ACK. It announces the window, and
-- acknowledges everything, so no acknowledgment is pending afterwards.
emit :: Env -> Flags -> Pos -> [ByteString] -> Conn -> (Conn, Segment)
emit env extra at body c = (c {receiveSide = said, timers = (timers c) {ackAt = never}}, segment)
  where
    r = receiveSide c
    a = agreed c
    edge = windowEdge (config env) c
    value = min 65535 ((edge - rcvNxt r) `shiftR` receiveShift a)
    said =
      r
        { rcvAdvertised = max (rcvAdvertised r) (rcvNxt r + value `shiftL` receiveShift a),
          lastAckSent = rcvNxt r,
          rcvSegments = 0,
          ackNow = False
        }
    -- RFC 9293, section 3.8.5: the pointer counts from the segment's first byte.
    urgent = sndUp (sendSide c) - at
    isUrgent = urgent > 0 && urgent <= 65535
    segment =
      Segment
        { seqNumber = wrap at,
          ackNumber = wrap (rcvNxt r),
          flags = ack <> extra <> (if isUrgent then urg else mempty),
          window = fromIntegral (max 0 value),
          urgentPointer = if isUrgent then fromIntegral urgent else 0,
          options = noOptions {timestamps = stamps env c},
          payload = body
        }

-- | An acknowledgment without data, with the SACK blocks that are to be reported.
emitAck :: Env -> Conn -> (Conn, Segment)
emitAck env c0 = (modifyReceive (\r -> r {dsack = Nothing}) c, s {options = (options s) {sackBlocks = blocks}})
  where
    (c, s) = emit env mempty (positionWithoutData c0) [] c0
    r0 = receiveSide c0
    ranges = nub (mapMaybe (`heldRange` rcvHeld r0) (sackRecent r0))
    blocks
      | not (useSack (agreed c0)) = []
      | otherwise =
        take (maxSackBlocks (useTimestamps (agreed c0))) $
          [SackBlock (wrap a) (wrap b) | (a, b) <- maybe id (:) (dsack r0) ranges]

-- | The position of a segment without data: SND.NXT, but within the window. What was sent to probe a closed window lies
-- outside of it, and the peer would not accept an acknowledgment or a reset behind that (RFC 9293, section 3.10.7.4).
positionWithoutData :: Conn -> Pos
positionWithoutData c
  | isSynchronized (state c) = min (sndNxt s) (offeredEdge c)
  | otherwise = sndNxt s
  where
    s = sendSide c

-- | The right edge of the window to announce. It follows the free buffer space, but stays where it is while it would
-- move by less than a segment or half of the buffer (RFC 9293, section 3.8.6.2.2). It never moves back (SHLD-14).
windowEdge :: Config -> Conn -> Pos
windowEdge cfg c
  | wanted - rcvAdvertised r >= min (receiveBuffer cfg `div` 2) (announcedMss cfg) = wanted
  | otherwise = rcvAdvertised r
  where
    r = receiveSide c
    wanted = announceable cfg c

-- | The right edge of the free buffer space.
announceable :: Config -> Conn -> Pos
announceable cfg c = rcvNxt r + min (65535 `shiftL` receiveShift (agreed c)) (max 0 (receiveBuffer cfg - bufferLength (rcvQueue r)))
  where
    r = receiveSide c

-- | Whether the user has received so much data that a window update is worth a segment: the window would at least
-- double.
windowUpdateWorthwhile :: Config -> Conn -> Bool
windowUpdateWorthwhile cfg c = edge > rcvAdvertised r && edge - rcvNxt r >= 2 * (rcvAdvertised r - rcvNxt r)
  where
    r = receiveSide c
    edge = windowEdge cfg c

-- | The timestamp to send now (RFC 7323): the clock in milliseconds plus the
-- connection's offset, modulo 2^32.
timestampNow :: Env -> Agreed -> Word32
timestampNow env a = let Instant t = now env in fromIntegral (t `div` 1000) + tsOffset a

stamps :: Env -> Conn -> Maybe Timestamps
stamps env c
  | useTimestamps (agreed c) = Just (Timestamps (timestampNow env (agreed c)) (tsRecent (receiveSide c)))
  | otherwise = Nothing

-- | SYN, or SYN and ACK (RFC 9293, section 3.5), with the options that we offer, or
-- those that the peer offered as well.
emitSyn :: Env -> Conn -> (Conn, Segment)
emitSyn env c = (c {receiveSide = said, timers = (timers c) {ackAt = never}}, segment)
  where
    cfg = config env
    a = agreed c
    r = receiveSide c
    answering = state c == SynReceived
    -- Windows in segments with SYN are never scaled (RFC 7323, section 2.2).
    value = min 65535 (max 0 (receiveBuffer cfg - bufferLength (rcvQueue r)))
    said
      | answering = r {rcvAdvertised = max (rcvAdvertised r) (rcvNxt r + value), lastAckSent = rcvNxt r, ackNow = False}
      | otherwise = r
    segment =
      Segment
        { seqNumber = wrap (sndUna (sendSide c)),
          ackNumber = if answering then wrap (rcvNxt r) else 0,
          flags = if answering then syn <> ack else syn,
          window = fromIntegral value,
          urgentPointer = 0,
          options =
            Options
              { maximumSegmentSize = Just (fromIntegral (min 65535 (announcedMss cfg))),
                windowScale = if useScale a then Just (fromIntegral (receiveShift a)) else Nothing,
                sackPermitted = useSack a,
                timestamps = if useTimestamps a then Just (Timestamps (timestampNow env a) (tsRecent r)) else Nothing,
                sackBlocks = []
              },
          payload = []
        }

-- | The reset that aborts a synchronized connection.
emitReset :: Env -> Conn -> Segment
emitReset env c = s {flags = rst <> ack, window = 0, urgentPointer = 0}
  where
    (_, s) = emit env mempty (positionWithoutData c) [] c

-- | The answer to a segment of a connection that does not exist (RFC 9293, section
-- 3.10.7.1): none to a reset.
resetFor :: Segment -> Maybe Segment
resetFor s
  | has rst (flags s) = Nothing
  | has ack (flags s) = Just (reset (ackNumber s) 0 rst)
  | otherwise = Just (reset 0 (seqNumber s + fromIntegral (sequenceLength s)) (rst <> ack))
  where
    reset from to f = Segment from to f 0 0 noOptions []

-- | The acknowledgment that answers a RST, a SYN or an ACK that may be forged (RFC 5961). Their rate is limited
-- (section 7), because a peer that finds our answers unacceptable as well would answer them for ever.
challengeAck :: Env -> Conn -> (Conn, [Segment])
challengeAck env c = case spend (challengeRate (config env)) (now env) (challengeDue r) of
  Just due -> pure <$> emitAck env c {receiveSide = r {challengeDue = due}}
  Nothing -> (c, [])
  where
    r = receiveSide c

-- | The answer to a segment that anybody may have sent, unless too many were given: five at once, then one in each half
-- second. Such are segments without data outside of the window (RFC 9293, section 3.10.7.4), among them keep-alives and
-- probes of a zero window, copies of a SYN, and unacceptable acknowledgments of a connection that is not open yet. What
-- is forged cannot keep the peer without an answer: where the connection is open, SYNs and resets have another limit,
-- and the answer to a forged segment, which comes within half a second, goes to the peer and says what the peer asks
-- for.
answerLimited :: Env -> Conn -> (Conn -> (Conn, [Segment])) -> (Conn, [Segment])
answerLimited env c answer = case spend outsideRate (now env) (outsideDue r) of
  Just due -> answer c {receiveSide = r {outsideDue = due}}
  Nothing -> (c, [])
  where
    r = receiveSide c

-- | The acknowledgment that answers a segment outside of the window ('answerLimited').
outsideAck :: Env -> Conn -> (Conn, [Segment])
outsideAck env c = answerLimited env c (fmap pure . emitAck env)

-- | The limit of 'challengeAck'.
challengeRate :: Config -> Rate
challengeRate cfg = Rate (challengeLimit cfg) (secs 5 `div` fromIntegral (max 1 (challengeLimit cfg)))

-- | The limit of 'answerLimited'.
outsideRate :: Rate
outsideRate = Rate 5 (millis 500)

-- | Forget answers that limit no others any more, so that an idle connection can be stored in its compact form again
-- ("Weft.Tcp.Core.Packed").
periodOver :: Env -> Conn -> Conn
periodOver env c
  | over challengeDue (challengeRate (config env)) = periodOver env c {receiveSide = r {challengeDue = longAgo}}
  | over outsideDue outsideRate = c {receiveSide = r {outsideDue = longAgo}}
  | otherwise = c
  where
    r = receiveSide c
    over due rate = due r /= longAgo && isUnspent rate (now env) (due r)
