{-# LANGUAGE ExistentialQuantification #-}

-- |
-- The compact form of idle connections. Most connections of a large server are established and idle: no data is
-- outstanding or out of order, no acknowledgment is pending, no timer is set. Such a connection is stored as one record
-- of 21 words, instead of eight records with 84 words; all other fields have the same values in every idle connection.
-- The record is expanded for the next event. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Core.Packed
  ( Packed,
    pack,
    unpack,
  )
where

import Data.Bits (shiftL, shiftR, (.&.), (.|.))
import Data.Maybe (isNothing)
import Data.Word (Word32)
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Congestion
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | A connection between two events.
data Packed
  = Unpacked !Conn
  | forall s.
    PackedIdle
      !(Algorithm s)
      !s
      !Choices
      {-# UNPACK #-} !Pos
      -- ^ SND.NXT, RCV.NXT.
      {-# UNPACK #-} !Pos
      {-# UNPACK #-} !Pos
      -- ^ The positions of the first byte sent and received.
      {-# UNPACK #-} !Pos
      {-# UNPACK #-} !Pos
      -- ^ 'recover'.
      {-# UNPACK #-} !Instant
      -- ^ 'tsRecentAt', 'lastHeard', 'lastSent'.
      {-# UNPACK #-} !Instant
      {-# UNPACK #-} !Instant
      {-# UNPACK #-} !Int
      -- ^ Congestion window and threshold.
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      -- ^ Pairs of 32-bit numbers: the announced window and 'rcvQuick'; SND.WND and its maximum; SND.WL1 and SND.WL2;
      -- TS.Recent and our offset; SRTT and RTTVAR; RTO and the least RTT.
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      -- ^ The options that were negotiated, and which side opened the connection.

-- | The smallest form of a connection without loss of information.
pack :: Conn -> Packed
pack c
  | rests c,
    Congestion algorithm s w <- congestion c =
    PackedIdle
      algorithm
      s
      (choices c)
      (sndNxt snd')
      (rcvNxt r)
      (sendStart a)
      (receiveStart a)
      (recover (loss c))
      (tsRecentAt r)
      (lastHeard r)
      (lastSent (loss c))
      (congestionWindow w)
      (slowStartThreshold w)
      (pair (rcvAdvertised r - rcvNxt r) (rcvQuick r))
      (pair (sndWnd snd') (sndMaxWnd snd'))
      (pair (sndWl1 snd') (sndWl2 snd'))
      (pair (fromIntegral (tsRecent r)) (fromIntegral (tsOffset a)))
      (pair (micros (srtt t)) (micros (rttvar t)))
      (pair (micros (rto t)) (micros (minRtt t)))
      agreement
  | otherwise = Unpacked c
  where
    snd' = sendSide c
    r = receiveSide c
    a = agreed c
    t = rtt c
    micros (Micros n) = n
    flag n b = if b then 1 `shiftL` n else 0
    agreement =
      peerMss a .|. pathLimit a `shiftL` 20 .|. sendShift a `shiftL` 40 .|. receiveShift a `shiftL` 44
        .|. flag 48 (useSack a)
        .|. flag 49 (useTimestamps a)
        .|. flag 50 (useScale a)
        .|. flag 51 (origin c == ActiveOpen)

-- | Two numbers of 32 bits, the first one lower.
pair :: Int -> Int -> Int
pair low high = (low .&. 0xffffffff) .|. (high `shiftL` 32)

first, second :: Int -> Int
first n = n .&. 0xffffffff
second n = (n `shiftR` 32) .&. 0xffffffff

-- | Whether it is established, and every field that is not in the record has the value that 'unpack' gives it.
rests :: Conn -> Bool
rests c =
  state c == Established
    -- Nothing to send, and nothing outstanding.
    && sndUna s == sndNxt s
    && dataEnd c == sndNxt s
    && bufferLength (sndBuffer s) == 0
    && not (finQueued s)
    && sndEdge s <= sndUna s + sndWnd s
    && sndUp s <= sndNxt s
    -- No unread data, and no pending acknowledgment.
    && bufferLength (rcvQueue r) == 0
    && bufferEnd (rcvQueue r) == rcvNxt r
    && isNoHeld (rcvHeld r)
    && isNothing (rcvFin r)
    && not (rcvShut r)
    && rcvUp r <= rcvNxt r
    && lastAckSent r == rcvNxt r
    && not (ackNow r)
    && isNothing (dsack r)
    && null (sackRecent r)
    && challengeDue r == longAgo
    && outsideDue r == longAgo
    -- No timer is set, and no loss is being repaired.
    && timers c == noTimers
    && backoff t == 0
    && phase l == Open
    && probe l == NoProbe
    && dupAcks l == 0
    && not (cwndLimited l)
    && rack l == noRack
    && nextTransmission (board l) == nextTransmission emptyBoard
    -- And the numbers fit.
    && all fits [sndWnd s, sndMaxWnd s, fromEnum (srtt t), fromEnum (rttvar t), fromEnum (rto t), fromEnum (minRtt t)]
    && peerMss a < 0x100000
    && pathLimit a < 0x100000
  where
    s = sendSide c
    r = receiveSide c
    a = agreed c
    t = rtt c
    l = loss c
    fits n = n >= 0 && n <= 0xffffffff

-- | The expanded connection.
unpack :: Packed -> Conn
unpack (Unpacked c) = c
unpack (PackedIdle algorithm s chosen snd' rcv sendFrom receiveFrom recovered stampedAt heardAt sentAt' cwnd threshold announced windows updates stamps times timeouts agreement) =
  Conn
    { state = Established,
      origin = if flag 51 then ActiveOpen else PassiveOpen,
      sendSide =
        Send
          { sndUna = snd',
            sndNxt = snd',
            sndWnd = first windows,
            sndEdge = snd',
            sndMaxWnd = second windows,
            sndWl1 = unwrap rcv (word first updates),
            sndWl2 = unwrap snd' (word second updates),
            sndBuffer = emptyAt snd',
            finQueued = False,
            sndUp = snd'
          },
      receiveSide =
        Receive
          { rcvNxt = rcv,
            rcvAdvertised = rcv + first announced,
            rcvQueue = emptyAt rcv,
            rcvHeld = noHeld,
            rcvSegments = 0,
            rcvQuick = second announced,
            rcvFin = Nothing,
            rcvShut = False,
            rcvUp = rcv,
            tsRecent = word first stamps,
            tsRecentAt = stampedAt,
            lastAckSent = rcv,
            ackNow = False,
            dsack = Nothing,
            sackRecent = [],
            challengeDue = longAgo,
            outsideDue = longAgo,
            lastHeard = heardAt
          },
      agreed =
        Agreed
          { peerMss = agreement .&. 0xfffff,
            pathLimit = (agreement `shiftR` 20) .&. 0xfffff,
            useSack = flag 48,
            useTimestamps = flag 49,
            useScale = flag 50,
            sendShift = (agreement `shiftR` 40) .&. 15,
            receiveShift = (agreement `shiftR` 44) .&. 15,
            tsOffset = word second stamps,
            sendStart = sendFrom,
            receiveStart = receiveFrom
          },
      rtt = Rtt (Micros (first times)) (Micros (second times)) (Micros (first timeouts)) 0 (Micros (second timeouts)),
      loss = noLoss {recover = recovered, lastSent = sentAt'},
      congestion = Congestion algorithm s (Window cwnd threshold),
      timers = noTimers,
      choices = chosen
    }
  where
    flag n = (agreement `shiftR` n) .&. 1 == 1
    word :: (Int -> Int) -> Int -> Word32
    word half n = fromIntegral (half n)
