-- |
-- ICMP messages for a connection (RFC 5927). A message is accepted only if it quotes an outstanding segment. It never
-- aborts an established connection, and never reduces the segment size below the minimum.
--
-- @since 0.1.0
module Weft.Tcp.Core.Icmp
  ( pathMtu,
    unreached,
    quotesOutstanding,
  )
where

import Data.List (foldl')
import Data.Word (Word32)
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | Whether a segment with that sequence number is outstanding. Messages that quote others are ignored.
quotesOutstanding :: Word32 -> Conn -> Bool
quotesOutstanding w c = at >= sndUna s && at < sndNxt s
  where
    s = sendSide c
    at = unwrap (sndUna s) w

-- | Fragmentation needed, or packet too big: reduce the segment size (RFC 1191, RFC 8201), and retransmit the segments
-- that were too big. The congestion window is not reduced, because there was no congestion.
pathMtu :: Env -> Word32 -> Int -> Conn -> Conn
pathMtu env w room c
  | not (quotesOutstanding w c) || room >= pathLimit (agreed c) = c
  | otherwise = modifyLoss (\l -> l {board = resendBig (board l)}) smaller
  where
    smaller = c {agreed = (agreed c) {pathLimit = max (mssFloor (config env) + 20) room}}
    resendBig b = foldl' (flip markLost) b [k | (k, s) <- inOrderSent b, sentEnd s - k > sendMss smaller]

-- | Destination unreachable: ends a connection that is being opened, with the given reason. For others it is a soft
-- error (RFC 5927, section 5.2).
unreached :: CloseReason -> Word32 -> Conn -> Conn
unreached why w c
  | state c `elem` [SynSent, SynReceived] && quotesOutstanding w c = c {state = Closed why, timers = noTimers}
  | otherwise = c
