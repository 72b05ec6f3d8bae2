{-# LANGUAGE ExistentialQuantification #-}

-- |
-- Connections at rest. Most connections of a server with many are established and idle: nothing is
-- sent, owed, held or timed. Such a one is kept as one record of 21 words, in place of eight records of
-- 84; what the others say is the same for all of them. The record is taken apart for the next event. Pure.
--
-- @since 0.1.0
module Weft.Tcp.Core.Rest
  ( Kept,
    keep,
    awake,
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
data Kept
  = Awake !Conn
  | forall s.
    Resting
      !(Algorithm s)
      !s
      !Choices
      {-# UNPACK #-} !Pos
      -- ^ SND.NXT, RCV.NXT.
      {-# UNPACK #-} !Pos
      {-# UNPACK #-} !Pos
      -- ^ Where data began, sent and received.
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
      -- ^ Pairs of 32 bits: SND.WND and its maximum; SND.WL1 and SND.WL2; the announced window and the
      -- peer's segment size; TS.Recent and our offset; SRTT and RTTVAR; RTO and the least RTT.
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      {-# UNPACK #-} !Int
      -- ^ What was agreed, and who opened.

-- | In the smallest form that says everything.
keep :: Conn -> Kept
keep c
  | rests c,
    Congestion algorithm s w <- congestion c =
    Resting
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
      (pair (sndWnd snd') (sndMaxWnd snd'))
      (pair (sndWl1 snd') (sndWl2 snd'))
      (pair (rcvAdvertised r - rcvNxt r) (rcvMss r))
      (pair (fromIntegral (tsRecent r)) (fromIntegral (tsOffset a)))
      (pair (micros (srtt t)) (micros (rttvar t)))
      (pair (micros (rto t)) (micros (minRtt t)))
      agreement
  | otherwise = Awake c
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

-- | Whether it is established, and all that the record does not say is as 'awake' makes it.
rests :: Conn -> Bool
rests c =
  state c == Established
    -- Nothing to send, and nothing on the way.
    && sndUna s == sndNxt s
    && dataEnd c == sndNxt s
    && bufferLength (sndBuffer s) == 0
    && not (finQueued s)
    && sndUp s <= sndNxt s
    -- Nothing received that is not taken, and nothing owed.
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
    && challengeCount r == 0
    -- No timer, no loss.
    && timers c == noTimers
    && backoff t == 0
    && phase l == Open
    && probe l == NoProbe
    && dupAcks l == 0
    && not (cwndLimited l)
    && rack l == noRack
    && nextTransmission (board l) == nextTransmission emptyBoard
    -- And the numbers fit.
    && all fits [sndWnd s, sndMaxWnd s, rcvAdvertised r - rcvNxt r, rcvMss r, fromEnum (srtt t), fromEnum (rttvar t), fromEnum (rto t), fromEnum (minRtt t)]
    && peerMss a < 0x100000
    && pathLimit a < 0x100000
  where
    s = sendSide c
    r = receiveSide c
    a = agreed c
    t = rtt c
    l = loss c
    fits n = n >= 0 && n <= 0xffffffff

-- | The connection.
awake :: Kept -> Conn
awake (Awake c) = c
awake (Resting algorithm s chosen snd' rcv sendFrom receiveFrom recovered stampedAt heardAt sentAt' cwnd threshold windows updates announced stamps times timeouts agreement) =
  Conn
    { state = Established,
      origin = if flag 51 then ActiveOpen else PassiveOpen,
      sendSide =
        Send
          { sndUna = snd',
            sndNxt = snd',
            sndWnd = first windows,
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
            rcvMss = second announced,
            rcvFin = Nothing,
            rcvShut = False,
            rcvUp = rcv,
            tsRecent = word first stamps,
            tsRecentAt = stampedAt,
            lastAckSent = rcv,
            ackNow = False,
            dsack = Nothing,
            sackRecent = [],
            -- Long ago: the next challenge begins a period.
            challengePeriod = Instant (minBound `div` 4),
            challengeCount = 0,
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
