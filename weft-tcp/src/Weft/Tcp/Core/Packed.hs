{-# LANGUAGE ExistentialQuantification #-}
-- The fields name what is packed and unpacked here; none is a function for others.
{-# OPTIONS_GHC -Wno-partial-fields #-}

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
      { idleAlgorithm :: !(Algorithm s),
        idleCongestion :: !s,
        idleChoices :: !Choices,
        -- | SND.NXT and RCV.NXT.
        idleSendNext, idleReceiveNext :: {-# UNPACK #-} !Pos,
        -- | The positions of the first byte sent and received.
        idleSendStart, idleReceiveStart :: {-# UNPACK #-} !Pos,
        idleRecover :: {-# UNPACK #-} !Pos,
        idleRecentAt, idleLastHeard, idleLastSent :: {-# UNPACK #-} !Instant,
        -- | The congestion window and its threshold, in bytes.
        idleWindow, idleThreshold :: {-# UNPACK #-} !Int,
        -- | A 'pair', as the next ones: how much of the window is announced, and 'rcvQuick'.
        idleAnnounced :: {-# UNPACK #-} !Int,
        -- | SND.WND and its maximum.
        idleWindows :: {-# UNPACK #-} !Int,
        -- | SND.WL1 and SND.WL2.
        idleUpdates :: {-# UNPACK #-} !Int,
        -- | TS.Recent and our offset.
        idleStamps :: {-# UNPACK #-} !Int,
        -- | SRTT and RTTVAR, in microseconds.
        idleTimes :: {-# UNPACK #-} !Int,
        -- | RTO and the least RTT, in microseconds.
        idleTimeouts :: {-# UNPACK #-} !Int,
        -- | The options that were negotiated, and which side opened the connection.
        idleAgreement :: {-# UNPACK #-} !Int
      }

-- | The smallest form of a connection without loss of information.
pack :: Conn -> Packed
pack c
  | rests c,
    Congestion algorithm s w <- congestion c =
    PackedIdle
      { idleAlgorithm = algorithm,
        idleCongestion = s,
        idleChoices = choices c,
        idleSendNext = sndNxt snd',
        idleReceiveNext = rcvNxt r,
        idleSendStart = sendStart a,
        idleReceiveStart = receiveStart a,
        idleRecover = recover (loss c),
        idleRecentAt = tsRecentAt r,
        idleLastHeard = lastHeard r,
        idleLastSent = lastSent (loss c),
        idleWindow = congestionWindow w,
        idleThreshold = slowStartThreshold w,
        idleAnnounced = pair (rcvAdvertised r - rcvNxt r) (rcvQuick r),
        idleWindows = pair (sndWnd snd') (sndMaxWnd snd'),
        idleUpdates = pair (sndWl1 snd') (sndWl2 snd'),
        idleStamps = pair (fromIntegral (tsRecent r)) (fromIntegral (tsOffset a)),
        idleTimes = pair (micros (srtt t)) (micros (rttvar t)),
        idleTimeouts = pair (micros (rto t)) (micros (minRtt t)),
        idleAgreement = agreement
      }
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
unpack p@PackedIdle {idleAlgorithm = algorithm, idleCongestion = s} =
  Conn
    { state = Established,
      origin = if flag 51 then ActiveOpen else PassiveOpen,
      sendSide =
        Send
          { sndUna = snd',
            sndNxt = snd',
            sndWnd = first (idleWindows p),
            sndEdge = snd',
            sndMaxWnd = second (idleWindows p),
            sndWl1 = unwrap rcv (word first (idleUpdates p)),
            sndWl2 = unwrap snd' (word second (idleUpdates p)),
            sndBuffer = emptyAt snd',
            finQueued = False,
            sndUp = snd'
          },
      receiveSide =
        Receive
          { rcvNxt = rcv,
            rcvAdvertised = rcv + first (idleAnnounced p),
            rcvQueue = emptyAt rcv,
            rcvHeld = noHeld,
            rcvSegments = 0,
            rcvQuick = second (idleAnnounced p),
            rcvFin = Nothing,
            rcvShut = False,
            rcvUp = rcv,
            tsRecent = word first (idleStamps p),
            tsRecentAt = idleRecentAt p,
            lastAckSent = rcv,
            ackNow = False,
            dsack = Nothing,
            sackRecent = [],
            challengeDue = longAgo,
            outsideDue = longAgo,
            lastHeard = idleLastHeard p
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
            tsOffset = word second (idleStamps p),
            sendStart = idleSendStart p,
            receiveStart = idleReceiveStart p
          },
      rtt = Rtt (Micros (first (idleTimes p))) (Micros (second (idleTimes p))) (Micros (first (idleTimeouts p))) 0 (Micros (second (idleTimeouts p))),
      loss = noLoss {recover = idleRecover p, lastSent = idleLastSent p},
      congestion = Congestion algorithm s (Window (idleWindow p) (idleThreshold p)),
      timers = noTimers,
      choices = idleChoices p
    }
  where
    snd' = idleSendNext p
    rcv = idleReceiveNext p
    agreement = idleAgreement p
    flag n = (agreement `shiftR` n) .&. 1 == 1
    word :: (Int -> Int) -> Int -> Word32
    word half n = fromIntegral (half n)
